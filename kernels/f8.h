/* SPDX-License-Identifier: Apache-2.0
 * The eight-bit floats of OCP, and the power-of-two scale that 32 of them share on the wire. Like merge_math.h it is
 * plain arithmetic without branches, for the host (C11) and the device (CUDA C++).
 *
 *   e4m3   1 sign, 4 exponent (bias 7), 3 mantissa bits: largest 448, smallest 2^-9, no infinity, NaN is 0x7f
 *   e5m2   1 sign, 5 exponent (bias 15), 2 mantissa bits: the upper byte of an f16, largest finite 57344
 *
 * Reading is exact. Writing rounds to nearest even and saturates: larger values and infinities become the largest
 * finite number. A NaN becomes 0x7f. */
#pragma once

#include "merge_math.h"

#define BNY_E4M3_MAX 448.0f
#define BNY_E5M2_MAX 57344.0f

/* ---- single values ----------------------------------------------------------------------------------------------- */

BNY_HD static inline float bny_float_of_e4m3(uint8_t code) {
  uint32_t magnitude = code & 0x7fu;
  /* subnormal: adds an implied 2^-6 and subtracts it again */
  uint32_t subnormal = bny_bits_of_float(bny_float_of_bits((121u << 23) | magnitude << 20) - 0x1p-6f);
  uint32_t finite = magnitude < 8u ? subnormal : (magnitude << 20) + (120u << 23);
  uint32_t bits = magnitude == 0x7fu ? 0x7fc00000u : finite;
  return bny_float_of_bits(((uint32_t)code & 0x80u) << 24 | bits);
}

BNY_HD static inline float bny_float_of_e5m2(uint8_t code) { return bny_float_of_f16((uint16_t)(code << 8)); }

/* Rounds `value` to 23 - `shift` mantissa bits. `least` is the smallest normal number and `largest` the largest number.
 * The last place of `unit` in f32 is that of subnormals. */
BNY_HD static inline uint8_t bny_f8_of_float(float value, int shift, float least, float unit, float largest) {
  uint32_t bits = bny_bits_of_float(value);
  uint32_t magnitude = bits & 0x7fffffffu, low = bny_bits_of_float(least), high = bny_bits_of_float(largest);
  uint32_t kept = magnitude < high ? magnitude : high;
  uint32_t half = (1u << (shift - 1)) - 1u;
  uint32_t normal = (kept - low + (1u << 23) + half + ((kept >> shift) & 1u)) >> shift;
  float small = kept < low ? bny_float_of_bits(kept) : 0.0f;
  uint32_t subnormal = bny_bits_of_float(small + unit) - bny_bits_of_float(unit);
  uint32_t finite = kept < low ? subnormal : normal;
  return (uint8_t)(magnitude > 0x7f800000u ? 0x7fu : (bits >> 24 & 0x80u) | finite);
}

BNY_HD static inline uint8_t bny_e4m3_of_float(float value) {
  return bny_f8_of_float(value, 20, 0x1p-6f, 0x1p14f, BNY_E4M3_MAX);
}

BNY_HD static inline uint8_t bny_e5m2_of_float(float value) {
  return bny_f8_of_float(value, 21, 0x1p-14f, 0x1p7f, BNY_E5M2_MAX);
}

/* ---- the scale of a partial -------------------------------------------------------------------------------------- */

/* Return the factor of a row with the scale of its input (value = code x scale) or of its output (code = value /
 * scale). The factor is kept finite, so that a value of 0 stays 0. */
BNY_HD static inline float bny_scaled_factor(float factor, float scale) {
  float product = bny_times(factor, scale);
  return product < FLT_MAX ? product : FLT_MAX;
}

BNY_HD static inline float bny_unscaled_factor(float factor, float scale) {
#ifdef __CUDA_ARCH__
  float quotient = __fdiv_rn(factor, scale);
#else
  float quotient = factor / scale;
#endif
  return quotient < FLT_MAX ? quotient : FLT_MAX;
}

/* ---- blocks of the wire ------------------------------------------------------------------------------------------ */

/* The number of values that share a scale. The scale is a byte as in OCP MX: 2^(byte - 127). A block with byte 0 has
 * only codes of 0, and reads as 0. */
enum { BNY_SCALE_BLOCK = 32 };

/* The largest value of a block. Rounding a larger value could exceed f32, so bny_saturate() comes first. */
#define BNY_BLOCK_MAX 0x1.ep+127f

/* Returns the magnitude of a finite value as bits, which compare like numbers, or 0 for infinities and NaN. */
BNY_HD static inline uint32_t bny_scale_magnitude(float value) {
  uint32_t magnitude = bny_bits_of_float(value) & 0x7fffffffu;
  return magnitude < 0x7f800000u ? magnitude : 0u;
}

/* Returns the scale of a block whose largest magnitude has these bits: the least scale that brings it to 448 or below.
 * The scale is at least 2^-126, so that it and its inverse are normal numbers. The largest magnitude then has a code
 * above 224, and values that are read and written again do not change. */
BNY_HD static inline uint8_t bny_scale_byte(uint32_t magnitude) {
  uint32_t exponent = (magnitude + 0x1fffffu) >> 23;
  return (uint8_t)(exponent > 9u ? exponent - 8u : 1u);
}

BNY_HD static inline float bny_scale_of_byte(uint8_t byte) { return bny_float_of_bits((uint32_t)byte << 23); }

BNY_HD static inline float bny_scale_inverse(uint8_t byte) { return bny_float_of_bits((254u - byte) << 23); }

/* A block of a sum: 32 codes, the byte of their scale, a byte that is 1 if a value is infinite, and two zeros. With
 * that byte the codes of NaN are infinities with their sign, and the code of -0 is NaN. Finite values keep their
 * codes. */
enum { BNY_SUM_INFINITE = BNY_SCALE_BLOCK + 1, BNY_SUM_BLOCK_BYTES = BNY_SCALE_BLOCK + 4 };

/* Give a value of a block with an infinity its code, and back. `code` and `value` are those of other blocks. */
BNY_HD static inline uint8_t bny_sum_code(float value, uint8_t code) {
  uint32_t bits = bny_bits_of_float(value), magnitude = bits & 0x7fffffffu;
  uint8_t finite = code == 0x80u ? (uint8_t)0 : code;
  uint8_t infinity = (uint8_t)((bits >> 24 & 0x80u) | 0x7fu);
  return magnitude > 0x7f800000u ? (uint8_t)0x80 : magnitude == 0x7f800000u ? infinity : finite;
}

BNY_HD static inline float bny_sum_value(uint8_t code, float value) {
  float infinity = bny_float_of_bits((code & 0x80u) << 24 | 0x7f800000u);
  return code == 0x80u ? bny_float_of_bits(0x7fc00000u) : (code & 0x7fu) == 0x7fu ? infinity : value;
}

/* Returns the code of a value within a block. An infinity becomes NaN, because a scaled code cannot represent it. */
BNY_HD static inline uint8_t bny_block_code(float value, float inverse) {
  uint32_t finite = (bny_bits_of_float(value) & 0x7fffffffu) < 0x7f800000u;
  return finite != 0 ? bny_e4m3_of_float(bny_times(value, inverse)) : (uint8_t)0x7f;
}
