/* SPDX-License-Identifier: Apache-2.0
 * Scores with ties and special values, and the order of selections as a sort has it. */
#pragma once

#include <math.h>

#include "tests/support/generator.h"

typedef enum score_content {
  SCORES_DRAWN,
  SCORES_EQUAL,
  SCORES_OF_FEW,  /* many ties */
  SCORES_SPECIAL, /* NaN, infinities, zeros of both signs */
  SCORES_RISING,
  SCORES_LOW,  /* -inf and NaN alone */
  SCORES_RELU, /* zeros, and fewer numbers above them */
  SCORE_CONTENTS
} score_content;

typedef struct score_pair {
  float score;
  int64_t index;
} score_pair;

static inline float score_draw(world_random *random, score_content content, int64_t index) {
  static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1.0f, -1.0f, 1e-42f, -1e-42f};
  float drawn = (float)random_unit(random);
  switch (content) {
  case SCORES_EQUAL: return 0.25f;
  case SCORES_OF_FEW: return (float)(random_below(random, 5) - 2);
  case SCORES_SPECIAL: return random_one_in(random, 2) ? special[random_below(random, 9)] : drawn;
  case SCORES_RISING: return (float)index;
  case SCORES_LOW: return random_one_in(random, 2) ? -INFINITY : copysignf(NAN, drawn);
  case SCORES_RELU: return random_one_in(random, 100) ? fabsf(drawn) : copysignf(0, drawn);
  default: return drawn;
  }
}

/* For qsort: higher scores first, NaN last, then the lower index. */
static inline int score_pairs_compare(const void *a, const void *b) {
  const score_pair *x = a, *y = b;
  if (isnan(x->score) != isnan(y->score)) return isnan(x->score) ? 1 : -1;
  if (x->score > y->score || x->score < y->score) return x->score > y->score ? -1 : 1;
  return x->index < y->index ? -1 : x->index > y->index;
}

/* A result has 0 for zeros of both signs. */
static inline bool scores_equal(float got, float expected) {
  return isnan(expected) ? isnan(got) : got == expected && !(got == 0 && signbit(got));
}
