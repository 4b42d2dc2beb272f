/* SPDX-License-Identifier: Apache-2.0
 * The interface of a processor's attention kernels: a few query rows that share one KV head attend to a range of keys.
 * The result is partials in f32 wire form. Each instruction set has one table.
 *
 * Numbers. The products q.k and p v are accumulated in f32, in several lanes, and lanes are added in pairs. A logit
 * therefore has the error of short f32 sums, about 1e-8 of |q| |k|. This error limits logits of +-1e4, whose weights
 * are accurate to about 1e-3. t - m has one more rounding: it is an f32 fused multiply-add of the product, its scale
 * and m. Weights and their sums over a tile of keys are f32. The denominator, and the sum over blocks of keys
 * (split-KV), are double. m is a whole number, at least the largest t, so every rescaling is by a power of two and
 * exact. Weights below 2^-125 count as 0. A NaN in q or k makes its rows NaN, statistics included. A NaN in v makes
 * that column of its rows NaN.
 *
 * If q is bf16 and k bf16 or of eight bits, a table may add products in pairs (vdpbf16ps). Such an instruction also
 * adds in f32, one product after the other, but counts inputs and sums below 2^-126 as 0. AMX instructions do the same.
 * They also multiply values, so values below about 2^-100 lose precision there.
 *
 * The power of two of a scale below 1 goes into q, so sums of products overflow only if logits do. If sums of values
 * overflow, the row is recomputed with m raised by 10, and n is exported with d in [1/2, 1).
 *
 * Eight-bit elements are converted to f32 or bf16, and f16 to f32 or two bf16, which is exact. The scale of a KV head
 * is a factor of the logits' scale, and of the sums in double. FlashMLA's scales and those of each key are factors of
 * the f32 elements, with each product rounded once.
 *
 * Determinism. The result of a task depends only on its own arguments, and not on addresses, the batch, or other heads
 * of the task. Results of different tables differ within rounding.
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "flashmla.h"

enum {
  BNY_ATTENTION_HEAD_DIM_MAX = 576,
  BNY_ATTENTION_VALUE_DIM_MAX = 512,
  BNY_ATTENTION_LANES_MAX = 16, /* rows of work memory are padded to a multiple of so many floats */
  BNY_ATTENTION_HEADS_MAX = 16, /* most rows of one task */
  BNY_ATTENTION_MANY = 28,      /* most tasks of run_many(): they have whole tiles of 14 rows */
  BNY_ATTENTION_BLOCK = 512,    /* keys whose sums are in f32; sums over such blocks are in double */
  /* Floats of all rows of a task, padded. Tasks with more rows read keys less often. */
  BNY_ATTENTION_QUERY_FLOATS = BNY_ATTENTION_HEADS_MAX * BNY_ATTENTION_HEAD_DIM_MAX,
  BNY_ATTENTION_VALUE_FLOATS = BNY_ATTENTION_HEADS_MAX * BNY_ATTENTION_VALUE_DIM_MAX
};

/* Returns the padded length of a row of work memory. */
static inline int32_t bny_attention_padded(int32_t elements) {
  return (elements + BNY_ATTENTION_LANES_MAX - 1) / BNY_ATTENTION_LANES_MAX * BNY_ATTENTION_LANES_MAX;
}

/* The keys that a row sees: keys [first, end), and key tree_first + j for each set bit j of tree_bits. */
typedef struct bny_attention_sight {
  int32_t first, end;
  int32_t tree_first; /* at least `end` */
  uint64_t tree_bits;
} bny_attention_sight;

/* Returns true if a row sees key `key`, which no mask hides. */
static inline bool bny_attention_sees(const bny_attention_sight *sight, int32_t key) {
  if (key >= sight->first && key < sight->end) return true;
  return key >= sight->tree_first && key - sight->tree_first < 64 && sight->tree_bits >> (key - sight->tree_first) & 1;
}

/* A task: rows, keys and values. A row is one head of a query token. Strides are in elements. */
typedef struct bny_attention_task {
  int32_t heads; /* number of rows: 1 .. BNY_ATTENTION_HEADS_MAX */
  int32_t group; /* query heads of a KV head */
  int32_t head_dim;
  int32_t value_dim;
  int32_t keys;      /* >= 0 */
  double scale_log2; /* scale * log2(e): t = scale_log2 * k_scale * q.k */
  double k_scale;    /* scale of the KV head; 1 for types without a scale */
  double v_scale;
  const float *k_scales; /* scale of each key, and k_scale is 1; NULL: all keys have k_scale */
  const float *v_scales; /* the same for values */
  int64_t scale_token_stride, scale_page_stride;
  banyan_dtype q_dtype;
  banyan_dtype kv_dtype;
  banyan_kv_rows kv_rows; /* FLASHMLA_FP8: kv_dtype is BANYAN_E4M3, v is not read, and both scales are 1 */
  const void *q[BNY_ATTENTION_HEADS_MAX];      /* by row: address of the first head_dim - rope_dim elements */
  const void *q_rope[BNY_ATTENTION_HEADS_MAX]; /* by row: address of the last rope_dim elements */
  int32_t rope_dim;
  float soft_cap;                    /* bound of t; 0: none */
  const bny_attention_sight *sights; /* by row; NULL: every row sees all keys */
  const uint8_t *key_mask;           /* [keys], 0 if no row sees the key; NULL: no such key */
  const void *k;                     /* [keys][head_dim] */
  int64_t k_token_stride;
  const void *v; /* [keys][value_dim] */
  int64_t v_token_stride;
  const int32_t *pages; /* key i is key i % page_keys of page pages[i / page_keys]; NULL: no pages */
  int32_t page_keys;
  int64_t k_page_stride;
  int64_t v_page_stride;
} bny_attention_task;

/* The sums over some keys of a task, for each row. */
typedef struct bny_attention_sums {
  double m[BNY_ATTENTION_HEADS_MAX];    /* a whole number, at least the largest t; -inf without keys */
  double d[BNY_ATTENTION_HEADS_MAX];    /* sum 2^(t - m); NaN if a logit is NaN */
  double n[BNY_ATTENTION_VALUE_FLOATS]; /* sum 2^(t - m) v, in rows of bny_attention_padded(value_dim) */
} bny_attention_sums;

/* Returns 2^(from - to) for whole numbers from <= to. Returns 0 if `from` is -inf or the result would underflow. */
static inline double bny_attention_rescale(double from, double to) {
  if (from == to) /* includes both infinite */
    return 1;
  return from - to < -1000 ? 0.0 : ldexp(1.0, (int)(from - to));
}

/* Merges b into a, for all rows or for one. The keys of b follow those of a. */
void bny_attention_merge_row(const bny_attention_task *task, int32_t row, bny_attention_sums *a,
                             const bny_attention_sums *b);
void bny_attention_merge(const bny_attention_task *task, bny_attention_sums *a, const bny_attention_sums *b);

/* Rounds sums to f32 wire form: m[heads], d[heads] and n[heads][value_dim]. If a logit is NaN, m is NaN and d is 1. */
void bny_attention_finish(const bny_attention_task *task, const bny_attention_sums *sums, float *m, float *d, float *n);

/* Keys as eight-bit codes, in groups of eight keys: [dim][8 keys]. The last group of a page is [dim][its keys]. */
enum { BNY_CODE_LANES = 8, BNY_CODE_KEYS = 64 };

/* Queries, multiplied by the factor of base-2 logits, and upper bounds of their lengths. */
typedef struct bny_code_query {
  int32_t rows, dim;
  float cap; /* 0: none */
  float length[BNY_ATTENTION_HEADS_MAX];
  float q[BNY_ATTENTION_HEADS_MAX / 4][BNY_ATTENTION_HEAD_DIM_MAX][4]; /* four rows interleaved */
} bny_code_query;

/* Bounds of logits. The logit of a key is at most scale * (row * codes) + lost * length + slack, capped, plus error. */
typedef struct bny_code_keys {
  const float *scales, *losts;
  const int8_t *codes;
  const char *next;                       /* codes to prefetch: they are read after these */
  int32_t row_bytes;                      /* a group of eight keys takes eight times as many */
  int32_t count;                          /* 1 to BNY_CODE_KEYS */
  int32_t width;                          /* keys of the page from here on, at least `count` */
  uint64_t seen[BNY_ATTENTION_HEADS_MAX]; /* by row: bit i is set if the row sees key i */
  float slack[BNY_ATTENTION_HEADS_MAX];   /* includes the error if there is no cap */
  float error[BNY_ATTENTION_HEADS_MAX];
} bny_code_keys;

typedef struct bny_attention_kernels {
  const char *name;
  const char *merges; /* name of the matching table of op.h */

  /* Returns true if this processor can run the table. */
  bool (*supported)(void);

  /* Computes the sums over keys [first, last) of the task. */
  void (*run)(const bny_attention_task *task, int32_t first, int32_t last, bny_attention_sums *sums);

  /* masses[r]: at least the sum, over the keys that row r sees, of 2^(logit - tops[r]), by less than 2 %; INFINITY if
   * something is not finite. tops[r] is kept if it serves, else set to another whole number; -INFINITY at first. */
  void (*code_masses)(const bny_code_query *query, const bny_code_keys *keys, float *tops, float *masses);

  /* Computes the sums of up to BNY_ATTENTION_MANY tasks that have the same keys and differ in rows alone. All but the
   * last have BNY_ATTENTION_HEADS_MAX rows. A row's bits do not depend on other rows, but may differ from run()'s.
   * memory: many_bytes() of all rows, aligned to a cache line. Both are NULL in tables without such kernels. */
  void (*run_many)(const bny_attention_task *const *tasks, int32_t count, int32_t first, int32_t last,
                   bny_attention_sums *const *sums, void *memory);
  size_t (*many_bytes)(int32_t rows, int32_t head_dim, int32_t value_dim);
} bny_attention_kernels;

extern const bny_attention_kernels bny_attention_portable;
#ifdef BNY_HAVE_AVX2
extern const bny_attention_kernels bny_attention_avx2;
#endif
#ifdef BNY_HAVE_AVX512
extern const bny_attention_kernels bny_attention_avx512;
#endif
#ifdef BNY_HAVE_AVX512_BF16
extern const bny_attention_kernels bny_attention_avx512_bf16;
#endif
#ifdef BNY_HAVE_AMX
extern const bny_attention_kernels bny_attention_amx;
#endif
#ifdef BNY_HAVE_NEON
extern const bny_attention_kernels bny_attention_neon;
#endif

/* The tables, fastest first and the portable one last. NULL ends the list. */
extern const bny_attention_kernels *const bny_attention_table[];

/* Returns the table of a name, or the fastest supported one if name is NULL. Returns NULL if the name is unknown or not
 * supported by this processor. */
const bny_attention_kernels *bny_attention_kernels_find(const char *name);

/* Returns the fastest supported table that matches the table of op.h with this name. If there is none or name is NULL,
 * returns the fastest of all. */
const bny_attention_kernels *bny_attention_kernels_beside(const char *name);
