/* SPDX-License-Identifier: Apache-2.0
 * These attention kernels use Advanced SIMD (NEON), which every aarch64 processor has. */
#include <arm_neon.h>
#include <string.h>

#define ATTENTION_FORMS ATTENTION_TYPES

#include "attention_loop.h"
#include "detect.h"

typedef float32x4_t vec;
#include "vec.h"
typedef uint16x8_t word_vec;

/* A bf16 becomes an f32 in one instruction, so words need no groups. */
enum {
  VEC_LANES = 4,
  SCORE_HEADS = 4,
  GROUPED_BF16 = 0,
  BF16_DOTS = 0,
  HAS_LINES = 0,
  DIRECT_E4M3 = 4,
  DIRECT_E5M2 = 4
};

#define VALUE_VECTORS(heads) ((heads) >= 3 ? 4 : 8)

INLINE vec vec_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }

INLINE vec widen(uint16x4_t halves, banyan_dtype dtype) {
  if (dtype == BANYAN_F16) return vcvt_f32_f16(vreinterpret_f16_u16(halves));
  return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
}

/* E4M3 becomes an f16 with its exponent and mantissa: that is 2^-8 times the value, subnormals included. */
INLINE vec widen_bytes(uint32_t four, banyan_dtype dtype) {
  uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
  int16x4_t wide = vget_low_s16(vmovl_s8(vreinterpret_s8_u8(bytes)));
  if (dtype == BANYAN_I8) return vcvtq_f32_s32(vmovl_s16(wide));
  if (dtype == BANYAN_E5M2) return widen(vreinterpret_u16_s16(vshl_n_s16(wide, 8)), BANYAN_F16);
  uint16x4_t halves = vand_u16(vreinterpret_u16_s16(vshl_n_s16(wide, 7)), vdup_n_u16(0xbf80));
  uint16x4_t is_nan = vceq_u16(vand_u16(halves, vdup_n_u16(0x3f80)), vdup_n_u16(0x3f80));
  return widen(vorr_u16(halves, vand_u16(is_nan, vdup_n_u16(0x7e00))), BANYAN_F16);
}

INLINE vec vec_row(const char *at, banyan_dtype dtype) {
  uint32_t four;
  if (dtype == BANYAN_F32) return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)at));
  if (attention_element_bytes(dtype) == 2) return widen(vreinterpret_u16_u8(vld1_u8((const uint8_t *)at)), dtype);
  memcpy(&four, at, sizeof four);
  return widen_bytes(four, dtype);
}

INLINE vec vec_row_tail(const char *at, int32_t count, banyan_dtype dtype) {
  char elements[16] = {0};
  if (count > 0) memcpy(elements, at, (size_t)count * attention_element_bytes(dtype));
  return vec_row(elements, dtype);
}

INLINE void vec_group(const char *at, banyan_dtype dtype, vec *values) {
  UNROLL for (int i = 0; i < ATTENTION_GROUP / VEC_LANES; i++) values[i] = vec_row(at + i * VEC_LANES, dtype);
}

typedef const char *line_vec;

INLINE line_vec vec_line(const char *at, banyan_dtype dtype) {
  (void)dtype;
  return at;
}

INLINE vec vec_of_line(line_vec line, banyan_dtype dtype, int i) { return vec_row(line + i * VEC_LANES, dtype); }

/* No form is grouped. */
INLINE void vec_words(const char *at, banyan_dtype dtype, word_vec *words) {
  (void)dtype;
  words[0] = vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)at));
}

INLINE vec vec_even(word_vec words) { return vreinterpretq_f32_u16(words); }

INLINE vec vec_odd(word_vec words) { return vreinterpretq_f32_u16(words); }

INLINE vec vec_dot(vec sums, vec query, word_vec words) {
  (void)query;
  (void)words;
  return sums;
}

INLINE vec vec_sums(vec (*v)[4]) { return vpaddq_f32(vpaddq_f32(v[0][0], v[0][1]), vpaddq_f32(v[0][2], v[0][3])); }

INLINE vec vec_scores(const float *p, int rows) {
  (void)rows;
  return vec_load(p);
}

/* The second is returned if the first is NaN: NaN compares as not less. */
INLINE vec vec_least(vec a, vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }

INLINE bool vec_any_positive(vec a) { return vmaxvq_u32(vcgtq_f32(a, vdupq_n_f32(0))) != 0; }

INLINE vec exp2_fraction(vec f);

/* The whole part goes into the exponent. The result is a normal number, because x >= -125. */
INLINE vec vec_exp2(vec x) {
  uint32x4_t vanishes = vcltq_f32(x, vdupq_n_f32(-125.0f));
  vec whole = vrndnq_f32(x);
  int32x4_t y = vreinterpretq_s32_f32(exp2_fraction(vsubq_f32(x, whole)));
  y = vaddq_s32(y, vshlq_n_s32(vcvtq_s32_f32(whole), 23));
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_s32(y), vanishes));
}

#include "attention_wide.h"
#include "attention_bounds.h"

const bny_attention_kernels bny_attention_neon = {"neon", "portable", bny_cpu_any, attention_run, attention_code_masses,
                                                  NULL,   NULL};
