/* SPDX-License-Identifier: Apache-2.0
 * The prover runs the plans of all ranks symbolically. The value of a slot is an expression (prove.h), the same
 * for all its rows because one step writes it. Steps depend on each other only through slots that are written once and
 * sends that happen once, so one schedule proves all. Each rank runs as far as it can, and again when its message has
 * been sent. */
#include "tools/prove/prove.h"

#include "plan/slice.h"
#include "base/status.h"

typedef struct rank_state {
  int32_t *slots;   /* expression, or BNY_EXPRESSION_NONE: not written */
  int32_t *arrived; /* expression of each message, or NONE: not arrived */
  bny_slice input, owned;
  int64_t rows;        /* delivered rows; bytes, where slices are bytes */
  int64_t ndeliveries; /* index of its next delivery */
  uint64_t *known;     /* barrier: bit r is set once this rank knows that rank r has begun */
  uint64_t *sent;      /* barrier: `known` as of each slot's send */
} rank_state;

typedef struct proof_state {
  const bny_request *request;
  const bny_plan *const *plans;
  rank_state *ranks;
  bny_expressions expressions;
  bny_arrivals arrivals;
  bny_ready ready;
  bny_delivery *deliveries; /* by rank and step */
  int64_t ndeliveries;
  int32_t words;     /* words of a set of ranks */
  int32_t canonical; /* the expression that every delivery must be, or BNY_EXPRESSION_NONE */
} proof_state;

static int64_t size_of(const proof_state *proof, const bny_slice *slice) {
  return bny_call_has_rows(&proof->request->call) ? bny_slice_rows(slice) : (int64_t)slice->bytes;
}

static banyan_status source_value(const proof_state *proof, const bny_plan *plan, int32_t step,
                                  const bny_source *source, int32_t *value) {
  const rank_state *state = &proof->ranks[plan->rank];
  *value = source->message < 0 ? state->slots[source->slot] : state->arrived[source->message];
  if (*value != BNY_EXPRESSION_NONE) return BANYAN_OK;
  if (source->message < 0) return bny_plan_fail(plan, step, "it reads slot %d before that is written", source->slot);
  return bny_plan_fail(plan, step, "it reads slot %d of rank %d before it has waited for it",
                       plan->messages[source->message].slot, plan->messages[source->message].peer);
}

/* Merges the step's sources as a tree of neighbour pairs. *value is rounded only as round_nodes says. */
static banyan_status merge_value(proof_state *proof, const bny_plan *plan, int32_t number, int32_t *value) {
  const bny_step *step = &plan->steps[number];
  int32_t values[BNY_MERGE_SOURCES_MAX], twice = -1;
  for (int32_t i = 0; i < step->count; i++) {
    banyan_status status = source_value(proof, plan, number, &plan->sources[step->first + i], &values[i]);
    if (status != BANYAN_OK) return status;
  }
  for (int32_t count = step->count; count > 1; count = (count + 1) / 2) {
    for (int32_t i = 0; i + 1 < count; i += 2) {
      int32_t pair = bny_expressions_merge(&proof->expressions, values[i], values[i + 1], plan->round_nodes, &twice);
      if (pair == BNY_EXPRESSION_TWICE)
        return bny_plan_fail(plan, number, "it merges the contribution of rank %d twice", twice);
      values[i / 2] = pair;
    }
    if (count % 2) values[count / 2] = values[count - 1];
  }
  *value = values[0];
  return BANYAN_OK;
}

static banyan_status write_slot(proof_state *proof, const bny_plan *plan, int32_t number, int32_t value) {
  const bny_step *step = &plan->steps[number];
  bool lossy = plan->payload->motion == BNY_MOTION_MERGE && bny_wire_formats[plan->wire].error_bound > 0;
  int32_t *slot = &proof->ranks[plan->rank].slots[step->slot];
  if (*slot != BNY_EXPRESSION_NONE) return bny_plan_fail(plan, number, "slot %d is written a second time", step->slot);
  *slot = lossy ? bny_expressions_round(&proof->expressions, value) : value;
  return BANYAN_OK;
}

static banyan_status run_copy(proof_state *proof, const bny_plan *plan, int32_t number) {
  if (!bny_slice_within(&plan->steps[number].slice, &proof->ranks[plan->rank].input))
    return bny_plan_fail(plan, number, "it copies what is not this rank's input");
  return write_slot(proof, plan, number, plan->rank);
}

static banyan_status run_send(proof_state *proof, const bny_plan *plan, int32_t number) {
  const bny_step *step = &plan->steps[number];
  if (proof->ranks[plan->rank].slots[step->slot] == BNY_EXPRESSION_NONE && plan->collective != BNY_BARRIER)
    return bny_plan_fail(plan, number, "it sends slot %d before that is written", step->slot);
  for (int32_t i = 0; i < step->count; i++) {
    int32_t peer = plan->peers[step->first + i];
    if (!bny_arrivals_add(&proof->arrivals, plan->rank, step->slot, peer))
      return bny_plan_fail(plan, number, "it sends slot %d to rank %d a second time", step->slot, peer);
    bny_ready_wake(&proof->ready, proof->plans[peer], plan->rank, step->slot);
  }
  const rank_state *state = &proof->ranks[plan->rank];
  for (int32_t word = 0; state->known && word < proof->words; word++)
    state->sent[(size_t)step->slot * (size_t)proof->words + (size_t)word] = state->known[word];
  return BANYAN_OK;
}

static banyan_status run_wait(proof_state *proof, const bny_plan *plan, int32_t number, bool *blocked) {
  int32_t index = plan->steps[number].message;
  const bny_message *message = &plan->messages[index];
  bny_arrival *arrival = bny_arrivals_find(&proof->arrivals, message->peer, message->slot, plan->rank);
  if (!arrival) {
    *blocked = true;
    return BANYAN_OK;
  }
  if (arrival->taken)
    return bny_plan_fail(plan, number, "it waits for slot %d of rank %d a second time", message->slot, message->peer);
  arrival->taken = true;
  const rank_state *state = &proof->ranks[plan->rank], *sender = &proof->ranks[message->peer];
  state->arrived[index] = sender->slots[message->slot];
  for (int32_t word = 0; state->known && word < proof->words; word++)
    state->known[word] |= sender->sent[(size_t)message->slot * (size_t)proof->words + (size_t)word];
  return BANYAN_OK;
}

static banyan_status check_value(const proof_state *proof, const bny_plan *plan, int32_t number, int32_t value) {
  const bny_slice *slice = &plan->steps[number].slice;
  if (!bny_call_merges(&proof->request->call)) {
    return bny_slice_within(slice, &proof->ranks[value].input)
               ? BANYAN_OK
               : bny_plan_fail(plan, number, "it delivers what is of rank %d as another's", value);
  }
  int32_t missing = bny_expressions_missing(&proof->expressions, value);
  if (missing >= 0)
    return bny_plan_fail(plan, number, "it delivers rows that lack the contribution of rank %d", missing);
  int32_t roundings = proof->expressions.nodes[value].roundings;
  if (plan->roundings > 0 && roundings > plan->roundings)
    return bny_plan_fail(plan, number, "it delivers rows that were rounded %d times, and the plan says %d", roundings,
                         plan->roundings);
  if (proof->canonical != BNY_EXPRESSION_NONE && value != proof->canonical)
    return bny_plan_fail(plan, number, "it delivers another expression than the canonical one");
  return BANYAN_OK;
}

static banyan_status run_deliver(proof_state *proof, const bny_plan *plan, int32_t number) {
  const bny_slice *slice = &plan->steps[number].slice;
  rank_state *state = &proof->ranks[plan->rank];
  int32_t value = BNY_EXPRESSION_NONE;
  banyan_status status = merge_value(proof, plan, number, &value);
  if (status != BANYAN_OK) return status;
  if (!bny_slice_within(slice, &state->owned) || size_of(proof, slice) == 0)
    return bny_plan_fail(plan, number, "it delivers what this rank does not own, or nothing");
  state->rows += size_of(proof, slice);
  proof->deliveries[state->ndeliveries++] = (bny_delivery){.rank = plan->rank, .step = number, .value = value};
  return check_value(proof, plan, number, value);
}

static banyan_status run_step(proof_state *proof, const bny_plan *plan, int32_t number, bool *blocked) {
  int32_t value = BNY_EXPRESSION_NONE;
  banyan_status status;
  switch (plan->steps[number].kind) {
  case BNY_STEP_COPY: return run_copy(proof, plan, number);
  case BNY_STEP_MERGE:
    status = merge_value(proof, plan, number, &value);
    return status == BANYAN_OK ? write_slot(proof, plan, number, value) : status;
  case BNY_STEP_SEND: return run_send(proof, plan, number);
  case BNY_STEP_WAIT: return run_wait(proof, plan, number, blocked);
  case BNY_STEP_DELIVER: return run_deliver(proof, plan, number);
  }
  return BANYAN_OK;
}

/* Runs each rank as far as it can, and again when its message has been sent. */
static banyan_status run_all(proof_state *proof) {
  int32_t *next = proof->ready.next;
  for (int32_t rank = bny_ready_take(&proof->ready); rank >= 0; rank = bny_ready_take(&proof->ready)) {
    const bny_plan *plan = proof->plans[rank];
    bool blocked = false;
    while (next[rank] < plan->nsteps && !blocked) {
      banyan_status status = run_step(proof, plan, next[rank], &blocked);
      if (status != BANYAN_OK) return status;
      if (!blocked) next[rank]++;
    }
    proof->ready.waits[rank] = blocked;
  }
  for (int32_t rank = 0; rank < proof->request->nranks; rank++) {
    const bny_plan *plan = proof->plans[rank];
    if (next[rank] == plan->nsteps) continue;
    const bny_message *message = &plan->messages[plan->steps[next[rank]].message];
    return bny_plan_fail(plan, next[rank], "deadlock: slot %d of rank %d is never sent to it", message->slot,
                         message->peer);
  }
  return BANYAN_OK;
}

static banyan_status check_amounts(const proof_state *proof) {
  for (int32_t rank = 0; rank < proof->request->nranks; rank++) {
    const rank_state *state = &proof->ranks[rank];
    if (state->rows != size_of(proof, &state->owned))
      return bny_plan_fail(proof->plans[rank], -1, "it delivers %lld %s, but owns %lld", (long long)state->rows,
                           bny_call_has_rows(&proof->request->call) ? "rows" : "bytes",
                           (long long)size_of(proof, &state->owned));
  }
  return BANYAN_OK;
}

/* A rank leaves a barrier only after all have entered. */
static banyan_status check_known(const proof_state *proof) {
  int32_t nranks = proof->request->nranks;
  for (int32_t rank = 0; proof->ranks[0].known && rank < nranks; rank++)
    for (int32_t word = 0; word < proof->words; word++) {
      uint64_t all = nranks - 64 * word >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << (nranks - 64 * word)) - 1;
      uint64_t missing = all & ~proof->ranks[rank].known[word];
      if (missing)
        return bny_plan_fail(proof->plans[rank], -1, "it leaves the barrier without knowing that rank %d has entered",
                             64 * word + __builtin_ctzll(missing));
    }
  return BANYAN_OK;
}

static int32_t send_of(const bny_plan *plan, const bny_arrival *arrival) {
  for (int32_t number = 0; number < plan->nsteps; number++) {
    const bny_step *step = &plan->steps[number];
    for (int32_t i = 0; step->kind == BNY_STEP_SEND && step->slot == arrival->slot && i < step->count; i++)
      if (plan->peers[step->first + i] == arrival->receiver) return number;
  }
  return -1;
}

static banyan_status check_taken(const proof_state *proof) {
  for (uint64_t i = 0; i <= proof->arrivals.mask; i++) {
    const bny_arrival *arrival = &proof->arrivals.entries[i];
    if (arrival->sender < 0 || arrival->taken) continue;
    const bny_plan *plan = proof->plans[arrival->sender];
    return bny_plan_fail(plan, send_of(plan, arrival), "slot %d is sent to rank %d, which never waits for it",
                         arrival->slot, arrival->receiver);
  }
  return BANYAN_OK;
}

static int32_t make_canonical(proof_state *proof) {
  int32_t count = proof->request->nranks, unused, *level = tool_new((size_t)count, sizeof *level);
  bool rounded = bny_wire_formats[proof->request->call.wire].error_bound > 0;
  for (int32_t rank = 0; rank < count; rank++) level[rank] = rank;
  for (; count > 1; count = (count + 1) / 2) {
    for (int32_t i = 0; i + 1 < count; i += 2)
      level[i / 2] = bny_expressions_merge(&proof->expressions, level[i], level[i + 1], rounded, &unused);
    if (count % 2) level[count / 2] = level[count - 1];
  }
  return level[0];
}

static void init_rank(proof_state *proof, const bny_plan *plan, rank_state *state) {
  state->input = bny_slice_input(proof->request, plan->rank);
  state->owned = bny_slice_owned(proof->request, plan->rank);
  state->ndeliveries = proof->ndeliveries;
  for (int32_t step = 0; step < plan->nsteps; step++)
    if (plan->steps[step].kind == BNY_STEP_DELIVER) proof->ndeliveries++;
  state->slots = tool_new((size_t)plan->nslots, sizeof *state->slots);
  state->arrived = tool_new((size_t)plan->nmessages, sizeof *state->arrived);
  for (int32_t i = 0; i < plan->nslots; i++) state->slots[i] = BNY_EXPRESSION_NONE;
  for (int32_t i = 0; i < plan->nmessages; i++) state->arrived[i] = BNY_EXPRESSION_NONE;
  if (plan->collective != BNY_BARRIER) return;
  state->known = tool_new((size_t)proof->words, sizeof *state->known);
  state->sent = tool_new((size_t)plan->nslots * (size_t)proof->words, sizeof *state->sent);
  state->known[plan->rank / 64] |= UINT64_C(1) << (plan->rank % 64);
}

static void init(proof_state *proof) {
  const bny_request *request = proof->request;
  int64_t sends = 0;
  proof->words = (request->nranks + 63) / 64;
  proof->ranks = tool_new((size_t)request->nranks, sizeof *proof->ranks);
  for (int32_t rank = 0; rank < request->nranks; rank++) {
    const bny_plan *plan = proof->plans[rank];
    for (int32_t step = 0; step < plan->nsteps; step++) /* several may send to one list of peers */
      if (plan->steps[step].kind == BNY_STEP_SEND) sends += plan->steps[step].count;
    init_rank(proof, plan, &proof->ranks[rank]);
  }
  proof->deliveries = tool_new((size_t)proof->ndeliveries, sizeof *proof->deliveries);
  proof->expressions = bny_expressions_make(request->nranks);
  proof->arrivals = bny_arrivals_make(sends);
  proof->ready = bny_ready_make(request->nranks);
  if (bny_call_merges(&request->call) && request->call.order == BANYAN_ORDER_CANONICAL)
    proof->canonical = make_canonical(proof);
}

banyan_status bny_plan_prove(const bny_request *request, const bny_plan *const *plans) {
  proof_state proof = {.request = request, .plans = plans, .canonical = BNY_EXPRESSION_NONE};
  size_t mark = tool_mark();
  banyan_status status = bny_plan_check(request, plans);
  if (status == BANYAN_OK) init(&proof);
  if (status == BANYAN_OK) status = run_all(&proof);
  if (status == BANYAN_OK) status = check_amounts(&proof);
  if (status == BANYAN_OK) status = bny_deliveries_check(request, plans, proof.deliveries, proof.ndeliveries);
  if (status == BANYAN_OK) status = check_known(&proof);
  if (status == BANYAN_OK) status = check_taken(&proof);
  tool_release(mark);
  return status;
}
