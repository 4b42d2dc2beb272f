/* SPDX-License-Identifier: Apache-2.0
 * What of a model gets a line of its own in the picture, and which of these look alike. */
#ifndef TOPO_FOLD_H
#define TOPO_FOLD_H

#include "topo_view.h"

/* All by node. Not shown are ports, host bridges, PCI switches with less than two things below, and the NUMA node of a
 * package that has only one; what is below them hangs from what is shown above. Switches within a host hang from it. */
typedef struct topo_fold {
  const bny_topo *topo;
  const bny_topo_levels *levels;
  bool *shown;
  int32_t *host;         /* itself included; -1 */
  int32_t *above;        /* that is shown; -1 */
  int32_t *child, *next; /* the first that is shown below, and the next of the same; -1. Switches are last */
  int32_t *port;         /* a NIC's first; the others by next */
  int32_t *rank;         /* -1 */
  int8_t *severity;      /* the worst finding about it; -1 if there is none but for information */
  uint64_t *look;        /* the same for nodes that look the same with all that is below them; names do not count */
} topo_fold;

bool topo_fold_make(topo_fold *fold, const bny_topo *topo, const bny_topo_levels *levels, tool_error *error);
void topo_fold_free(topo_fold *fold);

/* A speed is 0 where it is not known. */
typedef struct topo_facts {
  double up; /* over PCI, to what is shown above */
  bool up_assumed;
  int32_t links;      /* NVLinks or xGMI links */
  double links_speed; /* of all */
  bool links_assumed, links_refused, xgmi;
  int32_t peers, switches; /* at their other ends; a switch's GPUs are peers */
  double coherent;         /* to the CPU */
  bool coherent_assumed;
  double net; /* of all ports */
  bool net_assumed;
  int32_t ports, ports_down;
  int32_t leaf;          /* a switch of the network; -1 */
  int32_t below, beside; /* of a switch of the network: ports on it, links to other switches */
  double beside_speed;
} topo_facts;

topo_facts topo_fold_facts(const topo_fold *fold, int32_t node);

/* Parts a list of nodes into groups that look alike: sorts `nodes` so that groups are contiguous, in the order of their
 * first nodes, each in the order that it had, and writes where each ends to `ends`, which has room for `count`. Returns
 * how many groups there are; -1 without memory. A group of less than `least` becomes several of one. */
int32_t topo_fold_groups(const topo_fold *fold, int32_t *nodes, int32_t count, int32_t least, int32_t *ends);

#endif
