/* SPDX-License-Identifier: Apache-2.0
 * The algebra of partials, one row at a time, for the host (C11, compiled with -ffp-contract=off) and the device (CUDA
 * C++). Products that are summed use bny_times(), so that no device compiler fuses a product with its sum.
 *
 * Logits are in base 2: t = scale * log2(e) * (q . k). A partial is m, d = sum 2^(t-m), n = sum 2^(t-m) v with m a
 * whole number, so that every rescaling in a merge is a power of two: exact unless it underflows.
 *
 * The code is plain IEEE arithmetic without calls into a mathematical library, so the bits are the same on every
 * instruction set (except for payloads of NaN). It has no branches, so compilers can vectorise loops over rows.
 *
 * Range of d. A caller's statistics may have any d. A merge drops partials whose m is more than 126 below the largest
 * m, whatever their d. Import therefore keeps d within [2^-32, 2^48]: it moves the power of two of d into m, exactly.
 * Dropped partials are then below 2^-46 of the result. Rows with |m| >= 2^23 stay unchanged, because their m cannot
 * take the power exactly.
 *
 * Lossy wires. Their rows have d in [0.5, 1]. |n| is then at most max |v|, so a value that fits the wire's type also
 * fits as a numerator. To keep this, import and every merge that rounds values to the wire type move the power of two
 * of d into m. A finite value that the type still cannot hold (beyond 65504 in f16) is saturated and not made infinite,
 * because an infinity would become NaN when its row is scaled by zero. The caller's own infinities and NaN are kept.
 */
#pragma once

#include <float.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define BNY_HD __host__ __device__
#else
#define BNY_HD
#endif

#define BNY_INFINITY_F (__builtin_inff())
#define BNY_LOG2_E 0x1.71547652b82fep+0
#define BNY_LN_2 0x1.62e42fefa39efp-1
#define BNY_F16_MAX 65504.0f
#define BNY_BF16_MAX 0x1.fep+127f

/* ---- bits -------------------------------------------------------------------------------------------------------- */

BNY_HD static inline float bny_float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

BNY_HD static inline uint32_t bny_bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

BNY_HD static inline double bny_double_of_bits(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

BNY_HD static inline uint64_t bny_bits_of_double(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* ---- products that are rounded before they are added ------------------------------------------------------------- */

BNY_HD static inline float bny_times(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

BNY_HD static inline double bny_times_double(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

/* ---- 16-bit values: round to nearest even, NaN stays NaN (made quiet, as processors do) -------------------------- */

BNY_HD static inline float bny_float_of_bf16(uint16_t value) { return bny_float_of_bits((uint32_t)value << 16); }

BNY_HD static inline uint16_t bny_bf16_of_float(float value) {
  uint32_t bits = bny_bits_of_float(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t quiet = (bits >> 16) | 0x40u;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

BNY_HD static inline float bny_float_of_f16(uint16_t value) {
  uint32_t sign = ((uint32_t)value & 0x8000u) << 16;
  uint32_t magnitude = ((uint32_t)value & 0x7fffu) << 13;
  uint32_t exponent = magnitude & 0x0f800000u;
  uint32_t normal = magnitude + (112u << 23);
  /* subnormal: adds an implied 2^-14 and subtracts it again */
  uint32_t subnormal = bny_bits_of_float(bny_float_of_bits(magnitude | (113u << 23)) - 0x1p-14f);
  uint32_t special = (magnitude & 0x007fffffu) != 0 ? magnitude | 0x7fc00000u : 0x7f800000u;
  uint32_t bits = exponent == 0 ? subnormal : exponent == 0x0f800000u ? special : normal;
  return bny_float_of_bits(sign | bits);
}

/* Rounds to f16. A finite value of 65520 or more becomes infinite, as in IEEE 754. Wires use bny_saturate() first. */
BNY_HD static inline uint16_t bny_f16_of_float(float value) {
  uint32_t bits = bny_bits_of_float(value);
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  /* below 2^-14: adding 1/2 leaves the rounded multiple of 2^-24 in the low bits */
  float small = magnitude < (113u << 23) ? bny_float_of_bits(magnitude) : 0.0f;
  uint32_t subnormal = bny_bits_of_float(small + 0.5f) - 0x3f000000u;
  uint32_t quiet = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  uint32_t half = magnitude > 0x7f800000u ? quiet : magnitude >= 0x477ff000u ? 0x7c00u : finite;
  return (uint16_t)((bits >> 16 & 0x8000u) | half);
}

/* Limits a finite value to [-limit, limit]. Infinities and NaN stay unchanged. */
BNY_HD static inline float bny_saturate(float value, float limit) {
  float high = value > limit && value < BNY_INFINITY_F ? limit : value;
  return high < -limit && high > -BNY_INFINITY_F ? -limit : high;
}

/* ---- elementary functions ---------------------------------------------------------------------------------------- */

/* Returns 2^s for a whole s <= 0. Returns 0 for s < -126 and for NaN, the result of -inf minus -inf. */
BNY_HD static inline float bny_exp2_whole(float s) {
  float kept = s >= -126.0f ? s : -127.0f;
  return bny_float_of_bits((uint32_t)((int32_t)kept + 127) << 23);
}

/* Returns the least whole number >= t, for |t| < 2^51. Adding 1.5 2^52 rounds to a whole number. */
BNY_HD static inline double bny_ceil(double t) {
  double nearest = (t + 0x1.8p52) - 0x1.8p52;
  return nearest + (nearest < t ? 1.0 : 0.0);
}

/* Returns 2^t for |t| <= 1000, within a relative 1e-13, and exactly for whole t: 2^k times the series of e^x, |x| <=
 * ln(2) / 2. */
BNY_HD static inline double bny_exp2(double t) {
  double shifted = t + 0x1.8p52; /* its low bits are k, the whole number nearest to t */
  double x = bny_times_double(t - (shifted - 0x1.8p52), BNY_LN_2);
  double sum = 1.0 / 3628800;
  sum = bny_times_double(sum, x) + 1.0 / 362880;
  sum = bny_times_double(sum, x) + 1.0 / 40320;
  sum = bny_times_double(sum, x) + 1.0 / 5040;
  sum = bny_times_double(sum, x) + 1.0 / 720;
  sum = bny_times_double(sum, x) + 1.0 / 120;
  sum = bny_times_double(sum, x) + 1.0 / 24;
  sum = bny_times_double(sum, x) + 1.0 / 6;
  sum = bny_times_double(sum, x) + 0.5;
  sum = bny_times_double(sum, x) + 1.0;
  sum = bny_times_double(sum, x) + 1.0;
  return bny_double_of_bits(bny_bits_of_double(sum) + (bny_bits_of_double(shifted) << 52));
}

/* Returns log2 of a normal positive number, within 1e-12, and exactly for powers of two: x = f 2^k with f in
 * [sqrt(1/2), sqrt(2)), s = (f - 1) / (f + 1), ln f = 2 (s + s^3/3 + s^5/5 + ...). The series is summed in pairs, and
 * pairs in pairs: a chain of 6 operations instead of 14 in Horner's order. The chain matters because a warp that
 * exports an lse has no other work meanwhile. In bny_exp2() this order would make decode kernels spill. */
BNY_HD static inline double bny_log2(double x) {
  uint64_t bits = bny_bits_of_double(x);
  uint64_t offset = bits - 0x3fe6a09e667f3bcdu; /* minus the bits of sqrt(1/2): the upper 12 are k */
  uint64_t biased = (offset + ((uint64_t)1024 << 52)) >> 52;
  double k = bny_double_of_bits(0x4330000000000000u | biased) - (0x1p52 + 1024.0);
  double f = bny_double_of_bits(bits - (offset & 0xfff0000000000000u));
  double s = (f - 1.0) / (f + 1.0);
  double z = bny_times_double(s, s);
  double z2 = bny_times_double(z, z), z4 = bny_times_double(z2, z2);
  double low = bny_times_double(bny_times_double(z, 1.0 / 7) + 1.0 / 5, z2) + (bny_times_double(z, 1.0 / 3) + 1.0);
  double high =
      bny_times_double(bny_times_double(z, 1.0 / 15) + 1.0 / 13, z2) + (bny_times_double(z, 1.0 / 11) + 1.0 / 9);
  double sum = bny_times_double(high, z4) + low;
  return k + bny_times_double(bny_times_double(s, 2.0 * BNY_LOG2_E), sum);
}

/* ---- from a caller's statistics ---------------------------------------------------------------------------------- */

/* Statistics of a row that is not empty, with finite `stat` and `sum` > 0, to wire form:
 *   stat is the caller's m, sum its d; an lse is an m whose d is 1
 *   t = stat * log2(e), or stat itself in base 2;  m = ceil(t);  d = sum 2^(t-m)
 *   d = f 2^k, m += k, d = f in (0.5, 1], where the form or the range asks for it
 *   factor: n = factor * v. It is d for normalised values, 2^(t-m) / 2^k for numerators, and exactly 1 for numerators
 *   in base 2 with a whole m, which therefore are merely copied
 * In double, so that an lse of 1e4 loses nothing. |t| is capped at FLT_MAX; from 2^24 on, where f32 knows whole numbers
 * alone, t counts as whole. `tight` asks for d in (0.5, 1]: lossy wires. */
BNY_HD static inline void bny_stats_import(float stat, float sum, int base_e, int normalised, int tight, float *m,
                                           float *d, float *factor) {
  double t = bny_times_double((double)stat, base_e ? BNY_LOG2_E : 1.0);
  t = t > (double)FLT_MAX ? (double)FLT_MAX : t;
  t = t < -(double)FLT_MAX ? -(double)FLT_MAX : t;
  double narrow = __builtin_fabs(t) < 0x1p24 ? t : 0.0;
  double whole = bny_ceil(narrow);
  double part = bny_exp2(narrow - whole); /* in (0.5, 1] */
  double top = __builtin_fabs(t) < 0x1p24 ? whole : (double)(float)t;
  double weight = (double)sum * part;
  /* weight = f 2^k, f in (0.5, 1]; for numerators not below 2^-127, so that their factor is an f32 */
  double least = normalised != 0 ? 0x1p-150 : 0x1p-127;
  double floored = weight < least ? least : weight;
  uint64_t exponent = (bny_bits_of_double(floored) - 1) >> 52; /* k + 1022 */
  double k = bny_double_of_bits(0x4330000000000000u | exponent) - (0x1p52 + 1022.0);
  double inverse = bny_double_of_bits((2045 - exponent) << 52);
  /* selects only doubles, because compilers vectorise that */
  double low = (tight | normalised) != 0 ? 0x1p+300 : 0x1p-32;
  double asked = weight > 0x1p48 ? k : 0.0;
  asked = weight < low ? k : asked;
  k = __builtin_fabs(top) < 0x1p23 ? asked : 0.0;
  inverse = k == 0.0 ? 1.0 : inverse;
  *m = (float)(top + k);
  *d = (float)(weight * inverse);
  *factor = (float)((normalised ? weight : part) * inverse);
}

/* ---- merge ------------------------------------------------------------------------------------------------------- */

/* Statistics of the merge of two partials, and the factors of their values: n = a.n scale_a + b.n scale_b, the products
 * rounded before the sum.
 *   m = max(a.m, b.m);  scale_x = 2^(x.m - m);  d = a.d scale_a + b.d scale_b
 * With `tight`, for values that are then rounded to a lossy wire, m is first raised by k = max(0, ceil(log2 d)). */
BNY_HD static inline void bny_stats_merge(float a_m, float a_d, float b_m, float b_d, int tight, float *m, float *d,
                                          float *scale_a, float *scale_b) {
  float top = a_m > b_m ? a_m : b_m;
  float a = bny_exp2_whole(a_m - top);
  float b = bny_exp2_whole(b_m - top);
  float sum = bny_times(a_d, a) + bny_times(b_d, b);
  if (tight) {
    int32_t k = (int32_t)((bny_bits_of_float(sum) - 1) >> 23) - 126;
    int moved = (sum > 1.0f) & (top > -0x1p23f) & (top < 0x1p23f);
    top += moved ? (float)k : 0.0f;
    a = bny_exp2_whole(a_m - top);
    b = bny_exp2_whole(b_m - top);
    sum = bny_times(a_d, a) + bny_times(b_d, b);
  }
  *m = top;
  *d = sum;
  *scale_a = a;
  *scale_b = b;
}

/* ---- to a caller's statistics ------------------------------------------------------------------------------------ */

/* Returns 1 / d, or 0 for an empty row. Normalised values are n * (1 / d), with each operation rounded to f32. */
BNY_HD static inline float bny_stats_reciprocal(float d) { return d > 0.0f ? 1.0f / d : 0.0f; }

/* Returns the lse of a row that is not empty: m + log2 d, times ln 2 in base e. */
BNY_HD static inline float bny_stats_lse(float m, float d, int base_e) {
  double t = (double)m + bny_log2((double)d);
  return (float)(t * (base_e ? BNY_LN_2 : 1.0));
}

/* Returns the factor 2^(m - t) that makes d and n relative to `given` instead of the wire's m. `given` is the m that
 * the caller receives, rounded to its type and in its base; t is `given` in base 2. The factor is exactly 1 if m was
 * exported unchanged. */
BNY_HD static inline double bny_stats_rebase(float m, float given, int base_e) {
  double shift = (double)m - bny_times_double((double)given, base_e ? BNY_LOG2_E : 1.0);
  shift = shift > -1000.0 ? shift : -1000.0;
  return bny_exp2(shift < 1000.0 ? shift : 1000.0);
}
