/* SPDX-License-Identifier: Apache-2.0
 * Plans twoshot (docs/algorithms.md). There is one slot for each piece that is not empty, the same on all ranks, and
 * then the result. A formula therefore gives a peer's entries. */
#include "plan/slice.h"
#include "plan/spread.h"

static const char *reject(const bny_request *request) {
  return bny_call_merges(&request->call) ? NULL : "there is nothing to merge";
}

static void build(bny_builder *builder) {
  const bny_request *request = builder->request;
  int32_t nranks = request->nranks;
  int32_t *slots = bny_builder_allocate(builder, nranks, sizeof *slots);
  int32_t *others = bny_builder_others(builder);
  if (!slots || !others) return;
  for (int32_t owner = 0; owner < nranks; owner++) {
    bny_slice piece = bny_slice_piece(request, nranks, owner);
    slots[owner] = bny_slice_rows(&piece) ? bny_builder_slot(builder, &piece, (bny_key){.phase = BNY_PHASE_OWN}) : -1;
  }
  int32_t result_index = builder->plan->nslots;
  size_t result_offset = builder->plan->outbox_bytes;
  bny_slice own = bny_slice_piece(request, nranks, builder->rank);
  int32_t result = bny_result_reserve(builder, &own);
  for (int32_t i = 1; i <= nranks; i++) {
    int32_t owner = bny_modulo((int64_t)builder->rank + i, nranks);
    if (slots[owner] < 0) continue;
    bny_builder_copy(builder, slots[owner]);
    if (owner != builder->rank) bny_builder_send(builder, slots[owner], owner);
  }
  if (slots[builder->rank] >= 0)
    bny_result_merge(builder, &own, result, bny_builder_receive_all(builder, slots[builder->rank]), nranks);
  if (request->call.scatter == BANYAN_SCATTER_NONE) {
    if (result >= 0) {
      bny_builder_send_list(builder, result, others, nranks - 1);
      bny_builder_deliver_one(builder, &own, bny_source_slot(result));
    }
    bny_spread_collect(builder, bny_piece_of_rank, result_index, result_offset);
  } else if (request->call.scatter == BANYAN_SCATTER_ROOT) {
    bny_spread_to_root(builder, bny_piece_of_rank, result, result_index, result_offset);
  }
}

static void estimate(const bny_request *request, bny_estimate *estimate) {
  int32_t p = request->nranks;
  int64_t groups = bny_builder_group_slots(p);
  bny_slice whole = bny_slice_whole(request), largest = bny_slice_piece_largest(request, p);
  double all = (double)bny_slice_wire_bytes(request, &whole), piece = (double)bny_slice_wire_bytes(request, &largest);
  bool gathers = request->call.scatter == BANYAN_SCATTER_NONE || request->call.scatter == BANYAN_SCATTER_ROOT;
  double others = p > 1 ? all * (p - 1) / p : 0;
  estimate->rounds = p == 1 ? 0 : gathers ? 2 : 1;
  estimate->messages = estimate->rounds * (p - 1);
  estimate->bytes = (p - 1) * piece + (gathers ? others : 0);
  estimate->work_bytes = all + p * piece + (gathers ? piece + all * bny_payload_of(&request->call)->delivery : 0);
  estimate->bytes_sent = others + (!gathers                                       ? 0
                                   : request->call.scatter == BANYAN_SCATTER_ROOT ? piece
                                                                                  : (p - 1) * piece);
  estimate->roundings = 1 + bny_builder_group_roundings(p) + (gathers && p > 1 ? 1 : 0);
  estimate->slots = p + 1 + groups;
  estimate->outbox_bytes = bny_owners_pieces_bytes(request, p);
  estimate->outbox_bytes += bny_slice_outbox_bytes(request, &largest) * (size_t)((gathers ? 1 : 0) + groups);
}

const bny_algorithm bny_algorithm_twoshot = {.name = "twoshot", .reject = reject, .estimate = estimate, .build = build};
