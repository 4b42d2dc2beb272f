/* SPDX-License-Identifier: Apache-2.0
 *
 * A team's way along the line of units that decode_shape.h tells of. All threads of a team compute the same, warp by warp,
 * from lengths in device memory: there is nothing to wait for. */
#ifndef BNY_CUDA_DECODE_WALK_CUH
#define BNY_CUDA_DECODE_WALK_CUH

#include "cuda/decode_load.cuh"
#include "cuda/decode_merge.cuh"
#include "cuda/decode_shape.h"
#include "cuda/device.h"

/* The same in all threads of a team. */
struct bny_decode_walk {
  uint32_t team, team_units;
  uint32_t sequence; /* where it stands; batch: at the end */
  uint32_t keys, granules;
  uint32_t index;    /* of the item within the sequence */
  uint32_t start;    /* units before the item */
};

BNY_DEVICE uint32_t bny_decode_keys_of(const bny_decode_call &call, uint32_t sequence) {
  int32_t keys = call.seq_lens[sequence];
  keys = keys < call.keys_max ? keys : call.keys_max;
  return keys > 0 ? (uint32_t)keys : 0;
}

BNY_DEVICE uint32_t bny_decode_items(const bny_decode_call &call) { return (uint32_t)(call.kv_heads * call.row_tiles); }

/* 0 beyond the batch. */
BNY_DEVICE uint32_t bny_decode_sequence_units(const bny_decode_call &call, uint32_t sequence) {
  if (sequence >= (uint32_t)call.batch) return 0;
  uint32_t granules = bny_decode_granules((int32_t)bny_decode_keys_of(call, sequence));
  return (granules + call.division.item_cost) * bny_decode_items(call);
}

/* Sums over lanes up to this one. */
BNY_DEVICE uint32_t bny_warp_scan(uint32_t value) {
  for (uint32_t distance = 1; distance < BNY_WARP_LANES; distance *= 2) {
    uint32_t other = bny_shuffle(value, (int)(bny_lane() - distance) & 31);
    if (bny_lane() >= distance) value += other;
  }
  return value;
}

BNY_DEVICE void bny_decode_walk_look(bny_decode_walk *walk, const bny_decode_call &call) {
  if (walk->sequence >= (uint32_t)call.batch) return;
  walk->keys = bny_decode_keys_of(call, walk->sequence);
  walk->granules = bny_decode_granules((int32_t)walk->keys);
}

/* To the item that holds unit `low`. */
BNY_DEVICE void bny_decode_walk_seek(bny_decode_walk *walk, const bny_decode_call &call, uint32_t low) {
  uint32_t first = 0;
  walk->start = 0;
  for (; first < (uint32_t)call.batch; first += BNY_WARP_LANES) {
    uint32_t units = bny_decode_sequence_units(call, first + bny_lane());
    uint32_t scan = bny_warp_scan(units), all = bny_shuffle(scan, 31), lane = 0;
    if (low - walk->start >= all) {
      walk->start += all;
      continue;
    }
    for (uint32_t found = bny_warp_ballot(scan > low - walk->start); !(found >> lane & 1); lane++) {
    }
    walk->start += bny_shuffle(scan - units, (int)lane);
    first += lane;
    break;
  }
  walk->sequence = first;
  bny_decode_walk_look(walk, call);
  uint32_t item_units = walk->granules + call.division.item_cost;
  walk->index = (low - walk->start) / item_units;
  walk->start += walk->index * item_units;
}

BNY_DEVICE bny_decode_walk bny_decode_walk_begin(const bny_decode_call &call) {
  bny_decode_walk walk = {bny_block() / bny_cluster_blocks(), 0, (uint32_t)call.batch, 0, 0, 0, 0};
  uint32_t total = 0;
  for (uint32_t first = 0; first < (uint32_t)call.batch; first += BNY_WARP_LANES)
    total += bny_decode_sequence_units(call, first + bny_lane());
  for (int mask = 16; mask > 0; mask /= 2) total += bny_shuffle_xor(total, mask);
  walk.team_units = bny_decode_team_units(&call.division, total);
  if (walk.team < (total + walk.team_units - 1) / walk.team_units)
    bny_decode_walk_seek(&walk, call, walk.team * walk.team_units);
  return walk;
}

BNY_DEVICE void bny_decode_walk_next(bny_decode_walk *walk, const bny_decode_call &call) {
  walk->start += walk->granules + call.division.item_cost;
  if (++walk->index < bny_decode_items(call)) return;
  walk->index = 0;
  walk->sequence++;
  bny_decode_walk_look(walk, call);
}

/* False where the team's share has ended. */
BNY_DEVICE bool bny_decode_walk_item(const bny_decode_walk &walk, const bny_decode_call &call, int tile_rows,
                                     bny_decode_item *item) {
  if (walk.sequence >= (uint32_t)call.batch || walk.start >= (walk.team + 1) * walk.team_units) return false;
  item->sequence = walk.sequence;
  item->kv_head = walk.index / (uint32_t)call.row_tiles;
  item->tile = walk.index % (uint32_t)call.row_tiles;
  uint32_t left = (uint32_t)call.group - item->tile * (uint32_t)tile_rows;
  item->rows = left < (uint32_t)tile_rows ? left : (uint32_t)tile_rows;
  item->keys = walk.keys;
  item->piece = bny_decode_piece_of(walk.start, walk.granules, walk.team, walk.team_units);
  return true;
}

BNY_DEVICE bny_decode_keys bny_decode_keys_of_item(const bny_decode_call &call, const bny_decode_item &item) {
  const int32_t *pages = call.page_table ? call.page_table + item.sequence * call.page_table_stride : nullptr;
  return {pages, item.sequence, item.kv_head, item.keys, (uint32_t)call.page_shift};
}

#endif
