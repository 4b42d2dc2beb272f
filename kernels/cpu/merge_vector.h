/* SPDX-License-Identifier: Apache-2.0
 * Converts rows from one type to another, written once over a vector type. The including file defines first:
 *   vec, VEC_LANES                        f32 lanes, a power of two; then it includes vec.h
 *   vec_load_f16/_bf16(pointer)           no alignment required
 *   vec_store_f16/_bf16(pointer, v)       round to nearest even, NaN kept, f16 overflow to infinity
 *   vec_stream_f32(pointer, v)            bypasses the caches if it can; aligned to the vector
 *   vec_stream_end()                      orders streamed stores before later ones
 *   vec_round_f16/_bf16(v)                store and load
 *   vec_saturate(v, limit)                like bny_saturate()
 *   vec_count_over(v, limit)              lanes that vec_saturate() changes
 */
#pragma once

#include "block.h"

/* ---- rows of the wire of e4m3 -------------------------------------------------------------------------------------
 * A row is value_dim codes, then a scale for each block of 32, then zeros up to a multiple of four bytes. Loops run
 * over the 32 values of a block, past the end of a row over zeros, so that compilers vectorise them. */

typedef struct scale_block {
  float value[BNY_SCALE_BLOCK];
} scale_block;

static inline int scale_blocks_of(int value_dim) { return (value_dim + BNY_SCALE_BLOCK - 1) / BNY_SCALE_BLOCK; }

/* Reads columns [column, column + BNY_SCALE_BLOCK) of a row. */
static inline void scale_block_read(const uint8_t *row, int value_dim, int column, scale_block *block) {
  uint8_t codes[BNY_SCALE_BLOCK] = {0};
  const int left = value_dim - column;
  if (left >= BNY_SCALE_BLOCK)
    memcpy(codes, row + column, BNY_SCALE_BLOCK);
  else
    memcpy(codes, row + column, (size_t)left);
  const float scale = bny_scale_of_byte(row[value_dim + column / BNY_SCALE_BLOCK]);
  ROLLED for (int i = 0; i < BNY_SCALE_BLOCK; i++) { block->value[i] = bny_float_of_e4m3(codes[i]) * scale; }
}

/* Saturates the values and returns the byte of their scale. */
static inline uint8_t scale_block_limit(scale_block *block) {
  uint32_t most = 0;
  ROLLED for (int i = 0; i < BNY_SCALE_BLOCK; i++) {
    block->value[i] = bny_saturate(block->value[i], BNY_BLOCK_MAX);
    uint32_t magnitude = bny_scale_magnitude(block->value[i]);
    most = most > magnitude ? most : magnitude;
  }
  return bny_scale_byte(most);
}

static inline void scale_block_write(uint8_t *row, int value_dim, int column, scale_block *block) {
  uint8_t codes[BNY_SCALE_BLOCK];
  const uint8_t byte = scale_block_limit(block);
  const float inverse = bny_scale_inverse(byte);
  const int left = value_dim - column;
  ROLLED for (int i = 0; i < BNY_SCALE_BLOCK; i++) { codes[i] = bny_block_code(block->value[i], inverse); }
  if (left >= BNY_SCALE_BLOCK)
    memcpy(row + column, codes, BNY_SCALE_BLOCK);
  else
    memcpy(row + column, codes, (size_t)left);
  row[value_dim + column / BNY_SCALE_BLOCK] = byte;
}

/* Rounds the values as the wire does. */
static inline void scale_block_round(scale_block *block) {
  const uint8_t byte = scale_block_limit(block);
  const float inverse = bny_scale_inverse(byte), scale = bny_scale_of_byte(byte);
  ROLLED for (int i = 0; i < BNY_SCALE_BLOCK; i++) {
    block->value[i] = bny_float_of_e4m3(bny_block_code(block->value[i], inverse)) * scale;
  }
}

/* Fills what follows the scales, so that a message has no unset bytes. */
static inline void scale_row_pad(uint8_t *row, int value_dim, size_t row_bytes) {
  const size_t end = (size_t)value_dim + (size_t)scale_blocks_of(value_dim);
  memset(row + end, 0, row_bytes - end);
}

/* Writes a row of f32 values times `factor`. Returns how many saturated. */
static inline unsigned scale_row_encode(const float *values, float factor, int elements, uint8_t *row, int value_dim,
                                        int first) {
  unsigned over = 0;
  for (int i = 0; i < elements; i += BNY_SCALE_BLOCK) {
    scale_block block = {{0}};
    const int count = elements - i < BNY_SCALE_BLOCK ? elements - i : BNY_SCALE_BLOCK;
    for (int k = 0; k < count; k++) {
      const float value = values[i + k] * factor;
      block.value[k] = value;
      over += (__builtin_fabsf(value) > BNY_BLOCK_MAX) & (__builtin_fabsf(value) < BNY_INFINITY_F);
    }
    scale_block_write(row, value_dim, first + i, &block);
  }
  return over;
}

/* Runs the tree of block_merge() over blocks of row `row`, in place. v[0] receives the result. */
static inline void scale_blocks_tree(scale_block *v, int count, const node_scales *scales, int row, bool round) {
  int node = 0;
  for (int width = count; width > 1; width = (width + 1) / 2) {
    for (int i = 0; i < width / 2; i++, node++) {
      const float left = scales[node][0][row], right = scales[node][1][row];
      const scale_block *a = &v[2 * i], *b = &v[2 * i + 1];
      scale_block merged;
      ROLLED for (int k = 0; k < BNY_SCALE_BLOCK; k++) { merged.value[k] = a->value[k] * left + b->value[k] * right; }
      if (round) scale_block_round(&merged);
      v[i] = merged;
    }
    if (width % 2 != 0) v[width / 2] = v[width - 1];
  }
}

/* ---- blocks of sums, which keep infinities: see f8.h ------------------------------------------------------------- */

static inline void sum_block_read(const uint8_t *from, scale_block *block) {
  scale_block_read(from, BNY_SCALE_BLOCK, 0, block);
  if (from[BNY_SUM_INFINITE] == 0) return;
  for (int i = 0; i < BNY_SCALE_BLOCK; i++) block->value[i] = bny_sum_value(from[i], block->value[i]);
}

static inline void sum_block_write(uint8_t *to, scale_block *block) {
  uint32_t infinite = 0;
  scale_block_write(to, BNY_SCALE_BLOCK, 0, block);
  ROLLED for (int i = 0; i < BNY_SCALE_BLOCK; i++) {
    infinite |= (uint32_t)((bny_bits_of_float(block->value[i]) & 0x7fffffffu) == 0x7f800000u);
  }
  memset(to + BNY_SUM_INFINITE, 0, BNY_SUM_BLOCK_BYTES - BNY_SUM_INFINITE);
  if (infinite == 0) return;
  to[BNY_SUM_INFINITE] = 1;
  for (int i = 0; i < BNY_SCALE_BLOCK; i++) to[i] = bny_sum_code(block->value[i], to[i]);
}

/* Adds blocks in the tree of merge(), in place. v[0] receives the sum. The bits of a NaN would depend on how a compiler
 * orders operands. */
static inline void sum_blocks_tree(scale_block *v, int count, bool round) {
  for (int width = count; width > 1; width = (width + 1) / 2) {
    for (int i = 0; i < width / 2; i++) {
      scale_block added;
      ROLLED for (int k = 0; k < BNY_SCALE_BLOCK; k++) {
        const float value = v[2 * i].value[k] + v[2 * i + 1].value[k];
        added.value[k] = value == value ? value : bny_float_of_bits(0x7fc00000u);
      }
      if (round) {
        uint8_t wire[BNY_SUM_BLOCK_BYTES];
        sum_block_write(wire, &added);
        sum_block_read(wire, &added);
      }
      v[i] = added;
    }
    if (width % 2 != 0) v[width / 2] = v[width - 1];
  }
}

/* This many columns pass through an f32 buffer at a time if the destination is not f32. */
enum { TILE_COLUMNS = 512 };

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

INLINE size_t element_bytes(banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? 4 : dtype == BANYAN_F16 || dtype == BANYAN_BF16 ? 2 : 1;
}

/* Compilers vectorise these, as the conversions have no branches. */
INLINE vec load_f8(const void *values, banyan_dtype dtype) {
  uint8_t codes[VEC_LANES];
  float lanes[VEC_LANES];
  memcpy(codes, values, sizeof codes);
  for (int i = 0; i < VEC_LANES; i++)
    lanes[i] = dtype == BANYAN_E4M3 ? bny_float_of_e4m3(codes[i]) : bny_float_of_e5m2(codes[i]);
  return vec_load(lanes);
}

INLINE void store_f8(void *values, banyan_dtype dtype, vec v) {
  uint8_t codes[VEC_LANES];
  float lanes[VEC_LANES];
  vec_store(lanes, v);
  for (int i = 0; i < VEC_LANES; i++)
    codes[i] = dtype == BANYAN_E4M3 ? bny_e4m3_of_float(lanes[i]) : bny_e5m2_of_float(lanes[i]);
  memcpy(values, codes, sizeof codes);
}

INLINE vec load(const void *values, banyan_dtype dtype) {
  return dtype == BANYAN_F32    ? vec_load(values)
         : dtype == BANYAN_F16  ? vec_load_f16(values)
         : dtype == BANYAN_BF16 ? vec_load_bf16(values)
                                : load_f8(values, dtype);
}

INLINE void store(void *values, banyan_dtype dtype, vec v) {
  if (dtype == BANYAN_F32)
    vec_store(values, v);
  else if (dtype == BANYAN_F16)
    vec_store_f16(values, v);
  else if (dtype == BANYAN_BF16)
    vec_store_bf16(values, v);
  else
    store_f8(values, dtype, v);
}

/* The last, incomplete vector of a row passes through memory of a full vector. */
INLINE vec load_part(const void *values, banyan_dtype dtype, int elements) {
  float whole[VEC_LANES] = {0};
  memcpy(whole, values, (size_t)elements * element_bytes(dtype));
  return load(whole, dtype);
}

INLINE void store_part(void *values, banyan_dtype dtype, vec v, int elements) {
  float whole[VEC_LANES];
  store(whole, dtype, v);
  memcpy(values, whole, (size_t)elements * element_bytes(dtype));
}

INLINE vec saturate_to(vec v, banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? v : vec_saturate(v, dtype == BANYAN_F16 ? BNY_F16_MAX : BNY_BF16_MAX);
}

/* Rounds a vector as the wire does. */
INLINE vec round_to(vec v, banyan_dtype dtype) {
  vec kept = saturate_to(v, dtype);
  return dtype == BANYAN_F32 ? kept : dtype == BANYAN_F16 ? vec_round_f16(kept) : vec_round_bf16(kept);
}

/* ---- one row to another type ------------------------------------------------------------------------------------- */

/* Returns the number of lanes that a wire of that type saturates. */
INLINE unsigned count_over(vec v, banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? 0 : vec_count_over(v, dtype == BANYAN_F16 ? BNY_F16_MAX : BNY_BF16_MAX);
}

/* Computes to[i] = from[i] * factor. A destination on the `wire` saturates. Returns how many values did. */
INLINE unsigned convert_row(const void *restrict from, banyan_dtype from_dtype, float factor, int elements,
                            void *restrict to, banyan_dtype to_dtype, bool wire) {
  const vec scale = vec_set1(factor);
  const char *source = from;
  char *target = to;
  const size_t from_bytes = element_bytes(from_dtype), to_bytes = element_bytes(to_dtype);
  unsigned over = 0;
  int i = 0;
  for (; i + VEC_LANES <= elements; i += VEC_LANES) {
    vec v = vec_mul(load(source + (size_t)i * from_bytes, from_dtype), scale);
    over += wire ? count_over(v, to_dtype) : 0;
    store(target + (size_t)i * to_bytes, to_dtype, wire ? saturate_to(v, to_dtype) : v);
  }
  if (i < elements) {
    vec v = vec_mul(load_part(source + (size_t)i * from_bytes, from_dtype, elements - i), scale);
    over += wire ? count_over(v, to_dtype) : 0;
    store_part(target + (size_t)i * to_bytes, to_dtype, wire ? saturate_to(v, to_dtype) : v, elements - i);
  }
  return over;
}

INLINE unsigned convert_row_from(const void *from, banyan_dtype from_dtype, float factor, int elements, void *to,
                                 banyan_dtype to_dtype, bool wire) {
  if (to_dtype == BANYAN_F32) return convert_row(from, from_dtype, factor, elements, to, BANYAN_F32, wire);
  if (to_dtype == BANYAN_F16) return convert_row(from, from_dtype, factor, elements, to, BANYAN_F16, wire);
  return convert_row(from, from_dtype, factor, elements, to, BANYAN_BF16, wire);
}

static unsigned convert_to_wire(const void *from, banyan_dtype from_dtype, float factor, int elements, void *to,
                                banyan_dtype to_dtype) {
  if (from_dtype == BANYAN_F32) return convert_row_from(from, BANYAN_F32, factor, elements, to, to_dtype, true);
  if (from_dtype == BANYAN_F16) return convert_row_from(from, BANYAN_F16, factor, elements, to, to_dtype, true);
  if (from_dtype == BANYAN_BF16) return convert_row_from(from, BANYAN_BF16, factor, elements, to, to_dtype, true);
  if (from_dtype == BANYAN_E4M3) return convert_row_from(from, BANYAN_E4M3, factor, elements, to, to_dtype, true);
  return convert_row_from(from, BANYAN_E5M2, factor, elements, to, to_dtype, true);
}

/* Does the same to the wire of e4m3, by tiles of columns that pass through f32. */
static unsigned convert_to_blocks(const void *from, banyan_dtype from_dtype, float factor, int value_dim, void *to,
                                  size_t row_bytes) {
  float tile[TILE_COLUMNS];
  unsigned over = 0;
  for (int first = 0; first < value_dim; first += TILE_COLUMNS) {
    const int elements = value_dim - first < TILE_COLUMNS ? value_dim - first : TILE_COLUMNS;
    convert_to_wire((const char *)from + (size_t)first * element_bytes(from_dtype), from_dtype, 1.0f, elements, tile,
                    BANYAN_F32);
    over += scale_row_encode(tile, factor, elements, to, value_dim, first);
  }
  scale_row_pad(to, value_dim, row_bytes);
  return over;
}

/* Does the same to f32 for full lines of memory, bypassing the caches. */
INLINE void stream_row(const void *from, banyan_dtype from_dtype, float factor, int elements, float *to) {
  const vec scale = vec_set1(factor);
  const size_t from_bytes = element_bytes(from_dtype);
  for (int i = 0; i < elements; i += VEC_LANES)
    vec_stream_f32(to + i, vec_mul(load((const char *)from + (size_t)i * from_bytes, from_dtype), scale));
}

static void stream_to_wire(const void *from, banyan_dtype from_dtype, float factor, int elements, float *to) {
  if (from_dtype == BANYAN_F32)
    stream_row(from, BANYAN_F32, factor, elements, to);
  else if (from_dtype == BANYAN_F16)
    stream_row(from, BANYAN_F16, factor, elements, to);
  else if (from_dtype == BANYAN_BF16)
    stream_row(from, BANYAN_BF16, factor, elements, to);
  else if (from_dtype == BANYAN_E4M3)
    stream_row(from, BANYAN_E4M3, factor, elements, to);
  else
    stream_row(from, BANYAN_E5M2, factor, elements, to);
}

static void convert_to_caller(const float *from, int elements, void *to, banyan_dtype to_dtype) {
  if (to_dtype == BANYAN_E4M3)
    convert_row(from, BANYAN_F32, 1.0f, elements, to, BANYAN_E4M3, false);
  else if (to_dtype == BANYAN_E5M2)
    convert_row(from, BANYAN_F32, 1.0f, elements, to, BANYAN_E5M2, false);
  else
    convert_row_from(from, BANYAN_F32, 1.0f, elements, to, to_dtype, false);
}
