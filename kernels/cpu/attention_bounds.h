/* SPDX-License-Identifier: Apache-2.0
 * All tables of attention kernels share these bounds of pages by codes of keys. Vectors have a lane for
 * each of eight keys, so products need no sums over lanes. The margin that the caller adds to each logit covers the
 * rounding here. The including file defines ATTENTION_FORMS. */
#pragma once

#include "attention_loop.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi" /* all functions are static, so the ABI of vectors does not matter */

enum { BOUNDS_LANES = BNY_CODE_LANES, BOUNDS_QUAD = 4, BOUNDS_GROUPS = BNY_CODE_KEYS / BNY_CODE_LANES };

typedef int32_t bounds_ints __attribute__((vector_size(32), aligned(4), may_alias));
typedef attention_floats bounds_quad[BOUNDS_QUAD];

/* Keys that a row does not see get the first number. The second is the least logit of a key that it sees. */
static const float bounds_hidden = -0x1p126f, bounds_least = -0x1p125f;

#ifdef __AVX2__
INLINE attention_floats bounds_fma(attention_floats a, float b, attention_floats c) {
  return (attention_floats)_mm256_fmadd_ps((__m256)a, _mm256_set1_ps(b), (__m256)c);
}

INLINE attention_floats bounds_codes(const int8_t *at) {
  return (attention_floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at)));
}

/* Returns true if all lanes are at most `limit`, none of them NaN. */
INLINE bool bounds_below(attention_floats a, float limit) {
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, _mm256_set1_ps(limit), _CMP_LE_OQ)) == 0xff;
}
#else
INLINE attention_floats bounds_fma(attention_floats a, float b, attention_floats c) { return a * b + c; }

INLINE attention_floats bounds_codes(const int8_t *at) {
  attention_floats x;
  for (int32_t i = 0; i < BOUNDS_LANES; i++) x[i] = at[i];
  return x;
}

INLINE bool bounds_below(attention_floats a, float limit) {
  bounds_ints within = a <= limit;
  int32_t all = -1;
  for (int32_t i = 0; i < BOUNDS_LANES; i++) all &= within[i];
  return all != 0;
}
#endif

INLINE attention_floats bounds_select(bounds_ints mask, attention_floats a, attention_floats b) {
  return (attention_floats)(((bounds_ints)a & mask) | ((bounds_ints)b & ~mask));
}

static inline float attention_lanes_sum(attention_floats sum) {
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* Multiplies four rows with two groups of keys, and prefetches as many bytes at `next`. */
INLINE void bounds_multiply(const float (*q)[BOUNDS_QUAD], int32_t dim, const int8_t *left, const int8_t *right,
                            const char *next, attention_floats *x, attention_floats *y) {
  attention_floats a0 = {0}, a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  for (int32_t i = 0; i < dim; i++) {
    attention_floats l = bounds_codes(left + BOUNDS_LANES * i), r = bounds_codes(right + BOUNDS_LANES * i);
    __builtin_prefetch(next + 2 * BOUNDS_LANES * i, 0, 3);
    a0 = bounds_fma(l, q[i][0], a0), b0 = bounds_fma(r, q[i][0], b0);
    a1 = bounds_fma(l, q[i][1], a1), b1 = bounds_fma(r, q[i][1], b1);
    a2 = bounds_fma(l, q[i][2], a2), b2 = bounds_fma(r, q[i][2], b2);
    a3 = bounds_fma(l, q[i][3], a3), b3 = bounds_fma(r, q[i][3], b3);
  }
  x[0] = a0, x[1] = a1, x[2] = a2, x[3] = a3;
  y[0] = b0, y[1] = b1, y[2] = b2, y[3] = b3;
}

/* Returns 2^(x - top) for x <= top, or up to 1 % more: 1 + b f + a f^2 is at least 2^f. No result is 0. */
INLINE attention_floats bounds_power(attention_floats x, float top) {
  const attention_floats least = (attention_floats){0} - 126;
  attention_floats y = x - top;
  y = bounds_select(y > least, y, least) + 127;
  bounds_ints whole = __builtin_convertvector(y, bounds_ints);
  attention_floats f = y - __builtin_convertvector(whole, attention_floats);
  return (1 + f * (0.69316f + 0.30686f * f)) * (attention_floats)(whole << 23);
}

/* Finds the whole number that masses are relative to. Later pages keep it while it serves. Returns -INFINITY if the row
 * sees no key, and INFINITY if a number is not finite. */
static __attribute__((noinline)) float bounds_top(const attention_floats *x, int32_t groups, uint64_t seen) {
  float top = -INFINITY;
  for (int32_t i = 0; i < groups * BOUNDS_LANES; i++, seen >>= 1) {
    float y = x[i / BOUNDS_LANES * BOUNDS_QUAD][i % BOUNDS_LANES];
    if (!(seen & 1)) continue;
    if (!(y - y == 0) || y < bounds_least) return INFINITY;
    top = y > top ? y : top;
  }
  return ceilf(top);
}

static __attribute__((noinline)) attention_floats bounds_cap(attention_floats x, double cap, float error) {
  for (int32_t i = 0; i < BOUNDS_LANES; i++) x[i] = (float)(cap * tanh((double)x[i] / cap)) + error;
  return x;
}

/* Makes bounds of logits of products, and adds them up. x: groups, BOUNDS_QUAD apart. */
INLINE void bounds_add_up(const bny_code_query *query, const bny_code_keys *keys, const float *scales,
                          const float *losts, int32_t groups, int32_t r, attention_floats *x, float *top, float *mass) {
  enum { FAR = 60 }; /* pages far below the top get one of their own, so that their masses do not become one floor */
  uint64_t seen = keys->seen[r];
  bool serves = true, is_far = true;
  for (int32_t g = 0; g < groups; g++, seen >>= BOUNDS_LANES) {
    attention_floats *at = x + g * BOUNDS_QUAD, lost = *(const attention_floats *)(losts + g * BOUNDS_LANES);
    *at = *at * *(const attention_floats *)(scales + g * BOUNDS_LANES) + (lost * query->length[r] + keys->slack[r]);
    if (query->cap > 0) *at = bounds_cap(*at, (double)query->cap, keys->error[r]);
    if ((seen & 0xff) != 0xff) {
      bounds_ints bits = {1, 2, 4, 8, 16, 32, 64, 128}, mask = ((int32_t)(seen & 0xff) & bits) == bits;
      *at = bounds_select(mask, *at, (attention_floats){0} + bounds_hidden);
    }
    serves = serves && bounds_below(*at, *top);
    is_far = is_far && bounds_below(*at, *top - FAR);
  }
  if (!serves || is_far) {
    float found = bounds_top(x, groups, keys->seen[r]);
    *mass = found == INFINITY ? INFINITY : 0;
    if (isinf(found)) return;
    *top = found;
  }
  attention_floats sum = {0};
  for (int32_t g = 0; g < groups; g++) sum += bounds_power(x[g * BOUNDS_QUAD], *top);
  *mass = attention_lanes_sum(sum) * (1 + 0x1p-15f);
}

static void attention_code_masses(const bny_code_query *query, const bny_code_keys *keys, float *tops, float *masses) {
  int8_t rest[BOUNDS_LANES * BNY_ATTENTION_HEAD_DIM_MAX];
  float scales[BNY_CODE_KEYS], losts[BNY_CODE_KEYS];
  attention_floats x[BOUNDS_GROUPS][BOUNDS_QUAD];
  const int8_t *groups[BOUNDS_GROUPS + 1];
  int32_t count = (keys->count + BOUNDS_LANES - 1) / BOUNDS_LANES;
  bool is_short = count * BOUNDS_LANES > keys->width;
  int32_t width = keys->width - (count - 1) * BOUNDS_LANES; /* lanes of the last group, if it is short */
  for (int32_t g = 0; g < count; g++) groups[g] = keys->codes + (int64_t)g * BOUNDS_LANES * keys->row_bytes;
  if (is_short) {
    memset(rest, 0, (size_t)(BOUNDS_LANES * query->dim));
    for (int32_t i = 0; i < query->dim; i++)
      memcpy(rest + BOUNDS_LANES * i, groups[count - 1] + width * i, (size_t)width);
    memset(scales, 0, sizeof scales), memset(losts, 0, sizeof losts);
    memcpy(scales, keys->scales, (size_t)keys->width * sizeof *scales);
    memcpy(losts, keys->losts, (size_t)keys->width * sizeof *losts);
    groups[count - 1] = rest;
  }
  groups[count] = groups[count - 1]; /* the last of an odd number goes twice */
  for (int32_t quad = 0; quad * BOUNDS_QUAD < query->rows; quad++) {
    attention_floats unused[BOUNDS_QUAD];
    for (int32_t g = 0; g < count; g += 2)
      bounds_multiply(query->q[quad], query->dim, groups[g], groups[g + 1],
                      keys->next + (int64_t)g * BOUNDS_LANES * keys->row_bytes, x[g],
                      g + 1 < count ? x[g + 1] : unused);
    for (int32_t r = quad * BOUNDS_QUAD; r < query->rows && r < (quad + 1) * BOUNDS_QUAD; r++)
      bounds_add_up(query, keys, is_short ? scales : keys->scales, is_short ? losts : keys->losts, count, r,
                    &x[0][r % BOUNDS_QUAD], &tops[r], &masses[r]);
  }
}
