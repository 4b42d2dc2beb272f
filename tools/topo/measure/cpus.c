/* SPDX-License-Identifier: Apache-2.0
 * Lists the CPUs that this process may use, what they share, and the pairs to measure. */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "base/sysfs.h"
#include "tools/topo/measure/measure.h"
#include "topo/probe/binding.h"

const char *topo_near_name(topo_near near) {
  static const char *const names[TOPO_NEARS] = {"core", "l2", "l3", "numa", "package", "system"};
  return (unsigned)near < TOPO_NEARS ? names[near] : "?";
}

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

typedef struct choice {
  int32_t *used;              /* chosen pairs by rank */
  int32_t *lists[TOPO_NEARS]; /* a, b of remaining pairs */
  int64_t counts[TOPO_NEARS];
  uint64_t random;
} choice;

static topo_measured_pair pair_of(const topo_measured_rank *ranks, int32_t a, int32_t b) {
  return (topo_measured_pair){.a = a, .b = b, .near = topo_near_between(&ranks[a].place, &ranks[b].place)};
}

/* Takes the pair with the least used ranks from a random sample. */
static topo_measured_pair take_one(choice *c, const topo_measured_rank *ranks, topo_near near) {
  int64_t best = 0;
  int32_t best_used = INT32_MAX, *list = c->lists[near];
  for (int attempt = 0; attempt < 16; attempt++) {
    c->random = bny_hash_of(c->random);
    int64_t i = (int64_t)(c->random % (uint64_t)c->counts[near]);
    int32_t used = c->used[list[2 * i]] + c->used[list[2 * i + 1]];
    if (used < best_used) {
      best_used = used;
      best = i;
    }
  }
  topo_measured_pair pair = pair_of(ranks, list[2 * best], list[2 * best + 1]);
  c->used[pair.a]++;
  c->used[pair.b]++;
  int64_t last = --c->counts[near];
  list[2 * best] = list[2 * last];
  list[2 * best + 1] = list[2 * last + 1];
  return pair;
}

static void lists_fill(choice *c, const topo_measured_rank *ranks, int32_t nranks) {
  for (int32_t a = 0; a < nranks; a++)
    for (int32_t b = a + 1; b < nranks; b++) c->counts[pair_of(ranks, a, b).near]++;
  for (int near = 0; near < TOPO_NEARS; near++) {
    c->lists[near] = tool_new((size_t)c->counts[near] * 2, sizeof *c->lists[near]);
    c->counts[near] = 0;
  }
  for (int32_t a = 0; a < nranks; a++) {
    for (int32_t b = a + 1; b < nranks; b++) {
      topo_near near = pair_of(ranks, a, b).near;
      int64_t i = c->counts[near]++;
      c->lists[near][2 * i] = a;
      c->lists[near][2 * i + 1] = b;
    }
  }
}

topo_measured_pair *topo_pairs_choose(const topo_measured_rank *ranks, int32_t nranks, int32_t most, int32_t *npairs) {
  choice c = {.used = tool_new((size_t)nranks, sizeof *c.used), .random = UINT64_C(0x62616e79616e)};
  int64_t all = (int64_t)nranks * (nranks - 1) / 2;
  int32_t count = all < most ? (int32_t)all : most;
  topo_measured_pair *chosen = tool_new((size_t)count, sizeof *chosen);
  lists_fill(&c, ranks, nranks);
  for (*npairs = 0; *npairs < count;) {
    for (int near = 0; near < TOPO_NEARS && *npairs < count; near++)
      if (c.counts[near] > 0) chosen[(*npairs)++] = take_one(&c, ranks, (topo_near)near);
  }
  return chosen;
}
