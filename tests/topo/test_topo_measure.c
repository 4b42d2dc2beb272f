/* SPDX-License-Identifier: Apache-2.0
 * banyan-topo --save-costs: pairs of CPUs, short real measurements, and none with one CPU. */
#include <sched.h>

#include "tools/topo/measure/measure.h"
#include "tests/topo/topo_sysfs.h"
#include "tests/topo/topo_util.h"

TEST(lines_are_fitted) {
  double alpha = -1, beta = -1, bytes[] = {64, 16384, 1048576}, times[3];
  for (int i = 0; i < 3; i++) times[i] = 250 + 0.04 * bytes[i];
  ck_assert(topo_measure_fit(bytes, times, 3, &alpha, &beta));
  ck_assert_double_eq_tol(alpha, 250, 1e-6);
  ck_assert_double_eq_tol(beta, 0.04, 1e-9);
  times[1] = 0;
  ck_assert(!topo_measure_fit(bytes, times, 3, &alpha, &beta));
  times[1] = INFINITY;
  ck_assert(!topo_measure_fit(bytes, times, 3, &alpha, &beta));
  times[1] = 1000;
  ck_assert(!topo_measure_fit(bytes, times, 1, &alpha, &beta));
}

/* ---- pairs and localities ---------------------------------------------------------------------------------------- */

TEST(each_kind_has_pairs) {
  enum { RANKS = 256 };
  topo_place *places = tool_new(RANKS, sizeof *places);
  for (int32_t r = 0; r < RANKS; r++) {
    /* threads: 2 per core, 8 per third-level cache, 32 per NUMA node, 128 per package */
    places[r] =
        (topo_place){.cpu = r, .core = r / 2 * 2, .l2 = r / 2 * 2, .l3 = r / 8 * 8, .numa = r / 32, .package = r / 128};
  }
  int32_t npairs, counts[TOPO_NEARS] = {0};
  topo_pair *pairs = topo_pairs_choose(places, RANKS, &npairs);
  for (int32_t p = 0; p < npairs; p++) {
    ck_assert(pairs[p].a < pairs[p].b && pairs[p].near == topo_near_between(&places[pairs[p].a], &places[pairs[p].b]));
    counts[pairs[p].near]++;
    for (int32_t q = 0; q < p; q++) ck_assert(pairs[p].a != pairs[q].a || pairs[p].b != pairs[q].b);
  }
  for (int near = 0; near < TOPO_NEARS; near++) /* pairs of one second-level cache all share a core */
    ck_assert_int_eq(counts[near], near == TOPO_NEAR_L2 ? 0 : TOPO_PAIRS_OF_KIND);
  ck_assert(pairs[0].near == TOPO_NEAR_CORE && pairs[4].near == TOPO_NEAR_SYSTEM);
  pairs = topo_pairs_choose(places, 3, &npairs);
  ck_assert_int_eq(npairs, 3);
}

/* Makes a /sys in which each CPU has its own package and NUMA node. */
static tree make_packages(void) {
  tree t = tree_new();
  topo_place *places;
  int32_t count;
  tool_error error;
  ck_assert(topo_places(NULL, &places, &count, &error));
  for (int32_t i = 0; i < count; i++) {
    char cpu[64], text[32];
    snprintf(cpu, sizeof cpu, "devices/system/cpu/cpu%d", places[i].cpu);
    snprintf(text, sizeof text, "%d-%d", 2 * i, 2 * i + 1);
    tree_file(&t, text, "%s/topology/thread_siblings_list", cpu);
    tree_file(&t, text, "%s/topology/physical_package_id", cpu);
    tree_file(&t, "1", "%s/cache/index0/level", cpu);
    tree_file(&t, "3", "%s/cache/index1/level", cpu);
    tree_file(&t, text, "%s/cache/index1/shared_cpu_list", cpu);
    tree_file(&t, "0", "%s/node%d/cpulist", cpu, 3 * i);
  }
  return t;
}

TEST(places_are_read) {
  topo_place *places;
  int32_t count;
  tool_error error;
  tree t = make_packages();
  ck_assert(topo_places(t.root, &places, &count, &error));
  for (int32_t i = 0; i < count; i++) {
    const topo_place *place = &places[i];
    ck_assert(place->core == 2 * i && place->l2 == -1 && place->l3 == 2 * i && place->package == 2 * i &&
              place->numa == 3 * i);
    ck_assert_int_eq(topo_near_between(place, &places[0]), i == 0 ? TOPO_NEAR_CORE : TOPO_NEAR_SYSTEM);
  }
  ck_assert(topo_places("/nonexistent", &places, &count, &error)); /* without /sys all CPUs are in one machine */
  ck_assert(places[0].core == -1 && topo_near_between(&places[0], &places[count - 1]) == TOPO_NEAR_NUMA);
}

/* ---- real measurements ------------------------------------------------------------------------------------------ */

static int32_t cpus_allowed(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

TEST(pairs_are_measured) {
  if (cpus_allowed() < 2) return;
  tree t = make_packages();
  topo_measured measured;
  tool_error error = {.text = ""};
  int64_t begin = tool_now_ns();
  ck_assert_msg(topo_measure(t.root, 0.4, &measured, &error), "%s", error.text);
  double seconds = (double)(tool_now_ns() - begin) / 1e9;
  ck_assert_msg(seconds < 10, "%g s", seconds);
  const topo_measured_kind *kind = &measured.kinds[TOPO_NEAR_SYSTEM];
  ck_assert(measured.nsweeps >= 1 && kind->npairs >= 1 && measured.kinds[TOPO_NEAR_NUMA].npairs == 0);
  /* The copy ran, because no core copies at 2000 GB/s. */
  ck_assert_msg(kind->beta_ns_per_byte > 1 / 2000.0 && kind->beta_ns_per_byte < 1000, "%g", kind->beta_ns_per_byte);
}

TEST(one_cpu_has_no_pairs) {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &set) && kept++ > 0) CPU_CLR(cpu, &set);
  ck_assert_int_eq(sched_setaffinity(0, sizeof set, &set), 0);
  topo_measured measured;
  tool_error error = {.text = ""};
  ck_assert(!topo_measure(NULL, 0.1, &measured, &error));
  ck_assert_ptr_nonnull(strstr(error.text, "cannot be measured on 1 CPU"));
}

TEST(a_cpu_that_cannot_be_had_is_named) {
  topo_side sides[2] = {{.cpu = 0}, {.cpu = 1 << 14}};
  tool_error error = {.text = ""};
  ck_assert(!topo_pair_measure(sides, &error));
  ck_assert_msg(strstr(error.text, "cannot run on CPU 16384") != NULL, "%s", error.text);
}

int main(void) { return suite_main(suite_with("topo_measure", 30, NULL, drop_kept)); }
