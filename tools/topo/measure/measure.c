/* SPDX-License-Identifier: Apache-2.0
 * Chooses pairs of CPUs, measures them in turns, and evaluates the results. */
#include "tools/topo/measure/measure.h"

#include <math.h>
#include <sched.h>

#include "topo/probe/binding.h"

enum { SWEEPS_MAX = 64, CPUS_MAX = 8 * CPU_SETSIZE };

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

int32_t topo_places(const char *sysfs, topo_place *places, int32_t max) {
  cpu_set_t set[CPUS_MAX / CPU_SETSIZE]; /* one cpu_set_t is too small for some machines */
  int32_t count = 0;
  if (sched_getaffinity(0, sizeof set, set) != 0) return 0;
  sysfs = sysfs == NULL ? "/sys" : sysfs;
  for (int32_t cpu = 0; cpu < CPUS_MAX && count < max; cpu++)
    if (CPU_ISSET_S(cpu, sizeof set, set))
      places[count++] = (topo_place){
          .cpu = cpu, .cache = bny_topo_cpu_cache(sysfs, cpu), .package = bny_topo_cpu_package(sysfs, cpu)};
  return count;
}

/* If packages are unknown, the machine counts as one. */
static bny_link_class class_of(const topo_place *a, const topo_place *b) {
  if (a->cache >= 0 && a->cache == b->cache) return BNY_LINK_CACHE;
  return a->package == b->package ? BNY_LINK_MEMORY : BNY_LINK_SOCKETS;
}

void topo_pairs_choose(const topo_place *places, int32_t nplaces, topo_pair pairs[TOPO_CLASSES][TOPO_PAIRS],
                       int32_t npairs[TOPO_CLASSES]) {
  uint64_t seen[TOPO_CLASSES] = {0}, random = UINT64_C(0x62616e79616e);
  for (int32_t a = 0; a < nplaces; a++) {
    for (int32_t b = a + 1; b < nplaces; b++) {
      /* The n-th pair of a class replaces a chosen one with probability TOPO_PAIRS / n. */
      const bny_link_class class = class_of(&places[a], &places[b]);
      uint64_t at = seen[class]++;
      if (at >= TOPO_PAIRS) at = (random = bny_hash_of(random)) % seen[class];
      if (at < TOPO_PAIRS) pairs[class][at] = (topo_pair){places[a], places[b]};
    }
  }
  for (int class = 0; class < TOPO_CLASSES; class ++)
    npairs[class] = seen[class] < TOPO_PAIRS ? (int32_t)seen[class] : TOPO_PAIRS;
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* Samples of a class. Disturbed ones count only as long as there are no others. */
typedef struct samples {
  double values[TOPO_METRICS][TOPO_PAIRS * SWEEPS_MAX];
  int32_t count;
  bool undisturbed;
} samples;

static bool measure_pair(const topo_pair *pair, samples *all, tool_error *error) {
  double times[TOPO_METRICS];
  bool disturbed;
  if (!topo_pair_measure(pair->a.cpu, pair->b.cpu, times, &disturbed, error)) return false;
  if (disturbed && all->undisturbed) return true;
  if (!disturbed && !all->undisturbed) all->count = 0;
  all->undisturbed = !disturbed;
  for (int m = 0; m < TOPO_METRICS; m++) all->values[m][all->count] = times[m];
  all->count++;
  return true;
}

/* Minimises the sum of ((alpha + bytes beta - time) / time)^2: the normal equations of a line with w = 1 / time^2. */
bool topo_measure_fit(const double *bytes, const double *times, int32_t count, double *alpha, double *beta) {
  double s = 0, sx = 0, sxx = 0, sy = 0, sxy = 0;
  for (int32_t i = 0; i < count; i++) {
    if (!isfinite(times[i]) || times[i] <= 0) return false;
    double weight = 1 / (times[i] * times[i]);
    s += weight;
    sx += weight * bytes[i];
    sxx += weight * bytes[i] * bytes[i];
    sy += weight * times[i];
    sxy += weight * bytes[i] * times[i];
  }
  double determinant = s * sxx - sx * sx;
  if (!(determinant > 0)) return false;
  *beta = (s * sxy - sx * sy) / determinant;
  *alpha = (sy - *beta * sx) / s;
  return true;
}

static void evaluate(samples *all, topo_measured_class *result) {
  double medians[TOPO_METRICS];
  for (int m = 0; m < TOPO_METRICS; m++) medians[m] = tool_percentile(all->values[m], (size_t)all->count, 50);
  const double line_ns = medians[TOPO_LINE], bytes[] = {64, TOPO_MESSAGE_BYTES, TOPO_COPY_BYTES};
  const double times[] = {line_ns, line_ns + medians[TOPO_TAKE], line_ns + medians[TOPO_COPY]};
  result->more_ns = medians[TOPO_MORE];
  topo_measure_fit(bytes, times, 3, &result->alpha_ns, &result->beta_ns_per_byte);
}

/* ---- all classes ------------------------------------------------------------------------------------------------- */

bool topo_measure(const char *sysfs, double seconds, topo_measured *measured, tool_error *error) {
  enum { FIRST_SWEEP = 3 }; /* the first sweep may take longer than asked for, so that each class has figures */
  topo_place *places = tool_new(CPUS_MAX, sizeof *places);
  topo_pair pairs[TOPO_CLASSES][TOPO_PAIRS];
  int32_t npairs[TOPO_CLASSES];
  samples *all = tool_new(TOPO_CLASSES, sizeof *all);
  *measured = (topo_measured){.nsweeps = 0};
  const int32_t nplaces = topo_places(sysfs, places, CPUS_MAX);
  if (nplaces < 2) return tool_error_set(error, "costs of links between ranks cannot be measured on 1 CPU: allow two");
  topo_pairs_choose(places, nplaces, pairs, npairs);
  const int64_t begin_ns = tool_now_ns();
  bool in_time = true;
  for (int32_t sweep = 0; in_time && sweep < SWEEPS_MAX; sweep++) {
    for (int32_t i = 0; in_time && i < TOPO_PAIRS * TOPO_CLASSES; i++) {
      const int class = i % TOPO_CLASSES, p = i / TOPO_CLASSES;
      if (p >= npairs[class]) continue;
      if (!measure_pair(&pairs[class][p], &all[class], error)) return false;
      measured->classes[class].npairs += sweep == 0;
      in_time = (double)(tool_now_ns() - begin_ns) / 1e9 < seconds * (sweep == 0 ? FIRST_SWEEP : 1);
    }
    measured->nsweeps = sweep + 1;
  }
  for (int class = 0; class < TOPO_CLASSES; class ++)
    if (all[class].count > 0) evaluate(&all[class], &measured->classes[class]);
  return true;
}
