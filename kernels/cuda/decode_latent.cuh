/* SPDX-License-Identifier: Apache-2.0
 * MLA attention by complete blocks: keys have 576 columns, and the first 512 are the values. The numerators of 16 heads
 * x 512 columns exceed the registers of a warp, and each key should be read only once.
 *
 * A *group* of four warps handles 16 heads. All groups share one tile of 32 keys in shared memory. Each warp multiplies
 * a quarter of the columns of Q and K for all 32 keys, and keeps its part of Q in registers. The four warps add their
 * logits through shared memory in a fixed order, so they get the same bits. Each warp then computes all weights itself,
 * and a quarter of the columns of n. The warps of a group therefore synchronise once per tile, and so does the block.
 *
 * Keys of 8-bit elements are copied unchanged into stages. All warps together convert a stage to the one tile that they
 * compute with. Rows of FlashMLA have a scale for each 128 columns. It is applied in f32, to the logits of these
 * columns and to the weights of their values. A warp therefore handles 128 such columns and a quarter of the remaining
 * columns.
 *
 * Copies into other tiles are in flight while the warps compute with one tile. A warp flags lost keys in the tile
 * itself, in the space between chunks. */
#pragma once

#include "cuda/decode_fragment.cuh"
#include "cuda/decode_general.cuh"
#include "cuda/decode_merge.cuh"
#include "cuda/decode_walk.cuh"

template <int rows_, bny_decode_rows kv_> struct bny_latent_shape {
  using kind = bny_decode_kind<kv_>;
  enum : int {
    DIM = 576,
    VALUE_DIM = 512,
    GROUPS = rows_ / 16,
    PARTS = 4, /* warps of a group */
    WARPS = PARTS * GROUPS,
    THREADS = BNY_WARP_LANES * WARPS,
    ROWS = rows_,
    KEYS = 32, /* keys in a tile */
    ROW_BYTES = kv_ == BNY_ROWS_flashmla ? BNY_FLASHMLA_BYTES
                : kv_ == BNY_ROWS_e4m3   ? DIM
                                         : 2 * DIM, /* size of a key in global memory */
    STAGE_BYTES = kv_ >= BNY_ROWS_e4m3 ? KEYS * ROW_BYTES : bny_tile<DIM, KEYS>::BYTES,
    CONVERTED_BYTES = kv_ >= BNY_ROWS_e4m3 ? bny_tile<DIM, KEYS>::BYTES : 0,
    SCALE_BYTES = kv_ == BNY_ROWS_flashmla ? KEYS * 16 : 0,
    STAGES = rows_ == 16 && kv_ < BNY_ROWS_e4m3 ? 2 : 3, /* with one group, two blocks of an SM alternate */
    RESIDENT = rows_ == 16 ? 2 : 1,
    PART_DIM = DIM / PARTS,
    PART_VALUES = VALUE_DIM / PARTS,
    PARTIAL_PITCH = VALUE_DIM + 8
  };
  static constexpr bool general = kv_ != BNY_ROWS_lean, converts = kv_ >= BNY_ROWS_e4m3,
                        scales = kv_ == BNY_ROWS_flashmla;
  static_assert((int)WARPS <= 8, "there is room behind each chunk of a tile");
};

/* The layout of dynamic shared memory. The partial overwrites the tiles after their last use. */
template <class shape> struct bny_latent_memory {
  enum : int {
    CONVERTED = shape::STAGES * shape::STAGE_BYTES,
    SCALES = CONVERTED + shape::CONVERTED_BYTES,
    FLAGS = SCALES + shape::SCALE_BYTES, /* flags of lost keys, if tiles have no space for them */
    LOGITS = FLAGS + (shape::converts ? shape::STAGES * 32 : 0), /* per warp: 4 classes of 8 keys, 16 bytes per lane */
    STATS = LOGITS + shape::WARPS * 4 * BNY_WARP_LANES * 16,
    BYTES = STATS + 2 * shape::ROWS * 4
  };
  static_assert(4 * shape::ROWS * shape::PARTIAL_PITCH <= LOGITS, "the partial lies in tiles");
};

/* The keys that a block attends to: tiles at intervals of `step` keys, before `end`. */
struct bny_latent_range {
  uint32_t first, step, end, count;
};

template <class Item>
BNY_DEVICE bny_latent_range bny_latent_range_of(const Item &item, const bny_decode_keys &keys, uint32_t tile_keys) {
  const uint32_t begin = bny_decode_first_key(item);
  bny_latent_range range;
  range.first = begin + item.piece.first * BNY_DECODE_TILE_KEYS + bny_cluster_rank() * tile_keys;
  range.step = bny_cluster_blocks() * tile_keys;
  range.end = begin + item.piece.end * BNY_DECODE_TILE_KEYS;
  if (range.end > keys.count) range.end = keys.count;
  range.count = range.first < range.end ? (range.end - range.first - 1) / range.step + 1 : 0;
  return range;
}

/* Returns the word of a tile in which a warp flags that it has lost some of the tile's keys. */
template <class shape> BNY_DEVICE uint32_t *bny_latent_lost(unsigned char *shared, uint32_t stage, uint32_t warp) {
  if constexpr (shape::converts) return (uint32_t *)(shared + bny_latent_memory<shape>::FLAGS) + stage * 8 + warp;
  return (uint32_t *)(shared + stage * shape::STAGE_BYTES + (warp + 1) * bny_tile<shape::DIM, shape::KEYS>::PITCH - 16);
}

/* Starts copies into a tile. A tile that does not exist is committed too, as an empty group of copies. */
template <class shape, class Keys>
BNY_DEVICE void bny_latent_fill(unsigned char *shared, const bny_decode_call &call, const Keys &keys,
                                const bny_latent_range &range, uint32_t index) {
  uint32_t stage = index % shape::STAGES, first = range.first + index * range.step;
  unsigned char *tile = shared + stage * shape::STAGE_BYTES;
  if (index < range.count) {
    bool lost;
    if constexpr (shape::converts)
      lost = bny_general_load<shape::ROW_BYTES, shape::KEYS, shape::WARPS>(
          tile, call, call.k, keys, first, range.end, bny_warp(), bny_general_flat<shape::ROW_BYTES>());
    else if constexpr (shape::general)
      lost = bny_general_load<shape::ROW_BYTES, shape::KEYS, shape::WARPS>(
          tile, call, call.k, keys, first, range.end, bny_warp(), bny_general_tiled<shape::DIM, shape::KEYS>());
    else
      lost = bny_decode_load<shape::DIM, shape::KEYS, shape::WARPS>(tile, call.k, keys, first, range.end, bny_warp());
    if (bny_lane() == 0) *bny_latent_lost<shape>(shared, stage, bny_warp()) = lost;
  }
  bny_copy_async_commit();
}

/* Waits for tile `index`. All warps have then finished the previous tile, and copies that overwrite it start. */
template <class shape, class Keys>
BNY_DEVICE const unsigned char *bny_latent_wait(unsigned char *shared, const bny_decode_call &call, const Keys &keys,
                                                const bny_latent_range &range, uint32_t index) {
  bny_copy_async_wait<shape::STAGES - 2>();
  bny_block_sync();
  bny_latent_fill<shape>(shared, call, keys, range, index + shape::STAGES - 1);
  return shared + index % shape::STAGES * shape::STAGE_BYTES;
}

/* Converts a stage to the tile of 16-bit elements. All warps must have finished the tile's old contents. */
template <class Element, class shape>
BNY_DEVICE const unsigned char *bny_latent_convert(unsigned char *shared, const unsigned char *stage) {
  using memory = bny_latent_memory<shape>;
  enum : uint32_t { CHUNKS = shape::ROW_BYTES / 16, WIDE = shape::VALUE_DIM / 16 /* chunk of scales */ };
  unsigned char *converted = shared + memory::CONVERTED;
  BNY_ROLLED for (uint32_t i = bny_thread(); i < shape::KEYS * CHUNKS; i += shape::THREADS) {
    const uint32_t key = i / CHUNKS, chunk = i % CHUNKS;
    unsigned char *row = converted + bny_tile_row<shape::DIM, shape::KEYS>(key);
    if (!shape::scales || chunk < WIDE)
      bny_general_convert<Element>(row + chunk * 32, stage + i * 16);
    else if (chunk == WIDE)
      bny_store_quad(shared + memory::SCALES + key * 16, bny_load_quad(stage + i * 16));
    else
      bny_store_quad(row + 2 * shape::VALUE_DIM + (chunk - WIDE - 1) * 16, bny_load_quad(stage + i * 16));
  }
  bny_block_sync();
  return converted;
}

/* Returns the first column of a warp's step `i` of Q and K. */
template <class shape> BNY_DEVICE int bny_latent_column(int part, int i) {
  if (!shape::scales) return part * shape::PART_DIM + 16 * i;
  return i < shape::PART_VALUES / 16 ? part * shape::PART_VALUES + 16 * i : shape::VALUE_DIM + 16 * part;
}

/* Scales of FlashMLA for this warp's 128 columns. The index is that of bny_fragment_softmax(). */
template <class shape> struct bny_latent_scales {
  float factor[shape::scales ? 8 : 1];

  BNY_DEVICE float apply(const bny_latent_scales &self, float weight, int index) {
    return shape::scales ? bny_mul(weight, self.factor[index]) : weight;
  }
};

template <class shape> BNY_DEVICE bny_latent_scales<shape> bny_latent_scales_of(const unsigned char *shared) {
  bny_latent_scales<shape> scales = {};
  if constexpr (shape::scales) {
    const float *all = (const float *)(shared + bny_latent_memory<shape>::SCALES) + bny_warp() % shape::PARTS;
    BNY_UNROLL for (uint32_t i = 0; i < 8; i++) {
      scales.factor[i] = all[4 * ((bny_lane() % 4 * 2 + i % 2) * 4 + i / 2)];
    }
  }
  return scales;
}

template <class shape>
BNY_DEVICE void bny_latent_load_query(uint32_t query[shape::PART_DIM / 16][4], const bny_decode_call &call,
                                      const bny_general_item &item) {
  const uint32_t first = bny_warp() / shape::PARTS * 16 + bny_lane() / 4;
  const int part = (int)(bny_warp() % shape::PARTS), pair = (int)bny_lane() % 4 * 2;
  bool reads[2];
  BNY_UNROLL for (uint32_t j = 0; j < 2; j++) reads[j] = bny_general_reads(call, item, shape::ROWS, first + j * 8);
  BNY_UNROLL for (int i = 0; i < shape::PART_DIM / 16; i++) {
    BNY_UNROLL for (uint32_t j = 0; j < 4; j++) {
      const uint32_t row = first + j % 2 * 8;
      const int byte = 2 * (bny_latent_column<shape>(part, i) + pair + (int)(j / 2) * 8);
      query[i][j] = 0;
      if (reads[j % 2]) query[i][j] = *(const uint32_t *)bny_general_query_at(call, item, shape::ROWS, row, byte);
    }
  }
}

/* Loads this warp's quarter of the columns of 16 rows of Q, as fragments of A. Rows that are not read are zero. */
template <class shape>
BNY_DEVICE void bny_latent_load_query(uint32_t query[shape::PART_DIM / 16][4], const bny_decode_call &call,
                                      const bny_decode_item &item) {
  const uint32_t first = bny_warp() / shape::PARTS * 16 + bny_lane() / 4;
  const uint32_t head = item.kv_head * (uint32_t)call.group + item.tile * shape::ROWS;
  const unsigned char *from = (const unsigned char *)call.q + item.sequence * call.q_batch_stride +
                              2 * (bny_warp() % shape::PARTS * shape::PART_DIM + bny_lane() % 4 * 2);
  BNY_UNROLL for (int i = 0; i < shape::PART_DIM / 16; i++) {
    BNY_UNROLL for (uint32_t j = 0; j < 4; j++) {
      uint32_t row = first + j % 2 * 8;
      query[i][j] = 0;
      if (row < bny_decode_query_rows(item))
        query[i][j] = *(const uint32_t *)(from + (head + row) * call.q_head_stride + 32 * i + j / 2 * 16);
    }
  }
}

/* Computes logits of 16 heads and 32 keys, with the same bits in the four warps of a group. */
template <class Element, class shape>
BNY_DEVICE void bny_latent_logits(bny_logits<4> *logits, const uint32_t query[shape::PART_DIM / 16][4],
                                  const unsigned char *tile, unsigned char *exchange,
                                  const bny_latent_scales<shape> &scales) {
  const int part = (int)bny_warp() % shape::PARTS, group = (int)bny_warp() / shape::PARTS;
  BNY_UNROLL for (int i = 0; i < 16; i++) logits->s[i / 4][i % 4] = 0;
  BNY_UNROLL for (int i = 0; i < shape::PART_DIM / 16; i++) {
    if (shape::scales && i == shape::PART_VALUES / 16) {
      BNY_UNROLL for (int j = 0; j < 16; j++) {
        logits->s[j / 4][j % 4] = bny_latent_scales<shape>::apply(scales, logits->s[j / 4][j % 4], j / 4 * 2 + j % 2);
      }
    }
    BNY_UNROLL for (int half = 0; half < 2; half++) {
      uint32_t b[4];
      bny_load_keys<shape::DIM, shape::KEYS>(b, tile, 2 * half, bny_latent_column<shape>(part, i));
      Element::multiply(logits->s[2 * half], query[i], b);
      Element::multiply(logits->s[2 * half + 1], query[i], b + 2);
    }
  }
  float *mine = (float *)exchange + (bny_warp() * 4 * BNY_WARP_LANES + bny_lane()) * 4;
  BNY_UNROLL for (int i = 0; i < 4; i++) bny_store_floats(mine + i * BNY_WARP_LANES * 4, logits->s[i]);
  bny_named_sync(1 + group, BNY_WARP_LANES * shape::PARTS);
  const float *theirs =
      (const float *)exchange + ((uint32_t)(group * shape::PARTS * 4) * BNY_WARP_LANES + bny_lane()) * 4;
  BNY_UNROLL for (int i = 0; i < 4; i++) {
    bny_load_floats(logits->s[i], theirs + i * BNY_WARP_LANES * 4);
    BNY_UNROLL for (int other = 1; other < shape::PARTS; other++) {
      float s[4];
      bny_load_floats(s, theirs + (other * 4 + i) * BNY_WARP_LANES * 4);
      BNY_UNROLL for (int j = 0; j < 4; j++) logits->s[i][j] = bny_add(logits->s[i][j], s[j]);
    }
  }
}

/* Attends to all tiles of a range. Returns true if some keys of the item are lost. */
template <class Element, class shape, class Keys>
BNY_DEVICE bool bny_latent_walk(bny_fragment<shape::PART_VALUES> *partial, unsigned char *shared,
                                const bny_decode_call &call, const Keys &keys, const bny_latent_range &range,
                                const uint32_t query[shape::PART_DIM / 16][4],
                                const typename shape::kind::template rows<shape::ROWS> &rows) {
  using memory = bny_latent_memory<shape>;
  const int part = (int)bny_warp() % shape::PARTS, group = (int)bny_warp() / shape::PARTS;
  bool lost = false;
  for (uint32_t index = 0; index < range.count; index++) {
    bny_logits<4> logits;
    bny_weights<2> weights;
    const unsigned char *tile = bny_latent_wait<shape>(shared, call, keys, range, index);
    if constexpr (shape::converts) tile = bny_latent_convert<Element, shape>(shared, tile);
    const bny_latent_scales<shape> scales = bny_latent_scales_of<shape>(shared);
    bny_latent_logits<Element, shape>(&logits, query, tile, shared + memory::LOGITS, scales);
    uint32_t left = range.end - (range.first + index * range.step);
    if constexpr (shape::general) bny_general_logits(&logits, rows, 16 * (uint32_t)group, range.end - left);
    if (bny_warp_any(bny_lane() < shape::WARPS &&
                     *bny_latent_lost<shape>(shared, index % shape::STAGES, bny_lane()) != 0)) {
      left = 0;
      lost = true;
    }
    if (left < shape::KEYS) bny_logits_mask(&logits, left);
    bny_fragment_softmax<Element>(partial, logits, shape::kind::scale(call, rows), &weights, scales);
    bny_fragment_values<Element, shape::DIM>(partial, weights, tile, part * shape::PART_VALUES);
  }
  bny_fragment_end<Element>(partial);
  return lost;
}

/* Called by all blocks of a CTA group. */
template <class shape, class Epilogue>
BNY_DEVICE void bny_latent_attend(const bny_decode_call &call, const typename shape::kind::walk &walk,
                                  typename shape::kind::item item, unsigned char *shared, Epilogue &epilogue) {
  using memory = bny_latent_memory<shape>;
  const int part = (int)bny_warp() % shape::PARTS, group = (int)bny_warp() / shape::PARTS;
  const auto keys = bny_decode_keys_of_item(call, item);
  const bny_latent_range range = bny_latent_range_of(item, keys, shape::KEYS);
  const auto &rows = shape::kind::template make_rows<shape::ROWS>(call, item);
  BNY_ROLLED for (uint32_t index = 0; index + 1 < shape::STAGES; index++) {
    bny_latent_fill<shape>(shared, call, keys, range, index);
  }
  bny_decode_walk_teams(walk, &item);
  uint32_t query[shape::PART_DIM / 16][4];
  bny_latent_load_query<shape>(query, call, item);

  bny_fragment<shape::PART_VALUES> partial;
  bny_fragment_clear(&partial);
  bool lost;
  if (!shape::scales && call.is_f16) /* FlashMLA has no f16 */
    lost = bny_latent_walk<bny_f16, shape>(&partial, shared, call, keys, range, query, rows);
  else
    lost = bny_latent_walk<bny_bf16, shape>(&partial, shared, call, keys, range, query, rows);
  bny_copy_async_wait<0>();
  bny_block_sync();
  bny_block_partial whole = {(float *)(shared + memory::STATS), (float *)(shared + memory::STATS) + shape::ROWS,
                             (float *)shared, shape::PARTIAL_PITCH};
  bny_fragment_put(whole.n + group * 16 * whole.pitch + part * shape::PART_VALUES, whole.pitch, partial);
  if (part == 0) bny_fragment_put_stats(whole.m + group * 16, whole.d + group * 16, partial);
  if (lost && bny_warp() == 0) bny_decode_item_lost(call, epilogue.group(), item);
  bny_decode_finish<shape::VALUE_DIM, shape::ROWS>(call, item, walk.team, whole, epilogue);
}

template <class shape, class Epilogue>
BNY_DEVICE void bny_decode_latent(const bny_decode_call &call, Epilogue &epilogue) {
  epilogue.begin();
  bny_block_sync();
  bny_grid_wait();
  bny_grid_release();
  using kind = typename shape::kind;
  typename kind::item item;
  for (typename kind::walk walk = kind::template begin<shape::ROWS>(call, epilogue.group());
       bny_decode_walk_item(walk, call, shape::ROWS, &item); kind::template next<shape::ROWS>(&walk, call))
    if (bny_decode_walk_has(walk, item)) bny_latent_attend<shape>(call, walk, item, bny_dynamic_shared(), epilogue);
}
