/* SPDX-License-Identifier: Apache-2.0
 * The links of a machine or cluster, from the localities of ranks and their levels. A rank has links of its own to the
 * NVLink switch and to its PCIe switch. Ranks share their package's link to others, their NIC, and what leads from
 * their leaf switch to spines and from there to the core. A speed that no source knows is that of the class; between
 * switches it is then as wide as the NICs below. */
#include "locality/locality_network.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

typedef struct making {
  const bny_links_facts *facts;
  const bny_levels *levels;
  bny_links *network;
  const bny_locality **carriers; /* by rank: the rank whose NIC it uses */
  bny_locality_keyed *keys;
  bool good;
} making;

int bny_locality_by_key(const void *a, const void *b) {
  const bny_locality_keyed *left = a, *right = b;
  if (left->node != right->node) return left->node < right->node ? -1 : 1;
  if (left->key != right->key) return left->key < right->key ? -1 : 1;
  return left->rank < right->rank ? -1 : left->rank > right->rank;
}

/* A rank without a NIC uses that of the next rank of its node that has one, or else that of the last before it. */
static void carriers_find(making *m) {
  int32_t nranks = m->levels->nranks;
  const bny_locality *all = m->facts->localities;
  for (int32_t r = 0; r < nranks; r++) m->keys[r] = (bny_locality_keyed){.key = m->facts->node_of[r], .rank = r};
  qsort(m->keys, (size_t)nranks, sizeof *m->keys, bny_locality_by_key);
  for (int32_t i = 0; i < nranks; i++) {
    int32_t at = i;
    while (at < nranks && m->keys[at].key == m->keys[i].key && !all[m->keys[at].rank].nic) at++;
    if (at == nranks || m->keys[at].key != m->keys[i].key)
      for (at = i; at >= 0 && m->keys[at].key == m->keys[i].key && !all[m->keys[at].rank].nic;) at--;
    bool found = at >= 0 && m->keys[at].key == m->keys[i].key;
    m->carriers[m->keys[i].rank] = &all[m->keys[found ? at : i].rank];
  }
}

/* The key of a rank's link of a kind; 0: it has none. A node without a known NIC has one. */
static uint64_t key_of(const making *m, bny_hop kind, int32_t rank) {
  const bny_locality *carrier = m->carriers[rank];
  uint64_t within = 0;
  switch (kind) {
  case BNY_HOP_PACKAGES: within = m->facts->localities[rank].levels[BNY_LOCALITY_PACKAGE].key; break;
  case BNY_HOP_NIC: within = carrier->nic ? carrier->nic : 1; break;
  case BNY_HOP_LEAF: return carrier->levels[BNY_LOCALITY_LEAF].key;
  case BNY_HOP_SPINE: return carrier->levels[BNY_LOCALITY_SPINE].key;
  default: break;
  }
  return within ? bny_hash_add(bny_hash_of(within), m->facts->node_of[rank]) | 1 : 0;
}

static double usual(bny_link_class class) { return bny_prices_default.rows[class].gbytes_per_s; }

/* TCP has at most the speed of its class, because kernels copy. */
static double nic_speed(const making *m, const bny_locality *carrier) {
  double known = carrier->nic_gbytes_per_s, tcp = carrier->tcp.gbytes_per_s;
  if (m->facts->network != BNY_LINK_TCP) return known > 0 ? known : usual(m->facts->network);
  if (tcp > 0 && carrier->tcp.source == BNY_TOPO_MEASURED) return tcp;
  return known > 0 && known < usual(BNY_LINK_TCP) ? known : usual(BNY_LINK_TCP);
}

/* Returns the speed of a link. `nics` is the sum over the NICs behind it. */
static double speed_of(const making *m, int32_t rank, bny_hop kind, double nics) {
  const bny_locality *locality = &m->facts->localities[rank], *carrier = m->carriers[rank];
  double known = 0;
  switch (kind) {
  case BNY_HOP_NVLINK:
    for (int32_t k = 0; k < m->levels->nlevels; k++)
      if (m->network->ways[k] == BNY_WAY_NVLINK) known = 1 / m->levels->levels[k].link.beta_ns_per_byte;
    return known;
  case BNY_HOP_PCIE: /* unknown: no narrower than the NIC */
    known = locality->levels[BNY_LOCALITY_SWITCH].link.gbytes_per_s;
    if (known <= 0) known = usual(BNY_LINK_PCIE);
    return known > locality->nic_gbytes_per_s ? known : locality->nic_gbytes_per_s;
  case BNY_HOP_PACKAGES:
    known = locality->levels[BNY_LOCALITY_HOST].link.gbytes_per_s;
    return known > 0 ? known : usual(BNY_LINK_PCIE_SYS);
  case BNY_HOP_LEAF: known = carrier->levels[BNY_LOCALITY_LEAF].up_gbytes_per_s; break;
  case BNY_HOP_SPINE: known = carrier->levels[BNY_LOCALITY_SPINE].up_gbytes_per_s; break;
  default: return nic_speed(m, carrier);
  }
  return known > 0 ? known : nics;
}

static int32_t link_add(making *m, bny_hop kind, int32_t rank, double gbytes_per_s) {
  int32_t link = m->good ? bny_links_add(m->network, kind, rank, 1 / gbytes_per_s) : -1;
  m->good = link >= 0;
  return link;
}

/* xGMI links join each pair of ranks of an island. A rank has one link for each member. */
static void xgmi_add(making *m, int32_t *at) {
  const bny_level *level = &m->levels->levels[0];
  for (int32_t r = 0; r < m->levels->nranks; r++) {
    int32_t island = level->group_of[r], members = level->first[island + 1] - level->first[island];
    for (int32_t i = 0; i < members && members > 1; i++) {
      int32_t link = link_add(m, BNY_HOP_XGMI, r, 1 / level->link.beta_ns_per_byte / (members - 1));
      if (i == 0) at[r] = link;
    }
  }
}

/* Adds one link for each distinct key. A NIC counts once among those behind a switch. */
static void shared_add(making *m, bny_hop kind, int32_t *at) {
  int32_t nranks = m->levels->nranks;
  const int32_t *nic = m->network->at[BNY_HOP_NIC];
  for (int32_t r = 0; r < nranks; r++) m->keys[r] = (bny_locality_keyed){.key = key_of(m, kind, r), .rank = r};
  qsort(m->keys, (size_t)nranks, sizeof *m->keys, bny_locality_by_key);
  for (int32_t i = 0, next; i < nranks; i = next) {
    double nics = 0;
    for (next = i; next < nranks && m->keys[next].key == m->keys[i].key; next++) {
      int32_t rank = m->keys[next].rank;
      if (kind > BNY_HOP_NIC && m->network->links[nic[rank]].owner == rank) nics += nic_speed(m, m->carriers[rank]);
    }
    if (m->keys[i].key == 0) continue;
    int32_t link = link_add(m, kind, m->keys[i].rank, speed_of(m, m->keys[i].rank, kind, nics));
    for (int32_t k = i; k < next; k++) at[m->keys[k].rank] = link;
  }
}

static void kind_add(making *m, bny_hop kind) {
  int32_t nranks = m->levels->nranks;
  int32_t *at = m->network->at[kind] = malloc((size_t)nranks * sizeof *at);
  m->good = m->good && at;
  for (int32_t r = 0; r < nranks && m->good; r++) at[r] = -1;
  if (!m->good) return;
  if (kind == BNY_HOP_XGMI)
    xgmi_add(m, at);
  else if (kind >= BNY_HOP_PACKAGES)
    shared_add(m, kind, at);
  else
    for (int32_t r = 0; r < nranks; r++) at[r] = link_add(m, kind, r, speed_of(m, r, kind, 0));
}

/* Ranks whose outermost switches differ have no way to each other: a rank sends by its own NIC. */
static void fabric_find(making *m) {
  int32_t nranks = m->levels->nranks;
  int outermost = BNY_LOCALITY_LEAF;
  uint64_t first = 0;
  for (int32_t r = 0; r < nranks; r++)
    for (int kind = outermost + 1; kind <= BNY_LOCALITY_CORE; kind++)
      if (m->carriers[r]->levels[kind].key) outermost = kind;
  uint64_t *fabric = m->network->fabric = malloc((size_t)nranks * sizeof *fabric);
  m->good = m->good && fabric;
  for (int32_t r = 0; r < nranks && m->good; r++) {
    fabric[r] = m->carriers[r]->levels[outermost].key;
    if (!first) first = fabric[r];
    m->network->split = m->network->split || (fabric[r] && fabric[r] != first);
  }
}

static bny_link_way way_of(bny_link_class class) {
  switch (class) {
  case BNY_LINK_NVLINK:
  case BNY_LINK_C2C: return BNY_WAY_NVLINK;
  case BNY_LINK_XGMI: return BNY_WAY_XGMI;
  case BNY_LINK_PCIE:
  case BNY_LINK_PCIE_SYS: return BNY_WAY_PCIE;
  case BNY_LINK_NETWORK:
  case BNY_LINK_NETWORK_CPU:
  case BNY_LINK_TCP: return BNY_WAY_NETWORK;
  default: return BNY_WAY_MEMORY;
  }
}

/* Notes which kinds of links the levels use. */
static void ways_find(making *m, bool used[BNY_HOPS]) {
  for (int32_t k = 0; k < m->levels->nlevels; k++) {
    bny_link_class class = m->facts->classes[k];
    bny_link_way way = m->network->ways[k] = way_of(class);
    if (way == BNY_WAY_XGMI && k > 0) way = m->network->ways[k] = BNY_WAY_PCIE;
    used[BNY_HOP_NVLINK] |= way == BNY_WAY_NVLINK;
    used[BNY_HOP_XGMI] |= way == BNY_WAY_XGMI;
    used[BNY_HOP_PCIE] |= way == BNY_WAY_PCIE || class == BNY_LINK_NETWORK;
    used[BNY_HOP_PACKAGES] |= class == BNY_LINK_PCIE_SYS;
    used[BNY_HOP_NIC] |= way == BNY_WAY_NETWORK;
  }
  used[BNY_HOP_LEAF] = used[BNY_HOP_SPINE] = used[BNY_HOP_NIC];
}

bny_links *bny_locality_network(const bny_links_facts *facts, const bny_levels *levels) {
  size_t nranks = (size_t)levels->nranks;
  bool used[BNY_HOPS] = {false};
  making m = {.facts = facts,
              .levels = levels,
              .network = bny_links_make(),
              .carriers = malloc(nranks * sizeof *m.carriers),
              .keys = malloc(nranks * sizeof *m.keys)};
  m.good = m.network && m.carriers && m.keys;
  if (m.good) carriers_find(&m);
  if (m.good) ways_find(&m, used);
  for (int kind = 0; kind < BNY_HOPS && m.good; kind++)
    if (used[kind]) kind_add(&m, (bny_hop)kind);
  if (m.good && used[BNY_HOP_NIC] && facts->network != BNY_LINK_TCP) fabric_find(&m);
  free(m.carriers);
  free(m.keys);
  if (m.good) return m.network;
  bny_links_free(m.network);
  return NULL;
}
