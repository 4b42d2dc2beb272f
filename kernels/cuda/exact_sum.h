/* SPDX-License-Identifier: Apache-2.0
 * Computes sums of BANYAN_ORDER_EXACT on a device: see kernels/exact.h. The rank that merges a row has the partials of
 * all ranks, so only f32 is sent. Each column has its own top, whereas on the host all columns of a row share one. Both
 * are exact sums of digits, but the digits differ, so the last bit may differ from the host's. */
#pragma once

#include "cuda/merge.h"
#include "exact.h"

enum { BNY_EXACT_WIDTH = 4 }; /* sources whose packets are received at a time */

/* A sum of numbers. `special` adds infinities and NaN, which have no digits. */
struct bny_exact_sum {
  double top;
  int64_t hi, lo;
  float special;
};

template <int protocol> struct bny_exact_lanes { bny_exact_sum d, n[bny_lane_values<protocol, 32>::count]; };

BNY_DEVICE void bny_exact_add(bny_exact_sum *sum, float m, float value) {
  double x = (double)value, size = x < 0.0 ? -x : x;
  if (size == 0.0) return;
  if (!(size <= 0x1p128)) {
    sum->special = bny_add(sum->special, value);
    return;
  }
  bny_exact_place at = bny_exact_at((double)m, size);
  int meet = bny_exact_meet(sum->top, at.top);
  if (meet > 1) return;
  if (meet < 0) {
    sum->lo = meet == -1 ? sum->hi : 0;
    sum->hi = 0;
    sum->top = at.top;
  }
  double scaled = bny_times_double(x, at.scale);
  if (meet == 1) {
    sum->lo += bny_exact_integer(scaled);
    return;
  }
  double whole = bny_exact_round(scaled);
  sum->hi += bny_exact_integer(whole);
  sum->lo += bny_exact_integer(bny_times_double(scaled - whole, 0x1p42));
}

template <int protocol> BNY_DEVICE void bny_exact_begin(bny_exact_lanes<protocol> *sums) {
  const bny_exact_sum empty = {-(double)BNY_INFINITY_F, 0, 0, 0.0f};
  sums->d = empty;
  BNY_UNROLL for (int i = 0; i < bny_lane_values<protocol, 32>::count; i++) sums->n[i] = empty;
}

/* Adds a source's packet and statistics. The values are relative to m. */
template <int protocol>
BNY_DEVICE void bny_exact_deposit(bny_exact_lanes<protocol> *sums, const bny_packet &packet, float m, float d,
                                  int wire) {
  if (d == 0.0f) return;
  bny_exact_add(&sums->d, m, d);
  BNY_UNROLL for (int i = 0; i < bny_lane_values<protocol, 32>::count; i++) {
    bny_exact_add(&sums->n[i], m, bny_unit_value(packet, i, wire, bny_unit_scales<32>()));
  }
}

/* The statistics of a sum. `sum` is in units of 2^(42 (top - 1)). */
struct bny_exact_total {
  double top, sum, whole;
  float m, d;
};

BNY_DEVICE bny_exact_total bny_exact_total_of(const bny_exact_sum &d) {
  bny_exact_total total = {d.top, 0.0, 0.0, -BNY_INFINITY_F, 0.0f};
  if (!(d.top > -(double)BNY_INFINITY_F)) return total;
  total.sum = bny_exact_value(d.hi, d.lo);
  total.whole = bny_exact_whole(d.top, total.sum);
  total.m = (float)bny_exact_m(d.top, total.whole);
  total.d = (float)bny_times_double(total.sum, bny_exact_power(-total.whole));
  return total;
}

/* Returns the total of a sum of tensors, whose values have their own size: no power of two is taken from them. */
BNY_DEVICE bny_exact_total bny_exact_total_none(void) { return {1.0, 0.0, 0.0, 0.0f, BNY_SUM_D}; }

/* Computes the output values: normalised in double and rounded once, or numerators relative to the exported m. */
template <int protocol>
BNY_DEVICE bny_lane_values<protocol, 32> bny_exact_values(const bny_exact_lanes<protocol> &sums,
                                                          const bny_exact_total &total, bool normalised) {
  bny_lane_values<protocol, 32> values;
  BNY_UNROLL for (int i = 0; i < values.count; i++) {
    const bny_exact_sum &n = sums.n[i];
    double step = BNY_EXACT_BITS * (n.top - total.top), scale = 0.0;
    if (step > -1000.0) scale = normalised ? bny_exact_power(step) / total.sum : bny_exact_power(step - total.whole);
    float value = scale == 0.0 ? 0.0f : (float)bny_times_double(bny_exact_value(n.hi, n.lo), scale);
    values.value[i] = n.special == 0.0f ? value : n.special;
  }
  return values;
}

/* Returns the factor of values that are already normalised. */
BNY_DEVICE float bny_exact_factor(const banyan_partial &out, int32_t head) {
  return out.values_scale ? bny_unscaled_factor(1.0f, out.values_scale[head * out.values_scale_stride]) : 1.0f;
}

/* Merges a row of all ranks into the caller's result. */
template <int protocol, class Sources>
BNY_DEVICE void bny_exact_merge(bny_worker *self, const Sources &sources, int count, const bny_unit_work &work,
                                int wire, const bny_device_call &call, int32_t token, int32_t head) {
  const int32_t out_token = token - call.out_token0, out_head = head - call.out_head0;
  const bool normalised = call.out.values_kind == BANYAN_VALUES_NORMALISED;
  float factor = 0.0f;
  BNY_ROLLED for (int first = 0; first < work.packets; first += BNY_WARP_LANES) {
    int packet = first + (int)bny_lane();
    bny_exact_lanes<protocol> sums;
    bny_exact_begin(&sums);
    BNY_ROLLED for (int base = 0; base < count && !self->failed; base += BNY_EXACT_WIDTH) {
      int some = count - base < BNY_EXACT_WIDTH ? count - base : BNY_EXACT_WIDTH;
      bny_packet packets[BNY_EXACT_WIDTH];
      float m[BNY_EXACT_WIDTH], d[BNY_EXACT_WIDTH];
      bny_merge_gather<protocol>(self, sources, base, some, work, packet, packets, m, d);
      BNY_UNROLL for (int s = 0; s < BNY_EXACT_WIDTH; s++) {
        if (s < some) bny_exact_deposit<protocol>(&sums, packets[s], m[s], d[s], wire);
      }
    }
    if (self->failed) return;
    bny_exact_total total = work.sums ? bny_exact_total_none() : bny_exact_total_of(sums.d);
    if (first == 0) {
      if (call.valid.keeps_empty_rows && total.d == 0.0f) return;
      factor = bny_export_row(self->group, call.out, out_token, out_head, total.m, total.d, work.chunk == 0);
      if (normalised) factor = bny_exact_factor(call.out, out_head);
    }
    bny_unit_write(call.out, work, out_token, out_head, packet, factor, packet < work.packets,
                   bny_exact_values(sums, total, normalised));
  }
}
