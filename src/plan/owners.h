/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts owners under HEADS and TOKENS without visiting each one. banyan_split() makes owners of two sizes, and the box
 * of a request clips only the first and the last owner that it meets. */
#ifndef BNY_PLAN_OWNERS_H
#define BNY_PLAN_OWNERS_H

#include "plan/slice.h"

typedef struct bny_owners {
  int32_t nonempty; /* number of owners of a part of the box */
  int32_t first;    /* the first of these */
  size_t bytes;     /* total size of the messages that hold what each of them owns */
  size_t fewest;    /* share of the owner that has least; 0 if one owns nothing */
} bny_owners;

/* Counts among ranks [first, last). */
bny_owners bny_owners_of(const bny_request *request, int32_t first, int32_t last);

/* The bytes of all bny_slice_piece(request, pieces, ..); an upper bound if pieces are not those of owners. */
size_t bny_owners_pieces_bytes(const bny_request *request, int32_t pieces);

#endif
