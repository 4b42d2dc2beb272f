/* SPDX-License-Identifier: Apache-2.0
 * Data that the host and the decode kernels share: one call, and the division of its keys among blocks. It is plain
 * data and arithmetic for C and C++.
 *
 * Words. A *key tile* has 16 keys, which a warp processes at a time. An *item* is a sequence, a KV head and up to 16
 * (MLA: 64) of the query heads that share it. A CTA group (`team`) is a cluster of blocks, or a single block. A split
 * (`piece`) is the part of one item that one CTA group computes.
 *
 * Division. All items lie one after another on a line of *units*: one for each key tile, and item_cost for the work
 * that an item takes at any length. Every CTA group gets an equal share of the line. Items are cut only where a share
 * ends, and all CTA groups end at about the same time for any lengths. They compute this from lengths in device memory,
 * so a grid of fixed size serves all lengths.
 *
 * A CTA group shares at most two items with others: the one at the beginning of its share and the one at the end.
 * Partials therefore need two slots of scratch memory per CTA group, for any batch. */
#pragma once

#include <stdint.h>

#include "banyan.h"
#include "flashmla.h"

#ifdef __CUDACC__
#define BNY_DECODE_INLINE static inline __host__ __device__
#else
#define BNY_DECODE_INLINE static inline
#endif

enum {
  BNY_DECODE_TILE_KEYS = 16,
  BNY_DECODE_WHOLE = 31 /* page_shift if a sequence is one page */
};

/* The division of work, the same for all calls of a shape. */
typedef struct bny_decode_division {
  uint32_t teams;          /* CTA groups of the grid */
  uint32_t team_units_min; /* the smallest share that is worth its merge */
  uint32_t item_cost;
  uint32_t fan_in; /* splits merged in one round; more splits take two rounds */
} bny_decode_division;

/* K or V. Strides in bytes. */
typedef struct bny_decode_cache {
  const void *base;
  int64_t page_stride; /* stride of pages; without a page table, of sequences */
  int64_t token_stride, head_stride;
} bny_decode_cache;

/* Rows of K and V, and which kernels read them. */
typedef enum bny_decode_rows {
  BNY_ROWS_lean,    /* 16-bit elements; one query token per sequence sees all keys, and none of bny_decode_general */
  BNY_ROWS_general, /* 16-bit elements */
  BNY_ROWS_e4m3,    /* 8-bit elements */
  BNY_ROWS_flashmla /* 656 bytes: 512 of E4M3, four f32 scales for 128 of them each, 64 of BF16 */
} bny_decode_rows;

/* The parts of a call that only general kernels use. Pointers are device memory or NULL: see banyan_attention_desc. */
typedef struct bny_decode_general {
  int32_t tokens; /* query tokens in all */
  int32_t window;
  const int32_t *query_start_loc, *query_start, *key_start;
  const uint64_t *tree_mask;
  int32_t key_block, key_stride;
  float soft_cap_log2; /* in base 2; 0: none */
  int32_t nope_bytes;  /* bytes of a row of q before the elements that lie in q_rope */
  const float *sinks;
  const float *k_scale, *v_scale;
  int64_t kv_scale_stride;
  const void *q_rope;
  int64_t q_rope_batch_stride, q_rope_head_stride; /* bytes */
  const int32_t *page_indptr, *last_page_len;
  uint32_t page_keys;
  uint32_t page_magic, page_magic_shift; /* key / page_keys = key page_magic >> page_magic_shift */
  uint32_t pad;
} bny_decode_general;

/* A decode call, a kernel parameter. Elements have 16 bits unless bny_decode_rows says otherwise. Rows of q, k and v
 * begin at multiples of 16 bytes. */
typedef struct bny_decode_call {
  int32_t batch; /* sequences; an upper bound if `tokens` is set */
  int32_t kv_heads;
  int32_t group;                         /* query heads of a KV head */
  int32_t row_tiles;                     /* items per KV head */
  int32_t keys_max;                      /* most keys of a sequence; longer sequences are cut and reported */
  float scale_log2;                      /* logits in base 2: t = scale_log2 (q . k) */
  const void *q;                         /* [batch][heads][head_dim] */
  int64_t q_batch_stride, q_head_stride; /* bytes */
  bny_decode_cache k, v;
  const int32_t *page_table; /* [batch][...]: pages; NULL: sequence b is page b */
  int64_t page_table_stride; /* elements */
  int32_t page_shift;        /* a page has 1 << page_shift keys */
  uint32_t pages;            /* number of pages; other ids are reported, and their keys are omitted */
  int32_t nan_is_empty;      /* a row with a NaN logit counts as empty */
  int32_t is_f16;            /* elements of 16 bits are f16, else bf16 */
  int32_t pad;
  const int32_t *seq_lens; /* [batch], device memory */
  bny_decode_division division;
  float *scratch;     /* bny_decode_scratch_floats() */
  uint32_t *counters; /* bny_decode_counters() words: 0 before the first launch, and each launch leaves them 0 */
  banyan_partial out; /* [tokens][heads] rows */
  bny_decode_general general;
  const int32_t *tokens;     /* query tokens of this run, device memory; NULL: all of them */
  const uint8_t *token_mask; /* [tokens], device memory: rows of a token with 0 see no keys, and q is not read for them;
                              * NULL: no token is masked */
} bny_decode_call;

/* ---- arithmetic for host and kernels ----------------------------------------------------------------------------- */

/* A split: key tiles first .. end - 1 of an item, which CTA groups first_team .. last_team share. */
typedef struct bny_decode_piece {
  uint32_t first, end;
  uint32_t first_team, last_team;
} bny_decode_piece;

BNY_DECODE_INLINE uint32_t bny_decode_key_tiles(int32_t keys) {
  return ((uint32_t)(keys > 0 ? keys : 0) + BNY_DECODE_TILE_KEYS - 1) / BNY_DECODE_TILE_KEYS;
}

/* Sets the factors that divide a key by page_keys. The division is exact for keys below 2^31. */
BNY_DECODE_INLINE void bny_decode_divide_pages(bny_decode_general *general, uint32_t page_keys) {
  uint32_t log = 0;
  while (log < 31 && 1u << log < page_keys) log++;
  general->page_keys = page_keys;
  general->page_magic = (uint32_t)((((uint64_t)1 << (31 + log)) + page_keys - 1) / page_keys);
  general->page_magic_shift = 31 + log;
}

/* Returns the units of a CTA group's share of `total` units. */
BNY_DECODE_INLINE uint32_t bny_decode_team_units(const bny_decode_division *division, uint32_t total) {
  uint32_t share = total / division->teams + (total % division->teams != 0);
  return share > division->team_units_min ? share : division->team_units_min;
}

/* Finds the key tiles of a split; the item begins at unit `start`. */
BNY_DECODE_INLINE bny_decode_piece bny_decode_piece_range(uint32_t start, uint32_t key_tiles, uint32_t team,
                                                          uint32_t team_units) {
  uint32_t low = team * team_units, high = low + team_units;
  bny_decode_piece piece = {0, 0, 0, 0};
  piece.first = low > start ? low - start : 0;
  piece.end = high > start ? high - start : 0;
  if (piece.first > key_tiles) piece.first = key_tiles;
  if (piece.end > key_tiles) piece.end = key_tiles;
  return piece;
}

/* Finds the CTA groups that share the item. It is separate because copies need not wait for its two divisions. */
BNY_DECODE_INLINE void bny_decode_piece_teams(bny_decode_piece *piece, uint32_t start, uint32_t key_tiles,
                                              uint32_t team_units) {
  piece->first_team = start / team_units;
  piece->last_team = key_tiles ? (start + key_tiles - 1) / team_units : piece->first_team;
}

BNY_DECODE_INLINE bny_decode_piece bny_decode_piece_of(uint32_t start, uint32_t key_tiles, uint32_t team,
                                                       uint32_t team_units) {
  bny_decode_piece piece = bny_decode_piece_range(start, key_tiles, team, team_units);
  bny_decode_piece_teams(&piece, start, key_tiles, team_units);
  return piece;
}

/* Returns whether the CTA group has a part of the item. An item without keys belongs to the CTA group where it
 * begins. */
BNY_DECODE_INLINE int bny_decode_piece_is_mine(const bny_decode_piece *piece, uint32_t start, uint32_t key_tiles,
                                               uint32_t team, uint32_t team_units) {
  return piece->first < piece->end || (key_tiles == 0 && start / team_units == team);
}

/* Returns the slot for a CTA group's split of an item that begins in first_team. A CTA group begins at most one item
 * that others continue, and continues at most one. */
BNY_DECODE_INLINE uint32_t bny_decode_slot(uint32_t team, uint32_t first_team) {
  return 2 * team + (team == first_team);
}

/* Returns the floats of a slot: m[rows], d[rows], n[rows][value_dim]. */
BNY_DECODE_INLINE uint64_t bny_decode_slot_floats(uint32_t rows, uint32_t value_dim) {
  return (uint64_t)rows * (value_dim + 2);
}

BNY_DECODE_INLINE uint64_t bny_decode_scratch_floats(const bny_decode_division *division, uint32_t rows,
                                                     uint32_t value_dim) {
  return 2 * (uint64_t)division->teams * bny_decode_slot_floats(rows, value_dim);
}

/* Returns the number of counters. Each slot has one, where splits meet. Each CTA group has one, where the first-round
 * results of the item that begins there meet. Every block of a CTA group has its own counters, because rows are
 * distributed over blocks. */
BNY_DECODE_INLINE uint64_t bny_decode_counters(const bny_decode_division *division, uint32_t cluster) {
  return 3 * (uint64_t)division->teams * cluster;
}
