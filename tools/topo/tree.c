/* SPDX-License-Identifier: Apache-2.0
 * Writes a machine or cluster as an outline: a line for each node, or for several that look alike. */
#include <string.h>

#include "tools/topo/topo.h"

enum {
  ALIKE = 3,          /* this many siblings that look alike share a line */
  HOSTS_ALIKE = 2,    /* the same for hosts, and for switches between hosts */
  HOSTS_DRAWN = 3,    /* this many different hosts are drawn */
  SWITCHES_DRAWN = 12 /* this many different switches of a tier have a line */
};

typedef struct outline {
  const topo_view *view;
  const bny_topo *topo;
  topo_fold fold;
  FILE *out;
  bool gpus_alike; /* GPUs of the current host have one model, which the line of the host shows */
} outline;

/* ---- a line ------------------------------------------------------------------------------------------------------ */

static const char *plural(int32_t count) { return count == 1 ? "" : "s"; }

static void put_speed(const outline *o, const char *before, double speed, bool assumed) {
  if (speed > 0) fprintf(o->out, "%s%s", before, topo_speed(speed, assumed));
}

static void put_label(const outline *o, const int32_t *nodes, int32_t count) {
  const bny_topo_node *node = &o->topo->nodes[nodes[0]];
  int8_t severity = o->fold.severity[nodes[0]]; /* all look alike */
  bool folds = node->kind == BNY_TOPO_PACKAGE || node->kind == BNY_TOPO_NUMA || node->kind == BNY_TOPO_PCI;
  const char *kind = node->kind == BNY_TOPO_PACKAGE ? "CPU package" : topo_count(1, node->kind) + sizeof "1";
  if (folds && count > 1)
    fputs(topo_count(count, node->kind), o->out);
  else if (folds && node->kind != BNY_TOPO_PCI && node->index >= 0)
    fprintf(o->out, "%s %d", kind, (int)node->index);
  else if (folds) /* no number: a file or an importer named it */
    fprintf(o->out, "%s %s", kind, node->bus_id != NULL ? node->bus_id : node->name);
  else
    topo_put_names(o->out, o->topo, nodes, count);
  if (severity > TOPO_INFO) fprintf(o->out, " (%s)", topo_severity_name((topo_severity)severity));
}

static void put_model(const outline *o, int32_t node) {
  const char *model = topo_model(&o->topo->nodes[node]);
  if (*model != '\0') fprintf(o->out, ", %s", model);
}

static void put_links(const outline *o, const topo_facts *facts) {
  if (facts->links > 0 || facts->switches + facts->peers > 0) {
    fprintf(o->out, ", %d %s%s to %s", (int)facts->links, facts->xgmi ? "xGMI link" : "NVLink", plural(facts->links),
            facts->switches > 0 ? "NVSwitch" : topo_count(facts->peers, BNY_TOPO_GPU));
    if (facts->links_refused) fputs(", refused", o->out);
    put_speed(o, " ", facts->links_refused ? 0 : facts->links_speed, facts->links_assumed);
  }
  put_speed(o, ", C2C ", facts->coherent, facts->coherent_assumed);
}

/* Names the NICs that serve these GPUs, and their rails: ", by mlx5_0..mlx5_3, rails 0-3". */
static void put_service(const outline *o, const int32_t *gpus, int32_t count) {
  int32_t *nics = tool_new((size_t)count * 2, sizeof *nics), *rails = nics + count, served = 0;
  const bny_topo_rank *first = NULL;
  for (int32_t i = 0; i < count; i++) {
    int32_t r = o->fold.rank[gpus[i]];
    const bny_topo_rank *rank = r < 0 ? NULL : &o->fold.levels->ranks[r];
    if (rank == NULL || rank->nic < 0 || rank->rail < 0) continue;
    first = first == NULL ? rank : first;
    if (served == 0 || rails[served - 1] != rank->rail) {
      nics[served] = rank->nic;
      rails[served++] = rank->rail;
    }
  }
  if (served == 0) return;
  fputs(", by ", o->out);
  topo_put_names(o->out, o->topo, nics, served);
  fprintf(o->out, ", rail%s ", plural(served));
  topo_put_numbers(o->out, rails, served);
  if (first->nic_path >= BNY_TOPO_PATH_SYS) fprintf(o->out, " (%s)", bny_topo_path_name(first->nic_path));
}

static void put_network(const outline *o, const int32_t *nics, int32_t count, const topo_facts *facts) {
  put_speed(o, ", network ", facts->net, facts->net_assumed);
  if (facts->ports > 1) fprintf(o->out, "%s %d ports", facts->net > 0 ? " over" : ",", (int)facts->ports);
  if (facts->ports_down > 0)
    fputs(facts->ports > 1 ? tool_format(", %d down", (int)facts->ports_down) : ", down", o->out);
  if (facts->leaf < 0) return;
  int32_t *leaves = tool_new((size_t)count, sizeof *leaves), found = 0;
  for (int32_t i = 0; i < count; i++) {
    int32_t leaf = topo_fold_facts(&o->fold, nics[i]).leaf;
    if (leaf >= 0 && (found == 0 || leaves[found - 1] != leaf)) leaves[found++] = leaf;
  }
  fputs(", on ", o->out);
  topo_put_names(o->out, o->topo, leaves, found);
}

static void put_switch(const outline *o, int32_t count, const topo_facts *facts) {
  if (facts->peers <= 0) return;
  fprintf(o->out, ", %s %s", count > 1 ? "each joins" : "joins", topo_count(facts->peers, BNY_TOPO_GPU));
  if (facts->links > 0 && count == 1) fprintf(o->out, " with %d NVLink%s", (int)facts->links, plural(facts->links));
}

/* Adds the slowest link between packages or NUMA nodes of a host. */
static void put_between(const outline *o, int32_t host) {
  const bny_topo *topo = o->topo;
  double slowest = 0;
  bool assumed = false;
  for (int32_t n = host + 1; n < topo->nnodes; n++) {
    bool cpu = topo->nodes[n].kind == BNY_TOPO_NUMA || topo->nodes[n].kind == BNY_TOPO_PACKAGE;
    for (int32_t l = cpu && o->fold.host[n] == host ? bny_topo_first_link(topo, n) : -1; l >= 0;
         l = bny_topo_next_link(topo, n, l))
      if (topo->links[l].kind == BNY_TOPO_LINK_SYS) topo_slower(&slowest, &assumed, &topo->links[l]);
  }
  put_speed(o, ", CPU to CPU ", slowest, assumed);
}

/* Describes a host, with the model that its GPUs share. */
static void put_host(outline *o, int32_t host) {
  int32_t gpus = 0;
  const char *model = "";
  o->gpus_alike = true;
  put_model(o, host);
  for (int32_t n = host + 1; n < o->topo->nnodes; n++) {
    if (o->fold.host[n] != host || o->topo->nodes[n].kind != BNY_TOPO_GPU) continue;
    const char *own = topo_model(&o->topo->nodes[n]);
    if (gpus++ == 0) model = own;
    o->gpus_alike = o->gpus_alike && strcmp(own, model) == 0;
  }
  if (o->gpus_alike && *model != '\0') fprintf(o->out, ", %d x %s", (int)gpus, model);
  put_between(o, host);
}

static void put_facts(const outline *o, const int32_t *nodes, int32_t count) {
  const bny_topo_node *node = &o->topo->nodes[nodes[0]];
  topo_facts facts = topo_fold_facts(&o->fold, nodes[0]);
  if (node->kind != BNY_TOPO_SWITCH) put_speed(o, ", PCI ", facts.up, facts.up_assumed);
  if (node->kind == BNY_TOPO_SWITCH) {
    put_switch(o, count, &facts);
  } else if (node->kind == BNY_TOPO_GPU) {
    if (!o->gpus_alike) put_model(o, nodes[0]);
    put_links(o, &facts);
    put_service(o, nodes, count);
  } else {
    put_model(o, nodes[0]);
    if (node->kind == BNY_TOPO_NIC) put_network(o, nodes, count, &facts);
  }
  if (count == 1 && node->bus_id != NULL && node->kind != BNY_TOPO_PCI) fprintf(o->out, ", %s", node->bus_id);
}

/* ---- the outline ------------------------------------------------------------------------------------------------- */

/* Lists the children of all these nodes; *total receives their number. */
static int32_t *children_of(const outline *o, const int32_t *nodes, int32_t count, int32_t *total) {
  int32_t *children = NULL;
  *total = 0;
  for (int32_t i = 0; i < count; i++) {
    for (int32_t c = o->fold.child[nodes[i]]; c >= 0; c = o->fold.next[c]) {
      children = tool_more(children, *total, sizeof *children);
      children[(*total)++] = c;
    }
  }
  return children;
}

/* Writes a line for each group of these nodes that look alike, and what is below them. */
static void put_nodes(const outline *o, int32_t *nodes, int32_t count, int32_t least, int depth) {
  enum { DEPTH_MOST = 24 };
  int32_t *ends = tool_new((size_t)count, sizeof *ends), total;
  int32_t groups = topo_fold_groups(&o->fold, nodes, count, o->view->all ? INT32_MAX : least, ends);
  for (int32_t g = 0, start = 0; g < groups && depth < DEPTH_MOST; start = ends[g++]) {
    int32_t alike = ends[g] - start;
    fprintf(o->out, "%*s", 2 * depth, "");
    put_label(o, &nodes[start], alike);
    put_facts(o, &nodes[start], alike);
    fputc('\n', o->out);
    int32_t *children = children_of(o, &nodes[start], alike, &total);
    put_nodes(o, children, total, alike > 1 ? 1 : ALIKE, depth + 1);
  }
}

/* Draws one host of each kind, and names those that are like it. */
static void put_hosts(outline *o) {
  int32_t *hosts = tool_new((size_t)o->topo->nnodes, sizeof *hosts), *ends, count = 0, total;
  for (int32_t n = 0; n < o->topo->nnodes; n++)
    if (o->topo->nodes[n].kind == BNY_TOPO_HOST && o->fold.above[n] < 0) hosts[count++] = n;
  ends = tool_new((size_t)count, sizeof *ends);
  int32_t groups = topo_fold_groups(&o->fold, hosts, count, o->view->all ? INT32_MAX : HOSTS_ALIKE, ends);
  for (int32_t g = 0, start = 0; g < groups; start = ends[g++]) {
    if (g == HOSTS_DRAWN && !o->view->all) {
      fprintf(o->out, "\n%d hosts more, none like these; --all draws them: ", (int)(count - start));
      topo_put_names(o->out, o->topo, &hosts[start], count - start);
      fputc('\n', o->out);
      return;
    }
    fputc('\n', o->out);
    put_label(o, &hosts[start], 1);
    put_host(o, hosts[start]);
    if (ends[g] - start > 1) {
      fprintf(o->out, ", and %d alike: ", (int)(ends[g] - start - 1));
      topo_put_names(o->out, o->topo, &hosts[start + 1], ends[g] - start - 1);
    }
    fputc('\n', o->out);
    int32_t *children = children_of(o, &hosts[start], 1, &total);
    put_nodes(o, children, total, ALIKE, 1);
  }
}

static void put_tier(const outline *o, int32_t *switches, int32_t count, int32_t tier) {
  static const char *const names[] = {"leaf", "spine", "core", "upper"};
  int32_t *ends = tool_new((size_t)count, sizeof *ends);
  int32_t groups = topo_fold_groups(&o->fold, switches, count, o->view->all ? INT32_MAX : HOSTS_ALIKE, ends);
  for (int32_t g = 0, start = 0; g < groups; start = ends[g++]) {
    topo_facts facts = topo_fold_facts(&o->fold, switches[start]);
    int32_t alike = ends[g] - start;
    bool assumed;
    if (g == SWITCHES_DRAWN && !o->view->all) {
      fprintf(o->out, "%d switches more, none like these; --all draws them\n", (int)(count - start));
      return;
    }
    put_label(o, &switches[start], alike);
    if (tier == 0) {
      put_switch(o, alike, &facts);
    } else {
      fprintf(o->out, ", %d %s switch%s of %s", (int)alike, names[tier > 4 ? 3 : tier - 1], alike > 1 ? "es" : "",
              facts.below > 0 ? topo_count(facts.below, BNY_TOPO_PORT) : tool_format("%d links", (int)facts.beside));
      put_speed(o, " at ", facts.below > 0 ? facts.net : 0, facts.net_assumed);
      double up = topo_fold_uplink(&o->fold, switches[start], &assumed);
      put_speed(o, ", up ", up, assumed);
    }
    fputc('\n', o->out);
  }
}

/* Writes the switches between hosts, the highest tier first, and NVSwitches last. */
static void put_switches(const outline *o) {
  int32_t *switches = tool_new((size_t)o->topo->nnodes, sizeof *switches), highest = 0, above = 0;
  for (int32_t n = 0; n < o->topo->nnodes; n++) {
    highest = o->fold.tier[n] > highest ? o->fold.tier[n] : highest;
    above += o->topo->nodes[n].kind == BNY_TOPO_SWITCH && o->fold.host[n] < 0;
  }
  if (above > 0) fputc('\n', o->out);
  for (int32_t tier = highest; tier >= 0; tier--) {
    int32_t count = 0;
    for (int32_t n = 0; n < o->topo->nnodes; n++)
      if (o->topo->nodes[n].kind == BNY_TOPO_SWITCH && o->fold.host[n] < 0 && o->fold.tier[n] == tier)
        switches[count++] = n;
    put_tier(o, switches, count, tier);
  }
}

static void put_title(const outline *o) {
  static const bny_topo_kind kinds[] = {BNY_TOPO_HOST, BNY_TOPO_PACKAGE, BNY_TOPO_NUMA,
                                        BNY_TOPO_GPU,  BNY_TOPO_NIC,     BNY_TOPO_SWITCH};
  const char *before = ": ";
  fputs(o->view->title, o->out);
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
    int32_t count = bny_topo_count(o->topo, kinds[k]);
    if (count == 0) continue;
    fprintf(o->out, "%s%s", before, topo_count(count, kinds[k]));
    before = ", ";
  }
  fputc('\n', o->out);
}

/* Writes lines of at most 100 columns. */
static void put_wrapped(FILE *out, const char *text) {
  for (const char *end = strchr(text, '\n'); end != NULL; text = end + 1, end = strchr(text, '\n')) {
    int indent = (int)strspn(text, " ");
    fprintf(out, "%*s", indent, "");
    tool_print_wrapped(out, indent, indent + 4, tool_format("%.*s", (int)(end - text) - indent, text + indent));
  }
}

char *topo_view_tree(const topo_view *view) {
  tool_page page, whole;
  outline o = {.view = view, .topo = view->topo, .fold = topo_fold_make(view), .out = tool_page_begin(&page)};
  int32_t *others = tool_new((size_t)view->topo->nnodes, sizeof *others), count = 0;
  put_title(&o);
  put_switches(&o);
  put_hosts(&o);
  for (int32_t n = 0; n < view->topo->nnodes; n++) {
    bny_topo_kind kind = view->topo->nodes[n].kind;
    if (o.fold.shown[n] && o.fold.above[n] < 0 && kind != BNY_TOPO_HOST && kind != BNY_TOPO_SWITCH) others[count++] = n;
  }
  put_nodes(&o, others, count, ALIKE, 0);
  const char *drawn = tool_page_end(&page);
  FILE *out = tool_page_begin(&whole);
  put_wrapped(out, drawn);
  if (strchr(drawn, '~') != NULL)
    fputs("~ assumed: what hardware of that kind does; not read from this machine or file\n", out);
  topo_put_levels(out, view);
  if (view->findings.count > 0) fputs("\nFindings\n", out);
  topo_put_findings(out, view, TOPO_INFO, true);
  topo_put_probes(out, view);
  return tool_page_end(&whole);
}
