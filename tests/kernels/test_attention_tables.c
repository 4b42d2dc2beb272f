/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of each kernel table that this processor runs, over random shapes and types, against double precision; and
 * the bits of two parts merged. It needs the kernels and the C library alone, so test_neon.sh builds it for aarch64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "f8.h"

enum { ROUNDS = 120, KEYS_MAX = 1200, ROWS_MAX = 4 };

static uint64_t state;

static uint32_t random_below(uint32_t end) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33) % end;
}

static double random_value(void) {
  double sum = 0;
  for (int i = 0; i < 6; i++) sum += (double)random_below(1 << 20) * 0x1p-20;
  return 1.5 * (sum - 3);
}

static size_t bytes_of(banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? 4 : dtype == BANYAN_F16 || dtype == BANYAN_BF16 ? 2 : 1;
}

/* Stores a value as `dtype` and returns what was stored. */
static double store(void *base, size_t index, banyan_dtype dtype, double value) {
  float single = (float)value;
  uint16_t half = dtype == BANYAN_F16 ? bny_f16_of_float(single) : bny_bf16_of_float(single);
  uint8_t code = dtype == BANYAN_I8     ? (uint8_t)(int8_t)rint(fmin(fmax(16 * value, -127), 127))
                 : dtype == BANYAN_E4M3 ? bny_e4m3_of_float(single)
                                        : bny_e5m2_of_float(single);
  switch (dtype) {
  case BANYAN_F32: memcpy((char *)base + 4 * index, &single, 4); return (double)single;
  case BANYAN_F16: memcpy((char *)base + 2 * index, &half, 2); return (double)bny_float_of_f16(half);
  case BANYAN_BF16: memcpy((char *)base + 2 * index, &half, 2); return (double)bny_float_of_bf16(half);
  default: ((uint8_t *)base)[index] = code;
  }
  if (dtype == BANYAN_I8) return (double)(int8_t)code;
  return (double)(dtype == BANYAN_E4M3 ? bny_float_of_e4m3(code) : bny_float_of_e5m2(code));
}

typedef struct problem {
  bny_attention_task task;
  void *q, *k, *v;
  double *q_values, *k_values, *v_values; /* as stored */
} problem;

static void *fill(size_t count, banyan_dtype dtype, double **values) {
  void *memory = malloc(count * bytes_of(dtype));
  *values = malloc(count * sizeof **values);
  if (!memory || !*values) exit(99);
  for (size_t i = 0; i < count; i++) (*values)[i] = store(memory, i, dtype, random_value());
  return memory;
}

static void make(problem *p) {
  static const int32_t dims[] = {64, 128, 256, 192, 80, 96};
  bny_attention_task *task = &p->task;
  memset(p, 0, sizeof *p);
  task->heads = 1 + (int32_t)random_below(ROWS_MAX);
  task->head_dim = random_below(2) ? dims[random_below(6)] : 1 + (int32_t)random_below(100);
  task->value_dim = random_below(2) ? dims[random_below(6)] : 1 + (int32_t)random_below(100);
  task->keys = random_below(3) ? 1 + (int32_t)random_below(100) : 1 + (int32_t)random_below(KEYS_MAX);
  task->q_dtype = (banyan_dtype)(BANYAN_F32 + random_below(3));
  task->kv_dtype = (banyan_dtype)(BANYAN_F32 + random_below(6));
  task->kv_rows = BANYAN_KV_ROWS_PLAIN;
  task->k_scale = task->v_scale = task->kv_dtype == BANYAN_I8 ? 1 / 16.0 : 1;
  task->scale_log2 = BNY_LOG2_E / sqrt((double)task->head_dim);
  task->k_token_stride = task->head_dim;
  task->v_token_stride = task->value_dim;
  p->q = fill((size_t)(task->heads * task->head_dim), task->q_dtype, &p->q_values);
  task->k = p->k = fill((size_t)task->keys * (size_t)task->head_dim, task->kv_dtype, &p->k_values);
  task->v = p->v = fill((size_t)task->keys * (size_t)task->value_dim, task->kv_dtype, &p->v_values);
  for (int32_t h = 0; h < task->heads; h++)
    task->q[h] = (char *)p->q + (size_t)(h * task->head_dim) * bytes_of(task->q_dtype);
}

static void release(problem *p) {
  free(p->q);
  free(p->k);
  free(p->v);
  free(p->q_values);
  free(p->k_values);
  free(p->v_values);
}

/* Returns how far a row is from its definition: |o' - o| / |o|, or the difference of m + log2 d if that is larger. */
static double error_of(const problem *p, int32_t h, double m, double d, const float *n) {
  const bny_attention_task *task = &p->task;
  double t[KEYS_MAX], top = -INFINITY, sum = 0, wrong = 0, size = 0;
  for (int32_t i = 0; i < task->keys; i++) {
    double dot = 0;
    for (int32_t j = 0; j < task->head_dim; j++)
      dot += p->q_values[h * task->head_dim + j] * p->k_values[i * task->head_dim + j];
    t[i] = dot * task->scale_log2 * task->k_scale;
    top = fmax(top, t[i]);
  }
  for (int32_t i = 0; i < task->keys; i++) sum += exp2(t[i] - top);
  for (int32_t j = 0; j < task->value_dim; j++) {
    double value = 0;
    for (int32_t i = 0; i < task->keys; i++) value += exp2(t[i] - top) * p->v_values[i * task->value_dim + j];
    value *= task->v_scale / sum;
    wrong += ((double)n[j] / d - value) * ((double)n[j] / d - value);
    size += value * value;
  }
  double lse = fabs(m + log2(d) - top - log2(sum));
  return fmax(sqrt(wrong / (size + 1e-30)), lse);
}

/* Leaves NaNs where the stack of a kernel will be. */
static __attribute__((noinline)) void spoil_stack(void) {
  volatile unsigned char bytes[1 << 19];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = 0xff;
}

/* Runs the task, as a whole or in two parts that are merged. */
static void run(const bny_attention_kernels *table, const bny_attention_task *task, int32_t middle, float *m, float *d,
                float *n) {
  static bny_attention_sums sums, rest;
  spoil_stack();
  table->run(task, 0, middle, &sums);
  spoil_stack();
  table->run(task, middle, task->keys, &rest);
  bny_attention_merge(task, &sums, &rest);
  bny_attention_finish(task, &sums, m, d, n);
}

static int check(const bny_attention_kernels *table, const problem *p, int round) {
  float m[ROWS_MAX], d[ROWS_MAX], n[ROWS_MAX * 256], m2[ROWS_MAX], d2[ROWS_MAX], n2[ROWS_MAX * 256];
  const bny_attention_task *task = &p->task;
  run(table, task, task->keys / 2, m, d, n);
  run(table, task, task->keys / 2, m2, d2, n2);
  size_t rows = (size_t)task->heads;
  if (memcmp(m, m2, rows * 4) != 0 || memcmp(d, d2, rows * 4) != 0 ||
      memcmp(n, n2, rows * (size_t)task->value_dim * 4) != 0) {
    printf("FAIL: %s, round %d: two runs differ\n", table->name, round);
    return 1;
  }
  for (int32_t h = 0; h < task->heads; h++) {
    double error = error_of(p, h, (double)m[h], (double)d[h], n + h * task->value_dim);
    if (error <= 2e-6) continue;
    printf("FAIL: %s, round %d: row %d of %d keys, dims %d and %d, types %d and %d: error %.3g\n", table->name, round,
           h, task->keys, task->head_dim, task->value_dim, (int)task->q_dtype, (int)task->kv_dtype, error);
    return 1;
  }
  return 0;
}

int main(void) {
  int failed = 0;
  for (int round = 0; round < ROUNDS; round++) {
    problem p;
    state = (uint64_t)round * 7919 + 1;
    make(&p);
    for (const bny_attention_kernels *const *at = bny_attention_table; *at; at++)
      if ((*at)->supported()) failed += check(*at, &p, round);
    release(&p);
  }
  printf("attention tables:");
  for (const bny_attention_kernels *const *at = bny_attention_table; *at; at++)
    if ((*at)->supported()) printf(" %s", (*at)->name);
  printf(", %d rounds, %d failed\n", ROUNDS, failed);
  return failed > 0;
}
