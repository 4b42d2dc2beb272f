/* SPDX-License-Identifier: Apache-2.0
 * Computes who owns which rows or bytes, and cuts boxes into pieces. */
#include "plan/slice.h"

void bny_slice_split(int32_t count, int32_t parts, int32_t index, int32_t *first, int32_t *number) {
  int32_t each = count / parts;
  int32_t larger = count % parts;
  *first = index * each + (index < larger ? index : larger);
  *number = each + (index < larger ? 1 : 0);
}

int64_t bny_slice_rows(const bny_slice *slice) { return (int64_t)slice->tokens * slice->heads; }

static bny_slice slice_of_bytes(size_t byte0, size_t bytes) {
  return (bny_slice){.head0 = 0, .heads = 1, .byte0 = byte0, .bytes = bytes};
}

bny_slice bny_slice_whole(const bny_request *request) {
  if (bny_call_has_rows(&request->call))
    return (bny_slice){
        .token0 = request->token0, .tokens = request->tokens, .head0 = request->head0, .heads = request->heads};
  size_t bytes = 0;
  if (request->call.collective == BNY_ALLGATHER)
    for (int32_t rank = 0; rank < request->nranks; rank++) bytes += request->call.counts[rank];
  else if (request->call.collective == BNY_SHIFT)
    bytes = request->call.bytes * (size_t)request->nranks;
  else
    bytes = request->call.bytes;
  return slice_of_bytes(0, bytes);
}

/* Intersects [*first, *first + *number) with [low, low + count). */
static void clip(int32_t *first, int32_t *number, int32_t low, int32_t count) {
  int32_t end = *first + *number;
  if (*first < low) *first = low;
  if (end > low + count) end = low + count;
  *number = end > *first ? end - *first : 0;
  if (*number == 0) *first = low; /* keeps an empty slice within the box */
}

/* The heads of `rank` within the box. */
static bny_slice slice_of_heads(const bny_request *request, int32_t rank) {
  bny_slice slice = bny_slice_whole(request);
  size_t before = 0;
  for (int32_t i = 0; i < rank; i++) before += request->call.counts[i];
  slice.head0 = (int32_t)before;
  slice.heads = (int32_t)request->call.counts[rank];
  clip(&slice.head0, &slice.heads, request->head0, request->heads);
  return slice;
}

/* The bytes of `rank` among those of all. */
static bny_slice slice_of_count(const bny_request *request, int32_t rank) {
  size_t byte0 = 0;
  for (int32_t before = 0; before < rank; before++) byte0 += request->call.counts[before];
  return slice_of_bytes(byte0, request->call.counts[rank]);
}

bny_slice bny_slice_input(const bny_request *request, int32_t rank) {
  const bny_call *call = &request->call;
  switch (bny_payload_of(call)->motion) {
  case BNY_MOTION_MERGE: return bny_slice_whole(request);
  case BNY_MOTION_GATHER:
    return bny_call_has_rows(call) ? slice_of_heads(request, rank) : slice_of_count(request, rank);
  case BNY_MOTION_SHIFT: return slice_of_bytes(call->bytes * (size_t)rank, call->bytes);
  case BNY_MOTION_BROADCAST: return slice_of_bytes(0, rank == call->root ? call->bytes : 0);
  case BNY_MOTION_SIGNAL: break;
  }
  return slice_of_bytes(0, 0);
}

bny_inputs bny_slice_inputs(const bny_request *request) {
  bny_inputs inputs = {0, 0, 0};
  for (int32_t rank = 0; rank < request->nranks; rank++) {
    bny_slice input = bny_slice_input(request, rank);
    size_t bytes = bny_slice_wire_bytes(request, &input);
    if (bytes > inputs.largest) inputs.largest = bytes;
    inputs.outbox_bytes += bny_slice_outbox_bytes(request, &input);
    if (bytes > 0) inputs.received++;
  }
  if (inputs.received == request->nranks) inputs.received--; /* a rank's own is among them */
  return inputs;
}

bny_slice bny_slice_cut(const bny_slice *box, bool by_heads, int32_t count, int32_t low, int32_t high) {
  bny_slice part = *box;
  int32_t *first = by_heads ? &part.head0 : &part.token0, *number = by_heads ? &part.heads : &part.tokens;
  int32_t all = *number, begin = all, end = all, size = 0;
  if (low < high) {
    bny_slice_split(all, count, low, &begin, &size);
    bny_slice_split(all, count, high - 1, &end, &size);
    end += size;
  }
  *first += begin < all ? begin : 0;
  *number = end - begin;
  return part;
}

bny_slice bny_slice_owned_range(const bny_request *request, int32_t first, int32_t last) {
  bny_slice slice = bny_slice_whole(request);
  if (!bny_call_merges(&request->call) || request->call.scatter == BANYAN_SCATTER_NONE) return slice;
  if (request->call.scatter == BANYAN_SCATTER_ROOT) {
    if (request->call.root < first || request->call.root >= last) slice.tokens = slice.heads = 0;
    return slice;
  }
  if (request->pieces)
    return bny_slice_cut(&slice, request->call.scatter == BANYAN_SCATTER_HEADS, request->pieces->count,
                         request->pieces->first[first], request->pieces->first[last]);
  int32_t all = request->call.scatter == BANYAN_SCATTER_HEADS ? request->call.all_heads : request->call.all_tokens;
  int32_t begin = all, end = all, number = 0;
  if (first < last) {
    bny_slice_split(all, request->nranks, first, &begin, &number);
    bny_slice_split(all, request->nranks, last - 1, &end, &number);
    end += number;
  }
  number = end - begin;
  if (request->call.scatter == BANYAN_SCATTER_HEADS) {
    clip(&begin, &number, request->head0, request->heads);
    slice.head0 = begin;
    slice.heads = number;
  } else {
    clip(&begin, &number, request->token0, request->tokens);
    slice.token0 = begin;
    slice.tokens = number;
  }
  return slice;
}

bny_slice bny_slice_owned(const bny_request *request, int32_t rank) {
  if (request->call.collective == BNY_SHIFT) {
    int32_t from = (int32_t)(((int64_t)rank - request->call.distance + request->nranks) % request->nranks);
    return bny_slice_input(request, from);
  }
  return bny_slice_owned_range(request, rank, rank + 1);
}

int32_t bny_slice_valid_token(const bny_valid_tokens *valid, int32_t token) {
  token += valid->shift;
  if (valid->count == valid->most) return token;
  if (valid->owners == 1 || token >= valid->most) return token < valid->count ? token : valid->count;
  int32_t owner = bny_levels_part_of(valid->most, valid->owners, token), first, size, begin, number;
  bny_slice_split(valid->most, valid->owners, owner, &first, &size);
  bny_slice_split(valid->count, valid->owners, owner, &begin, &number);
  int32_t within = token - first;
  return begin + (within < number ? within : number);
}

bny_slice bny_slice_valid(const bny_valid_tokens *valid, const bny_slice *slice) {
  bny_slice moved = *slice;
  moved.token0 = bny_slice_valid_token(valid, slice->token0);
  moved.tokens = bny_slice_valid_token(valid, slice->token0 + slice->tokens) - moved.token0;
  return moved;
}

bool bny_slice_is_empty(const bny_request *request, const bny_slice *slice) {
  return bny_call_has_rows(&request->call) ? bny_slice_rows(slice) == 0 : slice->bytes == 0;
}

bool bny_slice_equal(const bny_slice *a, const bny_slice *b) {
  return a->token0 == b->token0 && a->tokens == b->tokens && a->head0 == b->head0 && a->heads == b->heads &&
         a->byte0 == b->byte0 && a->bytes == b->bytes;
}

/* Compares in 64 bits, and bytes without sums, because the prover accepts plans with any numbers. */
static bool range_within(int64_t first, int64_t number, int64_t low, int64_t count) {
  return number >= 0 && first >= low && first + number <= low + count;
}

bool bny_slice_within(const bny_slice *inner, const bny_slice *outer) {
  return range_within(inner->token0, inner->tokens, outer->token0, outer->tokens) &&
         range_within(inner->head0, inner->heads, outer->head0, outer->heads) && inner->byte0 >= outer->byte0 &&
         inner->bytes <= outer->bytes && inner->byte0 - outer->byte0 <= outer->bytes - inner->bytes;
}

size_t bny_slice_wire_bytes(const bny_request *request, const bny_slice *slice) {
  const bny_payload *payload = bny_payload_of(&request->call);
  if (!payload->has_rows) return slice->bytes;
  return bny_payload_bytes(payload, bny_slice_rows(slice), payload->row_bytes(&request->call));
}

size_t bny_slice_outbox_bytes(const bny_request *request, const bny_slice *slice) {
  return (bny_slice_wire_bytes(request, slice) + 63) / 64 * 64;
}

/* Chooses the grid of at most `pieces` boxes, tokens x heads, whose largest box has the fewest rows. Heads are cut
 * first. */
static void grid_choose(const bny_request *request, int32_t pieces, int32_t *by_tokens, int32_t *by_heads) {
  int64_t best = INT64_MAX, least = ((int64_t)request->tokens * request->heads + pieces - 1) / pieces;
  *by_tokens = *by_heads = 1;
  for (int32_t t = 1; t <= pieces && t <= request->tokens && best > least; t++) {
    int32_t h = pieces / t < request->heads ? pieces / t : request->heads;
    if (h < 1) break;
    int64_t largest = (((int64_t)request->tokens + t - 1) / t) * (((int64_t)request->heads + h - 1) / h);
    if (largest < best) {
      best = largest;
      *by_tokens = t;
      *by_heads = h;
    }
  }
}

bny_slice bny_slice_piece(const bny_request *request, int32_t pieces, int32_t index) {
  if (bny_request_has_owners(request)) return bny_slice_owned(request, index);
  bny_slice piece = bny_slice_whole(request);
  int32_t by_tokens, by_heads, first, number;
  grid_choose(request, pieces, &by_tokens, &by_heads);
  if (index >= by_tokens * by_heads) {
    piece.tokens = piece.heads = 0;
    return piece;
  }
  bny_slice_split(piece.tokens, by_tokens, index / by_heads, &first, &number);
  piece.token0 += first;
  piece.tokens = number;
  bny_slice_split(piece.heads, by_heads, index % by_heads, &first, &number);
  piece.head0 += first;
  piece.heads = number;
  return piece;
}

/* Sizes drop once, from the first owners to the others, and the box clips only the first and the last that it meets. */
static bny_slice owned_largest(const bny_request *request) {
  bny_slice largest = bny_slice_owned(request, 0);
  bool by_heads = request->call.scatter == BANYAN_SCATTER_HEADS;
  int32_t all = by_heads ? request->call.all_heads : request->call.all_tokens, p = request->nranks;
  int32_t begin = by_heads ? request->head0 : request->token0, count = by_heads ? request->heads : request->tokens;
  if (count == 0) return largest;
  int32_t first = bny_levels_part_of(all, p, begin), last = bny_levels_part_of(all, p, begin + count - 1);
  const int32_t ranks[] = {first, first + 1, last - 1, last};
  for (int i = 0; i < 4; i++) {
    if (ranks[i] < first || ranks[i] > last) continue;
    bny_slice owned = bny_slice_owned(request, ranks[i]);
    if (bny_slice_rows(&owned) > bny_slice_rows(&largest)) largest = owned;
  }
  return largest;
}

bny_slice bny_slice_piece_largest(const bny_request *request, int32_t pieces) {
  if (!bny_request_has_owners(request)) return bny_slice_piece(request, pieces, 0);
  if (!request->pieces) return owned_largest(request);
  bny_slice largest = bny_slice_owned(request, 0);
  for (int32_t rank = 1; rank < request->nranks; rank++) {
    bny_slice owned = bny_slice_owned(request, rank);
    if (bny_slice_rows(&owned) > bny_slice_rows(&largest)) largest = owned;
  }
  return largest;
}

bny_slice bny_slice_halved(const bny_request *request, int32_t levels, int32_t low, int32_t high) {
  bny_slice box = bny_slice_whole(request);
  int32_t begin = 0, size = (int32_t)((uint32_t)1 << levels);
  while (size > high - low) {
    size /= 2;
    bool upper = low >= begin + size;
    /* An even dimension is halved exactly, heads first. Otherwise the longer dimension loses least by its odd
     * element. */
    bool by_heads = box.heads % 2 == 0 ? box.heads > 0 : box.tokens % 2 != 0 && box.heads >= box.tokens;
    int32_t *origin = by_heads ? &box.head0 : &box.token0, *extent = by_heads ? &box.heads : &box.tokens;
    int32_t half = (*extent + 1) / 2;
    if (upper) {
      *origin += half;
      *extent -= half;
      begin += size;
    } else {
      *extent = half;
    }
  }
  return box;
}

/* Adds `count` equal owners from `rank` on. */
static void add(bny_owners *owners, const bny_request *request, int32_t rank, int32_t count) {
  bny_slice owned = bny_slice_owned(request, rank);
  size_t bytes = bny_slice_outbox_bytes(request, &owned);
  if (bny_slice_rows(&owned) > 0) {
    if (owners->nonempty == 0) owners->first = rank;
    owners->nonempty += count;
  }
  owners->bytes += bytes * (size_t)count;
  if (bytes < owners->fewest) owners->fewest = bytes;
}

static int32_t smaller_of(int32_t a, int32_t b) { return a < b ? a : b; }

static int32_t larger_of(int32_t a, int32_t b) { return a > b ? a : b; }

/* Owners `met` to `last_met` meet the box. Of those between them the first all % p own one more than the others. */
static void add_met(bny_owners *owners, const bny_request *request, int32_t first, int32_t last) {
  bool by_heads = request->call.scatter == BANYAN_SCATTER_HEADS;
  int32_t all = by_heads ? request->call.all_heads : request->call.all_tokens, p = request->nranks;
  int32_t begin = by_heads ? request->head0 : request->token0, count = by_heads ? request->heads : request->tokens;
  if (count == 0) {
    owners->fewest = 0;
    return;
  }
  int32_t met = bny_levels_part_of(all, p, begin), last_met = bny_levels_part_of(all, p, begin + count - 1);
  int32_t inner = larger_of(first, met + 1), inner_end = smaller_of(last, last_met), larger = all % p;
  if (met >= first && met < last) add(owners, request, met, 1);
  if (inner < smaller_of(inner_end, larger)) add(owners, request, inner, smaller_of(inner_end, larger) - inner);
  if (larger_of(inner, larger) < inner_end)
    add(owners, request, larger_of(inner, larger), inner_end - larger_of(inner, larger));
  if (last_met != met && last_met >= first && last_met < last) add(owners, request, last_met, 1);
  if (owners->nonempty < last - first) owners->fewest = 0;
}

bny_owners bny_owners_of(const bny_request *request, int32_t first, int32_t last) {
  bny_owners owners = {.fewest = first < last ? SIZE_MAX : 0};
  if (first >= last) return owners;
  if (!request->pieces) {
    add_met(&owners, request, first, last);
    return owners;
  }
  for (int32_t rank = first; rank < last; rank++) add(&owners, request, rank, 1);
  return owners;
}

/* A message takes its rows' bytes, plus less than two times 64 bytes of padding. */
size_t bny_owners_pieces_bytes(const bny_request *request, int32_t pieces) {
  if (bny_request_has_owners(request)) return bny_owners_of(request, 0, request->nranks).bytes;
  bny_slice whole = bny_slice_whole(request), largest = bny_slice_piece_largest(request, pieces);
  int64_t rows = bny_slice_rows(&whole), most = rows < pieces ? rows : pieces;
  size_t equal = bny_slice_outbox_bytes(request, &largest) * (size_t)most;
  size_t padded = bny_slice_outbox_bytes(request, &whole) + 128 * (size_t)most;
  return equal < padded ? equal : padded;
}
