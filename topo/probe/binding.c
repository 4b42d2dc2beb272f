/* SPDX-License-Identifier: Apache-2.0
 * Finds the cache, NUMA node and package of the processors that a thread is bound to. */
#include "topo/probe/binding.h"

#include <sched.h>
#include <stdio.h>

#include "topo/probe/util.h"

enum { CPU_BYTES = 1024, CPUS = 8 * CPU_BYTES, INDICES = 16 };

/* Above level 1 a level is unique, because instruction caches exist only there. */
int32_t bny_topo_cpu_cache(const char *sysfs, int32_t cpu) {
  int64_t highest = 0, first = -1;
  for (int index = 0; index < INDICES; index++) {
    int64_t here = bny_sysfs_number("%s/devices/system/cpu/cpu%d/cache/index%d/level", sysfs, cpu, index);
    if (here < 0) break;
    if (here <= highest) continue;
    int64_t shared = bny_sysfs_number("%s/devices/system/cpu/cpu%d/cache/index%d/shared_cpu_list", sysfs, cpu, index);
    if (shared >= 0) highest = here, first = shared;
  }
  return (int32_t)first;
}

/* Sets *numa if a name in the processor's folder is the link to its NUMA node. */
static void visit_node(void *numa, const char *folder, const char *name) {
  int number, end = 0;
  (void)folder;
  if (sscanf(name, "node%d%n", &number, &end) == 1 && name[end] == '\0') *(int32_t *)numa = number;
}

int32_t bny_topo_cpu_numa(const char *sysfs, int32_t cpu) {
  int32_t numa = -1;
  bny_sysfs_each(visit_node, &numa, "%s/devices/system/cpu/cpu%d", sysfs, cpu);
  return numa;
}

int32_t bny_topo_cpu_package(const char *sysfs, int32_t cpu) {
  return (int32_t)bny_topo_probe_number(0, INT32_MAX, -1, "%s/devices/system/cpu/cpu%d/topology/physical_package_id",
                                        sysfs, cpu);
}

static void meet(int32_t *common, int32_t one, bool is_first) { *common = is_first || *common == one ? one : -1; }

/* Package numbers may have gaps, so the largest number only shows whether there are several packages. */
static int32_t packages_of(const char *sysfs) {
  int32_t first = -1;
  for (int cpu = 0; cpu < CPUS; cpu++) {
    int32_t package = bny_topo_cpu_package(sysfs, cpu);
    if (package < 0 && !bny_topo_probe_exists("%s/devices/system/cpu/cpu%d", sysfs, cpu)) break;
    if (package >= 0 && first >= 0 && package != first) return 2;
    if (first < 0) first = package;
  }
  return first < 0 ? 0 : 1;
}

static void look(const char *sysfs, const unsigned char *cpus, bny_topo_binding *binding) {
  bool is_first = true;
  for (int cpu = 0; cpu < CPUS; cpu++) {
    if (!(cpus[cpu / 8] >> cpu % 8 & 1)) continue;
    if (is_first || binding->cache >= 0) meet(&binding->cache, bny_topo_cpu_cache(sysfs, cpu), is_first);
    if (is_first || binding->numa >= 0) meet(&binding->numa, bny_topo_cpu_numa(sysfs, cpu), is_first);
    if (is_first || binding->package >= 0) meet(&binding->package, bny_topo_cpu_package(sysfs, cpu), is_first);
    is_first = false;
    if (binding->cache < 0 && binding->numa < 0 && binding->package < 0) break;
  }
  binding->npackages = packages_of(sysfs);
  bool known = binding->npackages > 0;
  snprintf(binding->source, sizeof binding->source, "sysfs%s",
           known ? "" : ", which does not say where processors are");
}

void bny_topo_binding_find(const char *sysfs, bny_topo_binding *binding) {
  _Alignas(cpu_set_t) unsigned char cpus[CPU_BYTES] = {0};
  *binding = (bny_topo_binding){.cache = -1, .numa = -1, .package = -1};
  if (sched_getaffinity(0, sizeof cpus, (cpu_set_t *)(void *)cpus) != 0) {
    snprintf(binding->source, sizeof binding->source, "nothing: the kernel does not say where the rank is bound");
    return;
  }
  look(sysfs ? sysfs : "/sys", cpus, binding);
}
