/* SPDX-License-Identifier: Apache-2.0
 * Plans ring: a rank receives only from rank - 1 and sends only to rank + 1. Piece j starts at rank j + 1 and travels p
 * - 1 hops to rank j, and every rank on its way adds its own contribution (reduce-scatter). The results travel p - 1
 * hops more (all-gather). This takes 2 (p-1) rounds, and each rank sends 2 (p-1)/p S bytes. In canonical order a piece
 * travels as the nodes that cover the ranks it has passed: up to 2 log2 p messages a hop instead of one.
 *
 * Slot 0 is the result, so that a root knows the entries of all ranks. */
#include "plan/forest.h"
#include "plan/spread.h"

static const char *reject(const bny_request *request) {
  bool serves = bny_call_merges(&request->call) || bny_call_gathers(&request->call);
  return serves ? NULL : "it serves combine, allreduce, select, allgather and allgather-heads";
}

static void gather(bny_builder *builder) {
  bny_slice own = bny_slice_input(builder->request, builder->rank);
  int32_t slot = bny_builder_copy_made(builder, &own, bny_spread_key(builder->rank));
  if (builder->request->nranks > 1)
    bny_spread_ring(builder, bny_piece_of_input, slot);
  else if (slot >= 0)
    bny_builder_deliver_one(builder, &own, bny_source_slot(slot));
}

/* In hop h a rank sends the piece of rank - 1 - h, with the contributions of ranks rank - h to rank. After the last hop
 * its own piece is complete. */
static void reduce(bny_builder *builder, int32_t result) {
  const bny_request *request = builder->request;
  int32_t nranks = request->nranks, rank = builder->rank;
  bny_forest forest = {.count = 0};
  for (int32_t hop = 0; hop < nranks; hop++) {
    int32_t owner = bny_modulo((int64_t)rank - 1 - hop, nranks);
    bny_slice piece = bny_slice_piece(request, nranks, owner);
    if (bny_slice_rows(&piece) == 0) continue;
    bny_rank_set mine = {.first = rank, .count = 1};
    bny_node node;
    bny_forest_cover(request, mine, &node);
    /* It is sent before the wait, which leaves time for it. */
    int32_t copy = bny_builder_copy_made(builder, &piece, bny_node_key(BNY_PHASE_REDUCE, owner, &node));
    forest.count = 0;
    bny_forest_add(builder, &forest, node.low, node.high, bny_source_slot(copy));
    if (hop > 0)
      bny_forest_receive(builder, &forest, bny_modulo((int64_t)rank - 1, nranks), BNY_PHASE_REDUCE, owner,
                         (bny_rank_set){.first = bny_modulo((int64_t)rank - hop, nranks), .count = hop});
    if (hop < nranks - 1) {
      bny_forest_send(builder, &forest, &piece, bny_modulo((int64_t)rank + 1, nranks), BNY_PHASE_REDUCE, owner,
                      (bny_rank_set){.first = bny_modulo((int64_t)rank - hop, nranks), .count = hop + 1});
      continue;
    }
    int64_t count = 0;
    const bny_source *sources = bny_forest_complete(builder, &forest, &piece, &count);
    bny_result_merge(builder, &piece, result, sources, count);
  }
}

static void combine(bny_builder *builder) {
  const bny_request *request = builder->request;
  bny_slice own = bny_slice_piece(request, request->nranks, builder->rank);
  int32_t result = bny_result_reserve(builder, &own);
  reduce(builder, result);
  if (request->call.scatter == BANYAN_SCATTER_NONE && request->nranks > 1) {
    bny_spread_ring(builder, bny_piece_of_rank, result);
  } else if (request->call.scatter == BANYAN_SCATTER_ROOT) {
    bny_spread_to_root(builder, bny_piece_of_rank, result, bny_builder_first_slot(builder),
                       bny_builder_first_offset(builder));
  }
}

static void build(bny_builder *builder) {
  if (bny_call_gathers(&builder->request->call))
    gather(builder);
  else
    combine(builder);
}

static void estimate_gather(const bny_request *request, bny_estimate *estimate) {
  int32_t p = request->nranks;
  bny_slice whole = bny_slice_whole(request);
  double all = (double)bny_slice_wire_bytes(request, &whole);
  bny_inputs inputs = bny_slice_inputs(request);
  estimate->pattern = BNY_PATTERN_RING;
  estimate->rounds = p - 1;
  estimate->messages = inputs.received;
  estimate->bytes = estimate->bytes_sent = all * (p - 1) / p;
  estimate->work_bytes = (double)inputs.largest + 2 * all;
  estimate->slots = 1 + bny_spread_ring_forwards(p);
  estimate->outbox_bytes = inputs.outbox_bytes;
}

static void estimate_combine(const bny_request *request, bny_estimate *estimate) {
  int32_t p = request->nranks;
  bool canonical = request->call.order == BANYAN_ORDER_CANONICAL;
  bool to_all = request->call.scatter == BANYAN_SCATTER_NONE, to_root = request->call.scatter == BANYAN_SCATTER_ROOT;
  bny_slice whole = bny_slice_whole(request), largest = bny_slice_piece_largest(request, p);
  double all = (double)bny_slice_wire_bytes(request, &whole), piece = (double)bny_slice_wire_bytes(request, &largest);
  /* About log2 p nodes travel on average, at most 2 log2 p; merging them takes private slots for at most log2 p. */
  double nodes = canonical && p > 2 ? bny_log2_ceil(p) : 1;
  int64_t most = canonical ? 3 * bny_log2_ceil(p) + 1 : 1;
  double hops = p - 1;
  estimate->roundings = p == 1 ? 1 : to_all || to_root ? p : p - 1;
  estimate->pattern = BNY_PATTERN_RING;
  estimate->rounds = hops + (to_all ? hops : to_root && p > 1 ? 1 : 0);
  estimate->messages = hops * nodes + (to_all || to_root ? hops : 0);
  estimate->bytes = hops * piece * nodes + (to_all || to_root ? all * hops / p : 0);
  estimate->bytes_sent = hops * piece * nodes + (to_all ? hops * piece : to_root ? piece : 0);
  estimate->work_bytes =
      all + 2 * hops * piece * nodes + (to_all ? all * (1 + bny_payload_of(&request->call)->delivery) : all);
  estimate->slots = 1 + p + (p - 1) * most + (to_all ? bny_spread_ring_forwards(p) : 0);
  size_t room = bny_slice_outbox_bytes(request, &largest);
  estimate->outbox_bytes = room * (size_t)estimate->slots;
}

static void estimate(const bny_request *request, bny_estimate *estimate) {
  if (bny_call_gathers(&request->call))
    estimate_gather(request, estimate);
  else
    estimate_combine(request, estimate);
}

const bny_algorithm bny_algorithm_ring = {.name = "ring", .reject = reject, .estimate = estimate, .build = build};
