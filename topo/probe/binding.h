/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the processors are that the calling thread is bound to; no devices are looked at. sysfs answers in less than a
 * millisecond. hwloc takes several, so it is asked where its variables select a machine (HWLOC_XMLFILE,
 * HWLOC_SYNTHETIC). */
#ifndef BNY_TOPO_BINDING_H
#define BNY_TOPO_BINDING_H

#include "topo/model/model.h"

typedef struct bny_topo_binding {
  /* The system's numbers; of a cache its own number or its first processor's. -1: processors of several, or unknown. */
  int32_t cache, numa, package;
  int32_t npackages; /* 0 unknown */
  char source[96];   /* "hwloc", "sysfs", and what is missing */
} bny_topo_binding;

/* `sysfs` NULL: "/sys"; hwloc is not asked for other values. */
void bny_topo_binding_find(const char *sysfs, bny_topo_binding *binding);

/* Returns the variable that selects another machine for hwloc; NULL if there is none. */
const char *bny_topo_hwloc_variable(void);

/* hwloc_binding.c. Returns false if hwloc is not built in or fails. */
bool bny_topo_binding_hwloc(const unsigned char *cpus, size_t bytes, bny_topo_binding *binding);

#endif
