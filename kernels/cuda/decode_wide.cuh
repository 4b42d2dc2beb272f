/* SPDX-License-Identifier: Apache-2.0
 * MLA attention of 64 heads by the two warpgroups of a block: keys have 576 columns, and the first 512 are the values.
 * Each key is read from global memory once for 64 heads, and the tensor cores read it from shared memory.
 * decode_latent.cuh reads shared memory again for each 16 heads. Here that would take twice as long as the reads of
 * global memory.
 *
 * A tile has 64 keys. The first warpgroup computes logits, weights and the first half of the columns of n. The second
 * one receives weights and m, computes the other half, and copies tiles. They synchronise when a tile has arrived and
 * the previous tile is no longer used. The next tile is copied during the logits, when the second warpgroup has no
 * other work.
 *
 * Q and tiles lie in nine panels (device.h) of 64 columns each. The last panel of a tile has no values, so the fine
 * terms of weights overwrite it after the logits.
 *
 * Per tile, tensor cores take 1,152 cycles for logits and 1,024 for each term of the weights. With up to 64 heads the
 * memory takes longer than two terms. More heads read the same keys once more, from the second-level cache, so tensor
 * cores are the limit, and weights have one term (numbers.md). */
#pragma once

#include "cuda/decode_latent.cuh"

enum : int {
  BNY_WIDE_DIM = 576,
  BNY_WIDE_VALUES = 512,
  BNY_WIDE_ROWS = 64,
  BNY_WIDE_KEYS = 64, /* keys in a tile */
  BNY_WIDE_STAGES = 2,
  BNY_WIDE_WARPS = 8,
  BNY_WIDE_COPIERS = 4, /* warps that copy */
  BNY_WIDE_THREADS = BNY_WARP_LANES * BNY_WIDE_WARPS,
  BNY_WIDE_PANELS = BNY_WIDE_DIM / 64,
  BNY_WIDE_PANEL_BYTES = 64 * 128,
  BNY_WIDE_TILE_BYTES = BNY_WIDE_PANELS * BNY_WIDE_PANEL_BYTES,
  BNY_WIDE_PITCH = BNY_WIDE_VALUES + 8 /* floats between rows of the partial */
};

/* The layout of dynamic shared memory, which begins at a multiple of 1024 bytes. The partial overwrites the tiles after
 * their last use. */
enum : int {
  BNY_WIDE_TILES = BNY_WIDE_TILE_BYTES, /* after Q */
  BNY_WIDE_COARSE = BNY_WIDE_TILES + BNY_WIDE_STAGES * BNY_WIDE_TILE_BYTES,
  BNY_WIDE_STATS = BNY_WIDE_COARSE + BNY_WIDE_PANEL_BYTES,
  BNY_WIDE_LOST = BNY_WIDE_STATS + 2 * BNY_WIDE_ROWS * 4, /* a word for each stage and copier */
  BNY_WIDE_BYTES = BNY_WIDE_LOST + BNY_WIDE_STAGES * BNY_WIDE_COPIERS * 4 + 1024
};
/* The form of these kernels, which have only one shape. */
template <int rows, bny_decode_rows> struct bny_wide_shape {
  enum : int { WARPS = BNY_WIDE_WARPS, RESIDENT = 1 };
  static_assert(rows == BNY_WIDE_ROWS, "as the list says");
};
template <class> struct bny_wide_memory {
  enum : int { BYTES = BNY_WIDE_BYTES };
};
static_assert(4 * BNY_WIDE_ROWS * BNY_WIDE_PITCH <= BNY_WIDE_STAGES * BNY_WIDE_TILE_BYTES, "the partial lies in tiles");

/* Called by eight neighbouring lanes. Copies a row of 576 elements, or stores zeros, in row `row` of nine panels. */
BNY_DEVICE void bny_wide_copy_row(unsigned char *panels, uint32_t row, const unsigned char *from, bool there) {
  const uint32_t chunk = bny_lane() % 8;
  unsigned char *to = panels + row * 128 + (chunk ^ (row & 7)) * 16;
  if (there) from += chunk * 16;
  BNY_UNROLL for (int i = 0; i < BNY_WIDE_PANELS; i++) {
    bny_copy_async_16(to + i * BNY_WIDE_PANEL_BYTES, from + (there ? i * 128 : 0), there);
  }
}

BNY_DEVICE bool bny_wide_copies(void) { return bny_warp() >= BNY_WIDE_WARPS - BNY_WIDE_COPIERS; }

/* Returns the row, out of 16, that this group of eight lanes copies. */
BNY_DEVICE uint32_t bny_wide_row(void) { return bny_warp() % BNY_WIDE_COPIERS * 4 + bny_lane() / 8; }

/* Copies the rows of q. Rows that are not read become zero. */
BNY_DEVICE void bny_wide_copy_query(unsigned char *query, const bny_decode_call &call, const bny_decode_item &item) {
  const uint32_t head = item.kv_head * (uint32_t)call.group + item.tile * BNY_WIDE_ROWS;
  const unsigned char *base = (const unsigned char *)call.q + item.sequence * call.q_batch_stride;
  BNY_UNROLL for (uint32_t part = 0; part < 4; part++) {
    const uint32_t row = bny_wide_row() + 16 * part;
    const bool there = row < bny_decode_query_rows(item);
    bny_wide_copy_row(query, row, there ? base + (head + row) * call.q_head_stride : base, there);
  }
}

/* Starts copies into tile `index`. A tile that does not exist is committed too, as an empty group of copies. */
BNY_DEVICE void bny_wide_fill(unsigned char *shared, const bny_decode_call &call, const bny_decode_keys &keys,
                              const bny_latent_range &range, uint32_t index) {
  const uint32_t stage = index % BNY_WIDE_STAGES, first = range.first + index * range.step;
  if (index < range.count) {
    bool lost = false;
    BNY_UNROLL for (uint32_t part = 0; part < 4; part++) {
      const uint32_t row = bny_wide_row() + 16 * part, key = first + row;
      const uint32_t page = key < range.end ? bny_decode_page(keys, key) : 0;
      const bool there = key < range.end && page < keys.page_end;
      lost = lost || page >= keys.page_end;
      bny_wide_copy_row(shared + BNY_WIDE_TILES + stage * BNY_WIDE_TILE_BYTES, row,
                        there ? bny_decode_row_address(call.k, keys, page, key) : (const unsigned char *)call.k.base,
                        there);
    }
    lost = bny_warp_any(lost);
    if (bny_lane() == 0)
      ((uint32_t *)(shared + BNY_WIDE_LOST))[stage * BNY_WIDE_COPIERS + bny_warp() % BNY_WIDE_COPIERS] = lost;
  }
  bny_copy_async_commit();
}

/* ---- the first warpgroup ----------------------------------------------------------------------------------------- */

/* Masks the keys from `keys` on, which do not exist. Key j of class c is key 8 c + j of the tile. */
BNY_DEVICE void bny_wide_mask(bny_logits<8> *logits, uint32_t keys) {
  BNY_UNROLL for (uint32_t i = 0; i < 32; i++) {
    if (i / 4 * 8 + bny_lane() % 4 * 2 + i % 2 >= keys) logits->s[i / 4][i % 4] = -BNY_INFINITY_F;
  }
}

template <class Element>
BNY_DEVICE void bny_wide_logits(bny_logits<8> *logits, const unsigned char *query, const unsigned char *tile) {
  const bny_group_operand a = bny_group_operand_of(query, 0), b = bny_group_operand_of(tile, 0);
  bny_group_begin();
  BNY_UNROLL for (int i = 0; i < BNY_WIDE_DIM / 16; i++) {
    const int at = i / 4 * BNY_WIDE_PANEL_BYTES + i % 4 * 32;
    Element::group_logits(logits->s[0], bny_group_operand_add(a, at), bny_group_operand_add(b, at), i > 0);
  }
  bny_group_commit();
  bny_group_wait<0>();
}

/* Returns the offset of this lane's weights, which take 16 bytes per step. */
BNY_DEVICE uint32_t bny_wide_weights_at(uint32_t step) {
  return ((step * 4 + bny_warp() % 4) * BNY_WARP_LANES + bny_lane()) * 16;
}

template <bool has_fine>
BNY_DEVICE void bny_wide_weights_put(unsigned char *shared, unsigned char *tile, const bny_weights<4> &weights,
                                     const bny_fragment<256> &partial) {
  unsigned char *coarse = shared + BNY_WIDE_COARSE, *fine = tile + (BNY_WIDE_PANELS - 1) * BNY_WIDE_PANEL_BYTES;
  float *m = (float *)(shared + BNY_WIDE_STATS) + bny_warp() * 16 + bny_lane() / 4;
  if (has_fine) bny_named_sync(1, BNY_WIDE_THREADS / 2); /* all four warps have used the last panel */
  BNY_UNROLL for (int step = 0; step < 4; step++) {
    const uint32_t *c = weights.coarse[step], *f = weights.fine[step];
    bny_store_quad(coarse + bny_wide_weights_at(step), {{c[0], c[1], c[2], c[3]}});
    if (has_fine) bny_store_quad(fine + bny_wide_weights_at(step), {{f[0], f[1], f[2], f[3]}});
  }
  if (bny_lane() % 4 != 0) return;
  m[0] = partial.m[0];
  m[8] = partial.m[1];
}

/* ---- the second warpgroup ---------------------------------------------------------------------------------------- */

template <bool has_fine>
BNY_DEVICE void bny_wide_weights_get(bny_weights<4> *weights, bny_fragment<256> *partial, const unsigned char *shared,
                                     const unsigned char *tile) {
  const unsigned char *coarse = shared + BNY_WIDE_COARSE, *fine = tile + (BNY_WIDE_PANELS - 1) * BNY_WIDE_PANEL_BYTES;
  const float *at = (const float *)(shared + BNY_WIDE_STATS) + bny_warp() % 4 * 16 + bny_lane() / 4;
  const float m[2] = {at[0], at[8]};
  BNY_UNROLL for (int step = 0; step < 4; step++) {
    const bny_quad c = bny_load_quad(coarse + bny_wide_weights_at(step));
    bny_quad f = {};
    if (has_fine) f = bny_load_quad(fine + bny_wide_weights_at(step));
    BNY_UNROLL for (int i = 0; i < 4; i++) {
      weights->coarse[step][i] = c.word[i];
      weights->fine[step][i] = f.word[i];
    }
  }
  bny_fragment_raise(partial, m);
}

/* ---- both warpgroups --------------------------------------------------------------------------------------------- */

/* Computes n += weights times this warpgroup's half of the columns. */
template <class Element, bool has_fine>
BNY_DEVICE void bny_wide_values(bny_fragment<256> *partial, const bny_weights<4> &weights, const unsigned char *tile) {
  const unsigned char *half = tile + bny_warp() / 4 * (BNY_WIDE_VALUES / 2 / 64) * BNY_WIDE_PANEL_BYTES;
  const bny_group_operand b = bny_group_operand_of(half, BNY_WIDE_PANEL_BYTES);
  bny_group_begin();
  BNY_UNROLL for (int step = 0; step < 4; step++) {
    Element::group_values(partial->n[0], weights.coarse[step], bny_group_operand_add(b, step * 16 * 128));
    if (has_fine) Element::group_values(partial->n[0], weights.fine[step], bny_group_operand_add(b, step * 16 * 128));
  }
  bny_group_commit();
  bny_group_wait<0>();
}

/* Returns true if some keys of the item have been lost. */
template <class Element, bool has_fine>
BNY_DEVICE bool bny_wide_walk(bny_fragment<256> *partial, unsigned char *shared, const bny_decode_call &call,
                              const bny_decode_keys &keys, const bny_latent_range &range) {
  bool lost = false;
  for (uint32_t index = 0; index < range.count; index++) {
    const uint32_t stage = index % BNY_WIDE_STAGES;
    unsigned char *tile = shared + BNY_WIDE_TILES + stage * BNY_WIDE_TILE_BYTES;
    bny_weights<4> weights;
    if (bny_wide_copies()) {
      if (index == 0)
        bny_copy_async_wait<1>(); /* two copies have been started */
      else
        bny_copy_async_wait<0>();
      bny_fence_async();
    }
    bny_block_sync();
    if (!bny_wide_copies()) {
      bny_logits<8> logits;
      bny_wide_logits<Element>(&logits, shared, tile);
      uint32_t left = range.end - (range.first + index * range.step);
      const uint32_t *flags = (const uint32_t *)(shared + BNY_WIDE_LOST) + stage * BNY_WIDE_COPIERS;
      if (bny_warp_any(bny_lane() < BNY_WIDE_COPIERS && flags[bny_lane() % BNY_WIDE_COPIERS] != 0)) {
        left = 0;
        lost = true;
      }
      if (left < BNY_WIDE_KEYS) bny_wide_mask(&logits, left);
      bny_fragment_softmax<Element>(partial, logits, call.scale_log2, &weights);
      bny_wide_weights_put<has_fine>(shared, tile, weights, *partial);
      bny_named_arrive(2, BNY_WIDE_THREADS);
    } else {
      if (index > 0) bny_wide_fill(shared, call, keys, range, index + 1);
      bny_named_sync(2, BNY_WIDE_THREADS);
      bny_wide_weights_get<has_fine>(&weights, partial, shared, tile);
    }
    bny_wide_values<Element, has_fine>(partial, weights, tile);
  }
  bny_fragment_end<Element>(partial);
  return lost;
}

template <class Element>
BNY_DEVICE bool bny_wide_walk_of(bny_fragment<256> *partial, unsigned char *shared, const bny_decode_call &call,
                                 const bny_decode_keys &keys, const bny_latent_range &range) {
  return call.row_tiles > 1 ? bny_wide_walk<Element, false>(partial, shared, call, keys, range)
                            : bny_wide_walk<Element, true>(partial, shared, call, keys, range);
}

/* Called by all blocks of a CTA group. */
template <class Epilogue>
BNY_DEVICE void bny_wide_attend(const bny_decode_call &call, const bny_decode_walk &walk, bny_decode_item item,
                                unsigned char *shared, Epilogue &epilogue) {
  const bny_decode_keys keys = bny_decode_keys_of_item(call, item);
  const bny_latent_range range = bny_latent_range_of(item, keys, BNY_WIDE_KEYS);
  if (bny_wide_copies()) {
    bny_wide_copy_query(shared, call, item);
    BNY_ROLLED for (uint32_t index = 0; index < BNY_WIDE_STAGES; index++) {
      bny_wide_fill(shared, call, keys, range, index);
    }
  }
  bny_decode_walk_teams(walk, &item);

  bny_fragment<256> partial;
  bny_fragment_clear(&partial);
  const bool lost = call.is_f16 ? bny_wide_walk_of<bny_f16>(&partial, shared, call, keys, range)
                                : bny_wide_walk_of<bny_bf16>(&partial, shared, call, keys, range);
  bny_copy_async_wait<0>();
  bny_block_sync();
  float *stats = (float *)(shared + BNY_WIDE_STATS), *n = (float *)(shared + BNY_WIDE_TILES);
  const bny_block_partial whole = {stats, stats + BNY_WIDE_ROWS, n, BNY_WIDE_PITCH};
  const int first_row = (int)bny_warp() % 4 * 16, first_column = (int)bny_warp() / 4 * 256;
  bny_fragment_put(whole.n + first_row * whole.pitch + first_column, whole.pitch, partial);
  if (first_column == 0) bny_fragment_put_stats(whole.m + first_row, whole.d + first_row, partial);
  if (lost && bny_warp() == 0) bny_decode_report_lost(call, epilogue.group(), item.sequence, item.keys);
  bny_decode_finish<BNY_WIDE_VALUES, BNY_WIDE_ROWS>(call, item, walk.team, whole, epilogue);
}

template <class, class Epilogue> BNY_DEVICE void bny_decode_wide(const bny_decode_call &call, Epilogue &epilogue) {
  epilogue.begin();
  unsigned char *shared = bny_shared_align(bny_dynamic_shared(), 1024);
  bny_block_sync();
  bny_grid_wait();
  bny_grid_release();
  bny_decode_item item;
  for (bny_decode_walk walk = bny_decode_walk_begin(call, epilogue.group());
       bny_decode_walk_item(walk, call, BNY_WIDE_ROWS, &item); bny_decode_walk_next(&walk, call))
    if (bny_decode_walk_has(walk, item)) bny_wide_attend(call, walk, item, shared, epilogue);
}
