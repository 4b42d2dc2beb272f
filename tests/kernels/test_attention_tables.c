/* SPDX-License-Identifier: Apache-2.0
 * Attention of each supported kernel table against double precision, over random shapes and types, and the bits of two
 * merged parts. It needs only the kernels and the C library, so test_neon.sh builds it for aarch64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "f8.h"
#include "tests/support/generator.h"

enum { ROUNDS = 160, KEYS_MAX = 1200, ROWS_MAX = BNY_ATTENTION_HEADS_MAX, DIM_MAX = 512 };

static world_random state;

static double random_value(void) {
  double sum = 0;
  for (int i = 0; i < 6; i++) sum += (double)random_below(&state, 1 << 20) * 0x1p-20;
  return 1.5 * (sum - 3);
}

static size_t bytes_of(banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? 4 : dtype == BANYAN_F16 || dtype == BANYAN_BF16 ? 2 : 1;
}

static double value_of(uint8_t code, banyan_dtype dtype) {
  if (dtype == BANYAN_I8) return (double)(int8_t)code;
  return (double)(dtype == BANYAN_E4M3 ? bny_float_of_e4m3(code) : bny_float_of_e5m2(code));
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
  default: ((uint8_t *)base)[index] = code; return value_of(code, dtype);
  }
}

typedef struct problem {
  bny_attention_task task;
  void *q, *k, *v;
  double *q_values, *k_values, *v_values; /* values as stored */
  bool is_latent;                         /* the values are columns of the keys' rows */
} problem;

static void *fill(size_t count, banyan_dtype dtype, double **values) {
  void *memory = malloc(count * bytes_of(dtype));
  *values = malloc(count * sizeof **values);
  if (!memory || !*values) exit(99);
  for (size_t i = 0; i < count; i++) (*values)[i] = store(memory, i, dtype, random_value());
  return memory;
}

static void make(problem *p) {
  static const int32_t dims[] = {64, 128, 256, 192, 80, 96, 384, 512};
  bny_attention_task *task = &p->task;
  memset(p, 0, sizeof *p);
  task->group = random_below(&state, 4) ? 1 + random_below(&state, 8) : 16;
  task->head_dim = random_below(&state, 2) ? dims[random_below(&state, 8)] : 1 + random_below(&state, 100);
  task->value_dim = random_below(&state, 2) ? dims[random_below(&state, 8)] : 1 + random_below(&state, 100);
  task->heads = 1 + random_below(&state, BNY_ATTENTION_HEADS_MAX);
  task->keys = random_below(&state, 3) ? 1 + random_below(&state, 100) : 1 + random_below(&state, KEYS_MAX);
  task->q_dtype = (banyan_dtype)(BANYAN_F32 + random_below(&state, 3));
  task->kv_dtype = (banyan_dtype)(BANYAN_F32 + random_below(&state, 6));
  task->kv_rows = BANYAN_KV_ROWS_PLAIN;
  task->k_scale = task->v_scale = task->kv_dtype == BANYAN_I8 ? 1 / 16.0 : 1;
  task->scale_log2 = BNY_LOG2_E / sqrt((double)task->head_dim);
  p->is_latent = random_below(&state, 4) == 0;
  int32_t wider = task->value_dim > task->head_dim ? task->value_dim : task->head_dim;
  task->k_token_stride = p->is_latent ? wider : task->head_dim;
  task->v_token_stride = p->is_latent ? wider : task->value_dim;
  p->q = fill((size_t)(task->heads * task->head_dim), task->q_dtype, &p->q_values);
  task->k = p->k = fill((size_t)(task->keys * task->k_token_stride), task->kv_dtype, &p->k_values);
  task->v = p->v = p->k;
  p->v_values = p->k_values;
  if (!p->is_latent) task->v = p->v = fill((size_t)(task->keys * task->v_token_stride), task->kv_dtype, &p->v_values);
  for (int32_t h = 0; h < task->heads; h++)
    task->q[h] = (char *)p->q + (size_t)(h * task->head_dim) * bytes_of(task->q_dtype);
}

static void release(problem *p) {
  free(p->q);
  free(p->k);
  free(p->q_values);
  free(p->k_values);
  if (p->is_latent) return;
  free(p->v);
  free(p->v_values);
}

/* Returns the error of a row: |o' - o| relative to the length of the sums of w |v|, which do not cancel, or the
 * difference of m + log2 d if that is larger. */
static double error_of(const problem *p, int32_t h, double m, double d, const float *n) {
  const bny_attention_task *task = &p->task;
  double t[KEYS_MAX], top = -INFINITY, sum = 0, wrong = 0, size = 0;
  for (int32_t i = 0; i < task->keys; i++) {
    double dot = 0;
    for (int32_t j = 0; j < task->head_dim; j++)
      dot += p->q_values[h * task->head_dim + j] * p->k_values[i * task->k_token_stride + j];
    t[i] = dot * task->scale_log2 * task->k_scale;
    top = fmax(top, t[i]);
  }
  for (int32_t i = 0; i < task->keys; i++) sum += exp2(t[i] - top);
  for (int32_t j = 0; j < task->value_dim; j++) {
    double value = 0, length = 0;
    for (int32_t i = 0; i < task->keys; i++) {
      double term = exp2(t[i] - top) * p->v_values[i * task->v_token_stride + j] * task->v_scale / sum;
      value += term;
      length += fabs(term);
    }
    wrong += ((double)n[j] / d - value) * ((double)n[j] / d - value);
    size += length * length;
  }
  double lse = fabs(m + log2(d) - top - log2(sum));
  return fmax(sqrt(wrong / (size + 1e-30)), lse);
}

/* Fills the stack region of the next kernel with NaNs. */
static __attribute__((noinline)) void spoil_stack(void) {
  volatile unsigned char bytes[1 << 19];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = 0xff;
}

/* Runs the task, in one part or in two parts that are merged. */
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
  float m[ROWS_MAX], d[ROWS_MAX], n[ROWS_MAX * DIM_MAX], m2[ROWS_MAX], d2[ROWS_MAX], n2[ROWS_MAX * DIM_MAX];
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
    if (error <= 1e-6) continue;
    printf("FAIL: %s, round %d: row %d of %d keys, dims %d and %d, types %d and %d: error %.3g\n", table->name, round,
           h, task->keys, task->head_dim, task->value_dim, (int)task->q_dtype, (int)task->kv_dtype, error);
    return 1;
  }
  return 0;
}

/* A row has the same bits alone and together with other rows. */
static int check_alone(const bny_attention_kernels *table, const problem *p, int round) {
  float m[ROWS_MAX], d[ROWS_MAX], n[ROWS_MAX * DIM_MAX], m1, d1, n1[DIM_MAX];
  bny_attention_task task = p->task;
  int32_t row = random_below(&state, task.heads);
  run(table, &task, task.keys / 2, m, d, n);
  task.heads = 1;
  task.q[0] = task.q[row];
  run(table, &task, task.keys / 2, &m1, &d1, n1);
  if (memcmp(&m[row], &m1, sizeof m1) == 0 && memcmp(&d[row], &d1, sizeof d1) == 0 &&
      memcmp(n + row * task.value_dim, n1, (size_t)task.value_dim * sizeof *n1) == 0)
    return 0;
  printf("FAIL: %s, round %d: row %d of %d has other bits alone\n", table->name, round, row, p->task.heads);
  return 1;
}

/* The keys that a row sees: a range, and some later keys. */
static bny_attention_sight random_sight(int32_t keys) {
  bny_attention_sight sight = {.first = random_below(&state, keys)};
  sight.end = sight.first + random_below(&state, keys - sight.first + 1);
  sight.tree_first = sight.end + random_below(&state, keys - sight.end + 1);
  for (int32_t j = 0; j < 64 && sight.tree_first + j < keys; j++)
    sight.tree_bits |= (uint64_t)random_below(&state, 2) << j;
  return sight;
}

/* Rows that see different keys give the same result as separate tasks over the keys of each row. */
static int check_seen(const bny_attention_kernels *table, const problem *p, int round) {
  float m[ROWS_MAX], d[ROWS_MAX], n[ROWS_MAX * DIM_MAX], m1, d1, n1[DIM_MAX];
  bny_attention_sight sights[ROWS_MAX];
  bny_attention_task task = p->task;
  task.sights = sights;
  for (int32_t h = 0; h < task.heads; h++) {
    sights[h] = random_sight(task.keys);
    if (random_below(&state, 2))
      sights[h] = (bny_attention_sight){.first = 0, .end = task.keys, .tree_first = task.keys};
  }
  int32_t row = random_below(&state, task.heads);
  run(table, &task, task.keys / 2, m, d, n);
  sights[0] = sights[row];
  task.q[0] = task.q[row];
  task.heads = 1;
  run(table, &task, task.keys / 2, &m1, &d1, n1);
  bool same = memcmp(&m[row], &m1, sizeof m1) == 0 && memcmp(&d[row], &d1, sizeof d1) == 0 &&
              memcmp(n + row * task.value_dim, n1, (size_t)task.value_dim * sizeof *n1) == 0;
  float plain_m, plain_d;
  run(&bny_attention_portable, &task, task.keys / 2, &plain_m, &plain_d, n);
  double lse = (double)m1 + log2((double)d1), plain = (double)plain_m + log2((double)plain_d);
  bool close = (d1 == 0 && plain_d == 0) || fabs(lse - plain) < 1e-5 * (1 + fabs(plain));
  if (same && close) return 0;
  printf("FAIL: %s, round %d: row %d of %d that sees a part: %s\n", table->name, round, row, p->task.heads,
         same ? "not what plain C makes of it" : "has other bits alone");
  return 1;
}

/* Returns 0 for a finite number, the sign of an infinity, or 2 for NaN. */
static int kind_of(float value) { return isnan(value) ? 2 : isinf(value) ? (value > 0 ? 1 : -1) : 0; }

/* A NaN or infinity in one query, key or value affects each result as in the portable kernels. Rows that do not use it
 * keep their bits. */
static int check_special(const bny_attention_kernels *table, problem *p, int round) {
  static const double specials[] = {NAN, INFINITY, -INFINITY};
  static float m[3][ROWS_MAX], d[3][ROWS_MAX], n[3][ROWS_MAX * DIM_MAX];
  bny_attention_task *task = &p->task;
  banyan_dtype dtype = round % 3 == 0 ? task->q_dtype : task->kv_dtype;
  if (bytes_of(dtype) == 1) return 0; /* eight-bit types saturate */
  void *base = round % 3 == 0 ? p->q : round % 3 == 1 ? p->k : p->v;
  int32_t columns = round % 3 == 2 ? task->value_dim : task->head_dim;
  int64_t stride = round % 3 == 0 ? columns : round % 3 == 1 ? task->k_token_stride : task->v_token_stride;
  size_t row = (size_t)random_below(&state, round % 3 == 0 ? task->heads : task->keys), size = bytes_of(dtype);
  size_t element = row * (size_t)stride + (size_t)random_below(&state, (int32_t)columns);
  char kept[4];
  run(table, task, task->keys / 2, m[0], d[0], n[0]);
  memcpy(kept, (char *)base + element * size, size);
  store(base, element, dtype, specials[random_below(&state, 3)]);
  run(table, task, task->keys / 2, m[1], d[1], n[1]);
  run(&bny_attention_portable, task, task->keys / 2, m[2], d[2], n[2]);
  memcpy((char *)base + element * size, kept, size);
  for (int32_t i = 0; i < task->heads * task->value_dim; i++) {
    int32_t h = i / task->value_dim;
    bool untouched = round % 3 == 0 && (size_t)h != row;
    if (kind_of(m[1][h]) == kind_of(m[2][h]) && kind_of(d[1][h]) == kind_of(d[2][h]) &&
        kind_of(n[1][i]) == kind_of(n[2][i]) && (!untouched || memcmp(&n[0][i], &n[1][i], sizeof n[0][i]) == 0))
      continue;
    printf("FAIL: %s, round %d: row %d of %d, column %d: m %g d %g n %g, and in plain C m %g d %g n %g\n", table->name,
           round, h, task->heads, i % task->value_dim, (double)m[1][h], (double)d[1][h], (double)n[1][i],
           (double)m[2][h], (double)d[2][h], (double)n[2][i]);
    return 1;
  }
  return 0;
}

/* Multiplies the stored values by 2^by. */
static void shift(void *base, const double *values, size_t count, banyan_dtype dtype, int by) {
  for (size_t i = 0; i < count; i++) store(base, i, dtype, ldexp(values[i], by));
}

/* Multiplies queries, keys and values by powers of two, up to the largest floats, and divides the scale by the same.
 * Intermediate sums would overflow, but the result must not change. */
static int check_large(const bny_attention_kernels *table, problem *p, int round) {
  float m[ROWS_MAX], d[ROWS_MAX], n[ROWS_MAX * DIM_MAX];
  bny_attention_task *task = &p->task, kept = p->task;
  size_t q_count = (size_t)(task->heads * task->head_dim), k_count = (size_t)(task->keys * task->k_token_stride);
  size_t v_count = p->is_latent ? 0 : (size_t)(task->keys * task->v_token_stride);
  bool wide_q = task->q_dtype != BANYAN_F16, wide = task->kv_dtype == BANYAN_F32 || task->kv_dtype == BANYAN_BF16;
  /* No value is above 4.5. Products of bf16 may count q below 2^-126 as 0, with the power of two of the scale. */
  bool has_dots = task->q_dtype == BANYAN_BF16 && task->kv_dtype == BANYAN_BF16;
  int most = !wide ? 0 : has_dots ? 100 : 125;
  int by_q = wide_q ? random_below(&state, 126) : 0, by_k = p->is_latent ? most : random_below(&state, most + 1);
  shift(p->q, p->q_values, wide_q ? q_count : 0, task->q_dtype, by_q);
  shift(p->k, p->k_values, wide ? k_count : 0, task->kv_dtype, by_k);
  shift(p->v, p->v_values, wide ? v_count : 0, task->kv_dtype, most);
  task->scale_log2 = ldexp(task->scale_log2, -by_q - by_k);
  if (!wide) task->v_scale *= 0x1p119; /* 448 is the largest value */
  run(table, task, task->keys / 2, m, d, n);
  shift(p->q, p->q_values, wide_q ? q_count : 0, task->q_dtype, 0);
  shift(p->k, p->k_values, wide ? k_count : 0, task->kv_dtype, 0);
  shift(p->v, p->v_values, wide ? v_count : 0, task->kv_dtype, 0);
  *task = kept;
  for (int32_t i = 0; i < task->heads * task->value_dim; i++) n[i] = ldexpf(n[i], wide ? -most : -119);
  for (int32_t h = 0; h < task->heads; h++) {
    double error = error_of(p, h, (double)m[h], (double)d[h], n + h * task->value_dim);
    if (error <= 1e-6) continue;
    printf("FAIL: %s, round %d: row %d of %d keys, types %d and %d, large by 2^%d, 2^%d and 2^%d: error %.3g\n",
           table->name, round, h, task->keys, (int)task->q_dtype, (int)task->kv_dtype, by_q, by_k, most, error);
    return 1;
  }
  return 0;
}

/* A logit beyond the float range makes a row of NaN or a masked key, never an ordinary row. */
static int check_beyond(const bny_attention_kernels *table) {
  static const struct {
    float q, k[3];
    double scale_log2;
    int kind; /* kind_of(m) */
    float lse;
  } cases[] = {
      {1e30f, {1e30f, 1, 1}, 1, 2, 0},
      {1, {3e38f, 1, 1}, 4, 2, 0},
      {1, {-3e38f, 1, 1}, 4, 0, 5},
      {1e30f, {-1e30f, -1e30f, -1e30f}, 1, -1, 0},
      {1, {-3e38f, -3e38f, -3e38f}, 4, -1, 0},
      {1, {3e38f, 3e38f, 1}, 0.25, 0, 0.75e38f},
      {1, {-3e38f, -3e38f, -3e38f}, 1, 0, -3e38f},
  };
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    float q[4] = {cases[c].q}, k[3][4], m, d, n[4], expected = cases[c].lse;
    for (int i = 0; i < 12; i++) k[i / 4][i % 4] = cases[c].k[i / 4];
    bny_attention_task task = {.heads = 1,
                               .group = 1,
                               .head_dim = 4,
                               .value_dim = 4,
                               .keys = 3,
                               .k_scale = 1,
                               .v_scale = 1,
                               .scale_log2 = cases[c].scale_log2,
                               .q_dtype = BANYAN_F32,
                               .kv_dtype = BANYAN_F32,
                               .q = {q},
                               .k = k,
                               .v = k,
                               .k_token_stride = 4,
                               .v_token_stride = 4};
    run(table, &task, 2, &m, &d, n);
    if (kind_of(m) == cases[c].kind && (kind_of(m) != 0 || fabsf(m + log2f(d) - expected) <= 1e-6f * fabsf(expected)))
      continue;
    printf("FAIL: %s, case %zu beyond floats: m %g, d %g\n", table->name, c, (double)m, (double)d);
    return 1;
  }
  return 0;
}

/* All codes of eight bits, as values of weight 1, give exactly their numbers; as keys, they give their logits. NaN is
 * NaN in its own column or row alone. Rows of queries share what is converted, and columns are cut where vectors are
 * not whole. */
static int check_codes(const bny_attention_kernels *table, banyan_dtype dtype, int32_t heads, int32_t columns) {
  uint8_t codes[2][256] = {{0}};
  float q[256] = {0}, m[ROWS_MAX], d[ROWS_MAX], n[ROWS_MAX * 256];
  bny_attention_task task = {.heads = heads,
                             .group = heads,
                             .head_dim = columns,
                             .value_dim = columns,
                             .keys = 1,
                             .k_scale = 1,
                             .v_scale = 1,
                             .scale_log2 = 1,
                             .q_dtype = BANYAN_F32,
                             .kv_dtype = dtype,
                             .k_token_stride = 256,
                             .v_token_stride = 256};
  for (int32_t h = 0; h < heads; h++) task.q[h] = q;
  for (int first = 0; first < 256; first += columns) {
    uint8_t row[256] = {0}, zeros[256] = {0};
    for (int j = 0; j < columns; j++) row[j] = (uint8_t)(first + j);
    task.k = zeros, task.v = row;
    run(table, &task, 1, m, d, n);
    for (int32_t i = 0; i < heads * columns; i++) {
      double want = value_of(row[i % columns], dtype);
      if (m[i / columns] == 0 && d[i / columns] == 1 && (isnan(want) ? isnan(n[i]) : (double)n[i] == want)) continue;
      printf("FAIL: %s: code %d of type %d is %g\n", table->name, row[i % columns], (int)dtype, (double)n[i]);
      return 1;
    }
  }
  for (int code = 0; code < 256; code++) {
    double want = value_of((uint8_t)code, dtype);
    q[columns - 1 - code % columns] = 1;
    codes[0][columns - 1 - code % columns] = (uint8_t)code;
    task.k = codes, task.v = codes[1];
    run(table, &task, 1, m, d, n);
    q[columns - 1 - code % columns] = 0;
    codes[0][columns - 1 - code % columns] = 0;
    for (int32_t h = 0; h < heads; h++) {
      double t = (double)m[h] + log2((double)d[h]);
      bool is_right = fabs(t - want) <= 1e-6 * (1 + fabs(want));
      if (!isfinite(want)) is_right = want < 0 ? d[h] == 0 : !isfinite(t); /* a key of weight 0, or a row of NaN */
      if (is_right) continue;
      printf("FAIL: %s: key %d of type %d has logit %g\n", table->name, code, (int)dtype, t);
      return 1;
    }
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
      if ((*at)->supported())
        failed += check(*at, &p, round) + check_alone(*at, &p, round) + check_seen(*at, &p, round) +
                  check_special(*at, &p, round) + check_large(*at, &p, round);
    release(&p);
  }
  printf("attention tables:");
  for (const bny_attention_kernels *const *at = bny_attention_table; *at; at++) {
    if (!(*at)->supported()) continue;
    failed += check_beyond(*at);
    for (int i = 0; i < 3 * 2 * 3; i++) {
      static const banyan_dtype types[] = {BANYAN_E4M3, BANYAN_E5M2, BANYAN_I8};
      static const int32_t columns[] = {256, 64, 77};
      failed += check_codes(*at, types[i % 3], i / 3 % 2 ? 8 : 1, columns[i / 6]);
    }
    printf(" %s", (*at)->name);
  }
  printf(", %d rounds, %d failed\n", ROUNDS, failed);
  return failed > 0;
}
