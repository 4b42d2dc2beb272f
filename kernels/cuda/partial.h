/* SPDX-License-Identifier: Apache-2.0
 * Reads and writes rows of the caller's partials in place, in the caller's convention. The arithmetic is that of
 * kernels/cpu, through merge_math.h, so a device and a processor give the same bits. */
#pragma once

#include "cuda/worker.h"
#include "export_math.h"
#include "f8.h"
#include "op.h"

BNY_DEVICE int64_t bny_partial_stat_at(const banyan_partial &partial, int32_t token, int32_t head) {
  return token * partial.stats_token_stride + head * partial.stats_head_stride;
}

BNY_DEVICE int64_t bny_partial_value_at(const banyan_partial &partial, int32_t token, int32_t head) {
  return token * partial.values_token_stride + head * partial.values_head_stride;
}

/* ---- single elements --------------------------------------------------------------------------------------------- */

BNY_DEVICE bool bny_element_is_f8(banyan_dtype dtype) { return dtype >= BANYAN_E4M3; }

/* Conversions of eight bits are not inlined, because they are rare and kernels would have one for each value. */
BNY_DEVICE_COLD float bny_element_of_f8(banyan_dtype dtype, uint32_t code) {
  return dtype == BANYAN_E4M3 ? bny_float_of_e4m3((uint8_t)code) : bny_float_of_e5m2((uint8_t)code);
}

BNY_DEVICE_COLD uint32_t bny_element_to_f8(banyan_dtype dtype, float value) {
  return dtype == BANYAN_E4M3 ? bny_e4m3_of_float(value) : bny_e5m2_of_float(value);
}

BNY_DEVICE float bny_element_of_bits(banyan_dtype dtype, uint32_t bits) {
  if (dtype == BANYAN_F32) return bny_float_of_bits(bits);
  return dtype == BANYAN_F16 ? bny_f16_low(bits) : bny_bf16_low(bits);
}

/* Loads a statistic, which has 16 or 32 bits. */
BNY_DEVICE float bny_element_load(const void *elements, banyan_dtype dtype, int64_t index) {
  if (dtype == BANYAN_F32) return ((const float *)elements)[index];
  uint32_t bits = ((const uint16_t *)elements)[index];
  return bny_element_of_bits(dtype, bits);
}

BNY_DEVICE void bny_element_store(void *elements, banyan_dtype dtype, int64_t index, float value) {
  if (dtype == BANYAN_F32)
    ((float *)elements)[index] = value;
  else if (dtype == BANYAN_F16)
    ((uint16_t *)elements)[index] = (uint16_t)bny_pack_f16(value, 0.0f);
  else
    ((uint16_t *)elements)[index] = (uint16_t)bny_pack_bf16(value, 0.0f);
}

/* ---- a lane's values of a row ------------------------------------------------------------------------------------ */

/* Loads eight-bit values, four at a time if they are aligned. Arguments are those of bny_values_load(). */
template <int count>
BNY_DEVICE void bny_values_load_f8(const void *elements, banyan_dtype dtype, int64_t at, int low, int high,
                                   float *values) {
  const uint8_t *codes = (const uint8_t *)elements + at;
  uint32_t bits[count];
  BNY_UNROLL for (int i = 0; i < count; i++) bits[i] = 0;
  if (count % 4 == 0 && low == 0 && high == count && ((uintptr_t)codes & 3) == 0) {
    BNY_UNROLL for (int i = 0; i < count / 4; i++) {
      uint32_t word = ((const uint32_t *)(const void *)codes)[i];
      BNY_UNROLL for (int j = 0; j < 4; j++) bits[(4 * i + j) % count] = word >> (8 * j) & 0xffu;
    }
  } else {
    BNY_UNROLL for (int i = 0; i < count; i++) {
      if (i >= low && i < high) bits[i] = codes[i];
    }
  }
  BNY_UNROLL for (int i = 0; i < count; i++) values[i] = bny_element_of_f8(dtype, bits[i]);
}

template <int count>
BNY_DEVICE void bny_values_store_f8(void *elements, banyan_dtype dtype, int64_t at, int low, int high,
                                    const float *values) {
  uint8_t *codes = (uint8_t *)elements + at;
  uint32_t bits[count];
  BNY_UNROLL for (int i = 0; i < count; i++) bits[i] = bny_element_to_f8(dtype, values[i]);
  if (count % 4 == 0 && low == 0 && high == count && ((uintptr_t)codes & 3) == 0) {
    BNY_UNROLL for (int i = 0; i < count / 4; i++) {
      uint32_t word = 0;
      BNY_UNROLL for (int j = 0; j < 4; j++) word |= bits[(4 * i + j) % count] << (8 * j);
      ((uint32_t *)(void *)codes)[i] = word;
    }
    return;
  }
  BNY_UNROLL for (int i = 0; i < count; i++) {
    if (i >= low && i < high) codes[i] = (uint8_t)bits[i];
  }
}

/* Returns whether values lie in whole aligned pairs, as behind the header of a unit. */
template <int count> BNY_DEVICE bool bny_values_are_pairs(const char *address, banyan_dtype dtype, int low, int high) {
  uintptr_t within = dtype == BANYAN_F32 ? 7 : 3;
  return count % 2 == 0 && ((uintptr_t)address & within) == 0 && ((low | high) & 1) == 0;
}

/* Loads element at + i into values[i] for i in [low, high), and sets the other values to 0. An aligned group of 16
 * bytes takes one load. */
template <int count>
BNY_DEVICE void bny_values_load(const void *elements, banyan_dtype dtype, int64_t at, int low, int high,
                                float *values) {
  if (bny_element_is_f8(dtype)) {
    bny_values_load_f8<count>(elements, dtype, at, low, high, values);
    return;
  }
  const char *address = (const char *)elements + at * (dtype == BANYAN_F32 ? 4 : 2);
  if (low == 0 && high == count && ((uintptr_t)address & 15) == 0) {
    if (count % 4 == 0 && dtype == BANYAN_F32) {
      BNY_UNROLL for (int i = 0; i < count / 4; i++) {
        bny_quad quad = bny_load_quad(address + 16 * i);
        BNY_UNROLL for (int j = 0; j < 4; j++) values[(4 * i + j) % count] = bny_float_of_bits(quad.word[j]);
      }
      return;
    }
    if (count == 8) {
      bny_quad quad = bny_load_quad(address);
      BNY_UNROLL for (int j = 0; j < 4; j++) {
        uint32_t bits = quad.word[j];
        values[(2 * j) % count] = dtype == BANYAN_F16 ? bny_f16_low(bits) : bny_bf16_low(bits);
        values[(2 * j + 1) % count] = dtype == BANYAN_F16 ? bny_f16_high(bits) : bny_bf16_high(bits);
      }
      return;
    }
  }
  /* All loads are issued before the first result is used. */
  uint32_t bits[count];
  BNY_UNROLL for (int i = 0; i < count; i++) bits[i] = 0;
  if (bny_values_are_pairs<count>(address, dtype, low, high)) {
    BNY_UNROLL for (int i = 0; i < count; i += 2) {
      if (i < low || i >= high) continue;
      uint64_t pair;
      if (dtype == BANYAN_F32)
        pair = *(const uint64_t *)(const void *)(address + 4 * i);
      else
        pair = *(const uint32_t *)(const void *)(address + 2 * i);
      bits[i] = (uint32_t)pair;
      bits[(i + 1) % count] = dtype == BANYAN_F32 ? (uint32_t)(pair >> 32) : (uint32_t)pair >> 16;
    }
  } else if (dtype == BANYAN_F32) {
    BNY_UNROLL for (int i = 0; i < count; i++) {
      if (i >= low && i < high) bits[i] = bny_bits_of_float(((const float *)elements)[at + i]);
    }
  } else {
    BNY_UNROLL for (int i = 0; i < count; i++) {
      if (i >= low && i < high) bits[i] = ((const uint16_t *)elements)[at + i];
    }
  }
  BNY_UNROLL for (int i = 0; i < count; i++) values[i] = bny_element_of_bits(dtype, bits[i]);
}

template <int count>
BNY_DEVICE void bny_values_store(void *elements, banyan_dtype dtype, int64_t at, int low, int high,
                                 const float *values) {
  if (bny_element_is_f8(dtype)) {
    bny_values_store_f8<count>(elements, dtype, at, low, high, values);
    return;
  }
  char *address = (char *)elements + at * (dtype == BANYAN_F32 ? 4 : 2);
  if (low == 0 && high == count && ((uintptr_t)address & 15) == 0) {
    if (count % 4 == 0 && dtype == BANYAN_F32) {
      BNY_UNROLL for (int i = 0; i < count / 4; i++) {
        bny_quad quad;
        BNY_UNROLL for (int j = 0; j < 4; j++) quad.word[j] = bny_bits_of_float(values[(4 * i + j) % count]);
        bny_store_quad(address + 16 * i, quad);
      }
      return;
    }
    if (count == 8) {
      bny_quad quad;
      BNY_UNROLL for (int j = 0; j < 4; j++) {
        float even = values[(2 * j) % count], odd = values[(2 * j + 1) % count];
        quad.word[j] = dtype == BANYAN_F16 ? bny_pack_f16(even, odd) : bny_pack_bf16(even, odd);
      }
      bny_store_quad(address, quad);
      return;
    }
  }
  if (bny_values_are_pairs<count>(address, dtype, low, high)) {
    BNY_UNROLL for (int i = 0; i < count; i += 2) {
      if (i < low || i >= high) continue;
      float even = values[i], odd = values[(i + 1) % count];
      if (dtype == BANYAN_F32)
        *(uint64_t *)(void *)(address + 4 * i) = bny_bits_of_float(even) | (uint64_t)bny_bits_of_float(odd) << 32;
      else
        *(uint32_t *)(void *)(address + 2 * i) =
            dtype == BANYAN_F16 ? bny_pack_f16(even, odd) : bny_pack_bf16(even, odd);
    }
    return;
  }
  BNY_UNROLL for (int i = 0; i < count; i++) {
    if (i >= low && i < high) bny_element_store(elements, dtype, at + i, values[i]);
  }
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

struct bny_import {
  float m, d;   /* wire form */
  float factor; /* factor of the row's values; an empty row's values are not read */
  bool bad;     /* the statistics are invalid and not declared as empty */
};

BNY_DEVICE float bny_import_below(const banyan_partial &in) {
  return in.empty & BANYAN_EMPTY_BELOW ? bny_stat_round(in.stats_dtype, (float)in.empty_below) : -BNY_INFINITY_F;
}

/* Returns whether a partial is a tensor to sum: numerators without statistics. */
BNY_DEVICE bool bny_partial_is_sum(const banyan_partial &partial) {
  return !partial.lse && partial.values_kind == BANYAN_VALUES_NUMERATOR;
}

/* Converts statistics to wire form. An lse has sum 1. `tight` is for lossy wires: see bny_stats_import(). */
BNY_DEVICE bny_import bny_import_make(const banyan_partial &in, float stat, float sum, bool tight) {
  bny_import made = {-BNY_INFINITY_F, 0.0f, 0.0f, false};
  bool is_nan = stat != stat, is_infinite = stat == BNY_INFINITY_F;
  if (stat <= bny_import_below(in) || sum == 0.0f || (is_nan && in.empty & BANYAN_EMPTY_NAN) ||
      (is_infinite && in.empty & BANYAN_EMPTY_POS_INF))
    return made;
  made.bad = is_nan || is_infinite || !(sum > 0.0f && sum < BNY_INFINITY_F);
  if (made.bad) return made;
  bool normalised = in.values_kind == BANYAN_VALUES_NORMALISED;
  float nearest = (stat + 0x1.8p23f) - 0x1.8p23f; /* a whole number if |stat| < 2^22; +0 for -0 */
  if (in.base == BANYAN_BASE_2 && !normalised && !tight && in.stats_kind == BANYAN_STATS_MAX_SUM && nearest == stat &&
      __builtin_fabsf(stat) < 0x1p22f && sum >= 0x1p-32f && sum <= 0x1p48f) {
    /* bny_stats_import() gives the same for statistics that are already in wire form */
    made.m = nearest;
    made.d = sum;
    made.factor = 1.0f;
    return made;
  }
  bny_stats_import(stat, sum, in.base == BANYAN_BASE_E, normalised, tight, &made.m, &made.d, &made.factor);
  return made;
}

BNY_DEVICE bny_import bny_import_row(const banyan_partial &in, int32_t token, int32_t head, bool tight) {
  if (bny_partial_is_sum(in)) return {0.0f, BNY_SUM_D, 1.0f, false};
  int64_t at = bny_partial_stat_at(in, token, head);
  float stat = bny_element_load(in.lse, in.stats_dtype, at);
  float sum = in.stats_kind == BANYAN_STATS_MAX_SUM ? bny_element_load(in.sum, in.stats_dtype, at) : 1.0f;
  bny_import made = bny_import_make(in, stat, sum, tight);
  if (in.values_scale) made.factor = bny_scaled_factor(made.factor, in.values_scale[head * in.values_scale_stride]);
  return made;
}

BNY_DEVICE float bny_export_empty(const banyan_partial &out) {
  if (out.empty & BANYAN_EMPTY_POS_INF) return BNY_INFINITY_F;
  return out.empty & BANYAN_EMPTY_BELOW ? (float)out.empty_below : -BNY_INFINITY_F;
}

/* The statistics of a row that export changes, and whether they still describe the same row. */
struct bny_export_odd {
  double rebase;
  float given;
  bool fits;
};

BNY_DEVICE_COLD bny_export_odd bny_export_odd_make(bny_export_rules rules, float m, float d) {
  bny_export_odd made;
  bny_export_moved(&rules, m, d, &made.given, &made.rebase);
  made.fits = bny_export_fits(&rules, m, d, made.given, made.rebase);
  return made;
}

/* Called by one lane. Reports that the caller's type cannot hold a row's statistics, if the group has ranks. */
BNY_DEVICE_COLD void bny_export_report(const bny_device_group *group, int32_t token, int32_t head) {
  if (group->nranks == 0) return;
  const uint64_t fault = bny_device_fault_pack(BANYAN_ERR_DATA, group->rank, group->rank, BNY_DEVICE_DETAIL_RESULT);
  bny_worker_report_result(group, fault, bny_device_position_pack((uint32_t)token, head));
}

/* Exports m and d. Returns the factor to apply to numerators. */
BNY_DEVICE float bny_export_max_sum(const bny_device_group *group, const banyan_partial &out, int32_t token,
                                    int32_t head, float m, float d, bool writes) {
  const bny_export_rules rules = bny_export_rules_make(&out);
  bny_export_odd odd;
  odd.fits = true;
  if (!bny_export_stays(&rules, d > 0.0f ? m : 0.0f, d, &odd.given, &odd.rebase))
    odd = bny_export_odd_make(rules, m, d);
  if (writes) {
    int64_t at = bny_partial_stat_at(out, token, head);
    bny_element_store(out.lse, out.stats_dtype, at, d > 0.0f ? odd.given : bny_export_empty(out));
    bny_element_store(out.sum, out.stats_dtype, at, (float)bny_times_double((double)d, odd.rebase));
    if (!odd.fits) bny_export_report(group, token, head);
  }
  return (float)odd.rebase;
}

/* Returns the factor from merged values to the caller's values, without the caller's scale. If `writes` is set, lane 0
 * also writes statistics that the caller wants, and reports a row that the caller's type cannot hold. */
BNY_DEVICE float bny_export_stats(const bny_device_group *group, const banyan_partial &out, int32_t token, int32_t head,
                                  float m, float d, bool writes) {
  float factor = bny_stats_reciprocal(d);
  writes = writes && bny_lane() == 0;
  if (!out.lse) return bny_partial_is_sum(out) ? 1.0f : factor;
  if (out.stats_kind == BANYAN_STATS_MAX_SUM) {
    float rebase = bny_export_max_sum(group, out, token, head, m, d, writes);
    return out.values_kind == BANYAN_VALUES_NUMERATOR ? rebase : factor;
  }
  if (!writes) return factor;
  const bny_export_rules rules = bny_export_rules_make(&out);
  float lse = bny_export_lse(&rules, m, d);
  int64_t at = bny_partial_stat_at(out, token, head);
  bny_element_store(out.lse, out.stats_dtype, at, d > 0.0f ? lse : bny_export_empty(out));
  if (!bny_export_lse_fits(lse, d)) bny_export_report(group, token, head);
  return factor;
}

/* Exports statistics like bny_export_stats(). Returns the factor with the caller's scale. */
BNY_DEVICE float bny_export_row(const bny_device_group *group, const banyan_partial &out, int32_t token, int32_t head,
                                float m, float d, bool writes) {
  float factor = bny_export_stats(group, out, token, head, m, d, writes);
  return out.values_scale ? bny_unscaled_factor(factor, out.values_scale[head * out.values_scale_stride]) : factor;
}
