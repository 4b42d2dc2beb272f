/* SPDX-License-Identifier: Apache-2.0
 * The AVX2 table. It is compiled with -mavx2 -mfma -mf16c -ffp-contract=off. */
#include <immintrin.h>

#include "detect.h"
#include "merge_math.h"
#include "select.h"

typedef __m256 vec;
#define VEC_LANES 8
#include "vec.h"

static inline vec vec_load_f16(const void *values) { return _mm256_cvtph_ps(_mm_loadu_si128(values)); }

static inline vec vec_load_bf16(const void *values) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(values)), 16));
}

static inline void vec_stream_f32(float *values, vec v) { _mm256_stream_ps(values, v); }

static inline void vec_stream_end(void) { _mm_sfence(); }

static inline void vec_store_f16(void *values, vec v) {
  _mm_storeu_si128(values, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vec vec_round_f16(vec v) {
  return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Gives the bits of bny_bf16_of_float(). */
static inline __m256i bf16_bits(vec v) {
  __m256i bits = _mm256_castps_si256(v);
  __m256i high = _mm256_srli_epi32(bits, 16);
  __m256i even = _mm256_and_si256(high, _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
  __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

static inline vec vec_round_bf16(vec v) { return _mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(v), 16)); }

static inline void vec_store_bf16(void *values, vec v) {
  __m256i halves = bf16_bits(v);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0xd8);
  _mm_storeu_si128(values, _mm256_castsi256_si128(packed));
}

static inline vec vec_saturate(vec v, float limit) {
  const __m256 bound = _mm256_set1_ps(limit), sign = _mm256_set1_ps(-0.0f);
  __m256 magnitude = _mm256_andnot_ps(sign, v);
  __m256 over = _mm256_and_ps(_mm256_cmp_ps(magnitude, bound, _CMP_GT_OQ),
                              _mm256_cmp_ps(magnitude, _mm256_set1_ps(BNY_INFINITY_F), _CMP_LT_OQ));
  return _mm256_blendv_ps(v, _mm256_or_ps(bound, _mm256_and_ps(v, sign)), over);
}

static inline unsigned vec_count_over(vec v, float limit) {
  __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
  __m256 over = _mm256_and_ps(_mm256_cmp_ps(magnitude, _mm256_set1_ps(limit), _CMP_GT_OQ),
                              _mm256_cmp_ps(magnitude, _mm256_set1_ps(BNY_INFINITY_F), _CMP_LT_OQ));
  return (unsigned)__builtin_popcount((unsigned)_mm256_movemask_ps(over));
}

static int32_t at_least(const float *scores, int32_t n, float bound, int32_t *found, int32_t most) {
  const __m256 least = _mm256_set1_ps(bound);
  int32_t count = 0, i = 0;
  for (; i <= n - 8 && count <= most; i += 8) {
    unsigned is = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(scores + i), least, _CMP_GE_OQ));
    for (; is; is &= is - 1) found[count++] = i + __builtin_ctz(is);
  }
  for (; i < n && count <= most; i++)
    if (scores[i] >= bound) found[count++] = i;
  return count;
}

#define KERNELS_NAME "avx2"
#define KERNELS_SUPPORTED bny_cpu_has_avx2
#define KERNELS_TABLE bny_kernels_avx2
#define KERNELS_PAIRS(verb) bny_pairs_plain_##verb
#include "merge_table.h"
