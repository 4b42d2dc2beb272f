/* SPDX-License-Identifier: Apache-2.0
 * Checks the form of plans before they are run symbolically: slots, ranges and messages. */
#include "tools/prove/prove.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/slice.h"
#include "base/status.h"

static const char *const step_names[] = {"copy", "merge", "send", "wait", "deliver"};

banyan_status bny_plan_fail(const bny_plan *plan, int32_t step, const char *format, ...) {
  char text[256], place[64] = "";
  size_t length = 0;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (step >= 0) {
    unsigned kind = plan->steps[step].kind;
    bny_append(place, sizeof place, &length, ", step %d (%s)", step, kind <= BNY_STEP_DELIVER ? step_names[kind] : "?");
  }
  return bny_fail(BANYAN_ERR_STATE, "plan: rank %d%s: %s", plan->rank, place, text);
}

static banyan_status check_header(const bny_request *request, const bny_plan *plan, const bny_plan *first,
                                  int32_t rank) {
  bool rounds = bny_request_is_lossy(request) && request->call.order == BANYAN_ORDER_CANONICAL;
  if (plan->rank != rank || plan->nranks != request->nranks || plan->collective != request->call.collective)
    return bny_fail(BANYAN_ERR_STATE, "plan: number %d is of rank %d of %d, collective %d", rank, plan->rank,
                    plan->nranks, (int)plan->collective);
  if (plan->wire != request->call.wire || plan->value_dim != request->call.value_dim || plan->round_nodes != rounds)
    return bny_plan_fail(plan, -1, "its wire format, value_dim or rounding differs from the request");
  if (plan->roundings != first->roundings || (plan->roundings > 0) != bny_request_is_lossy(request))
    return bny_plan_fail(plan, -1, "it has %d roundings, and the plan of rank 0 has %d", plan->roundings,
                         first->roundings);
  if (plan->hash != first->hash) return bny_plan_fail(plan, -1, "its hash differs from that of rank 0");
  return BANYAN_OK;
}

static int by_offset(const void *a, const void *b) {
  const bny_slot *left = a, *right = b;
  if (left->offset != right->offset) return left->offset < right->offset ? -1 : 1;
  return left->bytes < right->bytes ? -1 : left->bytes > right->bytes;
}

static banyan_status check_slots(const bny_request *request, const bny_plan *plan) {
  bny_slice whole = bny_slice_whole(request);
  if (plan->outbox_bytes > request->outbox_bytes || plan->nslots > request->slots_max)
    return bny_plan_fail(plan, -1, "it takes %zu bytes and %d slots of an outbox with %zu and %d", plan->outbox_bytes,
                         plan->nslots, request->outbox_bytes, request->slots_max);
  for (int32_t i = 0; i < plan->nslots; i++) {
    const bny_slot *slot = &plan->slots[i];
    if (slot->offset % 64 != 0)
      return bny_plan_fail(plan, -1, "slot %d begins at %zu, which is not a multiple of 64", i, slot->offset);
    if (slot->offset > plan->outbox_bytes || slot->bytes > plan->outbox_bytes - slot->offset)
      return bny_plan_fail(plan, -1, "slot %d ends beyond the outbox", i);
    if (request->call.collective != BNY_BARRIER && bny_slice_is_empty(request, &slot->slice))
      return bny_plan_fail(plan, -1, "slot %d is empty", i);
    if (!bny_slice_within(&slot->slice, &whole) || slot->bytes != bny_slice_wire_bytes(request, &slot->slice))
      return bny_plan_fail(plan, -1, "slot %d is not within the call, or its %zu bytes are not those of its slice", i,
                           slot->bytes);
  }
  if (plan->nslots == 0) return BANYAN_OK;
  size_t mark = tool_mark();
  bny_slot *sorted = tool_new((size_t)plan->nslots, sizeof *sorted);
  int32_t overlap = 0;
  for (int32_t i = 0; i < plan->nslots; i++) sorted[i] = plan->slots[i];
  qsort(sorted, (size_t)plan->nslots, sizeof *sorted, by_offset);
  for (int32_t i = 1; i < plan->nslots && !overlap; i++)
    if (sorted[i - 1].offset + sorted[i - 1].bytes > sorted[i].offset) overlap = i;
  size_t offset = sorted[overlap].offset;
  tool_release(mark);
  return overlap ? bny_plan_fail(plan, -1, "slots overlap at offset %zu", offset) : BANYAN_OK;
}

static banyan_status check_messages(const bny_request *request, const bny_plan *const *plans, const bny_plan *plan) {
  for (int32_t i = 0; i < plan->nmessages; i++) {
    const bny_message *message = &plan->messages[i];
    if (message->peer < 0 || message->peer >= request->nranks || message->peer == plan->rank)
      return bny_plan_fail(plan, -1, "message %d is of rank %d", i, message->peer);
    const bny_plan *sender = plans[message->peer];
    if (message->slot < 0 || message->slot >= sender->nslots)
      return bny_plan_fail(plan, -1, "message %d is slot %d of rank %d, which has %d", i, message->slot, message->peer,
                           sender->nslots);
    const bny_slot *slot = &sender->slots[message->slot];
    if (message->what.offset != slot->offset || message->what.bytes != slot->bytes ||
        !bny_slice_equal(&message->what.slice, &slot->slice))
      return bny_plan_fail(plan, -1, "message %d is not what slot %d of rank %d holds", i, message->slot,
                           message->peer);
  }
  return BANYAN_OK;
}

static bool range_is_within(int32_t first, int32_t count, int32_t limit) {
  return first >= 0 && count > 0 && first <= limit && count <= limit - first;
}

static banyan_status check_sources(const bny_request *request, const bny_plan *plan, int32_t number) {
  const bny_step *step = &plan->steps[number];
  if (!range_is_within(step->first, step->count, plan->nsources))
    return bny_plan_fail(plan, number, "its sources are not in the list");
  if (step->count > BNY_MERGE_SOURCES_MAX || (step->count > 1 && !bny_call_merges(&request->call)))
    return bny_plan_fail(plan, number, "it has %d sources", step->count);
  for (int32_t i = 0; i < step->count; i++) {
    const bny_source *source = &plan->sources[step->first + i];
    bool ok =
        source->message < 0 ? source->slot >= 0 && source->slot < plan->nslots : source->message < plan->nmessages;
    if (!ok) return bny_plan_fail(plan, number, "source %d does not exist", i);
    const bny_slot *slot = source->message < 0 ? &plan->slots[source->slot] : &plan->messages[source->message].what;
    if (!bny_slice_within(&step->slice, &slot->slice))
      return bny_plan_fail(plan, number, "source %d does not hold the whole slice", i);
  }
  return BANYAN_OK;
}

static banyan_status check_step(const bny_request *request, const bny_plan *plan, int32_t number) {
  const bny_step *step = &plan->steps[number];
  bool writes = step->kind == BNY_STEP_COPY || step->kind == BNY_STEP_MERGE;
  if ((unsigned)step->kind > BNY_STEP_DELIVER)
    return bny_plan_fail(plan, number, "it is of unknown kind %d", (int)step->kind);
  if ((writes || step->kind == BNY_STEP_SEND) && (step->slot < 0 || step->slot >= plan->nslots))
    return bny_plan_fail(plan, number, "slot %d does not exist", step->slot);
  if (writes && !bny_slice_equal(&step->slice, &plan->slots[step->slot].slice))
    return bny_plan_fail(plan, number, "it does not write all of slot %d", step->slot);
  if (step->kind == BNY_STEP_WAIT && (step->message < 0 || step->message >= plan->nmessages))
    return bny_plan_fail(plan, number, "message %d does not exist", step->message);
  if (step->kind == BNY_STEP_SEND) {
    if (!range_is_within(step->first, step->count, plan->npeers))
      return bny_plan_fail(plan, number, "its peers are not in the list");
    for (int32_t i = 0; i < step->count; i++) {
      int32_t peer = plan->peers[step->first + i];
      if (peer < 0 || peer >= plan->nranks || peer == plan->rank)
        return bny_plan_fail(plan, number, "it sends to rank %d", peer);
    }
  }
  if (step->kind == BNY_STEP_MERGE || step->kind == BNY_STEP_DELIVER) return check_sources(request, plan, number);
  return BANYAN_OK;
}

banyan_status bny_plan_check(const bny_request *request, const bny_plan *const *plans) {
  banyan_status status = BANYAN_OK;
  for (int32_t rank = 0; rank < request->nranks && status == BANYAN_OK; rank++)
    status = check_header(request, plans[rank], plans[0], rank);
  for (int32_t rank = 0; rank < request->nranks && status == BANYAN_OK; rank++)
    status = check_slots(request, plans[rank]);
  for (int32_t rank = 0; rank < request->nranks && status == BANYAN_OK; rank++) {
    status = check_messages(request, plans, plans[rank]);
    for (int32_t step = 0; step < plans[rank]->nsteps && status == BANYAN_OK; step++)
      status = check_step(request, plans[rank], step);
  }
  return status;
}
