/* SPDX-License-Identifier: Apache-2.0
 * Measures the chosen pairs in turns, and evaluates the results. */
#include "tools/topo/measure/measure.h"

#include <math.h>
#include <string.h>

/* Blocks of one kind and metric. `values` has undisturbed blocks from the front, and disturbed ones from the back. */
typedef struct blocks {
  double *values;
  int32_t nclean, ndisturbed, capacity;
} blocks;

static void block_add(blocks *all, double value, bool disturbed) {
  all->values[disturbed ? all->capacity - ++all->ndisturbed : all->nclean++] = value;
}

/* Returns the median over undisturbed blocks, or over all if there are none. */
static double block_median(const blocks *all) {
  if (all->nclean > 0) return tool_percentile(all->values, (size_t)all->nclean, 50);
  return tool_percentile(all->values + all->capacity - all->ndisturbed, (size_t)all->ndisturbed, 50);
}

static bool measure_pair(const topo_place *places, const topo_pair *pair, bool a_leads, blocks kind[TOPO_METRICS],
                         tool_error *error) {
  topo_side sides[2] = {{.cpu = places[a_leads ? pair->a : pair->b].cpu},
                        {.cpu = places[a_leads ? pair->b : pair->a].cpu}};
  if (!topo_pair_measure(sides, error)) return false;
  for (int m = 0; m < TOPO_METRICS; m++)
    for (int i = 0; i < 2; i++)
      if (i == 0 || m >= TOPO_TAKE)
        block_add(&kind[m], sides[i].value[m], sides[0].disturbed[m] || sides[1].disturbed[m]);
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

static void kind_fill(topo_measured_kind *kind, const blocks blocks[TOPO_METRICS]) {
  double line_ns = block_median(&blocks[TOPO_LINE]);
  const double bytes[] = {64, TOPO_MESSAGE_BYTES, TOPO_BUFFER_BYTES};
  const double times[] = {line_ns, line_ns + block_median(&blocks[TOPO_TAKE]),
                          line_ns + TOPO_BUFFER_BYTES / block_median(&blocks[TOPO_COPY])};
  kind->more_ns = block_median(&blocks[TOPO_MORE]);
  topo_measure_fit(bytes, times, 3, &kind->alpha_ns, &kind->beta_ns_per_byte);
}

/* The first sweep may take longer than asked for, so that each kind has figures. */
static bool measure_all(const topo_place *places, const topo_pair *pairs, int32_t npairs, double seconds,
                        topo_measured *measured, tool_error *error) {
  enum { FIRST_SWEEP = 3 };
  int64_t begin_ns = tool_now_ns();
  blocks all[TOPO_NEARS][TOPO_METRICS] = {{{NULL}}};
  for (int near = 0; near < TOPO_NEARS; near++) {
    for (int m = 0; m < TOPO_METRICS; m++) {
      all[near][m].capacity = 2 * TOPO_PAIRS_OF_KIND * TOPO_SWEEPS_MAX;
      all[near][m].values = tool_new((size_t)all[near][m].capacity, sizeof *all[near][m].values);
    }
  }
  bool in_time = true;
  for (int32_t sweep = 0; in_time && sweep < TOPO_SWEEPS_MAX; sweep++) {
    for (int32_t p = 0; in_time && p < npairs; p++) {
      if (!measure_pair(places, &pairs[p], sweep % 2 == 0, all[pairs[p].near], error)) return false;
      measured->kinds[pairs[p].near].npairs += sweep == 0;
      in_time = (double)(tool_now_ns() - begin_ns) / 1e9 < seconds * (sweep == 0 ? FIRST_SWEEP : 1);
    }
    measured->nsweeps = sweep + 1;
  }
  for (int near = 0; near < TOPO_NEARS; near++)
    if (measured->kinds[near].npairs > 0) kind_fill(&measured->kinds[near], all[near]);
  return true;
}

bool topo_measure(const char *sysfs, double seconds, topo_measured *measured, tool_error *error) {
  topo_place *places;
  int32_t nplaces, npairs;
  *measured = (topo_measured){.nsweeps = 0};
  if (!topo_places(sysfs, &places, &nplaces, error)) return false;
  if (nplaces < 2) return tool_error_set(error, "costs of links between ranks cannot be measured on 1 CPU: allow two");
  const topo_pair *pairs = topo_pairs_choose(places, nplaces, &npairs);
  return measure_all(places, pairs, npairs, seconds, measured, error);
}
