/* SPDX-License-Identifier: Apache-2.0
 * Copies rows of K and V from global to shared memory, and loads fragments of them for the tensor cores.
 *
 * A tile lies in shared memory as eight chunks of neighbouring rows, with 16 bytes between chunks. ldmatrix reads eight
 * rows at once, which must lie in different banks. Here it reads one row of each chunk, because the distance of chunks
 * is an odd multiple of 16 bytes. The keys of a fragment are those of one *class*: every (rows / 8)-th key.
 *
 * Keys beyond the end of a sequence are not read. Their rows become zero, because 0 times arbitrary data may be NaN. If
 * some keys of a tile are in a page that does not exist, nothing of it is read. The tile is *lost*, and its logits are
 * masked.
 *
 * A sync of the warp or block separates reads of a tile from later copies into it. */
#pragma once

#include "cuda/decode_shape.h"
#include "cuda/device.h"

/* The layout of a tile of `rows` rows of dim elements in shared memory. */
template <int dim, int rows> struct bny_tile {
  enum : int {
    ROW_BYTES = 2 * dim,
    CLASSES = rows / 8,               /* rows of a chunk, and number of classes */
    PITCH = CLASSES * ROW_BYTES + 16, /* stride of chunks */
    BYTES = 8 * PITCH,
    /* lanes that copy consecutive 16 bytes of a row: a line of 128 bytes if rows consist of such lines */
    ROW_LANES = ROW_BYTES % 128 == 0 ? 8 : 4,
    ROWS_AT_ONCE = BNY_WARP_LANES / ROW_LANES
  };
  static_assert(PITCH / 16 % 2 == 1, "rows of a class are in different banks");
};

template <int dim, int rows> BNY_DEVICE uint32_t bny_tile_row(uint32_t row) {
  using shape = bny_tile<dim, rows>;
  return row / shape::CLASSES * shape::PITCH + row % shape::CLASSES * shape::ROW_BYTES;
}

struct bny_decode_keys {
  const int32_t *pages; /* pages of this sequence; NULL: the sequence is page `sequence` */
  uint32_t sequence, kv_head;
  uint32_t count;
  uint32_t page_shift;
  uint32_t page_end; /* page ids are below this number */
};

BNY_DEVICE uint32_t bny_decode_page(const bny_decode_keys &keys, uint32_t key) {
  return keys.pages ? (uint32_t)keys.pages[key >> keys.page_shift] : keys.sequence;
}

BNY_DEVICE const unsigned char *bny_decode_row_address(const bny_decode_cache &cache, const bny_decode_keys &keys,
                                                       uint32_t page, uint32_t key) {
  uint32_t within = key & ((1u << keys.page_shift) - 1);
  return (const unsigned char *)cache.base + page * cache.page_stride + within * cache.token_stride +
         keys.kv_head * cache.head_stride;
}

/* ---- copies of 16 bytes per lane --------------------------------------------------------------------------------- */

/* Copies keys first .. first + rows - 1. Keys from `end` on become zero. Warp `warp` of `warps` copies its part, and
 * the caller commits. Returns true if the part is lost. */
template <int dim, int rows, int warps>
BNY_DEVICE bool bny_decode_load(unsigned char *tile, const bny_decode_cache &cache, const bny_decode_keys &keys,
                                uint32_t first, uint32_t end, uint32_t warp) {
  using shape = bny_tile<dim, rows>;
  const int stride = shape::ROWS_AT_ONCE * warps;
  static_assert(rows % (shape::ROWS_AT_ONCE * warps) == 0, "all warps have as many rows");
  static_assert(shape::ROWS_AT_ONCE * warps % shape::CLASSES == 0, "a lane goes from chunk to chunk");
  uint32_t row = bny_lane() / shape::ROW_LANES + warp * shape::ROWS_AT_ONCE;
  uint32_t column = bny_lane() % shape::ROW_LANES * 16;
  unsigned char *to = tile + bny_tile_row<dim, rows>(row) + column;
  bool lost = false;
  BNY_UNROLL for (int step = 0; step < rows / stride; step++) {
    const bool there = first + row < end;
    const uint32_t page = there ? bny_decode_page(keys, first + row) : 0;
    const bool valid = there && page < keys.page_end;
    lost = lost || page >= keys.page_end;
    const unsigned char *from = (const unsigned char *)cache.base;
    if (valid) from = bny_decode_row_address(cache, keys, page, first + row) + column;
    BNY_UNROLL for (int byte = 0; byte < shape::ROW_BYTES; byte += shape::ROW_LANES * 16) {
      bny_copy_async_16(to + byte, from + (valid ? byte : 0), valid);
    }
    row += stride;
    to += stride / shape::CLASSES * shape::PITCH;
  }
  return bny_warp_any(lost);
}

/* ---- fragments --------------------------------------------------------------------------------------------------- */

/* Loads B for two products. The columns of B are the keys of one class each, `first` and first + 1. Its rows are the
 * tile's columns column .. column + 15. */
template <int dim, int rows>
BNY_DEVICE void bny_load_keys(uint32_t *b, const unsigned char *tile, int first, int column) {
  using shape = bny_tile<dim, rows>;
  uint32_t lane = bny_lane();
  bny_load_matrix_4(b, tile + lane % 8 * shape::PITCH + (first + lane / 16) * shape::ROW_BYTES + 2 * column +
                           lane / 8 % 2 * 16);
}

/* Loads B for two products. The rows of B are the keys of classes `first` and first + 1. Its columns are the tile's
 * columns column .. column + 7, and column + 8 .. column + 15. */
template <int dim, int rows>
BNY_DEVICE void bny_load_values(uint32_t *b, const unsigned char *tile, int first, int column) {
  using shape = bny_tile<dim, rows>;
  uint32_t lane = bny_lane();
  bny_load_matrix_4_transposed(b, tile + lane % 8 * shape::PITCH + (first + lane / 8 % 2) * shape::ROW_BYTES +
                                      2 * column + lane / 16 * 16);
}
