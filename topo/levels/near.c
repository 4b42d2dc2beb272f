/* SPDX-License-Identifier: Apache-2.0
 * Derives the levels inside hosts and over NVLinks: package, island, host, domain. */
#include <stdlib.h>

#include "topo/levels/derive.h"
#include "topo/model/speed.h"

enum { PAIRS_OF = 256 }; /* groups with more members are not examined pair by pair */

double bny_topo_gpu_link(const bny_topo *topo, const bny_topo_link *link, bool *assumed) {
  *assumed = false;
  if (!bny_topo_joins_gpus(link) || link->from == link->to || bny_topo_link_dead(link)) return 0;
  if (link->gbytes_per_s > 0) return link->gbytes_per_s;
  *assumed = true;
  int32_t count = link->count > 0 ? link->count : 1;
  int32_t compute = topo->nodes[link->from].compute;
  if (compute < 0) compute = topo->nodes[link->to].compute;
  return count * (link->kind == BNY_TOPO_LINK_XGMI ? bny_topo_speed_xgmi(compute) : bny_topo_speed_nvlink(compute));
}

static void sum_add(bny_topo_sum *sum, const bny_topo_link *link, double gbytes_per_s, bny_topo_source source) {
  sum->gbytes_per_s += gbytes_per_s;
  sum->latency_us = link->latency_us > sum->latency_us ? link->latency_us : sum->latency_us;
  sum->count += link->count > 0 ? link->count : 1;
  sum->source = source < sum->source ? source : sum->source;
}

/* Sums every rank's links, and unites in d->roots the nodes that they join. */
static void gpu_links_follow(bny_topo_derivation *d) {
  const bny_topo *topo = d->topo;
  for (int32_t r = 0; r < d->levels->nranks; r++) d->nvl[r] = (bny_topo_sum){.source = BNY_TOPO_MEASURED};
  for (int32_t n = 0; n < topo->nnodes; n++) d->roots[n] = n;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    bool assumed;
    double speed = bny_topo_gpu_link(topo, link, &assumed);
    if (speed <= 0) continue;
    bny_topo_unite(d->roots, link->from, link->to);
    int32_t ends[2] = {link->from, link->to};
    for (int end = 0; end < 2; end++)
      if (d->rank_of[ends[end]] >= 0)
        sum_add(&d->nvl[d->rank_of[ends[end]]], link, speed, assumed ? BNY_TOPO_ASSUMED : link->source);
  }
  /* Each partition gets an equal part of the bandwidth of its device's links. */
  int32_t *parts = d->crossed; /* by node; the array is not in use yet */
  for (int pass = 0; pass < 3; pass++) {
    for (int32_t r = 0; r < d->levels->nranks; r++) {
      int32_t node = d->levels->ranks[r].node, device = bny_topo_device(topo, node);
      if (pass == 0) {
        parts[device] = 0;
      } else if (pass == 1) {
        parts[device]++;
        if (d->nvl[d->rank_of[device]].count > 0) bny_topo_unite(d->roots, node, device);
        if (node != device) d->nvl[r] = d->nvl[d->rank_of[device]];
      } else {
        d->nvl[r].parts = parts[device];
        d->nvl[r].gbytes_per_s /= parts[device];
        d->levels->ranks[r].nvlinks = d->nvl[r].count;
      }
    }
  }
}

double bny_topo_pci_way(const bny_topo *topo, int32_t node, bny_topo_source *source) {
  double least = 0;
  for (; node >= 0 && topo->nodes[node].kind != BNY_TOPO_HOST; node = topo->nodes[node].parent) {
    int32_t up = bny_topo_link_up(topo, node, BNY_TOPO_LINK_PCI);
    if (up < 0 || topo->links[up].gbytes_per_s <= 0) continue;
    const bny_topo_link *link = &topo->links[up];
    *source = link->source < *source ? link->source : *source;
    least = least <= 0 || link->gbytes_per_s < least ? link->gbytes_per_s : least;
  }
  return least;
}

/* Returns the bandwidth between a node and its CPU: over PCI, or over a coherent link if that is faster. */
static double cpu_way(const bny_topo *topo, int32_t node, bny_topo_source *source) {
  bny_topo_source of_pci = topo->nodes[node].source, of_link = of_pci;
  double way = bny_topo_pci_way(topo, node, &of_pci);
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    const bny_topo_link *link = &topo->links[l];
    if (link->kind == BNY_TOPO_LINK_C2C && link->gbytes_per_s > way) {
      way = link->gbytes_per_s;
      of_pci = link->source < of_link ? link->source : of_link;
    }
  }
  *source = of_pci < *source ? of_pci : *source;
  return way;
}

/* ---- properties of a group --------------------------------------------------------------------------------------- */

/* Returns whether some switch has a link to each member. `seen` counts by node and is left all zero. */
static bool one_switch(const bny_topo_derivation *d, const bny_topo_level *level, bny_topo_group *group,
                       int32_t *seen) {
  const bny_topo *topo = d->topo;
  bool found = false;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t i = 0; i < group->count; i++) {
      int32_t node = bny_topo_device(topo, d->levels->ranks[level->members[group->first + i]].node);
      for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
        bool assumed;
        int32_t other = bny_topo_other_end(topo, node, l);
        if (topo->nodes[other].kind != BNY_TOPO_SWITCH || bny_topo_gpu_link(topo, &topo->links[l], &assumed) <= 0)
          continue;
        if (pass == 1)
          seen[other] = 0;
        else if (seen[other] == i &&
                 ++seen[other] == group->count) { /* all members so far are on it; parallel links count once */
          found = true;
          group->node = group->node < 0 || other < group->node ? other : group->node;
        }
      }
    }
  }
  return found;
}

static void paths_look(const bny_topo_derivation *d, const bny_topo_level *level, bny_topo_group *group) {
  const int32_t *members = &level->members[group->first];
  group->path = BNY_TOPO_PATH_SELF;
  for (int32_t i = 0; i < group->count; i++) {
    /* By containment, the paths from the first member include the longest one. Only links can make a path shorter. */
    for (int32_t j = i + 1; j < group->count && (i == 0 || group->count <= PAIRS_OF); j++) {
      bny_topo_path path =
          bny_topo_path_between(d->topo, d->levels->ranks[members[i]].node, d->levels->ranks[members[j]].node);
      group->path = path > group->path ? path : group->path;
    }
  }
}

/* Returns a member's bandwidth to switches and to the other members. A partition has a share of its device's
 * bandwidth. */
static double speed_inside(const bny_topo_derivation *d, const bny_topo_level *level, int32_t rank) {
  const bny_topo *topo = d->topo;
  int32_t node = bny_topo_device(topo, d->levels->ranks[rank].node);
  double sum = 0;
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    int32_t other = bny_topo_other_end(topo, node, l);
    bool assumed;
    if (d->rank_of[other] < 0 || level->group_of[d->rank_of[other]] == level->group_of[rank])
      sum += bny_topo_gpu_link(topo, &topo->links[l], &assumed);
  }
  return sum / d->nvl[rank].parts;
}

/* Fills an island or domain, or a group inside one: all traffic is over NVLinks. */
static void joined_look(bny_topo_derivation *d, const bny_topo_level *level, bny_topo_group *group, int32_t *seen) {
  if (group->count < 2) return;
  double least = 0, most = 0;
  for (int32_t i = 0; i < group->count; i++) {
    int32_t rank = level->members[group->first + i];
    const bny_topo_sum *nvl = &d->nvl[rank];
    double speed = speed_inside(d, level, rank);
    least = i == 0 || speed < least ? speed : least;
    most = speed > most ? speed : most;
    group->latency_us = nvl->latency_us > group->latency_us ? nvl->latency_us : group->latency_us;
    group->source = nvl->source < group->source ? nvl->source : group->source;
  }
  group->gbytes_per_s = least;
  group->uniform = least >= 0.99 * most;
  if (one_switch(d, level, group, seen))
    group->path = BNY_TOPO_PATH_NVL;
  else
    paths_look(d, level, group);
  group->all_to_all = group->path == BNY_TOPO_PATH_NVL;
}

/* Fills a package or host: from its island if all members are in one, otherwise over PCI. */
static void near_look(bny_topo_derivation *d, const bny_topo_level *level, const bny_topo_level *islands,
                      bny_topo_group *group, int32_t *seen) {
  const int32_t *members = &level->members[group->first];
  bool one_island = islands != NULL && group->count > 1;
  for (int32_t i = 1; i < group->count && one_island; i++)
    one_island = islands->group_of[members[i]] == islands->group_of[members[0]];
  if (one_island) {
    int32_t node = group->node;
    joined_look(d, level, group, seen);
    group->node = node;
    if (group->all_to_all) return;
  }
  paths_look(d, level, group);
  group->gbytes_per_s = 0;
  group->all_to_all = group->count < 2;
  group->source = BNY_TOPO_MEASURED;
  double most = 0;
  for (int32_t i = 0; i < group->count && group->count > 1; i++) {
    double way = cpu_way(d->topo, bny_topo_device(d->topo, d->levels->ranks[members[i]].node), &group->source);
    group->gbytes_per_s = i == 0 || way < group->gbytes_per_s ? way : group->gbytes_per_s;
    most = way > most ? way : most;
  }
  group->uniform = group->gbytes_per_s >= 0.99 * most;
}

/* ---- the levels -------------------------------------------------------------------------------------------------- */

static int32_t package_of(const bny_topo_derivation *d, int32_t rank) {
  int32_t node = d->levels->ranks[rank].node;
  int32_t package = bny_topo_ancestor(d->topo, node, BNY_TOPO_PACKAGE);
  if (package >= 0) return d->levels->rank_kind == BNY_TOPO_PACKAGE ? -1 : package;
  return d->levels->rank_kind == BNY_TOPO_NUMA ? -1 : bny_topo_ancestor(d->topo, node, BNY_TOPO_NUMA);
}

/* Assigns ranks with the same root and host the same number in d->keys, in the order of first ranks. Returns the
 * count. */
static int32_t islands_number(bny_topo_derivation *d) {
  int32_t *key_of_root = d->crossed; /* by node; array not in use yet */
  int32_t nkeys = 0;
  for (int32_t h = 0; h < d->nhosts; h++) {
    for (int pass = 0; pass < 2; pass++) {
      for (int32_t i = d->host_first[h]; i < d->host_first[h + 1]; i++) {
        int32_t rank = d->by_host[i];
        int32_t root = bny_topo_root(d->roots, d->levels->ranks[rank].node);
        if (pass == 0)
          key_of_root[root] = -1;
        else
          d->keys[rank] = key_of_root[root] >= 0 ? key_of_root[root] : (key_of_root[root] = nkeys++);
      }
    }
  }
  return nkeys;
}

static bool domains_exist(bny_topo_derivation *d) {
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    int32_t root = bny_topo_root(d->roots, d->levels->ranks[r].node);
    d->keys[r] = root;
  }
  int32_t *host_of_root = d->crossed;
  bool crosses = false;
  for (int32_t r = 0; r < d->levels->nranks; r++) host_of_root[d->keys[r]] = d->levels->ranks[r].host;
  for (int32_t r = 0; r < d->levels->nranks && !crosses; r++)
    crosses = host_of_root[d->keys[r]] != d->levels->ranks[r].host;
  return crosses;
}

/* Returns the node that a group of packages or hosts is at. */
static int32_t place_of(const bny_topo_derivation *d, bny_topo_level_kind kind, int32_t rank) {
  int32_t node = kind == BNY_TOPO_LEVEL_PACKAGE ? package_of(d, rank) : -1;
  return node >= 0 ? node : d->levels->ranks[rank].host;
}

/* Sets d->keys for a level. Returns how many keys there may be; 0: the model has no data for it. */
static int32_t keys_find(bny_topo_derivation *d, bny_topo_level_kind kind) {
  bool joined = false, packages = false;
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    joined = joined || d->nvl[r].count > 0;
    packages = packages || package_of(d, r) >= 0;
    d->keys[r] = kind == BNY_TOPO_LEVEL_ISLAND ? -1 : place_of(d, kind, r);
  }
  switch (kind) {
  case BNY_TOPO_LEVEL_PACKAGE: return packages ? d->topo->nnodes : 0;
  case BNY_TOPO_LEVEL_ISLAND: return joined ? islands_number(d) : 0;
  case BNY_TOPO_LEVEL_DOMAIN: return joined && domains_exist(d) ? d->topo->nnodes : 0;
  default: return d->topo->nnodes;
  }
}

bool bny_topo_derive_near(bny_topo_derivation *d) {
  bny_topo_levels *levels = d->levels;
  gpu_links_follow(d);
  for (int kind = BNY_TOPO_LEVEL_PACKAGE; kind <= BNY_TOPO_LEVEL_DOMAIN; kind++) {
    int32_t nkeys = keys_find(d, (bny_topo_level_kind)kind);
    if (nkeys > 0 && !bny_topo_level_add(d, (bny_topo_level_kind)kind, nkeys)) return false;
  }
  int32_t *seen = calloc((size_t)d->topo->nnodes + 1, sizeof *seen);
  const bny_topo_level *islands = bny_topo_level_of(levels, BNY_TOPO_LEVEL_ISLAND);
  for (int32_t l = 0; seen && l < levels->nlevels; l++) {
    const bny_topo_level *level = &levels->levels[l];
    for (bny_topo_group *group = level->groups; group < level->groups + level->ngroups; group++) {
      if (level->kind == BNY_TOPO_LEVEL_ISLAND || level->kind == BNY_TOPO_LEVEL_DOMAIN) {
        joined_look(d, level, group, seen);
        continue;
      }
      group->node = place_of(d, level->kind, level->members[group->first]);
      near_look(d, level, islands, group, seen);
    }
  }
  free(seen);
  return seen != NULL;
}
