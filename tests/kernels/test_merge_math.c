/* SPDX-License-Identifier: Apache-2.0
 * The scalar algebra: elementary functions, and import of a caller's statistics. */
#include "banyan.h"
#include "merge_math.h"
#include "tests/support/random.h"

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
