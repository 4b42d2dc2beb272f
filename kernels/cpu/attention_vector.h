/* SPDX-License-Identifier: Apache-2.0
 * attention_wide.h and attention_avx2.c share these hooks of attention_loop.h, which convert elements. They are written
 * in terms of vectors, which the including file defines first:
 *
 *   vec, VEC_LANES               a vector of floats; then it includes vec.h
 *   vec_fma                      a b + c
 *   vec_row, vec_row_tail        LANES elements of a row of the cache; or fewer, then zeros. Elements of E4M3 come
 *                                times 2^-8, as the f16 of the same bits has it
 *   vec_group                    the same for 64 elements of eight bits
 *   DIRECT_E4M3, DIRECT_E5M2     most rows of queries for which each vector of a type is converted where it is used
 *   vec_least                    the lesser of two; the second if one is NaN
 *   vec_any_positive             whether any lane is above 0
 *   vec_scores                   the scores of a quad for some rows, and 0 in lanes of further rows
 *   vec_exp2                     2^x for x <= 0; 0 below 2^-125; NaN for NaN
 */
#pragma once

#include "attention_exp2.h"
#include "attention_loop.h"

enum { LINE_BYTES = 64 };
enum { SUM_HEADS = VEC_LANES / ATTENTION_QUAD }; /* heads whose scores of a quad fill a vector */

static inline double attention_factor(banyan_dtype form) { return form == BANYAN_E4M3 ? 0x1p-8 : 1; }

/* Converts a row of one type. */
INLINE void convert_row(const char *row, int32_t count, banyan_dtype dtype, const float *scale, float *to) {
  const vec exact = vec_set1((float)(1 / attention_factor(dtype))), by = vec_set1(scale ? *scale : 1);
  const bool is_exact = attention_factor(dtype) == 1;
  int32_t i = 0;
  for (; attention_element_bytes(dtype) == 1 && i + ATTENTION_GROUP <= count; i += ATTENTION_GROUP) {
    vec values[ATTENTION_GROUP / VEC_LANES];
    vec_group(row + i, dtype, values);
    UNROLL for (int x = 0; x < ATTENTION_GROUP / VEC_LANES; x++) {
      if (scale) values[x] = vec_mul(is_exact ? values[x] : vec_mul(values[x], exact), by);
      vec_store(to + i + x * VEC_LANES, values[x]);
    }
  }
  for (; i < count; i += VEC_LANES) {
    const char *at = row + (size_t)i * attention_element_bytes(dtype);
    const int32_t left = count - i;
    vec values = left < VEC_LANES ? vec_row_tail(at, left, dtype) : vec_row(at, dtype);
    if (scale) values = vec_mul(is_exact ? values : vec_mul(values, exact), by);
    if (left >= VEC_LANES) {
      vec_store(to + i, values);
      continue;
    }
    float last[VEC_LANES];
    vec_store(last, values);
    memcpy(to + i, last, (size_t)left * sizeof *to);
  }
}

static __attribute__((noinline)) void attention_convert(const char *row, int32_t count, banyan_dtype dtype,
                                                        const float *scale, float *values) {
  switch ((int)dtype) {
#define X(name, type)                               \
  case type:                                        \
    if (scale)                                      \
      convert_row(row, count, type, scale, values); \
    else                                            \
      convert_row(row, count, type, NULL, values);  \
    break;
    ATTENTION_TYPES
#undef X
  }
}

INLINE void convert_rows(const attention_next *rows, int32_t columns, banyan_dtype dtype, const attention_next *next,
                         int32_t stride, float *to) {
  const char *row = rows->row;
  for (int32_t i = 0; i < rows->rows; i++, row += rows->step, to += stride) {
    attention_prefetch_row(next, i);
    convert_row(row, columns, dtype, NULL, to);
  }
}

static __attribute__((noinline)) void attention_convert_rows(const attention_next *rows, int32_t columns,
                                                             banyan_dtype dtype, const attention_next *next,
                                                             int32_t stride, float *to) {
  if (dtype == BANYAN_E4M3)
    convert_rows(rows, columns, BANYAN_E4M3, next, stride, to);
  else
    convert_rows(rows, columns, BANYAN_E5M2, next, stride, to);
}

/* Returns true if tiles of the type are converted before they are used. Where a few rows share them, vectors are
 * converted in registers instead. int8 takes so few instructions that it always is. */
INLINE bool is_converted(const bny_attention_task *task) {
  return attention_is_f8(task->kv_dtype) &&
         task->heads > (task->kv_dtype == BANYAN_E4M3 ? (int32_t)DIRECT_E4M3 : (int32_t)DIRECT_E5M2);
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

/* Turns the scores of keys [first, first + count) of the tile, in p, into weights 2^(t - m) of rows from h on, and adds
 * them to the sums of the tile. */
INLINE void weigh_rows(int rows, const bny_attention_task *task, int32_t h, int32_t first, int32_t count,
                       attention_work *work) {
  float *minus_at = work->minus_m + ATTENTION_QUAD * h, *d_at = work->tile_d + ATTENTION_QUAD * h;
  float *p = work->p + first / ATTENTION_QUAD * ATTENTION_LANES + ATTENTION_QUAD * h;
  vec minus_m = vec_load(minus_at), d = vec_load(d_at), factor = vec_set1(work->k_factor);
  for (int32_t i = 0; i < count; i += ATTENTION_QUAD, p += ATTENTION_LANES) {
    int32_t keys = count - i < ATTENTION_QUAD ? count - i : ATTENTION_QUAD;
    vec scores = vec_scores(p, rows), shown = minus_m;
    if (rows < SUM_HEADS || keys < ATTENTION_QUAD)
      shown = vec_least(minus_m, vec_load(lanes_shown[rows - 1][keys - 1]));
    vec x = vec_fma(scores, factor, shown);
    if (__builtin_expect(vec_any_positive(x) || task->soft_cap > 0, 0)) {
      float lanes[VEC_LANES];
      vec_store(lanes, scores);
      vec_store(d_at, d);
      attention_settle(task, work, h, rows, keys, (first + i) / ATTENTION_QUAD, lanes);
      for (int32_t lane = ATTENTION_QUAD * rows; lane < VEC_LANES; lane++) lanes[lane] = -INFINITY;
      x = vec_load(lanes);
      minus_m = vec_load(minus_at);
      d = vec_load(d_at);
    }
    vec weights = vec_exp2(x);
    vec_store(p, weights);
    d = vec_add(d, weights);
  }
  vec_store(d_at, d);
}
