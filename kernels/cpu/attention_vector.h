/* SPDX-License-Identifier: Apache-2.0
 * attention_wide.h and attention_avx2.c share these hooks of attention_loop.h, which convert elements. They are written
 * in terms of vectors, which the including file defines first:
 *
 *   vec, VEC_LANES               a vector of floats
 *   vec_zero, vec_set1, vec_load, vec_store, vec_fma (a b + c), vec_add, vec_mul
 *   vec_row, vec_row_tail        LANES elements of a row of the cache; or fewer, then zeros. Elements of E4M3 come
 *                                times 2^-8, as the f16 of the same bits has it
 *   vec_least                    the lesser of two; the second if one is NaN
 *   vec_any_positive             whether any lane is above 0
 *   vec_exp2                     2^x for x <= 0; 0 below 2^-125; NaN for NaN
 */
#pragma once

#include "attention_exp2.h"
#include "attention_loop.h"

enum { LINE_BYTES = 64 };
enum { SUM_HEADS = VEC_LANES / ATTENTION_QUAD }; /* heads whose scores of a quad fill a vector */

static inline double attention_factor(banyan_dtype form) { return form == BANYAN_E4M3 ? 0x1p-8 : 1; }

static inline void attention_unpack(const char *row, int32_t count, banyan_dtype dtype, float scale, float *to) {
  const vec exact = vec_set1((float)(1 / attention_factor(dtype))), by = vec_set1(scale);
  for (int32_t i = 0; i < count; i += VEC_LANES) {
    vec values = vec_row(row + (size_t)i * attention_element_bytes(dtype), dtype);
    vec_store(to + i, vec_mul(vec_mul(values, exact), by));
  }
}

static void attention_convert(const char *row, int32_t count, banyan_dtype dtype, float *values) {
  float last[VEC_LANES];
  int32_t i = 0;
  for (; i + VEC_LANES <= count; i += VEC_LANES)
    vec_store(values + i, vec_row(row + (size_t)i * attention_element_bytes(dtype), dtype));
  if (i == count) return;
  vec_store(last, vec_row_tail(row + (size_t)i * attention_element_bytes(dtype), count - i, dtype));
  memcpy(values + i, last, (size_t)(count - i) * sizeof *values);
}

/* ---- weights: those of a quad ------------------------------------------------------------------------------------ */

/* The lesser of -m and these gives weight 0 to lanes past the rows and keys of a quad. */
#define LANE(rows, keys, at) ((at) / ATTENTION_QUAD < (rows) && (at) % ATTENTION_QUAD < (keys) ? FLT_MAX : -FLT_MAX)
#define LANES4(rows, keys, at) \
  LANE(rows, keys, at), LANE(rows, keys, (at) + 1), LANE(rows, keys, (at) + 2), LANE(rows, keys, (at) + 3)
#define LANES(rows, keys) \
  { LANES4(rows, keys, 0), LANES4(rows, keys, 4), LANES4(rows, keys, 8), LANES4(rows, keys, 12) }
#define LANES_OF_ROWS(rows) \
  { LANES(rows, 1), LANES(rows, 2), LANES(rows, 3), LANES(rows, 4) }
static const float lanes_shown[4][ATTENTION_QUAD][BNY_ATTENTION_LANES_MAX]
    __attribute__((aligned(64))) = {LANES_OF_ROWS(1), LANES_OF_ROWS(2), LANES_OF_ROWS(3), LANES_OF_ROWS(4)};
