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
  if (box->heads > 0) {
    for (; rows < BLOCK_ROWS; rows++, head++) {
      if (head >= box->heads) {
        head = 0;
        token++;
      }
      if (token >= box->tokens) {
        break;
      }
      block->token[rows] = token;
      block->head[rows] = head;
    }
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
  for (int r = 0; r < BLOCK_ROWS; r++) {
    stats->m[r] = -BNY_INFINITY_F;
    stats->d[r] = 0.0f;
  }
  for (int r = 0; r < rows; r++) {
    int64_t row = block_wire_row(block, view, r);
    stats->m[r] = view->m[row];
    stats->d[r] = view->d[row];
  }
}

static inline void block_store_wire(const row_block *block, const bny_wire_view *view, const block_stats *stats) {
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
        for (int r = 0; r < BLOCK_ROWS; r++) {
          bny_stats_merge(a.m[r], a.d[r], b.m[r], b.d[r], 1, &merged->m[r], &merged->d[r], &scale_a[r], &scale_b[r]);
        }
      } else {
        for (int r = 0; r < BLOCK_ROWS; r++) {
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
  for (int r = 0; r < BLOCK_ROWS; r++) {
    stats->m[r] = -BNY_INFINITY_F;
    stats->d[r] = 1.0f;
  }
  for (int r = 0; r < block->rows; r++) {
    stats->m[r] = stat_load(in->lse, in->stats_dtype, block_stats_offset(block, in, token0, head0, r));
  }
  if (in->stats_kind == BANYAN_STATS_MAX_SUM) {
    for (int r = 0; r < block->rows; r++) {
      stats->d[r] = stat_load(in->sum, in->stats_dtype, block_stats_offset(block, in, token0, head0, r));
    }
  }
}

/* Caller statistics to wire form in place, and the factor of each row's values, which is 0 for an empty row alone.
 * Returns -1, or the first row that is bad data. Either of m and d may say that a row is empty, whatever the other is. */
static inline int block_import(const import_rules *rules, block_stats *stats, float *factor) {
  const import_rules rule = *rules;
  int32_t empty[BLOCK_ROWS], bad[BLOCK_ROWS];
  int any_bad = 0, plain = rule.native;
  for (int r = 0; r < BLOCK_ROWS; r++) {
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
    for (int r = 0; r < BLOCK_ROWS; r++) {
      float m = stats->m[r], d = stats->d[r];
      int small = (m > -0x1p23f) & (m < 0x1p23f);
      float inside = small ? m : 0.0f;
      /* moves of the power of two of d do not happen to large m, and those are whole */
      int kept = (small ^ 1) | (((float)(int32_t)inside == inside) & (d >= 0x1p-32f) & (d <= 0x1p48f));
      plain &= kept | empty[r];
      factor[r] = 1.0f;
    }
  }
  if (!plain) {
    for (int r = 0; r < BLOCK_ROWS; r++) {
      float m, d;
      bny_stats_import(stats->m[r], stats->d[r], rule.base_e, rule.normalised, rule.tight, &m, &d, &factor[r]);
      stats->m[r] = m;
      stats->d[r] = d;
    }
  }
  for (int r = 0; r < BLOCK_ROWS; r++) {
    stats->m[r] = empty[r] ? -BNY_INFINITY_F : stats->m[r];
    stats->d[r] = empty[r] ? 0.0f : stats->d[r];
    factor[r] = empty[r] ? 0.0f : factor[r];
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
  for (int r = 0; r < BLOCK_ROWS; r++) {
    factor[r] = bny_stats_reciprocal(stats->d[r]);
  }
  if (out->lse == NULL) {
    return;
  }
  if (out->stats_kind == BANYAN_STATS_LSE) {
    for (int r = 0; r < BLOCK_ROWS; r++) {
      float lse = bny_stats_lse(stats->m[r], stats->d[r], base_e);
      given[r] = stats->d[r] > 0.0f ? lse : empty_value;
    }
  } else {
    for (int r = 0; r < BLOCK_ROWS; r++) {
      float m = stats->m[r] * 1.0f;
      m = stats->d[r] > 0.0f ? m : 0.0f;
      given[r] = stat_round(dtype, base_e ? (float)((double)m * BNY_LN_2) : m);
      float finite = given[r] - given[r] == 0.0f ? given[r] : 0.0f;
      double rebase = bny_stats_rebase(given[r] == finite ? m : 0.0f, finite, base_e);
      sum[r] = (float)((double)stats->d[r] * rebase);
      factor[r] = out->values_kind == BANYAN_VALUES_NUMERATOR ? (float)rebase : factor[r];
      given[r] = stats->d[r] > 0.0f ? given[r] : empty_value;
    }
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
