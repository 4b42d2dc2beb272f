/* SPDX-License-Identifier: Apache-2.0
 * Draws a machine or cluster in a terminal. */
#include <stdlib.h>
#include <string.h>

#include "tools/topo/topo.h"

enum {
  ALIKE = 3,        /* this many siblings that look alike share a line */
  HOSTS_ALIKE = 2,  /* the same for hosts */
  HOSTS_DRAWN = 3,  /* this many different hosts are drawn */
  HOSTS_NAMED = 12, /* this many more get a line */
  DEPTH = 24        /* levels drawn */
};

typedef struct drawing {
  const topo_view *view;
  topo_fold fold;
  topo_lines lines;
  bool gpus_alike; /* GPUs of the current host have one model, which the line of the host shows */
} drawing;

/* ---- contents of a line ------------------------------------------------------------------------------------------ */

static void name_devices(const drawing *d, const int32_t *nodes, int32_t count, topo_string *label) {
  topo_append_names(label, d->fold.topo, nodes, count, 34, false);
}

static void label_of(const drawing *d, const int32_t *nodes, int32_t count, topo_string *label) {
  const bny_topo_node *node = &d->fold.topo->nodes[nodes[0]];
  bool folds = node->kind == BNY_TOPO_PACKAGE || node->kind == BNY_TOPO_NUMA || node->kind == BNY_TOPO_PCI;
  if (folds && count > 1) {
    topo_append(label, "%s", topo_count(count, node->kind));
  } else if (folds && node->kind != BNY_TOPO_PCI && node->index >= 0) {
    topo_append(label, "%s %d", node->kind == BNY_TOPO_NUMA ? "NUMA node" : "CPU package", (int)node->index);
  } else if (folds) { /* no number: a file or an importer named them */
    topo_append(label, "%s%s",
                node->kind == BNY_TOPO_PCI    ? "PCI switch "
                : node->kind == BNY_TOPO_NUMA ? "NUMA "
                                              : "CPU ",
                node->bus_id != NULL ? node->bus_id : node->name);
  } else {
    name_devices(d, nodes, count, label);
  }
}

static void say_model(const bny_topo_node *node, topo_line *line) {
  topo_line_say(line, TOPO_LINE_MODEL, topo_model(node));
}

static void say_links(const topo_facts *facts, topo_line *line) {
  if (facts->links > 0 || facts->switches + facts->peers > 0) {
    topo_line_say(line, TOPO_LINE_LINKS,
                  tool_format("%d %s%s to %s", (int)facts->links, facts->xgmi ? "xGMI link" : "NVLink",
                              facts->links == 1 ? "" : "s",
                              facts->switches > 0 ? "NVSwitch" : topo_count(facts->peers, BNY_TOPO_GPU)));
    topo_line_say(line, TOPO_LINE_LINKS,
                  facts->links_refused ? "refused" : topo_speed(facts->links_speed, facts->links_assumed));
  }
  if (facts->coherent > 0)
    topo_line_say(line, TOPO_LINE_LINKS, tool_format("C2C %s", topo_speed(facts->coherent, facts->coherent_assumed)));
}

/* Adds the NICs that serve these ranks, and their rails: "-> mlx5_0..mlx5_3, rails 0-3". */
static void say_service(drawing *d, const int32_t *nodes, int32_t count, topo_line *line) {
  const bny_topo_levels *levels = d->fold.levels;
  if (d->fold.topo->nodes[nodes[0]].kind != BNY_TOPO_GPU) return;
  int32_t *nics = tool_new((size_t)count * 2, sizeof *nics), *rails = nics + count, served = 0;
  const bny_topo_rank *first = NULL;
  for (int32_t i = 0; i < count; i++) {
    int32_t r = d->fold.rank[nodes[i]];
    const bny_topo_rank *rank = r < 0 ? NULL : &levels->ranks[r];
    if (rank == NULL || rank->nic < 0 || rank->rail < 0) continue;
    first = first == NULL ? rank : first;
    if (served == 0 || rails[served - 1] != rank->rail) {
      nics[served] = rank->nic;
      rails[served++] = rank->rail;
    }
  }
  if (served > 0) {
    topo_string text = {.text = ""};
    topo_append(&text, "%s ", d->view->utf8 ? "→" : "->");
    topo_append_names(&text, d->fold.topo, nics, served, 24, true);
    topo_append(&text, served == 1 ? ", rail " : ", rails ");
    topo_append_numbers(&text, rails, served, 12);
    if (first->nic_path >= BNY_TOPO_PATH_SYS) topo_append(&text, " (%s)", bny_topo_path_name(first->nic_path));
    topo_line_say(line, TOPO_LINE_SERVICE, text.text);
  }
}

static void say_network(drawing *d, const int32_t *nodes, int32_t count, const topo_facts *facts, topo_line *line) {
  topo_string text = {.text = ""};
  if (facts->net > 0) topo_append(&text, "network %s", topo_speed(facts->net, facts->net_assumed));
  if (facts->ports > 1) topo_append(&text, "%sover %d ports", facts->net > 0 ? " " : "", (int)facts->ports);
  topo_line_say(line, TOPO_LINE_LINKS, text.text);
  if (facts->ports_down > 0)
    topo_line_say(line, TOPO_LINE_LINKS, facts->ports > 1 ? tool_format("%d down", (int)facts->ports_down) : "down");
  if (facts->leaf >= 0) {
    int32_t *leaves = tool_new((size_t)count, sizeof *leaves), found = 0;
    for (int32_t i = 0; i < count; i++) {
      int32_t leaf = topo_fold_facts(&d->fold, nodes[i]).leaf;
      if (leaf >= 0 && (found == 0 || leaves[found - 1] != leaf)) leaves[found++] = leaf;
    }
    topo_string on = {.text = "on "};
    topo_append_names(&on, d->fold.topo, leaves, found, 30, true);
    topo_line_say(line, TOPO_LINE_SERVICE, on.text);
  }
}

/* Adds the GPUs that a switch joins, inside a host or above. */
static void say_switch(const topo_facts *facts, int32_t count, topo_line *line) {
  if (facts->peers <= 0) return;
  topo_string text = {.text = ""};
  topo_append(&text, "%sjoins %s", count > 1 ? "each " : "", topo_count(facts->peers, BNY_TOPO_GPU));
  if (facts->links > 0 && count == 1)
    topo_append(&text, " with %d NVLink%s", (int)facts->links, facts->links == 1 ? "" : "s");
  topo_line_say(line, TOPO_LINE_LINKS, text.text);
}

/* Adds the slowest link between packages or NUMA nodes of a host. */
static void say_between(const drawing *d, int32_t host, topo_line *line) {
  const bny_topo *topo = d->fold.topo;
  double slowest = 0;
  bool assumed = false;
  for (int32_t n = host + 1; n < topo->nnodes; n++) {
    bool cpu = topo->nodes[n].kind == BNY_TOPO_NUMA || topo->nodes[n].kind == BNY_TOPO_PACKAGE;
    for (int32_t l = cpu && d->fold.host[n] == host ? bny_topo_first_link(topo, n) : -1; l >= 0;
         l = bny_topo_next_link(topo, n, l)) {
      const bny_topo_link *link = &topo->links[l];
      if (link->kind == BNY_TOPO_LINK_SYS && link->gbytes_per_s > 0 && (slowest <= 0 || link->gbytes_per_s < slowest)) {
        slowest = link->gbytes_per_s;
        assumed = link->source == BNY_TOPO_ASSUMED;
      }
    }
  }
  if (slowest > 0) topo_line_say(line, TOPO_LINE_LINKS, tool_format("CPU to CPU %s", topo_speed(slowest, assumed)));
}

/* Describes a host, with the model that its GPUs share. */
static void say_host(drawing *d, int32_t host, topo_line *line) {
  const bny_topo *topo = d->fold.topo;
  int32_t gpus = 0;
  const char *model = "";
  bool speeds = false;
  d->gpus_alike = true;
  say_model(&topo->nodes[host], line);
  for (int32_t n = host + 1; n < topo->nnodes; n++) {
    if (d->fold.host[n] == host && topo->nodes[n].kind == BNY_TOPO_GPU) {
      const char *own = topo_model(&topo->nodes[n]);
      if (gpus++ == 0) model = own;
      d->gpus_alike = d->gpus_alike && strcmp(own, model) == 0;
    }
    speeds = speeds || (d->fold.host[n] == host && d->fold.shown[n] && topo_fold_facts(&d->fold, n).up > 0);
  }
  if (d->gpus_alike && *model != '\0') topo_line_say(line, TOPO_LINE_LINKS, tool_format("%d x %s", (int)gpus, model));
  topo_append(&line->speed, "%s", speeds ? "PCI" : "");
  say_between(d, host, line);
}

static void describe(drawing *d, const int32_t *nodes, int32_t count, topo_line *line) {
  const bny_topo_node *node = &d->fold.topo->nodes[nodes[0]];
  topo_facts facts = topo_fold_facts(&d->fold, nodes[0]);
  topo_append(&line->speed, "%s", topo_speed(facts.up, facts.up_assumed));
  for (int32_t i = 0; i < count; i++) {
    int8_t severity = d->fold.severity[nodes[i]];
    line->severity = severity > line->severity ? severity : line->severity;
  }
  switch (node->kind) {
  case BNY_TOPO_GPU:
    if (!d->gpus_alike) say_model(node, line);
    say_links(&facts, line);
    say_service(d, nodes, count, line);
    break;
  case BNY_TOPO_NIC: say_model(node, line), say_network(d, nodes, count, &facts, line); break;
  case BNY_TOPO_SWITCH: line->speed.text[0] = '\0', say_switch(&facts, count, line); break;
  case BNY_TOPO_HOST: say_host(d, nodes[0], line); break;
  default: say_model(node, line); break;
  }
  if (count == 1 && node->bus_id != NULL && node->kind != BNY_TOPO_PCI)
    topo_line_say(line, TOPO_LINE_BUS, node->bus_id);
}

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

/* Lists the children of all these nodes; *total receives their number. */
static int32_t *children_of(drawing *d, const int32_t *nodes, int32_t count, int32_t *total) {
  int32_t all = 0;
  for (int32_t i = 0; i < count; i++)
    for (int32_t c = d->fold.child[nodes[i]]; c >= 0; c = d->fold.next[c]) all++;
  int32_t *children = tool_new((size_t)all, sizeof *children);
  *total = 0;
  for (int32_t i = 0; i < count; i++)
    for (int32_t c = d->fold.child[nodes[i]]; c >= 0; c = d->fold.next[c]) children[(*total)++] = c;
  return children;
}

static void draw_below(drawing *d, const char *prefix, const int32_t *nodes, int32_t count, int depth);

static void draw_group(drawing *d, const char *prefix, const int32_t *nodes, int32_t count, bool last, int depth) {
  const char *branch = d->view->utf8 ? (last ? "└─ " : "├─ ") : last ? "`- " : "|- ";
  const char *stem = last ? "   " : d->view->utf8 ? "│  " : "|  ";
  topo_line *line = topo_lines_add(&d->lines);
  topo_append(&line->prefix, "%s%s", prefix, branch);
  label_of(d, nodes, count, &line->label);
  describe(d, nodes, count, line);
  draw_below(d, tool_format("%s%s", prefix, stem), nodes, count, depth + 1);
}

static void draw_below(drawing *d, const char *prefix, const int32_t *nodes, int32_t count, int depth) {
  int32_t total, *children = children_of(d, nodes, count, &total);
  int32_t *ends = tool_new((size_t)total, sizeof *ends);
  int32_t least = d->view->all ? INT32_MAX : count > 1 ? 1 : ALIKE;
  int32_t groups = topo_fold_groups(&d->fold, children, total, least, ends);
  for (int32_t g = 0, start = 0; g < groups && depth < DEPTH; start = ends[g++])
    draw_group(d, prefix, &children[start], ends[g] - start, g + 1 == groups, depth);
}

/* ---- hosts ------------------------------------------------------------------------------------------------------- */

static topo_line *host_line(drawing *d, const int32_t *hosts, int32_t count, bool drawn) {
  topo_line *line = topo_lines_add(&d->lines);
  name_devices(d, hosts, drawn ? 1 : count, &line->label);
  if (drawn && count > 1) {
    topo_string text = {.text = ""};
    topo_append(&text, "and %d alike: ", (int)count - 1);
    topo_append_names(&text, d->fold.topo, hosts + 1, count - 1, 40, false);
    topo_line_say(line, TOPO_LINE_SERVICE, text.text);
  }
  return line;
}

static void draw_host(drawing *d, const int32_t *hosts, int32_t count) {
  topo_lines_add(&d->lines);
  topo_line *line = host_line(d, hosts, count, true);
  describe(d, hosts, 1, line);
  for (int32_t i = 1; i < count; i++)
    line->severity = d->fold.severity[hosts[i]] > line->severity ? d->fold.severity[hosts[i]] : line->severity;
  draw_below(d, "", hosts, 1, 1);
}

/* Lists hosts that are not drawn, with their numbers of devices. */
static void name_hosts(drawing *d, const int32_t *hosts, int32_t count) {
  topo_line *line = host_line(d, hosts, count, false);
  int32_t kinds[BNY_TOPO_KINDS] = {0};
  for (int32_t n = hosts[0]; n < d->fold.topo->nnodes; n++)
    kinds[d->fold.topo->nodes[n].kind] += d->fold.host[n] == hosts[0];
  topo_line_say(line, TOPO_LINE_LINKS,
                tool_format("%s, %s", topo_count(kinds[BNY_TOPO_GPU], BNY_TOPO_GPU),
                            topo_count(kinds[BNY_TOPO_NIC], BNY_TOPO_NIC)));
}

typedef struct host_group {
  int32_t start, count;
  int8_t severity; /* worst finding about any part of its hosts */
} host_group;

/* Orders groups by severity, then by size (largest first), then by the order of the model. */
static int by_severity(const void *a, const void *b) {
  const host_group *x = a, *y = b;
  if (x->severity != y->severity) return x->severity > y->severity ? -1 : 1;
  return x->count != y->count ? (x->count > y->count ? -1 : 1) : (x->start > y->start) - (x->start < y->start);
}

/* Puts the largest group first, which shows the normal case, and then the groups with faults. */
static void order_groups(const drawing *d, const int32_t *hosts, host_group *groups, int32_t ngroups) {
  const topo_findings *findings = &d->view->findings;
  for (int32_t f = findings->count - 1; f >= 0; f--) { /* the most severe finding is stored last */
    int32_t node = findings->list[f].node, host = node < 0 ? -1 : d->fold.host[node];
    for (int32_t g = 0; host >= 0 && findings->list[f].severity > TOPO_INFO && g < ngroups; g++)
      for (int32_t i = groups[g].start; i < groups[g].start + groups[g].count; i++)
        if (hosts[i] == host) groups[g].severity = (int8_t)findings->list[f].severity;
  }
  for (int32_t g = 1; g < ngroups; g++) {
    if (groups[g].count <= groups[0].count) continue;
    host_group first = groups[0];
    groups[0] = groups[g];
    groups[g] = first;
  }
  if (ngroups > 1) qsort(groups + 1, (size_t)ngroups - 1, sizeof *groups, by_severity);
}

static void draw_groups(drawing *d, const int32_t *hosts, host_group *groups, int32_t ngroups) {
  int32_t drawn = d->view->all ? ngroups : HOSTS_DRAWN, left = 0;
  order_groups(d, hosts, groups, ngroups);
  for (int32_t g = 0; g < ngroups; g++) {
    const int32_t *group = &hosts[groups[g].start];
    if (g == drawn) topo_lines_add(&d->lines);
    if (g < drawn)
      draw_host(d, group, groups[g].count);
    else if (g < drawn + HOSTS_NAMED)
      name_hosts(d, group, groups[g].count);
    else
      left += groups[g].count;
  }
  if (left > 0)
    topo_append(&topo_lines_add(&d->lines)->label, "and %d hosts more, none like these; --all draws them", (int)left);
}

/* Draws hosts, and other nodes at the top. */
static void draw_hosts(drawing *d) {
  const bny_topo *topo = d->fold.topo;
  int32_t *tops = tool_new((size_t)topo->nnodes, sizeof *tops), *ends = tool_new((size_t)topo->nnodes, sizeof *ends);
  int32_t nhosts = 0, nothers = 0;
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_HOST && d->fold.above[n] < 0) tops[nhosts++] = n;
  int32_t ngroups = topo_fold_groups(&d->fold, tops, nhosts, d->view->all ? INT32_MAX : HOSTS_ALIKE, ends);
  host_group *groups = tool_new((size_t)ngroups, sizeof *groups);
  for (int32_t g = 0, start = 0; g < ngroups; start = ends[g++])
    groups[g] = (host_group){.start = start, .count = ends[g] - start};
  draw_groups(d, tops, groups, ngroups);
  for (int32_t n = 0; n < topo->nnodes; n++) {
    bool other = d->fold.shown[n] && d->fold.above[n] < 0 && topo->nodes[n].kind != BNY_TOPO_HOST &&
                 topo->nodes[n].kind != BNY_TOPO_SWITCH;
    if (other) tops[nothers++] = n;
  }
  ngroups = topo_fold_groups(&d->fold, tops, nothers, d->view->all ? INT32_MAX : ALIKE, ends);
  for (int32_t g = 0, start = 0; g < ngroups; start = ends[g++])
    draw_group(d, "", &tops[start], ends[g] - start, g + 1 == ngroups, 1);
}

/* ---- the whole picture ------------------------------------------------------------------------------------------- */

static void put_title(FILE *out, const topo_view *view) {
  static const bny_topo_kind kinds[] = {BNY_TOPO_HOST, BNY_TOPO_PACKAGE, BNY_TOPO_NUMA,
                                        BNY_TOPO_GPU,  BNY_TOPO_NIC,     BNY_TOPO_SWITCH};
  topo_string counts = {.text = ""};
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
    int32_t count = bny_topo_count(view->topo, kinds[k]);
    if (count > 0) topo_append(&counts, "%s%s", counts.text[0] == '\0' ? "" : ", ", topo_count(count, kinds[k]));
  }
  topo_string title = {.text = ""};
  topo_append(&title, "%.250s", view->title);
  topo_clip(title.text, view->columns);
  topo_put(out, view, title.text);
  bool fits = topo_width(title.text) + 2 + topo_width(counts.text) <= view->columns;
  fputs(fits ? ": " : ":\n", out);
  topo_put(out, view, counts.text);
  fputc('\n', out);
}

char *topo_view_tree(const topo_view *view) {
  tool_page page;
  drawing d = {.view = view, .fold = topo_fold_make(view)};
  topo_network_draw(&d.fold, view, &d.lines);
  draw_hosts(&d);
  FILE *out = tool_page_begin(&page);
  put_title(out, view);
  topo_lines_put(&d.lines, view, out);
  if (fflush(out) == 0 && strchr(page.text, '~') != NULL) {
    topo_put(out, view, "~ assumed: what hardware of that kind does; not read from this machine or file");
    fputc('\n', out);
  }
  topo_put_levels(out, view);
  topo_put_findings(out, view);
  topo_put_probes(out, view);
  return tool_page_end(&page);
}
