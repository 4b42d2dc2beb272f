/* SPDX-License-Identifier: Apache-2.0
 *
 * The hooks of attention_loop.h in terms of vectors. The including file defines:
 *
 *   vec, VEC_LANES               a vector of floats
 *   vec_zero, vec_set1, vec_load, vec_store, vec_fma (a b + c), vec_add, vec_mul
 *   vec_row, vec_row_tail        LANES elements of a row of the cache; or fewer, then zeros. Those of E4M3 are times
 *                                2^-8, as an f16 of the same bits is
 *   vec_words                    2 LANES columns of a grouped form as 16-bit words
 *   vec_even, vec_odd            the even or odd words, which are bf16, as f32
 *   vec_dot                      sums of pairs of products of bf16 words, added to floats: for ATTENTION_DOT
 *   vec_sum                      of the lanes
 *   vec_store_sums               sums of the lanes of four vectors, last levels in double, times a factor
 *   vec_difference               (float)(t[lane] - m)
 *   vec_exp2                     2^x for x <= 0; 0 below 2^-125; NaN for NaN
 *   vec_top                      the largest of m and of t[count], count rounded up to LANES_MAX; NaN is skipped
 *   SCORE_HEADS                  heads whose four-key sums fit in the registers together with four keys
 *   GROUPED_BF16, GROUPED_E4M3   1 where caches of the type have a grouped form; BF16_DOTS: 1 where there is vec_dot
 *   VALUE_VECTORS(heads)         vectors of sums for each of 1 to 4 heads that fit together with as many values
 *
 * Each key and value is loaded and converted once for a block of heads. Rows are prefetched one tile ahead, into the
 * first-level cache.
 */
#ifndef BNY_CPU_ATTENTION_VECTOR_H
#define BNY_CPU_ATTENTION_VECTOR_H

#include "attention_loop.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { SCORE_KEYS = 4, VALUE_HEADS = 4, LINE_BYTES = 64 };

INLINE void prefetch_bytes(const char *first, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += LINE_BYTES) __builtin_prefetch(first + at, 0, 3);
}

static inline double attention_factor(banyan_dtype form) { return form == BANYAN_E4M3 ? 0x1p-8 : 1; }

/* ---- grouped forms ----------------------------------------------------------------------------------------------- */

/* Vectors of words in 64 columns. Words of bf16 are in the order of columns; words of E4M3 in that of vec_words(). */
enum { WORD_LANES = 2 * VEC_LANES, GROUP_WORDS = ATTENTION_GROUP / WORD_LANES };

INLINE bool is_grouped(banyan_dtype form) { return ((int)form & ATTENTION_GROUPED) != 0; }

INLINE banyan_dtype type_of(banyan_dtype form) { return (banyan_dtype)((int)form & ATTENTION_TYPE); }

/* The word that holds a column. Bytes are unpacked within 16 of them: the first 8 of each to the first vector. */
INLINE int32_t word_of(banyan_dtype form, int32_t column) {
  if (type_of(form) != BANYAN_E4M3) return column;
  int32_t at = column % ATTENTION_GROUP;
  return column - at + (at % 16 / 8) * WORD_LANES + at / 16 * 8 + at % 8;
}

static inline __attribute__((always_inline)) int32_t attention_place(banyan_dtype form, int32_t column) {
  if (!is_grouped(form)) return column;
  int32_t word = word_of(form, column), at = word % WORD_LANES;
  return word - at + at % 2 * VEC_LANES + at / 2;
}

static void attention_pack(banyan_dtype form, float *row, int32_t count) {
  float from[BNY_ATTENTION_HEAD_DIM_MAX];
  if (!is_grouped(form)) return;
  memcpy(from, row, (size_t)count * sizeof *row);
  for (int32_t i = 0; i < count; i++) {
    if ((int)form & ATTENTION_DOT) {
      uint32_t bits;
      memcpy(&bits, &from[i], sizeof bits);
      ((uint16_t *)(void *)row)[word_of(form, i)] = (uint16_t)(bits >> 16);
    } else
      row[attention_place(form, i)] = from[i];
  }
}

static banyan_dtype attention_form(const bny_attention_task *task) {
  banyan_dtype type = task->kv_dtype;
  if (task->head_dim % ATTENTION_GROUP != 0 || task->value_dim % ATTENTION_GROUP != 0) return type;
  int form = (int)type;
  if ((type == BANYAN_BF16 && GROUPED_BF16) || (type == BANYAN_E4M3 && GROUPED_E4M3)) {
    form |= ATTENTION_GROUPED;
    if (task->q_dtype == BANYAN_BF16 && BF16_DOTS) form |= ATTENTION_DOT;
  }
  return (banyan_dtype)form;
}

/* The columns of a vector of words, as floats: of bf16 2 vectors of them, of E4M3 all 64. */
INLINE int32_t spread_vectors(banyan_dtype form) {
  return !is_grouped(form) ? 1 : type_of(form) == BANYAN_E4M3 ? ATTENTION_GROUP / VEC_LANES : 2;
}

INLINE void vec_spread(const char *at, banyan_dtype form, vec *values) {
  if (!is_grouped(form)) {
    values[0] = vec_row(at, form);
    return;
  }
  word_vec words[GROUP_WORDS];
  vec_words(at, type_of(form), words);
  UNROLL for (int32_t i = 0; i < spread_vectors(form) / 2; i++) {
    values[2 * i] = vec_even(words[i]);
    values[2 * i + 1] = vec_odd(words[i]);
  }
}

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

/* ---- logits: a block of heads x SCORE_KEYS keys ------------------------------------------------------------------ */

INLINE void score_step(int heads, const float *q, int32_t q_stride, const vec *k, vec (*sums)[SCORE_KEYS]) {
  UNROLL for (int h = 0; h < heads; h++) {
    vec query = vec_load(q + h * q_stride);
    UNROLL for (int i = 0; i < SCORE_KEYS; i++) sums[h][i] = vec_fma(query, k[i], sums[h][i]);
  }
}

/* 64 columns. */
INLINE void score_group(int heads, banyan_dtype form, const float *q, int32_t q_stride, int32_t first,
                        const char *const *rows, vec (*sums)[SCORE_KEYS]) {
  word_vec words[SCORE_KEYS][GROUP_WORDS];
  int32_t bytes = (int32_t)attention_element_bytes(form), step = spread_vectors(form) / 2;
  vec k[SCORE_KEYS];
  UNROLL for (int i = 0; i < SCORE_KEYS; i++) {
    UNROLL for (int x = 0; x < GROUP_WORDS; x += step) {
      vec_words(rows[i] + (int64_t)(first + x * WORD_LANES) * bytes, type_of(form), words[i] + x);
    }
  }
  UNROLL for (int x = 0; x < GROUP_WORDS; x++) {
    if ((int)form & ATTENTION_DOT) {
      UNROLL for (int h = 0; h < heads; h++) {
        vec query = vec_load(q + h * q_stride + first / 2 + x * VEC_LANES);
        UNROLL for (int i = 0; i < SCORE_KEYS; i++) sums[h][i] = vec_dot(sums[h][i], query, words[i][x]);
      }
      continue;
    }
    UNROLL for (int i = 0; i < SCORE_KEYS; i++) k[i] = vec_even(words[i][x]);
    score_step(heads, q + first + x * WORD_LANES, q_stride, k, sums);
    UNROLL for (int i = 0; i < SCORE_KEYS; i++) k[i] = vec_odd(words[i][x]);
    score_step(heads, q + first + x * WORD_LANES + VEC_LANES, q_stride, k, sums);
  }
}

INLINE void score_block(int heads, const bny_attention_task *task, banyan_dtype dtype, const float *q, int32_t q_stride,
                        const char *const *rows, double factor, double *t) {
  vec sums[SCORE_HEADS][SCORE_KEYS], k[SCORE_KEYS];
  int32_t whole = task->head_dim / VEC_LANES * VEC_LANES;
  UNROLL for (int h = 0; h < heads; h++) { UNROLL for (int i = 0; i < SCORE_KEYS; i++) sums[h][i] = vec_zero(); }
  for (int32_t j = 0; is_grouped(dtype) && j < whole; j += ATTENTION_GROUP)
    score_group(heads, dtype, q, q_stride, j, rows, sums);
  for (int32_t j = 0; !is_grouped(dtype) && j < whole; j += VEC_LANES) {
    UNROLL for (int i = 0; i < SCORE_KEYS; i++) {
      k[i] = vec_row(rows[i] + (size_t)j * attention_element_bytes(dtype), dtype);
    }
    score_step(heads, q + j, q_stride, k, sums);
  }
  if (!is_grouped(dtype) && whole < task->head_dim) {
    UNROLL for (int i = 0; i < SCORE_KEYS; i++) {
      k[i] = vec_row_tail(rows[i] + (size_t)whole * attention_element_bytes(dtype), task->head_dim - whole, dtype);
    }
    score_step(heads, q + whole, q_stride, k, sums);
  }
  UNROLL for (int h = 0; h < heads; h++) vec_store_sums(sums[h], factor, t + h * ATTENTION_TILE);
}

INLINE void attention_scores(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                             attention_work *work) {
  int64_t row_bytes = task->head_dim * (int64_t)attention_element_bytes(dtype);
  int32_t keys_ahead = attention_tile(task, dtype);
  int64_t ahead = keys_ahead * task->k_token_stride * (int64_t)attention_element_bytes(dtype);
  for (int32_t i = 0; i < count; i += SCORE_KEYS) {
    const char *rows[SCORE_KEYS];
    for (int32_t at = 0; at < SCORE_KEYS; at++) {
      /* Beyond the last key this repeats that key; its results are overwritten below. */
      int32_t key = first + (i + at < count ? i + at : count - 1);
      rows[at] = attention_row(task->k, task->k_token_stride, key, dtype);
      if (task->keys - key > keys_ahead) prefetch_bytes(rows[at] + ahead, row_bytes);
    }
    int32_t end = work->row + work->rows;
    for (int32_t h = work->row; h < end;) {
      const float *q = work->q + h * work->q_stride;
      double *t = work->t + h * ATTENTION_TILE + i;
      int32_t left = end - h;
      if (left >= SCORE_HEADS) {
        score_block(SCORE_HEADS, task, dtype, q, work->q_stride, rows, work->k_factor, t);
        h += SCORE_HEADS;
      } else if (SCORE_HEADS > 2 && left >= 2) {
        score_block(2, task, dtype, q, work->q_stride, rows, work->k_factor, t);
        h += 2;
      } else {
        score_block(1, task, dtype, q, work->q_stride, rows, work->k_factor, t);
        h += 1;
      }
    }
  }
  for (int32_t h = work->row; h < work->row + work->rows; h++)
    for (int32_t i = count; i % BNY_ATTENTION_LANES_MAX != 0; i++) work->t[h * ATTENTION_TILE + i] = -INFINITY;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

INLINE double attention_top(const double *t, double m, int32_t count) { return vec_top(t, m, count); }

static inline float attention_weights(const double *t, double m, int32_t count, float *p) {
  vec sum = vec_zero();
  for (int32_t i = 0; i < count; i += VEC_LANES) {
    vec weight = vec_exp2(vec_difference(t + i, m));
    vec_store(p + i, weight);
    sum = vec_add(sum, weight);
  }
  return vec_sum(sum);
}

/* 2^f for |f| <= 1/2: minimax of degree 6, relative error 2.6e-9 before rounding. */
INLINE vec exp2_fraction(vec f) {
  vec y = vec_set1(0x1.470b4ap-13f);
  y = vec_fma(y, f, vec_set1(0x1.5f7276p-10f));
  y = vec_fma(y, f, vec_set1(0x1.3b270ep-7f));
  y = vec_fma(y, f, vec_set1(0x1.c6ae72p-5f));
  y = vec_fma(y, f, vec_set1(0x1.ebfbe2p-3f));
  y = vec_fma(y, f, vec_set1(0x1.62e432p-1f));
  return vec_fma(y, f, vec_set1(1.0f));
}

/* ---- values: a block of heads x vectors -------------------------------------------------------------------------- */

/* `tail`: elements in the last vector; 0: all. `ahead`: distance in bytes of the prefetch; 0: none. */
INLINE void value_block(int heads, int vectors, int32_t tail, const bny_attention_task *task, banyan_dtype dtype,
                        const char *v, int32_t count, int64_t ahead, const float *p, float *n, int32_t n_stride) {
  size_t element = attention_element_bytes(dtype);
  int64_t v_step = task->v_token_stride * (int64_t)element;
  vec sums[VALUE_HEADS][VALUE_VECTORS(1)], values[VALUE_VECTORS(1)];
  UNROLL for (int h = 0; h < heads; h++) { UNROLL for (int j = 0; j < vectors; j++) sums[h][j] = vec_zero(); }
  for (int32_t i = 0; i < count; i++) {
    UNROLL for (int j = 0; j < vectors; j += spread_vectors(dtype)) {
      const char *at = v + (size_t)(j * VEC_LANES) * element;
      if (tail != 0 && j == vectors - 1)
        values[j] = vec_row_tail(at, tail, dtype);
      else
        vec_spread(at, dtype, values + j);
    }
    if (ahead != 0) prefetch_bytes(v + ahead, vectors * VEC_LANES * (int64_t)element);
    UNROLL for (int h = 0; h < heads; h++) {
      vec weight = vec_set1(p[h * ATTENTION_TILE + i]);
      UNROLL for (int j = 0; j < vectors; j++) sums[h][j] = vec_fma(weight, values[j], sums[h][j]);
    }
    v += v_step;
  }
  UNROLL for (int h = 0; h < heads; h++) {
    UNROLL for (int j = 0; j < vectors; j++) {
      float *at = n + h * n_stride + j * VEC_LANES;
      vec_store(at, vec_add(vec_load(at), sums[h][j]));
    }
  }
}

INLINE void value_heads(int heads, const bny_attention_task *task, banyan_dtype dtype, const char *v, int32_t count,
                        int64_t ahead, const float *p, float *n, int32_t n_stride) {
  int32_t element = (int32_t)attention_element_bytes(dtype);
  int32_t block = VALUE_VECTORS(heads) * VEC_LANES;
  int32_t column = 0;
  for (; column + block <= task->value_dim; column += block)
    value_block(heads, VALUE_VECTORS(heads), 0, task, dtype, v + column * element, count, ahead, p, n + column,
                n_stride);
  for (; is_grouped(dtype) && column < task->value_dim; column += spread_vectors(dtype) * VEC_LANES)
    value_block(heads, spread_vectors(dtype), 0, task, dtype, v + column * element, count, ahead, p, n + column,
                n_stride);
  for (; !is_grouped(dtype) && column + VEC_LANES <= task->value_dim; column += VEC_LANES)
    value_block(heads, 1, 0, task, dtype, v + column * element, count, ahead, p, n + column, n_stride);
  if (!is_grouped(dtype) && column < task->value_dim)
    value_block(heads, 1, task->value_dim - column, task, dtype, v + column * element, count, 0, p, n + column,
                n_stride);
}

/* Tiles of 8 rows: memory must not rest while weights are made, so values are prefetched in that phase. */
INLINE bool is_fetched_with_weights(const bny_attention_task *task, banyan_dtype dtype, int32_t rows) {
  return rows > 1 && attention_tile(task, dtype) == 8;
}

INLINE void attention_ahead(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                            int32_t part, int32_t parts) {
  int32_t tile = attention_tile(task, dtype);
  if (!is_fetched_with_weights(task, dtype, parts) || task->keys - first - count < tile) return;
  int64_t row_bytes = task->value_dim * (int64_t)attention_element_bytes(dtype);
  int32_t each = parts >= 8 ? 1 : parts >= 4 ? 2 : 4; /* of 8: a division would take longer */
  for (int32_t i = part * each; i < (part + 1) * each && i < tile; i++)
    prefetch_bytes(attention_row(task->v, task->v_token_stride, first + tile + i, dtype), row_bytes);
}

INLINE void attention_accumulate(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                                 attention_work *work) {
  const char *v = attention_row(task->v, task->v_token_stride, first, dtype);
  int64_t ahead = attention_tile(task, dtype) * task->v_token_stride * (int64_t)attention_element_bytes(dtype);
  if (task->keys - first - count < attention_tile(task, dtype) || is_fetched_with_weights(task, dtype, work->rows))
    ahead = 0;
  int32_t end = work->row + work->rows;
  for (int32_t h = work->row; h < end;) {
    const float *p = work->p + h * ATTENTION_TILE;
    float *n = work->n + h * work->n_stride;
    int32_t left = end - h;
    int32_t stride = work->n_stride;
    if (left >= 4)
      value_heads(4, task, dtype, v, count, ahead, p, n, stride);
    else if (left == 3)
      value_heads(3, task, dtype, v, count, ahead, p, n, stride);
    else if (left == 2)
      value_heads(2, task, dtype, v, count, ahead, p, n, stride);
    else
      value_heads(1, task, dtype, v, count, ahead, p, n, stride);
    h += left < VALUE_HEADS ? left : VALUE_HEADS;
    ahead = 0;
  }
}

#endif
