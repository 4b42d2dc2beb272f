/* SPDX-License-Identifier: Apache-2.0
 *
 * The portable table: a vector is one float, and compilers make of the loops over columns what they can. */
#include "merge_math.h"
#include "op.h"

typedef float vec;
#define VEC_LANES 1

static inline vec vec_set(float x) {
  return x;
}

static inline vec vec_add(vec a, vec b) {
  return a + b;
}

static inline vec vec_mul(vec a, vec b) {
  return a * b;
}

static inline vec vec_load_f32(const void *values) {
  return *(const float *)values;
}

static inline vec vec_load_f16(const void *values) {
  uint16_t half;
  memcpy(&half, values, sizeof half);
  return bny_float_of_f16(half);
}

static inline vec vec_load_bf16(const void *values) {
  uint16_t half;
  memcpy(&half, values, sizeof half);
  return bny_float_of_bf16(half);
}

static inline void vec_store_f32(void *values, vec v) {
  *(float *)values = v;
}

static inline void vec_store_f16(void *values, vec v) {
  uint16_t half = bny_f16_of_float(v);
  memcpy(values, &half, sizeof half);
}

static inline void vec_store_bf16(void *values, vec v) {
  uint16_t half = bny_bf16_of_float(v);
  memcpy(values, &half, sizeof half);
}

static inline vec vec_saturate(vec v, float limit) {
  return bny_saturate(v, limit);
}

static bool supported(void) {
  return true;
}

#define KERNELS_NAME "portable"
#define KERNELS_TABLE bny_kernels_portable
#include "merge_template.h"
