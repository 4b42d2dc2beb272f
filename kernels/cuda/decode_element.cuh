/* SPDX-License-Identifier: Apache-2.0
 * The differences between bf16 and f16 in decode kernels. */
#pragma once

#include "cuda/device.h"
#include "merge_math.h"

#ifndef BNY_CONVERTS_E4M3
/* Converts a byte of E4M3. Its exponent bias is 120 less than that of f32. */
BNY_DEVICE float bny_e4m3_float(uint32_t byte) {
  const float value = bny_mul(bny_float_of_bits((byte & 0x80u) << 24 | (byte & 0x7fu) << 20), 0x1p120f);
  return (byte & 0x7fu) == 0x7fu ? bny_float_of_bits(0x7fc00000u) : value;
}
BNY_DEVICE uint32_t bny_e4m3_f16(uint32_t bits) {
  return bny_pack_f16(bny_e4m3_float(bits & 0xffu), bny_e4m3_float(bits >> 8 & 0xffu));
}
#endif

/* Weights are 2^(t - m + HEADROOM). The sum of many small weights in a row matters, but f16 has no values below 2^-24.
 * Weights in f16 therefore use its range up to 2^15. */
struct bny_bf16 {
  enum : int { HEADROOM = 0 };
  BNY_DEVICE uint32_t pack(float low, float high) { return bny_pack_bf16(low, high); }
  BNY_DEVICE float low(uint32_t bits) { return bny_bf16_low(bits); }
  BNY_DEVICE float high(uint32_t bits) { return bny_bf16_high(bits); }
  BNY_DEVICE uint32_t of_e4m3(uint32_t two) {
    const uint32_t halves = bny_e4m3_f16(two);
    return bny_pack_bf16(bny_f16_low(halves), bny_f16_high(halves));
  }
  BNY_DEVICE void multiply(float *d, const uint32_t *a, const uint32_t *b) { bny_mma_bf16(d, a, b); }
#ifdef BNY_WARPGROUPS
  BNY_DEVICE void group_logits(float *d, bny_group_operand a, bny_group_operand b, bool add) {
    bny_group_logits_bf16(d, a, b, add);
  }
  BNY_DEVICE void group_values(float *d, const uint32_t *a, bny_group_operand b) { bny_group_values_bf16(d, a, b); }
#endif
};

struct bny_f16 {
  enum : int { HEADROOM = 15 };
  BNY_DEVICE uint32_t pack(float low, float high) { return bny_pack_f16(low, high); }
  BNY_DEVICE float low(uint32_t bits) { return bny_f16_low(bits); }
  BNY_DEVICE float high(uint32_t bits) { return bny_f16_high(bits); }
  BNY_DEVICE uint32_t of_e4m3(uint32_t two) { return bny_e4m3_f16(two); }
  BNY_DEVICE void multiply(float *d, const uint32_t *a, const uint32_t *b) { bny_mma_f16(d, a, b); }
#ifdef BNY_WARPGROUPS
  BNY_DEVICE void group_logits(float *d, bny_group_operand a, bny_group_operand b, bool add) {
    bny_group_logits_f16(d, a, b, add);
  }
  BNY_DEVICE void group_values(float *d, const uint32_t *a, bny_group_operand b) { bny_group_values_f16(d, a, b); }
#endif
};

/* Splits each of two weights into the sum of two elements. In bf16 the error is below 2^-16 of the weight. In f16 it is
 * below 2^-22 of the weight, or 2^-40 of the largest possible weight. */
template <class Element> BNY_DEVICE void bny_decode_split(float low, float high, uint32_t *coarse, uint32_t *fine) {
  *coarse = Element::pack(low, high);
  *fine = Element::pack(low - Element::low(*coarse), high - Element::high(*coarse));
}
