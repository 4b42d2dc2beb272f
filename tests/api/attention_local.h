/* SPDX-License-Identifier: Apache-2.0
 * Helpers for tests of local attention: buffers for results, runs by every kernel table, and a comparison with the
 * oracle. */
#pragma once

#include "attention.h"
#include "banyan.h"
#include "op.h"
#include "tests/support/drawn.h"
#include "tests/support/status.h"

/* ---- as the library reads it ------------------------------------------------------------------------------------- */

static inline bny_attention_desc read_desc(const banyan_attention_desc *desc) {
  bny_attention_desc own;
  ck_assert_msg(bny_attention_read(desc, &own) == BANYAN_OK, "%s", banyan_last_error());
  return own;
}

static inline int32_t tokens_of(const banyan_attention_desc *desc) { return read_desc(desc).tokens; }

/* Returns the floats of bounds of a page and KV head. */
static inline size_t bounds_floats(const banyan_attention_desc *desc) {
  const bny_attention_desc own = read_desc(desc);
  const bny_bounds bounds = bny_attention_bounds(&own);
  return (size_t)bny_bounds_floats(&bounds);
}

/* Attends by a table of kernels. */
static inline banyan_status attend_by(const bny_attention_kernels *kernels, const banyan_attention_desc *desc,
                                      const banyan_partial *out, bny_pool *pool) {
  const bny_attention_desc own = read_desc(desc);
  return bny_attention_run(kernels, bny_kernels_find(NULL), &own, out, NULL, pool);
}

/* Sets fields of pruning: pages of `keys` keys unless there are pages, and memory for bounds. Returns the number of
 * pages. */
static inline int64_t prune_pages(const drawn *p, banyan_attention_desc *desc, int32_t keys) {
  banyan_prune *prune = &desc->prune;
  const banyan_pages *pages = &desc->kv.pages;
  if (!pages->table) prune->keys = keys, prune->batch_pages = p->longest / keys + 1;
  const int64_t all = pages->table ? pages->count : desc->batch * prune->batch_pages;
  prune->bounds = calloc((size_t)(all * desc->kv_heads) * bounds_floats(desc), sizeof(float));
  return all;
}

typedef struct result {
  float *values; /* [batch][heads][value_dim] */
  float *lse;    /* [batch][heads] */
  size_t values_bytes, lse_bytes;
} result;

static inline result result_make(const banyan_attention_desc *desc, banyan_partial *out) {
  int32_t value_dim = desc->value_dim ? desc->value_dim : desc->head_dim;
  size_t rows = (size_t)tokens_of(desc) * (size_t)desc->heads;
  result r = {.values_bytes = rows * (size_t)value_dim * sizeof(float), .lse_bytes = rows * sizeof(float)};
  r.values = malloc(r.values_bytes + 1);
  r.lse = malloc(r.lse_bytes + 1);
  memset(r.values, 0x7b, r.values_bytes);
  memset(r.lse, 0x7b, r.lse_bytes);
  banyan_partial_init(out, r.values, BANYAN_F32, r.lse, BANYAN_F32, desc->heads, value_dim);
  return r;
}

static inline void result_free(result *r) {
  free(r->values);
  free(r->lse);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Runs the next statement for every table that this processor supports. */
#define EACH_TABLE(table)                                                                                   \
  for (const bny_attention_kernels *const *at_ = bny_attention_table, *table = *at_; table; table = *++at_) \
    if (table->supported())

static inline result run_by(const bny_attention_kernels *table, const banyan_attention_desc *desc, bny_pool *pool) {
  banyan_partial out;
  result r = result_make(desc, &out);
  ck_assert_msg(attend_by(table, desc, &out, pool) == BANYAN_OK, "%s: %s", table->name, banyan_last_error());
  return r;
}

static inline result run(const bny_attention_kernels *table, const banyan_attention_desc *desc) {
  return run_by(table, desc, NULL);
}

/* Returns true if both numbers are finite, both are NaN, or both are the same infinity. */
static inline bool is_alike(double expected, double got) {
  return isnan(expected) ? isnan(got) : isinf(expected) ? expected == got : isfinite(got);
}

/* Checks each row against the oracle: |out - o|_2 <= `bound` |o|_2, and lse within `bound` of 1 + |lse|. Rounding of
 * large logits in f32 adds to the bound. |o|_2 counts as at least `share` of the weighted mean length of the values,
 * because shorter rows suffer from cancellation. */
static inline void compare(const char *name, const banyan_attention_desc *desc, const result *r, double share,
                           double bound) {
  static attention_row row;
  const int32_t value_dim = desc->value_dim ? desc->value_dim : desc->head_dim;
  for (int32_t b = 0; b < tokens_of(desc); b++) {
    for (int32_t h = 0; h < desc->heads; h++) {
      attention_oracle(desc, b, h, &row);
      const float *values = r->values + ((int64_t)b * desc->heads + h) * value_dim;
      const double got = (double)r->lse[b * desc->heads + h], lse = row.sum == 0 ? -INFINITY : row.max + log(row.sum);
      const double most = bound + 0x1p-26 * row.products;
      double squares = 0, error = 0, length;
      bool alike = is_alike(lse, got);
      for (int32_t j = 0; j < value_dim; j++) {
        const double o = row.sum == 0 ? 0 : row.values[j] / row.sum;
        alike = alike && is_alike(o, (double)values[j]);
        squares += isfinite(o) ? o * o : 0;
        error += isfinite(o) ? ((double)values[j] - o) * ((double)values[j] - o) : 0;
      }
      length = row.sum > 0 ? fmax(sqrt(squares), share * row.length / row.sum) : 0;
      error = sqrt(error) / (length > 0 ? length : 1);
      ck_assert_msg(alike && error <= most && !(fabs(got - lse) > most * (1 + fabs(lse))),
                    "%s: row (%d, %d), heads %d / %d, dims %d, %d, dtypes %d, %d: relative error %.3g "
                    "of %.3g, lse %.9g and not %.9g",
                    name, b, h, desc->heads, desc->kv_heads, desc->head_dim, value_dim, (int)desc->q_dtype,
                    (int)desc->kv.dtype, error, most, got, lse);
    }
  }
}

/* Fills the stack of the next kernel with NaNs. */
static __attribute__((noinline)) void spoil_stack(void) {
  volatile unsigned char bytes[1 << 19];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = 0xff;
}

static inline void compare_all(const banyan_attention_desc *desc, double share, double bound) {
  EACH_TABLE(table) {
    spoil_stack();
    result r = run(table, desc);
    compare(table->name, desc, &r, share, bound);
    result_free(&r);
  }
}
