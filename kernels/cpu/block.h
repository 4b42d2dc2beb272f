/* SPDX-License-Identifier: Apache-2.0
 * Converts and merges the statistics of a block of rows. Each table's file includes this, so that loops over rows are
 * vectorised for its instruction set. The arithmetic is that of merge_math.h. Loops have the block's full length:
 * entries past the last row hold an empty row. */
#pragma once

#include <math.h>
#include <string.h>

#include "export_math.h"
#include "f8.h"
#include "op.h"

/* Without this the compiler fully unrolls a loop over a block before it could vectorise it. */
#define ROLLED _Pragma("GCC unroll 1")

enum { BLOCK_ROWS = 16, BLOCK_NODES_MAX = BNY_MERGE_SOURCES_MAX - 1 };

/* A block has up to BLOCK_ROWS consecutive rows of a box, in token-major order. */
typedef struct row_block {
  int rows;
  int32_t token[BLOCK_ROWS]; /* within the box */
  int32_t head[BLOCK_ROWS];
} row_block;

typedef struct block_stats {
  float m[BLOCK_ROWS];
  float d[BLOCK_ROWS];
} block_stats;

/* A merge tree's nodes have these factors, level by level: [0] for the left source and [1] for the right one. */
typedef float node_scales[2][BLOCK_ROWS];

/* Advances to the next rows; `block` starts as {.rows = 0}. Returns false at the end of the box. */
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
    if (token >= box->tokens) break;
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

/* Returns true if the block's rows are contiguous in the view. */
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

static inline float block_scale(const row_block *block, const banyan_partial *partial, int32_t head0, int row) {
  return partial->values_scale[(head0 + (int64_t)block->head[row]) * partial->values_scale_stride];
}

/* Puts the scales of an input's values into the factors of rows. */
static inline void block_scale_input(const row_block *block, const banyan_partial *in, int32_t head0, float *factor) {
  for (int r = 0; r < block->rows; r++) factor[r] = bny_scaled_factor(factor[r], block_scale(block, in, head0, r));
}

static inline void block_scale_output(const row_block *block, const banyan_partial *out, int32_t head0, float *factor) {
  for (int r = 0; r < block->rows; r++) factor[r] = bny_unscaled_factor(factor[r], block_scale(block, out, head0, r));
}

/* Returns true if the block is full and its statistics in the caller's memory are contiguous f32 values. */
static inline bool block_stats_plain(const row_block *block, const banyan_partial *partial) {
  return block->rows == BLOCK_ROWS && partial->stats_dtype == BANYAN_F32 && partial->stats_head_stride == 1 &&
         block->token[0] == block->token[BLOCK_ROWS - 1];
}

static inline float stat_load(const void *stats, banyan_dtype dtype, int64_t index) {
  switch (dtype) {
  case BANYAN_F16: return bny_float_of_f16(((const uint16_t *)stats)[index]);
  case BANYAN_BF16: return bny_float_of_bf16(((const uint16_t *)stats)[index]);
  default: break;
  }
  return ((const float *)stats)[index];
}

static inline void stat_store(void *stats, banyan_dtype dtype, int64_t index, float value) {
  switch (dtype) {
  case BANYAN_F16: ((uint16_t *)stats)[index] = bny_f16_of_float(value); return;
  case BANYAN_BF16: ((uint16_t *)stats)[index] = bny_bf16_of_float(value); return;
  default: break;
  }
  ((float *)stats)[index] = value;
}

/* ---- wire form --------------------------------------------------------------------------------------------------- */

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

/* Runs the tree of a merge: nodes[0..count) become nodes[0], and `scales` gets the factors of the values. `tight` is as
 * in bny_stats_merge(), for all nodes or only the last. */
static inline void block_merge(block_stats *nodes, int count, bool tight_nodes, bool tight_last, node_scales *scales) {
  int node = 0;
  for (int width = count; width > 1; width = (width + 1) / 2) {
    int tight = tight_nodes || (tight_last && width == 2);
    for (int i = 0; i < width / 2; i++, node++) {
      block_stats a = nodes[2 * i], b = nodes[2 * i + 1], merged;
      float scale[2][BLOCK_ROWS]; /* local: memory that may alias is not vectorised */
      if (tight) {
        ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
          bny_stats_merge(a.m[r], a.d[r], b.m[r], b.d[r], 1, &merged.m[r], &merged.d[r], &scale[0][r], &scale[1][r]);
        }
      } else {
        ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
          bny_stats_merge(a.m[r], a.d[r], b.m[r], b.d[r], 0, &merged.m[r], &merged.d[r], &scale[0][r], &scale[1][r]);
        }
      }
      nodes[i] = merged;
      memcpy(scales[node], scale, sizeof scale);
    }
    if (width % 2 != 0) nodes[width / 2] = nodes[width - 1];
  }
}

/* ---- from the caller's statistics -------------------------------------------------------------------------------- */

/* These rules of an encode are the same for all rows. */
typedef struct import_rules {
  int base_e, normalised, tight, has_sum;
  int nan_is_empty, infinite_is_empty;
  float below; /* statistics at or below it are empty; rounded like the statistics, so that stored values match */
  int native;  /* numerators, m and d in base 2, f32 wire: usually a plain copy */
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
  if ((in->empty & BANYAN_EMPTY_BELOW) != 0) rules.below = bny_stat_round(in->stats_dtype, (float)in->empty_below);
  rules.native = !rules.base_e && !rules.normalised && !rules.tight && rules.has_sum;
  return rules;
}

/* Reads statistics as f32; an lse becomes an m with d = 1. */
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
    if (has_sum) memcpy(stats->d, (const float *)in->sum + first, sizeof stats->d);
    return;
  }
  for (int r = 0; r < block->rows; r++)
    stats->m[r] = stat_load(in->lse, in->stats_dtype, block_stats_offset(block, in, token0, head0, r));
  if (has_sum) {
    for (int r = 0; r < block->rows; r++)
      stats->d[r] = stat_load(in->sum, in->stats_dtype, block_stats_offset(block, in, token0, head0, r));
  }
}

/* Converts caller statistics to wire form in place, and computes the factor of each row's values (unspecified for an
 * empty row). Returns -1, or the first row with bad data. Either of m and d may mark a row as empty, whatever the other
 * is. */
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
    while (bad[row] == 0) row++;
    return row;
  }
  if (plain) {
    ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
      float m = stats->m[r], d = stats->d[r];
      float nearest = (m + 0x1.8p23f) - 0x1.8p23f; /* m as a whole number, if |m| < 2^22; +0 for -0 */
      int kept = (nearest == m) & (__builtin_fabsf(m) < 0x1p22f) & (d >= 0x1p-32f) & (d <= 0x1p48f);
      stats->m[r] = kept ? nearest : m;
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

/* ---- to the caller's statistics ---------------------------------------------------------------------------------- */

static inline float export_empty_value(const banyan_partial *out) {
  if ((out->empty & BANYAN_EMPTY_POS_INF) != 0) return BNY_INFINITY_F;
  return (out->empty & BANYAN_EMPTY_BELOW) != 0 ? (float)out->empty_below : -BNY_INFINITY_F;
}

/* Computes one lse for each row; fits[r] says whether the type can hold it. */
static inline void export_lse(const bny_export_rules *rules, const block_stats *stats, float empty_value, float *given,
                              int32_t *fits) {
  const int base_e = rules->base_e;
  const banyan_dtype type = rules->type;
  const block_stats own = *stats;
  float lse[BLOCK_ROWS];
  ROLLED for (int r = 0; r < BLOCK_ROWS; r++) { lse[r] = bny_export_lse_exact(own.m[r], own.d[r], base_e); }
  for (int r = 0; r < BLOCK_ROWS && type != BANYAN_F32; r++) lse[r] = bny_export_lse_round(type, lse[r]);
  ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
    fits[r] = bny_export_lse_fits(lse[r], own.d[r]);
    given[r] = own.d[r] > 0.0f ? lse[r] : empty_value;
  }
}

/* Computes m and d for each row, and the factor of its numerators. */
static inline void export_max_sum(const bny_export_rules *rules, const block_stats *stats, float empty_value,
                                  float *given, float *sum, float *factor, int32_t *fits) {
  const bny_export_rules rule = *rules;
  double rebase[BLOCK_ROWS];
  int32_t stays[BLOCK_ROWS], all_stay = 1;
  ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
    float m = stats->d[r] > 0.0f ? stats->m[r] : 0.0f;
    stays[r] = bny_export_stays(&rule, m, stats->d[r], &given[r], &rebase[r]);
    fits[r] = 1;
    all_stay &= stays[r];
  }
  for (int r = 0; r < BLOCK_ROWS && all_stay == 0; r++) {
    if (stays[r] == 0) bny_export_moved(&rule, stats->m[r], stats->d[r], &given[r], &rebase[r]);
    fits[r] = bny_export_fits(&rule, stats->m[r], stats->d[r], given[r], rebase[r]);
  }
  ROLLED for (int r = 0; r < BLOCK_ROWS; r++) {
    sum[r] = (float)((double)stats->d[r] * rebase[r]);
    factor[r] = rule.numerators ? (float)rebase[r] : factor[r];
    given[r] = stats->d[r] > 0.0f ? given[r] : empty_value;
  }
}

static inline void export_store(const row_block *block, const banyan_partial *out, int32_t token0, int32_t head0,
                                const float *given, const float *sum) {
  const bool has_sum = out->stats_kind == BANYAN_STATS_MAX_SUM;
  if (block_stats_plain(block, out)) {
    int64_t first = block_stats_offset(block, out, token0, head0, 0);
    memcpy((float *)out->lse + first, given, BLOCK_ROWS * sizeof given[0]);
    if (has_sum) memcpy((float *)out->sum + first, sum, BLOCK_ROWS * sizeof sum[0]);
    return;
  }
  for (int r = 0; r < block->rows; r++) {
    int64_t offset = block_stats_offset(block, out, token0, head0, r);
    stat_store(out->lse, out->stats_dtype, offset, given[r]);
    if (has_sum) stat_store(out->sum, out->stats_dtype, offset, sum[r]);
  }
}

/* Writes the statistics if the caller wants them, and computes the factor that turns the merged n into the caller's
 * values. Returns -1, or the first row whose statistics the caller's type cannot hold. */
static inline int block_export(const row_block *block, const block_stats *stats, const banyan_partial *out,
                               int32_t token0, int32_t head0, float *factor) {
  float given[BLOCK_ROWS], sum[BLOCK_ROWS];
  int32_t fits[BLOCK_ROWS];
  ROLLED for (int r = 0; r < BLOCK_ROWS; r++) { factor[r] = bny_stats_reciprocal(stats->d[r]); }
  if (out->lse == NULL) return -1;
  const bny_export_rules rules = bny_export_rules_make(out);
  if (out->stats_kind == BANYAN_STATS_LSE)
    export_lse(&rules, stats, export_empty_value(out), given, fits);
  else
    export_max_sum(&rules, stats, export_empty_value(out), given, sum, factor, fits);
  export_store(block, out, token0, head0, given, sum);
  for (int r = 0; r < block->rows; r++) {
    if (fits[r] == 0) return r;
  }
  return -1;
}
