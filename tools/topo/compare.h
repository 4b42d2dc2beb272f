/* SPDX-License-Identifier: Apache-2.0
 * Compares two models as users see them. Devices are the same if they share a bus id, or else a name, in hosts of the
 * same name; if each model has one host, these are the same. PCI switches count only by the speed of devices below. */
#ifndef BNY_TOOLS_TOPO_COMPARE_H
#define BNY_TOOLS_TOPO_COMPARE_H

#include "tools/topo/view.h"

typedef enum topo_change_kind { TOPO_MISSING, TOPO_ADDED, TOPO_CHANGED } topo_change_kind;

/* Speeds are in GB/s; 0 unknown. */
typedef struct topo_change {
  topo_change_kind kind;
  const char *what;        /* "gpu" and other kinds of nodes, "link", "level" */
  const char *text;        /* "gpu GPU7: PCI 48 GB/s -> 24 GB/s" */
  int32_t nodes[2];        /* on each side: the device, or one end of the link; of one that is missing its host; -1 */
  int32_t lanes[2];        /* devices: PCI lanes */
  double pci[2], net[2];   /* devices */
  bny_topo_link_kind link; /* links */
  int32_t links[2];        /* links: parallel ones */
  double speed[2];         /* links */
} topo_change;

typedef struct topo_comparison {
  const topo_view *first, *second;
  int32_t only; /* a host of the second model, to which the only host of the first is compared; -1: all is compared */
  const char *arrow; /* between what was and what is */
  bool together;     /* nodes of one kind and host that one model alone has are one change */
  bool (*take)(void *context, const topo_change *change); /* false ends the comparison */
  void *context;
} topo_comparison;

/* Passes each change to `take`. Returns false and *error without memory. */
bool topo_compare(const topo_comparison *comparison, tool_error *error);

#endif
