/* SPDX-License-Identifier: Apache-2.0
 * Predicts times by the formula of docs/algorithms.md (how one is chosen). Where ranks take turns on a core, the
 * messages of a round are read one rank after another; over a network the sender posts them one by one instead. If the
 * request has levels, the pattern of the algorithm divides rounds and bytes among them. A link then carries a message
 * once for each receiver, so bytes are those that a rank sends, if these are more than it receives. */
#include <math.h>

#include "plan/builder.h"

/* The number of ranks that a group below `level` holds: that of the smallest, which sends most to others; 1 below
 * level 0. */
static double reach(const bny_levels *levels, int32_t level) { return level > 0 ? levels->levels[level - 1].least : 1; }

/* The fraction of rounds (or of bytes) that uses links of `level`. */
static double share_of_rounds(const bny_levels *levels, bny_pattern pattern, int32_t level) {
  bool last = level == levels->nlevels - 1;
  if (pattern == BNY_PATTERN_ALL) return last ? 1 : 0; /* each round waits for the slowest link */
  if (pattern == BNY_PATTERN_RING) return (double)levels->levels[level].neighbours / levels->nranks;
  double all = log2((double)levels->nranks);
  double within = last ? all : log2(reach(levels, level + 1));
  return all > 0 ? (within - log2(reach(levels, level))) / all : last;
}

static double share_of_bytes(const bny_levels *levels, bny_pattern pattern, int32_t level) {
  bool last = level == levels->nlevels - 1;
  double all = levels->nranks, inner = reach(levels, level), outer = last ? all : reach(levels, level + 1);
  switch (pattern) {
  case BNY_PATTERN_ALL: return all > 1 ? (outer - inner) / (all - 1) : last;
  case BNY_PATTERN_DOUBLING: return share_of_rounds(levels, pattern, level);
  /* Half of the bytes is reduced, S (1/inner - 1/outer). The other half is spread, and most of that is far. */
  case BNY_PATTERN_HALVING:
    return all > 1 ? (all / inner - all / outer) / (all - 1) / 2 + (outer - inner) / (all - 1) / 2 : last;
  case BNY_PATTERN_RING: break; /* the rank at the edge of its group sends all its bytes over the slowest link */
  }
  return last ? 1 : 0;
}

void bny_estimate_spread(const bny_request *request, bny_estimate *estimate) {
  estimate->level_bytes[0] = estimate->bytes_sent;
  for (int32_t level = 0; request->levels && level < request->levels->nlevels; level++)
    estimate->level_bytes[level] = estimate->bytes_sent * share_of_bytes(request->levels, estimate->pattern, level);
}

static double larger(double a, double b) { return a > b ? a : b; }

/* The part of an estimate that uses one level's links: fractions of its rounds, bytes and work, and the number of ranks
 * that share a link. */
typedef struct portion {
  double rounds, bytes, work, sharers;
} portion;

static double cost_ns(const bny_link_cost *cost, const bny_estimate *estimate, const portion *portion) {
  double turns = larger(cost->ranks_per_core, 1), switching = turns > 1 ? cost->switch_ns * turns : 0;
  double sent = cost->posted > 0 && estimate->sends > 0 ? estimate->sends : estimate->messages;
  double rounds = estimate->rounds * portion->rounds, later = sent - estimate->rounds;
  double messages = (later > 0 ? later * portion->bytes * turns : 0) + rounds * (turns - 1);
  double byte_ns = larger(cost->beta_ns_per_byte * turns, cost->shared_ns_per_byte * portion->sharers);
  return rounds * (cost->alpha_ns + switching) + messages * bny_link_message_ns(cost) +
         estimate->bytes * portion->bytes * byte_ns +
         estimate->work_bytes * portion->work * cost->gamma_ns_per_byte * turns;
}

double bny_estimate_ns(const bny_request *request, const bny_estimate *estimate) {
  const bny_levels *levels = request->levels;
  if (estimate->ns > 0) return estimate->ns;
  if (!levels) return cost_ns(&request->cost, estimate, &(portion){1, 1, 1, 1});
  bny_estimate busiest = *estimate;
  if (estimate->bytes_sent > estimate->bytes) busiest.bytes = estimate->bytes_sent;
  double ns = 0;
  /* In a ring one rank of an island at a time sends to the next island. Otherwise all of its ranks send. */
  double sharers = estimate->pattern == BNY_PATTERN_RING ? 1 : levels->levels[0].most;
  for (int32_t level = 0; level < levels->nlevels; level++) {
    portion portion = {share_of_rounds(levels, estimate->pattern, level),
                       share_of_bytes(levels, estimate->pattern, level), level == 0, level == 0 ? 1 : sharers};
    ns += cost_ns(&levels->levels[level].link, &busiest, &portion);
  }
  return ns;
}
