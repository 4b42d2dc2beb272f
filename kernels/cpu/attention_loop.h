/* SPDX-License-Identifier: Apache-2.0
 * All CPU attention kernels share this loop. It declares its hooks below, and the including file defines them for its
 * instruction set. The loop comes first because hooks use its types and helpers:
 *
 *   attention_convert    converts elements of a row of queries to f32
 *   attention_weigh      work->p = 2^(t - m) of `count` keys from `first` on; adds them to work->tile_d
 *   attention_accumulate work->n += p v over the tile
 *   attention_factor     returns the factor by which the hooks above read the elements of a form; its inverse goes into
 *                        the scales
 *   attention_unpack     converts `count` elements of a type, times a scale, to f32
 *   attention_form       returns the form in which the hooks read the task's cache
 *   attention_columns    returns a row of sums in the order of its columns: the row itself, or a copy at `to`
 *   attention_pack       brings row h of the queries into a form
 *   ATTENTION_FORMS      has an X for each form; ATTENTION_TYPES has those that are types
 *   ATTENTION_MATRIX_ONLY if defined: all forms are for matrices, nothing is unpacked, and there is one more hook:
 *   attention_add_one    adds a key to the current row
 *   ATTENTION_MORE_WORK  if defined: the type of further work memory, `more`
 *   ATTENTION_OWN_TILE   if defined: attention_tile is a hook too. It returns the keys of a tile, at most
 *                        ATTENTION_TILE, whose rows fit ATTENTION_TILE_BYTES; at most ATTENTION_LONG_TILE for rows of
 *                        FlashMLA as f32
 *
 * Hooks for weights and sums work on rows [work->row, work->row + work->rows).
 *
 * A form is the type of the cache with bits added. ATTENTION_GROUPED: the vectors of 64 columns are filled in the order
 * that takes the fewest instructions. Queries and sums are kept in that order. ATTENTION_DOT: queries are bf16 as well,
 * and logits are dot products of pairs. ATTENTION_MATRIX: keys are multiplied 16 at a time.
 *
 * Keys are processed in tiles that stay in the first-level cache together with the queries. Memory is thus read once
 * for all heads of the task. Tiles add up in blocks, in f32, and blocks add up in double. All parts of this split have
 * the same m, so merging them is a plain sum.
 *
 * If some row does not see a whole tile, the tile is processed row by row, and only the keys that the row sees are
 * read. So a value that a row does not see may be NaN, and a row's bits do not depend on the other rows.
 */
#pragma once

#include <float.h>
#include <math.h>
#include <string.h>

#include "attention.h"
#include "attention_inline.h"

enum {
  ATTENTION_TILE = 64,      /* keys at most */
  ATTENTION_LONG_TILE = 16, /* most keys of a tile, if rows have 256 bytes or more */
  ATTENTION_TILE_BYTES = ATTENTION_LONG_TILE * 4 * BNY_ATTENTION_HEAD_DIM_MAX, /* most bytes of the keys of a tile */
};
enum { ATTENTION_GROUPED = 32, ATTENTION_DOT = 64, ATTENTION_MATRIX = 128, ATTENTION_TYPE = 31, ATTENTION_GROUP = 64 };
enum { ATTENTION_MATRIX_TILE = 32 }; /* keys of a tile in such a form */

#define ATTENTION_TYPES               \
  X(attention_over_f32, BANYAN_F32)   \
  X(attention_over_f16, BANYAN_F16)   \
  X(attention_over_bf16, BANYAN_BF16) \
  X(attention_over_e4m3, BANYAN_E4M3) \
  X(attention_over_e5m2, BANYAN_E5M2) \
  X(attention_over_i8, BANYAN_I8)

/* A quad is four keys that are weighed together. Max, sums of weights and weights of a row have a lane for each. */
enum {
  ATTENTION_QUAD = 4,
  ATTENTION_LANES = ATTENTION_QUAD * BNY_ATTENTION_HEADS_MAX,
  ATTENTION_SPARE = BNY_ATTENTION_LANES_MAX, /* lanes beyond the last row, for whole vectors from any row on */
};

/* Rows that are read next, and that all rows of the task see. */
typedef struct attention_next {
  const char *row;
  int64_t step; /* bytes from row to row */
  int32_t row_bytes, rows;
} attention_next;

/* Factors that queries, logits and values get. */
typedef struct attention_factors {
  float k;  /* from logits as the hooks compute them to true ones */
  double v; /* from sums as the hooks compute them to true ones */
  double q; /* a power of two of queries, so that sums overflow with logits alone */
} attention_factors;

typedef struct attention_work {
  float q[BNY_ATTENTION_QUERY_FLOATS];
  float n[BNY_ATTENTION_VALUE_FLOATS];                                          /* sums of this block, relative to m */
  float p[ATTENTION_TILE / ATTENTION_QUAD * ATTENTION_LANES + ATTENTION_SPARE]; /* [quad][row][key of the quad] */
  float minus_m[ATTENTION_LANES + ATTENTION_SPARE];                             /* FLT_MAX: no key so far */
  float tile_d[ATTENTION_LANES + ATTENTION_SPARE];                              /* sums of this tile, relative to m */
  double d[ATTENTION_LANES + ATTENTION_SPARE];                                  /* sums of the tiles before */
  float k_factor;                                                               /* as in attention_factors */
  double v_factor;
  int32_t q_stride, n_stride;    /* floats between rows */
  int32_t row, rows;             /* the rows that hooks work on */
  attention_next next_k, next_v; /* the next tile, if it is known */
  bool far;                      /* passed to attention_prefetch() */
#ifdef ATTENTION_MORE_WORK
  ATTENTION_MORE_WORK more;
#endif
} __attribute__((aligned(64))) attention_work;

INLINE size_t attention_element_bytes(banyan_dtype dtype) {
  int type = (int)dtype & ATTENTION_TYPE;
  return type == BANYAN_F32 ? 4 : type == BANYAN_F16 || type == BANYAN_BF16 ? 2 : 1;
}

#ifdef ATTENTION_OWN_TILE
static int32_t attention_tile(const bny_attention_task *task, banyan_dtype dtype);
#else
/* Returns the number of keys of a tile. A tile stays in the first-level cache together with the next rows. If rows are
 * short, long tiles spread the fixed work per tile over more keys. The numbers for long rows were measured: rows of 576
 * bytes belong to MLA, whose keys are also its values. Bits depend on this number, so only rows of the cache decide
 * it. */
INLINE int32_t attention_tile(const bny_attention_task *task, banyan_dtype dtype) {
  int32_t row_bytes = task->head_dim * (int32_t)attention_element_bytes(dtype);
  if ((int)dtype & ATTENTION_MATRIX) return ATTENTION_MATRIX_TILE;
  if (row_bytes < 256) return row_bytes <= 64 ? ATTENTION_TILE : 32;
  return row_bytes >= 576 && row_bytes < 1024 ? ATTENTION_LONG_TILE : 8;
}
#endif

INLINE const char *attention_row(const void *base, int64_t stride, int64_t row, banyan_dtype dtype) {
  return (const char *)base + row * stride * (int64_t)attention_element_bytes(dtype);
}

/* Prefetches a line that is read some KiB later: into the second-level cache if `far`, else into the first-level one.
 * Measured: AMD's processors read long rows twice as fast from the second level, as their first level waits for few
 * lines at once. Intel's were tuned with the first level. */
INLINE void attention_prefetch(const char *line, bool far) {
  if (far)
    __builtin_prefetch(line, 0, 2);
  else
    __builtin_prefetch(line, 0, 3);
}

static inline bool attention_prefetches_far(void) {
#ifdef __x86_64__
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

static void attention_convert(const char *row, int32_t count, banyan_dtype dtype, float *values);
static void attention_weigh(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                            attention_work *work);
static void attention_accumulate(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                                 attention_work *work);
static void attention_add_one(const bny_attention_task *keys, banyan_dtype dtype, int32_t key, attention_work *work);

static banyan_dtype attention_form(const bny_attention_task *task);
static const float *attention_columns(banyan_dtype form, const float *row, int32_t count, float *to);
static void attention_pack(const bny_attention_task *task, banyan_dtype form, attention_work *work, int32_t h);
static double attention_factor(banyan_dtype form);
#ifndef ATTENTION_MATRIX_ONLY
static void attention_unpack(const char *row, int32_t count, banyan_dtype dtype, float scale, float *to);
#endif

/* These vectors have any alignment. They serve loops that compilers do not vectorise at -O2. */
typedef float attention_floats __attribute__((vector_size(32), aligned(4), may_alias));
typedef double attention_doubles __attribute__((vector_size(32), aligned(8), may_alias));

/* Returns the max of row h. */
static inline double attention_max(const attention_work *work, int32_t h) {
  float minus_m = work->minus_m[ATTENTION_QUAD * h];
  return minus_m == FLT_MAX ? -INFINITY : -(double)minus_m;
}

/* Returns a whole number that covers `top`: from 2^24 on, where floats are whole numbers, the one at or below it. */
static inline float attention_cover(double top) {
  if (fabs(top) < 0x1p24) return (float)ceil(top);
  if (top > (double)FLT_MAX) return INFINITY;
  float nearest = (float)top;
  return (double)nearest > top ? nextafterf(nearest, -INFINITY) : nearest;
}

/* Raises the max of row h to cover `top`. It scales all weights so far, including `quads` of this tile. A max that f32
 * cannot hold becomes infinite. Logits below the range of f32 count as -inf. */
static inline void attention_raise(attention_work *work, int32_t h, double top, int32_t quads) {
  double m = attention_max(work, h);
  if (!(top > m) || top < -(double)FLT_MAX) return;
  float raised = attention_cover(top);
  double factor = bny_attention_rescale(m, (double)raised);
  float *n = work->n + h * work->n_stride;
  for (int32_t j = 0; j < work->n_stride; j += 8) *(attention_floats *)(n + j) *= (float)factor;
  for (int32_t i = ATTENTION_QUAD * h; i < ATTENTION_QUAD * (h + 1); i++) {
    for (int32_t quad = 0; quad < quads; quad++) work->p[quad * ATTENTION_LANES + i] *= (float)factor;
    work->tile_d[i] *= (float)factor;
    work->d[i] *= factor;
    work->minus_m[i] = -raised;
  }
}

#ifndef ATTENTION_MATRIX_ONLY
/* Returns t - m, rounded as the hooks round it in vectors. A row thus has the same bits whether or not a neighbouring
 * row made it settle. */
static inline float attention_distance(float score, double t, float factor, float minus_m) {
#ifdef FP_FAST_FMAF
  (void)t;
  return fmaf(score, factor, minus_m);
#else /* such a machine settles all rows */
  (void)score;
  (void)factor;
  return (float)(t + (double)minus_m);
#endif
}

/* Turns `lanes`, the scores of `keys` keys of quad `quad` for rows from h on, into t - m. It raises the max to cover
 * them, so they are at most 0. Lanes of further keys become -inf. */
static __attribute__((noinline)) void attention_settle(const bny_attention_task *task, attention_work *work, int32_t h,
                                                       int32_t rows, int32_t keys, int32_t quad, float *lanes) {
  double cap = (double)task->soft_cap;
  for (int32_t row = h; row < h + rows; row++, lanes += ATTENTION_QUAD) {
    double t[ATTENTION_QUAD], top = -INFINITY;
    for (int32_t i = 0; i < keys; i++) {
      t[i] = (double)lanes[i] * (double)work->k_factor;
      if (cap > 0) t[i] = cap * tanh(t[i] / cap);
      if (t[i] > top) top = t[i];
    }
    attention_raise(work, row, top, quad);
    float minus_m = work->minus_m[ATTENTION_QUAD * row];
    for (int32_t i = 0; i < ATTENTION_QUAD; i++) {
      float x = -INFINITY;
      if (i < keys)
        x = cap > 0 ? (float)(t[i] + (double)minus_m) : attention_distance(lanes[i], t[i], work->k_factor, minus_m);
      lanes[i] = x > 0 ? 0 : x;
    }
  }
}
#endif

/* Adds n to sums->n, then clears n. */
INLINE void attention_fold(const bny_attention_task *task, banyan_dtype form, attention_work *work,
                           bny_attention_sums *sums) {
  for (int32_t h = 0; h < task->heads; h++) {
    double m = attention_max(work, h), factor = bny_attention_rescale(sums->m[h], m);
    double *total = sums->n + h * work->n_stride;
    float *n = work->n + h * work->n_stride, room[BNY_ATTENTION_VALUE_DIM_MAX];
    const float *columns = attention_columns(form, n, work->n_stride, room);
    for (int32_t j = 0; j < work->n_stride; j++) total[j] = total[j] * factor + (double)columns[j] * work->v_factor;
    memset(n, 0, (size_t)work->n_stride * sizeof *n);
    sums->m[h] = m;
  }
}

/* Returns the page that holds key `key`, as a task of its own. */
static inline bny_attention_task attention_page(const bny_attention_task *task, int32_t key) {
  int32_t index = key / task->page_keys, left = task->keys - index * task->page_keys, page = task->pages[index];
  bny_attention_task one = *task;
  one.k = attention_row(task->k, task->k_page_stride, page, task->kv_dtype);
  one.v = attention_row(task->v, task->v_page_stride, page, task->kv_dtype);
  one.keys = left < task->page_keys ? left : task->page_keys;
  if (task->k_scales) one.k_scales = task->k_scales + page * task->scale_page_stride;
  if (task->v_scales) one.v_scales = task->v_scales + page * task->scale_page_stride;
  return one;
}

/* Multiplies q by `factor`, a power of two. `count` is a multiple of 16. */
static inline void attention_scale_query(double factor, int32_t count, float *q) {
  if (factor == 1) return;
  if (factor < (double)FLT_MIN || factor > (double)FLT_MAX) {
    for (int32_t i = 0; i < count; i++) q[i] = (float)((double)q[i] * factor);
    return;
  }
  const float single = (float)factor;
  for (int32_t i = 0; i < count; i += 8) *(attention_floats *)(q + i) *= single;
}

/* Converts row h of the task's queries to f32, times a factor and padded with zeros to `count`. */
static void attention_query(const bny_attention_task *task, int32_t h, double factor, int32_t count, float *q) {
  int32_t plain = task->head_dim - task->rope_dim;
  attention_convert(task->q[h], plain, task->q_dtype, q);
  if (task->rope_dim > 0) attention_convert(task->q_rope[h], task->rope_dim, task->q_dtype, q + plain);
  for (int32_t i = task->head_dim; i < count; i++) q[i] = 0;
  attention_scale_query(factor, count, q);
}

/* Adds `count` keys of a tile, which all current rows see. */
INLINE void attention_add(const bny_attention_task *keys, banyan_dtype dtype, int32_t from, int32_t count,
                          attention_work *work) {
  int32_t lane = ATTENTION_QUAD * work->row, end = lane + ATTENTION_QUAD * work->rows;
  attention_weigh(keys, dtype, from, count, work);
  for (int32_t i = lane; i < end; i++) {
    work->d[i] += (double)work->tile_d[i];
    work->tile_d[i] = 0;
  }
  attention_accumulate(keys, dtype, from, count, work);
}

/* Each form has its own copy of attention_add(). */
#define X(name, form)                                                                                           \
  static __attribute__((noinline)) void name##_add(const bny_attention_task *keys, int32_t from, int32_t count, \
                                                   attention_work *work) {                                      \
    attention_add(keys, (banyan_dtype)(form), from, count, work);                                               \
  }
ATTENTION_FORMS
#undef X

static inline void attention_add_form(const bny_attention_task *keys, banyan_dtype dtype, int32_t from, int32_t count,
                                      attention_work *work) {
  switch ((int)dtype) {
#define X(name, form) \
  case form: name##_add(keys, from, count, work); break;
    ATTENTION_FORMS
#undef X
  }
}

#ifndef ATTENTION_MATRIX_ONLY
static void attention_add_one(const bny_attention_task *keys, banyan_dtype dtype, int32_t key, attention_work *work) {
  attention_add_form(keys, dtype, key, 1, work);
}
#endif

/* Adds keys [low, high) of the task but for masked ones. Key 0 of the task is key `shift` of `keys`. */
static void attention_add_unmasked(const bny_attention_task *task, const bny_attention_task *keys, banyan_dtype dtype,
                                   int32_t low, int32_t high, int32_t shift, attention_work *work) {
  for (int32_t end = low; low < high; low = end) {
    bool counts = !task->key_mask || task->key_mask[low];
    for (end = task->key_mask ? low + 1 : high; end < high && !task->key_mask[end] == !counts; end++) continue;
    if (counts) attention_add_form(keys, dtype, shift + low, end - low, work);
  }
}

/* Adds the keys in [first, first + count) of the task that each row sees. They begin at `from` of `keys`. */
static void attention_add_by_row(const bny_attention_task *task, const bny_attention_task *keys, banyan_dtype dtype,
                                 int32_t first, int32_t from, int32_t count, attention_work *work) {
  work->rows = 1;
  for (work->row = 0; work->row < task->heads; work->row++) {
    const bny_attention_sight all = {.end = task->keys}, *sight = task->sights ? &task->sights[work->row] : &all;
    int32_t low = sight->first > first ? sight->first : first;
    int32_t high = sight->end < first + count ? sight->end : first + count;
    attention_add_unmasked(task, keys, dtype, low, high, from - first, work);
    for (int32_t key = sight->tree_first > first ? sight->tree_first : first;
         sight->tree_bits != 0 && key < first + count && key - sight->tree_first < 64; key++)
      if (sight->tree_bits >> (key - sight->tree_first) & 1 && (!task->key_mask || task->key_mask[key]))
        attention_add_one(keys, dtype, from + key - first, work);
  }
  work->row = 0;
  work->rows = task->heads;
}

/* Returns true if all rows see all of keys [first, first + count). */
static inline bool attention_all_seen(const bny_attention_task *task, int32_t first, int32_t count) {
  for (int32_t h = 0; task->sights && h < task->heads; h++)
    if (task->sights[h].first > first || task->sights[h].end < first + count) return false;
  return !task->key_mask || !memchr(task->key_mask + first, 0, (size_t)count);
}

/* Returns which of the keys [first, first + count) any row sees: bit i is for key first + i. Only these are read. */
static __attribute__((noinline)) uint64_t attention_seen(const bny_attention_task *task, int32_t first, int32_t count) {
  uint64_t seen = 0;
  for (int32_t i = 0; i < count; i++) {
    bool sees = !task->sights;
    for (int32_t h = 0; !sees && h < task->heads; h++) sees = bny_attention_sees(&task->sights[h], first + i);
    if (sees && (!task->key_mask || task->key_mask[first + i])) seen |= UINT64_C(1) << i;
  }
  return seen;
}

/* Holds the rows of a tile as f32. */
typedef struct attention_rows {
  float rows[ATTENTION_LONG_TILE][BNY_FLASHMLA_DIM];
} __attribute__((aligned(64))) attention_rows;

/* Returns true if each key has a scale. */
static inline bool attention_is_scaled(const bny_attention_task *task) { return task->k_scales || task->v_scales; }

#ifndef ATTENTION_MATRIX_ONLY
/* Converts a row of FlashMLA to f32. */
static inline void attention_flashmla_row(const char *row, float *to) {
  for (int32_t j = 0; j < BNY_FLASHMLA_CODES; j += BNY_FLASHMLA_GROUP) {
    float scale;
    memcpy(&scale, row + BNY_FLASHMLA_CODES + j / BNY_FLASHMLA_GROUP * (int32_t)sizeof scale, sizeof scale);
    attention_unpack(row + j, BNY_FLASHMLA_GROUP, BANYAN_E4M3, scale, to + j);
  }
  attention_unpack(row + BNY_FLASHMLA_ROPE_AT, BNY_FLASHMLA_ROPE, BANYAN_BF16, 1, to + BNY_FLASHMLA_CODES);
}

/* Converts a row of keys or values to f32, times its scale, with zeros up to a padded length. */
static inline void attention_scaled_row(const char *row, int32_t columns, banyan_dtype dtype, float scale, float *to) {
  int32_t whole = columns / BNY_ATTENTION_LANES_MAX * BNY_ATTENTION_LANES_MAX, rest = columns - whole;
  char last[4 * BNY_ATTENTION_LANES_MAX] = {0};
  attention_unpack(row, whole, dtype, scale, to);
  if (rest == 0) return;
  memcpy(last, row + (size_t)whole * attention_element_bytes(dtype), (size_t)rest * attention_element_bytes(dtype));
  attention_unpack(last, BNY_ATTENTION_LANES_MAX, dtype, scale, to + whole);
}

/* Converts the FlashMLA rows of keys that are seen to f32, and returns a task over them. */
static inline bny_attention_task attention_flashmla(const bny_attention_task *task, int32_t first, int32_t count,
                                                    uint64_t seen, attention_rows *to) {
  for (int32_t i = 0; i < count; i++) {
    if (seen >> i & 1)
      attention_flashmla_row(attention_row(task->k, task->k_token_stride, first + i, BANYAN_E4M3), to->rows[i]);
  }
  bny_attention_task one = *task;
  one.k = one.v = to->rows;
  one.k_token_stride = one.v_token_stride = BNY_FLASHMLA_DIM;
  one.keys = count;
  return one;
}

/* Converts rows [first, first + count) of keys or values to f32, each times its scale, if they are seen. */
static inline void attention_unpack_scaled(const void *base, int64_t stride, int32_t columns, const float *scales,
                                           const bny_attention_task *task, int32_t first, int32_t count, uint64_t seen,
                                           attention_rows *to) {
  for (int32_t i = 0; i < count; i++) {
    if (seen >> i & 1)
      attention_scaled_row(attention_row(base, stride, first + i, task->kv_dtype), columns, task->kv_dtype,
                           scales ? scales[(first + i) * task->scale_token_stride] : 1, to->rows[i]);
  }
}

/* Does the same for keys and values, and returns a task over them. */
static inline bny_attention_task attention_scaled(const bny_attention_task *task, int32_t first, int32_t count,
                                                  uint64_t seen, attention_rows *k, attention_rows *v) {
  bny_attention_task one = *task;
  attention_unpack_scaled(task->k, task->k_token_stride, task->head_dim, task->k_scales, task, first, count, seen, k);
  attention_unpack_scaled(task->v, task->v_token_stride, task->value_dim, task->v_scales, task, first, count, seen, v);
  one.k = k->rows;
  one.v = v->rows;
  one.k_token_stride = one.v_token_stride = BNY_FLASHMLA_DIM;
  one.keys = count;
  return one;
}
#endif

/* Holds the rows of a tile from several pages, one after another, and their scales. */
typedef struct attention_gathered {
  char k[ATTENTION_TILE_BYTES], v[ATTENTION_TILE_BYTES];
  float k_scales[ATTENTION_TILE], v_scales[ATTENTION_TILE];
} __attribute__((aligned(64))) attention_gathered;

/* Copies a row of each key from `first` on that is seen, and prefetches the same number of rows after them. */
static inline void attention_gather(const bny_attention_task *task, const void *base, int64_t page_stride,
                                    int64_t token_stride, int32_t first, int32_t count, uint64_t seen, size_t row_bytes,
                                    char *to) {
  for (int32_t i = 0; i < 2 * count && first + i < task->keys; i++) {
    if (i < count && !(seen >> i & 1)) continue;
    int32_t index = (first + i) / task->page_keys, row = (first + i) % task->page_keys;
    const char *from = attention_row(base, page_stride, task->pages[index], task->kv_dtype);
    from = attention_row(from, token_stride, row, task->kv_dtype);
    if (i < count)
      memcpy(to + (size_t)i * row_bytes, from, row_bytes);
    else
      for (size_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(from + at, 0, 3);
  }
}

static inline const float *attention_gather_scales(const bny_attention_task *task, const float *base, int32_t first,
                                                   int32_t count, uint64_t seen, float *to) {
  for (int32_t i = 0; base && i < count; i++) {
    if (!(seen >> i & 1)) continue;
    int32_t index = (first + i) / task->page_keys, row = (first + i) % task->page_keys;
    to[i] = base[task->pages[index] * task->scale_page_stride + row * task->scale_token_stride];
  }
  return base ? to : NULL;
}

/* Gathers keys [first, first + count) from several pages, if they are seen, and returns a task over them. Pages of any
 * size thus give the same tiles and the same bits. */
static __attribute__((noinline)) bny_attention_task attention_gather_tile(const bny_attention_task *task, int32_t first,
                                                                          int32_t count, uint64_t seen,
                                                                          attention_gathered *to) {
  bool is_plain = task->kv_rows == BANYAN_KV_ROWS_PLAIN;
  int32_t element = (int32_t)attention_element_bytes(task->kv_dtype);
  int32_t k_row = is_plain ? task->head_dim : BNY_FLASHMLA_BYTES;
  bool is_latent = !is_plain || (task->v == task->k && task->v_token_stride == task->k_token_stride &&
                                 task->v_page_stride == task->k_page_stride && task->value_dim <= task->head_dim);
  bny_attention_task one = *task;
  attention_gather(task, task->k, task->k_page_stride, task->k_token_stride, first, count, seen,
                   (size_t)(k_row * element), to->k);
  one.k = one.v = to->k;
  one.k_token_stride = one.v_token_stride = k_row;
  if (!is_latent) {
    attention_gather(task, task->v, task->v_page_stride, task->v_token_stride, first, count, seen,
                     (size_t)(task->value_dim * element), to->v);
    one.v = to->v;
    one.v_token_stride = task->value_dim;
  }
  one.k_scales = attention_gather_scales(task, task->k_scales, first, count, seen, to->k_scales);
  one.v_scales = attention_gather_scales(task, task->v_scales, first, count, seen, to->v_scales);
  one.scale_token_stride = 1;
  one.pages = NULL;
  one.keys = count;
  return one;
}

/* A tile: keys [from, from + count) of `keys`, which is the task or a page of it; or, if `gathered`, keys of the task
 * that lie in several pages. */
typedef struct attention_span {
  bny_attention_task page;
  const bny_attention_task *keys;
  int32_t from, count;
  bool gathered, all_seen; /* all_seen: all rows see all of its keys */
} attention_span;

/* Finds the tile that begins at key `first`, after `done` keys. A tile lies in one block. */
INLINE void attention_locate(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t done,
                             int32_t left, attention_span *span) {
  int32_t most = attention_tile(task, dtype), block = BNY_ATTENTION_BLOCK - done % BNY_ATTENTION_BLOCK;
  if (attention_is_scaled(task) && most > ATTENTION_LONG_TILE) most = ATTENTION_LONG_TILE;
  while (most * task->value_dim * (int32_t)attention_element_bytes(task->kv_dtype) > ATTENTION_TILE_BYTES) most /= 2;
  if (most > block) most = block;
  span->keys = task;
  span->from = first;
  span->count = left < most ? left : most;
  span->gathered = task->pages && left > 0 && first % task->page_keys + span->count > task->page_keys;
  span->all_seen = left > 0 && attention_all_seen(task, first, span->count);
  if (!task->pages || left <= 0 || span->gathered) return;
  span->page = attention_page(task, first);
  span->keys = &span->page;
  span->from = first % task->page_keys;
}

/* Sets the rows that hooks may read ahead. Values that are also keys are cached already. */
INLINE void attention_announce(const attention_span *span, attention_work *work) {
  const bny_attention_task *keys = span->keys;
  bool is_plain = keys->kv_rows == BANYAN_KV_ROWS_PLAIN;
  banyan_dtype type = keys->kv_dtype;
  int32_t element = (int32_t)attention_element_bytes(type);
  work->next_k = work->next_v = (attention_next){0};
  if (span->count <= 0 || span->gathered || !span->all_seen) return;
  work->next_k = (attention_next){
      .row = attention_row(keys->k, keys->k_token_stride, span->from, type),
      .step = keys->k_token_stride * element,
      .row_bytes = is_plain ? keys->head_dim * element : BNY_FLASHMLA_BYTES,
      .rows = span->count,
  };
  if (!is_plain || (keys->v == keys->k && keys->value_dim <= keys->head_dim)) return;
  work->next_v = (attention_next){
      .row = attention_row(keys->v, keys->v_token_stride, span->from, type),
      .step = keys->v_token_stride * element,
      .row_bytes = keys->value_dim * element,
      .rows = span->count,
  };
}

/* Adds keys [key, last). If `unpacked` is set, rows of FlashMLA are converted to f32 there, and `dtype` is f32. If
 * `values` is set too, each key has a scale, and both keys and values are converted. */
INLINE void attention_over(const bny_attention_task *task, banyan_dtype dtype, int32_t key, int32_t last,
                           attention_rows *unpacked, attention_rows *values, attention_work *work,
                           bny_attention_sums *sums) {
  attention_span spans[2], *span = spans, *next = spans + 1;
  attention_gathered gathered;
  attention_locate(task, dtype, key, 0, last - key, span);
  for (int32_t first = key; first < last;) {
    int32_t from = span->from, count = span->count, end = first + count;
    bny_attention_task one;
    const bny_attention_task *keys = span->keys;
    bool by_row = !span->all_seen;
    uint64_t seen = by_row ? attention_seen(task, first, count) : UINT64_MAX;
    if (span->gathered) {
      one = attention_gather_tile(task, first, count, seen, &gathered);
      keys = &one;
      from = 0;
    }
    attention_locate(task, dtype, end, end - key, last - end, next);
    attention_announce(next, work);
#ifdef ATTENTION_MATRIX_ONLY
    (void)unpacked, (void)values;
#else
    bny_attention_task tile;
    if (unpacked) {
      tile = values ? attention_scaled(keys, from, count, seen, unpacked, values)
                    : attention_flashmla(keys, from, count, seen, unpacked);
      keys = &tile;
      from = 0;
    }
#endif
    if (by_row)
      attention_add_by_row(task, keys, dtype, first, from, count, work);
    else
      attention_add_form(keys, dtype, from, count, work);
    first = end;
    if (first == last || (first - key) % BNY_ATTENTION_BLOCK == 0) attention_fold(task, dtype, work, sums);
    attention_span *free = span;
    span = next;
    next = free;
  }
}

/* Each form has its own copy of the loop. */
#define X(name, form)                                                                                     \
  static __attribute__((noinline)) void name(const bny_attention_task *task, int32_t first, int32_t last, \
                                             attention_work *work, bny_attention_sums *sums) {            \
    attention_over(task, (banyan_dtype)(form), first, last, NULL, NULL, work, sums);                      \
  }
ATTENTION_FORMS
#undef X

#ifndef ATTENTION_MATRIX_ONLY
static __attribute__((noinline)) void attention_over_flashmla(const bny_attention_task *task, int32_t first,
                                                              int32_t last, attention_work *work,
                                                              bny_attention_sums *sums) {
  attention_rows unpacked;
  attention_over(task, BANYAN_F32, first, last, &unpacked, NULL, work, sums);
}

static __attribute__((noinline)) void attention_over_scaled(const bny_attention_task *task, int32_t first, int32_t last,
                                                            attention_work *work, bny_attention_sums *sums) {
  attention_rows unpacked, values;
  attention_over(task, BANYAN_F32, first, last, &unpacked, &values, work, sums);
}
#endif

static void attention_over_rows(const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t last,
                                attention_work *work, bny_attention_sums *sums) {
  switch ((int)form) {
#define X(name, form) \
  case form: name(task, first, last, work, sums); break;
    ATTENTION_FORMS
#undef X
  }
}

/* Returns true if elements may be as large as f32 numbers. Sums of smaller types do not overflow. */
static inline bool attention_is_wide(const bny_attention_task *task, banyan_dtype dtype) {
  return dtype == BANYAN_F32 || dtype == BANYAN_BF16 || task->kv_rows != BANYAN_KV_ROWS_PLAIN ||
         attention_is_scaled(task);
}

/* Splits the factor of logits. Queries take a power of two that makes it at least 1, and any part that f32 cannot
 * hold. */
static inline attention_factors attention_factors_of(const bny_attention_task *task, banyan_dtype form) {
  const uint64_t exponent = UINT64_C(0x7ff) << 52, one = UINT64_C(0x3ff) << 52, most = one + (UINT64_C(126) << 52);
  const double exact = attention_factor(form), factor = task->scale_log2 * task->k_scale / exact;
  attention_factors factors = {.v = task->v_scale / exact};
  uint64_t bits;
  memcpy(&bits, &factor, sizeof bits);
  bits &= exponent;
  bool can_overflow = attention_is_wide(task, task->q_dtype) || attention_is_wide(task, task->kv_dtype);
  if (bits > most)
    bits -= most - one;
  else if (bits == 0 || bits > one || (!can_overflow && fabs(factor) >= 0x1p-100))
    bits = one;
  memcpy(&factors.q, &bits, sizeof bits);
  factors.k = (float)(factor / factors.q);
  return factors;
}

/* Computes the sums of keys [first, last). `top` is -INFINITY, or an initial max that no logit exceeds. */
static __attribute__((noinline)) void attention_pass(const bny_attention_task *task, int32_t first, int32_t last,
                                                     float top, bny_attention_sums *sums) {
  attention_work work;
  work.q_stride = bny_attention_padded(task->head_dim);
  work.n_stride = bny_attention_padded(task->value_dim);
  memset(work.n, 0, (size_t)(task->heads * work.n_stride) * sizeof work.n[0]);
  memset(sums->n, 0, (size_t)(task->heads * work.n_stride) * sizeof sums->n[0]);
  memset(work.tile_d, 0, sizeof work.tile_d);
  memset(work.d, 0, sizeof work.d);
  for (int32_t i = 0; i < ATTENTION_LANES + ATTENTION_SPARE; i++) work.minus_m[i] = top > -INFINITY ? -top : FLT_MAX;
  for (int32_t h = 0; h < task->heads; h++) sums->m[h] = -INFINITY;
  work.row = 0;
  work.rows = task->heads;
  work.next_k = work.next_v = (attention_next){0};
  work.far = attention_prefetches_far();
  bool is_plain = task->kv_rows == BANYAN_KV_ROWS_PLAIN;
  banyan_dtype form = is_plain && !attention_is_scaled(task) ? attention_form(task) : BANYAN_F32;
  attention_factors factors = attention_factors_of(task, form);
  work.k_factor = factors.k;
  work.v_factor = factors.v;
  for (int32_t h = 0; h < task->heads; h++) {
    attention_query(task, h, factors.q, work.q_stride, work.q + h * work.q_stride);
    attention_pack(task, form, &work, h);
  }
#ifndef ATTENTION_MATRIX_ONLY
  if (attention_is_scaled(task))
    attention_over_scaled(task, first, last, &work, sums);
  else if (!is_plain)
    attention_over_flashmla(task, first, last, &work, sums);
  else
#endif
    attention_over_rows(task, form, first, last, &work, sums);
  for (int32_t h = 0; h < task->heads; h++) {
    const double *d = work.d + ATTENTION_QUAD * h;
    sums->d[h] = (d[0] + d[1]) + (d[2] + d[3]);
  }
}

#ifndef ATTENTION_MATRIX_ONLY
/* Returns true if the row's values left the range of f32 on the way, or are not finite. */
static inline bool attention_overflowed(const bny_attention_task *task, const bny_attention_sums *sums, int32_t h) {
  const double *n = sums->n + h * bny_attention_padded(task->value_dim);
  attention_doubles any = {0}, more = {0};
  for (int32_t j = 0; j < task->value_dim; j += 8) { /* x - x is NaN for what is not finite */
    const attention_doubles *x = (const attention_doubles *)(n + j);
    any += x[0] - x[0];
    more += x[1] - x[1];
  }
  any += more;
  double sum = (any[0] + any[1]) + (any[2] + any[3]);
  return isnan(sum) && isfinite(sums->d[h]) && isfinite(sums->m[h]);
}

/* Computes such a row again with a max so high that the weights of a block add up to less than 1/2. The row stays as it
 * is where numbers near its max are so far apart that all weights would vanish. */
static __attribute__((noinline)) void attention_again(const bny_attention_task *task, int32_t first, int32_t last,
                                                      int32_t h, bny_attention_sums *sums) {
  enum { HIGHER = 10 };
  _Alignas(
      bny_attention_sums) char room[offsetof(bny_attention_sums, n) + BNY_ATTENTION_VALUE_DIM_MAX * sizeof(double)];
  bny_attention_sums *again =
      (bny_attention_sums *)(void *)room; /* cut off behind one row, which compilers need not know */
  __asm__("" : "+r"(again));
  bny_attention_task one = *task;
  float top = (float)(sums->m[h] + HIGHER);
  if ((double)top < sums->m[h] + HIGHER) top = nextafterf(top, INFINITY);
  one.heads = 1;
  one.q[0] = task->q[h];
  one.q_rope[0] = task->q_rope[h];
  if (task->sights) one.sights = task->sights + h;
  attention_pass(&one, first, last, top, again);
  if (again->d[0] == 0) return;
  sums->m[h] = again->m[0];
  sums->d[h] = again->d[0];
  memcpy(sums->n + h * bny_attention_padded(task->value_dim), again->n, (size_t)task->value_dim * sizeof *sums->n);
}

static void attention_run(const bny_attention_task *task, int32_t first, int32_t last, bny_attention_sums *sums) {
  attention_pass(task, first, last, -INFINITY, sums);
  for (int32_t h = 0; attention_is_wide(task, task->kv_dtype) && h < task->heads; h++)
    if (attention_overflowed(task, sums, h)) attention_again(task, first, last, h, sums);
}
#endif
