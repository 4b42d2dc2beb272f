/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels read here which rows of a run live, from memory of the device at the time of the run. A program, and a
 * oneshot, are made for `most` tokens, and all places in inboxes are theirs. A run of fewer leaves out tokens on all
 * ranks alike: with one owner those from the count on, else those from the end of each owner's range on. */
#ifndef BNY_CUDA_LIVE_H
#define BNY_CUDA_LIVE_H

#include "cuda/worker.h"

/* A run's number of tokens, of which only what `call.live` says may be used if `call.live.most` is not 0. */
struct bny_live_run {
  int32_t count;
};

BNY_DEVICE int32_t bny_live_clamp(int32_t value, int32_t most) { return value < 0 ? 0 : value < most ? value : most; }

/* Called by all lanes after the kernels before this one. */
BNY_DEVICE bny_live_run bny_live_begin(const bny_device_live &live) {
  if (live.most == 0) return {0};
  return {bny_live_clamp(live.tokens ? *live.tokens : live.count, live.most)};
}

/* The first thing of part `index` of `count` things dealt to `parts` owners, as banyan_split() does. */
BNY_DEVICE int32_t bny_live_first(int32_t count, int32_t parts, int32_t index) {
  int32_t larger = count % parts;
  return index * (count / parts) + (index < larger ? index : larger);
}

/* Returns the run's token for a token of the plan; -1: it has none. Only if live.most is not 0. */
BNY_DEVICE int32_t bny_live_token(const bny_device_live &live, bny_live_run run, int32_t token) {
  if (live.owners == 1 || run.count == live.most) return token < run.count ? token : -1;
  int32_t each = live.most / live.owners, larger = live.most % live.owners;
  int32_t owner = token < larger * (each + 1) ? token / (each + 1) : larger + (token - larger * (each + 1)) / each;
  int32_t first = bny_live_first(run.count, live.owners, owner);
  int32_t found = first + (token - bny_live_first(live.most, live.owners, owner));
  return found < bny_live_first(run.count, live.owners, owner + 1) ? found : -1;
}

/* Called by all lanes. Returns the number of the sequence that has a token; -1: none has it. Lanes look side by side,
 * so that 31 sequences take one trip to memory, and 1,000 two. */
BNY_DEVICE int32_t bny_live_sequence(const bny_device_live &live, int32_t token) {
  if (!live.query_start_loc) return token < live.batch ? token : -1;
  int32_t low = 0, end = live.batch + 1; /* the number of starts up to the token is in [low, end] */
  BNY_ROLLED while (low < end) {
    int32_t step = (end - low + BNY_WARP_LANES - 1) / BNY_WARP_LANES, at = low + ((int32_t)bny_lane() + 1) * step - 1;
    uint32_t after = bny_warp_ballot(!(at < end && live.query_start_loc[at < end ? at : low] <= token));
    int32_t before = after ? bny_lowest_bit(after) : BNY_WARP_LANES;
    low += before * step;
    if (low + step - 1 < end) end = low + step - 1;
  }
  return low - 1 < live.batch ? low - 1 : -1;
}

/* Called by all lanes, with a token of the run. Returns whether its rows are read. */
BNY_DEVICE bool bny_live_reads(const bny_device_live &live, int32_t token) {
  if (live.token_mask && live.token_mask[token] == 0) return false;
  if (!live.seq_lens && !live.query_start_loc) return true;
  int32_t sequence = bny_live_sequence(live, token);
  return sequence >= 0 && (!live.seq_lens || live.seq_lens[sequence] > 0);
}

/* ---- ranks that disagree ----------------------------------------------------------------------------------------- */

/* Called by all lanes of the warp that announces the run, before it does: tells peers the number of tokens. It also
 * compares those of the run before, in case no rank had to wait in it. */
BNY_DEVICE_COLD void bny_live_announce(const bny_device_group *group, uint64_t epoch, int32_t count) {
  uint64_t word = bny_worker_tokens_pack(epoch, count);
  if (bny_lane() == 0) bny_worker_compare_tokens(group, epoch - 1);
  bny_warp_sync();
  BNY_ROLLED for (int32_t rank = (int32_t)bny_lane(); rank < group->nranks; rank += BNY_WARP_LANES) {
    bny_store_relaxed_sys_64(&bny_worker_head(*group, rank)->tokens[epoch & 1][group->rank], word);
  }
  bny_worker_fence_alias(*group);
  bny_fence_sys(); /* they are there when peers see that the run has begun */
  bny_warp_sync();
}

#endif
