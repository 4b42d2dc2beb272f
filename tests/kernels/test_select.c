/* SPDX-License-Identifier: Apache-2.0
 * The k best of many scores, by each table of kernels, against a sort. */
#include "select.h"

#include <math.h>

#include "tests/support/generator.h"
#include "tests/support/scores.h"
#include "tests/support/suite.h"

enum { SCORES = 1 << 17, SHAPES = 30 };

static void check_top(const bny_kernels *kernels, const float *scores, int32_t n, int32_t k) {
  score_pair *sorted = malloc((size_t)(n + 1) * sizeof *sorted);
  float *best = malloc((size_t)k * sizeof *best);
  int32_t *positions = malloc((size_t)k * sizeof *positions);
  for (int32_t i = 0; i < n; i++) sorted[i] = (score_pair){scores[i], i};
  qsort(sorted, (size_t)n, sizeof *sorted, score_pairs_compare);
  bny_select_top(kernels, scores, n, k, best, positions);
  for (int32_t i = 0; i < k; i++) {
    score_pair expected = i < n ? sorted[i] : (score_pair){-INFINITY, -1};
    ck_assert_msg(positions[i] == expected.index && scores_equal(best[i], expected.score),
                  "%s: number %d of %d among %d is %g at %d, not %g at %d", kernels->name, i, k, n, (double)best[i],
                  positions[i], (double)expected.score, (int)expected.index);
  }
  free(sorted);
  free(best);
  free(positions);
}

TEST_LOOP(best_of_many, SHAPES) {
  static const int32_t numbers[] = {0, 1, 2, 100, 1000, 16383, 16384, 40001, SCORES};
  world_random random = random_seed() * 911 + (uint64_t)_i;
  float *scores = malloc(SCORES * sizeof *scores);
  score_content content = (score_content)(_i % SCORE_CONTENTS);
  for (int32_t i = 0; i < SCORES; i++) scores[i] = score_draw(&random, content, i);
  for (int i = 0; bny_kernels_table[i]; i++) {
    if (!bny_kernels_table[i]->supported()) continue;
    int32_t n = numbers[random_below(&random, 9)],
            k = random_one_in(&random, 3) ? 2048 : 1 + random_below(&random, 400);
    check_top(bny_kernels_table[i], scores, n, k);
    check_top(bny_kernels_table[i], scores, n, random_one_in(&random, 5) ? BNY_SELECT_MOST : 1);
  }
  free(scores);
}

int main(void) { return suite_main(suite_of("select_kernels", 60)); }
