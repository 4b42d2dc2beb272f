/* SPDX-License-Identifier: Apache-2.0
 * Descriptors of the caller's partials: checks before a kernel uses one, and default values. */
#include <math.h>
#include <stdlib.h>

#include "op.h"

enum { KNOWN_EMPTY = BANYAN_EMPTY_NEG_INF | BANYAN_EMPTY_POS_INF | BANYAN_EMPTY_NAN | BANYAN_EMPTY_BELOW };

static bool misaligned(const void *pointer, banyan_dtype dtype) {
  return (uintptr_t)pointer % bny_dtype_bytes(dtype) != 0;
}

/* The limit keeps the address arithmetic of kernels from overflowing. */
bool bny_extent_too_large(int64_t tokens, int64_t token_stride, int64_t heads, int64_t head_stride) {
  return (double)tokens * fabs((double)token_stride) + (double)heads * fabs((double)head_stride) > 0x1p58;
}

/* Returns true if two of the tokens x heads rows of `width` elements share an element. They do if |i a + j b| < width
 * for some (i, j) != (0, 0) with |i| < tokens and |j| < heads. Only i >= 0 need be checked. */
bool bny_rows_overlap(int64_t tokens, int64_t token_stride, int64_t heads, int64_t head_stride, int64_t width) {
  int64_t a = llabs(token_stride), b = llabs(head_stride);
  if ((tokens > 1 && a < width) || (heads > 1 && b < width)) return true;
  if (tokens < 2 || heads < 2 || a >= (heads - 1) * b + width || b >= (tokens - 1) * a + width) {
    return false; /* the case of all usual layouts */
  }
  if (tokens > heads) return bny_rows_overlap(heads, head_stride, tokens, token_stride, width);
  /* Signs do not matter, because (i, -j) is in range if (i, j) is. For each i, only the nearest multiples of b are
   * checked. */
  for (int64_t i = 1; i < tokens; i++) {
    int64_t j = i * a / b, rest = i * a % b;
    if ((j < heads && rest < width) || (j + 1 < heads && b - rest < width)) return true;
  }
  return false;
}

static const char *check_enums(const banyan_partial *partial) {
  if (partial->values_dtype == BANYAN_I8) return "values_dtype is BANYAN_I8, which partials do not have";
  if (!bny_dtype_is_float(partial->values_dtype) && !bny_dtype_is_f8(partial->values_dtype))
    return "values_dtype must be BANYAN_F32, F16, BF16, E4M3 or E5M2 (banyan_partial_init() sets all types)";
  if (partial->values_kind != BANYAN_VALUES_NORMALISED && partial->values_kind != BANYAN_VALUES_NUMERATOR)
    return "values_kind must be BANYAN_VALUES_NORMALISED or BANYAN_VALUES_NUMERATOR";
  if (!bny_dtype_is_float(partial->stats_dtype)) return "stats_dtype must be BANYAN_F32, BANYAN_F16 or BANYAN_BF16";
  if (partial->stats_kind != BANYAN_STATS_LSE && partial->stats_kind != BANYAN_STATS_MAX_SUM)
    return "stats_kind must be BANYAN_STATS_LSE or BANYAN_STATS_MAX_SUM";
  if (partial->base != BANYAN_BASE_E && partial->base != BANYAN_BASE_2)
    return "base must be BANYAN_BASE_E or BANYAN_BASE_2";
  /* A numerator is relative to m, which an lse no longer contains. */
  if (partial->values_kind == BANYAN_VALUES_NUMERATOR && partial->stats_kind != BANYAN_STATS_MAX_SUM) {
    return "values_kind BANYAN_VALUES_NUMERATOR needs stats_kind BANYAN_STATS_MAX_SUM: a numerator means nothing "
           "without m";
  }
  return NULL;
}

static const char *check_empty(const banyan_partial *partial, bool is_output) {
  const uint32_t empty = partial->empty, values = empty & ~(uint32_t)BANYAN_EMPTY_NAN;
  if (empty == 0) return "empty is unset: name at least one BANYAN_EMPTY_ value";
  if ((empty & ~(uint32_t)KNOWN_EMPTY) != 0) return "empty has unknown bits";
  if (is_output && empty != values) return "empty of an output must not contain BANYAN_EMPTY_NAN";
  if (is_output && (values & (values - 1)) != 0)
    return "empty of an output must be exactly one BANYAN_EMPTY_ value: it says what is written";
  if ((empty & BANYAN_EMPTY_BELOW) != 0 && !(partial->empty_below < (double)INFINITY))
    return "empty_below must be a number below +inf";
  return NULL;
}

static const char *check_pointers(const banyan_partial *partial, const bny_box *box, bool is_output) {
  const bool has_sum = partial->stats_kind == BANYAN_STATS_MAX_SUM;
  if (!has_sum && partial->sum != NULL) return "sum is given, but stats_kind BANYAN_STATS_LSE has none";
  if (is_output && has_sum && (partial->lse == NULL) != (partial->sum == NULL))
    return "lse and sum of an output with BANYAN_STATS_MAX_SUM must both be given or both be NULL";
  if (partial->lse != NULL && partial->lse == partial->sum) return "lse and sum are the same memory";
  if (misaligned(partial->values, partial->values_dtype)) return "values is not aligned to its dtype";
  if (misaligned(partial->lse, partial->stats_dtype)) return "lse is not aligned to its dtype";
  if (misaligned(partial->values_scale, BANYAN_F32)) return "values_scale is not aligned to float";
  if (partial->values_scale != NULL && !bny_dtype_is_f8(partial->values_dtype))
    return "values_scale is given, but only values of BANYAN_E4M3 and BANYAN_E5M2 have a scale";
  if (misaligned(partial->sum, partial->stats_dtype)) return "sum is not aligned to its dtype";
  if (box->tokens <= 0 || box->heads <= 0) {
    return NULL; /* no rows, so no memory is accessed */
  }
  if (partial->values == NULL && box->value_dim > 0) return "values is NULL";
  if (is_output && partial->values_kind == BANYAN_VALUES_NUMERATOR && partial->lse == NULL)
    return "lse and sum are NULL, but an output of numerators means nothing without them";
  if (!is_output && partial->lse == NULL) return "lse is NULL";
  if (!is_output && has_sum && partial->sum == NULL) return "sum is NULL, but stats_kind is BANYAN_STATS_MAX_SUM";
  return NULL;
}

static const char *check_strides(const banyan_partial *partial, const bny_box *box, bool is_output) {
  if (box->tokens <= 0 || box->heads <= 0) return NULL;
  const int64_t values_token = box->tokens > 1 ? partial->values_token_stride : 0;
  const int64_t values_head = box->heads > 1 ? partial->values_head_stride : 0;
  const int64_t stats_token = box->tokens > 1 ? partial->stats_token_stride : 0;
  const int64_t stats_head = box->heads > 1 ? partial->stats_head_stride : 0;
  if (bny_extent_too_large(box->tokens, values_token, box->heads, values_head))
    return "values_token_stride or values_head_stride is out of range";
  if (bny_extent_too_large(box->tokens, stats_token, box->heads, stats_head))
    return "stats_token_stride or stats_head_stride is out of range";
  if (bny_extent_too_large(0, 0, box->heads, partial->values_scale_stride))
    return "values_scale_stride is out of range";
  if (!is_output) {
    return NULL; /* inputs may repeat rows, for instance by a stride of 0 */
  }
  if (box->value_dim > 0 && bny_rows_overlap(box->tokens, values_token, box->heads, values_head, box->value_dim))
    return "values_token_stride and values_head_stride make rows of the output overlap";
  if (partial->lse != NULL && bny_rows_overlap(box->tokens, stats_token, box->heads, stats_head, 1))
    return "stats_token_stride and stats_head_stride make statistics of the output overlap";
  return NULL;
}

const char *bny_partial_check(const banyan_partial *partial, const bny_box *box, bool is_output) {
  if (partial == NULL) return "the descriptor is NULL";
  const char *rejection = check_enums(partial);
  if (rejection == NULL) rejection = check_empty(partial, is_output);
  if (rejection == NULL) rejection = check_pointers(partial, box, is_output);
  return rejection != NULL ? rejection : check_strides(partial, box, is_output);
}

int32_t bny_partial_scale_check(const banyan_partial *partial, int32_t heads) {
  if (partial->values_scale == NULL) return -1;
  for (int32_t head = 0; head < heads; head++) {
    const float scale = partial->values_scale[head * partial->values_scale_stride];
    if (!(scale > 0.0f && scale < (float)INFINITY)) return head;
    if (partial->values_scale_stride == 0) break;
  }
  return -1;
}

void banyan_partial_init(banyan_partial *partial, void *values, banyan_dtype values_dtype, void *lse,
                         banyan_dtype stats_dtype, int32_t heads, int32_t value_dim) {
  if (!partial) return;
  *partial = (banyan_partial){
      .size = sizeof *partial,
      .values = values,
      .values_token_stride = (int64_t)heads * value_dim,
      .values_head_stride = value_dim,
      .values_dtype = values_dtype,
      .values_kind = BANYAN_VALUES_NORMALISED,
      .lse = lse,
      .stats_token_stride = heads,
      .stats_head_stride = 1,
      .stats_dtype = stats_dtype,
      .stats_kind = BANYAN_STATS_LSE,
      .base = BANYAN_BASE_E,
      .empty = BANYAN_EMPTY_NEG_INF,
  };
}
