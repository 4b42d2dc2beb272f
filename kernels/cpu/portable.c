/* SPDX-License-Identifier: Apache-2.0
 * The portable table uses vectors of four floats in the notation of GNU C, which compiles for any processor. */
#include "detect.h"
#include "merge_math.h"
#include "select.h"

typedef float vec __attribute__((vector_size(16)));
#define VEC_LANES 4
#include "vec.h"

typedef uint32_t bits4 __attribute__((vector_size(16)));
typedef int32_t signed4 __attribute__((vector_size(16)));
typedef uint16_t halves4 __attribute__((vector_size(8)));

/* Returns mask ? a : b for masks from comparisons. */
static inline bits4 choose(bits4 mask, bits4 a, bits4 b) { return (a & mask) | (b & ~mask); }

/* Compares as signed numbers, which every processor can; none is negative here. */
static inline bits4 above(bits4 a, uint32_t b) { return (bits4)((signed4)a > (signed4)(a * 0 + b)); }

static inline bits4 bits_of(vec v) { return (bits4)v; }

/* These give the bits of bny_float_of_f16(), bny_f16_of_float() and so on, which explain them. */
static inline vec float_of_f16(bits4 half) {
  bits4 magnitude = (half & 0x7fffu) << 13, exponent = magnitude & 0x0f800000u;
  bits4 subnormal = bits_of((vec)(magnitude | (113u << 23)) - 0x1p-14f);
  bits4 is_nan = above(magnitude & 0x007fffffu, 0);
  bits4 special = magnitude | 0x7f800000u | (is_nan & 0x00400000u);
  bits4 bits = choose((bits4)(exponent == 0), subnormal, magnitude + (112u << 23));
  return (vec)(choose((bits4)(exponent == 0x0f800000u), special, bits) | (half & 0x8000u) << 16);
}

/* Inlining gains little here, because there are many merges. */
static __attribute__((noinline)) bits4 f16_of_float(vec v) {
  bits4 bits = bits_of(v), magnitude = bits & 0x7fffffffu;
  bits4 normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  bits4 is_small = ~above(magnitude, (113u << 23) - 1);
  bits4 subnormal = bits_of((vec)(magnitude & is_small) + 0.5f) - 0x3f000000u;
  bits4 half = choose(is_small, subnormal, normal);
  half = choose(above(magnitude, 0x477fefffu), half * 0 + 0x7c00u, half);
  half = choose(above(magnitude, 0x7f800000u), 0x7e00u | ((magnitude >> 13) & 0x3ffu), half);
  return half | (bits >> 16 & 0x8000u);
}

static inline bits4 bf16_of_float(vec v) {
  bits4 bits = bits_of(v), is_nan = above(bits & 0x7fffffffu, 0x7f800000u);
  return choose(is_nan, bits >> 16 | 0x40u, (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline bits4 load_halves(const void *values) {
  halves4 halves;
  memcpy(&halves, values, sizeof halves);
  return __builtin_convertvector(halves, bits4);
}

static inline void store_halves(void *values, bits4 bits) {
  halves4 halves = __builtin_convertvector(bits, halves4);
  memcpy(values, &halves, sizeof halves);
}

static inline vec vec_load_f16(const void *values) { return float_of_f16(load_halves(values)); }

static inline vec vec_load_bf16(const void *values) { return (vec)(load_halves(values) << 16); }

static inline void vec_stream_f32(float *values, vec v) { vec_store(values, v); }

static inline void vec_stream_end(void) {}

static inline void vec_store_f16(void *values, vec v) { store_halves(values, f16_of_float(v)); }

static inline void vec_store_bf16(void *values, vec v) { store_halves(values, bf16_of_float(v)); }

static inline vec vec_round_f16(vec v) { return float_of_f16(f16_of_float(v)); }

static inline vec vec_round_bf16(vec v) { return (vec)(bf16_of_float(v) << 16); }

static inline vec vec_saturate(vec v, float limit) {
  uint32_t bound = bny_bits_of_float(limit);
  bits4 bits = bits_of(v), magnitude = bits & 0x7fffffffu;
  bits4 over = above(magnitude, bound) & ~above(magnitude, 0x7f7fffffu);
  return (vec)choose(over, bound | (bits & 0x80000000u), bits);
}

static inline unsigned vec_count_over(vec v, float limit) {
  bits4 magnitude = bits_of(v) & 0x7fffffffu;
  bits4 over = above(magnitude, bny_bits_of_float(limit)) & ~above(magnitude, 0x7f7fffffu) & 1u;
  return over[0] + over[1] + over[2] + over[3];
}

static int32_t at_least(const float *scores, int32_t n, float bound, int32_t *found, int32_t most) {
  int32_t count = 0;
  for (int32_t i = 0; i < n && count <= most; i++) {
    found[count] = i;
    count += scores[i] >= bound;
  }
  return count;
}

#define KERNELS_NAME "portable"
#define KERNELS_SUPPORTED bny_cpu_any
#define KERNELS_TABLE bny_kernels_portable
#define KERNELS_PAIRS(verb) bny_pairs_plain_##verb
#include "merge_table.h"
