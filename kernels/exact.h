/* SPDX-License-Identifier: Apache-2.0
 * The algebra of BANYAN_ORDER_EXACT. A row is a sum of contributions (m, d, n). Every order and grouping of them gives
 * the same bits.
 *
 * An absolute grid. Digit p of a number counts multiples of 2^(42 p), for every whole p. A contribution x has two
 * digits: at its top T, which follows from its own largest exponent, and at T - 1. Both are rounded to nearest:
 *   hi = rint(x / 2^(42 T)),  lo = rint((x / 2^(42 T) - hi) 2^42).
 * They depend on the contribution alone. d has a top of its own, and the values of a row share one.
 *
 * The sum of two rows has the larger top and adds digits of equal place as 64-bit integers. Digits below its two places
 * are dropped whole. A place that the final sum keeps was kept by every sum on the way, because tops only rise. So each
 * kept digit is the sum over all contributions of their digits at that place, whatever the order: integer addition
 * commutes and associates.
 *
 * Range. |hi| <= 2^42 and |lo| <= 2^41, so 2^20 contributions stay below 2^63. Error. A contribution loses at most one
 * unit of the lower place: less than 2^-42 of the largest contribution of the row, which is at least 2^(42 T). 2^20
 * contributions lose less than 2^-22 of it. docs/certain.md has the proof on one screen.
 *
 * Infinities and NaN have no digits. Each column has flags for them, which sums combine by OR. */
#pragma once

#include "merge_math.h"

enum { BNY_EXACT_BITS = 42 };

/* The head of a row. int64_t hi[value_dim], int64_t lo[value_dim] and uint8_t flags[value_dim] follow it. The wire's d
 * of the row is 1, or 0 if the row is empty. */
typedef struct bny_exact_row {
  double top_d, top_n; /* whole numbers; top_n is -inf if all values are 0 */
  int64_t d_hi, d_lo;
} bny_exact_row;

enum { BNY_EXACT_POS_INF = 1, BNY_EXACT_NEG_INF = 2, BNY_EXACT_NAN = 4 };

/* A value of banyan_allreduce() on the way: its digits, with a top of its own. */
typedef struct bny_exact_number {
  int64_t hi, lo;
  float top; /* a whole number; -inf if the value is 0 */
  uint32_t flags;
} bny_exact_number;

BNY_HD static inline int64_t *bny_exact_hi(bny_exact_row *row) { return (int64_t *)(row + 1); }
BNY_HD static inline int64_t *bny_exact_lo(bny_exact_row *row, int32_t value_dim) {
  return bny_exact_hi(row) + value_dim;
}
BNY_HD static inline uint8_t *bny_exact_flags(bny_exact_row *row, int32_t value_dim) {
  return (uint8_t *)(bny_exact_hi(row) + 2 * (int64_t)value_dim);
}

/* Returns 2^k for -1022 <= k <= 1023, and 0 or a large power for other k. */
BNY_HD static inline double bny_exact_power(double k) {
  double in_range = k < -1022.0 ? -1023.0 : k > 1023.0 ? 1023.0 : k;
  return bny_double_of_bits((uint64_t)((int64_t)in_range + 1023) << 52);
}

/* Returns floor(log2 x) for a normal x > 0. */
BNY_HD static inline double bny_exact_exponent(double x) {
  return (double)((int64_t)(bny_bits_of_double(x) >> 52 & 0x7ff) - 1023);
}

/* Returns the nearest whole number, for |x| <= 2^51. */
BNY_HD static inline double bny_exact_round(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

/* Returns the nearest whole number as an integer, for |x| <= 2^51. */
BNY_HD static inline int64_t bny_exact_integer(double x) {
  return (int64_t)(bny_bits_of_double(x + 0x1.8p52) - 0x4338000000000000u);
}

/* Returns floor(x / 42) for |x| < 2^51, by way of the nearest whole number. */
BNY_HD static inline double bny_exact_floor(double x) {
  double whole = bny_exact_round(x / BNY_EXACT_BITS);
  return whole - (bny_times_double(whole, BNY_EXACT_BITS) > x ? 1.0 : 0.0);
}

/* From |m| = 2^50 on, each f32 m has its own grid, because other values of m are at least 2^26 away. The numbers of
 * these grids lie beyond those of all other m, in the order of m. They are so far apart that digits of two grids never
 * meet. */
enum { BNY_EXACT_FAR_STEP = 16 };
#define BNY_EXACT_FAR 0x1p46 /* the grid's number for m = 2^50 */
#define BNY_EXACT_FAR_BITS 0x58800000u

BNY_HD static inline double bny_exact_far_base(double m) {
  double number = (double)(bny_bits_of_float((float)(m < 0 ? -m : m)) - BNY_EXACT_FAR_BITS);
  double base = BNY_EXACT_FAR + bny_times_double(number, BNY_EXACT_FAR_STEP);
  return m < 0 ? -base : base;
}

BNY_HD static inline int bny_exact_is_far(double top) { return top >= 0x1p45 || top <= -0x1p45; }

/* Returns the m of the grid that a far top belongs to. */
BNY_HD static inline double bny_exact_far_m(double top) {
  double number = bny_exact_round(((top < 0 ? -top : top) - BNY_EXACT_FAR) / BNY_EXACT_FAR_STEP);
  double m = (double)bny_float_of_bits(BNY_EXACT_FAR_BITS + (uint32_t)number);
  return top < 0 ? -m : m;
}

/* The place of x 2^m on the grid: x scale is in units of 2^(42 top). `largest` is at least |x|. */
typedef struct bny_exact_place {
  double top, scale;
} bny_exact_place;

BNY_HD static inline bny_exact_place bny_exact_at(double m, double largest) {
  int is_far = m >= 0x1p50 || m <= -0x1p50;
  double base = is_far ? bny_exact_far_base(m) : bny_exact_floor(m);
  double rest = is_far ? 0.0 : m - bny_times_double(base, BNY_EXACT_BITS);
  double above = bny_exact_floor(rest + bny_exact_exponent(largest));
  bny_exact_place place = {base + above, bny_exact_power(rest - bny_times_double(above, BNY_EXACT_BITS))};
  return place;
}

/* Returns which places of a row a contribution with this top meets. 0: both places. 1: only the row's lower place. -1:
 * the row first moves down by one place. 2: the contribution vanishes. -2: the row vanishes. */
BNY_HD static inline int bny_exact_meet(double row_top, double top) {
  if (!(top > -(double)BNY_INFINITY_F)) return 2; /* nothing comes */
  double step = row_top - top;
  return row_top == top ? 0 : step == 1.0 ? 1 : step == -1.0 ? -1 : row_top > top ? 2 : -2;
}

/* Returns the power `whole` by which a sum is scaled: its d is the digits' sum times 2^-whole, in (0.5, 1]. The range
 * is larger if m in f32 cannot take the power. */
BNY_HD static inline double bny_exact_whole(double top, double sum) {
  double unit = bny_times_double(top - 1, BNY_EXACT_BITS);
  if (!bny_exact_is_far(top)) return (double)(float)(unit + bny_exact_exponent(sum) + 1) - unit;
  return bny_times_double(bny_exact_far_base(bny_exact_far_m(top)) - top + 1, BNY_EXACT_BITS);
}

/* Returns the m of such a sum. */
BNY_HD static inline double bny_exact_m(double top, double whole) {
  return bny_exact_is_far(top) ? bny_exact_far_m(top) : bny_times_double(top - 1, BNY_EXACT_BITS) + whole;
}

/* Returns a sum of digits as a number, in units of 2^(42 (top - 1)). */
BNY_HD static inline double bny_exact_value(int64_t hi, int64_t lo) {
  return bny_times_double((double)hi, 0x1p42) + (double)lo;
}
