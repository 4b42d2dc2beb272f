/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of a tile, for attention_amx.c. The including file defines the hooks that call these. */
#ifndef BNY_CPU_ATTENTION_AMX_VALUES_H
#define BNY_CPU_ATTENTION_AMX_VALUES_H

#include "attention_amx_keys.h"

/* Tiles of a group of columns. */
INLINE int32_t group_columns(banyan_dtype form) { return is_bytes(form) ? GROUP : WORDS; }

/* A group is unpacked within 16 bytes of it: four columns of each go to a tile. So quarters of vectors change places.
 */
static const float *attention_columns(banyan_dtype form, const float *row, int32_t count, float *to) {
  if (is_cut(form)) return row;
  for (int32_t j = 0; j < count; j += group_columns(form)) {
    __m512 a = _mm512_loadu_ps(row + j), b = _mm512_loadu_ps(row + j + HALF), c, d;
    __m512 low = _mm512_shuffle_f32x4(a, b, 0x44), high = _mm512_shuffle_f32x4(a, b, 0xee); /* a0 a1 b0 b1 */
    if (is_bytes(form)) {
      c = _mm512_loadu_ps(row + j + 2 * HALF);
      d = _mm512_loadu_ps(row + j + 3 * HALF);
      __m512 low2 = _mm512_shuffle_f32x4(c, d, 0x44), high2 = _mm512_shuffle_f32x4(c, d, 0xee);
      _mm512_storeu_ps(to + j, _mm512_shuffle_f32x4(low, low2, 0x88));
      _mm512_storeu_ps(to + j + HALF, _mm512_shuffle_f32x4(low, low2, 0xdd));
      _mm512_storeu_ps(to + j + 2 * HALF, _mm512_shuffle_f32x4(high, high2, 0x88));
      _mm512_storeu_ps(to + j + 3 * HALF, _mm512_shuffle_f32x4(high, high2, 0xdd));
    } else {
      _mm512_storeu_ps(to + j, _mm512_shuffle_f32x4(low, low, 0xd8));
      _mm512_storeu_ps(to + j + HALF, _mm512_shuffle_f32x4(high, high, 0xd8));
    }
  }
  return to;
}

/* Pairs of the values of two keys. */
INLINE void pair_values(banyan_dtype form, __m512i a, __m512i b, int32_t at, uint16_t (*to)[HALF][WORDS]) {
  if (!is_bytes(form)) {
    _mm512_store_si512(to[0][at], _mm512_unpacklo_epi16(a, b));
    _mm512_store_si512(to[1][at], _mm512_unpackhi_epi16(a, b));
    return;
  }
  __m512i bytes[2] = {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
  UNROLL for (int i = 0; i < 2; i++) {
    __m512i low, high;
    bf16_of_bytes(bytes[i], form, &low, &high);
    _mm512_store_si512(to[2 * i][at], _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(to[2 * i + 1][at], _mm512_unpackhi_epi8(low, high));
  }
}

/* The same for f16: a lower and an upper part of 16 columns each. */
INLINE void pair_cut_values(const char *a, const char *b, int32_t at, uint16_t (*to)[HALF][WORDS]) {
  UNROLL for (int i = 0; i < 2; i++) {
    __m256i low = a ? _mm256_loadu_si256((const __m256i *)(const void *)a + i) : _mm256_setzero_si256();
    __m256i high = b ? _mm256_loadu_si256((const __m256i *)(const void *)b + i) : _mm256_setzero_si256();
    __m512i upper, lower;
    cut_halves(low, high, &upper, &lower);
    _mm512_store_si512(to[2 * i][at], lower);
    _mm512_store_si512(to[2 * i + 1][at], upper);
  }
}

/* A group of columns of pairs [from, to) of the keys of a tile, with zeros beyond them. */
INLINE void fill_values(banyan_dtype form, const char *v, int64_t stride, int32_t count, int32_t from, int32_t to,
                        bool prefetches_keys, matrix_work *work, uint16_t (*tiles)[HALF][WORDS]) {
  UNROLL for (int32_t i = from; i < to; i++) {
    const char *low = v + i * stride, *high = v + (i + HALF) * stride;
    if (is_cut(form)) {
      pair_cut_values(i < count ? low : NULL, i + HALF < count ? high : NULL, pair_at(i), tiles);
    } else {
      __m512i a = i < count ? _mm512_loadu_si512(low) : _mm512_setzero_si512();
      __m512i b = i + HALF < count ? _mm512_loadu_si512(high) : _mm512_setzero_si512();
      pair_values(form, a, b, pair_at(i), tiles);
    }
    prefetch_pair(&work->values_ahead);
    if (prefetches_keys) prefetch_pair(&work->keys_ahead);
  }
}

INLINE void load_weights(int32_t rows, const matrix_work *work) {
  _tile_loadd(T_WEIGHTS_0, work->weights[0], ROW_BYTES);
  _tile_loadd(T_WEIGHTS_1, work->weights[rows], ROW_BYTES);
  _tile_loadd(T_WEIGHTS_2, work->weights[2 * rows], ROW_BYTES);
}

INLINE void multiply_part(const uint16_t (*v)[WORDS]) {
  _tile_loadd(T_VALUES, v, ROW_BYTES);
  _tile_dpbf16ps(T_SUMS, T_WEIGHTS_2, T_VALUES);
  _tile_dpbf16ps(T_SUMS, T_WEIGHTS_1, T_VALUES);
  _tile_dpbf16ps(T_SUMS, T_WEIGHTS_0, T_VALUES);
}

/* Adds to 16 columns of sums from `column` on. Rows that are not at hand stay as they are. */
INLINE void multiply_values(banyan_dtype form, const uint16_t (*v)[HALF][WORDS], int32_t column, bool is_all,
                            attention_work *work) {
  int64_t stride = work->n_stride * (int64_t)sizeof(float);
  float *n = work->n + column, *to = is_all ? n : work->more.n[0];
  _tile_loadd(T_SUMS, n, stride);
  multiply_part(v[0]);
  if (is_cut(form)) multiply_part(v[1]);
  _tile_stored(T_SUMS, to, is_all ? stride : ROW_BYTES);
  if (is_all) return;
  FENCE();
  for (int32_t h = work->row; h < work->row + work->rows; h++)
    _mm512_storeu_ps(n + h * work->n_stride, _mm512_load_ps(work->more.n[h]));
}

/* ---- one key ----------------------------------------------------------------------------------------------------- */

/* 16 columns of a row. */
INLINE __m512 row_floats(const char *row, int32_t column, banyan_dtype form) {
  if (!is_bytes(form)) {
    __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * (size_t)column));
    return is_cut(form) ? _mm512_cvtph_ps(halves) : widen_bf16(halves);
  }
  __m512 values = widen_bytes(_mm_loadu_si128((const __m128i *)(const void *)(row + column)), type_of(form));
  return type_of(form) == BANYAN_E4M3 ? _mm512_mul_ps(values, _mm512_set1_ps(0x1p8f)) : values;
}

/* n += w v for a group of columns, in the order of the tiles. */
INLINE void add_key(banyan_dtype form, const char *v, int32_t column, __m512 weight, float *n) {
  __m512 c[GROUP_TILES], tiles[GROUP_TILES];
  int32_t count = group_columns(form) / HALF;
  UNROLL for (int i = 0; i < count; i++) c[i] = row_floats(v, column + i * HALF, form);
  if (is_bytes(form)) {
    __m512 ab = _mm512_shuffle_f32x4(c[0], c[1], 0x44), cd = _mm512_shuffle_f32x4(c[2], c[3], 0x44);
    __m512 ab2 = _mm512_shuffle_f32x4(c[0], c[1], 0xee), cd2 = _mm512_shuffle_f32x4(c[2], c[3], 0xee);
    tiles[0] = _mm512_shuffle_f32x4(ab, cd, 0x88);
    tiles[1] = _mm512_shuffle_f32x4(ab, cd, 0xdd);
    tiles[2] = _mm512_shuffle_f32x4(ab2, cd2, 0x88);
    tiles[3] = _mm512_shuffle_f32x4(ab2, cd2, 0xdd);
  } else {
    tiles[0] = is_cut(form) ? c[0] : _mm512_shuffle_f32x4(c[0], c[1], 0x88);
    tiles[1] = is_cut(form) ? c[1] : _mm512_shuffle_f32x4(c[0], c[1], 0xdd);
  }
  UNROLL for (int i = 0; i < count; i++) {
    float *to = n + column + i * HALF;
    _mm512_storeu_ps(to, _mm512_fmadd_ps(weight, tiles[i], _mm512_loadu_ps(to)));
  }
}

/* By vectors, for a tile of one key would be mostly zeros. */
static __attribute__((noinline)) void attention_add_one(const bny_attention_task *keys, banyan_dtype form, int32_t key,
                                                        attention_work *work) {
  int32_t h = work->row;
  const float *q = work->q + h * work->q_stride;
  const char *k = attention_row(keys->k, keys->k_token_stride, key, form);
  const char *v = attention_row(keys->v, keys->v_token_stride, key, form);
  __m512 sum = _mm512_setzero_ps();
  for (int32_t j = 0; j < keys->head_dim; j += HALF)
    sum = _mm512_fmadd_ps(_mm512_loadu_ps(q + j), row_floats(k, j, form), sum);
  float score = _mm512_reduce_add_ps(sum);
  attention_raise(work, h, (double)score * (double)work->k_factor, 0);
  float distance = fmaf(score, work->k_factor, work->minus_m[ATTENTION_QUAD * h]);
  __m512 weight = vec_exp2(_mm512_set1_ps(distance > 0 ? 0 : distance));
  work->d[ATTENTION_QUAD * h] += (double)_mm512_cvtss_f32(weight);
  for (int32_t j = 0; j < keys->value_dim; j += group_columns(form))
    add_key(form, v, j, weight, work->n + h * work->n_stride);
}

#endif
