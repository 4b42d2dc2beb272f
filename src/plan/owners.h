/* SPDX-License-Identifier: Apache-2.0
 *
 * Owners under HEADS and TOKENS, counted without going through them: banyan_split() makes owners of two sizes, of which
 * the box of a request clips the first and the last that it meets. */
#ifndef BNY_PLAN_OWNERS_H
#define BNY_PLAN_OWNERS_H

#include "plan/slice.h"

typedef struct bny_owners {
  int32_t nonempty; /* how many own something of the box */
  int32_t first;    /* the first of these */
  size_t bytes;     /* of the messages that hold what each of them owns */
  size_t fewest;    /* the bytes of the one that owns least; 0 where one owns nothing */
} bny_owners;

/* Of ranks [first, last). */
bny_owners bny_owners_of(const bny_request *request, int32_t first, int32_t last);

/* Bytes of bny_slice_piece(request, pieces, ..), all of them; a bound where the pieces are no owners'. */
size_t bny_owners_pieces_bytes(const bny_request *request, int32_t pieces);

#endif
