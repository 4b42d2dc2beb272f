/* SPDX-License-Identifier: Apache-2.0
 * Lists the CPUs that this process may use, what they share, and the pairs to measure. */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "base/sysfs.h"
#include "tools/topo/measure/measure.h"
#include "topo/probe/binding.h"

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Returns the first number in a file of a CPU, which is the lowest CPU of a list; -1 if there is none. */
static int32_t first_number(const char *sysfs, int32_t cpu, const char *file) {
  return (int32_t)bny_sysfs_number("%s/devices/system/cpu/cpu%d/%s", sysfs, cpu, file);
}

static topo_place place_of(const char *sysfs, int32_t cpu) {
  topo_place place = {.cpu = cpu,
                      .core = first_number(sysfs, cpu, "topology/thread_siblings_list"),
                      .l2 = bny_topo_cpu_cache(sysfs, cpu, 2),
                      .l3 = bny_topo_cpu_cache(sysfs, cpu, 3),
                      .numa = bny_topo_cpu_numa(sysfs, cpu),
                      .package = first_number(sysfs, cpu, "topology/physical_package_id")};
  return place;
}

/* Returns a set of dynamic size, because a machine may have more CPUs than a cpu_set_t holds. */
static cpu_set_t *allowed_cpus(int32_t *ncpus, size_t *bytes) {
  for (int32_t count = CPU_SETSIZE; count <= 1 << 20; count *= 2) {
    cpu_set_t *set = CPU_ALLOC(count);
    if (set == NULL) return NULL;
    *bytes = CPU_ALLOC_SIZE(count);
    *ncpus = count;
    if (sched_getaffinity(0, *bytes, set) == 0) return set;
    CPU_FREE(set);
    if (errno != EINVAL) return NULL;
  }
  return NULL;
}

bool topo_places(const char *sysfs, topo_place **places, int32_t *nplaces, tool_error *error) {
  int32_t ncpus;
  size_t bytes;
  cpu_set_t *set = allowed_cpus(&ncpus, &bytes);
  if (set == NULL) return tool_error_set(error, "the CPUs that may be used cannot be found out: %s", strerror(errno));
  int32_t count = CPU_COUNT_S(bytes, set);
  topo_place *found = tool_new((size_t)count, sizeof *found);
  int32_t n = 0;
  for (int32_t cpu = 0; cpu < ncpus && n < count; cpu++)
    if (CPU_ISSET_S(cpu, bytes, set)) found[n++] = place_of(sysfs == NULL ? "/sys" : sysfs, cpu);
  CPU_FREE(set);
  *places = found;
  *nplaces = n;
  return true;
}

static bool share(int32_t a, int32_t b) { return a >= 0 && a == b; }

topo_near topo_near_between(const topo_place *a, const topo_place *b) {
  if (share(a->core, b->core)) return TOPO_NEAR_CORE;
  if (share(a->l2, b->l2)) return TOPO_NEAR_L2;
  if (share(a->l3, b->l3)) return TOPO_NEAR_L3;
  /* If packages or NUMA nodes are unknown, the machine counts as one of each. */
  bool same_package = a->package == b->package;
  if (same_package && a->numa == b->numa) return TOPO_NEAR_NUMA;
  return same_package ? TOPO_NEAR_PACKAGE : TOPO_NEAR_SYSTEM;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

topo_pair *topo_pairs_choose(const topo_place *places, int32_t nplaces, int32_t *npairs) {
  topo_pair(*lists)[TOPO_PAIRS_OF_KIND] = tool_new(TOPO_NEARS, sizeof *lists);
  topo_pair *chosen = tool_new((size_t)TOPO_NEARS * TOPO_PAIRS_OF_KIND, sizeof *chosen);
  uint64_t counts[TOPO_NEARS] = {0}, random = UINT64_C(0x62616e79616e);
  for (int32_t a = 0; a < nplaces; a++) {
    for (int32_t b = a + 1; b < nplaces; b++) {
      /* The n-th pair of a kind replaces a chosen one with probability TOPO_PAIRS_OF_KIND / n. */
      topo_near near = topo_near_between(&places[a], &places[b]);
      uint64_t at = counts[near]++;
      if (at >= TOPO_PAIRS_OF_KIND) at = (random = bny_hash_of(random)) % counts[near];
      if (at < TOPO_PAIRS_OF_KIND) lists[near][at] = (topo_pair){.a = a, .b = b, .near = near};
    }
  }
  *npairs = 0;
  for (int i = 0; i < TOPO_PAIRS_OF_KIND; i++) {
    for (int near = 0; near < TOPO_NEARS; near++)
      if ((uint64_t)i < counts[near]) chosen[(*npairs)++] = lists[near][i];
  }
  return chosen;
}
