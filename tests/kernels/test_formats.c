/* SPDX-License-Identifier: Apache-2.0
 * Floats of 8 and 16 bits against their definition: every code, every rounding boundary of those of 8 bits, and random
 * values. */
#include "f8.h"
#include "merge_math.h"
#include "tests/support/random.h"

static float read_e4m3(int code) { return bny_float_of_e4m3((uint8_t)code); }
static float read_e5m2(int code) { return bny_float_of_e5m2((uint8_t)code); }
static float read_f16(int code) { return bny_float_of_f16((uint16_t)code); }
static float read_bf16(int code) { return bny_float_of_bf16((uint16_t)code); }
static int write_e4m3(float value) { return bny_e4m3_of_float(value); }
static int write_e5m2(float value) { return bny_e5m2_of_float(value); }
static int write_f16(float value) { return bny_f16_of_float(value); }
static int write_bf16(float value) { return bny_bf16_of_float(value); }

/* Values beyond the largest saturate in 8 bits, and are infinite in 16. */
typedef struct format {
  const char *name;
  int bits, mantissa, bias, largest; /* code of the largest finite number */
  int infinity;                      /* its code; -1: there is none */
  float (*read)(int code);
  int (*write)(float value);
} format;

static const format formats[] = {{"e4m3", 8, 3, 7, 0x7e, -1, read_e4m3, write_e4m3},
                                 {"e5m2", 8, 2, 15, 0x7b, 0x7c, read_e5m2, write_e5m2},
                                 {"f16", 16, 10, 15, 0x7bff, 0x7c00, read_f16, write_f16},
                                 {"bf16", 16, 7, 127, 0x7f7f, 0x7f80, read_bf16, write_bf16}};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* The magnitude of an unsigned code, including the first code past the largest, which rounding needs. */
static double exact(const format *f, int code) {
  int exponent = code >> f->mantissa, mantissa = code & ((1 << f->mantissa) - 1);
  return exponent == 0 ? ldexp(mantissa, 1 - f->bias - f->mantissa)
                       : ldexp((1 << f->mantissa) + mantissa, exponent - f->bias - f->mantissa);
}

/* The code is that of the nearest number, the even one of a tie, and the largest or infinity for values beyond it. */
static void expect_written(const format *f, float value) {
  const double magnitude = fabs((double)value);
  const int code = f->write(fabsf(value)), top = f->bits == 8 ? f->largest : f->infinity;
  double here = fabs(exact(f, code) - magnitude), above = fabs(exact(f, code + 1) - magnitude);
  double below = code > 0 ? fabs(exact(f, code - 1) - magnitude) : (double)INFINITY, other = fmin(above, below);
  if (code == top) other = f->bits == 8 && magnitude >= exact(f, top) ? (double)INFINITY : below;
  bool is_nearest = code <= top && (here < other || (here == other && code % 2 == 0));
  ck_assert_msg(is_nearest, "%s of %a is %02x", f->name, (double)value, (unsigned)code);
  ck_assert_msg(f->write(-fabsf(value)) == (code | 1 << (f->bits - 1)), "%s of -%a", f->name, (double)value);
}

/* A NaN of 16 bits becomes quiet. */
TEST_LOOP(all_codes_read_exactly_and_come_back, FORMATS) {
  const format *f = &formats[_i];
  const int sign = 1 << (f->bits - 1);
  for (int code = 0; code < 2 * sign; code++) {
    int magnitude = code & (sign - 1);
    float value = f->read(code);
    if (magnitude <= f->largest) {
      ck_assert_msg(fabs((double)value) == exact(f, magnitude), "%s of code %02x is %a", f->name, (unsigned)code,
                    (double)value);
      ck_assert_int_eq(signbit(value) != 0, code >= sign);
      ck_assert_int_eq(f->write(value), code);
    } else if (magnitude == f->infinity) {
      ck_assert(isinf(value) && (value < 0) == (code >= sign));
      if (f->bits == 16) ck_assert_int_eq(f->write(value), code);
    } else {
      ck_assert(isnan(value));
      if (f->bits == 16) ck_assert_int_eq(f->write(value), code | 1 << (f->mantissa - 1));
    }
  }
}

TEST_LOOP(values_round_to_the_nearest, FORMATS) {
  const format *f = &formats[_i];
  for (int code = 0; code <= f->largest; code++) {
    float half = (float)((exact(f, code) + exact(f, code + 1)) / 2);
    ck_assert((double)half == (exact(f, code) + exact(f, code + 1)) / 2);
    expect_written(f, half);
    expect_written(f, nextafterf(half, 0));
    expect_written(f, nextafterf(half, INFINITY));
  }
  for (int i = 0; i < 100000; i++) {
    float value = bny_float_of_bits(random_bits() & 0x7fffffffu);
    if (value - value == 0) expect_written(f, value);
    expect_written(f, (float)ldexp(random_real(0.5, 1), random_int(-20, 18)));
  }
}

TEST_LOOP(what_is_beyond_saturates_or_is_infinite_and_nan_stays, FORMATS) {
  const format *f = &formats[_i];
  const int beyond = f->bits == 8 ? f->largest : f->infinity;
  ck_assert_int_eq(f->write(INFINITY), beyond);
  ck_assert_int_eq(f->write(-INFINITY), beyond | 1 << (f->bits - 1));
  ck_assert_int_eq(f->write(FLT_MAX), beyond);
  ck_assert_int_eq(f->write(FLT_TRUE_MIN), 0);
  ck_assert(isnan(f->read(f->write(NAN))) && isnan(f->read(f->write(-NAN))));
  const float most[] = {BNY_E4M3_MAX, BNY_E5M2_MAX, BNY_F16_MAX, BNY_BF16_MAX};
  ck_assert_double_eq((double)most[_i], exact(f, f->largest));
}

TEST(finite_values_saturate) {
  ck_assert(bny_saturate(1e6f, BNY_F16_MAX) == 65504.0f && bny_saturate(-1e6f, BNY_F16_MAX) == -65504.0f);
  ck_assert(bny_saturate(INFINITY, BNY_F16_MAX) == INFINITY && bny_saturate(-INFINITY, BNY_F16_MAX) == -INFINITY);
  ck_assert(isnan(bny_saturate(NAN, BNY_F16_MAX)) && bny_saturate(3.0f, BNY_F16_MAX) == 3.0f);
}

/* The scale is the smallest power of two in its range that avoids saturation. */
TEST(scales_suit_the_largest_value) {
  for (int i = 0; i < 200000; i++) {
    float most = i % 3 == 0 ? (float)ldexp(random_int(1, 16), random_int(-149, 120))
                            : bny_float_of_bits(random_bits() % 0x7f800000u);
    if (i % 5 < 2) most = nextafterf(i % 15 == 0 ? (float)ldexp(448, random_int(-140, 100)) : most, INFINITY);
    most = bny_saturate(most, BNY_BLOCK_MAX);
    if (most == INFINITY) continue;
    uint8_t byte = bny_scale_byte(bny_scale_magnitude(most));
    float scale = bny_scale_of_byte(byte);
    ck_assert((double)scale == ldexp(1, byte - 127) && scale * bny_scale_inverse(byte) == 1);
    ck_assert_msg((double)most / (double)scale <= 448, "%a has the scale %a", (double)most, (double)scale);
    ck_assert_msg(byte == 1 || (double)most / (double)scale > 224, "%a has the scale %a", (double)most, (double)scale);
    /* A rounded value stays exact under the scale that its rounded block gets. */
    float kept = bny_float_of_e4m3(bny_block_code(most, bny_scale_inverse(byte))) * scale;
    uint8_t again = bny_scale_byte(bny_scale_magnitude(kept));
    float other = (float)random_real(-1, 1) * most;
    other = bny_float_of_e4m3(bny_block_code(other, bny_scale_inverse(byte))) * scale;
    ck_assert(bny_float_of_e4m3(bny_block_code(kept, bny_scale_inverse(again))) * bny_scale_of_byte(again) == kept);
    ck_assert(bny_float_of_e4m3(bny_block_code(other, bny_scale_inverse(again))) * bny_scale_of_byte(again) == other);
  }
  ck_assert(isnan(bny_float_of_e4m3(bny_block_code(INFINITY, 1))));
  ck_assert(isnan(bny_float_of_e4m3(bny_block_code(NAN, 1))));
  ck_assert_uint_eq(bny_scale_magnitude(-INFINITY) | bny_scale_magnitude(NAN), 0);
}

int main(void) {
  random_begin();
  return suite_main(suite_of("formats", 20));
}
