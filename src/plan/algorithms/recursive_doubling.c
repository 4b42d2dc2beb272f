/* SPDX-License-Identifier: Apache-2.0
 * Plans recursive doubling (docs/algorithms.md). If the last block is short, each of its ranks serves several ranks of
 * the full sibling block, and a block without a sibling skips the level. Blocks are the nodes of the canonical tree, so
 * both orders are the same. The all-gather has Bruck's form (spread.h). */
#include "plan/spread.h"

static const char *reject(const bny_request *request) {
  bool merges = bny_call_merges(&request->call);
  if (!merges && !bny_call_gathers(&request->call))
    return "it serves combine, allreduce, select, allgather and allgather-heads";
  return !merges || request->call.scatter == BANYAN_SCATTER_NONE
             ? NULL
             : "doubling gives all rows to all ranks: for scatter none";
}

typedef struct rank_block {
  int32_t low, high;
} rank_block;

/* The aligned block of 2^level ranks that holds `rank`. */
static rank_block block_of(int32_t nranks, int32_t rank, int32_t level) {
  int64_t size = (int64_t)1 << level;
  int64_t low = rank / size * size;
  return (rank_block){.low = (int32_t)low, .high = (int32_t)(low + size < nranks ? low + size : nranks)};
}

static bny_key key_of(rank_block block) {
  return (bny_key){.phase = BNY_PHASE_REDUCE, .low = block.low, .high = block.high};
}

/* Member i of a block serves members i, i + |block|, ... of the sibling. */
static int32_t receivers(int32_t rank, rank_block mine, rank_block sibling, int32_t *peers) {
  int32_t count = 0;
  for (int32_t peer = sibling.low + rank - mine.low; peer < sibling.high; peer += mine.high - mine.low)
    peers[count++] = peer;
  return count;
}

static void combine(bny_builder *builder) {
  const bny_request *request = builder->request;
  int32_t nranks = request->nranks, rank = builder->rank;
  bny_slice whole = bny_slice_whole(request);
  int32_t *peers = bny_builder_allocate(builder, nranks, sizeof *peers);
  if (bny_slice_rows(&whole) == 0 || !peers) return;
  int32_t current = bny_builder_copy_made(builder, &whole, key_of(block_of(nranks, rank, 0)));
  if (nranks == 1) bny_builder_deliver_one(builder, &whole, bny_source_slot(current));
  for (int32_t level = 0; ((int64_t)1 << level) < nranks; level++) {
    rank_block mine = block_of(nranks, rank, level), both = block_of(nranks, rank, level + 1);
    if (mine.low == both.low && mine.high == both.high) continue;
    rank_block sibling = mine.low == both.low ? (rank_block){mine.high, both.high} : (rank_block){both.low, mine.low};
    bny_builder_send_list(builder, current, peers, receivers(rank, mine, sibling, peers));
    int32_t peer = sibling.low + (rank - mine.low) % (sibling.high - sibling.low);
    bny_source sources[2];
    bool is_first = sibling.low > mine.low;
    sources[is_first ? 0 : 1] = bny_source_slot(current);
    sources[is_first ? 1 : 0] = bny_builder_receive_key(builder, peer, key_of(sibling));
    if (both.high - both.low == nranks) {
      bny_builder_deliver(builder, &whole, sources, 2);
      break;
    }
    current = bny_builder_slot(builder, &whole, key_of(both));
    bny_builder_merge(builder, current, sources, 2);
  }
}

static void build(bny_builder *builder) {
  if (bny_call_merges(&builder->request->call)) {
    combine(builder);
    return;
  }
  bny_slice own = bny_slice_input(builder->request, builder->rank);
  bny_spread_bruck(builder, bny_piece_of_input, bny_builder_copy_made(builder, &own, bny_spread_key(builder->rank)));
}

static void estimate_gather(const bny_request *request, bny_estimate *estimate) {
  int32_t p = request->nranks;
  bny_slice whole = bny_slice_whole(request);
  double all = (double)bny_slice_wire_bytes(request, &whole);
  bny_inputs inputs = bny_slice_inputs(request);
  size_t largest = inputs.largest;
  double forwards = (double)bny_spread_bruck_forwards(p);
  estimate->messages = inputs.received;
  estimate->bytes = estimate->bytes_sent = all * (p - 1) / p;
  estimate->work_bytes = (double)largest * (1 + forwards) + all;
  estimate->slots = 1 + bny_spread_bruck_forwards(p);
  estimate->outbox_bytes = (largest + 63) / 64 * 64 * (size_t)estimate->slots;
}

static void estimate(const bny_request *request, bny_estimate *estimate) {
  int32_t levels = bny_log2_ceil(request->nranks);
  estimate->rounds = levels;
  estimate->pattern = BNY_PATTERN_DOUBLING;
  if (bny_call_gathers(&request->call)) {
    estimate_gather(request, estimate);
    return;
  }
  bny_slice whole = bny_slice_whole(request);
  double all = (double)bny_slice_wire_bytes(request, &whole);
  estimate->roundings = levels > 0 ? levels : 1; /* the last merge is delivered unrounded */
  estimate->messages = levels;
  estimate->bytes = estimate->bytes_sent = levels * all;
  estimate->work_bytes = (levels > 0 ? 1 + 2 * levels : 2) * all;
  estimate->slots = levels > 0 ? levels : 1;
  estimate->outbox_bytes = bny_slice_outbox_bytes(request, &whole) * (size_t)estimate->slots;
}

const bny_algorithm bny_algorithm_recursive_doubling = {
    .name = "recursive", .variant = "doubling", .reject = reject, .estimate = estimate, .build = build};
