/* SPDX-License-Identifier: Apache-2.0
 * What the parts of the hwloc importer share. */
#ifndef BNY_TOPO_IMPORT_HWLOC_H
#define BNY_TOPO_IMPORT_HWLOC_H

#include "topo/model.h"
#include "topo/names.h"
#include "topo/xml.h"

typedef struct bny_topo_hwloc {
  const bny_topo_xml *xml;
  bny_topo *topo;
  bny_topo_error *error;
  int32_t *node_of; /* per element: its node, else that of the device or bridge around it, else -1 */
  int32_t *cpu_in;  /* per element: the host or package that holds it; -1 outside of the machine */
  int32_t *io_in;   /* per element: the node that PCI devices below hang from */
  char *wanted;     /* per element: whether a GPU, NIC or NVSwitch is in it */
  char *upwards;    /* per element: whether it is a switch's bridge upwards */
  int32_t packages, numas, switches; /* so far */
} bny_topo_hwloc;

/* The value of <info name="..."> right below; NULL if there is none. */
const char *bny_topo_hwloc_info(const bny_topo_hwloc *h, int32_t element, const char *name);

/* hwloc's PCI types: "0302 [10de:1db8] [10de:131d] a1". BNY_TOPO_KINDS if this is none of ours. */
bny_topo_kind bny_topo_hwloc_device_kind(const bny_topo_hwloc *h, int32_t pci);

/* Adds a GPU, NIC (with its ports) or NVSwitch below `parent`. */
bool bny_topo_hwloc_device(bny_topo_hwloc *h, int32_t pci, bny_topo_kind kind, int32_t parent);

/* The link of a device or bridge to what is above it. */
bool bny_topo_hwloc_join_upwards(bny_topo_hwloc *h, int32_t element);

/* Once all nodes are there: numbers and names of GPUs, NVLinks (of <distances2>), and links between NUMA nodes. */
bool bny_topo_hwloc_number_gpus(bny_topo_hwloc *h);
bool bny_topo_hwloc_nvlinks(bny_topo_hwloc *h);
bool bny_topo_hwloc_join_numas(bny_topo_hwloc *h);

#endif
