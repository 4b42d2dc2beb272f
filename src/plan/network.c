/* SPDX-License-Identifier: Apache-2.0
 * Keeps the links of a network, and finds the links that a message crosses. */
#include "plan/network.h"

#include <math.h>
#include <stdlib.h>

#include "base/hash.h"

bny_links *bny_links_make(void) { return calloc(1, sizeof(bny_links)); }

void bny_links_free(bny_links *network) {
  if (!network) return;
  for (int kind = 0; kind < BNY_HOPS; kind++) free(network->at[kind]);
  free(network->fabric);
  free(network->links);
  free(network);
}

int32_t bny_links_add(bny_links *network, bny_hop kind, int32_t owner, double ns_per_byte) {
  if (network->nlinks + 2 > network->capacity) {
    int32_t larger = network->capacity ? 2 * network->capacity : 64;
    bny_link *grown = realloc(network->links, (size_t)larger * sizeof *grown);
    if (!grown) return -1;
    network->links = grown;
    network->capacity = larger;
  }
  for (int out = 1; out >= 0; out--)
    network->links[network->nlinks++] =
        (bny_link){.kind = kind, .owner = owner, .out = out == 1, .ns_per_byte = ns_per_byte};
  return network->nlinks - 2;
}

bny_links *bny_links_of_levels(const bny_levels *levels) {
  bny_links *made = bny_links_make();
  if (!made || levels->nlevels == 1) return made;
  int32_t *at = made->at[BNY_HOP_NIC] = malloc((size_t)levels->nranks * sizeof *at), added = 0;
  for (int32_t k = 1; k < levels->nlevels; k++) made->ways[k] = BNY_WAY_PORTS;
  const bny_level *islands = &levels->levels[0];
  bool share = levels->levels[levels->nlevels - 1].link.shared_ns_per_byte > 0; /* the ranks of an island have one */
  for (int32_t r = 0; at && r < levels->nranks && added >= 0; r++) {
    int32_t first = islands->members[islands->first[islands->group_of[r]]];
    at[r] = share && first < r ? at[first] : made->nlinks;
    for (int32_t k = 1; k < levels->nlevels && added >= 0 && at[r] + 2 * (k - 1) == made->nlinks; k++) {
      const bny_link_cost *link = &levels->levels[k].link;
      added = bny_links_add(made, BNY_HOP_NIC, r, fmax(link->beta_ns_per_byte, link->shared_ns_per_byte));
    }
  }
  if (at && added >= 0) return made;
  bny_links_free(made);
  return NULL;
}

uint64_t bny_links_hash(uint64_t hash, const bny_links *network, int32_t nranks) {
  for (int32_t l = 0; l < network->nlinks; l += 2)
    hash = bny_hash_add_bytes(hash, &network->links[l].ns_per_byte, sizeof network->links[l].ns_per_byte);
  for (int kind = 0; kind < BNY_HOPS; kind++)
    if (network->at[kind]) hash = bny_hash_add_bytes(hash, network->at[kind], (size_t)nranks * sizeof(int32_t));
  for (int32_t k = 0; k < BNY_LEVELS_MAX; k++) hash = bny_hash_add(hash, (uint64_t)network->ways[k]);
  if (network->fabric) hash = bny_hash_add_bytes(hash, network->fabric, (size_t)nranks * sizeof *network->fabric);
  return hash;
}

double bny_links_least_ns_per_byte(const bny_levels *levels, int32_t level) {
  const bny_links *network = levels->network;
  const bny_link_cost *cost = &levels->levels[level].link;
  bny_link_way way = network->ways[level];
  bny_hop kind = way == BNY_WAY_NETWORK ? BNY_HOP_NIC : BNY_HOP_PCIE;
  double least = fmax(cost->beta_ns_per_byte, cost->shared_ns_per_byte);
  for (int32_t l = 0; l < network->nlinks && (way == BNY_WAY_NETWORK || way == BNY_WAY_PCIE); l += 2)
    if (network->links[l].kind == kind) least = fmin(least, network->links[l].ns_per_byte);
  return least;
}

/* The link that a rank's messages to other nodes cross before that of a kind; NULL: none. */
static const bny_link *link_behind(const bny_links *network, int kind, int32_t rank) {
  while (--kind >= BNY_HOP_PCIE)
    if (kind != BNY_HOP_PACKAGES && network->at[kind] && network->at[kind][rank] >= 0)
      return &network->links[network->at[kind][rank]];
  return NULL;
}

/* A PCIe link that only leads to the NIC is wide if it is as fast. A NIC, or what leads from a switch to the next, is
 * wide if the links behind it together are no faster. */
static void wide_find(bny_links *network, int32_t nranks) {
  const int32_t *pcie = network->at[BNY_HOP_PCIE], *nic = network->at[BNY_HOP_NIC];
  bool alone = pcie && nic;
  for (int32_t k = 0; k < BNY_LEVELS_MAX; k++) alone = alone && network->ways[k] != BNY_WAY_PCIE;
  for (int32_t r = 0; r < nranks && alone; r++)
    network->links[pcie[r]].wide = network->links[pcie[r]].ns_per_byte <= network->links[nic[r]].ns_per_byte;
  for (int kind = BNY_HOP_NIC; kind < BNY_HOPS; kind++)
    for (int32_t r = 0; network->at[kind] && r < nranks; r++) {
      if (network->at[kind][r] < 0) continue;
      bny_link *link = &network->links[network->at[kind][r]];
      const bny_link *behind = link_behind(network, kind, r);
      if (!behind || (behind->kind == BNY_HOP_PCIE && behind->wide))
        link->behind_bytes_per_ns = INFINITY;
      else if (behind->owner == r)
        link->behind_bytes_per_ns += 1 / behind->ns_per_byte;
    }
  for (int32_t l = 0; l < network->nlinks; l += 2) {
    bny_link *link = &network->links[l];
    link->wide = link->wide || (link->behind_bytes_per_ns > 0 && link->behind_bytes_per_ns * link->ns_per_byte < 1.001);
    network->links[l + 1].wide = link->wide;
  }
}

void bny_links_compare(const bny_levels *levels) {
  bny_links *network = levels->network;
  double network_ns = INFINITY;
  network->even = !network->split;
  for (int32_t l = 0; l < network->nlinks; l++) {
    bny_link *link = &network->links[l];
    *link = (bny_link){.kind = link->kind, .owner = link->owner, .out = link->out, .ns_per_byte = link->ns_per_byte};
  }
  wide_find(network, levels->nranks);
  for (int32_t k = 0; k < levels->nlevels; k++) {
    const bny_link_cost *link = &levels->levels[k].link;
    if (levels->levels[k].nshapes > 1 || link->shared_ns_per_byte > 0 ||
        bny_links_least_ns_per_byte(levels, k) < link->beta_ns_per_byte)
      network->even = false;
    if (network->ways[k] == BNY_WAY_NETWORK) network_ns = link->beta_ns_per_byte;
  }
  for (int kind = BNY_HOP_NIC; kind < BNY_HOPS; kind++)
    for (int32_t r = 0; network->at[kind] && r < levels->nranks; r++) {
      if (network->at[kind][r] < 0) continue;
      bny_link *link = &network->links[network->at[kind][r]];
      if (++link->users * link->ns_per_byte > 1.001 * network_ns) network->even = false;
    }
}

static void hop(const bny_links *network, bny_hop kind, int32_t rank, bool out, bny_route *route) {
  const int32_t *at = network->at[kind];
  if (at && at[rank] >= 0) route->links[route->nlinks++] = at[rank] + !out;
}

/* Adds both ends of each kind of link, from the inside, up to the kind of which both ranks use one. */
static void hops(const bny_links *network, bny_hop first, bny_hop last, int32_t from, int32_t to, bny_route *route) {
  int turn = first;
  for (; turn <= (int)last; turn++) {
    const int32_t *at = network->at[turn];
    if (at && at[from] >= 0 && at[from] == at[to]) break;
    hop(network, (bny_hop)turn, from, true, route);
  }
  while (--turn >= (int)first) hop(network, (bny_hop)turn, to, false, route);
}

static void network_hops(const bny_links *network, int32_t from, int32_t to, bny_route *route) {
  const uint64_t *fabric = network->fabric;
  route->exists = !fabric || !fabric[from] || !fabric[to] || fabric[from] == fabric[to];
  hop(network, BNY_HOP_PCIE, from, true, route);
  hops(network, BNY_HOP_NIC, BNY_HOP_SPINE, from, to, route);
  hop(network, BNY_HOP_PCIE, to, false, route);
}

void bny_links_route(const bny_levels *levels, int32_t from, int32_t to, bny_route *route) {
  const bny_links *network = levels->network;
  int32_t level = bny_levels_between(levels, from, to);
  const bny_link_cost *cost = &levels->levels[level].link;
  double message_ns = bny_link_message_ns(cost);
  route->exists = true;
  route->nlinks = 0;
  route->latency_ns = cost->alpha_ns;
  route->post_ns = cost->posted > 0 ? message_ns : 0;
  route->seen_ns = cost->posted > 0 ? 0 : message_ns;
  route->read_ns_per_byte = 0;
  switch (network->ways[level]) {
  case BNY_WAY_NVLINK: hops(network, BNY_HOP_NVLINK, BNY_HOP_NVLINK, from, to, route); break;
  case BNY_WAY_XGMI:
    if (network->at[BNY_HOP_XGMI][from] >= 0)
      route->links[route->nlinks++] = network->at[BNY_HOP_XGMI][from] + 2 * levels->levels[0].index[to];
    break;
  case BNY_WAY_PCIE: hops(network, BNY_HOP_PCIE, BNY_HOP_PACKAGES, from, to, route); break;
  case BNY_WAY_NETWORK: network_hops(network, from, to, route); break;
  case BNY_WAY_PORTS:
    route->links[route->nlinks++] = network->at[BNY_HOP_NIC][from] + 2 * (level - 1);
    route->links[route->nlinks++] = network->at[BNY_HOP_NIC][to] + 2 * (level - 1) + 1;
    break;
  case BNY_WAY_MEMORY: /* peers on this rank's own core share its caches */
    route->read_ns_per_byte = cost->beta_ns_per_byte;
    if (cost->ranks_per_core > 1 && cost->ranks_per_core < levels->nranks)
      route->read_ns_per_byte *= 1 - (cost->ranks_per_core - 1) / (levels->nranks - 1);
    break;
  }
}
