/* SPDX-License-Identifier: Apache-2.0
 * These attention kernels are plain C, laid out so that a compiler can use the machine's vectors. */
#define ATTENTION_FORMS ATTENTION_TYPES

#include "attention_bounds.h"
#include "attention_plain.h"
#include "detect.h"
#include "f8.h"
#include "merge_math.h"

/* Exponent and mantissa shifted into place give the value times 2^-112, including subnormals. This form lets a compiler
 * vectorise loops over it; bny_float_of_f16() gives the same values. */
static inline float f16_float(uint16_t half) {
  uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
  uint32_t bits = bny_bits_of_float(bny_float_of_bits(magnitude) * 0x1p112f);
  uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0;
  return bny_float_of_bits(bits | special | (uint32_t)(half & 0x8000) << 16);
}

INLINE float element(const char *row, int32_t index, banyan_dtype dtype) {
  if (dtype == BANYAN_F32) {
    float value;
    memcpy(&value, row + (size_t)index * 4, sizeof value);
    return value;
  }
  if (dtype == BANYAN_E4M3) return bny_float_of_e4m3((uint8_t)row[index]);
  if (dtype == BANYAN_E5M2) return bny_float_of_e5m2((uint8_t)row[index]);
  if (dtype == BANYAN_I8) return (float)(int8_t)row[index];
  uint16_t half;
  memcpy(&half, row + (size_t)index * 2, sizeof half);
  return dtype == BANYAN_F16 ? f16_float(half) : bny_float_of_bf16(half);
}

INLINE void convert(const char *row, int32_t count, banyan_dtype dtype, int32_t padded, float *values) {
  for (int32_t i = 0; i < count; i++) values[i] = element(row, i, dtype);
  for (int32_t i = count; i < padded; i++) values[i] = 0;
}

static banyan_dtype attention_form(const bny_attention_task *task) { return task->kv_dtype; }

static double attention_factor(banyan_dtype form) {
  (void)form;
  return 1;
}

static void attention_convert(const char *row, int32_t count, banyan_dtype dtype, const float *scale, float *values) {
  convert(row, count, dtype, count, values);
  for (int32_t i = 0; scale && i < count; i++) values[i] *= *scale;
}

static void attention_convert_rows(const attention_next *rows, int32_t columns, banyan_dtype dtype,
                                   const attention_next *next, int32_t stride, float *to) {
  (void)next;
  for (int32_t i = 0; i < rows->rows; i++)
    attention_convert(rows->row + i * rows->step, columns, dtype, NULL, to + i * stride);
}

/* The f32 lanes are summed in double. */
static inline double dot(const float *a, const float *b, int32_t padded) {
  float lanes[BNY_ATTENTION_LANES_MAX] = {0};
  for (int32_t i = 0; i < padded; i += BNY_ATTENTION_LANES_MAX)
    for (int32_t l = 0; l < BNY_ATTENTION_LANES_MAX; l++) lanes[l] += a[i + l] * b[i + l];
  double sum = 0;
  for (int32_t l = 0; l < BNY_ATTENTION_LANES_MAX; l++) sum += (double)lanes[l];
  return sum;
}

/* Returns 2^x for x <= 0 within 1.1 ulp: 2^round(x) times a polynomial (minimax, 2.6e-9) in the rest; 0 below
 * 2^-125. */
static inline float exp2_negative(float x) {
  if (x < -125.0f) return 0;
  if (isnan(x)) return x;
  float whole = rintf(x);
  float f = x - whole;
  float y = 0x1.470b4ap-13f;
  y = y * f + 0x1.5f7276p-10f;
  y = y * f + 0x1.3b270ep-7f;
  y = y * f + 0x1.c6ae72p-5f;
  y = y * f + 0x1.ebfbe2p-3f;
  y = y * f + 0x1.62e432p-1f;
  y = y * f + 1.0f;
  return y * bny_float_of_bits((uint32_t)((int32_t)whole + 127) << 23);
}

INLINE void attention_weigh(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                            attention_work *work) {
  float k[ATTENTION_QUAD][BNY_ATTENTION_HEAD_DIM_MAX], lanes[ATTENTION_QUAD];
  for (int32_t at = 0; at < count; at += ATTENTION_QUAD) {
    int32_t keys = count - at < ATTENTION_QUAD ? count - at : ATTENTION_QUAD, quad = at / ATTENTION_QUAD;
    for (int32_t i = 0; i < keys; i++)
      convert(attention_row(task->k, task->k_token_stride, first + at + i, dtype), task->head_dim, dtype,
              work->q_stride, k[i]);
    for (int32_t h = work->row; h < work->row + work->rows; h++) {
      float *p = work->p + quad * ATTENTION_LANES + ATTENTION_QUAD * h, *d = work->tile_d + ATTENTION_QUAD * h;
      for (int32_t i = 0; i < keys; i++) lanes[i] = (float)dot(work->q + h * work->q_stride, k[i], work->q_stride);
      attention_settle(task, work, h, 1, keys, quad, lanes);
      for (int32_t i = 0; i < keys; i++) d[i] += p[i] = exp2_negative(lanes[i]);
    }
  }
}

INLINE void attention_accumulate(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                                 attention_work *work) {
  float v[BNY_ATTENTION_VALUE_DIM_MAX], sums[BNY_ATTENTION_VALUE_FLOATS] = {0};
  for (int32_t i = 0; i < count; i++) {
    convert(attention_row(task->v, task->v_token_stride, first + i, dtype), task->value_dim, dtype, work->n_stride, v);
    for (int32_t h = work->row; h < work->row + work->rows; h++) {
      float p = work->p[i / ATTENTION_QUAD * ATTENTION_LANES + ATTENTION_QUAD * h + i % ATTENTION_QUAD];
      float *sum = sums + h * work->n_stride;
      for (int32_t j = 0; j < work->n_stride; j++) sum[j] += p * v[j];
    }
  }
  for (int32_t j = work->row * work->n_stride; j < (work->row + work->rows) * work->n_stride; j++)
    work->n[j] += sums[j];
}

const bny_attention_kernels bny_attention_portable = {
    "portable", "portable", bny_cpu_any, attention_run, attention_code_masses, NULL, NULL};
