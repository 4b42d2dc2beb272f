/* SPDX-License-Identifier: Apache-2.0
 * Memory of partials in random conventions. */
#include "tests/support/sheet.h"

#include "tests/support/sheet_element.h"

enum { GUARD_BYTES = 64 };

bool sheet_eight_bits = false;

/* ---- layout ------------------------------------------------------------------------------------------------------ */

static size_t round_up(size_t bytes) { return (bytes + 15) / 16 * 16; }

/* Strides of rows of `width` elements: tokens or heads outermost, with random gaps. */
static void choose_strides(world_random *random, int32_t tokens, int32_t heads, int32_t width, int64_t *token_stride,
                           int64_t *head_stride) {
  int64_t inner = width + (random_one_in(random, 3) ? random_below(random, 5) : 0);
  int64_t gap = random_one_in(random, 3) ? random_below(random, 9) : 0;
  if (random_one_in(random, 3)) {
    *token_stride = inner;
    *head_stride = inner * tokens + gap;
  } else {
    *head_stride = inner;
    *token_stride = inner * heads + gap;
  }
}

static size_t extent(int32_t tokens, int32_t heads, int64_t token_stride, int64_t head_stride, int32_t width) {
  if (tokens == 0 || heads == 0) return 0;
  return (size_t)((tokens - 1) * token_stride + (heads - 1) * head_stride + width);
}

/* Allocates memory for the strides set; with_stats: also for statistics. */
static void place(sheet *sheet, bool with_stats) {
  banyan_partial *partial = &sheet->partial;
  size_t values =
      extent(sheet->tokens, sheet->heads, partial->values_token_stride, partial->values_head_stride, sheet->value_dim) *
      element_bytes(partial->values_dtype);
  size_t stats = extent(sheet->tokens, sheet->heads, partial->stats_token_stride, partial->stats_head_stride, 1) *
                 element_bytes(partial->stats_dtype);
  size_t lse_at = GUARD_BYTES + round_up(values) + GUARD_BYTES, sum_at = lse_at + round_up(stats) + GUARD_BYTES;
  size_t scales_at = sum_at + round_up(stats) + GUARD_BYTES;
  size_t scales = (size_t)(sheet->heads * partial->values_scale_stride + 1);
  sheet->bytes = partial->values_scale ? scales_at + round_up(scales * sizeof(float)) : scales_at;
  sheet->memory = world_take(sheet->bytes);
  memset(sheet->memory, SHEET_PATTERN, sheet->bytes);
  partial->values = sheet->memory + GUARD_BYTES;
  partial->lse = with_stats ? sheet->memory + lse_at : NULL;
  partial->sum = with_stats && partial->stats_kind == BANYAN_STATS_MAX_SUM ? sheet->memory + sum_at : NULL;
  if (!partial->values_scale) return;
  float *scale = (float *)(void *)(sheet->memory + scales_at);
  for (size_t i = 0; i < scales; i++) scale[i] = (float)(3 + i % 7) / 5;
  partial->values_scale = scale;
}

static void choose_all_strides(world_random *random, sheet *sheet) {
  banyan_partial *partial = &sheet->partial;
  choose_strides(random, sheet->tokens, sheet->heads, sheet->value_dim, &partial->values_token_stride,
                 &partial->values_head_stride);
  choose_strides(random, sheet->tokens, sheet->heads, 1, &partial->stats_token_stride, &partial->stats_head_stride);
}

sheet sheet_of(world_random *random, banyan_partial convention, int32_t tokens, int32_t heads, int32_t value_dim) {
  sheet made = {.partial = convention, .tokens = tokens, .heads = heads, .value_dim = value_dim};
  choose_all_strides(random, &made);
  place(&made, true);
  return made;
}

static sheet choose_convention(world_random *random, int32_t tokens, int32_t heads, int32_t value_dim) {
  static const banyan_dtype dtypes[] = {BANYAN_F32, BANYAN_F32, BANYAN_F16, BANYAN_BF16};
  sheet made = {.tokens = tokens, .heads = heads, .value_dim = value_dim};
  banyan_partial *partial = &made.partial;
  partial->size = sizeof *partial;
  partial->values_dtype = dtypes[random_below(random, 4)];
  partial->stats_dtype = dtypes[random_below(random, 4)];
  partial->stats_kind = random_one_in(random, 2) ? BANYAN_STATS_MAX_SUM : BANYAN_STATS_LSE;
  partial->values_kind = partial->stats_kind == BANYAN_STATS_MAX_SUM && random_one_in(random, 2)
                             ? BANYAN_VALUES_NUMERATOR
                             : BANYAN_VALUES_NORMALISED;
  partial->base = random_one_in(random, 2) ? BANYAN_BASE_2 : BANYAN_BASE_E;
  if (sheet_eight_bits && random_one_in(random, 3)) {
    static const float none = 1;
    partial->values_dtype = random_one_in(random, 2) ? BANYAN_E4M3 : BANYAN_E5M2;
    partial->values_scale = random_one_in(random, 4) ? NULL : &none; /* place() sets the scales */
    partial->values_scale_stride = random_below(random, 3);
  }
  choose_all_strides(random, &made);
  return made;
}

/* Returns a number that all three types hold exactly, or the lowest float. */
static double choose_below(world_random *random, const banyan_partial *partial) {
  return partial->stats_dtype == BANYAN_F32 && random_one_in(random, 2) ? -(double)FLT_MAX : -32768.0;
}

/* ---- input ------------------------------------------------------------------------------------------------------- */

static bool is_empty(world_random *random, sheet_mood mood, int32_t rank, int32_t nranks, int32_t token, int32_t head) {
  if (mood == SHEET_LONE) return rank != nranks / 2;
  if (mood == SHEET_SPARSE) return rank % 2 || (token + head) % 3 == 0 || !random_one_in(random, 3);
  return random_one_in(random, 6);
}

static void write_empty(world_random *random, sheet *sheet, int32_t token, int32_t head) {
  banyan_partial *partial = &sheet->partial;
  double forms[5] = {-INFINITY};
  int count = 1;
  if (partial->empty & BANYAN_EMPTY_POS_INF) forms[count++] = INFINITY;
  if (partial->empty & BANYAN_EMPTY_NAN) forms[count++] = (double)NAN;
  if (partial->empty & BANYAN_EMPTY_BELOW) forms[count++] = partial->empty_below;
  double form = forms[random_below(random, count)];
  for (int32_t i = 0; i < sheet->value_dim; i++) store_value(sheet, token, head, i, (double)NAN);
  if (partial->sum) {
    bool by_sum = random_one_in(random, 3);
    if (by_sum) form = random_unit(random) * 10;
    store_sum(sheet, token, head, by_sum ? 0 : random_below(random, 3));
  }
  store_lse(sheet, token, head, form);
}

static void write_row(world_random *random, sheet *sheet, sheet_mood mood, int32_t token, int32_t head) {
  static const double masks[] = {-1e30, -3.3e38, -1e9, -1e38, -3e7};
  const banyan_partial *partial = &sheet->partial;
  double unit = partial->base == BANYAN_BASE_2 ? log(2.0) : 1.0; /* one unit of the statistics in natural logits */
  double logit = random_unit(random) * (mood == SHEET_HUGE ? 1e4 : 8.0), range = 0;
  double sum = ldexp(1.0 + fabs(random_unit(random)), random_below(random, 9) - 3);
  bool is_wide = partial->stats_dtype != BANYAN_F16, keeps = mood == SHEET_TINY || (mood == SHEET_SUMS && is_wide);
  if (mood == SHEET_LARGE) logit = copysign(fmin(is_wide ? 5e6 : 25000, exp2(random_unit(random) * 24)), logit);
  if (keeps && mood == SHEET_SUMS) sum = exp2(random_unit(random) * 90);
  if (mood == SHEET_VALUES)
    range = partial->values_dtype == BANYAN_F32 || partial->values_dtype == BANYAN_BF16 ? 60 : 7;
  bool tiny_values = mood == SHEET_TINY && random_one_in(random, 2);
  if (mood == SHEET_TINY && !tiny_values && partial->stats_dtype != BANYAN_F16) sum = 1e-40 * sum;
  if (partial->sum) {
    store_sum(sheet, token, head, sum);
    store_lse(sheet, token, head, keeps ? logit / unit : (logit - log(sum)) / unit);
    sum = load_sum(sheet, token, head);
  } else {
    store_lse(sheet, token, head, logit / unit);
  }
  if (partial->sum && random_one_in(random, 16)) store_lse(sheet, token, head, -0.0);
  if (mood == SHEET_MASKED && is_wide) store_lse(sheet, token, head, masks[random_below(random, 5)]);
  double factor = (partial->values_kind == BANYAN_VALUES_NUMERATOR ? sum : 1.0) * (tiny_values ? 1e-40 : 4.0);
  const double limit = 0.9 * oracle_largest(partial->values_dtype) * scale_of(sheet, head);
  for (int32_t i = 0; i < sheet->value_dim; i++) {
    double value = random_unit(random) * factor * exp2(range * random_unit(random));
    store_value(sheet, token, head, i, fmin(fmax(value, -limit), limit));
  }
}

void sheet_fill(sheet *sheet, world_random *random, sheet_mood mood, int32_t rank, int32_t nranks) {
  bool no_keys = mood != SHEET_LONE && nranks > 1 && random_one_in(random, 8);
  for (int32_t t = 0; t < sheet->tokens; t++)
    for (int32_t h = 0; h < sheet->heads; h++)
      if (no_keys || is_empty(random, mood, rank, nranks, t, h))
        write_empty(random, sheet, t, h);
      else
        write_row(random, sheet, mood, t, h);
}

sheet sheet_input(world_random *random, sheet_mood mood, int32_t rank, int32_t nranks, int32_t tokens, int32_t heads,
                  int32_t value_dim) {
  sheet made = choose_convention(random, tokens, heads, value_dim);
  made.partial.empty = 1u + (uint32_t)random_below(random, 15);
  made.partial.empty_below = choose_below(random, &made.partial);
  place(&made, true);
  sheet_fill(&made, random, mood, rank, nranks);
  return made;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

sheet sheet_output(world_random *random, sheet_mood mood, int32_t tokens, int32_t heads, int32_t value_dim) {
  static const uint32_t empties[] = {BANYAN_EMPTY_NEG_INF, BANYAN_EMPTY_POS_INF, BANYAN_EMPTY_BELOW};
  sheet made = choose_convention(random, tokens, heads, value_dim);
  banyan_partial *partial = &made.partial;
  /* An m of 1e4 is rounded by up to 32 in bf16. Sums and numerators are then scaled by up to 2^32, which is too much
   * for f16. */
  if (mood == SHEET_HUGE && partial->stats_dtype == BANYAN_BF16) {
    partial->values_dtype = BANYAN_F32;
    partial->values_scale = NULL;
  }
  if (mood == SHEET_LARGE || mood == SHEET_MASKED || mood == SHEET_SUMS) partial->stats_dtype = BANYAN_F32;
  partial->empty = empties[random_below(random, 3)];
  partial->empty_below = choose_below(random, partial);
  place(&made, partial->values_kind == BANYAN_VALUES_NUMERATOR || !random_one_in(random, 3));
  return made;
}

sheet sheet_output_like(const sheet *like, int32_t tokens, int32_t heads) {
  sheet made = *like;
  bool with_stats = like->partial.lse != NULL;
  made.tokens = tokens;
  made.heads = heads;
  made.partial.values_head_stride = like->value_dim;
  made.partial.values_token_stride = (int64_t)heads * like->value_dim;
  made.partial.stats_head_stride = 1;
  made.partial.stats_token_stride = heads;
  place(&made, with_stats);
  return made;
}

sheet sheet_copy(const sheet *from) {
  sheet made = *from;
  made.memory = world_take(from->bytes);
  memcpy(made.memory, from->memory, from->bytes);
  made.partial.values = made.memory + ((unsigned char *)from->partial.values - from->memory);
  if (from->partial.lse) made.partial.lse = made.memory + ((unsigned char *)from->partial.lse - from->memory);
  if (from->partial.values_scale)
    made.partial.values_scale =
        (const float *)(const void *)(made.memory + ((const unsigned char *)from->partial.values_scale - from->memory));
  if (from->partial.sum) made.partial.sum = made.memory + ((unsigned char *)from->partial.sum - from->memory);
  return made;
}

bool sheet_gaps_are_untouched(const sheet *out) {
  unsigned char *copy = malloc(out->bytes);
  if (!copy) abort();
  memcpy(copy, out->memory, out->bytes);
  for (int32_t t = 0; t < out->tokens; t++) {
    for (int32_t h = 0; h < out->heads; h++) {
      size_t at = (size_t)((unsigned char *)value_address(out, t, h) - out->memory);
      memset(copy + at, SHEET_PATTERN, (size_t)out->value_dim * element_bytes(out->partial.values_dtype));
      const void *stats[2] = {lse_address(out, t, h), sum_address(out, t, h)};
      for (int i = 0; i < 2; i++)
        if (stats[i])
          memset(copy + ((const unsigned char *)stats[i] - out->memory), SHEET_PATTERN,
                 element_bytes(out->partial.stats_dtype));
    }
  }
  const unsigned char *scales = (const unsigned char *)out->partial.values_scale;
  if (scales) memset(copy + (scales - out->memory), SHEET_PATTERN, out->bytes - (size_t)(scales - out->memory));
  bool untouched = true;
  for (size_t i = 0; i < out->bytes && untouched; i++) untouched = copy[i] == SHEET_PATTERN;
  free(copy);
  return untouched;
}
