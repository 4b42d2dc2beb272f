/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the wire of e4m3: encode and merge. A row is value_dim codes, then a scale for each block of 32, then zeros
 * up to a multiple of four bytes. Loops run over the 32 values of a block, in places beyond the row over zeros, so that
 * compilers vectorise them; merge_template.h includes this in each table's file.
 */
#ifndef BNY_KERNELS_CPU_MERGE_BLOCKS_H
#define BNY_KERNELS_CPU_MERGE_BLOCKS_H

#include "block.h"

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

/* As the values read after the wire. */
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

/* The tree of block_merge() over blocks of row `row`, in place: v[0] receives it. */
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

#endif
