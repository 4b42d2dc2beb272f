/* SPDX-License-Identifier: Apache-2.0
 * Attention of many rows, as two products of matrices. A block of keys and values is converted to f32 and packed once
 * for all rows of a call. A tile of rows is multiplied with it while its scores stay in the first-level cache. The
 * including file defines the operations of attention_vector.h, and:
 *
 *   PROMPT_ROWS                  rows of a tile, whose sums with two vectors fit in the registers
 *   vec_most                     the greater of two; the second if one is NaN
 *   vec_top, vec_total           the greatest lane, of which none is NaN, and the sum of all lanes
 *   vec_kept                     a vector, with those of another in the lanes whose bit is 0
 *   vec_all_zero                 whether all lanes are 0
 *   vec_transpose                transposes VEC_LANES vectors
 *   vec_dot, word_vec            as in attention_wide.h; BF16_DOTS is 0 where there is none
 *
 * A row's sums begin with its first key, and keys that it does not see have weight 0. A sum does not change by 0, so
 * its bits do not depend on other rows. Values that are not finite are no part of the product, because 0 times such a
 * value is NaN. Rows that see them add them one by one.
 */
#pragma once

#include "attention_vector.h"

enum {
  PROMPT_KEYS = 256, /* keys of a block, whose sums are in f32 */
  PROMPT_WORDS = PROMPT_KEYS / 64,
  PROMPT_PANEL = 2 * VEC_LANES, /* keys or columns that are multiplied together */
  PROMPT_P_STRIDE = PROMPT_KEYS + 16
};

/* The keys of a block that a row sees, as bits. */
typedef struct prompt_seen {
  uint64_t bits[PROMPT_WORDS];
} prompt_seen;

/* The rows of a call, and its work memory. */
typedef struct prompt {
  const bny_attention_task *const *tasks;
  const bny_attention_task *task; /* the first, which has the keys of all */
  bny_attention_sums *const *sums;
  int32_t rows, head_dim, value_stride; /* value_stride: columns, padded */
  int32_t first, count;                 /* keys of the block */
  attention_factors factors;
  int32_t words;                      /* f32 of a row of queries and of keys, or pairs of bf16 */
  prompt_seen all, lost;              /* keys that any row sees; those of them whose values are not finite */
  int32_t views;                      /* different sights of rows: the heads of a token have one */
  const bny_attention_sight **sights; /* by view; NULL: a row sees all keys */
  prompt_seen *seen;                  /* by view */
  uint16_t *view;                     /* by row */
  float *q;                           /* [tile][words][PROMPT_ROWS] */
  float *k;                           /* [panel of keys][words][PROMPT_PANEL] */
  float *v;                           /* [panel of columns][PROMPT_KEYS][PROMPT_PANEL] */
  float *p;                           /* [PROMPT_ROWS][PROMPT_P_STRIDE]: scores of a tile, then weights */
} prompt;

static inline size_t prompt_panels(int32_t columns) {
  return (size_t)((columns + PROMPT_PANEL - 1) / PROMPT_PANEL * PROMPT_PANEL);
}

static inline size_t prompt_lines(size_t bytes) { return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }

/* Lays out the memory of `rows` rows from `memory` on, and returns its bytes. */
static size_t prompt_lay_out(int32_t rows, int32_t head_dim, int32_t value_dim, char *memory, prompt *to) {
  const size_t tiles = (size_t)((rows + PROMPT_ROWS - 1) / PROMPT_ROWS);
  const size_t bytes[] = {
      prompt_lines((size_t)rows * (sizeof *to->seen + sizeof *to->sights + sizeof *to->view)),
      prompt_lines((tiles * PROMPT_ROWS * (size_t)bny_attention_padded(head_dim) + VEC_LANES) * sizeof(float)),
      (size_t)PROMPT_KEYS * (size_t)head_dim * sizeof(float), PROMPT_KEYS * prompt_panels(value_dim) * sizeof(float),
      PROMPT_ROWS * PROMPT_P_STRIDE * sizeof(float)};
  if (memory) {
    to->seen = (prompt_seen *)(void *)memory;
    to->sights = (const bny_attention_sight **)(void *)(to->seen + rows);
    to->view = (uint16_t *)(void *)(to->sights + rows);
    to->q = (float *)(void *)(memory + bytes[0]);
    to->k = (float *)(void *)(memory + bytes[0] + bytes[1]);
    to->v = (float *)(void *)(memory + bytes[0] + bytes[1] + bytes[2]);
    to->p = (float *)(void *)(memory + bytes[0] + bytes[1] + bytes[2] + bytes[3]);
  }
  return bytes[0] + bytes[1] + bytes[2] + bytes[3] + bytes[4];
}

static size_t attention_many_bytes(int32_t rows, int32_t head_dim, int32_t value_dim) {
  return prompt_lay_out(rows, head_dim, value_dim, NULL, NULL);
}

/* ---- what rows see ----------------------------------------------------------------------------------------------- */

/* Returns the bits of a word from `low` on and below `high`, which may be outside of it. */
INLINE uint64_t prompt_between(int32_t low, int32_t high) {
  uint64_t below = high >= 64 ? UINT64_MAX : high <= 0 ? 0 : (UINT64_C(1) << high) - 1;
  return low <= 0 ? below : low >= 64 ? 0 : below & ~((UINT64_C(1) << low) - 1);
}

INLINE bool prompt_has(const prompt_seen *seen, int32_t key) { return seen->bits[key / 64] >> (key % 64) & 1; }

static prompt_seen prompt_sees(const bny_attention_sight *sight, const prompt_seen *counted, int32_t first,
                               int32_t count) {
  prompt_seen seen;
  for (int32_t w = 0; w < PROMPT_WORDS; w++) {
    int32_t base = first + 64 * w, tree = sight ? sight->tree_first - base : 0;
    seen.bits[w] = sight ? prompt_between(sight->first - base, sight->end - base) : UINT64_MAX;
    if (sight && tree >= 0 && tree < 64) seen.bits[w] |= sight->tree_bits << tree;
    if (sight && tree < 0 && tree > -64) seen.bits[w] |= sight->tree_bits >> -tree;
    seen.bits[w] &= counted->bits[w] & prompt_between(0, count - 64 * w);
  }
  return seen;
}

/* Finds the views of rows. */
static void prompt_set_views(prompt *at) {
  at->views = 0;
  for (int32_t r = 0; r < at->rows; r++) {
    const bny_attention_task *task = at->tasks[r / BNY_ATTENTION_HEADS_MAX];
    const bny_attention_sight *x = task->sights ? &task->sights[r % BNY_ATTENTION_HEADS_MAX] : NULL;
    const bny_attention_sight *y = at->views > 0 ? at->sights[at->views - 1] : NULL;
    const bool is_same = x && y ? x->first == y->first && x->end == y->end && x->tree_first == y->tree_first &&
                                      x->tree_bits == y->tree_bits
                                : at->views > 0;
    if (!is_same) at->sights[at->views++] = x;
    at->view[r] = (uint16_t)(at->views - 1);
  }
}

INLINE const prompt_seen *prompt_seen_by(const prompt *at, int32_t row) { return &at->seen[at->view[row]]; }

/* Finds what rows see of the block. Returns false if no row sees a key. */
static bool prompt_look(prompt *at) {
  const uint8_t *mask = at->task->key_mask;
  prompt_seen counted;
  uint64_t any = 0;
  memset(&counted, mask ? 0 : 0xff, sizeof counted);
  for (int32_t i = 0; mask && i < at->count; i++)
    counted.bits[i / 64] |= (uint64_t)(mask[at->first + i] != 0) << (i % 64);
  memset(&at->all, 0, sizeof at->all);
  for (int32_t i = 0; i < at->views; i++) {
    at->seen[i] = prompt_sees(at->sights[i], &counted, at->first, at->count);
    for (int32_t w = 0; w < PROMPT_WORDS; w++) any |= at->all.bits[w] |= at->seen[i].bits[w];
  }
  return any != 0;
}

/* Sets the first key that a tile's rows see, and the one after the last. Returns false if they see none. */
static bool prompt_range(const prompt *at, int32_t row, int32_t rows, int32_t *low, int32_t *high) {
  uint64_t any[PROMPT_WORDS] = {0};
  for (int32_t i = at->view[row]; i <= at->view[row + rows - 1]; i++)
    for (int32_t w = 0; w < PROMPT_WORDS; w++) any[w] |= at->seen[i].bits[w];
  *low = *high = 0;
  for (int32_t w = PROMPT_WORDS - 1; w >= 0; w--) {
    if (any[w] == 0) continue;
    if (*high == 0) *high = 64 * w + 64 - __builtin_clzll(any[w]);
    *low = 64 * w + __builtin_ctzll(any[w]);
  }
  return *high > 0;
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Returns a vector of a row of `columns` elements from column `at` on, with zeros beyond them. */
INLINE vec prompt_vec(const char *row, banyan_dtype dtype, int32_t columns, int32_t at) {
  const char *first = row + (size_t)at * attention_element_bytes(dtype);
  if (at + VEC_LANES <= columns) return vec_row(first, dtype);
  return at < columns ? vec_row_tail(first, columns - at, dtype) : vec_zero();
}

/* Packs `count` rows, at most VEC_LANES, as columns of a matrix of rows of `stride`. Lanes without a row become 0. If
 * the matrix has fewer columns, later stores overwrite them. */
INLINE void prompt_pack(const char *const *rows, int count, banyan_dtype dtype, int32_t columns, float *to,
                        int32_t stride) {
  for (int32_t j = 0; j < columns; j += VEC_LANES) {
    vec block[VEC_LANES];
    UNROLL for (int i = 0; i < VEC_LANES; i++) {
      block[i] = i < count ? prompt_vec(rows[i], dtype, columns, j) : vec_zero();
    }
    vec_transpose(block);
    UNROLL for (int i = 0; i < VEC_LANES; i++) {
      if (j + i < columns) vec_store(to + (j + i) * stride, block[i]);
    }
  }
}

static const float prompt_zeros[BNY_ATTENTION_HEAD_DIM_MAX];

/* Prefetches the queries of a tile of rows, of which each is in a place of its own. */
static inline __attribute__((always_inline)) void prompt_prefetch(const prompt *at, int32_t row) {
  for (int32_t r = row; r < at->rows && r < row + PROMPT_ROWS; r++) {
    const bny_attention_task *task = at->tasks[r / BNY_ATTENTION_HEADS_MAX];
    const char *q = task->q[r % BNY_ATTENTION_HEADS_MAX];
    const int32_t bytes = (task->head_dim - task->rope_dim) * (int32_t)attention_element_bytes(task->q_dtype);
    for (int32_t j = 0; j < bytes; j += LINE_BYTES) attention_prefetch(q + j, false);
  }
}

/* Returns whether queries and keys are multiplied as pairs of bf16. */
INLINE bool prompt_has_dots(const prompt *at) { return BF16_DOTS && at->words < at->head_dim; }

/* Turns a row of f32 that bf16 can hold into pairs of bf16, in place. */
static void prompt_pair(float *row, int32_t pairs) {
  for (int32_t i = 0; i < pairs; i++) {
    uint32_t bits[2];
    memcpy(bits, row + 2 * i, sizeof bits);
    bits[1] = bits[0] >> 16 | (bits[1] & 0xffff0000);
    memcpy(row + i, &bits[1], sizeof bits[1]);
  }
}

/* Packs the queries. */
static void prompt_queries(prompt *at) {
  _Static_assert((int)PROMPT_ROWS <= (int)VEC_LANES, "a tile is packed at once");
  float rows[PROMPT_ROWS][BNY_ATTENTION_HEAD_DIM_MAX];
  const char *pointers[PROMPT_ROWS];
  const int32_t padded = bny_attention_padded(at->head_dim);
  for (int32_t row = 0; row < at->rows; row += PROMPT_ROWS) {
    prompt_prefetch(at, row + PROMPT_ROWS);
    for (int32_t i = 0; i < PROMPT_ROWS; i++) {
      const int32_t r = row + i;
      pointers[i] = (const char *)(r < at->rows ? rows[i] : prompt_zeros);
      if (r < at->rows)
        attention_query(at->tasks[r / BNY_ATTENTION_HEADS_MAX], r % BNY_ATTENTION_HEADS_MAX, at->factors.q, padded,
                        rows[i]);
      if (prompt_has_dots(at) && r < at->rows) prompt_pair(rows[i], at->words);
    }
    prompt_pack(pointers, PROMPT_ROWS, BANYAN_F32, at->words, at->q + row * padded, PROMPT_ROWS);
  }
}

/* Returns the row of key `key` in memory. */
INLINE const char *prompt_key(const bny_attention_task *task, const void *base, int64_t page_stride,
                              int64_t token_stride, int32_t key) {
  if (!task->pages) return attention_row(base, token_stride, key, task->kv_dtype);
  const char *page = attention_row(base, page_stride, task->pages[key / task->page_keys], task->kv_dtype);
  return attention_row(page, token_stride, key % task->page_keys, task->kv_dtype);
}

INLINE float prompt_scale(const bny_attention_task *task, const float *scales, int32_t key) {
  if (!task->pages) return scales[key * task->scale_token_stride];
  return scales[task->pages[key / task->page_keys] * task->scale_page_stride +
                key % task->page_keys * task->scale_token_stride];
}

/* Returns the type of rows that are packed: f32 for all that are converted before. */
INLINE banyan_dtype prompt_type(const bny_attention_task *task) {
  return attention_is_plain(task) && attention_element_bytes(task->kv_dtype) > 1 ? task->kv_dtype : BANYAN_F32;
}

/* Returns a row of keys or values: in memory if the task's rows can be read there, else as f32 in `to`. */
static const char *prompt_row(const bny_attention_task *task, bool is_value, int32_t key, float *to) {
  const int32_t columns = is_value ? task->value_dim : task->head_dim;
  const float *scales = is_value ? task->v_scales : task->k_scales;
  const bool is_latent = task->kv_rows != BANYAN_KV_ROWS_PLAIN; /* a row has both */
  const char *row = is_value && !is_latent ? prompt_key(task, task->v, task->v_page_stride, task->v_token_stride, key)
                                           : prompt_key(task, task->k, task->k_page_stride, task->k_token_stride, key);
  if (prompt_type(task) == task->kv_dtype) return row;
  const float scale = scales ? prompt_scale(task, scales, key) : 1;
  attention_row_as_f32(task, row, columns, scales ? &scale : NULL, to);
  return (const char *)to;
}

/* Packs the keys that some row sees, with zeros for others. */
INLINE void prompt_keys(const prompt *at, banyan_dtype dtype) {
  float converted[VEC_LANES][BNY_ATTENTION_HEAD_DIM_MAX];
  const char *rows[VEC_LANES];
  for (int32_t i = 0; i < at->count; i += VEC_LANES) {
    const uint64_t panel = at->all.bits[i / 64] >> (i / PROMPT_PANEL * PROMPT_PANEL % 64);
    if ((panel & prompt_between(0, PROMPT_PANEL)) == 0) continue;
    for (int32_t lane = 0; lane < VEC_LANES; lane++)
      rows[lane] = prompt_has(&at->all, i + lane) ? prompt_row(at->task, false, at->first + i + lane, converted[lane])
                                                  : (const char *)prompt_zeros;
    prompt_pack(rows, VEC_LANES, dtype, at->words,
                at->k + i / PROMPT_PANEL * PROMPT_PANEL * at->words + i % PROMPT_PANEL, PROMPT_PANEL);
  }
}

/* Packs the values of these keys, with zeros for values that are not finite. */
INLINE void prompt_values(prompt *at, banyan_dtype dtype) {
  float converted[BNY_ATTENTION_HEAD_DIM_MAX];
  const int32_t columns = at->task->value_dim, all = (int32_t)prompt_panels(columns);
  memset(&at->lost, 0, sizeof at->lost);
  for (int32_t i = 0; i < at->count; i++) {
    float *to = at->v + i * PROMPT_PANEL;
    vec off = vec_zero();
    const bool is_seen = prompt_has(&at->all, i);
    const char *row = is_seen ? prompt_row(at->task, true, at->first + i, converted) : (const char *)prompt_zeros;
    for (int32_t j = 0; j < all; j += PROMPT_PANEL, to += PROMPT_PANEL * PROMPT_KEYS) {
      UNROLL for (int32_t x = 0; x < PROMPT_PANEL; x += VEC_LANES) {
        vec values = prompt_vec(row, dtype, columns, j + x);
        off = vec_fma(values, vec_zero(), off); /* NaN for what is not finite */
        vec_store(to + x, values);
      }
    }
    if (vec_all_zero(off)) continue;
    at->lost.bits[i / 64] |= UINT64_C(1) << (i % 64);
    for (int32_t j = 0; j < all; j += PROMPT_PANEL)
      memset(at->v + j * PROMPT_KEYS + i * PROMPT_PANEL, 0, PROMPT_PANEL * sizeof(float));
  }
}

static __attribute__((noinline)) void prompt_pack_f32(prompt *at) {
  prompt_keys(at, BANYAN_F32);
  prompt_values(at, BANYAN_F32);
}

static __attribute__((noinline)) void prompt_pack_f16(prompt *at) {
  prompt_keys(at, BANYAN_F16);
  prompt_values(at, BANYAN_F16);
}

static __attribute__((noinline)) void prompt_pack_bf16(prompt *at) {
  if (prompt_has_dots(at))
    prompt_keys(at, BANYAN_F32); /* pairs are moved as they are */
  else
    prompt_keys(at, BANYAN_BF16);
  prompt_values(at, BANYAN_BF16);
}

static void prompt_pack_block(prompt *at) {
  if (prompt_type(at->task) == BANYAN_F32)
    prompt_pack_f32(at);
  else if (prompt_type(at->task) == BANYAN_F16)
    prompt_pack_f16(at);
  else
    prompt_pack_bf16(at);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Multiplies PROMPT_ROWS rows of `a`, of `count` elements, with one or two vectors of each row of `b`. Element i of row
 * r is a[i * a_step + r * a_row]. With `dots`, elements are pairs of bf16. The result goes `to` there, or is added to
 * what is there. */
INLINE void prompt_multiply(int vectors, bool dots, const float *a, int32_t a_step, int32_t a_row, const float *b,
                            int32_t count, bool adds, float *to, int32_t to_stride) {
  enum { AHEAD = 8 }; /* rows that are prefetched from the second-level cache */
  vec sums[PROMPT_ROWS][2];
  UNROLL for (int r = 0; r < PROMPT_ROWS; r++) sums[r][0] = sums[r][1] = vec_zero();
  for (int32_t i = 0; i < count; i++, a += a_step, b += PROMPT_PANEL) {
    vec columns[2];
    UNROLL for (int j = 0; j < vectors; j++) {
      columns[j] = vec_load(b + j * VEC_LANES);
      __builtin_prefetch(b + AHEAD * PROMPT_PANEL + j * VEC_LANES, 0, 3);
    }
    UNROLL for (int r = 0; r < PROMPT_ROWS; r++) {
      vec factor = vec_set1(a[r * a_row]);
      UNROLL for (int j = 0; j < vectors; j++) {
        sums[r][j] = dots ? vec_dot(sums[r][j], factor, (word_vec)columns[j]) : vec_fma(factor, columns[j], sums[r][j]);
      }
    }
  }
  UNROLL for (int r = 0; r < PROMPT_ROWS; r++) {
    UNROLL for (int j = 0; j < vectors; j++) {
      float *at = to + r * to_stride + j * VEC_LANES;
      vec_store(at, adds ? vec_add(vec_load(at), sums[r][j]) : sums[r][j]);
    }
  }
}

/* Computes the scores of a tile of rows and a panel of keys, or of its first half. Long sums are cut, so that they are
 * as exact as others. */
INLINE void prompt_score(int vectors, bool dots, const float *q, const float *k, int32_t words, float *scores) {
  const int32_t most = dots ? 32 : 64;
  for (int32_t j = 0; j < words; j += most, q += most * PROMPT_ROWS, k += most * PROMPT_PANEL) {
    const int32_t count = words - j < most ? words - j : most;
    if (j == 0)
      prompt_multiply(vectors, dots, q, PROMPT_ROWS, 1, k, count, false, scores, PROMPT_P_STRIDE);
    else
      prompt_multiply(vectors, dots, q, PROMPT_ROWS, 1, k, count, true, scores, PROMPT_P_STRIDE);
  }
}

static __attribute__((noinline)) void prompt_score_whole(const float *q, const float *k, int32_t words, float *scores) {
  prompt_score(2, false, q, k, words, scores);
}

static __attribute__((noinline)) void prompt_score_half(const float *q, const float *k, int32_t words, float *scores) {
  prompt_score(1, false, q, k, words, scores);
}

static __attribute__((noinline)) void prompt_score_dots(const float *q, const float *k, int32_t words, float *scores) {
  prompt_score(2, BF16_DOTS, q, k, words, scores);
}

static __attribute__((noinline)) void prompt_score_half_dots(const float *q, const float *k, int32_t words,
                                                             float *scores) {
  prompt_score(1, BF16_DOTS, q, k, words, scores);
}

/* Bounds the logits of a row by the soft cap. */
static __attribute__((noinline)) void prompt_cap(const prompt *at, int32_t low, int32_t high, float *scores) {
  const double cap = (double)at->task->soft_cap;
  for (int32_t i = low; i < high; i++) scores[i] = (float)(cap * tanh((double)scores[i] * (double)at->factors.k / cap));
}

enum { PROMPT_WORD = 64, PROMPT_FULL = (1 << VEC_LANES) - 1 };

/* Returns the greater of `tops` and the logits of a word of keys, of which the row sees those in `bits`. */
INLINE vec prompt_tops(uint64_t bits, const float *scores, vec factor, vec tops) {
  UNROLL for (int i = 0; i < PROMPT_WORD; i += VEC_LANES) {
    vec t = vec_mul(vec_load(scores + i), factor);
    if (bits != UINT64_MAX) t = vec_kept((uint32_t)(bits >> i) & PROMPT_FULL, t, tops);
    tops = vec_most(t, tops);
  }
  return tops;
}

/* Turns the scores of a word of keys into weights, and adds them to a sum. */
INLINE vec prompt_weights(uint64_t bits, float *scores, vec factor, vec minus_m, vec sum) {
  UNROLL for (int i = 0; i < PROMPT_WORD; i += VEC_LANES) {
    vec weights = vec_exp2(vec_least(vec_zero(), vec_fma(vec_load(scores + i), factor, minus_m)));
    if (bits != UINT64_MAX) weights = vec_kept((uint32_t)(bits >> i) & PROMPT_FULL, weights, vec_zero());
    vec_store(scores + i, weights);
    sum = vec_add(sum, weights);
  }
  return sum;
}

/* Raises the max of row r to cover its scores, and returns the factor of its earlier sums. */
INLINE double prompt_raise(const prompt *at, int32_t r, int32_t first, int32_t high, vec factor, const float *scores) {
  bny_attention_sums *sums = at->sums[r / BNY_ATTENTION_HEADS_MAX];
  const int32_t h = r % BNY_ATTENTION_HEADS_MAX;
  const uint64_t *bits = prompt_seen_by(at, r)->bits;
  const double before = sums->m[h];
  vec tops = vec_set1(-INFINITY);
  for (int32_t w = first; w * PROMPT_WORD < high; w++) {
    if (bits[w] == UINT64_MAX)
      tops = prompt_tops(UINT64_MAX, scores + w * PROMPT_WORD, factor, tops);
    else if (bits[w] != 0)
      tops = prompt_tops(bits[w], scores + w * PROMPT_WORD, factor, tops);
  }
  const float top = vec_top(tops);
  if (!((double)top > before) || top < -FLT_MAX) return 1;
  sums->m[h] = (double)attention_cover((double)top);
  return bny_attention_rescale(before, sums->m[h]);
}

/* Turns the scores of row r into weights, and adds them to its sum. */
INLINE void prompt_weigh(const prompt *at, int32_t r, int32_t first, int32_t high, vec factor, double scale,
                         float *scores) {
  bny_attention_sums *sums = at->sums[r / BNY_ATTENTION_HEADS_MAX];
  const int32_t h = r % BNY_ATTENTION_HEADS_MAX;
  const uint64_t *bits = prompt_seen_by(at, r)->bits;
  const vec minus_m = vec_set1(sums->m[h] == -INFINITY ? FLT_MAX : (float)-sums->m[h]);
  vec sum = vec_zero();
  for (int32_t w = first; w * PROMPT_WORD < high; w++) {
    if (bits[w] == UINT64_MAX)
      sum = prompt_weights(UINT64_MAX, scores + w * PROMPT_WORD, factor, minus_m, sum);
    else if (bits[w] != 0)
      sum = prompt_weights(bits[w], scores + w * PROMPT_WORD, factor, minus_m, sum);
    else
      memset(scores + w * PROMPT_WORD, 0, PROMPT_WORD * sizeof *scores);
  }
  sums->d[h] = sums->d[h] * scale + (double)vec_total(sum);
}

/* Turns the scores of a tile into weights. scales: receives the factors of earlier sums. */
static __attribute__((noinline)) void prompt_weigh_tile(const prompt *at, int32_t row, int32_t rows, int32_t low,
                                                        int32_t high, double *scales) {
  const bool has_cap = at->task->soft_cap > 0;
  const vec factor = vec_set1(has_cap ? 1 : at->factors.k);
  for (int32_t i = 0; has_cap && i < rows; i++) prompt_cap(at, low, high, at->p + i * PROMPT_P_STRIDE);
  for (int32_t i = 0; i < rows; i++)
    scales[i] = prompt_raise(at, row + i, low / PROMPT_WORD, high, factor, at->p + i * PROMPT_P_STRIDE);
  for (int32_t i = 0; i < rows; i++)
    prompt_weigh(at, row + i, low / PROMPT_WORD, high, factor, scales[i], at->p + i * PROMPT_P_STRIDE);
}

typedef float prompt_floats __attribute__((vector_size(2 * VEC_LANES), aligned(4), may_alias));
typedef double prompt_doubles __attribute__((vector_size(4 * VEC_LANES), aligned(8), may_alias));

/* Adds a tile's sums of two vectors of columns to the totals of its rows. */
INLINE void prompt_fold(const prompt *at, int32_t row, int32_t rows, int32_t column, const double *scales,
                        const float *from) {
  enum { LANES = VEC_LANES / 2 };
  const double by = at->factors.v;
  const int32_t columns = at->value_stride - column < PROMPT_PANEL ? at->value_stride - column : (int32_t)PROMPT_PANEL;
  for (int32_t i = 0; i < rows; i++, from += PROMPT_PANEL) {
    const int32_t r = row + i;
    double *to = at->sums[r / BNY_ATTENTION_HEADS_MAX]->n + r % BNY_ATTENTION_HEADS_MAX * at->value_stride + column;
    for (int32_t j = 0; j < columns; j += LANES) {
      prompt_doubles *total = (prompt_doubles *)(to + j);
      *total = *total * scales[i] + __builtin_convertvector(*(const prompt_floats *)(from + j), prompt_doubles) * by;
    }
  }
}

/* Adds values that are not finite to the totals of rows that see them. */
static __attribute__((noinline)) void prompt_add_lost(const prompt *at, int32_t row, int32_t rows) {
  float converted[BNY_ATTENTION_HEAD_DIM_MAX], values[BNY_ATTENTION_VALUE_DIM_MAX];
  const banyan_dtype type = prompt_type(at->task);
  for (int32_t key = 0; key < at->count; key++) {
    if (!prompt_has(&at->lost, key)) continue;
    attention_convert(prompt_row(at->task, true, at->first + key, converted), at->task->value_dim, type, NULL, values);
    for (int32_t i = 0; i < rows; i++) {
      if (!prompt_has(prompt_seen_by(at, row + i), key)) continue;
      double *to =
          at->sums[(row + i) / BNY_ATTENTION_HEADS_MAX]->n + (row + i) % BNY_ATTENTION_HEADS_MAX * at->value_stride;
      for (int32_t j = 0; j < at->task->value_dim; j++)
        to[j] += (double)(at->p[i * PROMPT_P_STRIDE + key] * values[j]) * at->factors.v;
    }
  }
}

/* Adds the keys of the block to the rows of a tile. */
static void prompt_tile(const prompt *at, int32_t row) {
  const int32_t rows = at->rows - row < PROMPT_ROWS ? at->rows - row : PROMPT_ROWS, words = at->words;
  float tile[PROMPT_ROWS * PROMPT_PANEL] __attribute__((aligned(64)));
  double scales[PROMPT_ROWS];
  int32_t low, high;
  bool any_lost = false;
  if (!prompt_range(at, row, rows, &low, &high)) return;
  for (int32_t i = low / PROMPT_PANEL * PROMPT_PANEL; i < high; i += PROMPT_PANEL) {
    const float *q = at->q + row * bny_attention_padded(at->head_dim), *k = at->k + i * words;
    const bool is_whole = high - i > VEC_LANES;
    if (prompt_has_dots(at))
      (is_whole ? prompt_score_dots : prompt_score_half_dots)(q, k, words, at->p + i);
    else
      (is_whole ? prompt_score_whole : prompt_score_half)(q, k, words, at->p + i);
  }
  prompt_weigh_tile(at, row, rows, low, high, scales);
  for (int32_t j = 0; j < at->value_stride; j += PROMPT_PANEL) {
    prompt_multiply(2, false, at->p + low, 1, PROMPT_P_STRIDE, at->v + j * PROMPT_KEYS + low * PROMPT_PANEL, high - low,
                    false, tile, PROMPT_PANEL);
    prompt_fold(at, row, rows, j, scales, tile);
  }
  for (int32_t w = 0; w < PROMPT_WORDS; w++) any_lost = any_lost || at->lost.bits[w] != 0;
  if (any_lost) prompt_add_lost(at, row, rows);
}

static void attention_run_many(const bny_attention_task *const *tasks, int32_t count, int32_t first, int32_t last,
                               bny_attention_sums *const *sums, void *memory) {
  const bny_attention_task *task = tasks[0];
  prompt at = {.tasks = tasks,
               .task = task,
               .sums = sums,
               .rows = (count - 1) * BNY_ATTENTION_HEADS_MAX + tasks[count - 1]->heads,
               .head_dim = task->head_dim,
               .value_stride = bny_attention_padded(task->value_dim),
               .factors = attention_factors_of(task, task->kv_dtype)};
  const bool has_dots = BF16_DOTS && task->q_dtype == BANYAN_BF16 && prompt_type(task) == BANYAN_BF16;
  at.words = has_dots && at.head_dim % 2 == 0 ? at.head_dim / 2 : at.head_dim;
  prompt_lay_out(at.rows, at.head_dim, task->value_dim, memory, &at);
  for (int32_t i = 0; i < count; i++) {
    for (int32_t h = 0; h < tasks[i]->heads; h++) sums[i]->m[h] = -INFINITY, sums[i]->d[h] = 0;
    memset(sums[i]->n, 0, (size_t)(tasks[i]->heads * at.value_stride) * sizeof sums[i]->n[0]);
  }
  prompt_set_views(&at);
  prompt_queries(&at);
  memset(at.p, 0, PROMPT_ROWS * PROMPT_P_STRIDE * sizeof *at.p);
  for (at.first = first; at.first < last; at.first += PROMPT_KEYS) {
    at.count = last - at.first < PROMPT_KEYS ? last - at.first : PROMPT_KEYS;
    if (!prompt_look(&at)) continue;
    prompt_pack_block(&at);
    for (int32_t row = 0; row < at.rows; row += PROMPT_ROWS) prompt_tile(&at, row);
  }
  for (int32_t i = 0; attention_is_wide(task, task->kv_dtype) && i < count; i++)
    for (int32_t h = 0; h < tasks[i]->heads; h++)
      if (attention_overflowed(tasks[i], sums[i], h)) attention_again(tasks[i], first, last, h, sums[i]);
}
