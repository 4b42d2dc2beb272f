/* SPDX-License-Identifier: Apache-2.0
 *
 * The epilogue that writes finished rows to the caller's memory, in any convention: as the executor's merge_finish does.
 *
 * An epilogue is a type with
 *   template <int dim> static void row(Epilogue &self, uint32_t sequence, uint32_t head, const bny_decode_row<dim> &row)
 * which a whole warp calls once for each row, with the row in wire form (m a whole number, f32): the place where a row can
 * be pushed to peers instead; and
 *   static void end(Epilogue &self)
 * which all threads of a block call once, after its last row. */
#ifndef BNY_CUDA_DECODE_OUTPUT_CUH
#define BNY_CUDA_DECODE_OUTPUT_CUH

#include "banyan.h"
#include "cuda/decode_merge.cuh"

BNY_DEVICE float bny_output_round(banyan_dtype dtype, float value) {
  return dtype == BANYAN_F16    ? bny_f16_low(bny_pack_f16(value, 0))
         : dtype == BANYAN_BF16 ? bny_bf16_low(bny_pack_bf16(value, 0))
                                : value;
}

BNY_DEVICE void bny_output_put(void *to, int64_t index, banyan_dtype dtype, float value) {
  if (dtype == BANYAN_F32) ((float *)to)[index] = value;
  else if (dtype == BANYAN_F16) ((uint16_t *)to)[index] = (uint16_t)bny_pack_f16(value, 0);
  else ((uint16_t *)to)[index] = (uint16_t)bny_pack_bf16(value, 0);
}

/* Values in f32; stores of 8 or 16 bytes where the row allows it. */
BNY_DEVICE void bny_output_put_4(void *to, int64_t index, banyan_dtype dtype, const float *values) {
  const int bytes = dtype == BANYAN_F32 ? 4 : 2;
  unsigned char *at = (unsigned char *)to + index * bytes;
  if ((uintptr_t)at % (4 * bytes) != 0) {
    for (int i = 0; i < 4; i++) bny_output_put(to, index + i, dtype, values[i]);
  } else if (dtype == BANYAN_F32) {
    bny_store_floats((float *)at, values);
  } else {
    uint64_t low = dtype == BANYAN_F16 ? bny_pack_f16(values[0], values[1]) : bny_pack_bf16(values[0], values[1]);
    uint64_t high = dtype == BANYAN_F16 ? bny_pack_f16(values[2], values[3]) : bny_pack_bf16(values[2], values[3]);
    *(uint64_t *)at = low | high << 32;
  }
}

BNY_DEVICE float bny_output_empty(const banyan_partial &out) {
  return out.empty & BANYAN_EMPTY_POS_INF ? BNY_INFINITY_F
         : out.empty & BANYAN_EMPTY_BELOW ? (float)out.empty_below
                                          : -BNY_INFINITY_F;
}

/* Statistics as they are given, and what makes n the caller's values. */
struct bny_output_stats {
  float given, sum, factor;
};

BNY_DEVICE bny_output_stats bny_output_stats_of(const banyan_partial &out, float m, float d) {
  const int base_e = out.base == BANYAN_BASE_E;
  const bool filled = d > 0.0f;
  bny_output_stats stats = {bny_output_empty(out), 0, bny_stats_reciprocal(d)};
  if (!out.lse) return stats;
  if (out.stats_kind == BANYAN_STATS_LSE) {
    if (filled) stats.given = bny_stats_lse(m, d, base_e);
    return stats;
  }
  float known = filled ? m : 0.0f;
  float given = bny_output_round(out.stats_dtype, base_e ? (float)((double)known * BNY_LN_2) : known);
  /* an m beyond what the type holds is given as infinite, and d as it is */
  bool finite = given - given == 0.0f;
  double rebase = bny_stats_rebase(finite ? known : 0.0f, finite ? given : 0.0f, base_e);
  stats.sum = (float)((double)d * rebase);
  if (out.values_kind == BANYAN_VALUES_NUMERATOR) stats.factor = (float)rebase;
  if (filled) stats.given = given;
  return stats;
}

struct bny_decode_output {
  const banyan_partial &out;

  template <int dim>
  BNY_DEVICE void row(bny_decode_output &self, uint32_t sequence, uint32_t head, const bny_decode_row<dim> &row) {
    const banyan_partial &out = self.out;
    bny_output_stats stats = bny_output_stats_of(out, row.m, row.d);
    if (bny_lane() == 0 && out.lse) {
      int64_t index = sequence * out.stats_token_stride + head * out.stats_head_stride;
      bny_output_put(out.lse, index, out.stats_dtype, stats.given);
      if (out.stats_kind == BANYAN_STATS_MAX_SUM) bny_output_put(out.sum, index, out.stats_dtype, stats.sum);
    }
    int64_t first = sequence * out.values_token_stride + head * out.values_head_stride;
    BNY_UNROLL for (int quad = 0; quad < bny_decode_row<dim>::QUADS; quad++) {
      float values[4];
      if (bny_decode_column(quad) >= dim) continue;
      BNY_UNROLL for (int i = 0; i < 4; i++) values[i] = bny_mul(row.n[quad][i], stats.factor);
      bny_output_put_4(out.values, first + bny_decode_column(quad), out.values_dtype, values);
    }
  }

  BNY_DEVICE void end(bny_decode_output &) {}
};

#endif
