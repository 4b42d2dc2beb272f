/* SPDX-License-Identifier: Apache-2.0
 * Types and functions that the files of this folder share. */
#pragma once

#include "topo/levels/levels.h"

/* State and helpers of the files that derive levels. */

/* Sums over the links of one kind at a rank or node. */
typedef struct bny_topo_sum {
  double gbytes_per_s;
  double latency_us;
  int32_t count;
  int32_t down;           /* NIC only: ports that are down */
  bool serves;            /* NIC only: has the kind and speed of those that serve the ranks of its host */
  int32_t parts;          /* GPU only: partitions of one device that share these links */
  bny_topo_source source; /* the least certain source; BNY_TOPO_MEASURED without links */
} bny_topo_sum;

typedef struct bny_topo_derivation {
  const bny_topo *topo;
  bny_topo_levels *levels;
  int32_t *numbers;          /* the memory of the arrays of numbers */
  int32_t *host_of;          /* by node; -1 above hosts */
  int32_t *rank_of;          /* by node; -1 */
  int32_t *by_host;          /* ranks sorted by host */
  int32_t *host_first;       /* by host ordinal: range of by_host, nhosts + 1 of them */
  int32_t *hosts;            /* by ordinal: node */
  int32_t *host_number;      /* by node: ordinal; -1 */
  int32_t nhosts;            /* hosts of the model */
  int32_t *nics, *nic_first; /* NICs sorted by host, range by ordinal */
  int32_t nnics;
  bny_topo_sum *nvl;   /* by rank */
  bny_topo_sum *nic;   /* by node: sum over the ports of a NIC */
  int32_t *leaf;       /* by node: the representative of the leaf switches of a NIC; -1 none */
  int32_t *leaf_roots; /* by node: union-find of the leaf switches that the ports of one NIC are on */
  int32_t *tier;       /* by node: tier of a network switch, from 1; 0 for other nodes */
  double *uplink;      /* by node: of a representative of leaf switches or spines, to the tier above */
  int32_t *crossed;    /* scratch space: by node, then by rank the rail of its NIC's leaf switch if it is another */
  int32_t *keys;       /* by rank: scratch space */
  int32_t *roots;      /* by node: scratch space for a union-find */
} bny_topo_derivation;

/* A union-find in an array. root() returns the representative, which is the lowest node of the set. unite() joins two
 * sets. */
int32_t bny_topo_root(int32_t *roots, int32_t node);
void bny_topo_unite(int32_t *roots, int32_t a, int32_t b);

/* Return the number of ranks or NICs of a host, which is given by its ordinal. */
static inline int32_t bny_topo_ranks_on(const bny_topo_derivation *d, int32_t host) {
  return d->host_first[host + 1] - d->host_first[host];
}

static inline int32_t bny_topo_nics_on(const bny_topo_derivation *d, int32_t host) {
  return d->nic_first[host + 1] - d->nic_first[host];
}

bool bny_topo_in_network(const bny_topo *topo, const bny_topo_link *link); /* between two network switches */

/* Returns the speed of a usable NVLink or xGMI link; 0 for another kind, a loop or a rejected link. Sets *assumed if
 * the speed is a default. */
double bny_topo_gpu_link(const bny_topo *topo, const bny_topo_link *link, bool *assumed);

/* Sets `serves` for the NICs of a host, by their kind and speed. */
void bny_topo_nics_class(bny_topo_derivation *d, const int32_t *nics, int32_t nnics);

/* Marks in best[] the NICs of a host that serve a node best; several may be equally good. Writes the paths to all NICs.
 * Returns the number of marked NICs. The rules are in nic.c. */
int32_t bny_topo_nics_best(const bny_topo_derivation *d, int32_t node, const int32_t *nics, int32_t nnics,
                           unsigned char *paths, bool *best);

/* Adds a level from d->keys (by rank, each in [0, nkeys) or -1). Returns NULL if out of memory. */
bny_topo_level *bny_topo_level_add(bny_topo_derivation *d, bny_topo_level_kind kind, int32_t nkeys);

/* Steps of the derivation; false if out of memory. */
bool bny_topo_derive_near(bny_topo_derivation *d);   /* package, island, host, domain */
bool bny_topo_derive_nics(bny_topo_derivation *d);   /* the NIC of each rank, and rail numbers */
bool bny_topo_derive_fabric(bny_topo_derivation *d); /* leaf, spine, core */
bool bny_topo_derive_rails(bny_topo_derivation *d);

/* Fills a group whose members communicate over their NICs: a rail, leaf, spine or core. */
void bny_topo_net_look(const bny_topo_derivation *d, const bny_topo_level *level, bny_topo_group *group);

/* Returns the speed of the narrowest PCI link between a PCI device and the CPU; 0 unknown. Lowers *source to the least
 * certain source of these links. */
double bny_topo_pci_way(const bny_topo *topo, int32_t node, bny_topo_source *source);
