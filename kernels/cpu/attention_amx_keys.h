/* SPDX-License-Identifier: Apache-2.0
 *
 * Logits and weights of a tile, for attention_amx.c. The including file defines the hooks that call these. */
#ifndef BNY_CPU_ATTENTION_AMX_KEYS_H
#define BNY_CPU_ATTENTION_AMX_KEYS_H

#include "attention_amx.h"

/* A key's line as one or two rows of matrices: of f16 the lower and the upper parts, of bytes two steps. */
INLINE void convert_key(banyan_dtype form, const char *from, uint16_t *first, uint16_t *second) {
  __m512i a, b, line = _mm512_loadu_si512(from);
  if (is_cut(form)) {
    const __m256i *halves = (const __m256i *)(const void *)from;
    cut_halves(_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1), &b, &a);
  } else if (is_bytes(form)) {
    __m512i low, high;
    bf16_of_bytes(line, form, &low, &high);
    a = _mm512_unpacklo_epi8(low, high);
    b = _mm512_unpackhi_epi8(low, high);
  } else {
    _mm512_store_si512(first, line);
    return;
  }
  _mm512_store_si512(first, a);
  _mm512_store_si512(second, b);
}

/* A line of each key of a tile as matrices, with zeros beyond the keys. */
INLINE void convert_line(banyan_dtype form, const char *line, int64_t stride, int32_t count,
                         uint16_t (*to)[KEYS][WORDS]) {
  UNROLL for (int32_t i = 0; i < KEYS; i++) {
    if (i < count) {
      convert_key(form, line + i * stride, to[0][i], to[1][i]);
    } else {
      memset(to[0][i], 0, ROW_BYTES);
      memset(to[1][i], 0, ROW_BYTES);
    }
  }
}

/* Adds products of 32 keys and a part of a step of queries to the logits. */
INLINE void multiply_step(const uint16_t (*q)[WORDS], const char *row, int64_t stride) {
  _tile_loadd(T_QUERIES, q, ROW_BYTES);
  _tile_loadd(T_KEYS, row, stride);
  _tile_dpbf16ps(T_LOGITS_0, T_KEYS, T_QUERIES);
  _tile_loadd(T_KEYS, row + HALF * stride, stride);
  _tile_dpbf16ps(T_LOGITS_1, T_KEYS, T_QUERIES);
}

/* One pass over the matrices of a tile. The first converts each line while the one before it is multiplied. If there is
 * no other pass, two lines of matrices take turns. */
INLINE void multiply_matrices(banyan_dtype form, const uint16_t (*q)[HALF][WORDS], int32_t lines, int32_t plane,
                              bool is_first, bool is_only, const char *row, int64_t stride, int32_t count,
                              matrix_work *work) {
  int32_t mask = is_only ? 1 : -1;
  int32_t each = is_bytes(form) ? 2 : 1;
  for (int32_t line = 0; line <= lines; line++) {
    if (is_first && line < lines) convert_line(form, row + line * ROW_BYTES, stride, count, work->k[line & mask]);
    FENCE();
    for (int32_t i = 0; line > 0 && i < each; i++)
      multiply_step(q[(line - 1) * each + i], (const char *)work->k[(line - 1) & mask][plane + i], ROW_BYTES);
    FENCE();
  }
}

/* logits: [key][row] of a tile whose first key is at `row`. Whole tiles of bf16 are multiplied where they lie. */
INLINE void multiply_keys(const bny_attention_task *task, banyan_dtype form, const char *row, int64_t stride,
                          int32_t count, int32_t rows, matrix_work *work) {
  int32_t steps = task->head_dim / WORDS, parts = parts_of(task->q_dtype), logit_bytes = rows * (int32_t)sizeof(float);
  int32_t lines = is_bytes(form) ? steps / 2 : steps, planes = is_cut(form) ? 2 : 1;
  bool is_direct = type_of(form) == BANYAN_BF16 && count == KEYS;
  FENCE();
  _tile_zero(T_LOGITS_0);
  _tile_zero(T_LOGITS_1);
  for (int32_t part = 0; part < parts; part++) {
    const uint16_t(*q)[HALF][WORDS] = work->q + part * steps;
    for (int32_t step = 0; is_direct && step < steps; step++) multiply_step(q[step], row + step * ROW_BYTES, stride);
    for (int32_t plane = 0; !is_direct && plane < planes; plane++)
      multiply_matrices(form, q, lines, plane, part + plane == 0, parts * planes == 1, row, stride, count, work);
  }
  _tile_stored(T_LOGITS_0, work->logits, logit_bytes);
  _tile_stored(T_LOGITS_1, work->logits + HALF * rows, logit_bytes);
  FENCE();
}

/* The lanes of a vector from lane `first` on that belong to keys of the tile. */
INLINE __mmask16 lanes_of_keys(int32_t lanes, int32_t first) {
  int32_t left = lanes - first;
  return left >= HALF ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
}

/* Raises the max of each row at hand that has a greater logit, as the vectors below would see it. */
static __attribute__((noinline)) void raise_rows(int32_t rows, int32_t count, attention_work *work) {
  float by_lane[HALF], sign = work->k_factor < 0 ? -1 : 1;
  __m512 signs = _mm512_set1_ps(sign), greatest = _mm512_set1_ps(-INFINITY);
  for (int32_t i = 0; i < count * rows; i += HALF)
    greatest = _mm512_mask_max_ps(greatest, lanes_of_keys(count * rows, i), greatest,
                                  _mm512_mul_ps(signs, _mm512_loadu_ps(work->more.logits + i)));
  _mm512_storeu_ps(by_lane, greatest);
  for (int32_t h = work->row; h < work->row + work->rows; h++) {
    float score = by_lane[h];
    for (int32_t i = h + rows; i < HALF; i += rows) score = by_lane[i] > score ? by_lane[i] : score;
    score *= sign;
    if (fmaf(score, work->k_factor, work->minus_m[ATTENTION_QUAD * h]) > 0)
      attention_raise(work, h, (double)score * (double)work->k_factor, 0);
  }
}

/* The -m of each lane: those of a vector's keys for each row. Other rows get no weight. */
INLINE __m512 lanes_of_max(int32_t rows, const attention_work *work) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i row = _mm512_and_si512(lane, _mm512_set1_epi32(rows - 1)), at = _mm512_slli_epi32(row, 2);
  const float *m = work->minus_m; /* each row has four of the same */
  __m512 lanes = _mm512_permutex2var_ps(_mm512_loadu_ps(m), at, _mm512_loadu_ps(m + HALF));
  if (rows == 16) {
    __m512 last = _mm512_permutex2var_ps(_mm512_loadu_ps(m + 2 * HALF), at, _mm512_loadu_ps(m + 3 * HALF));
    lanes = _mm512_mask_mov_ps(lanes, 0xff00, last);
  }
  __mmask16 is_here =
      _mm512_cmplt_epu32_mask(_mm512_sub_epi32(row, _mm512_set1_epi32(work->row)), _mm512_set1_epi32(work->rows));
  return _mm512_mask_mov_ps(_mm512_set1_ps(-FLT_MAX), is_here, lanes);
}

/* p = 2^(t - m) for logits of `count` keys, and their sums: [key % 4][row]. Returns which lanes had one above m. */
INLINE __mmask16 weigh_lanes(int32_t rows, int32_t count, int32_t pairs_each, __m512 minus_m, attention_work *work,
                             float *by_lane) {
  const __m512 factor = _mm512_set1_ps(work->k_factor);
  __m512 sums[ATTENTION_QUAD];
  __mmask16 above = 0;
  UNROLL for (int32_t k = 0; k < rows / 4; k++) sums[k] = _mm512_setzero_ps();
  for (int32_t first = 0; first < KEYS * rows; first += HALF * rows / 4) {
    UNROLL for (int32_t k = 0; k < rows / 4; k++) {
      int32_t i = first + k * HALF;
      __mmask16 mask = count == KEYS ? 0xffff : lanes_of_keys(count * rows, i);
      __m512 x = _mm512_fmadd_ps(_mm512_loadu_ps(work->more.logits + i), factor, minus_m);
      above |= _mm512_mask_cmp_ps_mask(mask, x, _mm512_setzero_ps(), _CMP_GT_OQ);
      x = _mm512_min_ps(_mm512_setzero_ps(), x); /* x if it is NaN */
      __m512 weights = _mm512_maskz_mov_ps(mask, vec_exp2(x));
      sums[k] = _mm512_add_ps(sums[k], weights);
      _mm512_storeu_ps(work->more.p + i, weights);
      for (int32_t pair = 0; pair < pairs_each; pair++) prefetch_pair(&work->more.keys_ahead);
    }
  }
  UNROLL for (int32_t k = 0; k < rows / 4; k++) _mm512_storeu_ps(by_lane + k * HALF, sums[k]);
  return above;
}

/* work->more.p, and the sums of weights. */
INLINE void weigh(int32_t rows, int32_t count, int32_t pairs_each, attention_work *work) {
  float by_lane[ATTENTION_QUAD * HALF];
  if (__builtin_expect(weigh_lanes(rows, count, pairs_each, lanes_of_max(rows, work), work, by_lane) != 0, 0)) {
    raise_rows(rows, count, work);
    weigh_lanes(rows, count, 0, lanes_of_max(rows, work), work, by_lane);
  }
  for (int32_t h = work->row; h < work->row + work->rows; h++) {
    const float *sum = by_lane + h;
    work->tile_d[ATTENTION_QUAD * h] += (sum[0] + sum[rows]) + (sum[2 * rows] + sum[3 * rows]);
  }
}

/* Transposes 4 x 4 numbers in each quarter of four vectors. */
INLINE void transpose_quarters(__m512i *z) {
  __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
  __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
  z[0] = _mm512_unpacklo_epi64(a, c);
  z[1] = _mm512_unpackhi_epi64(a, c);
  z[2] = _mm512_unpacklo_epi64(b, d);
  z[3] = _mm512_unpackhi_epi64(b, d);
}

/* A tile's pairs of keys, in the order of keys modulo 4. It is the same for any number of rows, and so are the bits of
 * a row. */
INLINE int32_t pair_at(int32_t key) { return key % 4 * 4 + key / 4; }

/* Which vector of weights transpose() expects at `slot` for that order. */
INLINE int32_t vector_at(int32_t rows, int32_t slot) {
  return rows == 4 ? slot : rows == 8 ? slot % 4 * 2 + slot / 4 : pair_at(slot);
}

/* z: [key][row] in `rows` vectors, in the order of vector_at(). It becomes [row][key]. */
INLINE void transpose(int32_t rows, __m512i *z) {
  UNROLL for (int i = 0; i < rows; i += 4) transpose_quarters(z + i);
  if (rows == 8) {
    UNROLL for (int i = 0; i < 4; i++) {
      __m512i a = z[i], b = z[i + 4];
      z[i] = _mm512_shuffle_i32x4(a, b, 0x88);
      z[i + 4] = _mm512_shuffle_i32x4(a, b, 0xdd);
    }
  }
  if (rows == 16) {
    UNROLL for (int i = 0; i < 4; i++) {
      __m512i a = _mm512_shuffle_i32x4(z[i], z[i + 4], 0x88), b = _mm512_shuffle_i32x4(z[i], z[i + 4], 0xdd);
      __m512i c = _mm512_shuffle_i32x4(z[i + 8], z[i + 12], 0x88), d = _mm512_shuffle_i32x4(z[i + 8], z[i + 12], 0xdd);
      z[i] = _mm512_shuffle_i32x4(a, c, 0x88);
      z[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
      z[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
      z[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
  }
}

/* Weights of pairs of keys, in parts. */
INLINE void cut_weights(int32_t rows, matrix_work *work) {
  __m512 low[HALF], high[HALF];
  UNROLL for (int i = 0; i < rows; i++) {
    low[i] = _mm512_loadu_ps(work->p + vector_at(rows, i) * HALF);
    high[i] = _mm512_loadu_ps(work->p + (rows + vector_at(rows, i)) * HALF);
  }
  UNROLL for (int part = 0; part < PARTS_MAX; part++) {
    __m512i z[HALF];
    UNROLL for (int i = 0; i < rows; i++) z[i] = pairs_of(upper_part(&low[i]), upper_part(&high[i]));
    transpose(rows, z);
    UNROLL for (int i = 0; i < rows; i++) _mm512_store_si512(work->weights[part * rows + i], z[i]);
  }
}

#endif
