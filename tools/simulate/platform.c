/* SPDX-License-Identifier: Apache-2.0
 * The links of a machine or cluster as the simulator takes them, from the localities of ranks and their levels. A rank
 * has links of its own to the NVLink switch and to its PCIe switch. Ranks share their package's link to others, their
 * NIC, and what leads from their leaf switch to spines and from there to the core. A speed that no source knows is that
 * of the class; between switches it is then as wide as the NICs below. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tools/plan/case.h"
#include "tools/simulate/simulate.h"

const char *const sim_kind_names[SIM_KINDS] = {"nvlink", "xgmi", "pcie", "packages", "nic", "leaf", "spine"};

const char *sim_link_name(const sim_link *link, char text[SIM_NAME_BYTES]) {
  static const char *const things[SIM_KINDS] = {"nvlink of rank",      "xgmi of rank", "pcie of rank",
                                                "package of rank",     "nic of rank",  "leaf switch of rank",
                                                "spine switch of rank"};
  snprintf(text, SIM_NAME_BYTES, "%s %d, %s", things[link->kind], link->owner, link->out ? "out" : "in");
  return text;
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

/* Adds both directions of a link and returns the outgoing one. */
static int32_t link_add(sim_platform *p, sim_kind kind, int32_t owner, double bytes_per_ns) {
  for (int out = 1; out >= 0; out--) {
    p->links = tool_more(p->links, p->nlinks, sizeof *p->links);
    p->links[p->nlinks++] = (sim_link){kind, owner, out == 1, bytes_per_ns, 0};
  }
  return p->nlinks - 2;
}

typedef struct keyed {
  uint64_t key;
  int32_t rank;
} keyed;

static int by_key(const void *a_void, const void *b_void) {
  const keyed *a = a_void, *b = b_void;
  if (a->key != b->key) return a->key < b->key ? -1 : 1;
  return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Returns the rank whose NIC is used by a rank without one: the next rank of the same node. Ranks of a node are
 * consecutive. */
static const bny_locality *carrier_of(const bny_locality *localities, int32_t nranks, int32_t rank) {
  uint64_t node = localities[rank].node;
  for (int32_t r = rank; r < nranks && localities[r].node == node; r++)
    if (localities[r].nic) return &localities[r];
  for (int32_t r = rank; r >= 0 && localities[r].node == node; r--)
    if (localities[r].nic) return &localities[r];
  return &localities[rank];
}

/* The keys of a kind's links by rank; 0: the rank has none. A node without a known NIC has one. */
static void keys_fill(const bny_locality *localities, int32_t nranks, sim_kind kind, keyed *keys) {
  for (int32_t r = 0; r < nranks; r++) {
    const bny_locality *locality = kind >= SIM_NIC ? carrier_of(localities, nranks, r) : &localities[r];
    uint64_t key = 0, within = 0;
    switch (kind) {
    case SIM_PACKAGES: within = locality->levels[BNY_LOCALITY_PACKAGE].key; break;
    case SIM_NIC: within = locality->nic ? locality->nic : 1; break;
    case SIM_LEAF: key = locality->levels[BNY_LOCALITY_LEAF].key; break;
    case SIM_SPINE: key = locality->levels[BNY_LOCALITY_SPINE].key; break;
    default: key = bny_hash_of((uint64_t)r + 1); break;
    }
    keys[r] = (keyed){within ? bny_hash_add(bny_hash_of(within), locality->node) | 1 : key, r};
  }
}

static double nic_speed(const bny_locality *locality, bny_link_class class) {
  return locality->nic_gbytes_per_s > 0 ? locality->nic_gbytes_per_s : bny_prices_default.rows[class].gbytes_per_s;
}

/* Returns the speed of the link that `count` ranks share; `locality` is that of the first. `nics` is the sum over their
 * NICs. */
static double speed_of(const sim_platform *p, const bny_locality *locality, sim_kind kind, int32_t count, double nics) {
  const bny_prices *prices = &bny_prices_default;
  double known = 0;
  switch (kind) {
  case SIM_NVLINK:
    for (int32_t k = 0; k < p->levels->nlevels; k++)
      if (p->classes[k] == BNY_LINK_NVLINK || p->classes[k] == BNY_LINK_C2C)
        known = 1 / p->levels->levels[k].link.beta_ns_per_byte;
    return known;
  case SIM_PCIE:
    known = locality->levels[BNY_LOCALITY_SWITCH].link.gbytes_per_s; /* unknown: no narrower than the NIC */
    if (known <= 0) known = prices->rows[BNY_LINK_PCIE].gbytes_per_s;
    return known > locality->nic_gbytes_per_s ? known : locality->nic_gbytes_per_s;
  case SIM_PACKAGES:
    known = locality->levels[BNY_LOCALITY_HOST].link.gbytes_per_s;
    return known > 0 ? known : prices->rows[BNY_LINK_PCIE_SYS].gbytes_per_s;
  case SIM_NIC: return nics;
  case SIM_LEAF: known = locality->levels[BNY_LOCALITY_SPINE].link.gbytes_per_s; break;
  case SIM_SPINE: known = locality->levels[BNY_LOCALITY_CORE].link.gbytes_per_s; break;
  case SIM_XGMI:
  case SIM_KINDS: break;
  }
  return known > 0 ? known * count : nics;
}

static bool class_is_used(const sim_platform *p, sim_kind kind) {
  for (int32_t k = 0; k < p->levels->nlevels; k++) {
    bny_link_class class = (bny_link_class)p->classes[k];
    bool network = class == BNY_LINK_NETWORK || class == BNY_LINK_NETWORK_CPU || class == BNY_LINK_TCP;
    bool pcie = class == BNY_LINK_PCIE || class == BNY_LINK_PCIE_SYS;
    if (kind == SIM_NVLINK     ? class == BNY_LINK_NVLINK || class == BNY_LINK_C2C
        : kind == SIM_XGMI     ? class == BNY_LINK_XGMI
        : kind == SIM_PCIE     ? pcie || class == BNY_LINK_NETWORK
        : kind == SIM_PACKAGES ? class == BNY_LINK_PCIE_SYS
                               : network)
      return true;
  }
  return false;
}

/* xGMI links join each pair of ranks of an island. The group of a rank has one link for each member. */
static void xgmi_make(sim_platform *p, int32_t *group) {
  const bny_level *level = &p->levels->levels[0];
  for (int32_t r = 0; r < p->levels->nranks; r++) {
    int32_t island = level->group_of[r], members = level->first[island + 1] - level->first[island];
    for (int32_t i = 0; i < members && members > 1; i++) {
      int32_t link = link_add(p, SIM_XGMI, r, 1 / level->link.beta_ns_per_byte / (members - 1));
      if (i == 0) group[r] = link;
    }
  }
}

/* Without a topology each rank has a NIC of its own for each level above the first, with the speed of that level. */
static void levels_make(sim_platform *p, int32_t *group) {
  for (int32_t r = 0; r < p->levels->nranks; r++) {
    for (int32_t k = 1; k < p->levels->nlevels; k++) {
      int32_t link = link_add(p, SIM_NIC, r, 1 / p->levels->levels[k].link.beta_ns_per_byte);
      if (k == 1) group[r] = link;
    }
  }
}

/* Adds one link for each distinct key. */
static void kind_make(sim_platform *p, const plan_ranks *ranks, sim_kind kind, keyed *keys) {
  const bny_locality *localities = ranks->localities;
  int32_t nranks = ranks->nranks;
  bny_link_class network = BNY_LINK_NETWORK_CPU;
  p->group[kind] = tool_new((size_t)nranks, sizeof *p->group[kind]);
  for (int32_t r = 0; r < nranks; r++) p->group[kind][r] = -1;
  for (int32_t k = 0; k < p->levels->nlevels; k++)
    if (p->classes[k] > BNY_LINK_PCIE_SYS) network = (bny_link_class)p->classes[k];
  if (localities == NULL && kind == SIM_NIC) levels_make(p, p->group[kind]);
  if (!class_is_used(p, kind) || localities == NULL) return;
  if (kind == SIM_XGMI) {
    if (p->classes[0] == BNY_LINK_XGMI) xgmi_make(p, p->group[kind]);
    return;
  }
  keys_fill(localities, nranks, kind, keys);
  qsort(keys, (size_t)nranks, sizeof *keys, by_key);
  for (int32_t i = 0, next; i < nranks; i = next) {
    double nics = 0;
    for (next = i; next < nranks && keys[next].key == keys[i].key; next++) {
      /* A NIC that several ranks share counts once: each brings its part. */
      double one = nic_speed(&localities[keys[next].rank], network);
      nics = kind == SIM_NIC ? one : nics + one;
    }
    if (keys[i].key == 0) continue;
    double speed = speed_of(p, &localities[keys[i].rank], kind, next - i, nics);
    int32_t link = link_add(p, kind, keys[i].rank, speed);
    for (int32_t k = i; k < next; k++) p->group[kind][keys[k].rank] = link;
  }
}

/* ---- ways -------------------------------------------------------------------------------------------------------- */

static void hop(const sim_platform *p, sim_kind kind, int32_t rank, bool out, sim_route *way) {
  int32_t link = p->group[kind][rank];
  if (link >= 0) way->links[way->nlinks++] = link + !out;
}

/* Both ends of a kind of link, unless they are one. `inner` ones lie between. */
static void hops(const sim_platform *p, const sim_kind *kinds, int32_t from, int32_t to, sim_route *way) {
  if (*kinds == SIM_KINDS) return;
  if (p->group[*kinds][from] >= 0 && p->group[*kinds][from] == p->group[*kinds][to]) return;
  hop(p, *kinds, from, true, way);
  hops(p, kinds + 1, from, to, way);
  hop(p, *kinds, to, false, way);
}

static void route(const sim_platform *p, int32_t from, int32_t to, sim_route *way) {
  static const sim_kind nvlink[] = {SIM_NVLINK, SIM_KINDS}, pcie[] = {SIM_PCIE, SIM_PACKAGES, SIM_KINDS},
                        network[] = {SIM_PCIE, SIM_NIC, SIM_LEAF, SIM_SPINE, SIM_KINDS};
  int32_t level = bny_levels_between(p->levels, from, to);
  const bny_link_cost *cost = &p->levels->levels[level].link;
  double message_ns = bny_link_message_ns(cost);
  *way = (sim_route){.latency_ns = cost->alpha_ns * p->latency_scale};
  *(cost->posted > 0 ? &way->post_ns : &way->seen_ns) = message_ns;
  if (p->by_level && level > 0) {
    way->links[way->nlinks++] = p->group[SIM_NIC][from] + 2 * (level - 1);
    way->links[way->nlinks++] = p->group[SIM_NIC][to] + 2 * (level - 1) + 1;
    return;
  }
  switch ((bny_link_class)p->classes[level]) {
  case BNY_LINK_NVLINK:
  case BNY_LINK_C2C: hops(p, nvlink, from, to, way); break;
  case BNY_LINK_XGMI:
    if (p->group[SIM_XGMI][from] >= 0)
      way->links[way->nlinks++] = p->group[SIM_XGMI][from] + 2 * p->levels->levels[0].index[to];
    break;
  case BNY_LINK_PCIE:
  case BNY_LINK_PCIE_SYS: hops(p, pcie, from, to, way); break;
  case BNY_LINK_NETWORK:
  case BNY_LINK_NETWORK_CPU:
  case BNY_LINK_TCP: hops(p, network, from, to, way); break;
  default: /* peers on this rank's own core share its caches */
    way->read_ns_per_byte = cost->beta_ns_per_byte;
    if (cost->ranks_per_core > 1 && cost->ranks_per_core < p->levels->nranks)
      way->read_ns_per_byte *= 1 - (cost->ranks_per_core - 1) / (p->levels->nranks - 1);
    break;
  }
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

sim_platform sim_platform_make(const plan_ranks *ranks) {
  sim_platform p = {.levels = ranks->levels,
                    .by_level = ranks->localities == NULL,
                    .latency_scale = 1,
                    .memory_scale = 1,
                    .route = route};
  keyed *keys = tool_new((size_t)ranks->nranks, sizeof *keys);
  for (int32_t k = 0; k < p.levels->nlevels; k++) {
    const bny_locality_note *note = bny_locality_note_of(&ranks->notes, p.levels->levels[k].name);
    p.classes[k] = (int32_t)(note != NULL ? note->link : k == 0 ? BNY_LINK_MEMORY : BNY_LINK_NETWORK_CPU);
  }
  for (int kind = 0; kind < SIM_KINDS; kind++) kind_make(&p, ranks, (sim_kind)kind, keys);
  return p;
}
