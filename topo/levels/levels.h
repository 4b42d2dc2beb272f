/* SPDX-License-Identifier: Apache-2.0
 * Derives from a model what cooperating ranks need: levels of proximity, and the NIC that serves each GPU. The result
 * depends only on the model, so ranks with the same model agree.
 *
 * A host is one machine, and a node is a node of the model (topo/model/model.h).
 *
 * Ranks. The ranks are the GPUs, sorted by host in the order of the model, and by number within a host. If the model
 * has no GPU, the ranks are its NUMA nodes; without those packages, then NICs (in a model of a network only), then
 * hosts. `rank_kind` is their kind.
 *
 * Levels. Each level divides ranks into disjoint groups whose members reach one another over links of the same kind:
 *
 *     package   below one CPU package, or one NUMA node if packages are not known
 *     island    joined by NVLinks, NVSwitch or xGMI inside one host; a GPU without such links is an island alone
 *     host
 *     domain    joined by NVLinks across hosts
 *     rail      the GPUs of all hosts that use the NIC of the same number, which one rail of switches joins
 *     leaf      NICs are on one leaf switch
 *     spine     leaf switches reach one another one tier higher; core: through all tiers
 *
 * A level exists if the model has the data for it. Domains need NVLinks across hosts, rails need several hosts with
 * NICs, leaf and spine need known network switches. Package, island, host, domain and spine nest in that order, as do
 * leaf and spine; rails cut across hosts.
 *
 * Rails. A host's NICs that serve GPUs are numbered by the first GPU that each serves, because the system's own NIC
 * numbers are arbitrary. NICs that serve no GPU (storage, management) have no rail. If a leaf switch carries the same
 * rail for at least three quarters of its hosts, a host with a different NIC there has crossed cables. That host gets
 * the rails of the switches.
 *
 * Speeds are in GB/s per direction. An NVLink of unknown speed gets the speed of the GPU's generation, or 20 GB/s, and
 * the source of the group is "assumed". An NVLink with a rated speed but speed 0 counts as rejected: it exists, but
 * peer access does not work. A port with a rated speed but speed 0 is down. */
#pragma once

#include "topo/model/model.h"

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
  int32_t node;         /* package, host, NVSwitch, leaf switch; -1: no single node */
  bny_topo_path path;   /* longest path between two members; SELF for one member */
  /* The bandwidth at which the slowest member sends to the others; 0 unknown. In package and host it is that of PCI,
   * unless all members are in one island. In rail and later levels it is that of the NIC, divided by the ranks that
   * share it. */
  double gbytes_per_s;
  double up_gbytes_per_s; /* leaf, spine: all its links to the tier above together; 0 unknown or none */
  double latency_us;      /* slowest link's; 0 unknown */
  bool all_to_all;        /* each pair has its own links or a switch between them */
  bool uniform;           /* all members send equally fast */
  bny_topo_source source; /* source of gbytes_per_s: the least certain */
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
  int32_t local; /* index among the ranks of its host */
  int32_t nic;   /* node of the NIC that serves it; -1 none */
  bny_topo_path nic_path;
  int32_t nic_shared;      /* ranks that this NIC serves, itself included */
  int32_t rail;            /* -1 none */
  double nic_gbytes_per_s; /* entire NIC; 0 unknown */
  int32_t nvlinks;         /* NVLinks or xGMI links of this rank */
} bny_topo_rank;

typedef struct bny_topo_levels {
  bny_topo_kind rank_kind;
  int32_t nranks;
  bny_topo_rank *ranks;
  int32_t nlevels;
  bny_topo_level levels[BNY_TOPO_LEVEL_KINDS]; /* the levels that exist, in the order of their kinds */
} bny_topo_levels;

/* Returns NULL if out of memory; the caller frees the result. The model must have passed bny_topo_check(). The result
 * does not refer to it. */
bny_topo_levels *bny_topo_derive(const bny_topo *topo);
void bny_topo_levels_free(bny_topo_levels *levels);

/* Returns NULL if there is no such level. */
const bny_topo_level *bny_topo_level_of(const bny_topo_levels *levels, bny_topo_level_kind kind);
const char *bny_topo_level_name(bny_topo_level_kind kind); /* "package" .. */

/* down() returns whether a port, or a NIC without ports, is down: it has no speed although it has a rating, or the
 * probe found it down. rated() returns its rated speed; 0 if unknown. */
bool bny_topo_port_down(const bny_topo *topo, int32_t node);
double bny_topo_port_rated(const bny_topo *topo, int32_t node);

/* Returns the speed of a network link; 0 unknown. A port faster than 1000 GB/s counts as unknown, because it is an
 * error in the file, such as kb/s for Mb/s. Trunks between switches may be that fast. */
double bny_topo_net_speed(const bny_topo *topo, const bny_topo_link *link);

/* NICs of different networks do not reach one another, so only one network serves the ranks of a host. */
typedef enum bny_topo_network {
  BNY_TOPO_NETWORK_UNKNOWN,
  BNY_TOPO_NETWORK_INFINIBAND,
  BNY_TOPO_NETWORK_ETHERNET
} bny_topo_network;

bny_topo_network bny_topo_network_of(const bny_topo *topo, int32_t nic);
