/* SPDX-License-Identifier: Apache-2.0
 * The AVX-512 table. It is compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -ffp-contract=off. */
#include <immintrin.h>

#include "detect.h"
#include "merge_math.h"
#include "select.h"

typedef __m512 vec;
#define VEC_LANES 16
#include "vec.h"

static inline vec vec_load_f16(const void *values) { return _mm512_cvtph_ps(_mm256_loadu_si256(values)); }

static inline vec vec_load_bf16(const void *values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(values)), 16));
}

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

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

static inline __m512i all_of(int64_t word) { return _mm512_set1_epi64(word); }

static inline __mmask8 rest_of(int32_t left) { return left < 8 ? (__mmask8)((1u << left) - 1) : (__mmask8)0xff; }

/* A mask of both words of each of four pairs. */
static inline __mmask8 halves_of(unsigned of) {
  of = (of | of << 2) & 0x33;
  of = (of | of << 1) & 0x55;
  return (__mmask8)(of * 3);
}

/* The images of eight scores, as bny_score_key() makes them. */
static inline __m512i keys_of(__m256 scores) {
  const __m256i bits = _mm256_castps_si256(scores), least = _mm256_set1_epi32(0x7fffffff);
  const __m256i magnitude = _mm256_and_si256(bits, least);
  __m256i keys = _mm256_sub_epi32(least, magnitude);
  keys = _mm256_mask_add_epi32(keys, _mm256_movepi32_mask(bits), _mm256_set1_epi32(INT32_MIN), magnitude);
  keys = _mm256_mask_mov_epi32(keys, _mm256_testn_epi32_mask(magnitude, magnitude), least);
  const __mmask8 is_nan = _mm256_cmpgt_epi32_mask(magnitude, _mm256_set1_epi32(0x7f800000));
  return _mm512_cvtepu32_epi64(_mm256_mask_mov_epi32(keys, is_nan, _mm256_set1_epi32((int32_t)BNY_KEY_OF_NAN)));
}

static bool pairs_make(const float *scores, const int64_t *indices, int32_t count, int32_t rank, bny_pair *to) {
  const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11),
                second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  __m512i who =
      _mm512_add_epi64(all_of((int64_t)rank << BNY_SELECT_POSITION_BITS), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  __m512i high_before = all_of(0), low_before = all_of(0), signs = all_of(0);
  __mmask8 wrong = 0;
  for (int32_t i = 0; i < count; i += 8) {
    const __mmask8 rest = rest_of(count - i);
    const __m512i index = _mm512_maskz_loadu_epi64(rest, indices + i),
                  key = keys_of(_mm256_maskz_loadu_ps(rest, scores + i));
    const __m512i high = _mm512_or_si512(_mm512_slli_epi64(key, 32), _mm512_srli_epi64(index, 31));
    const __m512i low = _mm512_or_si512(_mm512_slli_epi64(index, 33), who);
    const __m512i high_left = _mm512_alignr_epi64(high, high_before, 7),
                  low_left = _mm512_alignr_epi64(low, low_before, 7);
    const __mmask8 same = _mm512_cmpeq_epi64_mask(high_left, high);
    wrong |= rest & (_mm512_cmpgt_epu64_mask(high_left, high) | (same & _mm512_cmpge_epu64_mask(low_left, low)));
    signs = _mm512_or_si512(signs, index);
    _mm512_mask_storeu_epi64(to + i, halves_of(rest & 15), _mm512_permutex2var_epi64(high, first, low));
    _mm512_mask_storeu_epi64(to + i + 4, halves_of(rest >> 4), _mm512_permutex2var_epi64(high, second, low));
    high_before = high, low_before = low;
    who = _mm512_add_epi64(who, all_of(8));
  }
  return !wrong && !_mm512_movepi64_mask(signs);
}

static void pairs_read(const bny_pair *list, int32_t count, int32_t rank, bny_pairs_read *to) {
  const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
  const __m512i ranks = all_of((1 << 20) - 1), places = all_of(BNY_SELECT_MOST - 1), mine = all_of(rank);
  __m512i least = all_of(INT64_MAX), most = all_of(0);
  to->own_count = 0;
  for (int32_t i = 0; i < count; i += 8) {
    const __mmask8 rest = rest_of(count - i);
    const __m512i a = _mm512_maskz_loadu_epi64(halves_of(rest & 15), list + i);
    const __m512i b = _mm512_maskz_loadu_epi64(halves_of(rest >> 4), list + i + 4);
    const __m512i high = _mm512_permutex2var_epi64(a, even, b), low = _mm512_permutex2var_epi64(a, odd, b);
    const __m512i index =
        _mm512_or_si512(_mm512_srli_epi64(_mm512_slli_epi64(high, 32), 1), _mm512_srli_epi64(low, 33));
    const __m256i key = _mm512_cvtepi64_epi32(_mm512_srli_epi64(high, 32));
    const __m256i bits =
        _mm256_mask_sub_epi32(key, (__mmask8)~_mm256_movepi32_mask(key), _mm256_set1_epi32(0x7fffffff), key);
    if (to->scores) _mm256_mask_storeu_epi32(to->scores + i, rest, bits);
    if (to->indices) _mm512_mask_storeu_epi64(to->indices + i, rest, index);
    least = _mm512_mask_min_epi64(least, rest, least, index);
    most = _mm512_mask_max_epi64(most, rest, most, index);
    const __m512i from = _mm512_and_si512(_mm512_srli_epi64(low, BNY_SELECT_POSITION_BITS), ranks);
    const __mmask8 is_own = rest & _mm512_cmpeq_epi64_mask(from, mine);
    const int number = __builtin_popcount(is_own);
    const __m256i place = _mm512_cvtepi64_epi32(_mm512_maskz_compress_epi64(is_own, _mm512_and_si512(low, places)));
    if (to->own) _mm256_mask_storeu_epi32(to->own + to->own_count, rest_of(number), place);
    to->own_count += number;
  }
  to->least = _mm512_reduce_min_epi64(least);
  to->most = _mm512_reduce_max_epi64(most);
}

#define KERNELS_PAIRS(verb) pairs_##verb
#define KERNELS_NAME "avx512"
#define KERNELS_SUPPORTED bny_cpu_has_avx512
#define KERNELS_TABLE bny_kernels_avx512
#include "merge_table.h"
