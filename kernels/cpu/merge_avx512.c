/* SPDX-License-Identifier: Apache-2.0
 * The AVX-512 table. It is compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -ffp-contract=off. */
#include <immintrin.h>

#include "detect.h"
#include "merge_math.h"
#include "op.h"

typedef __m512 vec;
#define VEC_LANES 16

static inline vec vec_set(float x) { return _mm512_set1_ps(x); }

static inline vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }

static inline vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }

static inline vec vec_load_f32(const void *values) { return _mm512_loadu_ps(values); }

static inline vec vec_load_f16(const void *values) { return _mm512_cvtph_ps(_mm256_loadu_si256(values)); }

static inline vec vec_load_bf16(const void *values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(values)), 16));
}

static inline void vec_store_f32(void *values, vec v) { _mm512_storeu_ps(values, v); }

static inline void vec_stream_f32(float *values, vec v) { _mm512_stream_ps(values, v); }

static inline void vec_stream_end(void) { _mm_sfence(); }

static inline void vec_store_f16(void *values, vec v) {
  _mm256_storeu_si256(values, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vec vec_round_f16(vec v) {
  return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Gives the bits of bny_bf16_of_float(). The processor's own conversion flushes denormals. */
static inline __m512i bf16_bits(vec v) {
  __m512i bits = _mm512_castps_si512(v);
  __m512i high = _mm512_srli_epi32(bits, 16);
  __m512i even = _mm512_and_si512(high, _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff))), 16);
  __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40));
}

static inline vec vec_round_bf16(vec v) { return _mm512_castsi512_ps(_mm512_slli_epi32(bf16_bits(v), 16)); }

static inline void vec_store_bf16(void *values, vec v) {
  _mm256_storeu_si256(values, _mm512_cvtepi32_epi16(bf16_bits(v)));
}

static inline vec vec_saturate(vec v, float limit) {
  const __m512 bound = _mm512_set1_ps(limit), sign = _mm512_set1_ps(-0.0f);
  __m512 magnitude = _mm512_andnot_ps(sign, v);
  __mmask16 over = _mm512_cmp_ps_mask(magnitude, bound, _CMP_GT_OQ);
  over = _mm512_mask_cmp_ps_mask(over, magnitude, _mm512_set1_ps(BNY_INFINITY_F), _CMP_LT_OQ);
  return _mm512_mask_or_ps(v, over, bound, _mm512_and_ps(v, sign));
}

static inline unsigned vec_count_over(vec v, float limit) {
  const __m512 magnitude = _mm512_andnot_ps(_mm512_set1_ps(-0.0f), v);
  __mmask16 over = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(limit), _CMP_GT_OQ);
  over = _mm512_mask_cmp_ps_mask(over, magnitude, _mm512_set1_ps(BNY_INFINITY_F), _CMP_LT_OQ);
  return (unsigned)__builtin_popcount(over);
}

static int32_t at_least(const float *scores, int32_t n, float bound, int32_t *found, int32_t most) {
  const __m512 least = _mm512_set1_ps(bound);
  __m512i positions = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int32_t count = 0;
  for (int32_t i = 0; i < n && count <= most; i += 16) {
    __mmask16 rest = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
    __mmask16 is = _mm512_mask_cmp_ps_mask(rest, _mm512_maskz_loadu_ps(rest, scores + i), least, _CMP_GE_OQ);
    _mm512_storeu_si512(found + count, _mm512_maskz_compress_epi32(is, positions));
    count += __builtin_popcount(is);
    positions = _mm512_add_epi32(positions, _mm512_set1_epi32(16));
  }
  return count;
}

#define KERNELS_NAME "avx512"
#define KERNELS_SUPPORTED bny_cpu_has_avx512
#define KERNELS_TABLE bny_kernels_avx512
#include "merge_table.h"
