/* SPDX-License-Identifier: Apache-2.0
 * Compares two topologies node by node and link by link. */
#include "tools/topo/topo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct comparison {
  const topo_comparison *options;
  const topo_view *views[2];
  topo_fold folds[2];
  int32_t *scope[2]; /* by node: its host, with the same number on both sides; -1 none */
  int32_t *pair[2];  /* by node: its counterpart on the other side; -1 none */
  bool hosts_named;
  topo_change *changes;
  int32_t nchanges;
} comparison;

static void report(comparison *c, topo_change change) {
  change.text = tool_format("%s", change.text);
  c->changes = tool_more(c->changes, c->nchanges, sizeof change);
  c->changes[c->nchanges++] = change;
}

/* Returns whether a node is excluded from the comparison. With a single host, these are nodes outside of it, and
 * switches, which may be inside one host or above several. */
static bool is_outside(const comparison *c, int side, int32_t n) {
  int32_t host = c->folds[side].host[n];
  bool in_switch = c->views[side]->topo->nodes[n].kind == BNY_TOPO_SWITCH;
  return c->options->only >= 0 && (in_switch || (side == 0 ? host < 0 : host != c->options->only));
}

/* ---- pairing ----------------------------------------------------------------------------------------------------- */

typedef struct named {
  int32_t scope, node;
  const char *key;
} named;

static int by_key(const void *a, const void *b) {
  const named *x = a, *y = b;
  int order = x->scope != y->scope ? (x->scope < y->scope ? -1 : 1) : strcmp(x->key, y->key);
  return order != 0 ? order : (x->node > y->node) - (x->node < y->node);
}

static bool is_compared(bny_topo_kind kind) { return kind != BNY_TOPO_PCI && kind != BNY_TOPO_PORT; }

/* Returns the key of a node: kind and number, bus id or name. Returns NULL if `by_bus` and there is no bus id. */
static const char *key_of(const bny_topo_node *node, bool by_bus) {
  if (by_bus && node->bus_id == NULL) return NULL;
  if ((node->kind == BNY_TOPO_NUMA || node->kind == BNY_TOPO_PACKAGE) && node->index >= 0)
    return tool_format("%d #%d", (int)node->kind, (int)node->index);
  return tool_format("%d %s", (int)node->kind, by_bus ? node->bus_id : node->name);
}

/* Lists the nodes of one side without a counterpart, sorted by key. */
static named *unpaired(const comparison *c, int side, bool by_bus, bool hosts, int32_t *count) {
  const bny_topo *topo = c->views[side]->topo;
  named *list = tool_new((size_t)topo->nnodes, sizeof *list);
  *count = 0;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    const bny_topo_node *node = &topo->nodes[n];
    if (!is_compared(node->kind) || c->pair[side][n] >= 0 || (node->kind == BNY_TOPO_HOST) != hosts ||
        is_outside(c, side, n))
      continue;
    const char *key = key_of(node, by_bus);
    if (key != NULL) list[(*count)++] = (named){.scope = hosts ? -1 : c->scope[side][n], .node = n, .key = key};
  }
  qsort(list, (size_t)*count, sizeof *list, by_key);
  return list;
}

static void pair_up(comparison *c, bool by_bus, bool hosts) {
  int32_t counts[2] = {0, 0};
  named *lists[2] = {unpaired(c, 0, by_bus, hosts, &counts[0]), unpaired(c, 1, by_bus, hosts, &counts[1])};
  for (int32_t i = 0, j = 0; i < counts[0] && j < counts[1];) {
    const named *a = &lists[0][i], *b = &lists[1][j];
    int order = a->scope != b->scope ? (a->scope < b->scope ? -1 : 1) : strcmp(a->key, b->key);
    if (order == 0) {
      c->pair[0][a->node] = b->node;
      c->pair[1][b->node] = a->node;
    }
    i += order <= 0;
    j += order >= 0;
  }
}

/* The scope is the host's number on the first side, or else a number that only this side has. */
static void find_scopes(comparison *c) {
  int32_t offset = c->views[0]->topo->nnodes;
  for (int side = 0; side < 2; side++) {
    for (int32_t n = 0; n < c->views[side]->topo->nnodes; n++) {
      int32_t host = c->folds[side].host[n];
      int32_t paired = host < 0 || side == 0 ? host : c->pair[1][host];
      c->scope[side][n] = host >= 0 && paired < 0 ? offset + host : paired;
    }
  }
}

static void pair_all(comparison *c) {
  int32_t only[2] = {-1, -1};
  for (int side = 0; side < 2; side++) {
    const bny_topo *topo = c->views[side]->topo;
    for (int32_t n = 0; bny_topo_count(topo, BNY_TOPO_HOST) == 1 && n < topo->nnodes; n++)
      only[side] = topo->nodes[n].kind == BNY_TOPO_HOST ? n : only[side];
  }
  only[1] = c->options->only >= 0 ? c->options->only : only[1];
  if (only[0] >= 0 && only[1] >= 0) {
    c->pair[0][only[0]] = only[1];
    c->pair[1][only[1]] = only[0];
  }
  c->hosts_named = only[0] < 0 || only[1] < 0 || bny_topo_count(c->views[1]->topo, BNY_TOPO_HOST) > 1;
  pair_up(c, false, true);
  find_scopes(c);
  pair_up(c, true, false);
  pair_up(c, false, false);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* Returns the name of a host, on the side that has several hosts. */
static const char *host_name(const comparison *c, int side, int32_t host) {
  int32_t only = c->options->only;
  return only >= 0 ? c->views[1]->topo->nodes[only].name : c->views[side]->topo->nodes[host].name;
}

static void name_node(const comparison *c, int side, int32_t n, bool with_bus, topo_string *text) {
  const bny_topo_node *node = &c->views[side]->topo->nodes[n];
  int32_t host = c->folds[side].host[n];
  if (c->hosts_named && host >= 0 && host != n) topo_append(text, "%.60s ", host_name(c, side, host));
  topo_append(text, "%.60s", node->name);
  if (with_bus && node->bus_id != NULL) topo_append(text, " (%s)", node->bus_id);
}

/* Reports "gpu GPU7 (0000:8a:00.0)", or "3 NICs: mlx5_1, mlx5_2 .." for several nodes. */
static void report_group(comparison *c, int side, const int32_t *nodes, int32_t count) {
  const bny_topo *topo = c->views[side]->topo;
  bny_topo_kind kind = topo->nodes[nodes[0]].kind;
  int32_t host = c->folds[side].host[nodes[0]];
  topo_string text = {.text = ""};
  if (count == 1) {
    topo_append(&text, "%s ", bny_topo_kind_name(kind));
    name_node(c, side, nodes[0], true, &text);
  } else {
    topo_append(&text, "%s", topo_count(count, kind));
    if (c->hosts_named && host >= 0 && kind != BNY_TOPO_HOST) topo_append(&text, " of %.60s", host_name(c, side, host));
    topo_append(&text, ": ");
    topo_append_names(&text, topo, nodes, count, 80, false);
  }
  report(c, (topo_change){.kind = side == 0 ? TOPO_MISSING : TOPO_ADDED,
                          .what = bny_topo_kind_name(kind),
                          .text = text.text,
                          .nodes = {side == 0 ? nodes[0] : -1, side == 1   ? nodes[0]
                                                               : host >= 0 ? c->pair[0][host]
                                                                           : -1}});
}

/* Reports nodes without a counterpart, except the devices of a missing host. */
static void report_unpaired(comparison *c, int side) {
  const bny_topo *topo = c->views[side]->topo;
  int32_t *group = tool_new((size_t)topo->nnodes, sizeof *group), *host_of = c->folds[side].host;
  for (int kind = 0; kind < BNY_TOPO_KINDS; kind++) {
    int32_t count = 0;
    for (int32_t n = 0; n < topo->nnodes; n++) {
      int32_t host = host_of[n];
      if ((int)topo->nodes[n].kind != kind || !is_compared(topo->nodes[n].kind) || c->pair[side][n] >= 0 ||
          is_outside(c, side, n) || (host >= 0 && host != n && c->pair[side][host] < 0))
        continue;
      bool same = count > 0 && c->options->together && (kind == BNY_TOPO_HOST || host == host_of[group[0]]);
      if (count > 0 && !same) {
        report_group(c, side, group, count);
        count = 0;
      }
      group[count++] = n;
    }
    if (count > 0) report_group(c, side, group, count);
  }
}

static bool differ(double a, double b) { return fabs(a - b) > 0.005 * fmax(a, b); /* the precision of the output */ }

static bool differ_text(const char *a, const char *b) {
  return (a == NULL) != (b == NULL) || (a != NULL && strcmp(a, b) != 0);
}

static void append_texts(const comparison *c, topo_string *text, const char *what, const char *before,
                         const char *after) {
  if (differ_text(before, after))
    topo_append(text, "; %s %.60s %s %.60s", what, before == NULL ? "not known" : before, c->options->arrow,
                after == NULL ? "not known" : after);
}

/* Appends "; PCI 48 GB/s -> 24 GB/s". */
static void append_speeds(const comparison *c, topo_string *text, const char *what, double before, double after) {
  if (differ(before, after))
    append_texts(c, text, what, before > 0 ? topo_speed(before, false) : NULL,
                 after > 0 ? topo_speed(after, false) : NULL);
}

/* Returns the NUMA node or package that contains a node; NULL if there is none. */
static const bny_topo_node *place_of(const bny_topo *topo, int32_t n) {
  int32_t numa = bny_topo_ancestor(topo, n, BNY_TOPO_NUMA), package = bny_topo_ancestor(topo, n, BNY_TOPO_PACKAGE);
  return numa >= 0 ? &topo->nodes[numa] : package >= 0 ? &topo->nodes[package] : NULL;
}

static void compare_places(const comparison *c, topo_string *text, int32_t a, int32_t b) {
  const bny_topo_node *before = place_of(c->views[0]->topo, a), *after = place_of(c->views[1]->topo, b);
  bool counted = before != NULL && after != NULL && before->index >= 0 && after->index >= 0;
  bool same = counted ? before->kind == after->kind && before->index == after->index
                      : !differ_text(before == NULL ? NULL : before->name, after == NULL ? NULL : after->name);
  if (!same) append_texts(c, text, "below", before == NULL ? NULL : before->name, after == NULL ? NULL : after->name);
}

static int32_t lanes_of(const bny_topo *topo, int32_t n) {
  int32_t up = bny_topo_link_up(topo, n, BNY_TOPO_LINK_PCI);
  return up < 0 ? 0 : topo->links[up].count;
}

static void compare_pair(comparison *c, int32_t a, int32_t b) {
  const bny_topo *topos[2] = {c->views[0]->topo, c->views[1]->topo};
  const bny_topo_node *before = &topos[0]->nodes[a], *after = &topos[1]->nodes[b];
  topo_facts facts[2] = {topo_fold_facts(&c->folds[0], a), topo_fold_facts(&c->folds[1], b)};
  topo_string text = {.text = ""};
  bool device = before->kind == BNY_TOPO_GPU || before->kind == BNY_TOPO_NIC;
  if (device) {
    append_texts(c, &text, "name", before->name, after->name);
    append_texts(c, &text, "at", before->bus_id, after->bus_id);
  }
  if (device || before->kind == BNY_TOPO_PACKAGE || before->kind == BNY_TOPO_NUMA) {
    if (before->model != NULL && after->model != NULL) append_texts(c, &text, "model", before->model, after->model);
  }
  if (before->compute != after->compute && before->compute >= 0 && after->compute >= 0)
    topo_append(&text, "; compute %d %s %d", (int)before->compute, c->options->arrow, (int)after->compute);
  if (device) {
    compare_places(c, &text, a, b);
    append_speeds(c, &text, "PCI", facts[0].up, facts[1].up);
    append_speeds(c, &text, "network", facts[0].net, facts[1].net);
    append_texts(c, &text, "switch", facts[0].leaf < 0 ? NULL : topos[0]->nodes[facts[0].leaf].name,
                 facts[1].leaf < 0 ? NULL : topos[1]->nodes[facts[1].leaf].name);
  }
  if (text.text[0] == '\0') return;
  topo_string line = {.text = ""};
  topo_append(&line, "%s ", bny_topo_kind_name(before->kind));
  name_node(c, 0, a, false, &line);
  topo_append(&line, ": %s", text.text + 2);
  report(c, (topo_change){.kind = TOPO_CHANGED,
                          .what = bny_topo_kind_name(before->kind),
                          .text = line.text,
                          .nodes = {a, b},
                          .lanes = {lanes_of(topos[0], a), lanes_of(topos[1], b)},
                          .pci = {facts[0].up, facts[1].up},
                          .net = {facts[0].net, facts[1].net}});
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

typedef struct edge {
  bny_topo_link_kind kind;
  int32_t low, high; /* nodes of the first model; both are the GPU for links to its NVSwitches */
  int32_t count;
  double speed;
} edge;

static int by_ends(const void *a, const void *b) {
  const edge *x = a, *y = b;
  if (x->low != y->low) return x->low < y->low ? -1 : 1;
  if (x->high != y->high) return x->high < y->high ? -1 : 1;
  return ((int)x->kind > (int)y->kind) - ((int)x->kind < (int)y->kind);
}

static bool is_nvswitch(const bny_topo *topo, const bny_topo_link *link, int32_t end) {
  return topo->nodes[end].kind == BNY_TOPO_SWITCH && bny_topo_joins_gpus(link);
}

/* Lists links between nodes that both sides have. Parallel links are merged, and so are the links of a GPU to all
 * NVSwitches. PCI links and ports are reported with their devices. */
static edge *edges_of(const comparison *c, int side, int32_t *count) {
  const bny_topo *topo = c->views[side]->topo;
  edge *edges = tool_new((size_t)topo->nlinks, sizeof *edges);
  int32_t found = 0;
  *count = 0;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    int32_t from = is_nvswitch(topo, link, link->from) ? link->to : link->from;
    int32_t to = is_nvswitch(topo, link, link->to) ? link->from : link->to;
    if (link->kind == BNY_TOPO_LINK_PCI || link->from == link->to || c->pair[side][from] < 0 || c->pair[side][to] < 0)
      continue; /* ports and PCI switches have no counterpart */
    from = side == 0 ? from : c->pair[1][from];
    to = side == 0 ? to : c->pair[1][to];
    edges[found++] = (edge){.kind = link->kind,
                            .low = from < to ? from : to,
                            .high = from < to ? to : from,
                            .count = link->count,
                            .speed = link->gbytes_per_s};
  }
  qsort(edges, (size_t)found, sizeof *edges, by_ends);
  for (int32_t i = 0; i < found; i++) {
    if (*count > 0 && by_ends(&edges[*count - 1], &edges[i]) == 0) {
      edges[*count - 1].count += edges[i].count;
      edges[*count - 1].speed += edges[i].speed;
    } else {
      edges[(*count)++] = edges[i];
    }
  }
  return edges;
}

static void report_edge(comparison *c, topo_change_kind kind, const edge *before, const edge *after) {
  const edge *any = before != NULL ? before : after;
  topo_string text = {.text = ""};
  topo_append(&text, "%s ", bny_topo_link_name(any->kind));
  name_node(c, 0, any->low, false, &text);
  topo_append(&text, " - ");
  if (any->low == any->high)
    topo_append(&text, "NVSwitch");
  else
    name_node(c, 0, any->high, false, &text);
  for (int side = 0; side < 2; side++) {
    const edge *here = side == 0 ? before : after;
    if (here == NULL) continue;
    topo_append(&text, "%s x%d%s%s", side == 0 || before == NULL ? ":" : "", (int)here->count,
                here->speed > 0 ? ", " : "", topo_speed(here->speed, false));
    if (side == 0 && after != NULL) topo_append(&text, " %s", c->options->arrow);
  }
  report(c, (topo_change){.kind = kind,
                          .what = "link",
                          .text = text.text,
                          .nodes = {any->low, c->pair[0][any->low]},
                          .link = any->kind,
                          .links = {before != NULL ? before->count : 0, after != NULL ? after->count : 0},
                          .speed = {before != NULL ? before->speed : 0, after != NULL ? after->speed : 0}});
}

static void compare_edges(comparison *c) {
  int32_t counts[2] = {0, 0};
  edge *edges[2] = {edges_of(c, 0, &counts[0]), edges_of(c, 1, &counts[1])};
  for (int32_t i = 0, j = 0; i < counts[0] || j < counts[1];) {
    const edge *a = i < counts[0] ? &edges[0][i] : NULL, *b = j < counts[1] ? &edges[1][j] : NULL;
    int order = a == NULL ? 1 : b == NULL ? -1 : by_ends(a, b);
    if (order != 0)
      report_edge(c, order < 0 ? TOPO_MISSING : TOPO_ADDED, order < 0 ? a : NULL, order < 0 ? NULL : b);
    else if (a->count != b->count || differ(a->speed, b->speed))
      report_edge(c, TOPO_CHANGED, a, b);
    i += order <= 0;
    j += order >= 0;
  }
}

/* ---- the whole comparison ---------------------------------------------------------------------------------------- */

/* Removes the marks of assumed speeds: a speed that is assumed on one side and known on the other is not a
 * difference. */
static void drop_tildes(char *text) {
  char *to = text;
  for (const char *from = text; *from != '\0'; from++)
    if (*from != '~') *to++ = *from;
  *to = '\0';
}

/* Appends the words that differ, or all of them if one side lacks the level. */
static bool append_level(const comparison *c, topo_string *text, const bny_topo_level *const sides[2]) {
  static const int order[4] = {0, 3, 1, 2}; /* groups, path, speed, shape */
  topo_string words[2][4];
  bool differs = false;
  memset(words, 0, sizeof words);
  for (int side = 0; side < 2; side++) {
    if (sides[side] != NULL) topo_level_words(c->views[side]->levels, sides[side], words[side]);
    for (int w = 0; w < 4; w++) drop_tildes(words[side][w].text);
  }
  for (int i = 0; i < 4; i++) {
    const char *before = words[0][order[i]].text, *after = words[1][order[i]].text;
    const char *comma = differs ? ", " : "";
    if (strcmp(before, after) == 0) continue;
    differs = true;
    if (sides[0] == NULL || sides[1] == NULL)
      topo_append(text, "%s%s%s", comma, before, after);
    else
      topo_append(text, "%s%.60s %s %.60s", comma, before[0] == '\0' ? "none" : before, c->options->arrow,
                  after[0] == '\0' ? "none" : after);
  }
  return differs;
}

static void compare_levels(comparison *c) {
  for (int kind = 0; kind < BNY_TOPO_LEVEL_KINDS; kind++) {
    topo_string text = {.text = ""};
    const bny_topo_level *sides[2];
    for (int side = 0; side < 2; side++)
      sides[side] = bny_topo_level_of(c->views[side]->levels, (bny_topo_level_kind)kind);
    int named = sides[0] == NULL;
    if (sides[named] == NULL) continue;
    topo_append(&text, "level %s: ", topo_level_name(c->views[named], sides[named]));
    if (!append_level(c, &text, sides)) continue;
    topo_change_kind change = sides[0] != NULL && sides[1] != NULL ? TOPO_CHANGED
                              : sides[0] != NULL                   ? TOPO_MISSING
                                                                   : TOPO_ADDED;
    report(c, (topo_change){.kind = change, .what = "level", .text = text.text, .nodes = {-1, -1}});
  }
}

topo_change *topo_compare(const topo_comparison *options, int32_t *count) {
  comparison c = {.options = options, .views = {options->first, options->second}};
  for (int side = 0; side < 2; side++) {
    size_t n = (size_t)c.views[side]->topo->nnodes;
    c.scope[side] = tool_new(n, sizeof *c.scope[side]);
    c.pair[side] = tool_new(n, sizeof *c.pair[side]);
    memset(c.pair[side], 0xff, n * sizeof *c.pair[side]);
    c.folds[side] = topo_fold_make(c.views[side]->topo, c.views[side]->levels);
  }
  pair_all(&c);
  report_unpaired(&c, 0);
  report_unpaired(&c, 1);
  for (int32_t n = 0; n < c.views[0]->topo->nnodes; n++)
    if (c.pair[0][n] >= 0) compare_pair(&c, n, c.pair[0][n]);
  compare_edges(&c);
  compare_levels(&c);
  *count = c.nchanges;
  return c.changes;
}
