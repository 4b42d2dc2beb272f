/* SPDX-License-Identifier: Apache-2.0
 * These attention kernels need AVX-512 (F, BW, DQ, VL) and F16C. */
#include <immintrin.h>

#ifdef ATTENTION_AVX512_BF16
#define ATTENTION_FORMS                                                       \
  ATTENTION_TYPES                                                             \
  X(attention_over_bf16_grouped, BANYAN_BF16 | ATTENTION_GROUPED)             \
  X(attention_over_bf16_dot, BANYAN_BF16 | ATTENTION_GROUPED | ATTENTION_DOT) \
  X(attention_over_e4m3_dot, BANYAN_E4M3 | ATTENTION_GROUPED | ATTENTION_DOT) \
  X(attention_over_e5m2_dot, BANYAN_E5M2 | ATTENTION_GROUPED | ATTENTION_DOT) \
  X(attention_over_i8_dot, BANYAN_I8 | ATTENTION_GROUPED | ATTENTION_DOT)
enum { GROUPED_BF16 = 1, BF16_DOTS = 1 };
#else
#define ATTENTION_FORMS ATTENTION_TYPES X(attention_over_bf16_grouped, BANYAN_BF16 | ATTENTION_GROUPED)
enum { GROUPED_BF16 = 1, BF16_DOTS = 0 };
#endif

#include "attention_avx512.h"
#include "detect.h"
#ifdef ATTENTION_AVX512_BF16
#include "attention_bytes.h"
#endif

typedef __m512i word_vec;

enum { VEC_LANES = 16, SCORE_HEADS = 4, HAS_LINES = 1, DIRECT_E4M3 = 4, DIRECT_E5M2 = 4 };

#define VALUE_VECTORS(heads) ((heads) >= 3 ? 4 : 8)

#ifdef ATTENTION_AVX512_BF16
INLINE void vec_words(const char *at, banyan_dtype dtype, word_vec *words) {
  __m512i bytes = _mm512_loadu_si512(at);
  if (dtype == BANYAN_BF16) {
    words[0] = bytes;
    return;
  }
  __m512i low, high;
  bf16_of_bytes(bytes, dtype, &low, &high);
  words[0] = _mm512_unpacklo_epi8(low, high);
  words[1] = _mm512_unpackhi_epi8(low, high);
}

INLINE vec vec_dot(vec sums, vec query, word_vec words) {
  return _mm512_dpbf16_ps(sums, (__m512bh)query, (__m512bh)words);
}
#else
INLINE void vec_words(const char *at, banyan_dtype dtype, word_vec *words) {
  (void)dtype;
  words[0] = _mm512_loadu_si512(at);
}

INLINE vec vec_dot(vec sums, vec query, word_vec words) {
  (void)query;
  (void)words;
  return sums;
}
#endif

INLINE vec vec_even(word_vec words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }

INLINE vec vec_odd(word_vec words) {
  return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)));
}

/* Transposes during the addition: lane i of each 128 bits becomes the sum of vector i's four elements there. */
INLINE vec sums_of_quarters(const vec *v) {
  vec s01 = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  vec s23 = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  __m512d d01 = _mm512_castps_pd(s01), d23 = _mm512_castps_pd(s23);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(d01, d23)), _mm512_castpd_ps(_mm512_unpackhi_pd(d01, d23)));
}

/* Adds neighbouring quarters: the sums of a come first, then those of b. */
INLINE vec add_quarters(vec a, vec b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

INLINE vec vec_sums(vec (*v)[4]) {
  vec low = add_quarters(sums_of_quarters(v[0]), sums_of_quarters(v[1]));
  return add_quarters(low, add_quarters(sums_of_quarters(v[2]), sums_of_quarters(v[3])));
}

INLINE vec vec_least(vec a, vec b) { return _mm512_min_ps(a, b); }

INLINE vec vec_scores(const float *p, int rows) { return _mm512_maskz_loadu_ps((__mmask16)((1 << 4 * rows) - 1), p); }

INLINE bool vec_any_positive(vec a) { return _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_GT_OQ) != 0; }

#include "attention_wide.h"

enum { PROMPT_ROWS = 14 };

INLINE vec vec_most(vec a, vec b) { return _mm512_max_ps(a, b); }

INLINE float vec_top(vec a) { return _mm512_reduce_max_ps(a); }

INLINE float vec_total(vec a) { return _mm512_reduce_add_ps(a); }

INLINE vec vec_kept(uint32_t bits, vec a, vec b) { return _mm512_mask_mov_ps(b, (__mmask16)bits, a); }

INLINE bool vec_all_zero(vec a) { return _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_EQ_OQ) == 0xffff; }

INLINE void vec_transpose(vec *v) {
  __m512i *z = (__m512i *)(void *)v;
  UNROLL for (int i = 0; i < VEC_LANES; i += 4) transpose_in_quarters(z + i);
  UNROLL for (int i = 0; i < 4; i++) transpose_quarters(z + i, 4);
}

#include "attention_prompt.h"
#include "attention_bounds.h"

#ifdef ATTENTION_AVX512_BF16
const bny_attention_kernels bny_attention_avx512_bf16 = {
    "avx512_bf16",         "avx512",           bny_cpu_has_avx512_bf16, attention_run,
    attention_code_masses, attention_run_many, attention_many_bytes};
#else
const bny_attention_kernels bny_attention_avx512 = {"avx512",
                                                    "avx512",
                                                    bny_cpu_has_avx512,
                                                    attention_run,
                                                    attention_code_masses,
                                                    attention_run_many,
                                                    attention_many_bytes};
#endif
