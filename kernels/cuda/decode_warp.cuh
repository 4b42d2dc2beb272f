/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of 16 query heads over some granules of keys, by one warp alone: head_dim up to 256, values as long as keys.
 *
 * A warp has a ring of tiles of its own, which it fills itself: K of a granule, V of it, K of its next granule ... While it
 * computes with one, copies into all others are under way; no warp ever waits for another one before the end of a piece.
 *
 * Softmax in base 2: m is the least whole number that no logit so far exceeds, so that rescaling is by powers of two: exact,
 * and rare. p = 2^(t - m) is summed in f32, and multiplied with V as a sum of two 16-bit terms: one alone would cost an
 * error of 2^-9 (bf16) of sum(p |v|) / d, and the tensor cores have time while memory is waited for. */
#ifndef BNY_CUDA_DECODE_WARP_CUH
#define BNY_CUDA_DECODE_WARP_CUH

#include <float.h>

#include "cuda/decode_element.cuh"
#include "cuda/decode_load.cuh"
#include "merge_math.h"

enum { BNY_DECODE_WARPS = 4 };

template <int dim_, bool bulk_> struct bny_warp_shape {
  enum : int {
    DIM = dim_,
    ROWS = 16,
    WARPS = BNY_DECODE_WARPS,
    RING = dim_ <= 64 ? 8 : 4,     /* tiles, even */
    QUERY_KEPT = dim_ <= 128,      /* in registers; else read from shared memory each time */
    PARTIAL_PITCH = dim_ + 8       /* floats: stores of fragments meet no bank twice */
  };
  static constexpr bool bulk = bulk_;
};

/* The ring of a warp. */
struct bny_ring {
  unsigned char *tiles;
  uint64_t *barriers; /* of bulk copies: one a tile */
  uint32_t parity;    /* bit i: of what barrier i is waited for next */
};

/* Which granules a warp attends to: count of them from first on, each `step` after the one before. */
struct bny_granules {
  uint32_t first, step, count;
};

/* What a warp has when it is done, in fragments: lane 4 g + t has rows g and g + 8; of values, columns 8 i + 2 t and the
 * next. d is of this lane's keys alone. */
template <class shape> struct bny_warp_partial {
  float m[2], d[2];
  float n[shape::DIM / 8][4];
};

/* ---- the ring ------------------------------------------------------------------------------------------------------- */

/* Half h is K of granule h / 2 if h is even, else V of it. All halves are counted, also those that are not there. */
template <class shape>
BNY_DEVICE void bny_ring_fill(const bny_ring &ring, const bny_decode_call &call, const bny_decode_keys &keys,
                              const bny_granules &granules, uint32_t half) {
  uint32_t place = half % shape::RING, index = half / 2;
  unsigned char *tile = ring.tiles + place * bny_tile<shape::DIM>::BYTES;
  if (index < granules.count) {
    const bny_decode_cache &cache = half % 2 ? call.v : call.k;
    uint32_t granule = granules.first + index * granules.step;
    if constexpr (shape::bulk) bny_decode_load_bulk<shape::DIM>(tile, cache, keys, granule, ring.barriers + place);
    else bny_decode_load_async<shape::DIM>(tile, cache, keys, granule);
  }
  if constexpr (!shape::bulk) bny_copy_async_commit();
}

template <class shape> BNY_DEVICE const unsigned char *bny_ring_wait(bny_ring *ring, uint32_t half) {
  uint32_t place = half % shape::RING;
  if constexpr (shape::bulk) {
    bny_mbarrier_wait(ring->barriers + place, ring->parity >> place & 1);
    ring->parity ^= 1u << place;
  } else {
    bny_copy_async_wait<shape::RING - 1>();
  }
  bny_warp_sync();
  return ring->tiles + place * bny_tile<shape::DIM>::BYTES;
}

/* The warp has read half `half`: its tile is filled anew. */
template <class shape>
BNY_DEVICE void bny_ring_next(const bny_ring &ring, const bny_decode_call &call, const bny_decode_keys &keys,
                              const bny_granules &granules, uint32_t half) {
  if constexpr (shape::bulk) bny_fence_async();
  bny_warp_sync();
  bny_ring_fill<shape>(ring, call, keys, granules, half + shape::RING);
}

/* ---- one granule ---------------------------------------------------------------------------------------------------- */

/* Logits s[2][4] of 16 heads and 16 keys, before scaling. */
template <class Element, class shape>
BNY_DEVICE void bny_warp_logits(float s[2][4], const uint32_t kept[][4], const unsigned char *query,
                                const unsigned char *tile) {
  BNY_UNROLL for (int i = 0; i < 8; i++) s[i / 4][i % 4] = 0;
  BNY_UNROLL for (int column = 0; column < shape::DIM; column += 16) {
    uint32_t a[4], b[4];
    if constexpr (!shape::QUERY_KEPT) bny_load_rows_a<shape::DIM>(a, query, column);
    bny_load_rows_b<shape::DIM>(b, tile, column);
    const uint32_t *rows = shape::QUERY_KEPT ? kept[column / 16 * shape::QUERY_KEPT] : a;
    Element::multiply(s[0], rows, b);
    Element::multiply(s[1], rows, b + 2);
  }
}

/* Columns of fragments that are keys beyond the end. */
BNY_DEVICE void bny_warp_mask(float s[2][4], uint32_t keys) {
  BNY_UNROLL for (uint32_t i = 0; i < 8; i++)
    if (i / 4 * 8 + bny_lane() % 4 * 2 + i % 2 >= keys) s[i / 4][i % 4] = -BNY_INFINITY_F;
}

/* m of a row with another granule of logits. A logit of +inf or NaN, and it alone, makes d infinite or NaN. */
BNY_DEVICE float bny_warp_row_max(float m, const float s[2][4], int row, float scale) {
  float top = -BNY_INFINITY_F;
  BNY_UNROLL for (int i = 0; i < 4; i++) top = fmaxf(top, bny_mul(s[i / 2][2 * row + i % 2], scale));
  top = fmaxf(top, bny_shuffle_xor(top, 1));
  top = fmaxf(top, bny_shuffle_xor(top, 2));
  return fminf(fmaxf(m, ceilf(top)), FLT_MAX);
}

/* Logits become weights 2^(t - m) in two terms, fragments of A; m, d and n of what was before are rescaled. */
template <class Element, class shape>
BNY_DEVICE void bny_warp_softmax(bny_warp_partial<shape> *partial, float s[2][4], float scale, uint32_t coarse[4],
                                 uint32_t fine[4]) {
  float m[2];
  BNY_UNROLL for (int row = 0; row < 2; row++) m[row] = bny_warp_row_max(partial->m[row], s, row, scale);
  if (bny_warp_any(m[0] > partial->m[0] || m[1] > partial->m[1])) {
    BNY_UNROLL for (int row = 0; row < 2; row++) {
      float factor = bny_exp2_whole(partial->m[row] - m[row]);
      partial->d[row] *= factor;
      BNY_UNROLL for (int i = 0; i < shape::DIM / 8; i++) {
        partial->n[i][2 * row] *= factor;
        partial->n[i][2 * row + 1] *= factor;
      }
      partial->m[row] = m[row];
    }
  }
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    float base = m[row] > -BNY_INFINITY_F ? m[row] - Element::HEADROOM : 0; /* all of the row is -inf so far */
    BNY_UNROLL for (int tile = 0; tile < 2; tile++) {
      float low = bny_exp2_fast(fmaf(s[tile][2 * row], scale, -base));
      float high = bny_exp2_fast(fmaf(s[tile][2 * row + 1], scale, -base));
      partial->d[row] = bny_add(partial->d[row], bny_add(low, high));
      bny_decode_split<Element>(low, high, &coarse[2 * tile + row], &fine[2 * tile + row]);
    }
  }
}

template <class Element, class shape>
BNY_DEVICE void bny_warp_values(bny_warp_partial<shape> *partial, const uint32_t coarse[4], const uint32_t fine[4],
                                const unsigned char *tile) {
  BNY_UNROLL for (int column = 0; column < shape::DIM; column += 16) {
    uint32_t b[4];
    bny_load_columns_b<shape::DIM>(b, tile, column);
    BNY_UNROLL for (int i = 0; i < 2; i++) {
      Element::multiply(partial->n[column / 8 + i], coarse, b + 2 * i);
      Element::multiply(partial->n[column / 8 + i], fine, b + 2 * i);
    }
  }
}

/* ---- a piece -------------------------------------------------------------------------------------------------------- */

/* The ring has been filled from half 0 on, and the query is in shared memory: a tile. */
template <class Element, class shape>
BNY_DEVICE void bny_warp_attend(bny_warp_partial<shape> *partial, bny_ring *ring, const bny_decode_call &call,
                                const bny_decode_keys &keys, const bny_granules &granules, const unsigned char *query) {
  uint32_t kept[shape::QUERY_KEPT ? shape::DIM / 16 : 1][4];
  if constexpr (shape::QUERY_KEPT) {
    BNY_UNROLL for (int i = 0; i < shape::DIM / 16; i++) bny_load_rows_a<shape::DIM>(kept[i], query, 16 * i);
  }
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    partial->m[row] = -BNY_INFINITY_F;
    partial->d[row] = 0;
  }
  BNY_UNROLL for (int i = 0; i < shape::DIM / 2; i++) partial->n[i / 4][i % 4] = 0;

  for (uint32_t index = 0; index < granules.count; index++) {
    float s[2][4];
    uint32_t coarse[4], fine[4];
    const unsigned char *tile = bny_ring_wait<shape>(ring, 2 * index);
    bny_warp_logits<Element, shape>(s, kept, query, tile);
    bny_ring_next<shape>(*ring, call, keys, granules, 2 * index);
    uint32_t left = keys.count - (granules.first + index * granules.step) * BNY_DECODE_GRANULE;
    if (left < BNY_DECODE_GRANULE) bny_warp_mask(s, left);
    bny_warp_softmax<Element, shape>(partial, s, call.scale_log2, coarse, fine);
    tile = bny_ring_wait<shape>(ring, 2 * index + 1);
    bny_warp_values<Element, shape>(partial, coarse, fine, tile);
    bny_ring_next<shape>(*ring, call, keys, granules, 2 * index + 1);
  }
  if constexpr (!shape::bulk) bny_copy_async_wait<0>();
  const float unit = bny_exp2_whole(-Element::HEADROOM);
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    partial->d[row] = bny_add(partial->d[row], bny_shuffle_xor(partial->d[row], 1));
    partial->d[row] = bny_mul(bny_add(partial->d[row], bny_shuffle_xor(partial->d[row], 2)), unit);
  }
  BNY_UNROLL for (int i = 0; i < shape::DIM / 2; i++) partial->n[i / 4][i % 4] *= unit;
}

#endif
