/* SPDX-License-Identifier: Apache-2.0
 *
 * The second half of an algorithm: every rank holds one finished piece, and all ranks (or the root) want all pieces.
 * Also the whole of a gather, whose pieces are the inputs. */
#ifndef BNY_PLAN_SPREAD_H
#define BNY_PLAN_SPREAD_H

#include "plan/builder.h"

/* The piece that `owner` holds; may be empty. */
typedef bny_slice bny_piece_function(const bny_request *request, int32_t owner);

bny_slice bny_piece_of_rank(const bny_request *request, int32_t owner);  /* bny_slice_piece() of nranks */
bny_slice bny_piece_of_input(const bny_request *request, int32_t owner); /* bny_slice_input(): gather */

/* The key of the slot in which `owner` holds its piece, and of the slots of ranks that pass it on. */
bny_key bny_spread_key(int32_t owner);

/* Receives and delivers the piece of every other rank, which lies in slot `slot` at `offset` on each of them. */
void bny_spread_collect(bny_builder *builder, bny_piece_function *piece_of, int32_t slot, size_t offset);

/* Ring: each piece travels from rank to rank + 1, p - 1 rounds. Bruck: in round k a rank has the pieces of ranks r .. r
 * + 2^k - 1 and gets as many from rank r + 2^k; ceil(log2 p) rounds for any p. Both send the own piece (own_slot, with
 * its key; -1 if it is empty) and deliver everything. */
void bny_spread_ring(bny_builder *builder, bny_piece_function *piece_of, int32_t own_slot);
void bny_spread_bruck(bny_builder *builder, bny_piece_function *piece_of, int32_t own_slot);

/* Pieces of others that a rank stores to pass on. */
int64_t bny_spread_ring_forwards(int32_t nranks);
int64_t bny_spread_bruck_forwards(int32_t nranks);

/* The slot of a finished piece of a combine: needed where others receive the piece. Returns -1 where it is not: the
 * piece is empty, or delivered here and nowhere else. */
int32_t bny_result_reserve(bny_builder *builder, const bny_slice *piece);

/* Merges the finished piece into the reserved slot, or delivers it where there is none and this rank owns it. */
void bny_result_merge(bny_builder *builder, const bny_slice *piece, int32_t slot, const bny_source *sources,
                      int64_t count);

#endif
