/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors of a caller's partials: what is refused and why, and what is not. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan.h"
#include "op.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static float check_values[4096], check_stats[256], check_sums[256], check_scales[8];

static banyan_partial fine_partial(void) {
  banyan_partial p;
  banyan_partial_init(&p, check_values, BANYAN_F32, check_stats, BANYAN_F32, 8, 16);
  return p;
}

#define REFUSED(is_output, text, ...)                                                      \
  do {                                                                                     \
    banyan_partial p = fine_partial();                                                     \
    __VA_ARGS__;                                                                           \
    const char *refusal = bny_partial_check(&p, &box, is_output);                          \
    EXPECT_MSG(refusal != NULL && strstr(refusal, text) != NULL, "%s: %s", text, refusal); \
  } while (0)

#define ACCEPTED(is_output, ...)                                  \
  do {                                                            \
    banyan_partial p = fine_partial();                            \
    __VA_ARGS__;                                                  \
    const char *refusal = bny_partial_check(&p, &box, is_output); \
    EXPECT_MSG(refusal == NULL, "%s", refusal);                   \
  } while (0)

TEST(descriptors_that_mean_nothing_are_refused) {
  bny_box box = {4, 8, 16};
  ck_assert_ptr_nonnull(bny_partial_check(NULL, &box, false));
  for (int output = 0; output < 2; output++) {
    REFUSED(output, "values_dtype", p.values_dtype = 0);
    REFUSED(output, "values_dtype", p.values_dtype = (banyan_dtype)77);
    REFUSED(output, "values_kind", p.values_kind = 0);
    REFUSED(output, "stats_dtype", p.stats_dtype = 0);
    REFUSED(output, "stats_kind", p.stats_kind = 0);
    REFUSED(output, "base", p.base = 0);
    REFUSED(output, "base", p.base = (banyan_base)9);
    REFUSED(output, "empty", p.empty = 0);
    REFUSED(output, "empty", p.empty = 16);
    REFUSED(output, "empty_below", p.empty = BANYAN_EMPTY_BELOW; p.empty_below = NAN);
    REFUSED(output, "empty_below", p.empty = BANYAN_EMPTY_BELOW; p.empty_below = INFINITY);
    REFUSED(output, "values is NULL", p.values = NULL);
    REFUSED(output, "sum", p.sum = check_sums);
    REFUSED(output, "sum", p.stats_kind = BANYAN_STATS_MAX_SUM);
    REFUSED(output, "same memory", p.stats_kind = BANYAN_STATS_MAX_SUM; p.sum = p.lse);
    REFUSED(output, "NUMERATOR", p.values_kind = BANYAN_VALUES_NUMERATOR);
    REFUSED(output, "values is not aligned", p.values = (char *)p.values + 2);
    REFUSED(output, "lse is not aligned", p.stats_dtype = BANYAN_F16; p.lse = (char *)p.lse + 1);
    REFUSED(output, "sum is not aligned", p.stats_kind = BANYAN_STATS_MAX_SUM; p.sum = (char *)check_sums + 2);
    REFUSED(output, "out of range", p.values_token_stride = INT64_MIN);
    REFUSED(output, "out of range", p.stats_head_stride = INT64_MAX);
    REFUSED(output, "BANYAN_I8", p.values_dtype = BANYAN_I8);
    REFUSED(output, "stats_dtype has eight bits", p.stats_dtype = BANYAN_E4M3);
    REFUSED(output, "values_scale is given", p.values_scale = check_scales);
    REFUSED(output, "values_scale is not aligned", p.values_dtype = BANYAN_E5M2;
            p.values_scale = (const float *)(const void *)((const char *)check_scales + 1));
    REFUSED(output, "values_scale_stride", p.values_dtype = BANYAN_E4M3; p.values_scale = check_scales;
            p.values_scale_stride = INT64_MAX);
    ACCEPTED(output, p.values_dtype = BANYAN_E4M3; p.values_scale = check_scales; p.values_scale_stride = 1);
    ACCEPTED(output, p.values_dtype = BANYAN_E5M2);
    ACCEPTED(output, p.stats_kind = BANYAN_STATS_MAX_SUM; p.sum = check_sums);
    ACCEPTED(output, p.values_dtype = BANYAN_BF16; p.stats_dtype = BANYAN_F16);
    ACCEPTED(output, p.empty = BANYAN_EMPTY_BELOW; p.empty_below = -49994);
    ACCEPTED(output, p.values = check_values + 512; p.values_token_stride = -128);
  }
  REFUSED(false, "lse is NULL", p.lse = NULL);
  ACCEPTED(true, p.lse = NULL);
  ACCEPTED(false, p.empty = BANYAN_EMPTY_NAN | BANYAN_EMPTY_POS_INF);
  REFUSED(true, "empty", p.empty = BANYAN_EMPTY_NAN);
  REFUSED(true, "empty", p.empty = BANYAN_EMPTY_NAN | BANYAN_EMPTY_NEG_INF);
  REFUSED(true, "empty", p.empty = BANYAN_EMPTY_POS_INF | BANYAN_EMPTY_NEG_INF);
  REFUSED(true, "lse and sum", p.stats_kind = BANYAN_STATS_MAX_SUM; p.lse = NULL; p.sum = check_sums);
  ACCEPTED(true, p.stats_kind = BANYAN_STATS_MAX_SUM; p.lse = NULL);
  REFUSED(true, "numerators", p.stats_kind = BANYAN_STATS_MAX_SUM; p.lse = NULL;
          p.values_kind = BANYAN_VALUES_NUMERATOR);
}

TEST(scales_are_finite_and_positive) {
  static const float wrong[] = {0, -1, INFINITY, NAN, -INFINITY};
  banyan_partial p = fine_partial();
  p.values_dtype = BANYAN_E4M3;
  ck_assert_int_eq(bny_partial_scale_check(&p, 8), -1);
  for (int i = 0; i < 100; i++) {
    float scales[16];
    int head = random_int(0, 7), stride = random_int(0, 2);
    for (int k = 0; k < 16; k++) scales[k] = (float)random_real(0.001, 1000);
    p.values_scale = scales;
    p.values_scale_stride = stride;
    ck_assert_int_eq(bny_partial_scale_check(&p, 8), -1);
    scales[head * stride] = wrong[i % 5];
    ck_assert_int_eq(bny_partial_scale_check(&p, 8), stride == 0 ? 0 : head);
    ck_assert_int_eq(bny_partial_scale_check(&p, head), stride == 0 && head > 0 ? 0 : -1);
  }
}

TEST(overlapping_outputs_are_refused) {
  bny_box box = {4, 8, 16};
  ACCEPTED(false, p.values_token_stride = 0);
  ACCEPTED(false, p.values_head_stride = 0; p.stats_head_stride = 0);
  REFUSED(true, "overlap", p.values_token_stride = 0);
  REFUSED(true, "overlap", p.values_head_stride = 15);
  REFUSED(true, "overlap", p.values_head_stride = -15);
  REFUSED(true, "overlap", p.values_token_stride = 120);
  REFUSED(true, "overlap", p.stats_head_stride = 0);
  REFUSED(true, "overlap", p.stats_token_stride = 7);
  ACCEPTED(true, p.values_head_stride = 64; p.values_token_stride = 16);
  ACCEPTED(true, p.values_head_stride = 48; p.values_token_stride = 16 + 48 * 7);
  bny_box none = {0, 8, 16}, flat = {4, 8, 0}, one = {1, 1, 16};
  banyan_partial p = fine_partial();
  p.values = p.lse = NULL;
  ck_assert_ptr_null(bny_partial_check(&p, &none, false));
  p.lse = check_stats;
  ck_assert_ptr_null(bny_partial_check(&p, &flat, false));
  ck_assert_ptr_null(bny_partial_check(&p, &flat, true));
  p = fine_partial();
  p.values_token_stride = p.values_head_stride = p.stats_token_stride = p.stats_head_stride = 0;
  ck_assert_ptr_null(bny_partial_check(&p, &one, true)); /* strides of a single row do not matter */
  /* exact, by counting, where both strides are small */
  for (int i = 0; i < 20000; i++) {
    bny_box small = {random_int(1, 7), random_int(1, 7), random_int(1, 4)};
    p = fine_partial();
    p.values_token_stride = random_int(-30, 30);
    p.values_head_stride = random_int(-30, 30);
    p.lse = NULL;
    char uses[1024] = {0};
    bool overlap = false;
    for (int k = 0; k < small.tokens * small.heads * small.value_dim; k++) {
      int64_t at = k / small.value_dim / small.heads * p.values_token_stride +
                   k / small.value_dim % small.heads * p.values_head_stride + k % small.value_dim;
      overlap |= uses[512 + at]++ != 0;
    }
    EXPECT((bny_partial_check(&p, &small, true) != NULL) == overlap);
  }
}

int main(void) {
  random_begin();
  return suite_main(suite_of("partial_check", 120));
}
