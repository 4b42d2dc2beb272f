/* SPDX-License-Identifier: Apache-2.0
 * Plans oneshot: every rank sends each other rank the data that it needs, and each rank merges for itself. Each rank
 * sends (p
 * - 1) S bytes in one round. It has the lowest latency if all ranks reach each other alike and the payload is small.
 *
 * All ranks number their slots alike: by owner, or with a single slot if all get the same data. A formula therefore
 * gives a peer's entry. */
#include "plan/slice.h"
#include "plan/spread.h"

/* Merges own slot `own` with the same slot of every peer, and delivers. */
static void merge_all(bny_builder *builder, const bny_slice *slice, int32_t own) {
  const bny_source *sources = bny_builder_receive_all(builder, own);
  if (sources) bny_builder_deliver(builder, slice, sources, builder->request->nranks);
}

/* If every rank has its own core, a larger box is sent in pieces: while the stores of one piece drain, peers read the
 * earlier ones. Every piece costs a signal and, if its stores bypass the caches, a fence, so more than three do not
 * pay. Over a network a piece costs a message, and should keep the link busy for as long. */
enum { PIECE_BYTES = 8192, PIECES_MAX = 3, PIECES_AHEAD = 2 };

static size_t piece_bytes(const bny_link_cost *cost) {
  double bytes = cost->alpha_ns / (cost->beta_ns_per_byte + 2 * cost->gamma_ns_per_byte);
  return bytes > PIECE_BYTES ? (size_t)bytes : PIECE_BYTES;
}

static int32_t piece_count(const bny_request *request) {
  bool alone = request->nranks == 1 || request->cost.ranks_per_core > 1;
  if (request->call.scatter != BANYAN_SCATTER_NONE || alone ||
      PIECES_MAX * (1 + bny_builder_group_slots(request->nranks)) > request->slots_max)
    return 1;
  bny_slice whole = bny_slice_whole(request);
  size_t pieces = bny_slice_wire_bytes(request, &whole) / piece_bytes(&request->cost);
  return pieces < 1 ? 1 : pieces > PIECES_MAX ? PIECES_MAX : (int32_t)pieces;
}

/* Cuts heads so that the statistics of a piece fill whole cache lines, if possible. The box then takes the same number
 * of bytes for any number of pieces. */
static bny_slice piece_of(const bny_request *request, int32_t pieces, int32_t index) {
  enum { ROWS_OF_LINE = 8 };
  int32_t unit = ROWS_OF_LINE, first, number;
  for (int32_t tokens = request->tokens; unit > 1 && tokens % 2 == 0; tokens /= 2) unit /= 2;
  if (request->heads % unit || request->heads / unit < pieces) return bny_slice_piece(request, pieces, index);
  bny_slice piece = bny_slice_whole(request);
  bny_slice_split(piece.heads / unit, pieces, index, &first, &number);
  piece.head0 += first * unit;
  piece.heads = number * unit;
  return piece;
}

/* Every box goes to every other rank. */
static void combine_none(bny_builder *builder) {
  const bny_request *request = builder->request;
  int32_t pieces = piece_count(request), own[PIECES_MAX];
  int32_t *others = bny_builder_others(builder);
  if (!others) return;
  for (int32_t i = 0; i < pieces; i++) {
    bny_slice piece = piece_of(request, pieces, i);
    own[i] =
        bny_slice_rows(&piece) ? bny_builder_slot(builder, &piece, (bny_key){.phase = BNY_PHASE_OWN, .piece = i}) : -1;
  }
  for (int32_t i = 0; i < pieces + PIECES_AHEAD; i++) {
    int32_t ready = i - PIECES_AHEAD;
    if (i < pieces && own[i] >= 0) {
      bny_builder_copy(builder, own[i]);
      bny_builder_send_list(builder, own[i], others, request->nranks - 1);
    }
    if (ready >= 0 && own[ready] >= 0) {
      bny_slice piece = piece_of(request, pieces, ready);
      merge_all(builder, &piece, own[ready]);
    }
  }
}

static void combine_root(bny_builder *builder) {
  const bny_request *request = builder->request;
  bny_slice whole = bny_slice_whole(request);
  if (bny_slice_rows(&whole) == 0) return;
  int32_t own = bny_builder_copy_made(builder, &whole, (bny_key){.phase = BNY_PHASE_OWN});
  if (builder->rank != request->call.root)
    bny_builder_send(builder, own, request->call.root);
  else
    merge_all(builder, &whole, own);
}

/* Sends each owner's rows in one slot, the next rank's first. The slot of this rank is not sent. */
static void combine_by_owner(bny_builder *builder) {
  int32_t nranks = builder->request->nranks;
  int32_t *slots = bny_builder_allocate(builder, nranks, sizeof *slots);
  if (!slots) return;
  for (int32_t owner = 0; owner < nranks; owner++) {
    bny_slice owned = bny_slice_owned(builder->request, owner);
    slots[owner] = bny_slice_rows(&owned) ? bny_builder_slot(builder, &owned, (bny_key){.phase = BNY_PHASE_OWN}) : -1;
  }
  for (int32_t i = 1; i <= nranks; i++) {
    int32_t owner = bny_modulo((int64_t)builder->rank + i, nranks);
    if (slots[owner] < 0) continue;
    bny_builder_copy(builder, slots[owner]);
    if (owner != builder->rank) bny_builder_send(builder, slots[owner], owner);
  }
  bny_slice owned = bny_slice_owned(builder->request, builder->rank);
  if (slots[builder->rank] >= 0) merge_all(builder, &owned, slots[builder->rank]);
}

static void gather(bny_builder *builder) {
  const bny_request *request = builder->request;
  bny_slice mine = bny_slice_input(request, builder->rank);
  int32_t own = bny_builder_copy_made(builder, &mine, (bny_key){.phase = BNY_PHASE_OWN});
  if (own >= 0) {
    int32_t *others = bny_builder_others(builder);
    if (others) bny_builder_send_list(builder, own, others, request->nranks - 1);
    bny_builder_deliver_one(builder, &mine, bny_source_slot(own));
  }
  bny_spread_collect(builder, bny_piece_of_input, 0, 0);
}

static void broadcast(bny_builder *builder) {
  const bny_request *request = builder->request;
  bny_slice whole = bny_slice_whole(request);
  if (whole.bytes == 0) return;
  if (builder->rank == request->call.root) {
    int32_t own = bny_builder_copy_made(builder, &whole, (bny_key){.phase = BNY_PHASE_OWN});
    int32_t *others = bny_builder_others(builder);
    if (others) bny_builder_send_list(builder, own, others, request->nranks - 1);
    bny_builder_deliver_one(builder, &whole, bny_source_slot(own));
    return;
  }
  bny_slot what = {.slice = whole, .offset = 0, .bytes = whole.bytes};
  bny_builder_deliver_one(builder, &whole, bny_builder_receive(builder, request->call.root, 0, &what));
}

static void shift(bny_builder *builder) {
  const bny_request *request = builder->request;
  bny_slice mine = bny_slice_input(request, builder->rank);
  if (mine.bytes == 0) return;
  int32_t own = bny_builder_copy_made(builder, &mine, (bny_key){.phase = BNY_PHASE_OWN});
  if (request->call.distance % request->nranks == 0) {
    bny_builder_deliver_one(builder, &mine, bny_source_slot(own));
    return;
  }
  bny_builder_send(builder, own, bny_modulo((int64_t)builder->rank + request->call.distance, request->nranks));
  int32_t peer = bny_modulo((int64_t)builder->rank - request->call.distance, request->nranks);
  bny_slice theirs = bny_slice_input(request, peer);
  bny_slot what = {.slice = theirs, .offset = 0, .bytes = theirs.bytes};
  bny_builder_deliver_one(builder, &theirs, bny_builder_receive(builder, peer, 0, &what));
}

static const char *reject(const bny_request *request) {
  return bny_payload_of(&request->call)->motion == BNY_MOTION_SIGNAL
             ? "a barrier moves no data; dissemination takes fewer messages"
             : NULL;
}

static void build(bny_builder *builder) {
  switch (bny_payload_of(&builder->request->call)->motion) {
  case BNY_MOTION_MERGE:
    if (bny_request_has_owners(builder->request))
      combine_by_owner(builder);
    else if (builder->request->call.scatter == BANYAN_SCATTER_ROOT)
      combine_root(builder);
    else
      combine_none(builder);
    break;
  case BNY_MOTION_GATHER: gather(builder); break;
  case BNY_MOTION_SHIFT: shift(builder); break;
  case BNY_MOTION_BROADCAST: broadcast(builder); break;
  case BNY_MOTION_SIGNAL: break;
  }
}

static void estimate_combine(const bny_request *request, bny_estimate *estimate) {
  int32_t p = request->nranks;
  bny_slice whole = bny_slice_whole(request);
  double all = (double)bny_slice_wire_bytes(request, &whole);
  bny_slice largest = bny_request_has_owners(request) ? bny_slice_piece_largest(request, p) : whole;
  double piece = (double)bny_slice_wire_bytes(request, &largest);
  int64_t groups = bny_builder_group_slots(p);
  estimate->roundings = 1 + bny_builder_group_roundings(p);
  estimate->messages = p - 1;
  estimate->bytes = (p - 1) * piece;
  estimate->work_bytes = all + p * piece;
  if (!bny_request_has_owners(request)) {
    bool to_root = request->call.scatter == BANYAN_SCATTER_ROOT;
    estimate->sends = to_root ? 1 : 0;
    estimate->bytes_sent = to_root ? all : (p - 1) * all;
    int32_t pieces = piece_count(request);
    estimate->slots = pieces * (1 + groups);
    for (int32_t i = 0; i < pieces; i++) {
      bny_slice part = piece_of(request, pieces, i);
      estimate->outbox_bytes += bny_slice_outbox_bytes(request, &part) * (size_t)(1 + groups);
    }
    return;
  }
  estimate->slots = p + groups;
  bny_owners owners = bny_owners_of(request, 0, p);
  estimate->sends = owners.nonempty < p ? owners.nonempty : p - 1;
  estimate->bytes_sent = (double)(owners.bytes - owners.fewest); /* the own piece is not sent */
  estimate->outbox_bytes = owners.bytes;
  estimate->outbox_bytes += bny_slice_outbox_bytes(request, &largest) * (size_t)groups;
}

static void estimate(const bny_request *request, bny_estimate *estimate) {
  int32_t p = request->nranks;
  bny_slice whole = bny_slice_whole(request);
  size_t largest = request->call.bytes;
  bny_inputs inputs;
  double all = (double)bny_slice_wire_bytes(request, &whole);
  estimate->rounds = p > 1 ? 1 : 0;
  estimate->slots = 1;
  switch (bny_payload_of(&request->call)->motion) {
  case BNY_MOTION_MERGE: estimate_combine(request, estimate); return;
  case BNY_MOTION_GATHER:
    inputs = bny_slice_inputs(request);
    largest = inputs.largest;
    estimate->messages = inputs.received;
    estimate->bytes = all * (p - 1) / p;
    estimate->work_bytes = (double)largest + all;
    estimate->bytes_sent = (double)largest * (p - 1);
    break;
  default:
    if (request->call.collective == BNY_SHIFT && request->call.distance == 0) estimate->rounds = 0;
    estimate->messages = estimate->rounds;
    estimate->bytes = estimate->rounds * (double)largest;
    estimate->work_bytes = 2 * (double)largest;
    estimate->bytes_sent = estimate->bytes * (request->call.collective == BNY_BROADCAST ? p - 1 : 1);
    break;
  }
  estimate->outbox_bytes = (largest + 63) / 64 * 64;
}

const bny_algorithm bny_algorithm_oneshot = {
    .name = "oneshot", .direct = true, .reject = reject, .estimate = estimate, .build = build};
