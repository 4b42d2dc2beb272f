/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop that all CPU attention kernels share. The including file defines, for its instruction set:
 *
 *   attention_queries    work->q: the task's queries as f32 rows of work->q_stride, padded with zeros
 *   attention_scores     work->t: t of `count` keys from `first` on, in rows of TILE; beyond count, to the next
 *                        multiple of LANES_MAX, -inf
 *   attention_top        the largest of m and of a head's t; NaN is skipped
 *   attention_weights    work->p = 2^(t - m) of one head for as many entries; returns their sum
 *   attention_accumulate work->n += p v over the tile
 *
 * Keys are processed in tiles that stay in the first-level cache together with the queries. Memory is thus read once
 * for all heads of the task. Tiles add up in blocks, in f32, and blocks add up in double. This is a split of the keys
 * whose parts have the same m, so merging them is a plain sum.
 */
#ifndef BNY_CPU_ATTENTION_LOOP_H
#define BNY_CPU_ATTENTION_LOOP_H

#include <math.h>
#include <string.h>

#include "attention.h"

enum { ATTENTION_TILE = 32 };

typedef struct attention_work {
  float q[BNY_ATTENTION_QUERY_FLOATS];
  float n[BNY_ATTENTION_VALUE_FLOATS]; /* sums of this block, relative to m */
  double t[BNY_ATTENTION_HEADS_MAX * ATTENTION_TILE];
  float p[BNY_ATTENTION_HEADS_MAX * ATTENTION_TILE];
  double m[BNY_ATTENTION_HEADS_MAX];
  double d[BNY_ATTENTION_HEADS_MAX]; /* relative to m */
  int32_t q_stride, n_stride;        /* floats between heads */
} __attribute__((aligned(64))) attention_work;

static inline __attribute__((always_inline)) size_t attention_element_bytes(banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? 4 : 2;
}

static inline __attribute__((always_inline)) const char *attention_row(const void *base, int64_t stride, int64_t row,
                                                                       banyan_dtype dtype) {
  return (const char *)base + row * stride * (int64_t)attention_element_bytes(dtype);
}

static void attention_queries(const bny_attention_task *task, attention_work *work);
static void attention_scores(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                             attention_work *work);
static double attention_top(const double *t, double m, int32_t count);
static float attention_weights(const double *t, double m, int32_t count, float *p);
static void attention_accumulate(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                                 attention_work *work);

/* Raises the whole-number max of head h to cover the tile's logits. */
static inline void attention_raise(attention_work *work, int32_t h, int32_t count) {
  double m = work->m[h];
  double top = attention_top(work->t + h * ATTENTION_TILE, m, count);
  if (!(top > m)) return;
  top = ceil(top);
  double factor = bny_attention_rescale(m, top);
  float *n = work->n + h * work->n_stride;
  for (int32_t j = 0; j < work->n_stride; j++) n[j] *= (float)factor;
  work->d[h] *= factor;
  work->m[h] = top;
}

/* sums->n += n, then n = 0. */
static inline void attention_fold(const bny_attention_task *task, attention_work *work, bny_attention_sums *sums) {
  for (int32_t h = 0; h < task->heads; h++) {
    double factor = bny_attention_rescale(sums->m[h], work->m[h]);
    double *total = sums->n + h * work->n_stride;
    float *n = work->n + h * work->n_stride;
    for (int32_t j = 0; j < work->n_stride; j++) {
      total[j] = total[j] * factor + (double)n[j];
      n[j] = 0;
    }
    sums->m[h] = work->m[h];
  }
}

/* Returns the page that holds key `key`, as a task of its own. */
static inline bny_attention_task attention_page(const bny_attention_task *task, int32_t key) {
  int32_t index = key / task->page_keys, left = task->keys - index * task->page_keys, page = task->pages[index];
  bny_attention_task one = *task;
  one.k = attention_row(task->k, task->k_page_stride, page, task->kv_dtype);
  one.v = attention_row(task->v, task->v_page_stride, page, task->kv_dtype);
  one.keys = left < task->page_keys ? left : task->page_keys;
  return one;
}

static inline __attribute__((always_inline)) void attention_over(const bny_attention_task *task, banyan_dtype dtype,
                                                                 int32_t key, int32_t last, attention_work *work,
                                                                 bny_attention_sums *sums) {
  for (int32_t block = key; block < last;) {
    int32_t block_end = last - block > BNY_ATTENTION_BLOCK ? block + BNY_ATTENTION_BLOCK : last;
    for (int32_t first = block; first < block_end;) {
      int32_t count = block_end - first > ATTENTION_TILE ? ATTENTION_TILE : block_end - first, from = first;
      bny_attention_task page;
      const bny_attention_task *keys = task;
      if (task->pages) { /* a tile lies in one page */
        page = attention_page(task, first);
        keys = &page;
        from = first % task->page_keys;
        count = page.keys - from < count ? page.keys - from : count;
      }
      attention_scores(keys, dtype, from, count, work);
      for (int32_t h = 0; h < task->heads; h++) {
        attention_raise(work, h, count);
        /* All logits so far are -inf or NaN: m = 0 keeps -inf from becoming NaN. */
        double m = work->m[h] == -INFINITY ? 0 : work->m[h];
        work->d[h] += (double)attention_weights(work->t + h * ATTENTION_TILE, m, count, work->p + h * ATTENTION_TILE);
      }
      attention_accumulate(keys, dtype, from, count, work);
      first += count;
    }
    attention_fold(task, work, sums);
    block = block_end;
  }
}

/* One copy of the loop for each type of the cache. */
#define ATTENTION_OVER(name, dtype)                                                                       \
  static __attribute__((noinline)) void name(const bny_attention_task *task, int32_t first, int32_t last, \
                                             attention_work *work, bny_attention_sums *sums) {            \
    attention_over(task, dtype, first, last, work, sums);                                                 \
  }
ATTENTION_OVER(attention_over_f32, BANYAN_F32)
ATTENTION_OVER(attention_over_f16, BANYAN_F16)
ATTENTION_OVER(attention_over_bf16, BANYAN_BF16)

static void attention_run(const bny_attention_task *task, int32_t first, int32_t last, bny_attention_sums *sums) {
  attention_work work;
  work.q_stride = bny_attention_padded(task->head_dim);
  work.n_stride = bny_attention_padded(task->value_dim);
  memset(work.n, 0, (size_t)(task->heads * work.n_stride) * sizeof work.n[0]);
  memset(sums->n, 0, (size_t)(task->heads * work.n_stride) * sizeof sums->n[0]);
  for (int32_t h = 0; h < task->heads; h++) {
    work.m[h] = sums->m[h] = -INFINITY;
    work.d[h] = 0;
  }
  attention_queries(task, &work);
  if (task->kv_dtype == BANYAN_F32)
    attention_over_f32(task, first, last, &work, sums);
  else if (task->kv_dtype == BANYAN_F16)
    attention_over_f16(task, first, last, &work, sums);
  else
    attention_over_bf16(task, first, last, &work, sums);
  memcpy(sums->d, work.d, (size_t)task->heads * sizeof work.d[0]);
}

#endif
