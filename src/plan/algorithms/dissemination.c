/* SPDX-License-Identifier: Apache-2.0
 * Plans the barrier by dissemination. In round k every rank signals rank + 2^k and waits for rank - 2^k. After
 * ceil(log2 p) rounds each rank has a signal from every other, directly or through others. Slots hold no bytes and are
 * never written: a send is only the signal. Slot k belongs to round k on every rank. */
#include "plan/builder.h"

static const char *reject(const bny_request *request) {
  return request->call.collective == BNY_BARRIER ? NULL : "it moves no data";
}

static void build(bny_builder *builder) {
  int32_t nranks = builder->request->nranks;
  bny_slice nothing = bny_slice_input(builder->request, builder->rank);
  bny_slot what = {.slice = nothing};
  for (int32_t round = 0; ((int64_t)1 << round) < nranks; round++) {
    int64_t distance = (int64_t)1 << round;
    int32_t slot = bny_builder_slot(builder, &nothing, (bny_key){.phase = BNY_PHASE_OWN, .piece = round});
    bny_builder_send(builder, slot, bny_modulo(builder->rank + distance, nranks));
    bny_builder_receive(builder, bny_modulo(builder->rank - distance, nranks), round, &what);
  }
}

static void estimate(const bny_request *request, bny_estimate *estimate) {
  estimate->rounds = estimate->messages = bny_log2_ceil(request->nranks);
  estimate->slots = bny_log2_ceil(request->nranks);
  estimate->pattern = BNY_PATTERN_DOUBLING;
}

const bny_algorithm bny_algorithm_dissemination = {
    .name = "dissemination", .reject = reject, .estimate = estimate, .build = build};
