/* SPDX-License-Identifier: Apache-2.0
 * Eight-bit floats against their definition: every code and every rounding boundary. */
#include "f8.h"
#include "tests/support/random.h"

typedef struct format {
  const char *name;
  int mantissa, bias, largest; /* code of the largest finite number */
  float (*read)(uint8_t code);
  uint8_t (*write)(float value);
} format;

static const format formats[] = {{"e4m3", 3, 7, 0x7e, bny_float_of_e4m3, bny_e4m3_of_float},
                                 {"e5m2", 2, 15, 0x7b, bny_float_of_e5m2, bny_e5m2_of_float}};

/* The magnitude of an unsigned code, including the first code past the largest, which rounding needs. */
static double exact(const format *f, int code) {
  int exponent = code >> f->mantissa, mantissa = code & ((1 << f->mantissa) - 1);
  return exponent == 0 ? ldexp(mantissa, 1 - f->bias - f->mantissa)
                       : ldexp((1 << f->mantissa) + mantissa, exponent - f->bias - f->mantissa);
}

/* Searches all codes for the nearest one, the even one of a tie, and the largest for values beyond it. */
static int slow_write(const format *f, double magnitude) {
  int best = 0;
  if (magnitude >= exact(f, f->largest)) return f->largest;
  for (int code = 1; code <= f->largest; code++) {
    double here = fabs(exact(f, code) - magnitude), before = fabs(exact(f, best) - magnitude);
    if (here < before || (here == before && code % 2 == 0)) best = code;
  }
  return best;
}

static void expect_written(const format *f, float value) {
  int code = slow_write(f, fabs((double)value));
  ck_assert_msg(f->write(fabsf(value)) == code, "%s of %a is %02x, not %02x", f->name, (double)value,
                f->write(fabsf(value)), (unsigned)code);
  ck_assert_msg(f->write(-fabsf(value)) == (code | 0x80), "%s of -%a", f->name, (double)value);
}

TEST_LOOP(all_codes_read_exactly_and_come_back, 2) {
  const format *f = &formats[_i];
  for (int code = 0; code < 256; code++) {
    int magnitude = code & 0x7f;
    float value = f->read((uint8_t)code);
    if (magnitude <= f->largest) {
      ck_assert_msg(fabs((double)value) == exact(f, magnitude), "%s of code %02x is %a", f->name, (unsigned)code,
                    (double)value);
      ck_assert_int_eq(signbit(value) != 0, code >= 128);
      ck_assert_int_eq(f->write(value), code);
    } else if (_i == 1 && magnitude == 0x7c) {
      ck_assert(isinf(value) && (value < 0) == (code >= 128));
    } else {
      ck_assert(isnan(value));
    }
  }
}

TEST_LOOP(halfway_points_round_to_even, 2) {
  const format *f = &formats[_i];
  for (int code = 0; code <= f->largest; code++) {
    float half = (float)((exact(f, code) + exact(f, code + 1)) / 2);
    ck_assert((double)half == (exact(f, code) + exact(f, code + 1)) / 2);
    expect_written(f, half);
    expect_written(f, nextafterf(half, 0));
    expect_written(f, nextafterf(half, INFINITY));
  }
  for (int i = 0; i < 20000; i++) {
    float value = bny_float_of_bits(random_bits() & 0x7fffffffu);
    if (value - value == 0) expect_written(f, value);
    expect_written(f, (float)ldexp(random_real(0.5, 1), random_int(-20, 18)));
  }
}

TEST_LOOP(what_is_beyond_saturates_and_nan_stays, 2) {
  const format *f = &formats[_i];
  ck_assert_int_eq(f->write(INFINITY), f->largest);
  ck_assert_int_eq(f->write(-INFINITY), f->largest | 0x80);
  ck_assert_int_eq(f->write(FLT_MAX), f->largest);
  ck_assert_int_eq(f->write(FLT_TRUE_MIN), 0);
  ck_assert(isnan(f->read(f->write(NAN))) && isnan(f->read(f->write(-NAN))));
  ck_assert_double_eq((double)(_i == 0 ? BNY_E4M3_MAX : BNY_E5M2_MAX), exact(f, f->largest));
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
  return suite_main(suite_of("f8", 20));
}
