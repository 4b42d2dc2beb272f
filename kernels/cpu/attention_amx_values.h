/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of a tile, for attention_amx.c. */
#ifndef BNY_CPU_ATTENTION_AMX_VALUES_H
#define BNY_CPU_ATTENTION_AMX_VALUES_H

#include "attention_amx_keys.h"

/* Tiles of a group of columns. */
INLINE int32_t group_columns(banyan_dtype form) { return is_bytes(form) ? GROUP : WORDS; }

/* A group is unpacked within 16 bytes of it: four columns of each go to a tile. So quarters of vectors change places.
 */
static const float *attention_columns(banyan_dtype form, const float *row, int32_t count, float *to) {
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

/* A group of columns of the keys of a tile, with zeros beyond them. */
INLINE void fill_values(banyan_dtype form, const char *v, int64_t stride, int32_t count, bool prefetches_keys,
                        matrix_work *work, uint16_t (*to)[HALF][WORDS]) {
  UNROLL for (int32_t i = 0; i < HALF; i++) {
    __m512i low = i < count ? _mm512_loadu_si512(v + i * stride) : _mm512_setzero_si512();
    __m512i high = i + HALF < count ? _mm512_loadu_si512(v + (i + HALF) * stride) : _mm512_setzero_si512();
    pair_values(form, low, high, pair_at(i), to);
    prefetch_pair(&work->values_ahead);
    if (prefetches_keys) prefetch_pair(&work->keys_ahead);
  }
}

INLINE void multiply_values(const uint16_t *v, float *n) {
  _tile_zero(T_SUMS);
  _tile_loadd(T_VALUES, v, ROW_BYTES);
  _tile_dpbf16ps(T_SUMS, T_WEIGHTS_2, T_VALUES);
  _tile_dpbf16ps(T_SUMS, T_WEIGHTS_1, T_VALUES);
  _tile_dpbf16ps(T_SUMS, T_WEIGHTS_0, T_VALUES);
  _tile_stored(T_SUMS, n, ROW_BYTES);
}

INLINE void load_weights(int32_t rows, const matrix_work *work) {
  _tile_loadd(T_WEIGHTS_0, work->weights[0], ROW_BYTES);
  _tile_loadd(T_WEIGHTS_1, work->weights[rows], ROW_BYTES);
  _tile_loadd(T_WEIGHTS_2, work->weights[2 * rows], ROW_BYTES);
}

INLINE void add_sums(int32_t tiles, int32_t column, const float (*n)[HALF][HALF], attention_work *work) {
  for (int32_t h = work->row; h < work->row + work->rows; h++) {
    float *to = work->n + h * work->n_stride + column;
    UNROLL for (int i = 0; i < tiles; i++)
        _mm512_storeu_ps(to + i * HALF, _mm512_add_ps(_mm512_loadu_ps(to + i * HALF), _mm512_load_ps(n[i][h])));
  }
}

/* Writes group `group` of the values of a tile. */

#endif
