/* SPDX-License-Identifier: Apache-2.0
 * Counts the owners of rows, and the bytes that they own, without a loop over all ranks. */
#include "plan/owners.h"

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
  if (request->call.scatter == BANYAN_SCATTER_HEADS || request->call.scatter == BANYAN_SCATTER_TOKENS)
    return bny_owners_of(request, 0, request->nranks).bytes;
  bny_slice whole = bny_slice_whole(request), largest = bny_slice_piece_largest(request, pieces);
  int64_t rows = bny_slice_rows(&whole), most = rows < pieces ? rows : pieces;
  size_t equal = bny_slice_outbox_bytes(request, &largest) * (size_t)most;
  size_t padded = bny_slice_outbox_bytes(request, &whole) + 128 * (size_t)most;
  return equal < padded ? equal : padded;
}
