/* SPDX-License-Identifier: Apache-2.0
 * Spreads finished pieces to all ranks or to the root, along a ring or by Bruck's algorithm. */
#include "plan/spread.h"

bny_slice bny_piece_of_rank(const bny_request *request, int32_t owner) {
  return bny_slice_piece(request, request->nranks, owner);
}

bny_slice bny_piece_of_input(const bny_request *request, int32_t owner) { return bny_slice_input(request, owner); }

bny_key bny_spread_key(int32_t owner) { return (bny_key){.phase = BNY_PHASE_SPREAD, .piece = owner}; }

void bny_spread_collect(bny_builder *builder, bny_piece_function *piece_of, int32_t slot, size_t offset) {
  const bny_request *request = builder->request;
  for (int32_t i = 1; i < request->nranks; i++) {
    int32_t peer = bny_modulo((int64_t)builder->rank - i, request->nranks);
    bny_slice piece = piece_of(request, peer);
    if (bny_slice_is_empty(request, &piece)) continue;
    bny_slot what = {.slice = piece, .offset = offset, .bytes = bny_slice_wire_bytes(request, &piece)};
    bny_builder_deliver_one(builder, &piece, bny_builder_receive(builder, peer, slot, &what));
  }
}

void bny_spread_to_root(bny_builder *builder, bny_piece_function *piece_of, int32_t own_slot, int32_t slot,
                        size_t offset) {
  int32_t root = builder->request->call.root;
  if (own_slot >= 0) bny_builder_send(builder, own_slot, root);
  if (builder->rank == root) bny_spread_collect(builder, piece_of, slot, offset);
}

/* Stores a received piece in an own slot and sends that. Returns the source to deliver from. */
static bny_source forward(bny_builder *builder, const bny_slice *piece, int32_t owner, bny_source source,
                          const int32_t *peers, int32_t count) {
  if (count == 0) return source;
  int32_t slot = bny_builder_slot(builder, piece, bny_spread_key(owner));
  bny_builder_merge(builder, slot, &source, 1);
  bny_builder_send_list(builder, slot, peers, count);
  return bny_source_slot(slot);
}

void bny_spread_ring(bny_builder *builder, bny_piece_function *piece_of, int32_t own_slot) {
  const bny_request *request = builder->request;
  int32_t nranks = request->nranks;
  int32_t next = bny_modulo((int64_t)builder->rank + 1, nranks),
          before = bny_modulo((int64_t)builder->rank - 1, nranks);
  if (own_slot >= 0) {
    bny_slice own = piece_of(request, builder->rank);
    bny_builder_send(builder, own_slot, next);
    bny_builder_deliver_one(builder, &own, bny_source_slot(own_slot));
  }
  for (int32_t hop = 1; hop < nranks; hop++) {
    int32_t owner = bny_modulo((int64_t)builder->rank - hop, nranks);
    bny_slice piece = piece_of(request, owner);
    if (bny_slice_is_empty(request, &piece)) continue;
    bny_source source = bny_builder_receive_key(builder, before, bny_spread_key(owner));
    source = forward(builder, &piece, owner, source, &next, hop < nranks - 1 ? 1 : 0);
    bny_builder_deliver_one(builder, &piece, source);
  }
}

/* Fills in the ranks that receive piece `index` (that of rank + index) from this rank. Rank - 2^k counts it as index +
 * 2^k. That number must belong to its round k, so 2^k > index, and must be below nranks. */
static int32_t bruck_receivers(const bny_builder *builder, int64_t index, int32_t *peers) {
  int32_t count = 0;
  for (int64_t distance = 1; index + distance < builder->request->nranks; distance *= 2)
    if (distance > index) peers[count++] = bny_modulo(builder->rank - distance, builder->request->nranks);
  return count;
}

/* One round: the pieces [distance, 2 distance) are received and forwarded, then delivered. */
static void bruck_round(bny_builder *builder, bny_piece_function *piece_of, int64_t distance) {
  const bny_request *request = builder->request;
  int32_t peers[32], nranks = request->nranks;
  int64_t end = 2 * distance < nranks ? 2 * distance : nranks;
  int32_t peer = bny_modulo(builder->rank + distance, nranks);
  bny_source *sources = bny_builder_allocate(builder, end - distance, sizeof *sources);
  for (int64_t index = distance; sources && index < end; index++) {
    int32_t owner = bny_modulo(builder->rank + index, nranks);
    bny_slice piece = piece_of(request, owner);
    if (bny_slice_is_empty(request, &piece)) continue;
    bny_source source = bny_builder_receive_key(builder, peer, bny_spread_key(owner));
    int32_t count = bruck_receivers(builder, index, peers);
    sources[index - distance] = forward(builder, &piece, owner, source, peers, count);
  }
  for (int64_t index = distance; sources && index < end; index++) {
    bny_slice piece = piece_of(request, bny_modulo(builder->rank + index, nranks));
    if (!bny_slice_is_empty(request, &piece)) bny_builder_deliver_one(builder, &piece, sources[index - distance]);
  }
}

void bny_spread_bruck(bny_builder *builder, bny_piece_function *piece_of, int32_t own_slot) {
  int32_t peers[32];
  if (own_slot >= 0) {
    bny_slice own = piece_of(builder->request, builder->rank);
    bny_builder_send_list(builder, own_slot, peers, bruck_receivers(builder, 0, peers));
    bny_builder_deliver_one(builder, &own, bny_source_slot(own_slot));
  }
  for (int64_t distance = 1; distance < builder->request->nranks; distance *= 2)
    bruck_round(builder, piece_of, distance);
}

int64_t bny_spread_ring_forwards(int32_t nranks) { return nranks > 2 ? nranks - 2 : 0; }

/* Piece i is forwarded if i + 2 * 2^floor(log2 i) < nranks: of [d, 2 d), those below nranks - 2 d. */
int64_t bny_spread_bruck_forwards(int32_t nranks) {
  int64_t forwards = 0;
  for (int64_t distance = 1; 3 * distance < nranks; distance *= 2)
    forwards += nranks - 3 * distance < distance ? nranks - 3 * distance : distance;
  return forwards;
}

int32_t bny_result_reserve(bny_builder *builder, const bny_slice *piece) {
  const bny_request *request = builder->request;
  bool others_receive =
      request->nranks > 1 && (request->call.scatter == BANYAN_SCATTER_NONE ||
                              (request->call.scatter == BANYAN_SCATTER_ROOT && request->call.root != builder->rank));
  if (!others_receive || bny_slice_is_empty(request, piece)) return -1;
  return bny_builder_slot(builder, piece, bny_spread_key(builder->rank));
}

void bny_result_merge(bny_builder *builder, const bny_slice *piece, int32_t slot, const bny_source *sources,
                      int64_t count) {
  if (bny_slice_is_empty(builder->request, piece) || !sources) return;
  if (slot >= 0)
    bny_builder_merge(builder, slot, sources, count);
  else
    bny_builder_deliver(builder, piece, sources, count);
}
