/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of K and V on their way from global to shared memory, and fragments of them for the tensor cores.
 *
 * A row of shared memory is 16 bytes longer than what it holds: with an odd number of 16-byte places to a row, the eight
 * rows that ldmatrix reads at once lie in different banks. So bulk copies bring one row each, and need nothing of pages.
 * Keys beyond the end of a sequence are not read: their rows become zero, because 0 times whatever was there may be NaN. */
#ifndef BNY_CUDA_DECODE_LOAD_CUH
#define BNY_CUDA_DECODE_LOAD_CUH

#include "cuda/decode_shape.h"
#include "cuda/device.h"

/* Rows of dim elements in shared memory. */
template <int dim> struct bny_tile {
  enum : int {
    ROW_BYTES = 2 * dim,
    PITCH = ROW_BYTES + 16,
    /* lanes that copy neighbouring 16 bytes of a row: a line of 128 bytes where rows consist of such */
    ROW_LANES = ROW_BYTES % 128 == 0 ? 8 : 4,
    ROWS_AT_ONCE = BNY_WARP_LANES / ROW_LANES
  };
};

/* The keys of an item. */
struct bny_decode_keys {
  const int32_t *pages; /* of this sequence; NULL: all of it is page `sequence` */
  uint32_t sequence, kv_head;
  uint32_t count;
  uint32_t page_shift;
};

BNY_DEVICE const unsigned char *bny_decode_row_address(const bny_decode_cache &cache, const bny_decode_keys &keys,
                                                       uint32_t key) {
  uint32_t page = keys.pages ? (uint32_t)keys.pages[key >> keys.page_shift] : keys.sequence;
  uint32_t within = key & ((1u << keys.page_shift) - 1);
  return (const unsigned char *)cache.base + page * cache.page_stride + within * cache.token_stride +
         keys.kv_head * cache.head_stride;
}

/* ---- cp.async: 16 bytes a lane -------------------------------------------------------------------------------------- */

/* Keys first .. first + rows - 1, of which those from `end` on are not there. By warp `warp` of `warps`, each a part; the
 * caller commits. */
template <int dim, int rows, int warps>
BNY_DEVICE void bny_decode_load_async(unsigned char *tile, const bny_decode_cache &cache, const bny_decode_keys &keys,
                                      uint32_t first, uint32_t end, uint32_t warp) {
  using shape = bny_tile<dim>;
  static_assert(rows % (shape::ROWS_AT_ONCE * warps) == 0, "all warps have as many rows");
  uint32_t row = bny_lane() / shape::ROW_LANES + warp * shape::ROWS_AT_ONCE;
  uint32_t column = bny_lane() % shape::ROW_LANES * 16;
  BNY_UNROLL for (int step = 0; step < rows / (shape::ROWS_AT_ONCE * warps); step++) {
    bool valid = first + row < end;
    const unsigned char *from = (const unsigned char *)cache.base;
    if (valid) from = bny_decode_row_address(cache, keys, first + row) + column;
    unsigned char *to = tile + row * shape::PITCH + column;
    BNY_UNROLL for (int byte = 0; byte < shape::ROW_BYTES; byte += shape::ROW_LANES * 16)
      bny_copy_async_16(to + byte, from + (valid ? byte : 0), valid);
    row += shape::ROWS_AT_ONCE * warps;
  }
}

/* ---- bulk copies: a row a lane -------------------------------------------------------------------------------------- */

/* The same by one warp; all have read what the tile held before. `barrier` expects one arrival. */
template <int dim, int rows>
BNY_DEVICE void bny_decode_load_bulk(unsigned char *tile, const bny_decode_cache &cache, const bny_decode_keys &keys,
                                     uint32_t first, uint32_t end, uint64_t *barrier) {
  using shape = bny_tile<dim>;
  static_assert(rows <= BNY_WARP_LANES, "a lane has one row");
  uint32_t lane = bny_lane(), there = end - first;
  if (there > rows) there = rows;
  if (lane == 0) bny_mbarrier_expect(barrier, there * shape::ROW_BYTES);
  bny_warp_sync();
  if (lane < there) {
    bny_bulk_load(tile + lane * shape::PITCH, bny_decode_row_address(cache, keys, first + lane), shape::ROW_BYTES,
                  barrier);
  } else if (lane < rows) {
    const bny_quad zero = {{0, 0, 0, 0}};
    for (int byte = 0; byte < shape::ROW_BYTES; byte += 16) bny_store_quad(tile + lane * shape::PITCH + byte, zero);
  }
}

/* ---- fragments ------------------------------------------------------------------------------------------------------ */

/* A: 16 rows, columns column .. column + 15 of a tile. */
template <int dim> BNY_DEVICE void bny_load_rows_a(uint32_t *a, const unsigned char *tile, int column) {
  uint32_t lane = bny_lane();
  bny_load_matrix_4(a, tile + lane % 16 * bny_tile<dim>::PITCH + 2 * column + lane / 16 * 16);
}

/* B of two products whose columns are the tile's rows 0..7 and 8..15, and whose depth is columns column .. column + 15. */
template <int dim> BNY_DEVICE void bny_load_rows_b(uint32_t *b, const unsigned char *tile, int column) {
  uint32_t lane = bny_lane();
  bny_load_matrix_4(b, tile + (lane % 8 + lane / 16 * 8) * bny_tile<dim>::PITCH + 2 * column + lane / 8 % 2 * 16);
}

/* B of two products whose depth is the tile's rows, and whose columns are column .. column + 7 and column + 8 .. + 15. */
template <int dim> BNY_DEVICE void bny_load_columns_b(uint32_t *b, const unsigned char *tile, int column) {
  uint32_t lane = bny_lane();
  bny_load_matrix_4_transposed(b, tile + lane % 16 * bny_tile<dim>::PITCH + 2 * column + lane / 16 * 16);
}

#endif
