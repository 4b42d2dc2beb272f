/* SPDX-License-Identifier: Apache-2.0
 * Bounds the masses of pages. A bound is a product in f32, and a slack that is added once: it covers the roundings of
 * the product here, in any rounding mode, and those of attention's logits. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "prune/block.h"
#include "merge_math.h"

enum { ROWS = BNY_ATTENTION_HEADS_MAX };
static const double log2_e = 1.4426950408889634074;
static const double longest_value = 0x1p100; /* products with it neither overflow nor outlast those that count as 0 */
static const float few = 0x1p-20f;           /* covers numbers that are too small for floats */

typedef struct queries {
  bny_code_query codes;
  float per_reach[ROWS];              /* slack of a product by the reach of its page */
  float error, error_per_reach[ROWS]; /* attention's logits are off by at most `error` plus `error_per_reach` per
                                       * reach */
} queries;

static void read_queries(const bny_attention_task *task, queries *to) {
  int32_t dim = task->head_dim, plain = dim - task->rope_dim;
  double factor = task->scale_log2 * task->k_scale;
  float q[BNY_ATTENTION_HEAD_DIM_MAX];
  to->codes.rows = task->heads, to->codes.dim = dim, to->codes.cap = task->soft_cap;
  to->error = (float)(0x1p-24 * (640 * log2_e + 10 * (double)task->soft_cap)) + few;
  for (int32_t h = 0; h < (task->heads + 3) / 4; h++) memset(to->codes.q[h], 0, (size_t)dim * sizeof *to->codes.q[h]);
  for (int32_t h = 0; h < task->heads; h++) {
    double sum = 0;
    bny_bounds_read(task->q[h], task->q_dtype, plain, 1, q);
    if (task->rope_dim > 0) bny_bounds_read(task->q_rope[h], task->q_dtype, task->rope_dim, 1, q + plain);
    for (int32_t i = 0; i < dim; i++) {
      sum += (double)q[i] * (double)q[i];
      to->codes.q[h / 4][i][h % 4] = (float)(factor * (double)q[i]);
    }
    float length = to->codes.length[h] = (float)(fabs(factor) * sqrt(sum) * (1 + 0x1p-20));
    to->per_reach[h] = length * (float)(dim + 24) * 0x1p-23f;
    to->error_per_reach[h] = length * (float)(dim + 9) * 0x1p-24f;
  }
}

/* Bits of the keys [first, first + count) that a row sees, at most 64 of them; masked: bits of those that none sees. */
static uint64_t seen_by(const bny_attention_task *task, int32_t h, int32_t first, int32_t count, uint64_t masked) {
  int64_t low = 0, high = count;
  if (task->sights) {
    low = (int64_t)task->sights[h].first - first, high = (int64_t)task->sights[h].end - first;
    low = low < 0 ? 0 : low, high = high > count ? count : high;
  }
  if (high <= low) return 0;
  return (UINT64_MAX >> (64 - (high - low)) << low) & ~masked;
}

static uint64_t masked_of(const bny_attention_task *task, int32_t first, int32_t count) {
  uint64_t masked = 0;
  for (int32_t i = 0; task->key_mask && i < count; i++) masked |= (uint64_t)!task->key_mask[first + i] << i;
  return masked;
}

static float power_of(float exponent) {
  if (!(exponent > -126)) return FLT_MIN;
  return bny_float_of_bits((uint32_t)((int32_t)exponent + 127) << 23);
}

/* Adds a mass to one that may be relative to another top. */
static void add(float top, float mass, float *to_top, float *to_mass) {
  if (mass == 0) return;
  if (*to_mass == 0 || mass == INFINITY) {
    *to_top = top, *to_mass = mass;
  } else if (top >= *to_top) {
    *to_mass = (mass + fmaxf(*to_mass * power_of(*to_top - top), FLT_MIN)) * (1 + FLT_EPSILON);
    *to_top = top;
  } else {
    *to_mass = (*to_mass + fmaxf(mass * power_of(top - *to_top), FLT_MIN)) * (1 + FLT_EPSILON);
  }
}

/* Keys [first, first + count) of the sequence, which are those of the page from `from` on, to masses. next: the bounds
 * of the page after it. */
static void weigh_codes(const bny_prune_block *b, bny_code_keys *keys, const queries *queries, const float *bounds,
                        const float *next, int32_t from, int32_t first, int32_t count, float *refs, float *tops,
                        float *masses) {
  const bny_attention_task *task = b->task;
  const float *body = bounds + BNY_BOUNDS_HEAD;
  uint64_t masked = masked_of(task, first, count), any = 0;
  float more[ROWS];
  keys->scales = body + from, keys->losts = body + b->page_keys + from;
  keys->row_bytes = bny_bounds_codes(task->head_dim);
  keys->codes = (const int8_t *)(body + 2 * (int64_t)b->page_keys) + (int64_t)from * keys->row_bytes;
  keys->next = (const char *)next + (keys->codes - (const int8_t *)bounds);
  keys->count = count, keys->width = b->page_keys - from;
  for (int32_t h = 0; h < task->heads; h++) any |= keys->seen[h] = seen_by(task, h, first, count, masked);
  if (any == 0) return;
  b->kernels->code_masses(&queries->codes, keys, refs, more);
  for (int32_t h = 0; h < task->heads; h++) add(refs[h], more[h], &tops[h], &masses[h]);
}

/* Keeps the largest errors of all threads. Bits of floats that are not negative compare as the floats do. */
static void note_errors(bny_prune_block *b, const float *errors) {
  for (int32_t h = 0; h < b->task->heads; h++) {
    uint32_t bits = bny_bits_of_float(errors[h]), known = atomic_load_explicit(&b->errors[h], memory_order_relaxed);
    while (known < bits && !atomic_compare_exchange_weak_explicit(&b->errors[h], &known, bits, memory_order_relaxed,
                                                                  memory_order_relaxed))
      continue;
  }
}

static const float *bounds_of(const bny_prune_block *b, int32_t page) {
  return bny_bounds_at(b->bounds, b->task->pages, b->sequence, page, b->kv_head);
}

static void weigh_page(const bny_prune_block *b, int32_t page, const queries *queries, float *refs, float *errors) {
  const bny_attention_task *task = b->task;
  const float *bounds = bounds_of(b, page), *next = bounds_of(b, page + 1 < b->pages ? page + 1 : page);
  int32_t first = page * b->page_keys, heads = task->heads;
  int32_t count = task->keys - first < b->page_keys ? task->keys - first : b->page_keys;
  float *tops = b->tops + (int64_t)page * heads, *masses = b->masses + (int64_t)page * heads;
  float reach = bounds[BNY_BOUNDS_REACH];
  double length = (double)bounds[BNY_BOUNDS_VALUE] * task->v_scale;
  bool forced = !(length < longest_value) || (first < b->drafts_end && first + count > b->drafts);
  bny_code_keys keys;
  for (int32_t i = 0; i < 4; i++) __builtin_prefetch(next + 16 * i, 0, 3);
  for (int32_t h = 0; h < heads; h++) {
    keys.error[h] = queries->error + queries->error_per_reach[h] * reach;
    keys.slack[h] = queries->per_reach[h] * reach + few + (task->soft_cap > 0 ? 0 : keys.error[h]);
    tops[h] = -INFINITY, masses[h] = 0;
  }
  for (int32_t from = 0; from < count; from += BNY_CODE_KEYS)
    weigh_codes(b, &keys, queries, bounds, next, from, first + from,
                count - from < BNY_CODE_KEYS ? count - from : BNY_CODE_KEYS, refs, tops, masses);
  for (int32_t h = 0; h < heads; h++) {
    if (masses[h] > 0 && masses[h] < INFINITY && keys.error[h] > errors[h]) errors[h] = keys.error[h];
    if (forced) masses[h] = INFINITY;
  }
  b->values[page] = (float)(length * (1 + 0x1p-22));
}

void bny_prune_weigh(bny_prune_block *b, int32_t first, int32_t end) {
  queries queries;
  float refs[ROWS], errors[ROWS] = {0};
  bool alone = b->bounds->prune->top_pages > 0; /* bits must not depend on which pages a rank has */
  read_queries(b->task, &queries);
  for (int32_t page = first; page < end; page++) {
    for (int32_t h = 0; (alone || page % BNY_PRUNE_CHUNK == 0) && h < ROWS; h++) refs[h] = -INFINITY;
    weigh_page(b, page, &queries, refs, errors);
  }
  note_errors(b, errors);
}
