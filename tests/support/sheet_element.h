/* SPDX-License-Identifier: Apache-2.0
 * Single elements of sheets: addresses, and numbers of 16 and 32 bits, in code independent of the library. */
#ifndef BNY_TESTS_SHEET_ELEMENT_H
#define BNY_TESTS_SHEET_ELEMENT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tests/support/sheet.h"

enum { SHEET_PATTERN = 0xCB };

static inline size_t element_bytes(banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? 4 : dtype == BANYAN_E4M3 || dtype == BANYAN_E5M2 ? 1 : 2;
}

/* The upper byte of an f16 is an e5m2; e4m3 has one bit of exponent less, and no infinity. */
static inline double eight_bits_value(banyan_dtype dtype, int code) {
  int width = dtype == BANYAN_E4M3 ? 3 : 2, bias = dtype == BANYAN_E4M3 ? 7 : 15;
  int exponent = (code & 127) >> width, fraction = code & ((1 << width) - 1);
  double magnitude =
      exponent == 0 ? ldexp(fraction, 1 - bias - width) : ldexp((1 << width) + fraction, exponent - bias - width);
  if (dtype == BANYAN_E4M3 && (code & 127) == 127) magnitude = (double)NAN;
  if (dtype == BANYAN_E5M2 && exponent == 31) magnitude = fraction ? (double)NAN : (double)INFINITY;
  return code & 128 ? -magnitude : magnitude;
}

/* The nearest code of a finite number. */
static inline uint8_t eight_bits(banyan_dtype dtype, double value) {
  int largest = dtype == BANYAN_E4M3 ? 0x7e : 0x7b, best = 0;
  if (isnan(value)) return 0x7f;
  for (int code = 1; code <= largest; code++)
    if (fabs(eight_bits_value(dtype, code) - fabs(value)) < fabs(eight_bits_value(dtype, best) - fabs(value)))
      best = code;
  return (uint8_t)(best | (signbit(value) ? 128 : 0));
}

static inline double scale_of(const sheet *sheet, int32_t head) {
  const banyan_partial *partial = &sheet->partial;
  return partial->values_scale ? (double)partial->values_scale[head * partial->values_scale_stride] : 1;
}

/* Rounds to nearest. A double rounding on the way is harmless, since tests read back the stored value. */
static inline uint16_t f16_bits(double value) {
  double magnitude = fabs(value);
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  if (isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520.0) return sign | 0x7c00;
  if (magnitude < 0x1p-14) return (uint16_t)(sign | (uint16_t)rint(magnitude * 0x1p24));
  int exponent;
  double fraction = frexp(magnitude, &exponent); /* in [1/2, 1) */
  return (uint16_t)(sign | (uint16_t)(((exponent + 14) << 10) + (int)rint(fraction * 2048.0) - 1024));
}

static inline double f16_value(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double magnitude = exponent == 0    ? fraction * 0x1p-24
                     : exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                                      : ldexp(1024.0 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

static inline void store_element(void *at, banyan_dtype dtype, double value) {
  if (element_bytes(dtype) == 1) {
    *(uint8_t *)at = eight_bits(dtype, value);
    return;
  }
  float single = (float)value;
  uint32_t word;
  memcpy(&word, &single, sizeof word);
  uint16_t half = dtype == BANYAN_F16 ? f16_bits(value)
                  : isnan(single)     ? (uint16_t)0x7fc0
                                      : (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
  if (dtype == BANYAN_F32)
    memcpy(at, &single, sizeof single);
  else
    memcpy(at, &half, sizeof half);
}

static inline double load_element(const void *at, banyan_dtype dtype) {
  if (element_bytes(dtype) == 1) return eight_bits_value(dtype, *(const uint8_t *)at);
  uint32_t word;
  uint16_t half;
  float single;
  if (dtype == BANYAN_F32) {
    memcpy(&single, at, sizeof single);
    return single;
  }
  memcpy(&half, at, sizeof half);
  if (dtype == BANYAN_F16) return f16_value(half);
  word = (uint32_t)half << 16;
  memcpy(&single, &word, sizeof single);
  return single;
}

static inline void *value_address(const sheet *sheet, int32_t token, int32_t head) {
  const banyan_partial *partial = &sheet->partial;
  int64_t index = token * partial->values_token_stride + head * partial->values_head_stride;
  return (char *)partial->values + index * (int64_t)element_bytes(partial->values_dtype);
}

static inline void *stats_address(const sheet *sheet, void *base, int32_t token, int32_t head) {
  const banyan_partial *partial = &sheet->partial;
  int64_t index = token * partial->stats_token_stride + head * partial->stats_head_stride;
  return base ? (char *)base + index * (int64_t)element_bytes(partial->stats_dtype) : NULL;
}

static inline void *lse_address(const sheet *sheet, int32_t token, int32_t head) {
  return stats_address(sheet, sheet->partial.lse, token, head);
}

static inline void *sum_address(const sheet *sheet, int32_t token, int32_t head) {
  return stats_address(sheet, sheet->partial.sum, token, head);
}

static inline void store_value(const sheet *sheet, int32_t token, int32_t head, int32_t index, double value) {
  banyan_dtype dtype = sheet->partial.values_dtype;
  store_element((char *)value_address(sheet, token, head) + (size_t)index * element_bytes(dtype), dtype,
                value / scale_of(sheet, head));
}

static inline double load_value(const sheet *sheet, int32_t token, int32_t head, int32_t index) {
  banyan_dtype dtype = sheet->partial.values_dtype;
  return load_element((char *)value_address(sheet, token, head) + (size_t)index * element_bytes(dtype), dtype) *
         scale_of(sheet, head);
}

static inline void store_lse(const sheet *sheet, int32_t token, int32_t head, double value) {
  store_element(lse_address(sheet, token, head), sheet->partial.stats_dtype, value);
}

static inline double load_lse(const sheet *sheet, int32_t token, int32_t head) {
  return load_element(lse_address(sheet, token, head), sheet->partial.stats_dtype);
}

static inline void store_sum(const sheet *sheet, int32_t token, int32_t head, double value) {
  store_element(sum_address(sheet, token, head), sheet->partial.stats_dtype, value);
}

static inline double load_sum(const sheet *sheet, int32_t token, int32_t head) {
  return load_element(sum_address(sheet, token, head), sheet->partial.stats_dtype);
}

#endif
