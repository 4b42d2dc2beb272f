/* SPDX-License-Identifier: Apache-2.0
 * What the files that derive levels share while they do. */
#ifndef BNY_TOPO_DERIVE_H
#define BNY_TOPO_DERIVE_H

#include "topo/levels.h"

/* Of one rank's links of a kind, or of a node's. */
typedef struct bny_topo_sum {
  double gbytes_per_s;
  double latency_us;
  int32_t count;
  int32_t down;           /* of a NIC: ports that carry nothing */
  bny_topo_source source; /* the least certain; BNY_TOPO_MEASURED if there is no link */
} bny_topo_sum;

typedef struct bny_topo_derivation {
  const bny_topo *topo;
  bny_topo_levels *levels;
  int32_t *host_of;          /* by node; -1 above hosts */
  int32_t *rank_of;          /* by node; -1 */
  int32_t *by_host;          /* ranks sorted by host */
  int32_t *host_first;       /* by host ordinal: range of by_host, nhosts + 1 of them */
  int32_t *hosts;            /* by ordinal: node */
  int32_t *host_number;      /* by node: ordinal; -1 */
  int32_t nhosts;            /* all of the model */
  int32_t *nics, *nic_first; /* NICs sorted by host, range by ordinal */
  int32_t nnics;
  bny_topo_sum *nvl;   /* by rank */
  bny_topo_sum *nic;   /* by node: a NIC's ports together */
  int32_t *leaf;       /* by node: the representative of the leaf switches of a NIC; -1 */
  int32_t *leaf_roots; /* by node: a union-find of the leaf switches that one NIC's ports are on */
  int32_t *tier;       /* by node: of a network switch from 1; 0 */
  double *uplink;      /* by node: of a leaf's representative, to the tier above */
  int32_t *crossed;    /* by rank: the rail that its NIC's leaf switch carries; -1 where all is well */
  int32_t *keys;       /* by rank: room to work in */
  int32_t *roots;      /* by node: likewise, of a union-find */
} bny_topo_derivation;

/* A forest in an array: the representative, and the union of two; the least node represents. */
int32_t bny_topo_root(int32_t *roots, int32_t node);
void bny_topo_unite(int32_t *roots, int32_t a, int32_t b);

/* A usable NVLink or xGMI link and its speed; 0 if it is of another kind, a loop or refused. *assumed if the speed
 * is. */
double bny_topo_gpu_link(const bny_topo *topo, const bny_topo_link *link, bool *assumed);

/* Adds a level from d->keys (by rank, each in [0, nkeys) or -1); NULL without memory. */
bny_topo_level *bny_topo_level_add(bny_topo_derivation *d, bny_topo_level_kind kind, int32_t nkeys);

/* The parts: false without memory. */
bool bny_topo_derive_near(bny_topo_derivation *d);   /* package, island, host, domain */
bool bny_topo_derive_nics(bny_topo_derivation *d);   /* which NIC, and rails */
bool bny_topo_derive_fabric(bny_topo_derivation *d); /* leaf, spine, core */
bool bny_topo_derive_rails(bny_topo_derivation *d);
bool bny_topo_derive_findings(bny_topo_derivation *d);

/* Of a link of the network; 0 unknown. A port faster than 1000 GB/s is a mistake in the file, such as kb/s for Mb/s,
 * and not known. Trunks between switches may be that fast. */
double bny_topo_net_speed(const bny_topo *topo, const bny_topo_link *link);

/* A group whose members meet over their NICs: rails, leaves and above. */
void bny_topo_net_look(const bny_topo_derivation *d, const bny_topo_level *level, bny_topo_group *group);

/* ---- rings (rings.c), for rings_set.c ---- */

/* Between the members of a group, by their places. */
typedef struct bny_topo_speeds {
  int32_t count;
  double *matrix; /* count by count; NULL: all pairs are alike */
  double alike;
} bny_topo_speeds;

/* The ring whose slowest link is fastest, as places from the first on; *slowest is 0 if there is none. With a matrix.
 * False without memory. */
bool bny_topo_ring_best(const bny_topo_speeds *s, int32_t *ring, double *slowest);

/* Any ring of links of at least this speed, if a search by rotations finds one. False without memory. */
bool bny_topo_ring_any(const bny_topo_speeds *s, double least, uint32_t seed, int32_t *ring, bool *found);

/* Of a PCI device: the narrowest PCI link from it up to the CPU; 0 unknown. */
double bny_topo_pci_way(const bny_topo *topo, int32_t node);

#endif
