/* SPDX-License-Identifier: Apache-2.0
 * The iteration of a CTA group over its share of units (decode_shape.h). Every warp of a CTA group computes the same
 * walk from lengths in device memory. Warps of a block share the sums over large batches, and wait for nothing else. */
#pragma once

#include "cuda/decode_load.cuh"
#include "cuda/decode_merge.cuh"
#include "cuda/decode_shape.h"
#include "cuda/device.h"
#include "cuda/worker.h"

enum : uint32_t { BNY_DECODE_END = ~0u };

/* The state of a walk, the same in all threads of a CTA group. */
struct bny_decode_walk {
  uint32_t team, team_units;
  uint32_t sequence; /* current sequence; BNY_DECODE_END: none */
  uint32_t keys, key_tiles;
  uint32_t index; /* index of the item in the sequence */
  uint32_t start; /* units before the item */
};

BNY_DEVICE uint32_t bny_decode_items(const bny_decode_call &call) { return (uint32_t)(call.kv_heads * call.row_tiles); }

/* Returns value / by. Most divisors are 1 and need no division. */
BNY_DEVICE uint32_t bny_decode_divide(uint32_t value, uint32_t by) { return by == 1 ? value : value / by; }

/* Returns how many of `most` tokens the run has. Called after the stream's earlier kernels have ended. Callers read it
 * again instead of keeping it, to save a register during attention. */
BNY_DEVICE uint32_t bny_decode_run_tokens(const bny_decode_call &call, int32_t most) {
  const int32_t given = call.tokens ? *call.tokens : most;
  return (uint32_t)(given < 0 ? 0 : given < most ? given : most);
}

BNY_DEVICE bool bny_decode_attends(const bny_decode_call &call, uint32_t token) {
  return !call.token_mask || call.token_mask[token] != 0;
}

/* Returns the keys that a sequence of one token sees. If its length is negative or exceeds keys_max, it is cut and
 * *wrong is set. */
BNY_DEVICE uint32_t bny_decode_keys_seen(const bny_decode_call &call, uint32_t sequence, bool *wrong) {
  const int32_t given = call.seq_lens[sequence], most = given < call.keys_max ? given : call.keys_max;
  const uint32_t keys = most > 0 ? (uint32_t)most : 0;
  *wrong = (uint32_t)given != keys;
  return bny_decode_attends(call, sequence) ? keys : 0;
}

/* A sequence. Those beyond the batch have no units. */
struct bny_decode_span {
  uint32_t keys, units;
  bool wrong;
};

BNY_DEVICE bny_decode_span bny_decode_span_in(const bny_decode_span &span, int lane) {
  return {bny_shuffle(span.keys, lane), 0, false};
}

struct bny_decode_spans {
  const bny_decode_call &call;
  uint32_t count;

  BNY_DEVICE_METHOD bny_decode_span of(uint32_t sequence) const {
    if (sequence >= count) return {0, 0, false};
    bny_decode_span span;
    span.keys = bny_decode_keys_seen(call, sequence, &span.wrong);
    span.units = (bny_decode_key_tiles((int32_t)span.keys) + call.division.item_cost) * bny_decode_items(call);
    return span;
  }
};

/* Returns the sum over lanes 0 to this one. It is valid in the first `lanes` lanes. */
BNY_DEVICE uint32_t bny_warp_scan(uint32_t value, uint32_t lanes) {
  for (uint32_t distance = 1; distance < BNY_WARP_LANES && distance < lanes; distance *= 2) {
    uint32_t other = bny_shuffle(value, (int)(bny_lane() - distance) & 31);
    if (bny_lane() >= distance) value += other;
  }
  return value;
}

/* Called by a warp. Reports the first wrong length of 32, if the group has ranks. */
BNY_DEVICE void bny_decode_report_wrong(const bny_device_group *group, uint32_t first, bool wrong) {
  const uint32_t all = bny_warp_ballot(wrong);
  if (all == 0 || group->nranks == 0) return;
  const uint32_t sequence = first + (uint32_t)bny_lowest_bit(all);
  if (bny_lane() == 0)
    bny_worker_report(group, bny_device_fault_pack(BANYAN_ERR_ARGUMENT, group->rank, group->rank, sequence + 1));
  bny_warp_sync();
}

/* Called by all threads of a block. Returns in lane l the units of lines l run .. (l + 1) run - 1, where a line has 32
 * sequences. A line takes several dependent loads, so each warp takes other lines. */
template <class Spans>
BNY_DEVICE uint32_t bny_decode_sum_lines(const Spans &spans, uint32_t run, const bny_device_group *group) {
  BNY_SHARED_ARRAY(uint32_t, sums, BNY_WARP_LANES);
  BNY_ROLLED for (uint32_t at = bny_warp(); at < BNY_WARP_LANES; at += bny_block_threads() / BNY_WARP_LANES) {
    uint32_t sum = 0;
    BNY_ROLLED for (uint32_t line = at * run; line < (at + 1) * run; line++) {
      const uint32_t first = line * BNY_WARP_LANES;
      if (first >= spans.count) break;
      const auto span = spans.of(first + bny_lane());
      if (bny_block() == 0) bny_decode_report_wrong(group, first, span.wrong);
      sum += span.units;
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += bny_shuffle_xor(sum, mask);
    if (bny_lane() == 0) sums[at] = sum;
  }
  bny_block_sync();
  return sums[bny_lane()];
}

/* Sets the CTA group's share of `total` units. Returns false if it is empty. */
BNY_DEVICE bool bny_decode_walk_share(bny_decode_walk *walk, const bny_decode_division &division, uint32_t total) {
  walk->team_units = bny_decode_team_units(&division, total);
  return (uint64_t)walk->team * walk->team_units < total;
}

/* Moves the walk to the sequence where the CTA group's share begins, and sets its span. Returns false if the share is
 * empty. The time from lengths to the first copy dominates short calls, so the lengths of one line are read once. */
template <class Spans, class Span>
BNY_DEVICE bool bny_decode_walk_seek(bny_decode_walk *walk, const Spans &spans, const bny_device_group *group,
                                     Span *span) {
  const uint32_t lines = (spans.count + BNY_WARP_LANES - 1) / BNY_WARP_LANES;
  const uint32_t lanes = lines > 1 ? (uint32_t)BNY_WARP_LANES : spans.count;
  uint32_t line = 0;
  walk->team = bny_block() / bny_cluster_blocks();
  walk->sequence = BNY_DECODE_END;
  if (lines == 0) return false;
  if (lines > 1) {
    const uint32_t run = (lines + BNY_WARP_LANES - 1) / BNY_WARP_LANES;
    const uint32_t units = bny_decode_sum_lines(spans, run, group), scan = bny_warp_scan(units, BNY_WARP_LANES);
    if (!bny_decode_walk_share(walk, spans.call.division, bny_shuffle(scan, BNY_WARP_LANES - 1))) return false;
    const int lane = bny_lowest_bit(bny_warp_ballot(scan > walk->team * walk->team_units));
    walk->start = bny_shuffle(scan - units, lane);
    line = (uint32_t)lane * run;
  }
  BNY_ROLLED for (;; line++) {
    *span = spans.of(line * BNY_WARP_LANES + bny_lane());
    const uint32_t scan = bny_warp_scan(span->units, lanes);
    if (lines == 1) {
      if (bny_block() == 0 && bny_warp() == 0) bny_decode_report_wrong(group, 0, span->wrong);
      if (!bny_decode_walk_share(walk, spans.call.division, bny_shuffle(scan, (int)lanes - 1))) return false;
    }
    const int lane = bny_lowest_bit(bny_warp_ballot(scan > walk->team * walk->team_units - walk->start));
    if (lane >= 0) {
      walk->sequence = line * BNY_WARP_LANES + (uint32_t)lane;
      walk->start += bny_shuffle(scan - span->units, lane);
      *span = bny_decode_span_in(*span, lane);
      return true;
    }
    walk->start += bny_shuffle(scan, BNY_WARP_LANES - 1);
  }
}

/* Moves the walk from the first item of its sequence to the item where the CTA group's share begins. */
BNY_DEVICE void bny_decode_walk_item_of_share(bny_decode_walk *walk, const bny_decode_division &division) {
  const uint32_t units = walk->key_tiles + division.item_cost;
  walk->index = (walk->team * walk->team_units - walk->start) / units;
  walk->start += walk->index * units;
}

BNY_DEVICE bny_decode_walk bny_decode_walk_begin(const bny_decode_call &call, const bny_device_group *group) {
  const bny_decode_spans spans = {call, bny_decode_run_tokens(call, call.batch)};
  bny_decode_walk walk = {};
  bny_decode_span span;
  if (!bny_decode_walk_seek(&walk, spans, group, &span)) return walk;
  walk.keys = span.keys;
  walk.key_tiles = bny_decode_key_tiles((int32_t)walk.keys);
  if (bny_decode_items(call) > 1) bny_decode_walk_item_of_share(&walk, call.division);
  return walk;
}

BNY_DEVICE void bny_decode_walk_next(bny_decode_walk *walk, const bny_decode_call &call) {
  walk->start += walk->key_tiles + call.division.item_cost;
  if (++walk->index < bny_decode_items(call)) return;
  walk->index = 0;
  if (++walk->sequence >= bny_decode_run_tokens(call, call.batch)) {
    walk->sequence = BNY_DECODE_END;
    return;
  }
  bool wrong;
  walk->keys = bny_decode_keys_seen(call, walk->sequence, &wrong);
  walk->key_tiles = bny_decode_key_tiles((int32_t)walk->keys);
}

/* Sets the current item. Returns false at the end of the CTA group's share. */
BNY_DEVICE bool bny_decode_walk_item(const bny_decode_walk &walk, const bny_decode_call &call, int tile_rows,
                                     bny_decode_item *item) {
  if (walk.sequence == BNY_DECODE_END || walk.start >= (walk.team + 1) * walk.team_units) return false;
  item->sequence = walk.sequence;
  item->kv_head = bny_decode_divide(walk.index, (uint32_t)call.row_tiles);
  item->tile = walk.index - item->kv_head * (uint32_t)call.row_tiles;
  uint32_t left = (uint32_t)call.group - item->tile * (uint32_t)tile_rows;
  item->rows = left < (uint32_t)tile_rows ? left : (uint32_t)tile_rows;
  item->keys = walk.keys;
  item->piece = bny_decode_piece_range(walk.start, walk.key_tiles, walk.team, walk.team_units);
  return true;
}

/* Returns how many rows of q the item reads. An item without keys reads none. */
BNY_DEVICE uint32_t bny_decode_query_rows(const bny_decode_item &item) { return item.keys > 0 ? item.rows : 0; }

/* Returns whether the CTA group has a part of the item. */
BNY_DEVICE bool bny_decode_walk_has(const bny_decode_walk &walk, const bny_decode_item &item) {
  return bny_decode_piece_is_mine(&item.piece, walk.start, walk.key_tiles, walk.team, walk.team_units);
}

BNY_DEVICE void bny_decode_walk_teams(const bny_decode_walk &walk, bny_decode_item *item) {
  bny_decode_piece_teams(&item->piece, walk.start, walk.key_tiles, walk.team_units);
}

/* Reports the first of pages [begin, count) of a sequence that does not exist. */
BNY_DEVICE void bny_decode_report_pages(const bny_decode_call &call, const bny_device_group *group, uint32_t sequence,
                                        const int32_t *table, uint32_t begin, uint32_t count) {
  uint64_t place = 0;
  BNY_ROLLED for (uint32_t first = begin; first < count && place == 0; first += BNY_WARP_LANES) {
    const uint32_t mine = first + bny_lane(), id = mine < count ? (uint32_t)table[mine] : 0;
    const uint32_t found = bny_warp_ballot(id >= call.pages);
    if (found != 0) place = bny_shuffle(bny_device_position_pack(mine, (int32_t)id), bny_lowest_bit(found));
  }
  const uint32_t detail = (sequence + 1) | BNY_DEVICE_DETAIL_PAGE;
  if (bny_lane() == 0)
    bny_worker_report_position(group, bny_device_fault_pack(BANYAN_ERR_ARGUMENT, group->rank, group->rank, detail),
                               place);
  bny_warp_sync();
}

/* Called by a warp that has lost keys of an item. Reports the first page of the sequence that does not exist, if the
 * group has ranks. It is not inlined, so it takes no registers during attention. */
BNY_DEVICE_COLD void bny_decode_report_lost(const bny_decode_call &call, const bny_device_group *group,
                                            uint32_t sequence, uint32_t keys) {
  if (group->nranks == 0) return;
  bny_decode_report_pages(call, group, sequence, call.page_table + sequence * call.page_table_stride, 0,
                          ((keys - 1) >> call.page_shift) + 1);
}

BNY_DEVICE void bny_decode_item_lost(const bny_decode_call &call, const bny_device_group *group,
                                     const bny_decode_item &item) {
  bny_decode_report_lost(call, group, item.sequence, item.keys);
}

BNY_DEVICE bny_decode_keys bny_decode_keys_of_item(const bny_decode_call &call, const bny_decode_item &item) {
  const int32_t *pages = call.page_table ? call.page_table + item.sequence * call.page_table_stride : nullptr;
  return {pages, item.sequence, item.kv_head, item.keys, (uint32_t)call.page_shift, call.pages};
}
