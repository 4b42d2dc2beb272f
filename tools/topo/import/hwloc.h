/* SPDX-License-Identifier: Apache-2.0
 * State and functions that the parts of the hwloc importer share. */
#pragma once

#include "topo/model/model.h"
#include "tools/topo/import/xml.h"

typedef struct bny_topo_hwloc_place {
  int32_t node;         /* its node, or that of the enclosing device or bridge; -1 none */
  int32_t cpu;          /* the host or package that holds it; -1 outside the machine */
  int32_t io;           /* parent node of PCI devices below */
  bool wanted, upwards; /* it contains a GPU, NIC or NVSwitch; it is the upstream bridge of a switch */
} bny_topo_hwloc_place;

typedef struct bny_topo_hwloc {
  const bny_topo_xml *xml;
  bny_topo *topo;
  bny_topo_error *error;
  bny_topo_hwloc_place *at;          /* by element */
  int32_t packages, numas, switches; /* numbers so far */
  bool types_are_bits;               /* version 3: a device may be of several kinds */
} bny_topo_hwloc;

/* Returns the type of an object; "" for other elements. */
const char *bny_topo_hwloc_type(const bny_topo_hwloc *h, int32_t element);

/* Returns the value of <info name="..."> among the children; NULL if there is none. */
const char *bny_topo_hwloc_info(const bny_topo_hwloc *h, int32_t element, const char *name);

/* Classifies hwloc's PCI types: "0302 [10de:1db8] [10de:131d] a1". Returns BNY_TOPO_KINDS for other devices. */
bny_topo_kind bny_topo_hwloc_device_kind(const bny_topo_hwloc *h, int32_t pci);
bool bny_topo_hwloc_note_left_out(bny_topo_hwloc *h, int32_t pci); /* for other devices, if the class is missing */

/* Adds a GPU, NIC (with its ports) or NVSwitch below `parent`. */
bool bny_topo_hwloc_device(bny_topo_hwloc *h, int32_t pci, bny_topo_kind kind, int32_t parent);

/* Adds the link of a device or bridge to its parent. */
bool bny_topo_hwloc_join_upwards(bny_topo_hwloc *h, int32_t element);

/* These run when all nodes exist. They number and name GPUs, add NVLinks (from <distances2>), and link NUMA nodes. */
bool bny_topo_hwloc_number_gpus(bny_topo_hwloc *h);
bool bny_topo_hwloc_nvlinks(bny_topo_hwloc *h);
bool bny_topo_hwloc_join_numas(bny_topo_hwloc *h);
