/* SPDX-License-Identifier: Apache-2.0
 * A combine within another kernel, for include/banyan_device.cuh. Blocks push rows as they finish them, and the last
 * blocks of the grid merge them.
 *
 * Every wait ends, because only the last blocks wait. A push waits for no row. A block that has pushed all its rows
 * takes a number, and merges only if it is among the last `mergers` blocks of the grid. All other blocks end without
 * waiting. The waiting blocks and the blocks that have not pushed everything yet are at most `mergers` together. The
 * host ensures that this many can run at once, so all rows of all ranks get pushed.
 *
 * The last block advances the run counter for the next run. bny_worker_begin() cannot do it here, because the number of
 * participating warps is not known in advance.
 *
 * A run may have its own number of tokens (valid.h). Rows are then pushed by tokens of the run, at the positions of the
 * plan's tokens. The warp that announces the run first sends this number to peers. It therefore joins before it sends:
 * only then may it overwrite its number of the run before last.
 *
 * A kernel may wait for rows before any block arrives, and ranks compare their numbers of tokens while they wait. Its
 * first warp therefore announces the run at once.
 *
 * Decode kernels only push. The oneshot kernel that follows them in the stream merges and counts the run, in place of
 * the last blocks (bny_oneshot.pushed). */
#pragma once

#include "cuda/oneshot.cuh"

/* Sources merged at a time if there are more than BNY_ONESHOT_NARROW_RANKS ranks, which leaves the caller's kernel
 * registers. */
enum { BNY_FUSED_WIDTH = 4 };

struct bny_fused_run {
  bny_worker self;
  const bny_device_combine *combine;
  bny_valid_run valid;
  bool joined;
};

BNY_DEVICE void bny_fused_join(bny_fused_run *run) {
  if (!run->joined) bny_worker_join_alone(&run->self);
  run->joined = true;
}

/* Called by all lanes of one warp. Announces the run to peers. */
BNY_DEVICE void bny_fused_announce(bny_fused_run *run) {
  const bny_device_combine &combine = *run->combine;
  if (combine.call.valid.most) {
    bny_fused_join(run);
    bny_valid_announce(&combine.group, run->self.epoch, run->valid.count);
  } else if (!run->joined) {
    bny_worker_number(&run->self);
  }
  bny_worker_announce(run->self);
  bny_valid_check(&combine.group, combine.call.valid, run->valid);
}

/* Begins a run that the warp has not joined. */
BNY_DEVICE void bny_fused_open(bny_fused_run *run, const bny_device_combine &combine) {
  run->combine = &combine;
  run->joined = false;
  bny_worker_open(&run->self, combine.group);
  run->valid = bny_valid_begin(combine.call.valid);
}

/* Called by all lanes of each warp that pushes or calls bny_fused_end(). */
BNY_DEVICE void bny_fused_begin(bny_fused_run *run, const bny_device_combine &combine) {
  bny_fused_open(run, combine);
  if (bny_block() == 0 && bny_warp() == 0) bny_fused_announce(run);
}

/* The state of a run that a warp keeps in shared memory to save registers, between bny_fused_resume() and
 * bny_fused_suspend(). */
struct bny_fused_state {
  uint64_t epoch; /* 0: not joined */
  uint32_t failed;
  int32_t count; /* as in bny_valid_run */
};

/* Called by all lanes. If the warp has not joined, it begins the run. */
BNY_DEVICE void bny_fused_resume(bny_fused_run *run, const bny_device_combine &combine, const bny_fused_state &state) {
  if (state.epoch == 0) {
    bny_fused_open(run, combine);
    return;
  }
  run->combine = &combine;
  run->joined = true;
  bny_worker_set(&run->self, combine.group);
  run->self.epoch = state.epoch;
  run->self.failed = state.failed != 0;
  run->valid = {state.count};
}

BNY_DEVICE void bny_fused_suspend(const bny_fused_run &run, bny_fused_state *state) {
  if (bny_lane() == 0) *state = {run.joined ? run.self.epoch : 0, run.self.failed ? 1u : 0u, run.valid.count};
  bny_warp_sync();
}

/* Return a value of a row from a function that all lanes call, or from an array. */
template <class Values> BNY_DEVICE float bny_fused_value(const Values &values, int column) { return values(column); }
BNY_DEVICE float bny_fused_value(const float *values, int column) { return values[column]; }
BNY_DEVICE float bny_fused_value(float *values, int column) { return values[column]; }

/* A row in registers. Lane l holds columns 4 l .. 4 l + 3 of each 128 columns. */
template <int quads> struct bny_fused_quads {
  const float (*n)[4];

  BNY_DEVICE_METHOD float operator()(int column) const {
    float value = 0.0f;
    BNY_UNROLL for (int i = 0; i < 4 * quads; i++) {
      float theirs = bny_shuffle(n[i / 4][i % 4], column / 4 % BNY_WARP_LANES);
      if (i == column / 128 * 4 + column % 4) value = theirs;
    }
    return value;
  }
};

/* Called by all lanes. Each lane reads its own columns. A masked row is sent as an empty one, and its values are not
 * read. `in` is the convention of the row. */
template <int bits, class Values>
BNY_DEVICE void bny_fused_push_row(bny_fused_run *run, const banyan_partial &in, int32_t token, bny_valid_row valid,
                                   int32_t head, float stat, float sum, const Values &values) {
  bny_worker *self = &run->self;
  const bny_oneshot &what = run->combine->what;
  bny_unit_work work = bny_unit_work_make<BNY_PROTOCOL_LL16, bits>(what.shape);
  bny_oneshot_destinations to = {{self, &what, BNY_PROTOCOL_LL16, 0}, true};
  bny_import import = {-BNY_INFINITY_F, 0.0f, 0.0f, false};
  if (valid.reads) import = bny_import_make(in, stat, sum, bits != 32);
  bny_valid_report_data(self, run->combine->call.valid, run->valid, import.bad, token, head);
  BNY_ROLLED for (int first = 0; first < work.packets && !self->failed; first += BNY_WARP_LANES) {
    int packet = first + (int)bny_lane();
    bny_unit_columns at = bny_unit_columns_of<BNY_PROTOCOL_LL16, bits>(work, packet);
    bny_lane_values<BNY_PROTOCOL_LL16, bits> taken;
    BNY_UNROLL for (int i = 0; i < taken.count; i++) {
      bool wanted = i >= at.low && i < at.high;
      float value = work.columns > 0 && valid.reads ? bny_fused_value(values, wanted ? at.column + i : 0) : 0.0f;
      taken.value[i] = wanted ? value : 0.0f;
    }
    bny_packet made = bny_unit_import(taken, work, import, packet, what.shape.wire);
    bny_push_packet<BNY_PROTOCOL_LL16>(*self, to, valid.position, head, packet, packet < work.packets, made);
  }
  bny_worker_fence_alias(*self->group);
}

template <class Values>
BNY_DEVICE void bny_fused_push(bny_fused_run *run, const banyan_partial &in, int32_t token, int32_t head, float stat,
                               float sum, const Values &values) {
  bny_warp_sync();
  bny_fused_join(run);
  bny_valid_row valid = {token, true};
  if (run->combine->call.valid.most) valid = bny_valid_row_of(run->combine->call.valid, run->valid.count, token);
  if (valid.position < 0) return;
  if (run->combine->what.shape.wire == BNY_WIRE_F32)
    bny_fused_push_row<32>(run, in, token, valid, head, stat, sum, values);
  else
    bny_fused_push_row<16>(run, in, token, valid, head, stat, sum, values);
}

template <int bits, int width>
BNY_DEVICE bny_oneshot_run<BNY_PROTOCOL_LL16, bits, width> bny_fused_merge_begin(const bny_fused_run &run) {
  bny_oneshot_run<BNY_PROTOCOL_LL16, bits, width> merge;
  merge.self = run.self;
  merge.valid = run.valid;
  merge.lone = merge.sums = false;
  merge.work = bny_unit_work_make<BNY_PROTOCOL_LL16, bits>(run.combine->what.shape);
  return merge;
}

/* Called by all lanes of warp `group` of `groups`. Merges the warp's rows of this rank. */
struct bny_fused_merge_rows {
  uint32_t group, groups;

  template <int bits, int width> BNY_DEVICE_METHOD void merge(bny_fused_run *run) const {
    auto all = bny_fused_merge_begin<bits, width>(*run);
    all.work.group = group;
    all.work.groups = groups;
    bny_oneshot_merge_rows(&all, run->combine->what, run->combine->call);
    run->self = all.self;
  }
};

/* Called by all lanes. `token` is a token of the plan. */
struct bny_fused_merge_row {
  int32_t token, head;

  template <int bits, int width> BNY_DEVICE_METHOD void merge(bny_fused_run *run) const {
    const bny_oneshot &what = run->combine->what;
    auto one = bny_fused_merge_begin<bits, width>(*run);
    bny_oneshot_sources sources = {{&one.self, &what, BNY_PROTOCOL_LL16, 0},
                                   bny_oneshot_unit(what, 0, one.self.group->rank, token, head, 0)};
    if (sources.number >= 0 && !one.self.failed)
      bny_oneshot_merge_row(&one, sources, token, head, what, run->combine->call);
    run->self = one.self;
  }
};

BNY_DEVICE bool bny_fused_is_wide(const bny_device_combine &combine) {
  return combine.group.nranks > BNY_ONESHOT_NARROW_RANKS;
}

template <int width, class What> BNY_DEVICE void bny_fused_merge_of(bny_fused_run *run, const What &what) {
  if (run->combine->what.shape.wire == BNY_WIRE_F32)
    what.template merge<32, width>(run);
  else
    what.template merge<16, width>(run);
}

BNY_DEVICE void bny_fused_merge(bny_fused_run *run, int32_t token, int32_t head) {
  bny_fused_join(run);
  const bny_device_valid &valid = run->combine->call.valid;
  if (valid.most) token = bny_valid_position(valid, run->valid, token);
  if (token < 0) return;
  bny_fused_merge_row row = {token, head};
  if (bny_fused_is_wide(*run->combine))
    bny_fused_merge_of<BNY_FUSED_WIDTH>(run, row);
  else
    bny_fused_merge_of<0>(run, row);
}

BNY_DEVICE int32_t bny_fused_tokens(const bny_fused_run &run) {
  return run.combine->call.valid.most ? run.valid.count : run.combine->what.shape.tokens;
}

/* Called by all lanes. Returns whether the run has the token and its rows are valid on this rank. */
BNY_DEVICE bool bny_fused_is_valid(const bny_fused_run &run, int32_t token) {
  if ((uint32_t)token >= (uint32_t)bny_fused_tokens(run)) return false;
  return run.combine->call.valid.most == 0 || bny_valid_reads(run.combine->call.valid, token);
}

/* Called by all threads of a block. Counts the block, and returns how many blocks were not counted before, itself
 * included. */
BNY_DEVICE uint32_t bny_fused_arrive(bny_fused_run *run) {
  BNY_SHARED(uint32_t, bny_fused_left);
  bny_arena_head *head = run->self.head;
  bny_block_sync();
  if (bny_thread() == 0) {
    uint32_t left = bny_grid_blocks() - bny_add_gpu_32(&head->arrived, 1);
    bny_fused_left = left;
    if (left == 1) {
      bny_store_relaxed_gpu_32(&head->arrived, 0);
      bny_add_relaxed_gpu_64(&head->tickets, (uint64_t)1 << BNY_TICKET_BITS);
    }
  }
  bny_block_sync();
  return bny_fused_left;
}

/* Called once by all threads of a block, after the block's last push. All lanes of a warp pass the same run. */
BNY_DEVICE void bny_fused_end(bny_fused_run *run) {
  uint32_t left = bny_fused_arrive(run), warps = bny_block_threads() / BNY_WARP_LANES;
  uint32_t mergers = run->combine->mergers < bny_grid_blocks() ? run->combine->mergers : bny_grid_blocks();
  if (left > mergers) return;
  bny_fused_join(run);
  bny_fused_merge_rows rows = {(left - 1) * warps + bny_warp(), mergers * warps};
  if (bny_fused_is_wide(*run->combine))
    bny_fused_merge_of<BNY_FUSED_WIDTH>(run, rows);
  else
    bny_fused_merge_of<0>(run, rows);
}
