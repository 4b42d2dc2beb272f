/* SPDX-License-Identifier: Apache-2.0
 * The nodes of a model that get a line in the picture, and which of them look alike. */
#ifndef BNY_TOOLS_TOPO_FOLD_H
#define BNY_TOOLS_TOPO_FOLD_H

#include "tools/topo/draw.h"

/* Arrays are indexed by node. Hidden are ports, host bridges, PCI switches with less than two children, and the only
 * NUMA node of a package; their children belong to the next shown node above. Switches inside a host belong to the
 * host. */
typedef struct topo_fold {
  const bny_topo *topo;
  const bny_topo_levels *levels;
  bool *shown;
  int32_t *host;            /* including itself; -1 */
  int32_t *above;           /* next shown node above; -1 */
  int32_t *child, *next;    /* first shown child, next sibling; -1. Switches are last */
  int32_t *port;            /* first port of a NIC; the others by `next` */
  int32_t *rank;            /* -1 */
  int32_t *tier;            /* network switches: from 1 for those with NICs or alone; 0: none */
  topo_string *short_names; /* of leaf switches, without what all have in common */
  int32_t *short_name;      /* by node: its place among them; -1 */
  int8_t *severity;         /* worst finding about it; -1: none above INFO */
  uint64_t *look;           /* equal for nodes that look alike with everything below; names do not count */
} topo_fold;

bool topo_fold_make(topo_fold *fold, const bny_topo *topo, const bny_topo_levels *levels, tool_error *error);
void topo_fold_free(topo_fold *fold);

/* Speeds are 0 if unknown. */
typedef struct topo_facts {
  double own; /* over PCI, of the device itself */
  double up;  /* the same, on its way to the next shown node above */
  bool up_assumed;
  int32_t links;      /* NVLinks or xGMI links */
  double links_speed; /* sum of all */
  bool links_assumed, links_refused, xgmi;
  int32_t peers, switches; /* at the other ends; a switch's GPUs are peers */
  bool c2c;                /* has a coherent link to the CPU */
  double coherent;         /* its speed */
  bool coherent_assumed;
  double net; /* sum of all ports */
  bool net_assumed;
  int32_t ports, ports_down;
  int32_t leaf;          /* network switch; -1 */
  int32_t below, beside; /* network switch only: ports on it, links to other switches */
  double beside_speed;
} topo_facts;

topo_facts topo_fold_facts(const topo_fold *fold, int32_t node);

/* Divides a list of nodes into groups that look alike. Reorders `nodes` so that groups are contiguous and in the order
 * of their first nodes, and keeps the order within a group. Writes the end of each group to `ends`, which has room for
 * `count`. A group of less than `least` is split into single nodes. Returns the number of groups, -1 without memory. */
int32_t topo_fold_groups(const topo_fold *fold, int32_t *nodes, int32_t count, int32_t least, int32_t *ends);

#endif
