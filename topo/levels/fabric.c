/* SPDX-License-Identifier: Apache-2.0
 * Derives the levels of the network: ranks whose NICs are on one leaf switch, ranks that the tier above connects, and
 * ranks that any tier connects. A switch with a NIC has tier 1. A switch whose lowest neighbour has tier t has tier t +
 * 1. */
#include <stdlib.h>

#include "topo/levels/derive.h"

bool bny_topo_in_network(const bny_topo *topo, const bny_topo_link *link) {
  return link->kind == BNY_TOPO_LINK_NET && topo->nodes[link->from].kind == BNY_TOPO_SWITCH &&
         topo->nodes[link->to].kind == BNY_TOPO_SWITCH && link->from != link->to;
}

/* Assigns tiers, breadth first from the switches that serve ranks. Returns the highest tier. */
static int32_t tiers_find(bny_topo_derivation *d, int32_t *queue) {
  const bny_topo *topo = d->topo;
  int32_t head = 0, tail = 0, highest = 0;
  for (int32_t n = 0; n < topo->nnodes; n++) d->keys[n] = false; /* by node: whether this NIC serves a rank */
  for (int32_t r = 0; r < d->levels->nranks; r++)
    if (d->levels->ranks[r].nic >= 0) d->keys[d->levels->ranks[r].nic] = true;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t nic = bny_topo_nic_of(topo, n);
    for (int32_t l = bny_topo_first_link(topo, n); nic >= 0 && d->keys[nic] && l >= 0;
         l = bny_topo_next_link(topo, n, l)) {
      int32_t other = bny_topo_other_end(topo, n, l);
      if (topo->links[l].kind != BNY_TOPO_LINK_NET || topo->nodes[other].kind != BNY_TOPO_SWITCH || d->tier[other])
        continue;
      d->tier[other] = highest = 1;
      queue[tail++] = other;
    }
  }
  while (head < tail) {
    int32_t node = queue[head++];
    for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
      int32_t other = bny_topo_other_end(topo, node, l);
      if (!bny_topo_in_network(topo, &topo->links[l]) || d->tier[other]) continue;
      d->tier[other] = d->tier[node] + 1;
      highest = d->tier[other];
      queue[tail++] = other;
    }
  }
  return highest;
}

/* Unites in d->roots linked switches of up to `tier`. Returns whether there are any. */
static bool tiers_unite(bny_topo_derivation *d, int32_t tier) {
  const bny_topo *topo = d->topo;
  bool any = false;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    if (!bny_topo_in_network(topo, link) || !d->tier[link->from] || !d->tier[link->to] || d->tier[link->from] > tier ||
        d->tier[link->to] > tier)
      continue;
    bny_topo_unite(d->roots, link->from, link->to);
    any = true;
  }
  return any;
}

/* Sums, at the representative of each group of switches up to `tier`, the bandwidth of its links to the tier above. */
static void uplinks_sum(bny_topo_derivation *d, int32_t tier) {
  const bny_topo *topo = d->topo;
  for (int32_t n = 0; n < topo->nnodes; n++) d->uplink[n] = 0;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    int32_t from = d->tier[link->from], to = d->tier[link->to];
    if (!bny_topo_in_network(topo, link) || from + to != 2 * tier + 1 || (from != tier && to != tier)) continue;
    d->uplink[bny_topo_root(d->roots, from == tier ? link->from : link->to)] += link->gbytes_per_s;
  }
}

/* The links of a group of the level below to this one limit its ranks, which share them. */
static void above_narrow(const bny_topo_level *level, const bny_topo_level *below, bny_topo_group *group) {
  for (int32_t i = 0; i < group->count; i++) {
    int32_t lower = below->group_of[level->members[group->first + i]];
    double up = below->groups[lower].up_gbytes_per_s / below->groups[lower].count;
    if (up > 0 && up < group->gbytes_per_s) group->gbytes_per_s = up;
  }
}

static bny_topo_level *fabric_level(bny_topo_derivation *d, bny_topo_level_kind kind) {
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    int32_t nic = d->levels->ranks[r].nic;
    d->keys[r] = nic >= 0 && d->leaf[nic] >= 0 ? bny_topo_root(d->roots, d->leaf[nic]) : -1;
  }
  bny_topo_level *level = bny_topo_level_add(d, kind, d->topo->nnodes);
  for (int32_t g = 0; level && g < level->ngroups; g++) {
    bny_topo_group *group = &level->groups[g];
    int32_t key = d->keys[level->members[group->first]];
    bny_topo_net_look(d, level, group);
    group->up_gbytes_per_s = d->uplink[key];
    if (kind == BNY_TOPO_LEVEL_LEAF) group->node = key;
    for (int k = BNY_TOPO_LEVEL_LEAF; k < (int)kind; k++) {
      const bny_topo_level *below = bny_topo_level_of(d->levels, (bny_topo_level_kind)k);
      if (below) above_narrow(level, below, group);
    }
  }
  return level;
}

bool bny_topo_derive_fabric(bny_topo_derivation *d) {
  const bny_topo *topo = d->topo;
  int32_t *queue = malloc(((size_t)topo->nnodes + 1) * sizeof *queue);
  if (!queue) return false;
  int32_t highest = tiers_find(d, queue);
  free(queue);
  if (highest == 0) return true;
  for (int32_t n = 0; n < topo->nnodes; n++) d->roots[n] = d->leaf_roots[n];
  uplinks_sum(d, 1);
  if (!fabric_level(d, BNY_TOPO_LEVEL_LEAF)) return false;
  bool more = tiers_unite(d, 2);
  uplinks_sum(d, 2);
  if (more && !fabric_level(d, BNY_TOPO_LEVEL_SPINE)) return false;
  if (highest < 3) return true;
  tiers_unite(d, highest);
  return fabric_level(d, BNY_TOPO_LEVEL_CORE) != NULL;
}
