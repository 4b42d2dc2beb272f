/* SPDX-License-Identifier: Apache-2.0
 * Helpers for tests of local attention: keys and values in memory with a guard page, buffers for results, and a
 * comparison with the oracle. */
#pragma once

#include <sys/mman.h>

#include "attention.h"
#include "banyan.h"
#include "attention/call.h"
#include "attention/queries.h"
#include "op.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/generator.h"
#include "tests/support/oracle.h"
#include "tests/support/status.h"

static uint64_t random_state;

static inline uint64_t random_bits(void) { return random_next(&random_state); }

static inline int32_t random_range(int32_t low, int32_t high) { /* bounds included */
  return low + (int32_t)(random_bits() % (uint64_t)(high - low + 1));
}

static inline double random_normal(void) {
  double sum = 0;
  for (int i = 0; i < 12; i++) sum += (double)(random_bits() >> 11) * 0x1p-53;
  return sum - 6;
}

static inline size_t element_bytes(banyan_dtype dtype) { return oracle_bytes(dtype); }

/* I8 codes count sixteenths; problem_make() sets scales of about that size. */
static inline void store(void *base, int64_t index, banyan_dtype dtype, double value) {
  if (dtype == BANYAN_I8)
    ((int8_t *)base)[index] = (int8_t)fmin(fmax(rint(16 * value), -128), 127);
  else
    oracle_store(base, dtype, index, value);
}

static inline double load(const void *base, int64_t index, banyan_dtype dtype) {
  return dtype == BANYAN_I8 ? (double)((const int8_t *)base)[index] : oracle_load(base, dtype, index);
}

static inline uint8_t code_of(banyan_dtype dtype, double value) {
  uint8_t code;
  store(&code, 0, dtype, value);
  return code;
}

static inline double value_of_code(banyan_dtype dtype, uint8_t code) { return load(&code, 0, dtype); }

/* Memory that ends at an inaccessible page, so a read past the end of a row crashes. */
typedef struct guarded {
  char *map;
  size_t map_bytes;
  void *data;
} guarded;

static inline guarded guarded_make(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  guarded memory = {.map_bytes = (bytes + page - 1) / page * page + page};
  memory.map = mmap(NULL, memory.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ck_assert_ptr_ne(memory.map, MAP_FAILED);
  ck_assert_int_eq(mprotect(memory.map + memory.map_bytes - page, page, PROT_NONE), 0);
  memory.data = memory.map + memory.map_bytes - page - bytes;
  return memory;
}

typedef struct problem {
  banyan_attention_desc desc;
  int32_t seq_lens[8];
  float scales[2 * 8]; /* scales of keys and values, interleaved */
  guarded q, k, v;
} problem;

/* [batch][kv_heads][keys] or [batch][keys][kv_heads], rows padded. Returns the elements needed. */
static inline int64_t lay_out(int32_t batch, int32_t heads, int32_t keys, int32_t dim, bool token_major, int32_t pad,
                              int64_t *batch_stride, int64_t *head_stride, int64_t *token_stride) {
  int64_t row = dim + pad;
  *head_stride = token_major ? row : row * keys;
  *token_stride = token_major ? row * heads : row;
  *batch_stride = row * heads * keys;
  return *batch_stride * batch - pad; /* the last row has no padding */
}

static inline void fill(void *base, int64_t elements, banyan_dtype dtype, double size) {
  for (int64_t i = 0; i < elements; i++) store(base, i, dtype, size * random_normal());
}

/* Filled in place, because desc holds pointers into it. */
static inline void problem_make(problem *p, int32_t batch, int32_t heads, int32_t kv_heads, int32_t head_dim,
                                int32_t value_dim, banyan_dtype q_dtype, banyan_dtype kv_dtype, const int32_t *seq_lens,
                                double size) {
  memset(p, 0, sizeof *p);
  banyan_attention_desc *desc = &p->desc;
  *desc = (banyan_attention_desc){.size = sizeof *desc,
                                  .batch = batch,
                                  .heads = heads,
                                  .kv_heads = kv_heads,
                                  .head_dim = head_dim,
                                  .value_dim = value_dim,
                                  .q_dtype = q_dtype,
                                  .kv.dtype = kv_dtype,
                                  .kv.seq_lens = p->seq_lens};
  value_dim = value_dim ? value_dim : head_dim;
  int32_t keys = 1;
  for (int32_t b = 0; b < batch; b++) {
    p->seq_lens[b] = seq_lens[b];
    keys = seq_lens[b] > keys ? seq_lens[b] : keys;
  }
  bool token_major = random_range(0, 1);
  int64_t unused;
  int64_t q_elements = lay_out(desc->batch, desc->heads, 1, desc->head_dim, true, random_range(0, 3),
                               &desc->q_batch_stride, &desc->q_head_stride, &unused);
  int64_t k_elements = lay_out(desc->batch, desc->kv_heads, keys, desc->head_dim, token_major, random_range(0, 3),
                               &desc->kv.k_batch_stride, &desc->kv.k_head_stride, &desc->kv.k_token_stride);
  int64_t v_elements = lay_out(desc->batch, desc->kv_heads, keys, value_dim, token_major, random_range(0, 3),
                               &desc->kv.v_batch_stride, &desc->kv.v_head_stride, &desc->kv.v_token_stride);
  p->q = guarded_make((size_t)q_elements * element_bytes(desc->q_dtype));
  p->k = guarded_make((size_t)k_elements * element_bytes(desc->kv.dtype));
  p->v = guarded_make((size_t)v_elements * element_bytes(desc->kv.dtype));
  fill(p->q.data, q_elements, desc->q_dtype, size);
  fill(p->k.data, k_elements, desc->kv.dtype, 1);
  fill(p->v.data, v_elements, desc->kv.dtype, 1);
  for (int i = 0; i < 2 * 8; i++) p->scales[i] = (float)exp2(random_normal() - (kv_dtype == BANYAN_I8 ? 4 : 0));
  if (element_bytes(kv_dtype) == 1) {
    desc->kv.scales.k = p->scales;
    desc->kv.scales.v = p->scales + 1;
    desc->kv.scales.head_stride = random_range(0, 1) * 2;
  }
  desc->q = p->q.data;
  desc->kv.k = p->k.data;
  desc->kv.v = p->v.data;
}

static inline void problem_free(problem *p) {
  munmap(p->q.map, p->q.map_bytes);
  munmap(p->k.map, p->k.map_bytes);
  munmap(p->v.map, p->v.map_bytes);
}

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
