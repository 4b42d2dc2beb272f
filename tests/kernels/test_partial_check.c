/* SPDX-License-Identifier: Apache-2.0
 * Valid and invalid descriptors of a caller's partials, with the reasons of rejections. */
#include "banyan.h"
#include "op.h"
#include "tests/support/random.h"

static float check_values[4096], check_stats[256], check_sums[256], check_scales[8];

static banyan_partial fine_partial(void) {
  banyan_partial p;
  banyan_partial_init(&p, check_values, BANYAN_F32, check_stats, BANYAN_F32, 8, 16);
  return p;
}

#define REJECTED(is_output, text, ...)                                                              \
  do {                                                                                              \
    banyan_partial p = fine_partial();                                                              \
    __VA_ARGS__;                                                                                    \
    const char *rejection = bny_partial_check(&p, &box, is_output);                                 \
    ck_assert_msg(rejection != NULL && strstr(rejection, text) != NULL, "%s: %s", text, rejection); \
  } while (0)

#define ACCEPTED(is_output, ...)                                    \
  do {                                                              \
    banyan_partial p = fine_partial();                              \
    __VA_ARGS__;                                                    \
    const char *rejection = bny_partial_check(&p, &box, is_output); \
    ck_assert_msg(rejection == NULL, "%s", rejection);              \
  } while (0)

TEST(descriptors_that_mean_nothing_are_rejected) {
  bny_box box = {4, 8, 16};
  ck_assert_ptr_nonnull(bny_partial_check(NULL, &box, false));
  for (int output = 0; output < 2; output++) {
    REJECTED(output, "values_dtype", p.values_dtype = 0);
    REJECTED(output, "values_dtype", p.values_dtype = (banyan_dtype)77);
    REJECTED(output, "values_kind", p.values_kind = 0);
    REJECTED(output, "stats_dtype", p.stats_dtype = 0);
    REJECTED(output, "stats_kind", p.stats_kind = 0);
    REJECTED(output, "base", p.base = 0);
    REJECTED(output, "base", p.base = (banyan_base)9);
    REJECTED(output, "empty", p.empty = 0);
    REJECTED(output, "empty", p.empty = 16);
    REJECTED(output, "empty_below", p.empty = BANYAN_EMPTY_BELOW; p.empty_below = NAN);
    REJECTED(output, "empty_below", p.empty = BANYAN_EMPTY_BELOW; p.empty_below = INFINITY);
    REJECTED(output, "values is NULL", p.values = NULL);
    REJECTED(output, "sum", p.sum = check_sums);
    REJECTED(output, "sum", p.stats_kind = BANYAN_STATS_MAX_SUM);
    REJECTED(output, "same memory", p.stats_kind = BANYAN_STATS_MAX_SUM; p.sum = p.lse);
    REJECTED(output, "NUMERATOR", p.values_kind = BANYAN_VALUES_NUMERATOR);
    REJECTED(output, "values is not aligned", p.values = (char *)p.values + 2);
    REJECTED(output, "lse is not aligned", p.stats_dtype = BANYAN_F16; p.lse = (char *)p.lse + 1);
    REJECTED(output, "sum is not aligned", p.stats_kind = BANYAN_STATS_MAX_SUM; p.sum = (char *)check_sums + 2);
    REJECTED(output, "out of range", p.values_token_stride = INT64_MIN);
    REJECTED(output, "out of range", p.stats_head_stride = INT64_MAX);
    REJECTED(output, "BANYAN_I8", p.values_dtype = BANYAN_I8);
    REJECTED(output, "stats_dtype must be BANYAN_F32", p.stats_dtype = BANYAN_E4M3);
    REJECTED(output, "values_scale is given", p.values_scale = check_scales);
    REJECTED(output, "values_scale is not aligned", p.values_dtype = BANYAN_E5M2;
             p.values_scale = (const float *)(const void *)((const char *)check_scales + 1));
    REJECTED(output, "values_scale_stride", p.values_dtype = BANYAN_E4M3; p.values_scale = check_scales;
             p.values_scale_stride = INT64_MAX);
    ACCEPTED(output, p.values_dtype = BANYAN_E4M3; p.values_scale = check_scales; p.values_scale_stride = 1);
    ACCEPTED(output, p.values_dtype = BANYAN_E5M2);
    ACCEPTED(output, p.stats_kind = BANYAN_STATS_MAX_SUM; p.sum = check_sums);
    ACCEPTED(output, p.values_dtype = BANYAN_BF16; p.stats_dtype = BANYAN_F16);
    ACCEPTED(output, p.empty = BANYAN_EMPTY_BELOW; p.empty_below = -49994);
    ACCEPTED(output, p.values = check_values + 512; p.values_token_stride = -128);
  }
  REJECTED(false, "lse is NULL", p.lse = NULL);
  ACCEPTED(true, p.lse = NULL);
  ACCEPTED(false, p.empty = BANYAN_EMPTY_NAN | BANYAN_EMPTY_POS_INF);
  REJECTED(true, "empty", p.empty = BANYAN_EMPTY_NAN);
  REJECTED(true, "empty", p.empty = BANYAN_EMPTY_NAN | BANYAN_EMPTY_NEG_INF);
  REJECTED(true, "empty", p.empty = BANYAN_EMPTY_POS_INF | BANYAN_EMPTY_NEG_INF);
  REJECTED(true, "lse and sum", p.stats_kind = BANYAN_STATS_MAX_SUM; p.lse = NULL; p.sum = check_sums);
  ACCEPTED(true, p.stats_kind = BANYAN_STATS_MAX_SUM; p.lse = NULL);
  REJECTED(true, "numerators", p.stats_kind = BANYAN_STATS_MAX_SUM; p.lse = NULL;
           p.values_kind = BANYAN_VALUES_NUMERATOR);
  box.tokens = 0; /* arrays without rows may be NULL */
  for (int output = 0; output < 2; output++)
    ACCEPTED(output, p.stats_kind = BANYAN_STATS_MAX_SUM; p.values = p.lse = NULL;
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

TEST(overlapping_outputs_are_rejected) {
  bny_box box = {4, 8, 16};
  ACCEPTED(false, p.values_token_stride = 0);
  ACCEPTED(false, p.values_head_stride = 0; p.stats_head_stride = 0);
  REJECTED(true, "overlap", p.values_token_stride = 0);
  REJECTED(true, "overlap", p.values_head_stride = 15);
  REJECTED(true, "overlap", p.values_head_stride = -15);
  REJECTED(true, "overlap", p.values_token_stride = 120);
  REJECTED(true, "overlap", p.stats_head_stride = 0);
  REJECTED(true, "overlap", p.stats_token_stride = 7);
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
  ck_assert_ptr_null(bny_partial_check(&p, &one, true)); /* strides of a single row are ignored */
  /* compares with a count of overlaps if both strides are small */
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
    ck_assert((bny_partial_check(&p, &small, true) != NULL) == overlap);
  }
}

/* ---- arrays of input and output ---------------------------------------------------------------------------------- */

enum { FLOATS = 2048, MIDDLE = FLOATS / 2 };
static float shared[FLOATS];

/* Marks the elements of a partial's arrays, and returns the marks of other arrays found there. */
static int mark(const banyan_partial *p, const bny_box *box, int bit, unsigned char marks[FLOATS]) {
  const float *const at[] = {p->values, p->lse, p->sum};
  int met = 0;
  for (int array = 0; array < 3; array++) {
    int width = array > 0 ? 1 : box->value_dim;
    for (int k = 0; at[array] && k < box->tokens * box->heads * width; k++) {
      int64_t token = k / width / box->heads, head = k / width % box->heads;
      int64_t row = array > 0 ? token * p->stats_token_stride + head * p->stats_head_stride
                              : token * p->values_token_stride + head * p->values_head_stride;
      unsigned char *place = &marks[at[array] - shared + row + k % width];
      met |= *place & ~(bit << array);
      *place |= (unsigned char)(bit << array);
    }
  }
  return met;
}

static banyan_partial in_shared(const bny_box *box, int64_t at) {
  banyan_partial p;
  banyan_partial_init(&p, shared + at, BANYAN_F32, NULL, BANYAN_F32, box->heads, box->value_dim);
  return p;
}

/* Compares with a count of overlaps. Arrays reported as separate are separate, or are used in place. */
TEST(overlaps_of_input_and_output) {
  bool seen[2] = {false, false};
  for (int i = 0; i < 20000; i++) {
    bny_box all = {random_int(1, 5), random_int(1, 5), random_int(1, 4)};
    bny_box result = {random_int(1, all.tokens), random_int(1, all.heads), all.value_dim};
    banyan_partial in = in_shared(&all, MIDDLE), out = in_shared(&result, MIDDLE + random_int(-120, 120));
    if (random_int(0, 2)) in.values_token_stride = random_int(-40, 40);
    if (random_int(0, 2)) out.values_token_stride = in.values_token_stride;
    if (random_int(0, 2)) in.values_head_stride = out.values_head_stride = random_int(-40, 40);
    unsigned char marks[FLOATS] = {0};
    const char *names[2] = {NULL, NULL};
    mark(&in, &all, 1, marks);
    bool overlap = mark(&out, &result, 8, marks) != 0,
         said = bny_partial_overlaps(&in, &all, &out, &result, 1, 1, names);
    bool in_place = out.values == (float *)in.values + in.values_token_stride + in.values_head_stride &&
                    (result.tokens < 2 || in.values_token_stride == out.values_token_stride) &&
                    (result.heads < 2 || in.values_head_stride == out.values_head_stride);
    ck_assert(said || !overlap || in_place);
    ck_assert(!said || (strcmp(names[0], "values") == 0 && strcmp(names[1], "values") == 0));
    seen[said] = true;
  }
  ck_assert(seen[0] && seen[1]);
}

static bool overlaps(const banyan_partial *in, const banyan_partial *out, const bny_box *box, int32_t head0) {
  const char *names[2];
  bny_box all = {box->tokens, 2 * box->heads, box->value_dim};
  return bny_partial_overlaps_itself(out, box, names) || bny_partial_overlaps(in, &all, out, box, 0, head0, names);
}

/* Layouts of engines in which input and output share memory. */
TEST(layouts_that_share_memory) {
  enum { TOKENS = 3, HEADS = 4, DIM = 5, ROW = DIM + 2 };
  const bny_box box = {TOKENS, HEADS / 2, DIM};
  banyan_partial in, out;
  for (int head0 = 0; head0 <= HEADS / 2; head0 += HEADS / 2) { /* rows of ggml, with a gap after each token */
    banyan_partial_preset(&in, BANYAN_PRESET_GGML, NULL, BANYAN_F32, shared, TOKENS, HEADS, DIM);
    in.values_token_stride = in.stats_token_stride += 3;
    out = in;
    out.values = (float *)in.values + head0 * ROW;
    out.lse = (float *)in.lse + head0 * ROW;
    out.sum = (float *)in.sum + head0 * ROW;
    ck_assert(!overlaps(&in, &out, &box, head0));
    ck_assert(overlaps(&in, &out, &box, head0 ? 0 : 1));
    out.values = (float *)out.values + 1;
    ck_assert(overlaps(&in, &out, &box, head0));
  }
  /* Each token, or each head, has its input, followed by its output and lse. */
  in = in_shared(&(bny_box){TOKENS, HEADS, DIM}, 0);
  in.lse = check_stats;
  out = in_shared(&box, HEADS * DIM);
  in.values_token_stride = out.values_token_stride = out.stats_token_stride = 2 * HEADS * DIM;
  out.lse = shared + 2 * HEADS * DIM - HEADS / 2;
  ck_assert(!overlaps(&in, &out, &box, 0));
  out.lse = shared + HEADS * DIM + 1;
  ck_assert(overlaps(&in, &out, &box, 0));
  in.values_token_stride = out.values_token_stride = DIM;
  in.values_head_stride = out.values_head_stride = 2 * TOKENS * DIM;
  out.values = shared + TOKENS * DIM;
  out.lse = check_sums;
  ck_assert(!overlaps(&in, &out, &box, 0));
  /* In place, but with another type. */
  out.values = in.values;
  ck_assert(!overlaps(&in, &out, &box, 0));
  out.values_dtype = BANYAN_BF16;
  ck_assert(overlaps(&in, &out, &box, 0));
}

int main(void) {
  random_begin();
  return suite_main(suite_of("partial_check", 120));
}
