/* SPDX-License-Identifier: Apache-2.0
 * The attention kernels of AVX-512 and AMX share these vectors. The including file defines ATTENTION_FORMS. */
#pragma once

#include <immintrin.h>

#include "attention_loop.h"

typedef __m512 vec;
#include "vec.h"

INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }

INLINE vec widen_bf16(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* 64 elements of eight bits, converted halfway: int8 not at all, others to f16. */
typedef struct line_vec {
  const char *at;
  __m512i halves[2];
} line_vec;

/* E4M3 becomes an f16 with its exponent and mantissa: that is 2^-8 times the value, subnormals included. */
INLINE __m512i halves_of(__m256i bytes, banyan_dtype dtype, __mmask32 is_number) {
  if (dtype == BANYAN_E5M2) return _mm512_slli_epi16(_mm512_cvtepu8_epi16(bytes), 8);
  const __m512i wide = _mm512_and_si512(_mm512_cvtepi8_epi16(bytes), _mm512_set1_epi16(0x17f)); /* sign and magnitude */
  return _mm512_mask_slli_epi16(_mm512_set1_epi16(0x7e00), is_number, wide, 7);
}

INLINE line_vec line_of(__m512i bytes, banyan_dtype dtype) {
  const __mmask64 is_number = _mm512_cmpneq_epi8_mask(_mm512_add_epi8(bytes, bytes), _mm512_set1_epi8((char)0xfe));
  return (line_vec){.halves[0] = halves_of(_mm512_castsi512_si256(bytes), dtype, (__mmask32)is_number),
                    .halves[1] = halves_of(_mm512_extracti64x4_epi64(bytes, 1), dtype, (__mmask32)(is_number >> 32))};
}

INLINE line_vec vec_line(const char *at, banyan_dtype dtype) {
  return dtype == BANYAN_I8 ? (line_vec){.at = at} : line_of(_mm512_loadu_si512(at), dtype);
}

INLINE vec vec_of_line(line_vec line, banyan_dtype dtype, int i) {
  if (dtype == BANYAN_I8)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)line.at + i)));
  const __m512i halves = line.halves[i / 2];
  return _mm512_cvtph_ps(i % 2 == 0 ? _mm512_castsi512_si256(halves) : _mm512_extracti64x4_epi64(halves, 1));
}

INLINE vec widen_bytes(__m128i bytes, banyan_dtype dtype) {
  if (dtype == BANYAN_I8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  return vec_of_line(line_of(_mm512_zextsi128_si512(bytes), dtype), dtype, 0);
}

INLINE void vec_group(const char *at, banyan_dtype dtype, vec *values) {
  const line_vec line = vec_line(at, dtype);
  UNROLL for (int i = 0; i < ATTENTION_GROUP / 16; i++) values[i] = vec_of_line(line, dtype, i);
}

INLINE vec vec_row(const char *at, banyan_dtype dtype) {
  if (dtype == BANYAN_F32) return _mm512_loadu_ps(at);
  if (attention_element_bytes(dtype) == 1) return widen_bytes(_mm_loadu_si128((const __m128i *)at), dtype);
  __m256i halves = _mm256_loadu_si256((const __m256i *)at);
  return dtype == BANYAN_F16 ? _mm512_cvtph_ps(halves) : widen_bf16(halves);
}

INLINE vec vec_row_tail(const char *at, int32_t count, banyan_dtype dtype) {
  __mmask16 mask = (__mmask16)((1u << (count < 0 ? 0 : count)) - 1);
  if (dtype == BANYAN_F32) return _mm512_maskz_loadu_ps(mask, at);
  if (attention_element_bytes(dtype) == 1) return widen_bytes(_mm_maskz_loadu_epi8(mask, at), dtype);
  __m256i halves = _mm256_maskz_loadu_epi16(mask, at);
  return dtype == BANYAN_F16 ? _mm512_cvtph_ps(halves) : widen_bf16(halves);
}

#include "attention_exp2.h"

INLINE vec vec_exp2(vec x) {
  __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
  vec whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm512_maskz_scalef_ps(kept, exp2_fraction(_mm512_sub_ps(x, whole)), whole);
}

/* Transposes 4 x 4 quarters of the four vectors z[0], z[step], z[2 step] and z[3 step]. */
INLINE void transpose_quarters(__m512i *z, int step) {
  __m512i low = _mm512_shuffle_i32x4(z[0], z[step], 0x44), high = _mm512_shuffle_i32x4(z[0], z[step], 0xee);
  __m512i low2 = _mm512_shuffle_i32x4(z[2 * step], z[3 * step], 0x44);
  __m512i high2 = _mm512_shuffle_i32x4(z[2 * step], z[3 * step], 0xee);
  z[0] = _mm512_shuffle_i32x4(low, low2, 0x88);
  z[step] = _mm512_shuffle_i32x4(low, low2, 0xdd);
  z[2 * step] = _mm512_shuffle_i32x4(high, high2, 0x88);
  z[3 * step] = _mm512_shuffle_i32x4(high, high2, 0xdd);
}

/* Transposes 4 x 4 numbers within each quarter of four vectors. */
INLINE void transpose_in_quarters(__m512i *z) {
  __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
  __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
  z[0] = _mm512_unpacklo_epi64(a, c);
  z[1] = _mm512_unpackhi_epi64(a, c);
  z[2] = _mm512_unpacklo_epi64(b, d);
  z[3] = _mm512_unpackhi_epi64(b, d);
}
