/* SPDX-License-Identifier: Apache-2.0
 * Checks a request, selects its algorithm, and makes the plan of one rank. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "plan/builder.h"
#include "base/hash.h"
#include "base/status.h"

static banyan_status check(const bny_request *request, int32_t rank) {
  if (request->nranks < 1 || rank < 0 || rank >= request->nranks)
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: rank %d is not one of %d ranks", rank, request->nranks);
  if ((unsigned)request->call.collective >= BNY_COLLECTIVES)
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: collective %d is unknown", (int)request->call.collective);
  return bny_payload_of(&request->call)->check(request);
}

bool bny_request_is_lossy(const bny_request *request) {
  return bny_call_merges(&request->call) && bny_wire_formats[request->call.wire].error_bound > 0;
}

/* Canonical order rounds every node of the tree over ranks, in every algorithm. */
static int32_t roundings_of(const bny_request *request, const bny_estimate *bounds) {
  if (!bny_request_is_lossy(request)) return 0;
  if (request->call.order == BANYAN_ORDER_CANONICAL) return 1 + bny_log2_ceil(request->nranks);
  return bounds->roundings > 1 ? bounds->roundings : 1;
}

bool bny_request_may_be_direct(const bny_request *request) {
  const bny_call *call = &request->call;
  bool rounds_nodes = bny_request_is_lossy(request) && call->order == BANYAN_ORDER_CANONICAL;
  /* A unit of columns then has two owners, unless it is a single column, which is slow. */
  bool is_uneven = call->collective == BNY_ALLREDUCE && call->scatter == BANYAN_SCATTER_HEADS &&
                   call->all_heads % request->nranks && call->order != BANYAN_ORDER_EXACT;
  return bny_call_merges(call) && request->nranks <= BNY_DIRECT_RANKS_MAX && !request->pieces && !rounds_nodes &&
         !is_uneven;
}

/* Sets all that is the same on every rank. */
static banyan_status plan_choose(const bny_request *request, bny_plan *plan) {
  const bny_algorithm *algorithm;
  bny_estimate bounds = {0};
  banyan_status status = bny_algorithm_select(request, &algorithm, &plan->predicted_ns, &plan->reason);
  if (status != BANYAN_OK) return status;
  algorithm->estimate(request, &bounds);
  plan->collective = request->call.collective;
  plan->nranks = request->nranks;
  plan->value_dim = request->call.value_dim;
  plan->wire = request->call.wire;
  plan->payload = bny_payload_of(&request->call);
  plan->row_bytes = plan->payload->row_bytes(&request->call);
  plan->round_nodes = bny_request_is_lossy(request) && request->call.order == BANYAN_ORDER_CANONICAL;
  plan->algorithm = algorithm->name;
  plan->made_by = algorithm;
  plan->outbox_bound = bounds.outbox_bytes;
  plan->slots_bound = bounds.slots;
  plan->roundings = roundings_of(request, &bounds);
  plan->form = algorithm->direct && bny_request_may_be_direct(request) ? BNY_FORM_DIRECT : BNY_FORM_STEPS;
  char name[64];
  size_t length = 0;
  bny_algorithm_print(algorithm, name, sizeof name, &length);
  plan->hash = bny_hash_add(bny_request_hash(request, name), (uint64_t)plan->form);
  return BANYAN_OK;
}

static banyan_status plan_choose_like(const bny_plan *like, bny_plan *plan) {
  memcpy(plan, like, offsetof(bny_plan, outbox_bytes)); /* fields after these depend on the rank */
  plan->reason = strdup(like->reason);
  return plan->reason ? BANYAN_OK : bny_fail(BANYAN_ERR_MEMORY, "plan: no memory");
}

banyan_status bny_plan_make_like(const bny_request *request, const bny_plan *like, int32_t rank, bny_plan **plan) {
  banyan_status status = check(request, rank);
  if (status != BANYAN_OK) return status;
  bny_plan *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "plan of rank %d: no memory", rank);
  status = like ? plan_choose_like(like, made) : plan_choose(request, made);
  if (status != BANYAN_OK) goto free_plan;
  made->rank = rank;
  bny_builder builder;
  bny_builder_init(&builder, request, made->made_by, rank, false, made);
  made->made_by->build(&builder);
  bny_builder_fini(&builder);
  status = builder.status;
  /* This never happens. It is checked because the executor lays out runs by these bounds, and a larger plan would
   * overwrite memory of peers. */
  if (status == BANYAN_OK && (made->outbox_bytes > made->outbox_bound || made->nslots > made->slots_bound))
    status = bny_fail(BANYAN_ERR_MEMORY, "plan of rank %d: %s takes %zu bytes and %d slots, more than was estimated",
                      rank, made->algorithm, made->outbox_bytes, made->nslots);
  if (status != BANYAN_OK) goto free_plan;
  *plan = made;
  return BANYAN_OK;
free_plan:
  bny_plan_free(made);
  return status;
}

banyan_status bny_plan_make(const bny_request *request, int32_t rank, bny_plan **plan) {
  return bny_plan_make_like(request, NULL, rank, plan);
}

typedef struct page {
  char *text;
  size_t bytes, length;
} page;

#define PRINT(...) bny_append(sheet->text, sheet->bytes, &sheet->length, __VA_ARGS__)

/* Prints "tokens 0+4 heads 8+2" for tokens 0 to 3 of heads 8 and 9, or "bytes 128+64". */
static void print_slice(page *sheet, const bny_plan *plan, const bny_slice *slice) {
  if (plan->payload->has_rows)
    PRINT("tokens %d+%d heads %d+%d", slice->token0, slice->tokens, slice->head0, slice->heads);
  else
    PRINT("bytes %zu+%zu", slice->byte0, slice->bytes);
}

static void print_sources(page *sheet, const bny_plan *plan, const bny_step *step) {
  PRINT(" from");
  for (int32_t i = 0; i < step->count; i++) {
    const bny_source *source = &plan->sources[step->first + i];
    PRINT(i ? "," : "");
    if (source->message < 0)
      PRINT(" slot %d", source->slot);
    else
      PRINT(" rank %d slot %d", plan->messages[source->message].peer, plan->messages[source->message].slot);
  }
}

static void print_step(page *sheet, const bny_plan *plan, const bny_step *step) {
  const bny_message *message = step->kind == BNY_STEP_WAIT ? &plan->messages[step->message] : NULL;
  switch (step->kind) {
  case BNY_STEP_COPY:
  case BNY_STEP_MERGE:
    PRINT(step->kind == BNY_STEP_COPY ? "copy    " : "merge   ");
    print_slice(sheet, plan, &step->slice);
    PRINT(" to slot %d (%zu bytes at %zu)", step->slot, plan->slots[step->slot].bytes, plan->slots[step->slot].offset);
    if (step->kind == BNY_STEP_MERGE) print_sources(sheet, plan, step);
    break;
  case BNY_STEP_SEND:
    PRINT("send    slot %d to rank%s", step->slot, step->count > 1 ? "s" : "");
    for (int32_t i = 0; i < step->count; i++) PRINT("%s %d", i ? "," : "", plan->peers[step->first + i]);
    break;
  case BNY_STEP_WAIT:
    PRINT("wait    rank %d slot %d (", message->peer, message->slot);
    print_slice(sheet, plan, &message->what.slice);
    PRINT(", %zu bytes at %zu)", message->what.bytes, message->what.offset);
    break;
  case BNY_STEP_DELIVER:
    PRINT("deliver ");
    print_slice(sheet, plan, &step->slice);
    print_sources(sheet, plan, step);
    break;
  }
  PRINT("\n");
}

#undef PRINT

size_t bny_plan_print_head(const bny_plan *plan, char *text, size_t bytes) {
  size_t length = 0;
  if (bytes > 0) text[0] = 0;
  bny_append(text, bytes, &length, "%s of rank %d of %d by %s", bny_collective_name(plan->collective), plan->rank,
             plan->nranks, plan->algorithm);
  if (plan->payload->motion == BNY_MOTION_MERGE)
    bny_append(text, bytes, &length, ", %s wire%s", bny_wire_formats[plan->wire].name,
               plan->round_nodes ? ", every merge rounded" : "");
  bny_append(text, bytes, &length, ": %d slots, %zu bytes of outbox\n", plan->nslots, plan->outbox_bytes);
  return length;
}

size_t bny_plan_print(const bny_plan *plan, char *text, size_t bytes) {
  page sheet = {.text = text, .bytes = bytes, .length = bny_plan_print_head(plan, text, bytes)};
  for (int32_t step = 0; step < plan->nsteps; step++) {
    bny_append(text, bytes, &sheet.length, "%3d ", step);
    print_step(&sheet, plan, &plan->steps[step]);
  }
  return sheet.length;
}
