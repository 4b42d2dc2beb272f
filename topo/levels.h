/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model means for ranks that work together: who is how near to whom, in levels; which NIC serves which GPU;
 * what is wrong with the machine. Computed from the model alone and the same for every rank that has the same model.
 *
 * Ranks. Rank r is the r-th GPU of the model. A model without any GPU has its NUMA nodes for ranks; without those
 * packages; without those, as where only a network is known, NICs; without those hosts. `rank_kind` says which.
 *
 * Levels. Each parts the ranks into disjoint groups whose members reach one another over links alike:
 *
 *     package   below one CPU package, or NUMA node where packages are not known
 *     island    joined by NVLinks, NVSwitch or xGMI inside one host; a GPU without such links is one of its own
 *     host
 *     domain    joined by NVLinks across hosts
 *     rail      the GPUs of all hosts that use the same one of their host's NICs: what a rail of switches joins
 *     leaf      whose NICs are on one leaf switch
 *     spine     whose leaf switches reach one another one tier higher; core: by all tiers
 *
 * A level is there when the model has facts for it: domains where NVLinks cross hosts, rails in more than one host
 * with NICs, leaf and spine where switches of the network are known. Package, island, host, domain and spine nest in
 * that order, as do leaf and spine; rails cut across hosts.
 *
 * Rails. A host's NICs that serve GPUs are counted in the order of the first GPU that each serves, so that the
 * numbers that the system gives to NICs do not matter. NICs that serve no GPU (storage, management) are on no rail.
 * Where a leaf switch carries one rail of nearly all of its hosts, a host that has another NIC there has its cables
 * crossed: it takes the rails of the switches, and a finding says so.
 *
 * Speeds are in GB/s and one direction. Where the model does not say how fast an NVLink is, that of the GPU's
 * generation is taken, or 20 GB/s: the group's source then says assumed. An NVLink whose speed is 0 though its rated
 * speed is known counts as refused: links are there and peer access is not. A port of which that is so is down. */
#ifndef BNY_TOPO_LEVELS_H
#define BNY_TOPO_LEVELS_H

#include "topo/model.h"

typedef enum bny_topo_level_kind {
  BNY_TOPO_LEVEL_PACKAGE,
  BNY_TOPO_LEVEL_ISLAND,
  BNY_TOPO_LEVEL_HOST,
  BNY_TOPO_LEVEL_DOMAIN,
  BNY_TOPO_LEVEL_RAIL,
  BNY_TOPO_LEVEL_LEAF,
  BNY_TOPO_LEVEL_SPINE,
  BNY_TOPO_LEVEL_CORE,
  BNY_TOPO_LEVEL_KINDS
} bny_topo_level_kind;

typedef struct bny_topo_group {
  int32_t first, count; /* range of level->members */
  int32_t node;         /* package, host, NVSwitch, leaf switch; -1: no one node is it */
  bny_topo_path path;   /* the farthest between two members; SELF for one */
  /* What the slowest member can send to the others at once; 0 unknown. In package and host: over PCI, unless all
   * members are of one island. From rail on: over the NIC that serves it, divided by the ranks that share it. */
  double gbytes_per_s;
  double latency_us;      /* of the slowest link; 0 unknown */
  bool all_to_all;        /* each two members have links of their own or a switch between them */
  bool uniform;           /* every member can send as fast as the others */
  bny_topo_source source; /* of gbytes_per_s: the least certain */
} bny_topo_group;

typedef struct bny_topo_level {
  bny_topo_level_kind kind;
  int32_t ngroups;
  bny_topo_group *groups;
  int32_t nmembers;
  int32_t *members;  /* ranks, ascending within a group */
  int32_t *group_of; /* by rank; -1: in no group of this level */
} bny_topo_level;

typedef struct bny_topo_rank {
  int32_t node;
  int32_t host;  /* node; -1 unknown */
  int32_t local; /* its place among the ranks of its host */
  int32_t nic;   /* node of the NIC that serves it; -1 none */
  bny_topo_path nic_path;
  int32_t nic_shared;      /* ranks that this NIC serves, itself included */
  int32_t rail;            /* -1 none */
  double nic_gbytes_per_s; /* of the whole NIC; 0 unknown */
  int32_t nvlinks;         /* NVLinks or xGMI links that it has */
} bny_topo_rank;

typedef enum bny_topo_severity { BNY_TOPO_INFO, BNY_TOPO_WARNING, BNY_TOPO_FAULT } bny_topo_severity;

typedef struct bny_topo_finding {
  bny_topo_severity severity;
  int32_t node; /* -1: the whole */
  char *text;   /* what is so and what follows from it, one line without a full stop */
} bny_topo_finding;

typedef struct bny_topo_levels {
  bny_topo_kind rank_kind;
  int32_t nranks;
  bny_topo_rank *ranks;
  int32_t nlevels;
  bny_topo_level levels[BNY_TOPO_LEVEL_KINDS]; /* those that there are, in the order of their kinds */
  int32_t nfindings, findings_capacity;
  bny_topo_finding *findings; /* in the order of the model, faults and warnings before what is only worth knowing */
} bny_topo_levels;

/* NULL without memory. The model must have passed bny_topo_check() and is not kept. */
bny_topo_levels *bny_topo_derive(const bny_topo *topo);
void bny_topo_levels_free(bny_topo_levels *levels);

/* NULL if there is no such level. */
const bny_topo_level *bny_topo_level_of(const bny_topo_levels *levels, bny_topo_level_kind kind);
const char *bny_topo_level_name(bny_topo_level_kind kind);      /* "package" .. */
const char *bny_topo_severity_name(bny_topo_severity severity); /* "info", "warning", "fault" */

/* Whether a port, or a NIC that has none, is down: it has no speed, and a rating or the probe's words say that it should.
 * What it would have; 0 unknown. */
bool bny_topo_port_down(const bny_topo *topo, int32_t node);
double bny_topo_port_rated(const bny_topo *topo, int32_t node);

/* ---- rings and trees (rings.c, rings_set.c) ---------------------------------------------------------------------- */

/* Bandwidth that two ranks have between them over NVLinks of their own, or a switch; GB/s, 0: none. Of ranks of one
 * host or domain. */
double bny_topo_pair_gbytes_per_s(const bny_topo *topo, const bny_topo_levels *levels, int32_t a, int32_t b);

/* The members of an island or domain in an order such that each sends to the next and the last to the first, all
 * over links. Of all such orders one whose slowest link is fastest, and of these one whose links are fastest
 * together: exact for up to 16 members, and for any number that one switch joins. Beyond that the fastest slowest
 * link that a search by rotations finds. The ring starts with the first member. `ring` has room for group->count
 * ranks. Returns the slowest link in GB/s; 0 if no ring was found, or there is one member; -1 without memory. */
double bny_topo_ring(const bny_topo *topo, const bny_topo_levels *levels, const bny_topo_level *level,
                     const bny_topo_group *group, int32_t *ring);

/* Several rings at once, none of which takes bandwidth from another: each link between two members is in one ring, two
 * links side by side may be in two, and links through a switch that joins all are shared out likewise. Links carry both
 * ways, so that each ring can run in both directions at the same time. As many rings as there can be where all members
 * are linked alike, or by a switch, and for up to 8 members in general (the search for them is bounded, and known
 * machines are far from its bound); beyond that as many as are found, each made of the links that are most plentiful.
 * Links through a switch that does not join all are not used.
 *
 * `rings` has room for rings_max times group->count ranks, each ring starting with the first member; *count is the
 * number found. Returns what the slowest of their links has alone, in GB/s; 0 if there is none; -1 without memory. */
double bny_topo_rings(const bny_topo *topo, const bny_topo_levels *levels, const bny_topo_level *level,
                      const bny_topo_group *group, int32_t rings_max, int32_t *rings, int32_t *count);

/* A tree from `root`, a place within the group, to all members, over links: the slowest link is as fast as it can
 * be, and of such trees each member is as near to the root as it can be. With at most `children_max` children of a
 * node (0: any number) children are taken first come, first served: then depth need not be the least, and a tree may
 * be missed where links are few. `parents` has room for group->count places, -1 at the root. Returns the slowest
 * link; 0 if no tree was found, or there is one member; -1 without memory. */
double bny_topo_tree(const bny_topo *topo, const bny_topo_levels *levels, const bny_topo_level *level,
                     const bny_topo_group *group, int32_t root, int32_t children_max, int32_t *parents);

#endif
