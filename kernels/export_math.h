/* SPDX-License-Identifier: Apache-2.0
 * Converts statistics from wire form to the caller's: an m and d that the caller's type can hold and that describe the
 * same row. Like merge_math.h it is plain arithmetic, so host and device give the same bits.
 *
 *   given = m in the caller's base, rounded to the type;  rebase = 2^(m - given);  sum = d rebase;  n' = n rebase
 *
 * The rounding error of m therefore goes into d. If d would then leave the range of the type, its power of two first
 * goes into m. From |m| = 2^24 on, f32 itself rounds m on import and export, and d stays unchanged. An m such as -1e30
 * is exported with its imported d, and importing it again gives the same m. */
#pragma once

#include "banyan.h"
#include "merge_math.h"

#define BNY_M_EXACT 0x1p24f

/* The values that are the same for all rows of an output. */
typedef struct bny_export_rules {
  banyan_dtype type; /* dtype of the statistics */
  int base_e, numerators;
  double low, high; /* d in [low, high] is exported unchanged; numerators need the remaining range */
} bny_export_rules;

BNY_HD static inline bny_export_rules bny_export_rules_make(const banyan_partial *out) {
  const banyan_dtype type = out->stats_dtype;
  bny_export_rules rules;
  rules.type = type;
  rules.base_e = out->base == BANYAN_BASE_E;
  rules.numerators = out->values_kind == BANYAN_VALUES_NUMERATOR;
  rules.high = (double)(type == BANYAN_F16 ? BNY_F16_MAX : type == BANYAN_BF16 ? BNY_BF16_MAX : FLT_MAX);
  rules.low = type == BANYAN_F16 ? 0x1p-14 : 0x1p-126;
  if (!rules.numerators) return rules;
  int narrow = out->values_dtype != BANYAN_F32 && out->values_dtype != BANYAN_BF16;
  double most = narrow ? 1.0 : 0x1p64, least = narrow ? 0x1p-14 : 0x1p-64;
  rules.high = rules.high < most ? rules.high : most;
  rules.low = rules.low > least ? rules.low : least;
  return rules;
}

/* Rounds a statistic to its type. */
BNY_HD static inline float bny_stat_round(banyan_dtype type, float value) {
  if (type == BANYAN_F32) return value;
  return type == BANYAN_F16 ? bny_float_of_f16(bny_f16_of_float(value)) : bny_float_of_bf16(bny_bf16_of_float(value));
}

BNY_HD static inline int bny_stat_is_infinite(float value) { return __builtin_fabsf(value) == BNY_INFINITY_F; }

BNY_HD static inline float bny_export_in_base(double m, int base_e) {
  return (float)(base_e ? bny_times_double(m, BNY_LN_2) : m);
}

/* Exports the m of a usual row: m rounded to the type. Returns false if the row needs bny_export_moved(). */
BNY_HD static inline int bny_export_stays(const bny_export_rules *rules, float m, float d, float *given,
                                          double *rebase) {
  float stat = bny_stat_round(rules->type, bny_export_in_base((double)m, rules->base_e));
  float finite = stat - stat == 0.0f ? stat : 0.0f; /* a NaN stays NaN */
  *given = stat;
  *rebase = bny_stats_rebase(stat == finite ? m : 0.0f, finite, rules->base_e);
  double sum = bny_times_double((double)d, *rebase);
  int in_range = (sum >= rules->low) & (sum <= rules->high) & !(__builtin_fabsf(m) >= BNY_M_EXACT);
  return (in_range & !bny_stat_is_infinite(stat)) | (d == 0.0f);
}

/* Returns the next larger number of the type, for a value that the type can hold. Half a unit in the last place is at
 * most |value| 2^-bits. */
BNY_HD static inline float bny_export_next_up(banyan_dtype type, float value) {
  float unit = type == BANYAN_F16 ? 0x1.4p-11f : type == BANYAN_BF16 ? 0x1.4p-8f : 0x1.4p-24f;
  return bny_stat_round(type, value + bny_times(__builtin_fabsf(value), unit));
}

/* Exports the m of the other rows with d > 0. */
BNY_HD static inline void bny_export_moved(const bny_export_rules *rules, float m, float d, float *given,
                                           double *rebase) {
  float limit = rules->type == BANYAN_F16 ? BNY_F16_MAX : rules->type == BANYAN_BF16 ? BNY_BF16_MAX : FLT_MAX;
  *rebase = 1.0;
  if (__builtin_fabsf(m) >= BNY_M_EXACT) {
    /* the import caps |t| at FLT_MAX, in base 2 */
    float stat = __builtin_fabsf(m) == FLT_MAX ? m : bny_export_in_base((double)m, rules->base_e);
    *given = bny_stat_round(rules->type, rules->type == BANYAN_F16 ? stat : bny_saturate(stat, limit));
    return;
  }
  int32_t k = (int32_t)((bny_bits_of_double((double)d) - 1) >> 52) - 1022; /* d = f 2^k, f in (0.5, 1] */
  float stat = bny_export_in_base((double)m + (double)k, rules->base_e);
  *given = bny_stat_round(rules->type, bny_saturate(stat, limit));
  *rebase = bny_stats_rebase(m, *given, rules->base_e);
  if (bny_times_double((double)d, *rebase) <= rules->high) return;
  float next = bny_export_next_up(rules->type, *given);
  if (bny_stat_is_infinite(next)) return;
  *given = next;
  *rebase = bny_stats_rebase(m, next, rules->base_e);
}

/* Returns true if the exported statistics describe the same row. A row of NaN stays a row of NaN. */
BNY_HD static inline int bny_export_fits(const bny_export_rules *rules, float m, float d, float given, double rebase) {
  double sum = bny_times_double((double)d, rebase);
  float stored = bny_stat_round(rules->type, (float)sum);
  int is_row = !bny_stat_is_infinite(given) & (stored > 0.0f) & (stored < BNY_INFINITY_F);
  int has_room =
      ((sum >= rules->low) & (sum <= rules->high)) | !rules->numerators | (__builtin_fabsf(m) >= BNY_M_EXACT);
  return (is_row & has_room) | (d == 0.0f) | (m != m) | (d != d);
}

/* Return the lse of a row that is not empty: exact, and rounded to the type. */
BNY_HD static inline float bny_export_lse_exact(float m, float d, int base_e) {
  float lse = bny_stats_lse(m, d, base_e);
  return __builtin_fabsf(m) == FLT_MAX ? m : lse;
}

BNY_HD static inline float bny_export_lse_round(banyan_dtype type, float lse) {
  return bny_stat_round(type, type == BANYAN_BF16 ? bny_saturate(lse, BNY_BF16_MAX) : lse);
}

BNY_HD static inline float bny_export_lse(const bny_export_rules *rules, float m, float d) {
  return bny_export_lse_round(rules->type, bny_export_lse_exact(m, d, rules->base_e));
}

BNY_HD static inline int bny_export_lse_fits(float lse, float d) {
  return !(bny_stat_is_infinite(lse) | bny_stat_is_infinite(d)) | (d == 0.0f);
}
