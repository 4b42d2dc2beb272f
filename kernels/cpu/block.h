/* SPDX-License-Identifier: Apache-2.0
 *
 * Statistics of a block of rows. Each table's file includes this, so that its loops over rows are compiled, and
 * vectorised, for its instruction set; the arithmetic is that of merge_math.h everywhere. Loops have the block's full
 * length: places beyond the last row hold an empty row.
 */
#ifndef BNY_KERNELS_CPU_BLOCK_H
#define BNY_KERNELS_CPU_BLOCK_H

#include <math.h>
#include <string.h>

#include "merge_math.h"
#include "op.h"

/* Else the compiler unrolls a loop over a block whole, before it could vectorise it. */
#define ROLLED _Pragma("GCC unroll 1")

enum { BLOCK_ROWS = 16, BLOCK_NODES_MAX = BNY_MERGE_SOURCES_MAX - 1 };

/* Up to BLOCK_ROWS rows of a box, one after another in token-major order. */
typedef struct row_block {
  int rows;
  int32_t token[BLOCK_ROWS]; /* within the box */
  int32_t head[BLOCK_ROWS];
} row_block;

typedef struct block_stats {
  float m[BLOCK_ROWS];
  float d[BLOCK_ROWS];
} block_stats;

/* Factors of a merge tree's nodes, level by level: scale[node][0] for the left source, scale[node][1] for the right. */
typedef float node_scales[2][BLOCK_ROWS];

/* Advances to the next rows; `block` starts as {.rows = 0}. False at the end of the box. */
static inline bool block_next(const bny_box *box, row_block *block) {
  int32_t token = 0, head = 0;
  if (block->rows > 0) {
    token = block->token[block->rows - 1];
    head = block->head[block->rows - 1] + 1;
  }
  int rows = 0;
  while (rows < BLOCK_ROWS && box->heads > 0) {
    if (head >= box->heads) {
      head = 0;
      token++;
    }
    if (token >= box->tokens) {
      break;
    }
    int run = box->heads - head < BLOCK_ROWS - rows ? box->heads - head : BLOCK_ROWS - rows;
    for (int r = rows; r < rows + run; r++, head++) {
      block->token[r] = token;
      block->head[r] = head;
    }
    rows += run;
  }
  block->rows = rows;
  return rows > 0;
}

static inline int64_t block_wire_row(const row_block *block, const bny_wire_view *view, int row) {
  return block->token[row] * view->token_stride + block->head[row];
}

/* True if the block's rows follow one another without a gap in the view. */
static inline bool block_contiguous(const bny_box *box, const row_block *block, const bny_wire_view *view) {
  return view->token_stride == box->heads || block->token[0] == block->token[block->rows - 1];
}

static inline int64_t block_stats_offset(const row_block *block, const banyan_partial *partial, int32_t token0,
                                         int32_t head0, int row) {
  return (token0 + (int64_t)block->token[row]) * partial->stats_token_stride +
         (head0 + (int64_t)block->head[row]) * partial->stats_head_stride;
}

static inline int64_t block_values_offset(const row_block *block, const banyan_partial *partial, int32_t token0,
                                          int32_t head0, int row) {
  return (token0 + (int64_t)block->token[row]) * partial->values_token_stride +
         (head0 + (int64_t)block->head[row]) * partial->values_head_stride;
}

/* True if the block is full and its statistics in the caller's memory are f32 values without a gap. */
static inline bool block_stats_plain(const row_block *block, const banyan_partial *partial) {
  return block->rows == BLOCK_ROWS && partial->stats_dtype == BANYAN_F32 && partial->stats_head_stride == 1 &&
         block->token[0] == block->token[BLOCK_ROWS - 1];
}

static inline float stat_load(const void *stats, banyan_dtype dtype, int64_t index) {
  switch (dtype) {
    case BANYAN_F16:
      return bny_float_of_f16(((const uint16_t *)stats)[index]);
    case BANYAN_BF16:
      return bny_float_of_bf16(((const uint16_t *)stats)[index]);
    case BANYAN_F32:
      break;
  }
  return ((const float *)stats)[index];
}

static inline void stat_store(void *stats, banyan_dtype dtype, int64_t index, float value) {
  switch (dtype) {
    case BANYAN_F16:
      ((uint16_t *)stats)[index] = bny_f16_of_float(value);
      return;
    case BANYAN_BF16:
      ((uint16_t *)stats)[index] = bny_bf16_of_float(value);
      return;
    case BANYAN_F32:
      break;
  }
  ((float *)stats)[index] = value;
}

/* As it reads after having been stored. */
static inline float stat_round(banyan_dtype dtype, float value) {
  switch (dtype) {
    case BANYAN_F16:
      return bny_float_of_f16(bny_f16_of_float(value));
    case BANYAN_BF16:
      return bny_float_of_bf16(bny_bf16_of_float(value));
    case BANYAN_F32:
      break;
  }
  return value;
}

/* ---- wire form ---------------------------------------------------------------------------------------------------- */

static inline void block_load_wire(const bny_box *box, const row_block *block, const bny_wire_view *view,
                                   block_stats *stats) {
  int rows = block->rows;
  if (rows == BLOCK_ROWS && block_contiguous(box, block, view)) {
    int64_t first = block_wire_row(block, view, 0);
    memcpy(stats->m, view->m + first, sizeof stats->m);
    memcpy(stats->d, view->d + first, sizeof stats->d);
    return;
  }
  ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
    stats->m[r] = -BNY_INFINITY_F;
    stats->d[r] = 0.0f;
  }
  for (int r = 0; r < rows; r++) {
    int64_t row = block_wire_row(block, view, r);
    stats->m[r] = view->m[row];
    stats->d[r] = view->d[row];
  }
}

static inline void block_store_wire(const bny_box *box, const row_block *block, const bny_wire_view *view,
                                    const block_stats *stats) {
  if (block->rows == BLOCK_ROWS && block_contiguous(box, block, view)) {
    int64_t first = block_wire_row(block, view, 0);
    memcpy(view->m + first, stats->m, sizeof stats->m);
    memcpy(view->d + first, stats->d, sizeof stats->d);
    return;
  }
  for (int r = 0; r < block->rows; r++) {
    int64_t row = block_wire_row(block, view, r);
    view->m[row] = stats->m[r];
    view->d[row] = stats->d[r];
  }
}

/* The tree of a merge: nodes[0..count) become one, nodes[0], and the factors of its values are kept. `tight` as in
 * bny_stats_merge(), for all nodes or for the last alone. */
static inline void block_merge(block_stats *nodes, int count, bool tight_nodes, bool tight_last, node_scales *scales) {
  int node = 0;
  for (int width = count; width > 1; width = (width + 1) / 2) {
    int tight = tight_nodes || (tight_last && width == 2);
    for (int i = 0; i < width / 2; i++, node++) {
      block_stats a = nodes[2 * i], b = nodes[2 * i + 1];
      block_stats *merged = &nodes[i];
      float *scale_a = scales[node][0], *scale_b = scales[node][1];
      if (tight) {
        ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
          bny_stats_merge(a.m[r], a.d[r], b.m[r], b.d[r], 1, &merged->m[r], &merged->d[r], &scale_a[r], &scale_b[r]);
        }
      } else {
        ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
          bny_stats_merge(a.m[r], a.d[r], b.m[r], b.d[r], 0, &merged->m[r], &merged->d[r], &scale_a[r], &scale_b[r]);
        }
      }
    }
    if (width % 2 != 0) {
      nodes[width / 2] = nodes[width - 1];
    }
  }
}

/* ---- from the caller's statistics --------------------------------------------------------------------------------- */

/* What is the same for all rows of an encode. */
typedef struct import_rules {
  int base_e, normalised, tight, has_sum;
  int nan_is_empty, infinite_is_empty;
  float below; /* statistics at or below it are empty: rounded as the statistics are, so that what was written matches */
  int native;  /* numerators, m and d in base 2, f32 wire: usually a copy */
} import_rules;

static inline import_rules import_rules_make(const banyan_partial *in, bny_wire wire) {
  import_rules rules = {
      .base_e = in->base == BANYAN_BASE_E,
      .normalised = in->values_kind == BANYAN_VALUES_NORMALISED,
      .tight = wire != BNY_WIRE_F32,
      .has_sum = in->stats_kind == BANYAN_STATS_MAX_SUM,
      .nan_is_empty = (in->empty & BANYAN_EMPTY_NAN) != 0,
      .infinite_is_empty = (in->empty & BANYAN_EMPTY_POS_INF) != 0,
      .below = -BNY_INFINITY_F,
  };
  if ((in->empty & BANYAN_EMPTY_BELOW) != 0) {
    rules.below = stat_round(in->stats_dtype, (float)in->empty_below);
  }
  rules.native = !rules.base_e && !rules.normalised && !rules.tight && rules.has_sum;
  return rules;
}

/* Reads statistics as f32; an lse is an m whose d is 1. */
static inline void block_load_caller(const row_block *block, const banyan_partial *in, int32_t token0, int32_t head0,
                                     block_stats *stats) {
  const bool has_sum = in->stats_kind == BANYAN_STATS_MAX_SUM;
  ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
    stats->m[r] = -BNY_INFINITY_F;
    stats->d[r] = 1.0f;
  }
  if (block_stats_plain(block, in)) {
    int64_t first = block_stats_offset(block, in, token0, head0, 0);
    memcpy(stats->m, (const float *)in->lse + first, sizeof stats->m);
    if (has_sum) {
      memcpy(stats->d, (const float *)in->sum + first, sizeof stats->d);
    }
    return;
  }
  for (int r = 0; r < block->rows; r++) {
    stats->m[r] = stat_load(in->lse, in->stats_dtype, block_stats_offset(block, in, token0, head0, r));
  }
  if (has_sum) {
    for (int r = 0; r < block->rows; r++) {
      stats->d[r] = stat_load(in->sum, in->stats_dtype, block_stats_offset(block, in, token0, head0, r));
    }
  }
}

/* Caller statistics to wire form in place, and the factor of each row's values (unspecified for an empty row).
 * Returns -1, or the first row that is bad data. Either of m and d may say that a row is empty, whatever the other is. */
static inline int block_import(const import_rules *rules, block_stats *stats, float *factor) {
  const import_rules rule = *rules;
  int32_t empty[BLOCK_ROWS], bad[BLOCK_ROWS];
  int any_bad = 0, plain = rule.native;
  ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
    float m = stats->m[r], d = stats->d[r];
    int is_nan = m != m, is_infinite = m == BNY_INFINITY_F;
    empty[r] = (m <= rule.below) | (d == 0.0f) | (is_nan & rule.nan_is_empty) | (is_infinite & rule.infinite_is_empty);
    bad[r] = (is_nan | is_infinite | !((d > 0.0f) & (d < BNY_INFINITY_F))) & (empty[r] ^ 1);
    any_bad |= bad[r];
  }
  if (any_bad != 0) {
    int row = 0;
    while (bad[row] == 0) {
      row++;
    }
    return row;
  }
  if (plain) {
    ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
      float m = stats->m[r], d = stats->d[r];
      float nearest = (m + 0x1.8p23f) - 0x1.8p23f; /* whole, for |m| < 2^22 */
      int kept = (nearest == m) & (__builtin_fabsf(m) < 0x1p22f) & (d >= 0x1p-32f) & (d <= 0x1p48f);
      plain &= kept | empty[r];
      factor[r] = 1.0f;
    }
  }
  if (!plain) {
    ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
      float m, d;
      bny_stats_import(stats->m[r], stats->d[r], rule.base_e, rule.normalised, rule.tight, &m, &d, &factor[r]);
      stats->m[r] = m;
      stats->d[r] = d;
    }
  }
  ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
    stats->m[r] = empty[r] ? -BNY_INFINITY_F : stats->m[r];
    stats->d[r] = empty[r] ? 0.0f : stats->d[r];
  }
  return -1;
}

/* ---- to the caller's statistics ----------------------------------------------------------------------------------- */

static inline float export_empty_value(const banyan_partial *out) {
  if ((out->empty & BANYAN_EMPTY_POS_INF) != 0) {
    return BNY_INFINITY_F;
  }
  return (out->empty & BANYAN_EMPTY_BELOW) != 0 ? (float)out->empty_below : -BNY_INFINITY_F;
}

/* Writes the statistics if they are wanted, and gives the factor by which the merged n becomes the caller's values. */
static inline void block_export(const row_block *block, const block_stats *stats, const banyan_partial *out,
                                int32_t token0, int32_t head0, float *factor) {
  const int base_e = out->base == BANYAN_BASE_E;
  const banyan_dtype dtype = out->stats_dtype;
  const float empty_value = export_empty_value(out);
  float given[BLOCK_ROWS], sum[BLOCK_ROWS];
  ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
    factor[r] = bny_stats_reciprocal(stats->d[r]);
  }
  if (out->lse == NULL) {
    return;
  }
  if (out->stats_kind == BANYAN_STATS_LSE) {
    ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
      float lse = bny_stats_lse(stats->m[r], stats->d[r], base_e);
      given[r] = stats->d[r] > 0.0f ? lse : empty_value;
    }
  } else {
    const bool numerators = out->values_kind == BANYAN_VALUES_NUMERATOR;
    ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
      float m = stats->d[r] > 0.0f ? stats->m[r] : 0.0f;
      given[r] = stat_round(dtype, base_e ? (float)((double)m * BNY_LN_2) : m);
      /* an m beyond what the type holds is given as infinite, and d as it is */
      float finite = given[r] - given[r] == 0.0f ? given[r] : 0.0f;
      double rebase = bny_stats_rebase(given[r] == finite ? m : 0.0f, finite, base_e);
      sum[r] = (float)((double)stats->d[r] * rebase);
      factor[r] = numerators ? (float)rebase : factor[r];
      given[r] = stats->d[r] > 0.0f ? given[r] : empty_value;
    }
  }
  if (block_stats_plain(block, out)) {
    int64_t first = block_stats_offset(block, out, token0, head0, 0);
    memcpy((float *)out->lse + first, given, sizeof given);
    if (out->stats_kind == BANYAN_STATS_MAX_SUM) {
      memcpy((float *)out->sum + first, sum, sizeof sum);
    }
    return;
  }
  for (int r = 0; r < block->rows; r++) {
    int64_t offset = block_stats_offset(block, out, token0, head0, r);
    stat_store(out->lse, dtype, offset, given[r]);
    if (out->stats_kind == BANYAN_STATS_MAX_SUM) {
      stat_store(out->sum, dtype, offset, sum[r]);
    }
  }
}

#endif
