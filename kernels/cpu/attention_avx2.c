/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention for AVX2 with FMA and F16C. */
#include <immintrin.h>
#include <string.h>

#include "attention.h"
#include "detect.h"

/* The keys or the values of a tile as f32. */
typedef struct unpacked_tile {
  float values[8 * BNY_ATTENTION_HEAD_DIM_MAX];
} unpacked_tile;

#define ATTENTION_FORMS ATTENTION_TYPES
#define ATTENTION_OWN_TILE
#define ATTENTION_MORE_WORK unpacked_tile

#include "attention_loop.h"

typedef __m256 vec;
typedef __m128 vec4;

enum { VEC_LANES = 8 };

INLINE vec vec_zero(void) { return _mm256_setzero_ps(); }
INLINE vec vec_set1(float value) { return _mm256_set1_ps(value); }
INLINE vec vec_load(const float *at) { return _mm256_loadu_ps(at); }
INLINE void vec_store(float *at, vec value) { _mm256_storeu_ps(at, value); }
INLINE vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vec vec_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
INLINE vec vec_add(vec a, vec b) { return _mm256_add_ps(a, b); }

INLINE vec widen(__m128i halves, banyan_dtype dtype) {
  if (dtype == BANYAN_F16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* E4M3 becomes an f16 with its exponent and mantissa: that is 2^-8 times the value, subnormals included. */
INLINE vec widen_bytes(__m128i bytes, banyan_dtype dtype) {
  if (dtype == BANYAN_I8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  if (dtype == BANYAN_E5M2) return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
  __m128i halves = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7), _mm_set1_epi16((short)0xbf80));
  __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x3f80));
  __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x3f80));
  return _mm256_cvtph_ps(_mm_or_si128(halves, _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00))));
}

INLINE vec vec_row(const char *at, banyan_dtype dtype) {
  if (dtype == BANYAN_F32) return _mm256_loadu_ps((const float *)at);
  if (attention_element_bytes(dtype) == 2) return widen(_mm_loadu_si128((const __m128i *)at), dtype);
  return widen_bytes(_mm_loadl_epi64((const __m128i *)at), dtype);
}

INLINE vec vec_row_tail(const char *at, int32_t count, banyan_dtype dtype) {
  char elements[32] = {0};
  if (count > 0) memcpy(elements, at, (size_t)count * attention_element_bytes(dtype));
  return vec_row(elements, dtype);
}

/* The same for 16 elements of E4M3, for which there is no NaN. */
INLINE void vec_row_pair(const char *at, vec *values) {
  __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)at));
  __m256i halves = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80));
  values[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  values[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}

INLINE bool vec_any_nan(const char *at, int32_t count) {
  const __m256i sign = _mm256_set1_epi8((char)0x80), nan = _mm256_set1_epi8(-1);
  __m256i any = _mm256_setzero_si256();
  for (int32_t i = 0; i < count; i += 32) {
    __m256i bytes = _mm256_or_si256(_mm256_loadu_si256((const __m256i *)(at + i)), sign);
    any = _mm256_or_si256(any, _mm256_cmpeq_epi8(bytes, nan));
  }
  return _mm256_testz_si256(any, any) == 0;
}

/* Transposes during the addition: lane i of each 128 bits becomes the sum of vector i's four elements there. */
INLINE vec sums_of_halves(const vec *v) {
  vec s01 = _mm256_add_ps(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
  vec s23 = _mm256_add_ps(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
  __m256d d01 = _mm256_castps_pd(s01), d23 = _mm256_castps_pd(s23);
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(d01, d23)), _mm256_castpd_ps(_mm256_unpackhi_pd(d01, d23)));
}

INLINE vec vec4_load(const float *at) { return _mm256_zextps128_ps256(_mm_loadu_ps(at)); }

INLINE void vec4_store(float *at, vec4 value) { _mm_storeu_ps(at, value); }

INLINE vec4 vec_four_sums(const vec *v) {
  vec sums = sums_of_halves(v);
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

INLINE vec vec_least(vec a, vec b) { return _mm256_min_ps(a, b); }

INLINE bool vec_any_positive(vec a) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_GT_OQ)) != 0;
}

INLINE vec exp2_fraction(vec f);

/* The whole part goes into the exponent. The result is a normal number, because x >= -125. */
INLINE vec vec_exp2(vec x) {
  vec kept = _mm256_cmp_ps(x, _mm256_set1_ps(-125.0f), _CMP_NLT_UQ);
  vec whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256i y = _mm256_castps_si256(exp2_fraction(_mm256_sub_ps(x, whole)));
  y = _mm256_add_epi32(y, _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23));
  return _mm256_and_ps(_mm256_castsi256_ps(y), kept);
}

#include "attention_narrow.h"
#include "attention_bounds.h"

const bny_attention_kernels bny_attention_avx2 = {"avx2",        "avx2",         bny_cpu_has_avx2,
                                                  attention_run, attention_dots, attention_code_masses};
