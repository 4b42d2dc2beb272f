/* SPDX-License-Identifier: Apache-2.0
 *
 * Local attention by every kernel table against a reference in double precision from the same stored keys and values.
 */
#include "attention.h"
#include "f8.h"
#include "tests/api/attention_local.h"
#include "decode/decode.h"
#include "tests/support/lone.h"
#include "op.h"

/* ---- reference --------------------------------------------------------------------------------------------------- */

static double reference_logit(const banyan_attention_desc *desc, int32_t b, int32_t h, int32_t i) {
  int32_t kv_head = h / (desc->heads / desc->kv_heads);
  int64_t q = b * desc->q_batch_stride + h * desc->q_head_stride;
  int64_t k = b * desc->k_batch_stride + kv_head * desc->k_head_stride + i * desc->k_token_stride;
  double sum = 0;
  for (int32_t j = 0; j < desc->head_dim; j++)
    sum += load(desc->q, q + j, desc->q_dtype) * load(desc->k, k + j, desc->kv_dtype);
  if (desc->scales.k) sum *= (double)desc->scales.k[kv_head * desc->scales.head_stride];
  return sum * (desc->scale != 0 ? (double)desc->scale : 1 / sqrt((double)desc->head_dim));
}

/* o[value_dim], its length, and lse in base e of row (b, h). A length is taken as no less than `share` of the weighted
 * mean of the values' lengths: below that, values have cancelled and no relative error is left to speak of. */
static double reference_row(const banyan_attention_desc *desc, int32_t b, int32_t h, double share, double *o,
                            double *length) {
  int32_t kv_head = h / (desc->heads / desc->kv_heads);
  int32_t value_dim = desc->value_dim ? desc->value_dim : desc->head_dim;
  int32_t keys = desc->seq_lens[b];
  double v_scale = desc->scales.v ? (double)desc->scales.v[kv_head * desc->scales.head_stride] : 1;
  double *s = malloc((size_t)(keys + 1) * sizeof *s);
  double m = -INFINITY, d = 0, mean = 0, squares = 0;
  for (int32_t j = 0; j < value_dim; j++) o[j] = 0;
  for (int32_t i = 0; i < keys; i++) {
    s[i] = reference_logit(desc, b, h, i);
    m = s[i] > m ? s[i] : m;
  }
  for (int32_t i = 0; i < keys; i++) {
    int64_t v = b * desc->v_batch_stride + kv_head * desc->v_head_stride + i * desc->v_token_stride;
    double weight = exp(s[i] - m);
    d += weight;
    double value_squares = 0;
    for (int32_t j = 0; j < value_dim; j++) {
      double value = load(desc->v, v + j, desc->kv_dtype) * v_scale;
      o[j] += weight * value;
      value_squares += value * value;
    }
    mean += weight * sqrt(value_squares);
  }
  for (int32_t j = 0; j < value_dim && keys > 0; j++) {
    o[j] /= d;
    squares += o[j] * o[j];
  }
  *length = keys > 0 ? fmax(sqrt(squares), share * mean / d) : 0;
  free(s);
  return keys > 0 ? m + log(d) : -INFINITY;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static result run(const bny_attention_kernels *table, const banyan_attention_desc *desc) {
  banyan_partial out;
  result r = result_make(desc, &out);
  banyan_status status = bny_decode_attention_run(table, bny_kernels_find(NULL), desc, &out, NULL, NULL);
  ck_assert_msg(status == BANYAN_OK, "%s: %s", table->name, banyan_last_error());
  return r;
}

/* Every row within `bound` relative of the reference, |out - ref|_2 / |ref|_2; lse within `bound` of 1 + |lse|. */
static void compare(const char *name, const banyan_attention_desc *desc, const result *r, double share, double bound) {
  int32_t value_dim = desc->value_dim ? desc->value_dim : desc->head_dim;
  double o[BNY_ATTENTION_VALUE_DIM_MAX];
  for (int32_t b = 0; b < desc->batch; b++) {
    for (int32_t h = 0; h < desc->heads; h++) {
      double length, error = 0, lse = reference_row(desc, b, h, share, o, &length);
      const float *values = r->values + ((int64_t)b * desc->heads + h) * value_dim;
      for (int32_t j = 0; j < value_dim; j++) error += ((double)values[j] - o[j]) * ((double)values[j] - o[j]);
      error = length > 0 ? sqrt(error) / length : sqrt(error);
      double lse_error = (double)r->lse[b * desc->heads + h] - lse;
      if (isinf(lse)) lse_error = (double)r->lse[b * desc->heads + h] == lse ? 0 : INFINITY;
      ck_assert_msg(error <= bound && fabs(lse_error) <= bound * (1 + fabs(lse)),
                    "%s: row (%d, %d) of %d keys, heads %d / %d, dims %d, %d, dtypes %d, %d: relative error %.3g, "
                    "lse %.9g is off by %.3g",
                    name, b, h, desc->seq_lens[b], desc->heads, desc->kv_heads, desc->head_dim, value_dim,
                    (int)desc->q_dtype, (int)desc->kv_dtype, error, lse, lse_error);
    }
  }
}

/* ---- properties -------------------------------------------------------------------------------------------------- */

/* The statement that follows, for every table that this processor runs. */
#define EACH_TABLE(table)                                                                                   \
  for (const bny_attention_kernels *const *at_ = bny_attention_table, *table = *at_; table; table = *++at_) \
    if (table->supported())

static int32_t random_dim(int32_t most) {
  static const int32_t usual[] = {64, 128, 80, 96, 32, 192, 256, 576, 512};
  int32_t dim = random_range(0, 2) ? random_range(1, most < 100 ? most : 100) : usual[random_range(0, 8)];
  return dim > most ? most : dim;
}

static void random_problem(problem *p) {
  static const int32_t groups[] = {1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 40};
  int32_t seq_lens[8] = {0};
  int32_t batch = random_range(1, 4), kv_heads = random_range(1, 3), group = groups[random_range(0, 11)];
  for (int32_t b = 0; b < batch; b++) {
    int32_t kind = random_range(0, 5);
    seq_lens[b] = kind == 0 ? 0 : kind == 1 ? random_range(500, 1100) : random_range(1, 150);
  }
  problem_make(p, batch, kv_heads * group, kv_heads, random_dim(BNY_ATTENTION_HEAD_DIM_MAX),
               random_dim(BNY_ATTENTION_VALUE_DIM_MAX), (banyan_dtype)random_range(BANYAN_F32, BANYAN_BF16),
               (banyan_dtype)random_range(BANYAN_F32, BANYAN_I8), seq_lens, 1);
  if (random_range(0, 3) == 0)
    p->desc.scale = (float)(random_normal() / sqrt((double)p->desc.head_dim)); /* negative ones too */
}

TEST_RANDOM(random_shapes, 100) {
  random_state = (uint64_t)_i;
  problem p;
  random_problem(&p);
  EACH_TABLE(table) {
    result r = run(table, &p.desc);
    compare(table->name, &p.desc, &r, 0.1, 1e-6);
    result_free(&r);
  }
  problem_free(&p);
}

/* A sequence alone, and a KV head's query heads one by one, give the bits that the whole call gives. */
TEST_LOOP(batch_independent, 20) {
  random_state = (uint64_t)_i + 1000;
  problem p;
  random_problem(&p);
  int32_t group = p.desc.heads / p.desc.kv_heads;
  EACH_TABLE(table) {
    result whole = run(table, &p.desc);
    for (int32_t b = 0; b < p.desc.batch; b++) {
      for (int32_t h = 0; h < p.desc.heads; h++) {
        banyan_attention_desc one = p.desc;
        one.batch = one.heads = one.kv_heads = 1;
        one.q = (const char *)one.q +
                (b * one.q_batch_stride + h * one.q_head_stride) * (int64_t)element_bytes(one.q_dtype);
        one.k = (const char *)one.k +
                (b * one.k_batch_stride + h / group * one.k_head_stride) * (int64_t)element_bytes(one.kv_dtype);
        one.v = (const char *)one.v +
                (b * one.v_batch_stride + h / group * one.v_head_stride) * (int64_t)element_bytes(one.kv_dtype);
        one.seq_lens = &p.seq_lens[b];
        if (one.scales.k) {
          one.scales.k += h / group * one.scales.head_stride;
          one.scales.v += h / group * one.scales.head_stride;
        }
        result r = run(table, &one);
        int64_t row = (int64_t)b * p.desc.heads + h;
        ck_assert_msg(memcmp(r.values, (char *)whole.values + row * (int64_t)r.values_bytes, r.values_bytes) == 0 &&
                          memcmp(r.lse, &whole.lse[row], sizeof(float)) == 0,
                      "%s, seed %d: row (%d, %d) differs from the same row in a batch", table->name, _i, b, h);
        result_free(&r);
      }
    }
    result_free(&whole);
  }
  problem_free(&p);
}

/* Row 0 has a t - m just beyond the middle of two floats, nearer to it than double tells. Its bits stay when the max of
 * row 1 beside it rises with that key. */
TEST(rising_neighbour) {
  const float near = 0x1.ffe006p-21f, k[5][2] = {{19.9f, 1}, {-99, 0}, {-99, 0}, {-99, 0}, {near, 30}};
  const float q[2][2] = {{1, 0}, {0, 1}}, v[5] = {0, 0, 0, 0, 1};
  int32_t lens = 5;
  banyan_attention_desc desc = {.size = sizeof desc,
                                .batch = 1,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 2,
                                .value_dim = 1,
                                .scale = 0x1.62fa5cp-1f, /* times log2(e) it is 2^-20 / near, a little above */
                                .q_dtype = BANYAN_F32,
                                .kv_dtype = BANYAN_F32,
                                .q = q,
                                .q_head_stride = 2,
                                .k = k,
                                .k_token_stride = 2,
                                .v = v,
                                .v_token_stride = 1,
                                .seq_lens = &lens};
  EACH_TABLE(table) {
    desc.heads = 2;
    result both = run(table, &desc);
    desc.heads = 1;
    result alone = run(table, &desc);
    ck_assert_msg(both.values[0] == alone.values[0], "%s: %a beside a row that rises, %a alone", table->name,
                  (double)both.values[0], (double)alone.values[0]);
    result_free(&both);
    result_free(&alone);
  }
}

/* Columns in groups of 64, for which kernels have forms of their own. */
TEST_RANDOM(grouped_columns, 60) {
  static const banyan_dtype caches[] = {BANYAN_BF16, BANYAN_E4M3, BANYAN_I8, BANYAN_F16};
  static const int32_t groups[] = {1, 2, 3, 4, 5, 8, 16};
  random_state = (uint64_t)_i + 3000;
  problem p;
  int32_t seq_lens[2] = {random_range(1, 150), random_range(0, 3) ? random_range(0, 40) : random_range(500, 1100)};
  problem_make(&p, 2, 2 * groups[random_range(0, 6)], 2, 64 * random_range(1, 9), 64 * random_range(1, 8),
               (banyan_dtype)random_range(BANYAN_F32, BANYAN_BF16), caches[_i % 4], seq_lens, 1);
  EACH_TABLE(table) {
    result r = run(table, &p.desc);
    compare(table->name, &p.desc, &r, 0.1, 1e-6);
    result_free(&r);
  }
  problem_free(&p);
}

/* One key has the weight 1, so the result is its value: for each code of eight bits, NaN included. */
TEST_LOOP(each_code, 3) {
  static const banyan_dtype caches[] = {BANYAN_E4M3, BANYAN_E5M2, BANYAN_I8};
  enum { CODES = 256 };
  uint8_t k[64] = {0}, v[CODES];
  uint16_t q[64] = {0};
  int32_t keys = 1;
  for (int i = 0; i < CODES; i++) v[i] = (uint8_t)(i * 37); /* each code once */
  banyan_attention_desc desc = {.size = sizeof desc,
                                .batch = 1,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = 64,
                                .value_dim = CODES,
                                .q_dtype = BANYAN_BF16,
                                .kv_dtype = caches[_i],
                                .q = q,
                                .q_batch_stride = 64,
                                .q_head_stride = 64,
                                .k = k,
                                .k_token_stride = 64,
                                .v = v,
                                .v_token_stride = CODES,
                                .seq_lens = &keys};
  EACH_TABLE(table) {
    result r = run(table, &desc);
    for (int i = 0; i < CODES; i++) {
      float expected = caches[_i] == BANYAN_E4M3   ? bny_float_of_e4m3(v[i])
                       : caches[_i] == BANYAN_E5M2 ? bny_float_of_e5m2(v[i])
                                                   : (float)(int8_t)v[i];
      ck_assert_msg(isnan(expected) ? isnan(r.values[i]) : r.values[i] == expected, "%s: code %d is %g, not %g",
                    table->name, v[i], (double)r.values[i], (double)expected);
    }
    result_free(&r);
  }
}

/* The project promises for f32 caches: 1e-6 over 2,560 keys of 64 dimensions. */
TEST_LOOP(long_f32, 2) {
  random_state = 7;
  problem p;
  problem_make(&p, 1, 9, 3, 64, 64, BANYAN_F32, BANYAN_F32, (int32_t[]){2560}, _i == 0 ? 1 : 8);
  EACH_TABLE(table) {
    result r = run(table, &p.desc);
    /* With logits up to 30, their own rounding to f32 shows. */
    compare(table->name, &p.desc, &r, 0, _i == 0 ? 1e-6 : 4e-6);
    result_free(&r);
  }
  problem_free(&p);
}

/* Logits around +-1e4: no overflow, and what error remains is that of the logit in f32. */
TEST_LOOP(extreme_logits, 3) {
  random_state = (uint64_t)_i + 99;
  problem p;
  problem_make(&p, 3, 6, 2, 128, 64, BANYAN_F32, BANYAN_F32, (int32_t[]){700, 1, 130}, 1e4);
  EACH_TABLE(table) {
    result r = run(table, &p.desc);
    compare(table->name, &p.desc, &r, 0.1, 2e-3);
    for (int32_t i = 0; i < 18; i++) ck_assert_msg(isfinite(r.lse[i]), "%s: lse %g", table->name, (double)r.lse[i]);
    result_free(&r);
  }
  problem_free(&p);
}

/* All keys alike: the mean of the values, lse = s + log(keys), however the keys are split into tiles and blocks. */
TEST(identical_keys) {
  random_state = 5;
  static const int32_t lens[] = {1, 2, 63, 64, 65, 511, 512, 513, 1024, 5000};
  for (size_t at = 0; at < sizeof lens / sizeof lens[0]; at++) {
    problem p;
    problem_make(&p, 1, 4, 1, 96, 40, BANYAN_BF16, BANYAN_F16, &lens[at], 3);
    for (int32_t i = 1; i < lens[at]; i++) {
      for (int32_t j = 0; j < 96; j++)
        store(p.k.data, i * p.desc.k_token_stride + j, BANYAN_F16, load(p.k.data, j, BANYAN_F16));
    }
    EACH_TABLE(table) {
      result r = run(table, &p.desc);
      compare(table->name, &p.desc, &r, 0.1, 1e-6);
      for (int32_t h = 0; h < 4; h++) {
        double lse = reference_logit(&p.desc, 0, h, 0) + log(lens[at]);
        ck_assert_double_eq_tol((double)r.lse[h], lse, 1e-6 * (1 + fabs(lse)));
      }
      result_free(&r);
    }
    problem_free(&p);
  }
}

/* A rising staircase of logits: the max changes in every tile and old sums all but vanish. */
TEST_LOOP(rising_logits, 2) {
  random_state = 11;
  problem p;
  problem_make(&p, 1, 5, 1, 16, 24, BANYAN_F32, BANYAN_F32, (int32_t[]){1500}, 1);
  for (int32_t i = 0; i < 1500; i++) {
    for (int32_t j = 0; j < 16; j++)
      store(p.k.data, i * p.desc.k_token_stride + j, BANYAN_F32, (_i ? 0.01 : 1.0) * (double)i);
  }
  for (int32_t h = 0; h < 5; h++) {
    for (int32_t j = 0; j < 16; j++)
      store(p.q.data, h * p.desc.q_head_stride + j, BANYAN_F32, h < 3 ? 0.25 * (h + 1) : -0.25);
  }
  EACH_TABLE(table) {
    result r = run(table, &p.desc);
    compare(table->name, &p.desc, &r, 0.1, 2e-6);
    result_free(&r);
  }
  problem_free(&p);
}

/* No keys at all: empty rows in the caller's convention, keys and values not needed. */
TEST(empty_sequences) {
  int32_t seq_lens[2] = {0, 0};
  float q[2 * 3 * 8] = {0};
  banyan_attention_desc desc = {.size = sizeof desc,
                                .batch = 2,
                                .heads = 3,
                                .kv_heads = 3,
                                .head_dim = 8,
                                .q_dtype = BANYAN_F32,
                                .kv_dtype = BANYAN_F16,
                                .q = q,
                                .q_batch_stride = 24,
                                .q_head_stride = 8,
                                .seq_lens = seq_lens};
  EACH_TABLE(table) {
    result r = run(table, &desc);
    for (int32_t row = 0; row < 6; row++) {
      ck_assert(isinf(r.lse[row]) && r.lse[row] < 0);
      for (int32_t j = 0; j < 8; j++) ck_assert(r.values[row * 8 + j] == 0);
    }
    result_free(&r);
    banyan_partial out;
    r = result_make(&desc, &out);
    out.empty = BANYAN_EMPTY_POS_INF;
    ck_assert_int_eq(bny_decode_attention_run(table, bny_kernels_find(NULL), &desc, &out, NULL, NULL), BANYAN_OK);
    ck_assert(isinf(r.lse[5]) && r.lse[5] > 0);
    result_free(&r);
  }
  desc.batch = 0;
  desc.q = NULL;
  desc.seq_lens = NULL;
  banyan_partial out;
  result r = result_make(&desc, &out);
  ck_assert_msg(banyan_attention(&desc, &out) == BANYAN_OK, "%s", banyan_last_error());
  result_free(&r);
}

/* NaN is passed on to its rows and no others. */
TEST_LOOP(nan_input, 2) {
  random_state = 3;
  problem p;
  problem_make(&p, 2, 2, 2, 20, 20, BANYAN_F32, BANYAN_F32, (int32_t[]){_i == 0 ? 1 : 300, 300}, 1);
  store(p.k.data, 3, BANYAN_F32, NAN);
  EACH_TABLE(table) {
    result r = run(table, &p.desc);
    ck_assert_msg(isnan(r.lse[0]) && isnan(r.values[0]), "%s: %g, %g", table->name, (double)r.lse[0],
                  (double)r.values[0]);
    for (int32_t row = 1; row < 4; row++) ck_assert_msg(isfinite(r.lse[row]), "%s: row %d", table->name, row);
    result_free(&r);
  }
  problem_free(&p);
}

/* A row whose logits are all -inf is empty, and its values are 0 whatever the keys' values are. */
TEST(values_without_weight) {
  random_state = 3;
  problem p;
  problem_make(&p, 1, 2, 2, 20, 20, BANYAN_F32, BANYAN_F32, (int32_t[]){1}, 1);
  for (int32_t h = 0; h < 2; h++) {
    store(p.q.data, h * p.desc.q_head_stride, BANYAN_F32, 1);
    store(p.k.data, h * p.desc.k_head_stride, BANYAN_F32, -INFINITY);
    store(p.v.data, h * p.desc.v_head_stride + 7, BANYAN_F32, h == 0 ? NAN : INFINITY);
  }
  EACH_TABLE(table) {
    result r = run(table, &p.desc);
    for (int32_t h = 0; h < 2; h++)
      ck_assert_msg(r.lse[h] == -INFINITY && r.values[20 * h + 7] == 0, "%s: %g, %g", table->name, (double)r.lse[h],
                    (double)r.values[20 * h + 7]);
    result_free(&r);
  }
  problem_free(&p);
}

/* A cap, and a sink, that are the largest f32: one leaves logits as they are, the other leaves no weight to them. The
 * least sink has no weight beside keys, and is the lse of a row without keys. */
TEST(largest_cap_and_sink) {
  random_state = 8;
  problem p;
  problem_make(&p, 1, 5, 1, 24, 16, BANYAN_F32, BANYAN_F32, (int32_t[]){37}, 1);
  const float sinks[5] = {FLT_MAX, FLT_MAX, FLT_MAX, FLT_MAX, FLT_MAX};
  const float least[5] = {-FLT_MAX, -FLT_MAX, -FLT_MAX, -FLT_MAX, -FLT_MAX};
  const int32_t *lens = p.desc.seq_lens, none = 0;
  EACH_TABLE(table) {
    p.desc.soft_cap = FLT_MAX;
    result r = run(table, &p.desc);
    compare(table->name, &p.desc, &r, 0.1, 1e-6);
    result_free(&r);
    p.desc.soft_cap = 0;
    p.desc.sinks = sinks;
    r = run(table, &p.desc);
    for (int32_t h = 0; h < 5; h++)
      ck_assert_msg(r.lse[h] > 1e38f && isfinite(r.lse[h]) && r.values[16 * h] == 0, "%s: %g, %g", table->name,
                    (double)r.lse[h], (double)r.values[16 * h]);
    result_free(&r);
    p.desc.sinks = least;
    r = run(table, &p.desc);
    compare(table->name, &p.desc, &r, 0.1, 1e-6);
    result_free(&r);
    p.desc.seq_lens = &none;
    r = run(table, &p.desc);
    for (int32_t h = 0; h < 5; h++)
      ck_assert_msg(r.lse[h] == -FLT_MAX && r.values[16 * h] == 0, "%s: %g, %g", table->name, (double)r.lse[h],
                    (double)r.values[16 * h]);
    result_free(&r);
    p.desc.seq_lens = lens;
    p.desc.sinks = NULL;
  }
  problem_free(&p);
}

/* With BANYAN_EMPTY_NAN they are rows without keys, in the output's convention. */
TEST(nan_rows_count_as_empty) {
  random_state = 3;
  problem p;
  problem_make(&p, 2, 2, 2, 20, 20, BANYAN_F32, BANYAN_F32, (int32_t[]){300, 300}, 1);
  store(p.q.data, 3, BANYAN_F32, NAN); /* in the first row */
  p.desc.empty = BANYAN_EMPTY_NAN;
  EACH_TABLE(table) {
    result r = run(table, &p.desc);
    ck_assert_msg(r.lse[0] == -INFINITY && r.values[0] == 0 && r.values[19] == 0, "%s: %g, %g", table->name,
                  (double)r.lse[0], (double)r.values[0]);
    for (int32_t row = 1; row < 4; row++) ck_assert_msg(isfinite(r.lse[row]), "%s: row %d", table->name, row);
    result_free(&r);
  }
  problem_free(&p);
}

/* A combine rejects rows of NaN, and takes them for empty ones where the caller says so. */
TEST(nan_rows_in_a_combine) {
  float q[2] = {NAN, 1}, k[1] = {1}, values[2], lse[2];
  int32_t lens = 1;
  banyan_attention_desc desc = {.size = sizeof desc,
                                .batch = 1,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 1,
                                .scale = 1,
                                .q_dtype = BANYAN_F32,
                                .kv_dtype = BANYAN_F32,
                                .q = q,
                                .k = k,
                                .v = k,
                                .seq_lens = &lens,
                                .q_batch_stride = 2,
                                .q_head_stride = 1,
                                .k_token_stride = 1,
                                .v_token_stride = 1};
  banyan_combine_desc combine = {.size = sizeof combine, .tokens = 1, .heads = 2, .value_dim = 1};
  banyan_partial out;
  banyan_partial_init(&out, values, BANYAN_F32, lse, BANYAN_F32, 2, 1);
  banyan_comm *comm = lone_comm(NULL);
  desc.empty = BANYAN_EMPTY_NAN;
  ck_assert_msg(banyan_attention_combine(comm, &desc, &combine, &out) == BANYAN_OK, "%s", banyan_last_error());
  ck_assert(lse[0] == -INFINITY && values[0] == 0 && fabsf(lse[1] - 1) < 1e-6f && fabsf(values[1] - 1) < 1e-6f);
  desc.empty = BANYAN_EMPTY_POS_INF;
  ck_assert_int_eq(banyan_attention_combine(comm, &desc, &combine, &out), BANYAN_ERR_ARGUMENT);
  ck_assert_msg(strstr(banyan_last_error(), "empty is 2"), "%s", banyan_last_error());
  desc.empty = 0;
  ck_assert_int_eq(banyan_attention_combine(comm, &desc, &combine, &out), BANYAN_ERR_DATA);
  banyan_comm_destroy(comm);
}

/* bf16 statistics of logits near 6e4, and beyond what it can hold. */
TEST(large_logits_in_bf16) {
  float q = 1, v = 2, values[1], k[2];
  uint16_t stats[2];
  int32_t lens = 1;
  banyan_attention_desc desc = {.size = sizeof desc,
                                .batch = 1,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = 1,
                                .scale = 1,
                                .q_dtype = BANYAN_F32,
                                .kv_dtype = BANYAN_F32,
                                .q = &q,
                                .k = k,
                                .v = &v,
                                .seq_lens = &lens,
                                .q_batch_stride = 1,
                                .q_head_stride = 1,
                                .k_token_stride = 1,
                                .v_token_stride = 1};
  banyan_partial out;
  banyan_partial_init(&out, values, BANYAN_F32, &stats[0], BANYAN_BF16, 1, 1);
  out.stats_kind = BANYAN_STATS_MAX_SUM;
  out.sum = &stats[1];
  out.base = BANYAN_BASE_2;
  int rejected = 0;
  for (int i = 0; i < 4000; i++) {
    double t = rint((i % 2 ? 1 : -1) * 60000.0 + 37.0 * i);
    k[0] = (float)(t / 1.4426950408889634);
    banyan_status status = banyan_attention(&desc, &out);
    double m = load(stats, 0, BANYAN_BF16), d = load(stats, 1, BANYAN_BF16);
    double weight = (double)k[0] * 1.4426950408889634;
    if (status == BANYAN_OK)
      ck_assert_msg(isfinite(m) && d > 0 && isfinite(d) && fabs(m + log2(d) - weight) < 1.01, "%g became %g, %g",
                    weight, m, d);
    else
      ck_assert_msg(status == BANYAN_ERR_DATA && fabs(weight) > 65000 && strstr(banyan_last_error(), "bf16"), "%s",
                    banyan_last_error());
    rejected += status != BANYAN_OK;
  }
  ck_assert_int_gt(rejected, 0);
}

/* The same numbers in another convention: numerator, (max, sum), base 2, tokens and heads exchanged. */
TEST(other_convention) {
  random_state = 21;
  problem p;
  problem_make(&p, 3, 4, 2, 48, 24, BANYAN_F16, BANYAN_BF16, (int32_t[]){70, 0, 600}, 2);
  EACH_TABLE(table) {
    result plain = run(table, &p.desc);
    float n[4][3][24], m[4][3], d[4][3];
    banyan_partial out = {.size = sizeof out,
                          .values = n,
                          .values_token_stride = 24,
                          .values_head_stride = 3 * 24,
                          .values_dtype = BANYAN_F32,
                          .values_kind = BANYAN_VALUES_NUMERATOR,
                          .lse = m,
                          .sum = d,
                          .stats_token_stride = 1,
                          .stats_head_stride = 3,
                          .stats_dtype = BANYAN_F32,
                          .stats_kind = BANYAN_STATS_MAX_SUM,
                          .base = BANYAN_BASE_2,
                          .empty = BANYAN_EMPTY_BELOW,
                          .empty_below = -49994};
    ck_assert_msg(bny_decode_attention_run(table, bny_kernels_find(NULL), &p.desc, &out, NULL, NULL) == BANYAN_OK, "%s",
                  banyan_last_error());
    for (int32_t b = 0; b < 3; b++) {
      for (int32_t h = 0; h < 4; h++) {
        if (p.seq_lens[b] == 0) {
          ck_assert(m[h][b] == -49994.0f && d[h][b] == 0 && n[h][b][0] == 0);
          continue;
        }
        double lse = ((double)m[h][b] + log2((double)d[h][b])) * log(2);
        ck_assert(m[h][b] == rintf(m[h][b]));
        ck_assert_double_eq_tol(lse, (double)plain.lse[b * 4 + h], 1e-6 * (1 + fabs(lse)));
        for (int32_t j = 0; j < 24; j++)
          ck_assert_double_eq_tol((double)(n[h][b][j] / d[h][b]), (double)plain.values[(b * 4 + h) * 24 + j], 1e-6);
      }
    }
    result_free(&plain);
  }
  problem_free(&p);
}

TEST(tables) {
  const bny_attention_kernels *last = NULL;
  EACH_TABLE(table) {
    ck_assert_ptr_eq(bny_attention_kernels_find(table->name), table);
    last = table;
  }
  ck_assert_ptr_eq(last, &bny_attention_portable);
  ck_assert_ptr_nonnull(bny_attention_kernels_find(NULL));
  ck_assert_ptr_null(bny_attention_kernels_find("abacus"));
  ck_assert_ptr_eq(bny_attention_kernels_beside("portable"), &bny_attention_portable);
  ck_assert_ptr_eq(bny_attention_kernels_beside("abacus"), bny_attention_kernels_find(NULL));
  ck_assert_ptr_eq(bny_attention_kernels_beside(bny_kernels_find(NULL)->name), bny_attention_kernels_find(NULL));
}

/* BANYAN_KERNELS is for all that a communicator does on the host. */
TEST(named_kernels) {
  setenv("BANYAN_KERNELS", "portable", 1);
  random_state = 7;
  problem p;
  banyan_comm *comm = lone_comm(NULL);
  banyan_op *op = NULL;
  banyan_partial out;
  banyan_op_info info = {.size = sizeof info};
  problem_make(&p, 2, 4, 2, 16, 0, BANYAN_F32, BANYAN_F32, (int32_t[]){5, 7}, 1);
  result r = result_make(&p.desc, &out);
  ck_assert_int_eq(banyan_attention_init(comm, &p.desc, &out, &op), BANYAN_OK);
  ck_assert_int_eq(banyan_op_query(op, &info), BANYAN_OK);
  ck_assert_str_eq(info.reason, "attention on the host (portable)");
  ck_assert_int_eq(banyan_start(op), BANYAN_OK);
  ck_assert_int_eq(banyan_wait(op), BANYAN_OK);
  compare("portable", &p.desc, &r, 1e-3, 1e-5);
  banyan_op_free(op);
  banyan_comm_destroy(comm);
  result_free(&r);
  problem_free(&p);
}

int main(void) { return suite_main(suite_of("attention", 120)); }
