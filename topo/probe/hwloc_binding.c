/* SPDX-License-Identifier: Apache-2.0
 * Finds a binding with hwloc. It loads only caches, packages and NUMA nodes, which takes about 4 ms; with devices it
 * takes tens of milliseconds. */
#include <stdio.h>
#include <stdlib.h>

#include "topo/probe/binding.h"

const char *bny_topo_hwloc_variable(void) {
  static const char *const variables[] = {"HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT", "HWLOC_CPUID_PATH"};
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
    const char *value = getenv(variables[i]);
    if (value && *value) return variables[i];
  }
  return NULL;
}

#ifdef HAVE_HWLOC
#include <hwloc.h>

static hwloc_topology_t load(void) {
  hwloc_topology_t machine;
  if (hwloc_topology_init(&machine) != 0) return NULL;
  bool good = hwloc_topology_set_all_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_NONE) == 0 &&
              hwloc_topology_set_type_filter(machine, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL) == 0 &&
              hwloc_topology_set_cache_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_ALL) == 0 &&
              hwloc_topology_load(machine) == 0;
  if (good) return machine;
  hwloc_topology_destroy(machine);
  return NULL;
}

/* Returns the object of this type that contains all of these processors; NULL if there is none. */
static hwloc_obj_t object_with(hwloc_topology_t machine, hwloc_obj_type_t type, hwloc_const_bitmap_t cpus) {
  hwloc_obj_t object = NULL;
  while ((object = hwloc_get_next_obj_by_type(machine, type, object)) != NULL)
    if (object->cpuset && hwloc_bitmap_isincluded(cpus, object->cpuset)) return object;
  return NULL;
}

static hwloc_obj_type_t last_cache(hwloc_topology_t machine) {
  static const hwloc_obj_type_t types[] = {HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE,
                                           HWLOC_OBJ_L1CACHE};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (hwloc_get_nbobjs_by_type(machine, types[i]) > 0) return types[i];
  return HWLOC_OBJ_L1CACHE;
}

static void place(hwloc_topology_t machine, hwloc_const_bitmap_t cpus, bny_topo_binding *binding) {
  hwloc_obj_t cache = object_with(machine, last_cache(machine), cpus);
  hwloc_obj_t numa = object_with(machine, HWLOC_OBJ_NUMANODE, cpus);
  hwloc_obj_t package = object_with(machine, HWLOC_OBJ_PACKAGE, cpus);
  binding->cache = cache ? (int32_t)cache->logical_index : -1;
  binding->numa = numa ? (int32_t)numa->os_index : -1;
  binding->package = package ? (int32_t)package->logical_index : -1;
  binding->npackages = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PACKAGE);
}

bool bny_topo_binding_hwloc(const unsigned char *bits, size_t bytes, bny_topo_binding *binding) {
  hwloc_topology_t machine = load();
  if (!machine) return false;
  hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
  bool good = cpus != NULL;
  for (size_t cpu = 0; good && cpu < 8 * bytes; cpu++)
    if (bits[cpu / 8] >> cpu % 8 & 1) good = hwloc_bitmap_set(cpus, (unsigned)cpu) == 0;
  good = good && hwloc_bitmap_and(cpus, cpus, hwloc_topology_get_topology_cpuset(machine)) == 0;
  bool known = good && !hwloc_bitmap_iszero(cpus);
  if (known) place(machine, cpus, binding);
  const char *variable = hwloc_topology_is_thissystem(machine) ? NULL : bny_topo_hwloc_variable();
  snprintf(binding->source, sizeof binding->source, "hwloc%s%s%s", variable ? " by " : "", variable ? variable : "",
           known ? "" : ", which does not know the processors that the rank is bound to");
  hwloc_bitmap_free(cpus);
  hwloc_topology_destroy(machine);
  return good;
}

#else

bool bny_topo_binding_hwloc(const unsigned char *cpus, size_t bytes, bny_topo_binding *binding) {
  (void)cpus, (void)bytes, (void)binding;
  return false;
}

#endif
