/* SPDX-License-Identifier: Apache-2.0
 * Slices: which rank owns what, and how a box of rows is cut into pieces. Every function is a pure function of the
 * request, so any rank can compute the slice that any other rank holds. */
#pragma once

#include "plan/plan.h"

/* A combine under HEADS or TOKENS: each rank owns a part of the rows. */
static inline bool bny_request_has_owners(const bny_request *request) {
  return bny_call_merges(&request->call) &&
         (request->call.scatter == BANYAN_SCATTER_HEADS || request->call.scatter == BANYAN_SCATTER_TOKENS);
}

/* The box of the request (combine, all-gather of heads), or all of its bytes. */
bny_slice bny_slice_whole(const bny_request *request);

/* The input of `rank`: the whole box (combine), its heads of the box, its range of bytes, or nothing. */
bny_slice bny_slice_input(const bny_request *request, int32_t rank);

/* The inputs of all ranks as messages: bytes of the largest, the space that all take in one outbox, and how many a rank
 * receives at most if empty ones are not sent. */
typedef struct bny_inputs {
  size_t largest, outbox_bytes;
  int32_t received;
} bny_inputs;

bny_inputs bny_slice_inputs(const bny_request *request);

/* The union of what ranks [first, last) own under HEADS and TOKENS, which is a box too. */
bny_slice bny_slice_owned_range(const bny_request *request, int32_t first, int32_t last);

/* Parts [low, high) of `count` parts of a box, along heads or tokens. */
bny_slice bny_slice_cut(const bny_slice *box, bool by_heads, int32_t count, int32_t low, int32_t high);

/* Describes a run of `count` of the `most` tokens that a plan was made for. Boundaries between tokens move: owners of
 * tokens get equal parts of the count (`owners` is 1 unless tokens are scattered), and tokens past the end of a part
 * vanish. The map is monotonic, so boxes that were disjoint or nested remain so. A plan that serves several parts of a
 * call is made for the first of them, and `shift` is the distance to the part. */
typedef struct bny_valid_tokens {
  int32_t most, count, owners, shift;
} bny_valid_tokens;

int32_t bny_slice_valid_token(const bny_valid_tokens *valid, int32_t token);
bny_slice bny_slice_valid(const bny_valid_tokens *valid, const bny_slice *slice);

bool bny_slice_is_empty(const bny_request *request, const bny_slice *slice);
bool bny_slice_equal(const bny_slice *a, const bny_slice *b);
bool bny_slice_within(const bny_slice *inner, const bny_slice *outer);

/* Bytes of the message that holds the slice, and the space that it takes in an outbox (the next multiple of 64). */
size_t bny_slice_wire_bytes(const bny_request *request, const bny_slice *slice);
size_t bny_slice_outbox_bytes(const bny_request *request, const bny_slice *slice);

/* Piece `index` of the box cut into at most `pieces` boxes. The largest is as small as a grid of token ranges x head
 * ranges allows, and the last pieces may be empty. Under HEADS and TOKENS piece r is what rank r owns. */
bny_slice bny_slice_piece(const bny_request *request, int32_t pieces, int32_t index);
bny_slice bny_slice_piece_largest(const bny_request *request, int32_t pieces);

/* Positions [low, high), an aligned power of two, of the 2^levels positions into which the box is halved level by
 * level. Use bny_slice_owned_range() under HEADS and TOKENS. */
bny_slice bny_slice_halved(const bny_request *request, int32_t levels, int32_t low, int32_t high);

/* Counts of owners under HEADS and TOKENS, found without visiting each one. banyan_split() makes owners of two
 * sizes, and the box of a request clips only the first and the last owner that it meets. */
typedef struct bny_owners {
  int32_t nonempty; /* number of owners of a part of the box */
  int32_t first;    /* the first of these */
  size_t bytes;     /* total size of the messages that hold what each of them owns */
  size_t fewest;    /* bytes of the owner with the least; 0 if one owns nothing */
} bny_owners;

/* Counts among ranks [first, last). */
bny_owners bny_owners_of(const bny_request *request, int32_t first, int32_t last);

/* The bytes of all bny_slice_piece(request, pieces, ..); an upper bound if pieces are not those of owners. */
size_t bny_owners_pieces_bytes(const bny_request *request, int32_t pieces);
