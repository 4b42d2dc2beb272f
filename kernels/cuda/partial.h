/* SPDX-License-Identifier: Apache-2.0
 *
 * The caller's partials: rows as they are read and written where they lie, in the caller's convention. The arithmetic is that
 * of kernels/cpu, through merge_math.h, so a device and a processor give the same bits. */
#ifndef BNY_CUDA_PARTIAL_H
#define BNY_CUDA_PARTIAL_H

#include "cuda/device.h"
#include "merge_math.h"
#include "op.h"

BNY_DEVICE int64_t bny_partial_stat_at(const banyan_partial &partial, int32_t token, int32_t head) {
  return token * partial.stats_token_stride + head * partial.stats_head_stride;
}

BNY_DEVICE int64_t bny_partial_value_at(const banyan_partial &partial, int32_t token, int32_t head) {
  return token * partial.values_token_stride + head * partial.values_head_stride;
}

/* ---- single elements ------------------------------------------------------------------------------------------------ */

BNY_DEVICE float bny_element_of_bits(banyan_dtype dtype, uint32_t bits) {
  if (dtype == BANYAN_F32) return bny_float_of_bits(bits);
  return dtype == BANYAN_F16 ? bny_f16_low(bits) : bny_bf16_low(bits);
}

BNY_DEVICE float bny_element_load(const void *elements, banyan_dtype dtype, int64_t index) {
  if (dtype == BANYAN_F32) return ((const float *)elements)[index];
  uint32_t bits = ((const uint16_t *)elements)[index];
  return bny_element_of_bits(dtype, bits);
}

BNY_DEVICE void bny_element_store(void *elements, banyan_dtype dtype, int64_t index, float value) {
  if (dtype == BANYAN_F32) ((float *)elements)[index] = value;
  else if (dtype == BANYAN_F16) ((uint16_t *)elements)[index] = (uint16_t)bny_pack_f16(value, 0.0f);
  else ((uint16_t *)elements)[index] = (uint16_t)bny_pack_bf16(value, 0.0f);
}

/* As it reads after having been stored. */
BNY_DEVICE float bny_element_round(banyan_dtype dtype, float value) {
  if (dtype == BANYAN_F32) return value;
  return dtype == BANYAN_F16 ? bny_f16_low(bny_pack_f16(value, 0.0f)) : bny_bf16_low(bny_pack_bf16(value, 0.0f));
}

/* ---- a lane's values of a row --------------------------------------------------------------------------------------- */

/* values[low..high) from elements at + low on; 0 elsewhere. All at once where they are whole 16 bytes. */
template <int count>
BNY_DEVICE void bny_values_load(const void *elements, banyan_dtype dtype, int64_t at, int low, int high, float *values) {
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
  /* All under way before the first is looked at. */
  uint32_t bits[count];
  BNY_UNROLL for (int i = 0; i < count; i++) bits[i] = 0;
  if (dtype == BANYAN_F32) {
    BNY_UNROLL for (int i = 0; i < count; i++)
      if (i >= low && i < high) bits[i] = bny_bits_of_float(((const float *)elements)[at + i]);
  } else {
    BNY_UNROLL for (int i = 0; i < count; i++)
      if (i >= low && i < high) bits[i] = ((const uint16_t *)elements)[at + i];
  }
  BNY_UNROLL for (int i = 0; i < count; i++) values[i] = bny_element_of_bits(dtype, bits[i]);
}

template <int count>
BNY_DEVICE void bny_values_store(void *elements, banyan_dtype dtype, int64_t at, int low, int high, const float *values) {
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
  BNY_UNROLL for (int i = 0; i < count; i++)
    if (i >= low && i < high) bny_element_store(elements, dtype, at + i, values[i]);
}

/* ---- statistics ----------------------------------------------------------------------------------------------------- */

struct bny_import {
  float m, d;   /* wire form */
  float factor; /* of the values; an empty row's are not read */
  bool bad;     /* statistics that nobody declared */
};

BNY_DEVICE float bny_import_below(const banyan_partial &in) {
  return in.empty & BANYAN_EMPTY_BELOW ? bny_element_round(in.stats_dtype, (float)in.empty_below) : -BNY_INFINITY_F;
}

/* Of a row's statistics, an lse with sum 1. `tight`: lossy wires. */
BNY_DEVICE bny_import bny_import_make(const banyan_partial &in, float stat, float sum, bool tight) {
  bny_import made = {-BNY_INFINITY_F, 0.0f, 0.0f, false};
  bool is_nan = stat != stat, is_infinite = stat == BNY_INFINITY_F;
  if (stat <= bny_import_below(in) || sum == 0.0f || (is_nan && in.empty & BANYAN_EMPTY_NAN) ||
      (is_infinite && in.empty & BANYAN_EMPTY_POS_INF))
    return made;
  made.bad = is_nan || is_infinite || !(sum > 0.0f && sum < BNY_INFINITY_F);
  if (made.bad) return made;
  bool normalised = in.values_kind == BANYAN_VALUES_NORMALISED;
  float nearest = (stat + 0x1.8p23f) - 0x1.8p23f; /* whole, for |stat| < 2^22 */
  if (in.base == BANYAN_BASE_2 && !normalised && !tight && in.stats_kind == BANYAN_STATS_MAX_SUM && nearest == stat &&
      __builtin_fabsf(stat) < 0x1p22f && sum >= 0x1p-32f && sum <= 0x1p48f) {
    /* what bny_stats_import() gives for what is in wire form already */
    made.m = stat;
    made.d = sum;
    made.factor = 1.0f;
    return made;
  }
  bny_stats_import(stat, sum, in.base == BANYAN_BASE_E, normalised, tight, &made.m, &made.d, &made.factor);
  return made;
}

BNY_DEVICE bny_import bny_import_row(const banyan_partial &in, int32_t token, int32_t head, bool tight) {
  int64_t at = bny_partial_stat_at(in, token, head);
  float stat = bny_element_load(in.lse, in.stats_dtype, at);
  float sum = in.stats_kind == BANYAN_STATS_MAX_SUM ? bny_element_load(in.sum, in.stats_dtype, at) : 1.0f;
  return bny_import_make(in, stat, sum, tight);
}

BNY_DEVICE float bny_export_empty(const banyan_partial &out) {
  if (out.empty & BANYAN_EMPTY_POS_INF) return BNY_INFINITY_F;
  return out.empty & BANYAN_EMPTY_BELOW ? (float)out.empty_below : -BNY_INFINITY_F;
}

/* What turns merged values into the caller's; lane 0 with `writes` also writes the statistics, if they are wanted. */
BNY_DEVICE float bny_export_row(const banyan_partial &out, int32_t token, int32_t head, float m, float d, bool writes) {
  bool base_e = out.base == BANYAN_BASE_E;
  float factor = bny_stats_reciprocal(d);
  writes = writes && bny_lane() == 0;
  if (!out.lse) return factor;
  int64_t at = bny_partial_stat_at(out, token, head);
  if (out.stats_kind == BANYAN_STATS_LSE) {
    if (writes)
      bny_element_store(out.lse, out.stats_dtype, at, d > 0.0f ? bny_stats_lse(m, d, base_e) : bny_export_empty(out));
    return factor;
  }
  float top = d > 0.0f ? m : 0.0f;
  float given = bny_element_round(out.stats_dtype, base_e ? (float)((double)top * BNY_LN_2) : top);
  /* an m beyond what the type holds is given as infinite, and d as it is */
  float finite = given - given == 0.0f ? given : 0.0f;
  double rebase = bny_stats_rebase(given == finite ? top : 0.0f, finite, base_e);
  if (out.values_kind == BANYAN_VALUES_NUMERATOR) factor = (float)rebase;
  if (writes) {
    bny_element_store(out.lse, out.stats_dtype, at, d > 0.0f ? given : bny_export_empty(out));
    bny_element_store(out.sum, out.stats_dtype, at, (float)((double)d * rebase));
  }
  return factor;
}

#endif
