/* SPDX-License-Identifier: Apache-2.0
 * Finds ranks and hosts, and derives the levels in order. levels.h defines them. */
#include "topo/derive/levels.h"

#include <stdlib.h>
#include <string.h>

#include "topo/derive/derive.h"

static const char *const level_names[BNY_TOPO_LEVEL_KINDS] = {"package", "island", "host",  "domain",
                                                              "rail",    "leaf",   "spine", "core"};
static const char *const severity_names[] = {"info", "note", "fault"};

const char *bny_topo_level_name(bny_topo_level_kind kind) {
  return (unsigned)kind < BNY_TOPO_LEVEL_KINDS ? level_names[kind] : "?";
}

const char *bny_topo_severity_name(bny_topo_severity severity) {
  return (unsigned)severity <= BNY_TOPO_FAULT ? severity_names[severity] : "?";
}

const bny_topo_level *bny_topo_level_of(const bny_topo_levels *levels, bny_topo_level_kind kind) {
  for (int32_t i = 0; i < levels->nlevels; i++)
    if (levels->levels[i].kind == kind) return &levels->levels[i];
  return NULL;
}

void bny_topo_levels_free(bny_topo_levels *levels) {
  if (!levels) return;
  for (int32_t i = 0; i < levels->nlevels; i++) {
    free(levels->levels[i].groups);
    free(levels->levels[i].members);
    free(levels->levels[i].group_of);
  }
  for (int32_t i = 0; i < levels->nfindings; i++) {
    free(levels->findings[i].text);
    free(levels->findings[i].nodes);
  }
  free(levels->findings);
  free(levels->ranks);
  free(levels);
}

int32_t bny_topo_root(int32_t *roots, int32_t node) {
  while (roots[node] != node) {
    roots[node] = roots[roots[node]];
    node = roots[node];
  }
  return node;
}

void bny_topo_unite(int32_t *roots, int32_t a, int32_t b) {
  a = bny_topo_root(roots, a);
  b = bny_topo_root(roots, b);
  if (a < b)
    roots[b] = a;
  else
    roots[a] = b;
}

/* ---- a level from keys ------------------------------------------------------------------------------------------- */

/* Numbers groups in the order of their first members. */
static void groups_fill(bny_topo_level *level, const int32_t *keys, int32_t nranks, int32_t *group_of_key) {
  for (int32_t r = 0; r < nranks; r++) {
    int32_t key = keys[r];
    if (key < 0) {
      level->group_of[r] = -1;
      continue;
    }
    if (group_of_key[key] < 0) {
      level->groups[level->ngroups] = (bny_topo_group){
          .node = -1, .path = BNY_TOPO_PATH_SELF, .all_to_all = true, .uniform = true, .source = BNY_TOPO_MEASURED};
      group_of_key[key] = level->ngroups++;
    }
    level->group_of[r] = group_of_key[key];
    level->groups[level->group_of[r]].count++;
    level->nmembers++;
  }
  int32_t first = 0;
  for (int32_t g = 0; g < level->ngroups; g++) {
    level->groups[g].first = first;
    first += level->groups[g].count;
    level->groups[g].count = 0;
  }
  for (int32_t r = 0; r < nranks; r++) {
    if (level->group_of[r] < 0) continue;
    bny_topo_group *group = &level->groups[level->group_of[r]];
    level->members[group->first + group->count++] = r;
  }
}

bny_topo_level *bny_topo_level_add(bny_topo_derivation *d, bny_topo_level_kind kind, int32_t nkeys) {
  size_t nranks = (size_t)d->levels->nranks;
  bny_topo_level *level = &d->levels->levels[d->levels->nlevels];
  *level = (bny_topo_level){.kind = kind,
                            .groups = malloc((nranks + 1) * sizeof *level->groups),
                            .members = malloc((nranks + 1) * sizeof *level->members),
                            .group_of = malloc((nranks + 1) * sizeof *level->group_of)};
  d->levels->nlevels++;
  int32_t *group_of_key = malloc(((size_t)nkeys + 1) * sizeof *group_of_key);
  if (!level->groups || !level->members || !level->group_of || !group_of_key) {
    free(group_of_key);
    return NULL;
  }
  for (int32_t key = 0; key < nkeys; key++) group_of_key[key] = -1;
  groups_fill(level, d->keys, d->levels->nranks, group_of_key);
  free(group_of_key);
  return level;
}

/* ---- ranks and hosts --------------------------------------------------------------------------------------------- */

static bny_topo_kind rank_kind_of(const bny_topo *topo) {
  static const bny_topo_kind kinds[] = {BNY_TOPO_GPU, BNY_TOPO_NUMA, BNY_TOPO_PACKAGE, BNY_TOPO_NIC};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
    if (bny_topo_count(topo, kinds[i]) > 0) return kinds[i];
  return BNY_TOPO_HOST;
}

/* A rank before it has its number. */
typedef struct seat {
  int32_t host, index, node;
} seat;

static int by_seat(const void *a_void, const void *b_void) {
  const seat *a = a_void, *b = b_void;
  int32_t keys[3][2] = {{a->host, b->host}, {a->index, b->index}, {a->node, b->node}};
  for (int i = 0; i < 3; i++)
    if (keys[i][0] != keys[i][1]) return keys[i][0] < keys[i][1] ? -1 : 1;
  return 0;
}

/* The numbers of GPUs order the ranks of a host, and not their places in the file. GPUs without one come last. */
static bool ranks_order(bny_topo_derivation *d) {
  bny_topo_levels *levels = d->levels;
  seat *seats = malloc(((size_t)levels->nranks + 1) * sizeof *seats);
  if (!seats) return false;
  for (int32_t r = 0; r < levels->nranks; r++) {
    const bny_topo_rank *rank = &levels->ranks[r];
    int32_t index = d->topo->nodes[rank->node].index;
    seats[r] = (seat){.host = rank->host, .index = index < 0 ? INT32_MAX : index, .node = rank->node};
  }
  qsort(seats, (size_t)levels->nranks, sizeof *seats, by_seat);
  for (int32_t r = 0; r < levels->nranks; r++) {
    levels->ranks[r].node = seats[r].node;
    levels->ranks[r].host = seats[r].host;
    d->rank_of[seats[r].node] = r;
  }
  free(seats);
  return true;
}

static bool ranks_find(bny_topo_derivation *d) {
  const bny_topo *topo = d->topo;
  bny_topo_levels *levels = d->levels;
  levels->rank_kind = rank_kind_of(topo);
  levels->nranks = 0;
  levels->ranks = malloc(((size_t)bny_topo_count(topo, levels->rank_kind) + 1) * sizeof *levels->ranks);
  if (!levels->ranks) return false;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    const bny_topo_node *node = &topo->nodes[n];
    d->host_of[n] = node->kind == BNY_TOPO_HOST ? n : node->parent < 0 ? -1 : d->host_of[node->parent];
    d->host_number[n] = -1;
    d->rank_of[n] = -1;
    d->leaf[n] = -1;
    d->tier[n] = 0;
    d->uplink[n] = 0;
    d->nic[n] = (bny_topo_sum){.source = BNY_TOPO_MEASURED};
    if (node->kind == BNY_TOPO_HOST) {
      d->host_number[n] = d->nhosts;
      d->hosts[d->nhosts++] = n;
    }
    if (node->kind == levels->rank_kind) {
      d->rank_of[n] = levels->nranks;
      levels->ranks[levels->nranks++] =
          (bny_topo_rank){.node = n, .host = d->host_of[n], .nic = -1, .rail = -1, .nic_path = BNY_TOPO_PATH_NONE};
    }
  }
  return levels->rank_kind != BNY_TOPO_GPU || ranks_order(d);
}

/* Groups items by the host of their nodes and skips those without one: nodes[i] in, first[] and sorted[] out. */
static void by_host_sort(const bny_topo_derivation *d, const int32_t *nodes, int32_t count, bool items_are_ranks,
                         int32_t *first, int32_t *sorted) {
  for (int32_t h = 0; h <= d->nhosts; h++) first[h] = 0;
  for (int32_t i = 0; i < count; i++) {
    int32_t host = d->host_of[nodes[i]];
    if (host >= 0) first[d->host_number[host] + 1]++;
  }
  for (int32_t h = 0; h < d->nhosts; h++) first[h + 1] += first[h];
  for (int32_t i = 0; i < count; i++) {
    int32_t host = d->host_of[nodes[i]];
    if (host >= 0) sorted[first[d->host_number[host]]++] = items_are_ranks ? i : nodes[i];
  }
  for (int32_t h = d->nhosts; h > 0; h--) first[h] = first[h - 1];
  first[0] = 0;
}

static void hosts_sort(bny_topo_derivation *d) {
  const bny_topo *topo = d->topo;
  bny_topo_levels *levels = d->levels;
  for (int32_t r = 0; r < levels->nranks; r++) d->roots[r] = levels->ranks[r].node;
  by_host_sort(d, d->roots, levels->nranks, true, d->host_first, d->by_host);
  for (int32_t h = 0; h < d->nhosts; h++)
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1]; i++)
      levels->ranks[d->by_host[i]].local = i - d->host_first[h];
  int32_t nnics = 0;
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_NIC) d->roots[nnics++] = n;
  by_host_sort(d, d->roots, nnics, false, d->nic_first, d->nics);
  d->nnics = d->nic_first[d->nhosts];
}

static bool work_allocate(bny_topo_derivation *d) {
  size_t nodes = (size_t)d->topo->nnodes + 1;
  int32_t **arrays[] = {&d->host_of,     &d->rank_of, &d->by_host,   &d->host_first, &d->hosts,
                        &d->host_number, &d->nics,    &d->nic_first, &d->leaf,       &d->tier,
                        &d->crossed,     &d->keys,    &d->roots,     &d->leaf_roots};
  bool good = true;
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
    *arrays[i] = malloc((nodes + 1) * sizeof **arrays[i]);
    good = good && *arrays[i];
  }
  d->nvl = malloc(nodes * sizeof *d->nvl);
  d->nic = malloc(nodes * sizeof *d->nic);
  d->uplink = malloc(nodes * sizeof *d->uplink);
  return good && d->nvl && d->nic && d->uplink;
}

static void work_free(bny_topo_derivation *d) {
  int32_t *arrays[] = {d->host_of,   d->rank_of, d->by_host, d->host_first, d->hosts, d->host_number, d->nics,
                       d->nic_first, d->leaf,    d->tier,    d->crossed,    d->keys,  d->roots,       d->leaf_roots};
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
  free(d->nvl);
  free(d->nic);
  free(d->uplink);
}

bny_topo_levels *bny_topo_derive(const bny_topo *topo) {
  bny_topo_derivation d = {.topo = topo, .levels = calloc(1, sizeof *d.levels)};
  bool good = d.levels && work_allocate(&d) && ranks_find(&d);
  if (good) {
    hosts_sort(&d);
    good = bny_topo_derive_near(&d) && bny_topo_derive_nics(&d) && bny_topo_derive_rails(&d) &&
           bny_topo_derive_fabric(&d) && bny_topo_derive_findings(&d);
  }
  work_free(&d);
  if (!good) {
    bny_topo_levels_free(d.levels);
    return NULL;
  }
  return d.levels;
}
