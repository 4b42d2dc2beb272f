/* SPDX-License-Identifier: Apache-2.0
 * The second half of an algorithm: every rank holds one finished piece, and all ranks (or the root) need all pieces. It
 * is also the whole of an all-gather, whose pieces are the inputs. */
#pragma once

#include "plan/builder.h"

/* The piece that `owner` holds; may be empty. */
typedef bny_slice bny_piece_function(const bny_request *request, int32_t owner);

bny_slice bny_piece_of_rank(const bny_request *request, int32_t owner);  /* bny_slice_piece() of nranks */
bny_slice bny_piece_of_input(const bny_request *request, int32_t owner); /* bny_slice_input(): all-gather */

/* The key of the slot in which `owner` holds its piece, and of the slots of ranks that forward it. */
bny_key bny_spread_key(int32_t owner);

/* Receives and delivers the piece of every other rank, which lies in slot `slot` at `offset` there. */
void bny_spread_collect(bny_builder *builder, bny_piece_function *piece_of, int32_t slot, size_t offset);

/* ROOT: sends the own result (-1: none) to the root, which collects all. */
void bny_spread_to_root(bny_builder *builder, bny_piece_function *piece_of, int32_t own_slot, int32_t slot,
                        size_t offset);

/* Ring: each piece travels from rank to rank + 1, in p - 1 rounds. Bruck: in round k rank r has the pieces of ranks r
 * .. r + 2^k - 1 and gets as many from rank r + 2^k; ceil(log2 p) rounds for any p. Both send the own piece (own_slot,
 * with its key; -1 if it is empty) and deliver everything. */
void bny_spread_ring(bny_builder *builder, bny_piece_function *piece_of, int32_t own_slot);
void bny_spread_bruck(bny_builder *builder, bny_piece_function *piece_of, int32_t own_slot);

/* The pieces of others that a rank stores to forward. */
int64_t bny_spread_ring_forwards(int32_t nranks);
int64_t bny_spread_bruck_forwards(int32_t nranks);

/* Reserves the slot of a finished piece of a combine, which other ranks receive. Returns -1 where no slot is needed:
 * the piece is empty, or is delivered on this rank only. */
int32_t bny_result_reserve(bny_builder *builder, const bny_slice *piece);

/* Merges the finished piece into the reserved slot. Without a slot it delivers the piece, if this rank owns it. */
void bny_result_merge(bny_builder *builder, const bny_slice *piece, int32_t slot, const bny_source *sources,
                      int64_t count);
