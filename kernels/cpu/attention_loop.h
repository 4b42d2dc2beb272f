/* SPDX-License-Identifier: Apache-2.0
 * All CPU attention kernels share this loop. It declares its hooks below, and the including file defines them for its
 * instruction set. The loop comes first because hooks use its types and helpers:
 *
 *   attention_convert    converts `count` elements to f32, times *scale, or without a scale times attention_factor()
 *   attention_convert_rows does so for rows of E4M3 or E5M2, `stride` floats apart, and prefetches those of `next`
 *   attention_weigh      work->p = 2^(t - m) of `count` keys from `first` on; adds them to work->tile_d
 *   attention_accumulate work->n += p v over the tile
 *   attention_factor     returns the factor by which the hooks above read the elements of a form; its inverse goes into
 *                        the scales
 *   attention_form       returns the form in which the hooks read the task's cache; if it is BANYAN_F32 for another
 *                        type, tiles are converted before
 *   attention_columns    returns a row of sums in the order of its columns: the row itself, or a copy at `to`
 *   attention_pack       brings row h of the queries into a form
 *   ATTENTION_FORMS      has an X for each form; ATTENTION_TYPES has those that are types
 *   ATTENTION_MATRIX_ONLY if defined: all forms are for matrices, no tile is converted, and there is one more hook:
 *   attention_add_one    adds a key to the current row
 *   ATTENTION_MORE_WORK  if defined: the type of further work memory, `more`
 *   ATTENTION_OWN_TILE   if defined: attention_tile() is a hook too. It returns the keys of a tile, at most
 *                        ATTENTION_TILE, whose rows fit ATTENTION_TILE_BYTES
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
  ATTENTION_TILE_FLOATS = ATTENTION_LONG_TILE * BNY_ATTENTION_HEAD_DIM_MAX, /* most of the keys of a tile */
  ATTENTION_TILE_BYTES = 4 * ATTENTION_TILE_FLOATS,
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

/* Rows that are read, or that are read next and that all rows of the task see. */
typedef struct attention_next {
  const char *row;
  int64_t step; /* bytes from row to row */
  int32_t row_bytes, rows;
  bool far; /* passed to attention_prefetch() */
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

INLINE bool attention_is_f8(banyan_dtype dtype) { return dtype == BANYAN_E4M3 || dtype == BANYAN_E5M2; }

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

INLINE void attention_prefetch_row(const attention_next *next, int32_t i) {
  const char *row = next->row + i * next->step;
  if (i >= next->rows) return;
  for (int32_t at = 0; at < next->row_bytes; at += 64) attention_prefetch(row + at, next->far);
}

static inline bool attention_prefetches_far(void) {
#ifdef __x86_64__
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

static void attention_convert(const char *row, int32_t count, banyan_dtype dtype, const float *scale, float *values);
#ifndef ATTENTION_MATRIX_ONLY
static void attention_convert_rows(const attention_next *rows, int32_t columns, banyan_dtype dtype,
                                   const attention_next *next, int32_t stride, float *to);
#endif
static void attention_weigh(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                            attention_work *work);
static void attention_accumulate(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                                 attention_work *work);
static void attention_add_one(const bny_attention_task *keys, banyan_dtype dtype, int32_t key, attention_work *work);

static banyan_dtype attention_form(const bny_attention_task *task);
static const float *attention_columns(banyan_dtype form, const float *row, int32_t count, float *to);
static void attention_pack(const bny_attention_task *task, banyan_dtype form, attention_work *work, int32_t h);
static double attention_factor(banyan_dtype form);

/* These vectors have any alignment. They serve loops that compilers do not vectorise at -O2. */
typedef float attention_floats __attribute__((vector_size(32), aligned(4), may_alias));
typedef float attention_quad __attribute__((vector_size(16), aligned(4), may_alias));
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
    for (int32_t j = 0; j < work->n_stride; j += 4) {
      attention_doubles *to = (attention_doubles *)(total + j);
      *to = *to * factor +
            __builtin_convertvector(*(const attention_quad *)(columns + j), attention_doubles) * work->v_factor;
    }
    memset(n, 0, (size_t)work->n_stride * sizeof *n);
    sums->m[h] = m;
  }
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
  attention_convert(task->q[h], plain, task->q_dtype, NULL, q);
  if (task->rope_dim > 0) attention_convert(task->q_rope[h], task->rope_dim, task->q_dtype, NULL, q + plain);
  for (int32_t i = task->head_dim; i < count; i++) q[i] = 0;
  attention_scale_query(factor, count, q);
}

/* Adds `count` keys of a tile, which all current rows see. */
INLINE void attention_add(const bny_attention_task *keys, banyan_dtype dtype, int32_t from, int32_t count,
                          attention_work *work) {
  int32_t lane = ATTENTION_QUAD * work->row, end = lane + ATTENTION_QUAD * work->rows;
  attention_weigh(keys, dtype, from, count, work);
  for (int32_t i = lane; i < end; i += ATTENTION_QUAD) {
    *(attention_doubles *)(work->d + i) +=
        __builtin_convertvector(*(const attention_quad *)(work->tile_d + i), attention_doubles);
    *(attention_quad *)(work->tile_d + i) = (attention_quad){0};
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

#include "attention_unpack.h"
#include "attention_walk.h"

/* Returns true if elements may be as large as f32 numbers. Sums of smaller types do not overflow. */
static inline bool attention_is_wide(const bny_attention_task *task, banyan_dtype dtype) {
  return dtype == BANYAN_F32 || dtype == BANYAN_BF16 || !attention_is_plain(task);
}

/* Splits the factor of logits. Queries take a power of two that makes it at least 1, and any part that f32 cannot
 * hold. */
static inline attention_factors attention_factors_of(const bny_attention_task *task, banyan_dtype form) {
  const uint64_t exponent = UINT64_C(0x7ff) << 52, one = UINT64_C(0x3ff) << 52, most = one + (UINT64_C(126) << 52);
  const bool is_read = ((int)form & ATTENTION_TYPE) == (int)task->kv_dtype; /* without conversion */
  const double exact = attention_is_plain(task) ? attention_factor(is_read ? form : task->kv_dtype) : 1;
  const double factor = task->scale_log2 * task->k_scale / exact;
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
  banyan_dtype form = attention_is_plain(task) ? attention_form(task) : BANYAN_F32;
  attention_factors factors = attention_factors_of(task, form);
  work.k_factor = factors.k;
  work.v_factor = factors.v;
  for (int32_t h = 0; h < task->heads; h++) {
    attention_query(task, h, factors.q, work.q_stride, work.q + h * work.q_stride);
    attention_pack(task, form, &work, h);
  }
  attention_over(task, form, first, last, &work, sums);
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
