/* SPDX-License-Identifier: Apache-2.0
 * Types and functions that the files of this folder share. */
#pragma once

#include "topo/derive/levels.h"

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
  int32_t *crossed;    /* by rank: the rail of its NIC's leaf switch, if that differs from its own rail; else -1 */
  int32_t *keys;       /* by rank: scratch space */
  int32_t *roots;      /* by node: scratch space for a union-find */
  double *values;      /* scratch space for bny_topo_usual(): two for each node, and one for each link */
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

/* Returns the speed of a network link; 0 unknown. A port faster than 1000 GB/s counts as unknown, because it is an
 * error in the file, such as kb/s for Mb/s. Trunks between switches may be that fast. */
double bny_topo_net_speed(const bny_topo *topo, const bny_topo_link *link);

/* Fills a group whose members communicate over their NICs: a rail, leaf, spine or core. */
void bny_topo_net_look(const bny_topo_derivation *d, const bny_topo_level *level, bny_topo_group *group);

/* Returns the speed of the narrowest PCI link between a PCI device and the CPU; 0 unknown. Lowers *source to the least
 * certain source of these links. */
double bny_topo_pci_way(const bny_topo *topo, int32_t node, bny_topo_source *source);

/* The part that the files with findings share: the list, the labels of nodes, and comparison with siblings. */

enum { BNY_TOPO_LABEL_BYTES = 120, BNY_TOPO_FACTS_MAX = 32 };

#define BNY_TOPO_ALIKE 0.95 /* a speed below this fraction of another counts as slower */

/* A fact and the nodes that it holds for. The advice also depends on the maker of the nodes. */
typedef struct bny_topo_fact {
  char *text;
  const char *advice;
  int32_t *nodes;
  int32_t count, capacity;
} bny_topo_fact;

/* The search for the findings of one check. Nodes with the same fact become one finding. */
typedef struct bny_topo_finder {
  bny_topo_derivation *d;
  const bny_topo_finding_kind *kind;
  bny_topo_fact facts[BNY_TOPO_FACTS_MAX];
  int32_t nfacts;
  int32_t more; /* facts beyond the limit, which are only counted */
  bool no_memory;
} bny_topo_finder;

/* Adds a fact about a node; -1: the whole model. The text follows the node's label and a colon. */
void bny_topo_find(bny_topo_finder *s, int32_t node, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Turns the facts into findings and frees the facts. Returns false if out of memory. */
bool bny_topo_find_end(bny_topo_finder *s);

/* Writes "host3 GPU2", or "GPU2" if there is only one host. A port is labelled by its NIC. Returns `text`. */
const char *bny_topo_find_label(const bny_topo_derivation *d, int32_t node, char text[BNY_TOPO_LABEL_BYTES]);
const char *bny_topo_members_word(const bny_topo_derivation *d);             /* "GPU", "rank" */
const char *bny_topo_plural(int32_t count);                                  /* "", "s" */
const char *bny_topo_links_word(const bny_topo_derivation *d, int32_t node); /* "NVLink", "xGMI link" */

bool bny_topo_is_amd(const bny_topo_derivation *d, int32_t gpu); /* by the GPUs of its host if its vendor is unknown */

/* A GPU that is sold on one kind of board only. board_of() finds it by PCI device id or name, and returns NULL for
 * other GPUs. */
typedef struct bny_topo_board {
  const char *model;
  int32_t links; /* links from each GPU to the others */
  int32_t gpus;  /* GPUs on the board; 0: the number varies */
} bny_topo_board;

const bny_topo_board *bny_topo_board_of(const char *model);

bool bny_topo_is_rdma(const char *nic);                /* by its name: network interfaces have no RDMA */
bool bny_topo_same_stem(const char *a, const char *b); /* "mlx5_0" and "mlx5_11": equal up to the first digit */

/* Returns the most frequent value, or the greatest of several such values. *times receives its frequency. Sorts the
 * values. */
double bny_topo_usual(double *values, int32_t count, int32_t *times);

/* Returns the next note of that kind from index *at on, and sets *at to the index after it. Returns NULL after the
 * last. */
const bny_topo_note *bny_topo_find_note(const bny_topo *topo, bny_topo_note_kind kind, int32_t *at);
bool bny_topo_is_found(const bny_topo_derivation *d, const char *id, int32_t node); /* by an earlier row */
bool bny_topo_is_noted(const bny_topo *topo, bny_topo_note_kind kind, int32_t node);

/* One function for each row of findings.def. */
#define BNY_TOPO_FINDING(id, severity, function, meaning, advice) void bny_topo_find_##function(bny_topo_finder *s);
#define BNY_TOPO_FINDING_OF_TOOL(id, severity, meaning, advice)
#include "topo/derive/findings.def"
#undef BNY_TOPO_FINDING
#undef BNY_TOPO_FINDING_OF_TOOL
