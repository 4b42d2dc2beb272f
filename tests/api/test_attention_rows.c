/* SPDX-License-Identifier: Apache-2.0
 * Keys and values of eight bits: every code, NaN and infinity included; also logits beyond floats, and many keys. */
#include "tests/api/attention_local.h"

/* A single key has weight 1, so the values come out unchanged. If `keyed`, the code is also the key's first element and
 * thus the logit; a logit of -inf makes the row empty. Heads share what is converted. */
TEST_LOOP(every_code, 24) {
  enum { HEADS = 8 };
  static const int32_t shapes[4][2] = {{1, 37}, {1, 64}, {HEADS, 77}, {HEADS, 256}}; /* 64 has specialised kernels */
  const int32_t heads = shapes[_i / 3 % 4][0], dim = shapes[_i / 3 % 4][1], lens = 1;
  const banyan_dtype dtype = (banyan_dtype)(BANYAN_E4M3 + _i % 3);
  const bool keyed = _i >= 12;
  const float scales[2] = {0.75f, 3};
  float q[HEADS * 256] = {0};
  for (int32_t h = 0; h < heads; h++) q[h * dim] = 1;
  for (int code = 0; code < 256; code++) {
    uint8_t k[256] = {0}, v[256] = {0};
    v[0] = v[20] = v[dim - 1] = (uint8_t)code;
    if (keyed) k[0] = (uint8_t)code;
    banyan_attention_desc desc = attention_desc_of(1, heads, 1, 1, dim, dim, BANYAN_F32, dtype, q, k, v, &lens);
    desc.scale = 1, desc.kv.scales.k = &scales[0], desc.kv.scales.v = &scales[1];
    const double value = load(&(uint8_t){(uint8_t)code}, 0, dtype), logit = keyed ? 0.75 * value : 0;
    EACH_TABLE(table) {
      result r = run(table, &desc);
      for (int32_t i = 0; i < heads * dim; i++) {
        const double lse = (double)r.lse[i / dim], got = (double)r.values[i],
                     right = v[i % dim] == code ? 3 * value : 0;
        const bool is_empty = lse == -INFINITY && got == 0;
        if (!isfinite(logit))
          ck_assert_msg(is_empty || (!isfinite(lse) && !isfinite(got)), "%s: code 0x%02x is %g, logit %g", table->name,
                        code, got, lse);
        else
          ck_assert_msg(fabs(lse - logit) <= 1e-6 * (1 + fabs(logit)) &&
                            (isfinite(right) ? fabs(got - right) <= 1e-6 * fabs(right) : is_alike(right, got)),
                        "%s: code 0x%02x: value %d is %g, not %g, logit %g", table->name, code, i, got, right, lse);
      }
      result_free(&r);
    }
  }
}

/* A logit beyond the range of floats makes a row of NaN or an absent key, never an ordinary row. */
TEST(logits_beyond_floats) {
  static const float largest = 3e38f;
  static const struct {
    float q, k[3], scale, lse; /* lse NaN: any but an ordinary one */
  } cases[] = {{1e30f, {1e30f, 1, 1}, 1, NAN},
               {1, {largest, 1, 1}, 4, NAN},
               {1, {-largest, 1, 1}, 4, 4.6931472f},
               {1e30f, {-1e30f, -1e30f, -1e30f}, 1, -INFINITY},
               {1, {-largest, -largest, -largest}, 4, -INFINITY},
               {1, {largest, largest, 1}, 0.25f, 0.75e38f},
               {1, {-largest, -largest, -largest}, 0.5f, -1.5e38f}};
  const int32_t keys = 3;
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    float q[4] = {cases[c].q}, k[3][4];
    for (int i = 0; i < 12; i++) k[i / 4][i % 4] = cases[c].k[i / 4];
    banyan_attention_desc desc = attention_desc_of(1, 1, 1, 3, 4, 4, BANYAN_F32, BANYAN_F32, q, k, k, &keys);
    desc.scale = cases[c].scale;
    EACH_TABLE(table) {
      result r = run(table, &desc);
      ck_assert_msg(is_alike((double)cases[c].lse, (double)r.lse[0]) &&
                        (!isfinite(cases[c].lse) || fabsf(r.lse[0] - cases[c].lse) <= 1e-6f * fabsf(cases[c].lse)),
                    "%s, case %zu: lse %g", table->name, c, (double)r.lse[0]);
      result_free(&r);
    }
  }
}

/* A row whose values overflow, or are not numbers, keeps its lse and its other columns, however large its logit. */
TEST_LOOP(not_finite_beside_a_large_logit, 34) {
  enum { DIM = 64, KEYS = 2 };
  const float logit = ldexpf(1.5f, _i), columns[] = {INFINITY, -INFINITY, NAN, 3e38f, 1};
  float q[DIM] = {1}, k[KEYS * DIM] = {logit, [DIM] = logit}, v[KEYS * DIM];
  const int32_t lens = KEYS;
  for (int i = 0; i < KEYS * DIM; i++) v[i] = columns[i % DIM < 4 ? i % DIM : 4];
  banyan_attention_desc desc = attention_desc_of(1, 1, 1, KEYS, DIM, DIM, BANYAN_F32, BANYAN_F32, q, k, v, &lens);
  desc.scale = 1;
  EACH_TABLE(table) {
    result r = run(table, &desc);
    ck_assert_msg(fabsf(r.lse[0] - logit) <= 1 + logit * 1e-6f, "%s: lse %g, logit %g", table->name, (double)r.lse[0],
                  (double)logit);
    for (int j = 0; j < 3; j++) ck_assert_msg(!isfinite(r.values[j]), "%s: %g", table->name, (double)r.values[j]);
    for (int j = 4; j < DIM; j++)
      ck_assert_msg(fabsf(r.values[j] - 1) < 1e-6f, "%s: %g", table->name, (double)r.values[j]);
    result_free(&r);
  }
}

/* More keys per sequence than f32 can count one by one. Equal keys get equal parts, and the last key counts. */
TEST_LOOP(keys_beyond_2_to_24, 2) {
  const int32_t keys = (1 << 24) + 1;
  int8_t *k = calloc((size_t)keys, 1), *v = malloc((size_t)keys);
  float q = 1;
  memset(v, 1, (size_t)keys);
  if (_i == 1) k[keys - 1] = 100, v[keys - 1] = 3;
  banyan_attention_desc desc = attention_desc_of(1, 1, 1, keys, 1, 1, BANYAN_F32, BANYAN_I8, &q, k, v, &keys);
  desc.scale = 1;
  EACH_TABLE(table) {
    result r = run(table, &desc);
    double lse = _i == 1 ? 100 : log((double)keys);
    ck_assert_msg(r.values[0] == (_i == 1 ? 3 : 1) && fabs((double)r.lse[0] - lse) <= 1e-6 * lse,
                  "%s: value %.9g, lse %.9g and not %.9g", table->name, (double)r.values[0], (double)r.lse[0], lse);
    result_free(&r);
  }
  free(k);
  free(v);
}

int main(void) { return suite_main(suite_of("attention_rows", 30)); }
