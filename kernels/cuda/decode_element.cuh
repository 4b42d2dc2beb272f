/* SPDX-License-Identifier: Apache-2.0
 *
 * The differences between bf16 and f16 in decode kernels. */
#ifndef BNY_CUDA_DECODE_ELEMENT_CUH
#define BNY_CUDA_DECODE_ELEMENT_CUH

#include "cuda/device.h"

/* Weights are 2^(t - m + HEADROOM). f16 has no precision below 2^-24, and many small weights in a row matter, so they
 * use its range up to 2^15. */
struct bny_bf16 {
  enum : int { HEADROOM = 0 };
  BNY_DEVICE uint32_t pack(float low, float high) { return bny_pack_bf16(low, high); }
  BNY_DEVICE float low(uint32_t bits) { return bny_bf16_low(bits); }
  BNY_DEVICE float high(uint32_t bits) { return bny_bf16_high(bits); }
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
  BNY_DEVICE void multiply(float *d, const uint32_t *a, const uint32_t *b) { bny_mma_f16(d, a, b); }
#ifdef BNY_WARPGROUPS
  BNY_DEVICE void group_logits(float *d, bny_group_operand a, bny_group_operand b, bool add) {
    bny_group_logits_f16(d, a, b, add);
  }
  BNY_DEVICE void group_values(float *d, const uint32_t *a, bny_group_operand b) { bny_group_values_f16(d, a, b); }
#endif
};

/* Splits two weights into sums of two elements each. The rest is below 2^-16 of the weight in bf16, in f16 below 2^-22
 * of it, or 2^-40 of the largest possible one. */
template <class Element> BNY_DEVICE void bny_decode_split(float low, float high, uint32_t *coarse, uint32_t *fine) {
  *coarse = Element::pack(low, high);
  *fine = Element::pack(low - Element::low(*coarse), high - Element::high(*coarse));
}

#endif
