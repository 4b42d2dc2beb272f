/* SPDX-License-Identifier: Apache-2.0
 * These conversions of eight-bit elements to bf16 are exact. They need AVX-512 with permutations of bytes (VBMI). Low
 * and high bytes are separate, so that the caller interleaves them in the order that it needs. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "attention_inline.h"
#include "banyan.h"

/* These tables have the bytes of a bf16 by the exponent and mantissa of an element. The last E4M3 and the
 * last three E5M2 are NaN. */
#define HIGH(e) ((e) + 120) >> 1
#define HIGH8(e) HIGH(e), HIGH(e), HIGH(e), HIGH(e), HIGH(e), HIGH(e), HIGH(e), HIGH(e)
#define LOW(e, m) ((((e) + 120) & 1) << 7 | (m) << 4)
#define LOW8(e) LOW(e, 0), LOW(e, 1), LOW(e, 2), LOW(e, 3), LOW(e, 4), LOW(e, 5), LOW(e, 6), LOW(e, 7)
#define NORMAL(x) x(1), x(2), x(3), x(4), x(5), x(6), x(7), x(8), x(9), x(10), x(11), x(12), x(13), x(14)
static const uint8_t e4m3_high[128] __attribute__((aligned(64))) = {
    0,        HIGH(-2), HIGH(-1), HIGH(-1), HIGH(0),  HIGH(0),  HIGH(0),  HIGH(0), NORMAL(HIGH8),
    HIGH(15), HIGH(15), HIGH(15), HIGH(15), HIGH(15), HIGH(15), HIGH(15), 0x7f};
static const uint8_t e4m3_low[128] __attribute__((aligned(64))) = {
    0,          LOW(-2, 0), LOW(-1, 0), LOW(-1, 4), LOW(0, 0),  LOW(0, 2),  LOW(0, 4),  LOW(0, 6), NORMAL(LOW8),
    LOW(15, 0), LOW(15, 1), LOW(15, 2), LOW(15, 3), LOW(15, 4), LOW(15, 5), LOW(15, 6), 0xc0};

#define E5_HIGH(e) ((e) + 112) >> 1
#define E5_HIGH4(e) E5_HIGH(e), E5_HIGH(e), E5_HIGH(e), E5_HIGH(e)
#define E5_LOW(e, m) ((((e) + 112) & 1) << 7 | (m) << 5)
#define E5_LOW4(e) E5_LOW(e, 0), E5_LOW(e, 1), E5_LOW(e, 2), E5_LOW(e, 3)
#define E5_NORMAL(x)                                                                                                  \
  NORMAL(x), x(15), x(16), x(17), x(18), x(19), x(20), x(21), x(22), x(23), x(24), x(25), x(26), x(27), x(28), x(29), \
      x(30)
static const uint8_t e5m2_high[128] __attribute__((aligned(64))) = {
    0, E5_HIGH(-1), E5_HIGH(0), E5_HIGH(0), E5_NORMAL(E5_HIGH4), 0x7f, 0x7f, 0x7f, 0x7f};
static const uint8_t e5m2_low[128] __attribute__((aligned(64))) = {
    0, E5_LOW(-1, 0), E5_LOW(0, 0), E5_LOW(0, 2), E5_NORMAL(E5_LOW4), 0x80, 0xc0, 0xc0, 0xc0};

/* n is in the octave from 2^e on. */
#define I8_HIGH(e, n) ((e) + 127) >> 1
#define I8_LOW(e, n) ((((e) + 127) & 1) << 7 | (((n) << (7 - (e))) & 0x7f))
#define TWO(x, e, n) x(e, n), x(e, (n) + 1)
#define FOUR(x, e, n) TWO(x, e, n), TWO(x, e, (n) + 2)
#define EIGHT(x, e, n) FOUR(x, e, n), FOUR(x, e, (n) + 4)
#define SIXTEEN(x, e, n) EIGHT(x, e, n), EIGHT(x, e, (n) + 8)
#define MAGNITUDES(x)                                                                                               \
  0, x(0, 1), TWO(x, 1, 2), FOUR(x, 2, 4), EIGHT(x, 3, 8), SIXTEEN(x, 4, 16), SIXTEEN(x, 5, 32), SIXTEEN(x, 5, 48), \
      SIXTEEN(x, 6, 64), SIXTEEN(x, 6, 80), SIXTEEN(x, 6, 96), SIXTEEN(x, 6, 112)
static const uint8_t i8_high[128] __attribute__((aligned(64))) = {MAGNITUDES(I8_HIGH)};
static const uint8_t i8_low[128] __attribute__((aligned(64))) = {MAGNITUDES(I8_LOW)};

INLINE void look_up(const uint8_t *table, __m512i at, __m512i *found) {
  *found = _mm512_permutex2var_epi8(_mm512_load_si512(table), at, _mm512_load_si512(table + 64));
}

INLINE void bf16_of_bytes(__m512i bytes, banyan_dtype dtype, __m512i *low, __m512i *high) {
  /* int8: -128 stays, and tables are read at its lower seven bits */
  const __m512i at = dtype == BANYAN_I8 ? _mm512_abs_epi8(bytes) : bytes;
  look_up(dtype == BANYAN_I8 ? i8_low : dtype == BANYAN_E4M3 ? e4m3_low : e5m2_low, at, low);
  look_up(dtype == BANYAN_I8 ? i8_high : dtype == BANYAN_E4M3 ? e4m3_high : e5m2_high, at, high);
  *high = _mm512_ternarylogic_epi32(*high, bytes, _mm512_set1_epi8((char)0x80), 0xf8); /* high | (bytes & 0x80) */
  if (dtype == BANYAN_I8) *high = _mm512_mask_mov_epi8(*high, _mm512_movepi8_mask(at), _mm512_set1_epi8((char)0xc3));
}
