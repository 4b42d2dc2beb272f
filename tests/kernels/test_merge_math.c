/* SPDX-License-Identifier: Apache-2.0
 * The scalar algebra: 16-bit values, elementary functions, and import of a caller's statistics. */
#include "banyan.h"
#include "merge_math.h"
#include "tests/support/random.h"

/* ---- 16-bit values and elementary functions ---------------------------------------------------------------------- */

static double exact_f16(uint16_t h) {
  int exponent = h >> 10 & 31, mantissa = h & 1023;
  double magnitude = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(f16_and_bf16_read_exactly_and_come_back) {
  for (uint32_t h = 0; h < 65536; h++) {
    float f = bny_float_of_f16((uint16_t)h), b = bny_float_of_bf16((uint16_t)h);
    if ((h & 0x7c00) != 0x7c00) ck_assert(exact_f16((uint16_t)h) == (double)f && (signbit(f) != 0) == (h >> 15 != 0));
    ck_assert((isnan(f) != 0) == ((h & 0x7fff) > 0x7c00));
    ck_assert((isinf(f) != 0) == ((h & 0x7fff) == 0x7c00));
    uint16_t quiet_f16 = isnan(f) ? (uint16_t)(h | 0x200) : (uint16_t)h;
    uint16_t quiet_bf16 = isnan(b) ? (uint16_t)(h | 0x40) : (uint16_t)h;
    ck_assert(bny_f16_of_float(f) == (quiet_f16));
    ck_assert(bny_bf16_of_float(b) == (quiet_bf16));
  }
}

/* The nearest neighbour, and the even one of a tie. */
TEST(f16_and_bf16_round_to_nearest_even) {
  for (int i = 0; i < 400000; i++) {
    float value = i % 2 == 0 ? bny_float_of_bits(random_bits() & 0x7fffffffu)
                             : (float)ldexp(random_int(1, 1 << 14), random_int(-30, 4)); /* many ties */
    if (isnan(value)) continue;
    if (value < 65504) {
      uint16_t h = bny_f16_of_float(value);
      double here = fabs(exact_f16(h) - (double)value);
      double above = fabs(exact_f16((uint16_t)(h + 1)) - (double)value);
      double below = h > 0 ? fabs(exact_f16((uint16_t)(h - 1)) - (double)value) : INFINITY;
      ck_assert_msg(here < fmin(above, below) || (here == fmin(above, below) && h % 2 == 0), "f16 of %a",
                    (double)value);
      ck_assert(bny_f16_of_float(-value) == (h | 0x8000u));
    }
    if (value < BNY_BF16_MAX) {
      uint16_t h = bny_bf16_of_float(value);
      double here = fabs((double)bny_float_of_bf16(h) - (double)value);
      double above = fabs((double)bny_float_of_bf16((uint16_t)(h + 1)) - (double)value);
      double below = h > 0 ? fabs((double)bny_float_of_bf16((uint16_t)(h - 1)) - (double)value) : INFINITY;
      ck_assert_msg(here < fmin(above, below) || (here == fmin(above, below) && h % 2 == 0), "bf16 of %a",
                    (double)value);
    }
  }
  ck_assert_uint_eq(bny_f16_of_float(65519.996f), 0x7bff);
  ck_assert_uint_eq(bny_f16_of_float(65520.0f), 0x7c00);
  ck_assert(bny_f16_of_float(-FLT_MAX) == (0xfc00));
  ck_assert(bny_bf16_of_float(FLT_MAX) == (0x7f80));
  ck_assert(bny_saturate(1e6f, BNY_F16_MAX) == 65504.0f && bny_saturate(-1e6f, BNY_F16_MAX) == -65504.0f);
  ck_assert(bny_saturate(INFINITY, BNY_F16_MAX) == INFINITY && bny_saturate(-INFINITY, BNY_F16_MAX) == -INFINITY);
  ck_assert(isnan(bny_saturate(NAN, BNY_F16_MAX)) && bny_saturate(3.0f, BNY_F16_MAX) == 3.0f);
}

TEST(elementary_functions_are_accurate) {
  for (int s = 0; s >= -200; s--) ck_assert(bny_exp2_whole((float)s) == (s >= -126 ? ldexpf(1.0f, s) : 0.0f));
  ck_assert(bny_exp2_whole(-INFINITY) == 0.0f && bny_exp2_whole(NAN) == 0.0f && bny_exp2_whole(-FLT_MAX) == 0.0f);
  for (int i = 0; i < 200000; i++) {
    double t = random_real(-1000, 1000);
    ck_assert(fabs(bny_exp2(t) / exp2(t) - 1) <= 1e-12);
    ck_assert(bny_exp2(rint(t)) == ldexp(1.0, (int)rint(t)));
    ck_assert(bny_ceil(t) == ceil(t) && bny_ceil(rint(t)) == rint(t));
    double x = ldexp(random_real(0.5, 1), random_int(-40, 60));
    ck_assert(fabs(bny_log2(x) - log2(x)) <= 2e-12);
    ck_assert(bny_log2(ldexp(1.0, i % 120 - 60)) == i % 120 - 60);
  }
}

/* For all statistics, n and d keep their ratio to 2^t, and d stays in its range. */
TEST(import_keeps_the_value_and_the_range) {
  for (int i = 0; i < 200000; i++) {
    int base_e = i & 1, normalised = i >> 1 & 1, tight = i >> 2 & 1;
    float stat = (float)(random_real(-1, 1) * pow(10, random_int(-3, 6)));
    float sum = (float)ldexp(random_real(0.5, 1), random_int(-148, 127)), m, d, factor;
    if ((i >> 3 & 3) == 0) stat = rintf(stat);
    bny_stats_import(stat, sum, base_e, normalised, tight, &m, &d, &factor);
    double t = (double)stat * (base_e ? BNY_LOG2_E : 1.0) + log2((double)sum);
    ck_assert(m == floorf(m));
    ck_assert(fabs((double)m + log2((double)d) - t) <= 1e-6 + 1e-12 * fabs(t));
    ck_assert(d >= 0x1.fp-33f && d <= 0x1p48f);
    if (tight && (normalised || sum >= 0x1p-126f)) { /* the factor of numerators is limited */
      ck_assert(d >= 0.4999999f && d <= 1.0f);
    }
    /* factor v = n with n / d = v if normalised, v / sum if not */
    double expected = normalised ? (double)d : (double)d / (double)sum;
    ck_assert(fabs((double)factor - expected) <= expected * 3e-7 + 0x1p-149);
    if (!base_e && !normalised && !tight && stat == rintf(stat) && sum >= 0x1p-32f && sum <= 0x1p48f)
      ck_assert(m == stat && d == sum && factor == 1.0f);
  }
  float m, d, factor;
  bny_stats_import(-FLT_MAX, 1.0f, 1, 1, 0, &m, &d, &factor);
  ck_assert(m == -FLT_MAX && d == 1.0f && factor == 1.0f);
  bny_stats_import(FLT_MAX, 1.0f, 1, 1, 1, &m, &d, &factor);
  ck_assert(m == FLT_MAX && d == 1.0f && factor == 1.0f);
}

int main(void) {
  random_begin();
  return suite_main(suite_of("merge_math", 120));
}
