/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode kernels: split-KV attention of one query token of each sequence. See decode_shape.h for how work is divided,
 * decode_warp.cuh for how it is done, decode_merge.cuh for how it comes together. */
#ifndef BNY_CUDA_DECODE_CUH
#define BNY_CUDA_DECODE_CUH

#include "cuda/decode_merge.cuh"
#include "cuda/decode_output.cuh"
#include "cuda/decode_warp.cuh"

/* ---- a team's walk along the line of units ---------------------------------------------------------------------------- */

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

/* ---- a block whose warps have granules in turn ------------------------------------------------------------------------- */

/* Dynamic shared memory. The partial of a warp lies where its ring is, which is empty then. */
template <class shape> struct bny_warp_memory {
  enum : int {
    RING_BYTES = shape::RING * bny_tile<shape::DIM>::BYTES,
    QUERY = shape::WARPS * RING_BYTES,
    BARRIERS = QUERY + bny_tile<shape::DIM>::BYTES,
    STATS = BARRIERS + shape::WARPS * shape::RING * 8, /* m and d of each warp's rows, and of the block's */
    BYTES = STATS + 2 * (shape::WARPS + 1) * shape::ROWS * 4
  };
  static_assert(4 * shape::ROWS * shape::PARTIAL_PITCH <= RING_BYTES, "a partial lies in a ring");

  BNY_DEVICE float *partial(unsigned char *shared, int warp) { return (float *)(shared + warp * RING_BYTES); }
  BNY_DEVICE float *m(unsigned char *shared, int warp) { return (float *)(shared + STATS) + warp * shape::ROWS; }
  BNY_DEVICE float *d(unsigned char *shared, int warp) { return m(shared, shape::WARPS + 1 + warp); }
};

/* All rows of a tile; those beyond the item's are zero. */
template <class shape>
BNY_DEVICE void bny_decode_load_query(unsigned char *tile, const bny_decode_call &call, const bny_decode_item &item) {
  const int quads = shape::DIM / 8;
  const uint32_t head = item.kv_head * (uint32_t)call.group + item.tile * shape::ROWS;
  const unsigned char *from =
      (const unsigned char *)call.q + item.sequence * call.q_batch_stride + head * call.q_head_stride;
  for (uint32_t i = bny_thread(); i < shape::ROWS * quads; i += bny_block_threads()) {
    uint32_t row = i / quads, byte = i % quads * 16;
    bny_quad quad = {{0, 0, 0, 0}};
    if (row < item.rows) quad = bny_load_quad_once(from + row * call.q_head_stride + byte);
    bny_store_quad(tile + row * bny_tile<shape::DIM>::PITCH + byte, quad);
  }
}

template <class shape> BNY_DEVICE void bny_warp_put(unsigned char *shared, const bny_warp_partial<shape> &partial) {
  using memory = bny_warp_memory<shape>;
  const int warp = (int)bny_warp(), lane = (int)bny_lane();
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    int index = lane / 4 + 8 * row;
    float *n = memory::partial(shared, warp) + index * shape::PARTIAL_PITCH + lane % 4 * 2;
    BNY_UNROLL for (int i = 0; i < shape::DIM / 8; i++) {
      n[8 * i] = partial.n[i][2 * row];
      n[8 * i + 1] = partial.n[i][2 * row + 1];
    }
    if (lane % 4 == 0) {
      memory::m(shared, warp)[index] = partial.m[row];
      memory::d(shared, warp)[index] = partial.d[row];
    }
  }
}

/* The partials of all warps become one: in place of the first one's. */
template <class shape>
BNY_DEVICE bny_block_partial bny_warps_fold(unsigned char *shared, const bny_decode_item &item) {
  using memory = bny_warp_memory<shape>;
  const int warps = shape::WARPS, quads = shape::DIM / 4;
  for (uint32_t i = bny_thread(); i < item.rows * quads; i += bny_block_threads()) {
    uint32_t row = i / quads, column = i % quads * 4;
    float m = -BNY_INFINITY_F, d = 0, sum[4] = {0, 0, 0, 0};
    BNY_UNROLL for (int warp = 0; warp < warps; warp++) m = fmaxf(m, memory::m(shared, warp)[row]);
    BNY_UNROLL for (int warp = 0; warp < warps; warp++) {
      float n[4], factor = bny_exp2_whole(memory::m(shared, warp)[row] - m);
      bny_load_floats(n, memory::partial(shared, warp) + row * shape::PARTIAL_PITCH + column);
      d = bny_add(d, bny_mul(memory::d(shared, warp)[row], factor));
      BNY_UNROLL for (int j = 0; j < 4; j++) sum[j] = bny_add(sum[j], bny_mul(n[j], factor));
    }
    bny_store_floats(memory::partial(shared, 0) + row * shape::PARTIAL_PITCH + column, sum);
    if (column == 0) {
      memory::m(shared, warps)[row] = m;
      memory::d(shared, warps)[row] = d;
    }
  }
  return {memory::m(shared, warps), memory::d(shared, warps), memory::partial(shared, 0), shape::PARTIAL_PITCH};
}

/* By all blocks of a team. */
template <class Element, class shape, class Epilogue>
BNY_DEVICE void bny_warps_attend(const bny_decode_call &call, const bny_decode_item &item, uint32_t team, bny_ring *ring,
                                 Epilogue &epilogue) {
  using memory = bny_warp_memory<shape>;
  unsigned char *shared = bny_dynamic_shared();
  const bny_decode_keys keys = bny_decode_keys_of_item(call, item);
  bny_granules granules;
  granules.first = item.piece.first + bny_cluster_rank() * shape::WARPS + bny_warp();
  granules.step = bny_cluster_blocks() * shape::WARPS;
  granules.count = granules.first < item.piece.end ? (item.piece.end - granules.first - 1) / granules.step + 1 : 0;
  for (uint32_t half = 0; half < shape::RING; half++) bny_ring_fill<shape>(*ring, call, keys, granules, half);
  bny_decode_load_query<shape>(shared + memory::QUERY, call, item);
  bny_block_sync();
  bny_warp_partial<shape> partial;
  bny_warp_attend<Element, shape>(&partial, ring, call, keys, granules, shared + memory::QUERY);
  bny_warp_put<shape>(shared, partial);
  bny_block_sync();
  bny_block_partial whole = bny_warps_fold<shape>(shared, item);
  bny_decode_finish<shape::DIM, shape::ROWS>(call, item, team, whole, epilogue);
}

/* The kernel. */
template <class Element, class shape, class Epilogue>
BNY_DEVICE void bny_decode_by_warps(const bny_decode_call &call, Epilogue &epilogue) {
  using memory = bny_warp_memory<shape>;
  unsigned char *shared = bny_dynamic_shared();
  bny_ring ring = {shared + bny_warp() * memory::RING_BYTES,
                   (uint64_t *)(shared + memory::BARRIERS) + bny_warp() * shape::RING, 0};
  if constexpr (shape::bulk) {
    if (bny_lane() < shape::RING) bny_mbarrier_init(ring.barriers + bny_lane(), 1);
    bny_mbarrier_fence_init();
  }
  bny_block_sync();
  bny_grid_wait();
  bny_grid_release();
  bny_decode_item item;
  for (bny_decode_walk walk = bny_decode_walk_begin(call); bny_decode_walk_item(walk, call, shape::ROWS, &item);
       bny_decode_walk_next(&walk, call))
    if (bny_decode_piece_is_mine(&item.piece, walk.granules, walk.team))
      bny_warps_attend<Element, shape>(call, item, walk.team, &ring, epilogue);
  Epilogue::end(epilogue);
}

#endif
