/* SPDX-License-Identifier: Apache-2.0
 *
 * Masked rows. Kernels convert and merge boxes of valid rows. This file cuts a box into such boxes, so kernels need not
 * know about masks. */
#ifndef BNY_EXEC_VALID_H
#define BNY_EXEC_VALID_H

#include "op.h"

/* Does what `encode` of the kernels does. `valid` has a byte for each token of the box. Rows of a token with 0 are not
 * read, and become empty rows. */
int64_t bny_valid_encode(const bny_kernels *kernels, const bny_box *box, const banyan_partial *in, int32_t token0,
                         int32_t head0, bny_wire wire, const uint8_t *valid, const bny_wire_view *to);

/* A merge whose result goes to the caller. */
typedef struct bny_valid_merge {
  const bny_kernels *kernels;
  bny_wire wire;
  int count;
  const bny_wire_view *sources;
  bool round_nodes;
  const banyan_partial *out;
} bny_valid_merge;

/* Does what `merge_finish` of the kernels does, but does not write rows that are empty in all sources. */
int64_t bny_valid_finish(const bny_valid_merge *merge, const bny_box *box, int32_t token0, int32_t head0);

#endif
