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

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

TEST(each_class_has_pairs) {
  enum { CPUS = 256 };
  static topo_place places[CPUS];
  topo_pair pairs[TOPO_CLASSES][TOPO_PAIRS];
  int32_t npairs[TOPO_CLASSES];
  for (int32_t c = 0; c < CPUS; c++) places[c] = (topo_place){.cpu = c, .cache = c / 8 * 8, .package = c / 128};
  topo_pairs_choose(places, CPUS, pairs, npairs);
  for (int class = 0; class < TOPO_CLASSES; class ++) {
    ck_assert_int_eq(npairs[class], TOPO_PAIRS);
    for (int p = 0; p < TOPO_PAIRS; p++) {
      const int32_t a = pairs[class][p].a.cpu, b = pairs[class][p].b.cpu;
      ck_assert_int_lt(a, b);
      ck_assert_int_eq(class, a / 8 == b / 8       ? BNY_LINK_CACHE
                              : a / 128 == b / 128 ? BNY_LINK_MEMORY
                                                   : BNY_LINK_SOCKETS);
      for (int q = 0; q < p; q++) ck_assert(a != pairs[class][q].a.cpu || b != pairs[class][q].b.cpu);
    }
  }
  topo_pairs_choose(places, 3, pairs, npairs);
  ck_assert(npairs[BNY_LINK_CACHE] == 3 && npairs[BNY_LINK_MEMORY] == 0 && npairs[BNY_LINK_SOCKETS] == 0);
  for (int32_t c = 0; c < 2; c++) places[c] = (topo_place){.cpu = c, .cache = -1, .package = -1};
  topo_pairs_choose(places, 2, pairs, npairs); /* one machine of which nothing is known */
  ck_assert(npairs[BNY_LINK_CACHE] == 0 && npairs[BNY_LINK_MEMORY] == 1);
}

/* Makes a /sys in which each CPU has its own package. */
static tree make_packages(void) {
  tree t = tree_new();
  topo_place places[CPU_SETSIZE];
  const int32_t count = topo_places(NULL, places, CPU_SETSIZE);
  for (int32_t i = 0; i < count; i++) {
    char cpu[64], text[32];
    snprintf(cpu, sizeof cpu, "devices/system/cpu/cpu%d", places[i].cpu);
    snprintf(text, sizeof text, "%d", i);
    tree_file(&t, text, "%s/topology/physical_package_id", cpu);
    snprintf(text, sizeof text, "%d-%d", 2 * i, 2 * i + 1);
    tree_file(&t, "1", "%s/cache/index0/level", cpu);
    tree_file(&t, "3", "%s/cache/index1/level", cpu);
    tree_file(&t, text, "%s/cache/index1/shared_cpu_list", cpu);
  }
  return t;
}

TEST(places_are_read) {
  topo_place places[CPU_SETSIZE];
  tree t = make_packages();
  int32_t count = topo_places(t.root, places, CPU_SETSIZE);
  ck_assert_int_ge(count, 1);
  for (int32_t i = 0; i < count; i++) ck_assert(places[i].cache == 2 * i && places[i].package == i);
  ck_assert_int_eq(topo_places("/nonexistent", places, CPU_SETSIZE), count);
  ck_assert(places[0].cache == -1 && places[0].package == -1);
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
  const topo_measured_class *sockets = &measured.classes[BNY_LINK_SOCKETS];
  ck_assert(measured.nsweeps >= 1 && sockets->npairs >= 1 && measured.classes[BNY_LINK_MEMORY].npairs == 0);
  /* The copy ran, because no core copies at 2000 GB/s. */
  const double beta = sockets->beta_ns_per_byte;
  ck_assert_msg(beta > 1 / 2000.0 && beta < 1000, "%g", beta);
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
  double times[TOPO_METRICS];
  bool disturbed;
  tool_error error = {.text = ""};
  ck_assert(!topo_pair_measure(0, 1 << 14, times, &disturbed, &error));
  ck_assert_msg(strstr(error.text, "cannot run on CPU 16384") != NULL, "%s", error.text);
}

int main(void) { return suite_main(suite_with("topo_measure", 30, NULL, drop_kept)); }
