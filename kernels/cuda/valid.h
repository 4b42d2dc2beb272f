/* SPDX-License-Identifier: Apache-2.0
 * Finds the valid rows of a run from device memory, during the run. Programs and oneshots are made for `most` tokens,
 * which fixes all offsets in inboxes. A run with fewer tokens omits the same tokens on all ranks. With one owner these
 * are the last tokens; else they are the last tokens of each owner's range. */
#pragma once

#include "cuda/worker.h"

/* The number of tokens of a run. Valid only if `call.valid.most` is not 0. */
struct bny_valid_run {
  int32_t count;
};

BNY_DEVICE int32_t bny_valid_clamp(int32_t value, int32_t most) { return value < 0 ? 0 : value < most ? value : most; }

/* Called by all lanes after the kernels before this one. */
BNY_DEVICE bny_valid_run bny_valid_begin(const bny_device_valid &valid) {
  if (valid.most == 0) return {0};
  return {bny_valid_clamp(valid.tokens ? *valid.tokens : valid.count, valid.most)};
}

/* Returns the owner of item `thing` of `count` items. */
BNY_DEVICE int32_t bny_valid_owner(int32_t count, int32_t parts, int32_t thing) {
  int32_t each = count / parts, larger = count % parts;
  return thing < larger * (each + 1) ? thing / (each + 1) : larger + (thing - larger * (each + 1)) / each;
}

/* Returns which of `to` tokens has the same place within its owner's part as token `token` of `from`, or -1 if that
 * part is shorter. */
BNY_DEVICE_COLD int32_t bny_valid_move(int32_t from, int32_t to, int32_t parts, int32_t token) {
  int32_t owner = bny_valid_owner(from, parts, token);
  int32_t found = bny_split_first(to, parts, owner) + (token - bny_split_first(from, parts, owner));
  return found < bny_split_first(to, parts, owner + 1) ? found : -1;
}

/* Returns the run's token for a token of the plan, or -1 if the run omits it. Requires valid.most != 0. */
BNY_DEVICE int32_t bny_valid_token(const bny_device_valid &valid, bny_valid_run run, int32_t token) {
  if (valid.owners == 1 || run.count == valid.most) return token < run.count ? token : -1;
  return bny_valid_move(valid.most, run.count, valid.owners, token);
}

/* Returns the plan's token for a token of the run, or -1 if the run has no such token. Requires valid.most != 0. */
BNY_DEVICE int32_t bny_valid_position(const bny_device_valid &valid, bny_valid_run run, int32_t token) {
  if ((uint32_t)token >= (uint32_t)run.count) return -1;
  if (valid.owners == 1 || run.count == valid.most) return token;
  return bny_valid_move(run.count, valid.most, valid.owners, token);
}

/* Called by all lanes. Returns the index of the sequence that contains a token, or -1. The lanes search in parallel, so
 * 31 sequences take one memory access and 1,000 take two. */
BNY_DEVICE int32_t bny_valid_sequence(const bny_device_valid &valid, int32_t token) {
  if (!valid.query_start_loc) return token < valid.batch ? token : -1;
  int32_t low = 0, end = valid.batch + 1; /* how many starts are at or below the token: in [low, end] */
  BNY_ROLLED while (low < end) {
    int32_t step = (end - low + BNY_WARP_LANES - 1) / BNY_WARP_LANES, at = low + ((int32_t)bny_lane() + 1) * step - 1;
    uint32_t after = bny_warp_ballot(!(at < end && valid.query_start_loc[at < end ? at : low] <= token));
    int32_t before = after ? bny_lowest_bit(after) : BNY_WARP_LANES;
    low += before * step;
    if (low + step - 1 < end) end = low + step - 1;
  }
  return low - 1 < valid.batch ? low - 1 : -1;
}

/* Called by all lanes, with a token of the run. Returns whether its rows are read. */
BNY_DEVICE bool bny_valid_reads(const bny_device_valid &valid, int32_t token) {
  if (valid.token_mask && valid.token_mask[token] == 0) return false;
  if (!valid.seq_lens && !valid.query_start_loc) return true;
  int32_t sequence = bny_valid_sequence(valid, token);
  return sequence >= 0 && (!valid.seq_lens || valid.seq_lens[sequence] > 0);
}

/* The state of a token in a kernel that pushes rows one by one. */
struct bny_valid_row {
  int32_t position; /* the plan's token; -1: the run has no such token */
  bool reads;       /* its rows are valid on this rank */
};

/* Called by all lanes, and only if valid.most != 0. */
BNY_DEVICE_COLD bny_valid_row bny_valid_row_of(const bny_device_valid &valid, int32_t count, int32_t token) {
  int32_t position = bny_valid_position(valid, {count}, token);
  return {position, position >= 0 && bny_valid_reads(valid, token)};
}

/* ---- what may be wrong ------------------------------------------------------------------------------------------- */

/* Called by one warp. Reports the first start that is negative, less than the previous start, or beyond the run's
 * tokens. A report ends the run on all ranks. */
BNY_DEVICE_COLD void bny_valid_check_starts(const bny_device_group *group, const int32_t *starts, int32_t batch,
                                            int32_t tokens) {
  BNY_ROLLED for (int32_t first = 0; first <= batch; first += BNY_WARP_LANES) {
    const int32_t at = first + (int32_t)bny_lane(), last = at < batch ? at : batch;
    const int32_t start = starts[last], before = last > 0 ? starts[last - 1] : 0;
    const uint32_t wrong = bny_warp_ballot(start < before || start > tokens);
    if (wrong == 0) continue;
    const uint32_t detail = (uint32_t)last & (BNY_DEVICE_DETAIL_START - 1);
    if ((int)bny_lane() == bny_lowest_bit(wrong))
      bny_worker_report_position(
          group, bny_device_fault_pack(BANYAN_ERR_ARGUMENT, group->rank, group->rank, detail | BNY_DEVICE_DETAIL_START),
          bny_device_position_pack((uint32_t)(start < before ? before : tokens), start));
    bny_warp_sync();
    return;
  }
}

/* Called by the warp that has announced a run. */
BNY_DEVICE void bny_valid_check(const bny_device_group *group, const bny_device_valid &valid, bny_valid_run run) {
  if (valid.query_start_loc) bny_valid_check_starts(group, valid.query_start_loc, valid.batch, run.count);
}

/* Reports bad data. `bad` is set in lanes that found it in a row of the caller's partial. Wrong starts are reported
 * first, because they may select a row that the caller has not filled. */
BNY_DEVICE_COLD void bny_valid_report_bad(const bny_device_group *group, const bny_device_valid *valid, int32_t count,
                                          bool bad, int32_t token, int32_t head) {
  if (valid->most) bny_valid_check(group, *valid, {count});
  if (bad)
    bny_worker_report_position(group, bny_device_fault_pack(BANYAN_ERR_DATA, group->rank, group->rank, 0),
                               bny_device_position_pack((uint32_t)token, head));
}

/* Called by all lanes. */
BNY_DEVICE void bny_valid_report_data(bny_worker *self, const bny_device_valid &valid, bny_valid_run run, bool bad,
                                      int32_t token, int32_t head) {
  if (!bny_warp_any(bad)) return;
  bny_valid_report_bad(self->group, &valid, run.count, bad, token, head);
  self->failed = true;
}

/* ---- ranks that disagree ----------------------------------------------------------------------------------------- */

/* Called by all lanes of the warp that announces the run, before the announcement. Sends the number of tokens to peers.
 * It also compares the numbers of the previous run, because ranks compare them only if they have to wait. */
BNY_DEVICE_COLD void bny_valid_announce(const bny_device_group *group, uint64_t epoch, int32_t count) {
  uint64_t word = bny_worker_tokens_pack(epoch, count);
  if (bny_lane() == 0) bny_worker_compare_tokens(group, epoch - 1);
  bny_warp_sync();
  BNY_ROLLED for (int32_t rank = (int32_t)bny_lane(); rank < group->nranks; rank += BNY_WARP_LANES) {
    bny_store_relaxed_sys_64(&bny_worker_head(*group, rank)->tokens[epoch & 1][group->rank], word);
  }
  bny_worker_fence_alias(*group);
  bny_fence_sys(); /* peers that see the run begun also see the numbers */
  bny_warp_sync();
}
