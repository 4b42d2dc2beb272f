/* SPDX-License-Identifier: Apache-2.0
 * Attention of 16 query heads over some key tiles by one warp. head_dim is up to 256, and values are as long as keys.
 *
 * Each warp fills its own ring of tiles: K of a key tile, its V, K of the next key tile and so on. While it computes
 * with one tile, copies into all others are in flight. No warp waits for another before the end of a split. */
#pragma once

#include "cuda/decode_fragment.cuh"
#include "cuda/decode_general.cuh"
#include "cuda/decode_merge.cuh"
#include "cuda/decode_walk.cuh"

enum { BNY_DECODE_WARPS = 4 };

/* The parameters of a kernel's shape. Tiles of BNY_ROWS_e4m3 hold 8-bit elements. Each is converted to one tile of
 * 16-bit elements, which follows the ring. */
template <int dim_, bny_decode_rows kv_> struct bny_warp_shape {
  using kind = bny_decode_kind<kv_>;
  enum : int {
    DIM = dim_,
    ROWS = 16,
    CONVERTED_BYTES = kv_ == BNY_ROWS_e4m3 ? bny_tile<dim_, BNY_DECODE_TILE_KEYS>::BYTES : 0,
    TILE_BYTES = kv_ == BNY_ROWS_e4m3 ? BNY_DECODE_TILE_KEYS * dim_ : bny_tile<dim_, BNY_DECODE_TILE_KEYS>::BYTES,
    QUERY_PITCH = 2 * dim_ + 16, /* bytes; places rows in different banks */
    WARPS = BNY_DECODE_WARPS,
    /* resident blocks of an SM, limited by registers */
    RESIDENT = dim_ <= (BNY_ARCH < 1000 ? 128 : 64) && kv_ == BNY_ROWS_lean ? 3
               : dim_ <= 192                                                ? 2
                                                                            : 1,
    RING = dim_ <= 64 || kv_ == BNY_ROWS_e4m3 ? 8 : 4, /* tiles, an even number */
    QUERY_KEPT = dim_ <= 128,                          /* in registers, not read from shared memory for each tile */
    PARTIAL_PITCH = dim_ + 8                           /* floats: stores of fragments access no bank twice */
  };
  static constexpr bool general = kv_ != BNY_ROWS_lean, converts = kv_ == BNY_ROWS_e4m3;
};

/* The flags of a warp's lost keys lie between chunks of its first tile of 16-bit elements, to save registers. Bit i:
 * the keys in tile i are lost. BNY_LOST_ITEM: some keys of the item are lost. */
enum : uint32_t { BNY_LOST_ITEM = 1u << 31 };
template <class shape> BNY_DEVICE uint32_t *bny_ring_lost(unsigned char *ring) {
  return (uint32_t *)(ring + (shape::converts ? shape::RING * shape::TILE_BYTES : 0) +
                      bny_tile<shape::DIM, BNY_DECODE_TILE_KEYS>::PITCH - 16);
}

/* The key tiles that a warp attends to: `count` tiles from `first` on, at intervals of `step`. */
struct bny_key_tiles {
  uint32_t first, step, count;
};

/* ---- the ring ---------------------------------------------------------------------------------------------------- */

/* Starts copies of a half. Half h is K of key tile h / 2 if h is even, else its V. A half that does not exist is
 * committed too, as an empty group of copies. */
template <class shape, class Keys>
BNY_DEVICE void bny_ring_fill(unsigned char *ring, const bny_decode_call &call, const Keys &keys,
                              const bny_key_tiles &key_tiles, uint32_t half) {
  uint32_t place = half % shape::RING, index = half / 2;
  unsigned char *tile = ring + place * shape::TILE_BYTES;
  if (index < key_tiles.count) {
    const bny_decode_cache &cache = half % 2 ? call.v : call.k;
    uint32_t first = (key_tiles.first + index * key_tiles.step) * BNY_DECODE_TILE_KEYS;
    bool lost;
    if constexpr (shape::converts)
      lost = bny_general_load<shape::DIM, BNY_DECODE_TILE_KEYS, 1>(tile, call, cache, keys, first, keys.count, 0,
                                                                   bny_general_flat<shape::DIM>());
    else if constexpr (shape::general)
      lost = bny_general_load<2 * shape::DIM, BNY_DECODE_TILE_KEYS, 1>(
          tile, call, cache, keys, first, keys.count, 0, bny_general_tiled<shape::DIM, BNY_DECODE_TILE_KEYS>());
    else
      lost = bny_decode_load<shape::DIM, BNY_DECODE_TILE_KEYS, 1>(tile, cache, keys, first, keys.count, 0);
    if (lost && bny_lane() == 0) *bny_ring_lost<shape>(ring) |= 1u << place | BNY_LOST_ITEM;
  }
  bny_copy_async_commit();
}

template <class shape> BNY_DEVICE unsigned char *bny_ring_wait(unsigned char *ring, uint32_t half) {
  bny_copy_async_wait<shape::RING - 1>();
  bny_warp_sync();
  return ring + half % shape::RING * shape::TILE_BYTES;
}

/* Waits for a half, and converts it if its elements have 8 bits. */
template <class Element, class shape>
BNY_DEVICE const unsigned char *bny_ring_tile(unsigned char *ring, uint32_t half) {
  const unsigned char *tile = bny_ring_wait<shape>(ring, half);
  if constexpr (shape::converts) {
    unsigned char *converted = ring + shape::RING * shape::TILE_BYTES;
    BNY_UNROLL for (int i = 0; i < shape::DIM / BNY_WARP_LANES; i++) {
      const int chunk = i * BNY_WARP_LANES + (int)bny_lane(), row = chunk / (shape::DIM / 16);
      bny_general_convert<Element>(converted + bny_tile_row<shape::DIM, BNY_DECODE_TILE_KEYS>((uint32_t)row) +
                                       chunk % (shape::DIM / 16) * 32,
                                   tile + chunk * 16);
    }
    bny_warp_sync();
    tile = converted;
  }
  return tile;
}

/* Called after the warp has read half `half`. Starts copies of a later half into its tile. */
template <class shape, class Keys>
BNY_DEVICE void bny_ring_next(unsigned char *ring, const bny_decode_call &call, const Keys &keys,
                              const bny_key_tiles &key_tiles, uint32_t half) {
  bny_warp_sync();
  bny_ring_fill<shape>(ring, call, keys, key_tiles, half + shape::RING);
}

/* Returns how many of the `left` keys in the tile of half `half` exist, or 0 if they are lost. Called after
 * bny_ring_wait(). */
template <class shape> BNY_DEVICE uint32_t bny_ring_left(unsigned char *ring, uint32_t half, uint32_t left) {
  uint32_t *word = bny_ring_lost<shape>(ring);
  const uint32_t lost = *word, bit = 1u << half % shape::RING;
  if (lost & bit) {
    left = 0;
    bny_warp_sync();
    if (bny_lane() == 0) *word = lost & ~bit;
  }
  return left;
}

/* ---- one key tile ------------------------------------------------------------------------------------------------ */

/* Loads a fragment of A: all rows of the query, columns column .. column + 15. */
template <class shape> BNY_DEVICE void bny_warp_load_query(uint32_t *a, const unsigned char *query, int column) {
  uint32_t lane = bny_lane();
  bny_load_matrix_4(a, query + lane % 16 * shape::QUERY_PITCH + 2 * column + lane / 16 * 16);
}

/* Computes logits of 16 heads and 16 keys, before scaling. */
template <class Element, class shape>
BNY_DEVICE void bny_warp_logits(bny_logits<2> *logits, const uint32_t kept[][4], const unsigned char *query,
                                const unsigned char *tile) {
  BNY_UNROLL for (int i = 0; i < 8; i++) logits->s[i / 4][i % 4] = 0;
  BNY_UNROLL for (int column = 0; column < shape::DIM; column += 16) {
    uint32_t a[4], b[4];
    if constexpr (!shape::QUERY_KEPT) bny_warp_load_query<shape>(a, query, column);
    bny_load_keys<shape::DIM, BNY_DECODE_TILE_KEYS>(b, tile, 0, column);
    const uint32_t *rows = shape::QUERY_KEPT ? kept[column / 16 * shape::QUERY_KEPT] : a;
    Element::multiply(logits->s[0], rows, b);
    Element::multiply(logits->s[1], rows, b + 2);
  }
}

/* The ring must have been filled from half 0 on, and the query must be in shared memory. */
template <class Element, class shape, class Keys>
BNY_DEVICE void bny_warp_attend(bny_fragment<shape::DIM> *partial, unsigned char *ring, const bny_decode_call &call,
                                const Keys &keys, const bny_key_tiles &key_tiles, const unsigned char *query,
                                const typename shape::kind::template rows<shape::ROWS> &rows) {
  uint32_t kept[shape::QUERY_KEPT ? shape::DIM / 16 : 1][4];
  if constexpr (shape::QUERY_KEPT) {
    BNY_UNROLL for (int i = 0; i < shape::DIM / 16; i++) bny_warp_load_query<shape>(kept[i], query, 16 * i);
  }
  bny_fragment_clear(partial);
  for (uint32_t index = 0; index < key_tiles.count; index++) {
    bny_logits<2> logits;
    bny_weights<1> weights;
    const unsigned char *tile = bny_ring_tile<Element, shape>(ring, 2 * index);
    bny_warp_logits<Element, shape>(&logits, kept, query, tile);
    uint32_t left = keys.count - (key_tiles.first + index * key_tiles.step) * BNY_DECODE_TILE_KEYS;
    if constexpr (shape::general) bny_general_logits(&logits, rows, 0, keys.count - left);
    left = bny_ring_left<shape>(ring, 2 * index, left);
    if (left < BNY_DECODE_TILE_KEYS) bny_logits_mask(&logits, left);
    bny_ring_next<shape>(ring, call, keys, key_tiles, 2 * index);
    bny_fragment_softmax<Element>(partial, logits, shape::kind::scale(call, rows), &weights);
    tile = bny_ring_tile<Element, shape>(ring, 2 * index + 1);
    bny_fragment_values<Element, shape::DIM>(partial, weights, tile, 0);
    bny_ring_next<shape>(ring, call, keys, key_tiles, 2 * index + 1);
  }
  bny_copy_async_wait<0>();
  bny_fragment_end<Element>(partial);
}

/* ---- a block, whose warps take key tiles in turn ----------------------------------------------------------------- */

/* The layout of dynamic shared memory. The partial of a warp overwrites its ring after the ring's last use. */
template <class shape> struct bny_warp_memory {
  enum : int {
    RING_BYTES = shape::RING * shape::TILE_BYTES + shape::CONVERTED_BYTES,
    QUERY = shape::WARPS * RING_BYTES,
    STATS = QUERY + shape::ROWS * shape::QUERY_PITCH, /* m and d of each warp's rows, and of the block's */
    BYTES = STATS + 2 * (shape::WARPS + 1) * shape::ROWS * 4
  };
  static_assert(4 * shape::ROWS * shape::PARTIAL_PITCH <= RING_BYTES, "a partial lies in a ring");

  BNY_DEVICE float *partial(unsigned char *shared, int warp) { return (float *)(shared + warp * RING_BYTES); }
  BNY_DEVICE float *m(unsigned char *shared, int warp) { return (float *)(shared + STATS) + warp * shape::ROWS; }
  BNY_DEVICE float *d(unsigned char *shared, int warp) { return m(shared, shape::WARPS + 1 + warp); }
};

/* Loads the rows of q. Rows that are not read become zero. */
template <class shape>
BNY_DEVICE void bny_decode_load_query(unsigned char *query, const bny_decode_call &call, const bny_general_item &item) {
  const int quads = shape::DIM / 8;
  for (uint32_t i = bny_thread(); i < shape::ROWS * quads; i += bny_block_threads()) {
    uint32_t row = i / quads, byte = i % quads * 16;
    bny_quad quad = {{0, 0, 0, 0}};
    if (bny_general_reads(call, item, shape::ROWS, row))
      quad = bny_load_quad_once(bny_general_query_at(call, item, shape::ROWS, row, (int32_t)byte));
    bny_store_quad(query + row * shape::QUERY_PITCH + byte, quad);
  }
}
template <class shape>
BNY_DEVICE void bny_decode_load_query(unsigned char *query, const bny_decode_call &call, const bny_decode_item &item) {
  const int quads = shape::DIM / 8;
  const uint32_t head = item.kv_head * (uint32_t)call.group + item.tile * shape::ROWS;
  const unsigned char *from =
      (const unsigned char *)call.q + item.sequence * call.q_batch_stride + head * call.q_head_stride;
  for (uint32_t i = bny_thread(); i < shape::ROWS * quads; i += bny_block_threads()) {
    uint32_t row = i / quads, byte = i % quads * 16;
    bny_quad quad = {{0, 0, 0, 0}};
    if (row < bny_decode_query_rows(item)) quad = bny_load_quad_once(from + row * call.q_head_stride + byte);
    bny_store_quad(query + row * shape::QUERY_PITCH + byte, quad);
  }
}

/* Merges the partials of all warps into one, which overwrites the first. */
template <class shape> BNY_DEVICE bny_block_partial bny_warps_fold(unsigned char *shared, const bny_decode_item &item) {
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

/* Called by all blocks of a CTA group. */
template <class shape, class Epilogue>
BNY_DEVICE void bny_warps_attend(const bny_decode_call &call, typename shape::kind::walk *walk,
                                 typename shape::kind::item item, unsigned char *ring, Epilogue &epilogue) {
  using memory = bny_warp_memory<shape>;
  /* In registers, these would take space during attention. */
  BNY_SHARED(typename shape::kind::walk, kept_walk);
  BNY_SHARED(typename shape::kind::item, kept_item);
  unsigned char *shared = bny_dynamic_shared();
  const auto keys = bny_decode_keys_of_item(call, item);
  bny_key_tiles key_tiles;
  key_tiles.first = item.piece.first + bny_cluster_rank() * shape::WARPS + bny_warp();
  key_tiles.step = bny_cluster_blocks() * shape::WARPS;
  key_tiles.count = key_tiles.first < item.piece.end ? (item.piece.end - key_tiles.first - 1) / key_tiles.step + 1 : 0;
  key_tiles.first += bny_decode_first_key(item) / BNY_DECODE_TILE_KEYS;
  if (bny_lane() == 0) *bny_ring_lost<shape>(ring) = 0;
  BNY_ROLLED for (uint32_t half = 0; half < shape::RING; half++) {
    bny_ring_fill<shape>(ring, call, keys, key_tiles, half);
  }
  bny_decode_walk_teams(*walk, &item);
  if (bny_thread() == 0) {
    kept_walk = *walk;
    kept_item = item;
  }
  const auto &rows = shape::kind::template make_rows<shape::ROWS>(call, item);
  bny_decode_load_query<shape>(shared + memory::QUERY, call, item);
  bny_block_sync();
  bny_fragment<shape::DIM> partial;
  if (call.is_f16)
    bny_warp_attend<bny_f16, shape>(&partial, ring, call, keys, key_tiles, shared + memory::QUERY, rows);
  else
    bny_warp_attend<bny_bf16, shape>(&partial, ring, call, keys, key_tiles, shared + memory::QUERY, rows);
  const int warp = (int)bny_warp();
  const bool lost = *bny_ring_lost<shape>(ring) != 0;
  bny_warp_sync();
  bny_fragment_put(memory::partial(shared, warp), shape::PARTIAL_PITCH, partial);
  bny_fragment_put_stats(memory::m(shared, warp), memory::d(shared, warp), partial);
  *walk = kept_walk;
  item = kept_item;
  if (lost) bny_decode_item_lost(call, epilogue.group(), item);
  bny_block_sync();
  bny_block_partial whole = bny_warps_fold<shape>(shared, item);
  bny_decode_finish<shape::DIM, shape::ROWS>(call, item, walk->team, whole, epilogue);
}

template <class shape, class Epilogue>
BNY_DEVICE void bny_decode_warp(const bny_decode_call &call, Epilogue &epilogue) {
  using memory = bny_warp_memory<shape>;
  epilogue.begin();
  unsigned char *shared = bny_dynamic_shared();
  unsigned char *ring = shared + bny_warp() * memory::RING_BYTES;
  bny_block_sync();
  bny_grid_wait();
  bny_grid_release();
  using kind = typename shape::kind;
  typename kind::item item;
  for (typename kind::walk walk = kind::template begin<shape::ROWS>(call, epilogue.group());
       bny_decode_walk_item(walk, call, shape::ROWS, &item); kind::template next<shape::ROWS>(&walk, call))
    if (bny_decode_walk_has(walk, item)) bny_warps_attend<shape>(call, &walk, item, ring, epilogue);
}
