/* SPDX-License-Identifier: Apache-2.0
 * Computes expected values and finds slow pairs, from measured values only.
 *
 * A pair is compared with the median of all pairs of the same nearness, if there are enough pairs. A rank that is slow
 * with every other rank would distort that median and appear in many findings. Such ranks are therefore found first,
 * beginning with the slowest. Each is compared with the median of pairs without it, and its pairs are then excluded. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/measure/measure.h"

const double topo_slow_latency = 1.5, topo_slow_bandwidth = 0.67;

enum { RANK_PAIRS = 2, UNSTEADY_BLOCKS = 8 };

static const double slow_against_plan = 2;

/* Smaller differences of latency are ignored, because they have no effect. */
static const double line_matters_ns = 20;

static bool is_time(topo_metric metric) { return metric <= TOPO_TAKE; }

static int directions(topo_metric metric) { return metric <= TOPO_MESSAGE ? 1 : 2; }

static bool usable(const topo_measured_pair *pair) { return pair->nblocks > 0; }

/* For an even count, returns the mean of the middle two, unlike tool_percentile(). */
static double median_of(double *values, size_t count) {
  if (count == 0) return 0;
  double low = tool_percentile(values, count, 50); /* sorts them */
  return count % 2 == 1 ? low : (low + values[count / 2]) / 2;
}

/* Returns the median over a kind's pairs without slow ranks and rank `without`; *count receives the number of pairs. */
static double kind_median(const topo_measured *measured, topo_near near, topo_metric metric, int32_t without,
                          double *values, int32_t *count) {
  size_t n = 0;
  *count = 0;
  for (int32_t p = 0; p < measured->npairs; p++) {
    const topo_measured_pair *pair = &measured->pairs[p];
    if (!usable(pair) || pair->near != near || pair->a == without || pair->b == without ||
        measured->ranks[pair->a].slow || measured->ranks[pair->b].slow)
      continue;
    for (int d = 0; d < directions(metric); d++) values[n++] = pair->value[metric][d];
    ++*count;
  }
  return median_of(values, n);
}

/* Returns the factor by which the slower direction is worse than `expected`. */
static double times_worse(const topo_measured_pair *pair, topo_metric metric, double expected) {
  double worst = 0;
  for (int d = 0; d < directions(metric); d++) {
    double value = pair->value[metric][d];
    double worse = is_time(metric) ? value / expected : expected / value;
    worst = isfinite(worse) && worse > worst ? worse : worst;
  }
  return worst;
}

static bool is_slow(topo_metric metric, double worse, double expected) {
  if (metric == TOPO_TAKE || metric == TOPO_MORE) return false; /* message and line cover them */
  double limit = is_time(metric) ? topo_slow_latency : 1 / topo_slow_bandwidth;
  return worse > limit && (metric != TOPO_LINE || (worse - 1) * expected > line_matters_ns);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

typedef struct rank_verdict {
  topo_metric metric;
  double worse; /* median over its pairs; 0: not slow with all of them */
  int32_t npairs;
} rank_verdict;

/* Judges whether every pair of a rank is slow in this metric, against pairs without it. `values` has room for 4
 * npairs. */
static rank_verdict rank_judge(const topo_measured *measured, int32_t rank, topo_metric metric, double *values) {
  double expected[TOPO_NEARS], *worse = values + (size_t)2 * (size_t)measured->npairs;
  int32_t counts[TOPO_NEARS] = {-1, -1, -1, -1, -1, -1}; /* -1: not computed */
  rank_verdict verdict = {.metric = metric};
  for (int32_t p = 0; p < measured->npairs; p++) {
    const topo_measured_pair *pair = &measured->pairs[p];
    int32_t other = pair->a == rank ? pair->b : pair->a;
    if (!usable(pair) || (pair->a != rank && pair->b != rank) || measured->ranks[other].slow) continue;
    if (counts[pair->near] < 0)
      expected[pair->near] = kind_median(measured, pair->near, metric, rank, values, &counts[pair->near]);
    if (counts[pair->near] < TOPO_JUDGED_PAIRS) continue;
    double here = times_worse(pair, metric, expected[pair->near]);
    if (!is_slow(metric, here, expected[pair->near])) return (rank_verdict){.metric = metric};
    worse[verdict.npairs++] = here;
  }
  verdict.worse = verdict.npairs < RANK_PAIRS ? 0 : median_of(worse, (size_t)verdict.npairs);
  return verdict;
}

static void add_finding(topo_measured *measured, bool warning, int32_t a, int32_t b, double factor, const char *text) {
  measured->findings = tool_more(measured->findings, measured->nfindings, sizeof *measured->findings);
  measured->findings[measured->nfindings++] =
      (topo_measured_finding){.warning = warning, .a = a, .b = b, .factor = factor, .text = text};
}

/* Returns "2.1 times the latency" or "0.48 times the bandwidth with 1 MiB". */
static const char *factor_words(topo_metric metric, double worse) {
  static const char *const words[TOPO_METRICS] = {"the latency",
                                                  "the time of one more signal",
                                                  "the latency with 16 KiB",
                                                  "the time to read 16 KiB",
                                                  "the bandwidth with 1 MiB",
                                                  "the bandwidth with 16 MiB"};
  return tool_format("%.*f times %s", is_time(metric) ? 1 : 2, is_time(metric) ? worse : 1 / worse, words[metric]);
}

/* Marks and reports the worst rank that is slow with every other. Returns false if there is none. */
static bool worst_rank(topo_measured *measured, double *values) {
  rank_verdict worst = {.worse = 0};
  int32_t rank = -1;
  for (int32_t r = 0; r < measured->nranks; r++) {
    for (int m = 0; m < TOPO_METRICS && !measured->ranks[r].slow; m++) {
      rank_verdict verdict = rank_judge(measured, r, (topo_metric)m, values);
      if (verdict.worse > worst.worse) {
        worst = verdict;
        rank = r;
      }
    }
  }
  if (rank < 0) return false;
  measured->ranks[rank].slow = true;
  add_finding(
      measured, true, rank, -1, worst.worse,
      tool_format(
          "CPU %d: %s of other CPUs, with each of the %d that it was measured with, so the cause is on this CPU; "
          "look for a program or interrupts on it (top, /proc/interrupts), a lower clock (cpupower frequency-info)%s",
          measured->ranks[rank].place.cpu, factor_words(worst.metric, worst.worse), worst.npairs,
          measured->virtual_machine ? ", and at the placement of this virtual CPU on the host" : ""));
  return true;
}

static void slow_ranks_find(topo_measured *measured, double *values) {
  /* At most half of the ranks can be slower than the rest. */
  for (int32_t slow = 0; 2 * (slow + 1) < measured->nranks && worst_rank(measured, values); slow++) {
  }
}

/* Judges a rank's copying of its own memory against the median of all ranks. A rank is reported only once. */
static void locals_judge(topo_measured *measured, double *values) {
  for (int large = 0; large < 2; large++) {
    size_t count = 0;
    for (int32_t r = 0; r < measured->nranks; r++) {
      const topo_measured_rank *rank = &measured->ranks[r];
      if (rank->nblocks > 0) values[count++] = large ? rank->large : rank->small;
    }
    double expected = median_of(values, count);
    for (int32_t r = 0; r < measured->nranks && count >= TOPO_JUDGED_PAIRS; r++) {
      topo_measured_rank *rank = &measured->ranks[r];
      double value = large ? rank->large : rank->small;
      if (rank->nblocks < TOPO_JUDGED_BLOCKS || rank->slow || value >= topo_slow_bandwidth * expected) continue;
      rank->slow = true;
      add_finding(
          measured, true, r, -1, expected / value,
          tool_format(
              "CPU %d copies %s of its own at %.3g GB/s, others at %.3g; look for a program on it (top), a lower clock "
              "(cpupower frequency-info), and free memory and fitted channels of its NUMA node (numastat -m, "
              "dmidecode)",
              rank->place.cpu, large ? "16 MiB" : "1 MiB", value, expected));
    }
  }
}

/* ---- kinds and pairs --------------------------------------------------------------------------------------------- */

static void kinds_fill(topo_measured *measured, double *values) {
  for (int near = 0; near < TOPO_NEARS; near++) {
    topo_measured_kind *kind = &measured->kinds[near];
    *kind = (topo_measured_kind){0};
    for (int32_t p = 0; p < measured->npairs; p++)
      kind->npairs += usable(&measured->pairs[p]) && measured->pairs[p].near == (topo_near)near;
    for (int m = 0; m < TOPO_METRICS; m++) {
      int32_t count;
      kind->expected[m] = kind_median(measured, (topo_near)near, (topo_metric)m, -1, values, &count);
      kind->judged = count >= TOPO_JUDGED_PAIRS;
      kind->least[m] = INFINITY;
      for (int32_t p = 0; p < measured->npairs; p++) {
        const topo_measured_pair *pair = &measured->pairs[p];
        for (int d = 0; d < directions((topo_metric)m) && usable(pair) && pair->near == (topo_near)near; d++) {
          kind->least[m] = fmin(kind->least[m], pair->value[m][d]);
          kind->most[m] = fmax(kind->most[m], pair->value[m][d]);
        }
      }
      kind->least[m] = kind->npairs == 0 ? 0 : kind->least[m];
    }
    const double *expected = kind->expected;
    double bytes[] = {64, TOPO_MESSAGE_BYTES, TOPO_SMALL_BYTES};
    double times[] = {expected[TOPO_LINE], expected[TOPO_LINE] + expected[TOPO_TAKE],
                      expected[TOPO_LINE] + TOPO_SMALL_BYTES / expected[TOPO_SMALL]};
    if (kind->npairs > 0) topo_measure_fit(bytes, times, 3, &kind->alpha, &kind->beta);
  }
}

const char *topo_near_words(topo_near near) {
  static const char *const words[TOPO_NEARS] = {
      "of one core",      "that share a second-level cache",    "that share a third-level cache",
      "of one NUMA node", "of one package, between NUMA nodes", "between packages"};
  return words[near];
}

static const char *advice(const topo_measured *measured, const topo_measured_pair *pair, topo_metric metric) {
  if (is_time(metric)) {
    return measured->virtual_machine
               ? "look for programs on either CPU (top), and at the distance of these virtual CPUs on the host"
               : "look for programs on either CPU (top) and at the clock of the caches (cpupower frequency-info)";
  }
  return pair->near >= TOPO_NEAR_PACKAGE
             ? "look at the load on the links between NUMA nodes, and at fitted channels of both (dmidecode -t memory)"
             : "look for programs that use memory of this NUMA node (numastat -m), and at its fitted channels "
               "(dmidecode -t memory)";
}

static void pair_find(topo_measured *measured, int32_t index, topo_metric metric) {
  const topo_measured_pair *pair = &measured->pairs[index];
  double expected = measured->kinds[pair->near].expected[metric], value = pair->value[metric][0];
  if (directions(metric) == 2 && pair->value[metric][1] < value) value = pair->value[metric][1];
  add_finding(measured, true, pair->a, pair->b, pair->worse[metric],
              tool_format("CPU %d and CPU %d: %s of other pairs %s (%.3g %s, expected %.3g); %s",
                          measured->ranks[pair->a].place.cpu, measured->ranks[pair->b].place.cpu,
                          factor_words(metric, pair->worse[metric]), topo_near_words(pair->near),
                          is_time(metric) ? round(value) : value, is_time(metric) ? "ns" : "GB/s",
                          is_time(metric) ? round(expected) : expected, advice(measured, pair, metric)));
}

/* Reports each slow pair once, by its worst metric. */
static void pairs_judge(topo_measured *measured) {
  for (int32_t p = 0; p < measured->npairs; p++) {
    topo_measured_pair *pair = &measured->pairs[p];
    const topo_measured_kind *kind = &measured->kinds[pair->near];
    pair->judged = kind->judged && pair->nblocks > 0;
    pair->slow = false;
    int worst = -1;
    for (int m = 0; m < TOPO_METRICS; m++) {
      pair->worse[m] = pair->judged ? times_worse(pair, (topo_metric)m, kind->expected[m]) : 0;
      if (pair->judged && is_slow((topo_metric)m, pair->worse[m], kind->expected[m])) {
        pair->slow = true;
        worst = worst < 0 || pair->worse[m] > pair->worse[worst] ? m : worst;
      }
    }
    bool named = measured->ranks[pair->a].slow || measured->ranks[pair->b].slow;
    if (pair->slow && !named && pair->nblocks >= TOPO_JUDGED_BLOCKS) pair_find(measured, p, (topo_metric)worst);
  }
}

/* ---- links, and changes ------------------------------------------------------------------------------------------ */

static void links_judge(topo_measured *measured, const bny_topo *topo) {
  for (int32_t l = 0; l < measured->nlinks; l++) {
    const topo_measured_link *link = &measured->links[l];
    double value = fmin(link->value[0], link->value[1]);
    if (link->nblocks == 0 || link->expected <= 0 || value >= topo_slow_bandwidth * link->expected) continue;
    /* A few CPUs may not fill a link, and an assumed speed may be wrong. */
    bool warning = link->nreaders >= 8 && link->expected_source != BNY_TOPO_ASSUMED;
    add_finding(measured, warning, -1, -1, link->expected / value,
                tool_format("%s and %s: %d CPU%s read %.3g GB/s from each other's memory at once, where %.3g %s%s",
                            topo->nodes[link->from].name, topo->nodes[link->to].name, link->nreaders,
                            link->nreaders == 1 ? "" : "s", value, link->expected,
                            link->expected_source == BNY_TOPO_ASSUMED ? "are assumed" : "are expected",
                            link->nreaders < 8 ? "; more CPUs may get more" : ""));
  }
}

double topo_measured_against_plan(const topo_measured *measured, topo_near near) {
  const topo_measured_kind *kind = &measured->kinds[near];
  const topo_cost *planned = &measured->planned[near];
  const double bytes[] = {TOPO_MESSAGE_BYTES, TOPO_SMALL_BYTES};
  double worst = 0;
  for (size_t i = 0; i < 2 && kind->npairs > 0 && kind->beta > 0 && planned->beta_ns_per_byte > 0; i++) {
    double measured_ns = kind->alpha + bytes[i] * kind->beta;
    worst = fmax(worst, measured_ns / (planned->alpha_ns + bytes[i] * planned->beta_ns_per_byte));
  }
  return worst;
}

/* Compares a kind with the plan. The limit is higher if its pairs cannot be compared with each other, because the plan
 * is for machines in general. Otherwise a note reports that the entire kind is slower. */
static void plan_judge(topo_measured *measured) {
  for (int near = 0; near < TOPO_NEARS; near++) {
    const topo_measured_kind *kind = &measured->kinds[near];
    double worse = topo_measured_against_plan(measured, (topo_near)near);
    if (worse <= topo_slow_latency) continue;
    add_finding(
        measured, !kind->judged && worse > slow_against_plan, -1, -1, worse,
        tool_format("pairs %s: %.1f times the time that plans assume (%.0f ns and %.3g GB/s, where they take %.0f ns "
                    "and %.3g GB/s); predicted times are too short by this factor",
                    topo_near_words((topo_near)near), worse, kind->alpha, 1 / kind->beta,
                    measured->planned[near].alpha_ns, 1 / measured->planned[near].beta_ns_per_byte));
  }
}

static void unsteady_find(topo_measured *measured) {
  int32_t count = 0, worst = -1;
  double worst_factor = topo_slow_latency;
  for (int32_t p = 0; p < measured->npairs; p++) {
    const topo_measured_pair *pair = &measured->pairs[p];
    double factor = pair->nblocks < UNSTEADY_BLOCKS ? 0 : pair->line_high / pair->line_low;
    count += factor > topo_slow_latency;
    if (factor > worst_factor) {
      worst_factor = factor;
      worst = p;
    }
  }
  if (worst < 0) return;
  const topo_measured_pair *pair = &measured->pairs[worst];
  add_finding(
      measured, false, pair->a, pair->b, worst_factor,
      tool_format(
          "%d of %d pairs changed while they were measured, CPU %d and CPU %d most: a line took %.0f ns in some "
          "blocks and %.0f ns in others; %s",
          count, measured->npairs, measured->ranks[pair->a].place.cpu, measured->ranks[pair->b].place.cpu,
          pair->line_low, pair->line_high,
          measured->virtual_machine ? "other programs, or the host moves the virtual CPUs between cores"
                                    : "other programs ran, or the clock changed"));
}

/* Reports CPUs that other programs used, because this explains their worst values. */
static void disturbed_find(topo_measured *measured) {
  int32_t worst = -1, count = 0;
  double share = 0.1;
  for (int32_t r = 0; r < measured->nranks; r++) {
    const topo_measured_rank *rank = &measured->ranks[r];
    double here = rank->ntaken == 0 ? 0 : (double)rank->ndisturbed / rank->ntaken;
    count += here > 0.1;
    if (here > share) {
      share = here;
      worst = r;
    }
  }
  if (worst < 0) return;
  add_finding(measured, false, worst, -1, 1 + share,
              tool_format("other programs ran on %d of %d CPUs meanwhile, most on CPU %d, which lost %.0f %% of its "
                          "samples; such samples are left out as long as others remain",
                          count, measured->nranks, measured->ranks[worst].place.cpu, 100 * share));
}

static int compare_findings(const void *a, const void *b) {
  const topo_measured_finding *x = a, *y = b;
  if (x->warning != y->warning) return x->warning ? -1 : 1;
  return (x->factor < y->factor) - (x->factor > y->factor);
}

void topo_measured_judge(topo_measured *measured, const bny_topo *topo) {
  double *values = tool_new((size_t)measured->npairs * 4 + (size_t)measured->nranks, sizeof *values);
  for (int32_t r = 0; r < measured->nranks; r++) measured->ranks[r].slow = false;
  slow_ranks_find(measured, values);
  kinds_fill(measured, values);
  locals_judge(measured, values);
  pairs_judge(measured);
  links_judge(measured, topo);
  plan_judge(measured);
  unsteady_find(measured);
  disturbed_find(measured);
  if (measured->nfindings > 1)
    qsort(measured->findings, (size_t)measured->nfindings, sizeof *measured->findings, compare_findings);
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
