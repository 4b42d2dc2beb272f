/* SPDX-License-Identifier: Apache-2.0
 * Finds the cache, NUMA node and package of the processors that the calling thread is bound to, without devices. sysfs
 * takes less than a millisecond and hwloc takes several. hwloc is therefore used only if its variables select a machine
 * (HWLOC_XMLFILE, HWLOC_SYNTHETIC). */
#pragma once

#include "topo/model/model.h"

typedef struct bny_topo_binding {
  /* Numbers of the operating system. A cache has its own number or that of its first processor. -1: the processors span
   * several, or it is unknown. */
  int32_t cache, numa, package;
  int32_t npackages; /* 0 unknown */
  char source[96];   /* "hwloc", "sysfs", and what is missing */
} bny_topo_binding;

/* `sysfs` NULL means "/sys"; with any other value hwloc is not used. */
void bny_topo_binding_find(const char *sysfs, bny_topo_binding *binding);

/* Return the cache of a processor at a level (0: the last), by the lowest processor that shares it, and its NUMA node,
 * as sysfs has them; -1 if unknown. */
int32_t bny_topo_cpu_cache(const char *sysfs, int32_t cpu, int32_t level);
int32_t bny_topo_cpu_numa(const char *sysfs, int32_t cpu);

/* Returns the variable that selects another machine for hwloc; NULL if there is none. */
const char *bny_topo_hwloc_variable(void);

/* hwloc_binding.c. Returns false if hwloc is not built in or fails. */
bool bny_topo_binding_hwloc(const unsigned char *cpus, size_t bytes, bny_topo_binding *binding);
