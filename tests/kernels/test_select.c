/* SPDX-License-Identifier: Apache-2.0
 * The k best of many scores, by each table of kernels, against a sort; and pairs, which all tables make and read
 * alike. */
#include "select.h"

#include <math.h>

#include "tests/support/random.h"
#include "tests/support/scores.h"

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
  EACH_KERNELS(table) {
    int32_t n = numbers[random_below(&random, 9)],
            k = random_one_in(&random, 3) ? 2048 : 1 + random_below(&random, 400);
    check_top(table, scores, n, k);
    check_top(table, scores, n, random_one_in(&random, 5) ? BNY_SELECT_MOST : 1);
  }
  free(scores);
}

enum { PAIRS = 70, MARGIN = 16 };

typedef struct result {
  float scores[PAIRS + MARGIN];
  int64_t indices[PAIRS + MARGIN];
  int32_t own[PAIRS + MARGIN];
  bny_pairs_read read;
} result;

static void read_pairs(const bny_kernels *kernels, const bny_pair *list, int32_t count, int32_t rank, int wanted,
                       result *to) {
  memset(to, 0x5a, sizeof *to);
  to->read = (bny_pairs_read){.scores = wanted & 1 ? to->scores : NULL,
                              .indices = wanted & 2 ? to->indices : NULL,
                              .own = wanted & 4 ? to->own : NULL};
  kernels->pairs_read(list, count, rank, &to->read);
  for (int32_t i = to->read.own_count; i < count; i++) to->own[i] = -2; /* places that are not defined */
  to->read.scores = NULL, to->read.indices = NULL, to->read.own = NULL;
}

/* The plain functions are those that test_select.c of the API compares with a sort. */
TEST_LOOP(tables_make_and_read_the_same_pairs, 300) {
  world_random random = random_seed() * 31 + (uint64_t)_i;
  score_content content = (score_content)(_i % SCORE_CONTENTS);
  const int32_t count = random_below(&random, PAIRS + 1), rank = random_below(&random, 1 << 20), other = rank ^ 1;
  const bool by_index = random_one_in(&random, 2), has_negative = random_one_in(&random, 3);
  float scores[PAIRS];
  int64_t indices[PAIRS];
  for (int32_t i = 0; i < count; i++) {
    scores[i] = content == SCORES_RISING ? -(float)i : score_draw(&random, content, i);
    indices[i] = (by_index ? i / 2 : (int64_t)(random_next(&random) >> 1)) * (by_index && i % 3 ? INT64_C(1) << 31 : 1);
    if (has_negative && random_one_in(&random, 20)) indices[i] = -1 - i;
  }
  EACH_KERNELS(kernels) {
    bny_pair plain[PAIRS + MARGIN], made[PAIRS + MARGIN];
    memset(plain, 0x5a, sizeof plain), memset(made, 0x5a, sizeof made);
    const bool good = bny_pairs_plain_make(scores, indices, count, rank, plain);
    ck_assert_msg(kernels->pairs_make(scores, indices, count, rank, made) == good, "%s: not %d", kernels->name, good);
    bool is_whole = true;
    for (int32_t i = 0; i < count; i++) is_whole = is_whole && indices[i] >= 0;
    if (is_whole) ck_assert_msg(memcmp(plain, made, sizeof made) == 0, "%s: other pairs", kernels->name);
    for (int32_t i = 0; i < count; i += 2) made[i].low ^= (uint64_t)(rank ^ other) << BNY_SELECT_POSITION_BITS;
    for (int wanted = 0; wanted < 8 && is_whole; wanted++) {
      static result want, got;
      read_pairs(bny_kernels_find("portable"), made, count, rank, wanted, &want);
      read_pairs(kernels, made, count, rank, wanted, &got);
      ck_assert_msg(memcmp(&want, &got, sizeof got) == 0, "%s: %d pairs, wanted %d", kernels->name, count, wanted);
    }
  }
}

int main(void) { return suite_main(suite_of("select_kernels", 60)); }
