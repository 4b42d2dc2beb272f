/* SPDX-License-Identifier: Apache-2.0
 * Finds the cache, NUMA node and package of the processors that the calling thread is bound to, without devices. It
 * takes less than a millisecond. */
#pragma once

#include "topo/model/model.h"

typedef struct bny_topo_binding {
  /* Numbers of the operating system. A cache has its own number or that of its first processor. -1: the processors span
   * several, or it is unknown. */
  int32_t cache, numa, package;
  int32_t npackages; /* 0 unknown */
  char source[96];   /* "sysfs", and what is missing */
} bny_topo_binding;

/* `sysfs` NULL means "/sys". */
void bny_topo_binding_find(const char *sysfs, bny_topo_binding *binding);

/* Return the last cache of a processor, by the lowest processor that shares it, its NUMA node and its package, as sysfs
 * has them; -1 if unknown. */
int32_t bny_topo_cpu_cache(const char *sysfs, int32_t cpu);
int32_t bny_topo_cpu_numa(const char *sysfs, int32_t cpu);
int32_t bny_topo_cpu_package(const char *sysfs, int32_t cpu);
