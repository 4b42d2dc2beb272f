/* SPDX-License-Identifier: Apache-2.0
 * The kernel of selections. Each rank sorts its lists and pushes them to all ranks, and every rank merges all lists. A
 * block handles a row: block i of the grid's G blocks handles rows i, i + G, i + 2G and so on. It pushes all its rows
 * before it waits for those of peers. The arithmetic of pairs is that of the host (select.h). */
#pragma once

#include "cuda/merge.h"
#include "cuda/selection.h"
#include "cuda/valid.h"

/* ---- in a block -------------------------------------------------------------------------------------------------- */

/* Returns the least value of all threads. */
BNY_DEVICE uint32_t bny_block_least(uint32_t value) {
  BNY_SHARED_ARRAY(uint32_t, least, BNY_BLOCK_THREADS_MAX / 32);
  value = ~bny_warp_max_32(~value);
  if (bny_lane() == 0) least[bny_warp()] = value;
  bny_block_sync();
  BNY_ROLLED for (uint32_t warp = 0; warp < bny_block_threads() / BNY_WARP_LANES; warp++) {
    value = least[warp] < value ? least[warp] : value;
  }
  bny_block_sync(); /* all threads have read before the next call writes */
  return value;
}

BNY_DEVICE bool bny_block_any(bool p) { return bny_block_least(p ? 0 : 1) == 0; }

/* Sorts a list that all threads see. Every exchange puts the earlier pair at the lower place, so the places up to the
 * next power of two need not exist: pairs there would never move. */
BNY_DEVICE void bny_block_sort(bny_pair *list, int32_t count) {
  BNY_ROLLED for (int32_t run = 1; run < count; run *= 2) {
    BNY_ROLLED for (int32_t step = run; step > 0; step /= 2) {
      BNY_ROLLED for (int32_t i = (int32_t)bny_thread();; i += (int32_t)bny_block_threads()) {
        int32_t begin = i / step * 2 * step, a = begin + i % step;
        int32_t b = step == run ? begin + 2 * step - 1 - i % step : a + step; /* the first step mirrors a half */
        if (begin >= count) break;
        if (b >= count || !bny_pair_before(list[b], list[a])) continue;
        bny_pair later = list[a];
        list[a] = list[b];
        list[b] = later;
      }
      bny_block_sync();
    }
  }
}

/* Writes the first `count` pairs of two lists, which have as many. Each thread writes some neighbours. */
BNY_DEVICE void bny_block_merge(const bny_pair *a, const bny_pair *b, int32_t count, bny_pair *to) {
  int32_t threads = (int32_t)bny_block_threads(), each = (count + threads - 1) / threads;
  int32_t first = (int32_t)bny_thread() * each, end = first + each < count ? first + each : count;
  if (first < end) {
    int32_t of_a = bny_pairs_split(a, b, first);
    a += of_a;
    b += first - of_a;
  }
  BNY_ROLLED for (int32_t i = first; i < end; i++) {
    bool b_first = bny_pair_before(*b, *a);
    to[i] = b_first ? *b : *a;
    b += b_first;
    a += !b_first;
  }
  bny_block_sync();
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

struct bny_select_run {
  bny_worker self;
  const bny_selection *what;
  int32_t rows, first, step; /* rows of the box; the first of this block, and the distance to the next */

  /* List `row` of rank `from` in the inbox of rank `at`. */
  BNY_DEVICE_METHOD int64_t number(int32_t from, int32_t row) const {
    return (int64_t)from * what->shape.tokens * what->shape.heads + row;
  }
  BNY_DEVICE_METHOD bny_pair *list(int32_t at, int32_t from, int32_t row) const {
    return (bny_pair *)(bny_worker_inbox(self, at, BNY_PROTOCOL_SIMPLE) +
                        number(from, row) * (int64_t)what->shape.unit_bytes);
  }
  BNY_DEVICE_METHOD int32_t token(int32_t row) const { return what->shape.token0 + row / what->shape.heads; }
  BNY_DEVICE_METHOD int32_t head(int32_t row) const { return what->shape.head0 + row % what->shape.heads; }
  /* The number of the row in the caller's memory. */
  BNY_DEVICE_METHOD int64_t place(int32_t row) const { return (int64_t)token(row) * what->all_heads + head(row); }
};

/* The lists of all ranks for a row, as bny_merge_await() has them. */
struct bny_select_sources {
  const bny_select_run *run;
  int32_t row;

  BNY_DEVICE_METHOD const uint64_t *signal(int s) const {
    return bny_worker_signals(run->self, run->self.group->rank) + run->number(s, row);
  }
  BNY_DEVICE_METHOD int32_t peer(int s) const { return s; }
  BNY_DEVICE_METHOD int32_t slot(int) const { return 0; }
};

/* ---- the lists of this rank -------------------------------------------------------------------------------------- */

/* Makes the sorted list of a row's offers in this rank's inbox. */
BNY_DEVICE void bny_select_make(const bny_select_run &run, int32_t row, bny_pair *to) {
  const bny_lists &from = run.what->lists;
  int32_t k = run.what->shape.value_dim, rank = run.self.group->rank;
  int64_t at = run.place(row) * from.in_stride;
  bool sorted = true;
  BNY_ROLLED for (int32_t i = (int32_t)bny_thread(); i < k; i += (int32_t)bny_block_threads()) {
    int64_t index = i < from.offers ? from.indices[at + i] : -1;
    to[i] = index < 0 ? bny_pair_absent() : bny_pair_make(from.scores[at + i], index, rank, i);
  }
  bny_block_sync();
  BNY_ROLLED for (int32_t i = (int32_t)bny_thread() + 1; i < k; i += (int32_t)bny_block_threads()) {
    sorted = sorted && !bny_pair_before(to[i], to[i - 1]);
  }
  if (bny_block_any(!sorted)) bny_block_sort(to, k);
}

BNY_DEVICE void bny_select_push(const bny_select_run &run, int32_t row, const bny_pair *list) {
  const bny_device_group &group = *run.self.group;
  BNY_ROLLED for (int32_t i = (int32_t)bny_thread(); i < run.what->shape.value_dim; i += (int32_t)bny_block_threads()) {
    bny_quad quad = {
        {(uint32_t)list[i].high, (uint32_t)(list[i].high >> 32), (uint32_t)list[i].low, (uint32_t)(list[i].low >> 32)}};
    BNY_ROLLED for (int32_t d = 1; d < group.nranks; d++) {
      int32_t peer = group.rank + d < group.nranks ? group.rank + d : group.rank + d - group.nranks;
      bny_store_quad(run.list(peer, group.rank, row) + i, quad);
    }
  }
  bny_worker_fence_alias(group);
}

/* Sends the signals of all rows that the block has pushed. As in bny_push_signals(), with the block for the warp. */
BNY_DEVICE void bny_select_signal(const bny_select_run &run) {
  const bny_device_group &group = *run.self.group;
  bny_block_sync();
  int32_t rows = run.first < run.rows ? (run.rows - 1 - run.first) / run.step + 1 : 0, signals = rows * group.nranks;
  if ((int32_t)bny_thread() >= signals) return;
  bny_worker_fence_alias(group);
  bny_fence_sys();
  BNY_ROLLED for (int32_t i = (int32_t)bny_thread(); i < signals; i += (int32_t)bny_block_threads()) {
    int64_t number = run.number(group.rank, run.first + i / group.nranks * run.step);
    bny_store_relaxed_sys_64(bny_worker_signals(run.self, i % group.nranks) + number, run.self.epoch);
  }
  bny_worker_fence_alias(group);
}

/* ---- the lists of all ranks -------------------------------------------------------------------------------------- */

/* Waits for the lists of a row. Returns false if the run has failed. */
BNY_DEVICE bool bny_select_await(bny_select_run *run, int32_t row) {
  const bny_select_sources sources = {run, row};
  const int32_t nranks = run->self.group->nranks;
  BNY_ROLLED for (int32_t base = 0; base < nranks; base += BNY_MERGE_WIDTH) {
    bny_merge_await(&run->self, sources, base, nranks - base < BNY_MERGE_WIDTH ? nranks - base : BNY_MERGE_WIDTH, 0);
  }
  return !bny_block_any(run->self.failed);
}

/* Writes a row of the result. Thread i writes pair i and what follows from it; the last that is chosen knows how many
 * are. The first pairs of this rank's own list are those that are chosen. */
BNY_DEVICE void bny_select_finish(const bny_select_run &run, int32_t row, const bny_pair *best, const bny_pair *own) {
  const bny_lists &to = run.what->lists;
  int32_t k = run.what->shape.value_dim;
  int64_t place = run.place(row), at = place * to.out_stride;
  const bny_pair last = best[k - 1];
  BNY_ROLLED for (int32_t i = (int32_t)bny_thread(); i <= k; i += (int32_t)bny_block_threads()) {
    bool is_there = i < k && !bny_pair_is_absent(best[i]);
    bool was_there = i == 0 || !bny_pair_is_absent(best[i - 1]);
    bool is_own = i < k && !bny_pair_is_absent(own[i]) && !bny_pair_before(last, own[i]);
    bool was_own = i == 0 || (!bny_pair_is_absent(own[i - 1]) && !bny_pair_before(last, own[i - 1]));
    if (to.counts && was_there && !is_there) to.counts[place] = i;
    if (to.own_counts && was_own && !is_own) to.own_counts[place] = i;
    if (i == k) break;
    if (to.best_scores) to.best_scores[at + i] = is_there ? bny_pair_score(best[i]) : -BNY_INFINITY_F;
    if (to.best_indices) to.best_indices[at + i] = is_there ? bny_pair_index(best[i]) : -1;
    int32_t position = bny_pair_position(own[i]);
    if (to.own) to.own[at + i] = !is_own ? -1 : to.rows ? to.rows[place * to.in_stride + position] : position;
  }
}

/* Reports the first pair whose index is that of an earlier one, as the host does. `keys` is room for a list. */
BNY_DEVICE void bny_select_check(const bny_select_run &run, int32_t row, const bny_pair *best, bny_pair *keys) {
  int32_t k = run.what->shape.value_dim;
  uint32_t first = UINT32_MAX, before = 0;
  BNY_ROLLED for (int32_t i = (int32_t)bny_thread(); i < k; i += (int32_t)bny_block_threads()) {
    keys[i] =
        bny_pair_is_absent(best[i]) ? bny_pair_absent() : bny_pair_of((uint64_t)bny_pair_index(best[i]), (uint64_t)i);
  }
  bny_block_sync();
  bny_block_sort(keys, k);
  BNY_ROLLED for (int32_t i = (int32_t)bny_thread() + 1; i < k; i += (int32_t)bny_block_threads()) {
    bool doubled = keys[i].high == keys[i - 1].high && !bny_pair_is_absent(keys[i]) && keys[i].low < first;
    if (!doubled) continue;
    first = (uint32_t)keys[i].low;
    before = (uint32_t)keys[i - 1].low;
  }
  if (bny_block_least(first) != first || first == UINT32_MAX) return;
  bny_worker_report_doubled(run.self.group, bny_pair_rank(best[before]), bny_pair_rank(best[first]),
                            bny_device_position_pack((uint32_t)run.token(row), run.head(row)),
                            (uint64_t)bny_pair_index(best[first]));
}

BNY_DEVICE void bny_select_merge(const bny_select_run &run, int32_t row) {
  const int32_t nranks = run.self.group->nranks, rank = run.self.group->rank, k = run.what->shape.value_dim;
  const bny_pair *best = run.list(rank, 0, row);
  BNY_ROLLED for (int32_t from = 1; from < nranks; from++) {
    bny_pair *next = run.list(rank, nranks + from % 2, row);
    bny_block_merge(best, run.list(rank, from, row), k, next);
    best = next;
  }
  bny_select_finish(run, row, best, run.list(rank, rank, row));
  bny_pair *keys = k <= BNY_SELECTION_SHARED_MOST ? (bny_pair *)bny_shared_align(bny_dynamic_shared(), sizeof(bny_pair))
                                                  : run.list(rank, nranks + nranks % 2, row);
  bny_select_check(run, row, best, keys);
  bny_block_sync(); /* the room of keys may be that of the next row */
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* All ranks omit the tokens that a run does not have. */
BNY_DEVICE int32_t bny_select_rows(const bny_unit_shape &shape, const bny_device_valid &valid, bny_valid_run run) {
  int32_t tokens = shape.tokens;
  if (valid.most && run.count < shape.token0 + tokens) tokens = run.count - shape.token0;
  return tokens > 0 ? tokens * shape.heads : 0;
}

BNY_DEVICE void bny_select(const bny_device_group &group, const bny_selection &what, const bny_device_call &call) {
  bny_select_run run;
  bny_worker_begin(&run.self, group);
  bny_valid_run valid = bny_valid_begin(call.valid);
  bny_worker_join(&run.self);
  run.what = &what;
  run.rows = bny_select_rows(what.shape, call.valid, valid);
  run.first = (int32_t)bny_block();
  run.step = (int32_t)bny_grid_blocks();
  const bool failed = run.self.failed;
  BNY_ROLLED for (int32_t row = run.first; row < run.rows && !failed; row += run.step) {
    bny_pair *list = run.list(group.rank, group.rank, row);
    bny_select_make(run, row, list);
    bny_select_push(run, row, list);
  }
  if (!failed) bny_select_signal(run);
  if (bny_worker_announces()) {
    if (call.valid.most) bny_valid_announce(run.self.group, run.self.epoch, valid.count);
    bny_worker_announce(run.self);
  }
  BNY_ROLLED for (int32_t row = run.first; row < run.rows && !failed; row += run.step) {
    if (!bny_select_await(&run, row)) return;
    bny_select_merge(run, row);
  }
}

#define BNY_SELECT_KERNEL(name, protocol, bits, how)                                   \
  BNY_KERNEL BNY_LAUNCH_BOUNDS(BNY_BLOCK_THREADS_MAX, 1)                               \
      name(BNY_PARAMETER(bny_device_group, group), BNY_PARAMETER(bny_selection, what), \
           BNY_PARAMETER(bny_device_call, call)) {                                     \
    bny_select(group, what, call);                                                     \
  }
