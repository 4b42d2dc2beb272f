/* SPDX-License-Identifier: Apache-2.0
 * The epilogue for finished rows. It writes them to the caller's memory, or pushes them to all ranks while other warps
 * still attend. In the second case a oneshot kernel follows, which merges what all ranks have pushed.
 *
 * A push takes no registers during attention. Its function is not inlined, and each warp keeps its state in shared
 * memory. A warp loads the run's number only when it has a row to push. It then also loads the words that show whether
 * it may write to peers' inboxes. */
#pragma once

#include "cuda/decode_output.cuh"
#include "cuda/fused.h"

/* The arguments of a row without its values, which are passed in registers. */
struct bny_decode_combine_row {
  int32_t token, head;
  float m, d;
};

template <int quads> struct bny_decode_combine_values { float n[quads][4]; };

template <int quads>
BNY_DEVICE_COLD void bny_decode_combine_push(const bny_device_combine &combine, bny_fused_state *states,
                                             bny_decode_combine_row row, bny_decode_combine_values<quads> values) {
  banyan_partial in = {}; /* in wire form, which the compiler then knows */
  in.values_kind = BANYAN_VALUES_NUMERATOR;
  in.stats_kind = BANYAN_STATS_MAX_SUM;
  in.base = BANYAN_BASE_2;
  bny_fused_run run;
  bny_fused_resume(&run, combine, states[bny_warp()]);
  bny_fused_push(&run, in, row.token, row.head, row.m, row.d, bny_fused_quads<quads>{values.n});
  bny_fused_suspend(run, states + bny_warp());
}

struct bny_decode_epilogue {
  const banyan_partial &out;
  const bny_device_combine &combine; /* mergers 0: no combine; only `group` is valid, for reports of faults */
  bny_fused_state *states;           /* one per warp of the block */

  /* Returns the group that receives reports of faults. A group of 0 ranks receives none. */
  BNY_DEVICE_METHOD const bny_device_group *group() const { return &combine.group; }

  /* Called by all threads of a block, maybe before the stream's earlier kernels have ended. */
  BNY_DEVICE_METHOD void begin() const {
    if (combine.mergers && bny_lane() == 0) states[bny_warp()] = {0, 0, 0};
    bny_warp_sync();
  }

  /* Called by a warp, once for each row. */
  template <int dim>
  BNY_DEVICE_METHOD void row(uint32_t sequence, uint32_t head, const bny_decode_row<dim> &row) const {
    enum : int { QUADS = bny_decode_row<dim>::QUADS };
    if (combine.mergers == 0) {
      bny_decode_output(&combine.group, out, (int32_t)sequence, (int32_t)head, row);
      return;
    }
    bny_decode_combine_values<QUADS> values;
    BNY_UNROLL for (int i = 0; i < 4 * QUADS; i++) values.n[i / 4][i % 4] = row.n[i / 4][i % 4];
    bny_decode_combine_push<QUADS>(combine, states, {(int32_t)sequence, (int32_t)head, row.m, row.d}, values);
  }
};
