/* SPDX-License-Identifier: Apache-2.0
 *
 * Boxes of rows that are copied as they are, from one layout to another. */
#ifndef BNY_EXEC_STRIDED_H
#define BNY_EXEC_STRIDED_H

#include <stddef.h>
#include <stdint.h>

/* Row (token, head) begins at `at` + token * token_stride + head * head_stride. Strides are in bytes. */
typedef struct bny_strided {
  char *at;
  int64_t token_stride, head_stride;
} bny_strided;

/* The box at (token, head). */
static inline bny_strided bny_strided_at(const bny_strided *rows, int64_t token, int64_t head) {
  return (bny_strided){rows->at + token * rows->token_stride + head * rows->head_stride, rows->token_stride,
                       rows->head_stride};
}

/* Copies a box of rows; `to` and `from` do not overlap. Rows that are neighbours in both are copied at once. */
void bny_strided_copy(const bny_strided *to, const bny_strided *from, int32_t tokens, int32_t heads, size_t row_bytes);

#endif
