/* SPDX-License-Identifier: Apache-2.0
 * Tests that devices run exactly the plan. Programs of all ranks, and the direct form without a program, are translated
 * back into plans, which the prover must accept. Inboxes are checked too: a sender writes where its receiver reads, and
 * no two messages overlap. */
#include "device/program.h"
#include "plan/builder.h"
#include "plan/slice.h"
#include "tests/plan/plan_util.h"
#include "tests/support/suite.h"

/* The prover accepts at most BNY_MERGE_SOURCES_MAX sources in a step. */
enum { RANKS_MAX = BNY_MERGE_SOURCES_MAX, PROGRAM_RANKS_MAX = 12 };

/* A plan under construction. Lists are as large as they can get. */
typedef struct replay {
  bny_plan plan;
  const bny_program *program;
  int32_t *slot_of; /* [nslots]: the slot's number in the plan that the program was made from */
} replay;

static const bny_program_step *steps_of(const bny_program *program) { return (const bny_program_step *)(program + 1); }

static const bny_program_endpoint *places_of(const bny_program *program) {
  return (const bny_program_endpoint *)(steps_of(program) + program->nsteps);
}

static void *room(int32_t count, size_t size) {
  void *made = calloc((size_t)count + 1, size);
  ck_assert_ptr_nonnull(made);
  return made;
}

static bny_step *add_step(bny_plan *plan, bny_step step) {
  plan->steps[plan->nsteps] = step;
  return &plan->steps[plan->nsteps++];
}

static int32_t add_slot(const bny_request *request, replay *to, const bny_slice *slice, int32_t number) {
  bny_plan *plan = &to->plan;
  size_t bytes = bny_slice_wire_bytes(request, slice);
  plan->slots[plan->nslots] = (bny_slot){.slice = *slice, .offset = plan->outbox_bytes, .bytes = bytes};
  to->slot_of[plan->nslots] = number;
  plan->outbox_bytes += (bytes + 63) / 64 * 64;
  return plan->nslots++;
}

static int32_t slot_numbered(const replay *of, int32_t number) {
  for (int32_t i = 0; i < of->plan.nslots; i++)
    if (of->slot_of[i] == number) return i;
  ck_abort_msg("rank %d writes no slot %d", of->plan.rank, number);
  return -1;
}

static bny_plan plan_for(const bny_request *request, const bny_plan *from, int32_t rank, int32_t size) {
  return (bny_plan){.collective = request->call.collective,
                    .payload = bny_payload_of(&request->call),
                    .rank = rank,
                    .nranks = request->nranks,
                    .value_dim = request->call.value_dim,
                    .wire = request->call.wire,
                    .roundings = from->roundings,
                    .round_nodes = from->round_nodes,
                    .algorithm = from->algorithm,
                    .slots = room(size, sizeof(bny_slot)),
                    .messages = room(size, sizeof(bny_message)),
                    .sources = room(size, sizeof(bny_source)),
                    .peers = room(size, sizeof(int32_t)),
                    .steps = room(4 * size, sizeof(bny_step))};
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static bny_slice slice_of(const bny_request *request, const bny_program_step *step) {
  bny_slice slice = bny_slice_whole(request);
  if (bny_call_has_rows(&request->call)) {
    slice.token0 = step->token0;
    slice.tokens = step->tokens;
    slice.head0 = step->head0;
    slice.heads = step->heads;
  } else if (request->call.collective != BNY_BARRIER) {
    slice.byte0 = step->byte0;
    slice.bytes = step->bytes;
  }
  return slice;
}

static void add_slots(const bny_request *request, replay *to) {
  for (int32_t i = 0; i < to->program->nsteps; i++) {
    const bny_program_step *step = &steps_of(to->program)[i];
    bny_slice slice = slice_of(request, step);
    if (step->kind != BNY_PROGRAM_DELIVER && step->ndestinations > 0)
      add_slot(request, to, &slice, places_of(to->program)[step->destinations].slot);
  }
}

/* Adds a source of a step, and a WAIT at the first use of a message. */
static bny_source add_source(replay *all, replay *to, const bny_program_endpoint *place) {
  bny_plan *plan = &to->plan;
  if (place->peer == plan->rank) return (bny_source){.slot = slot_numbered(to, place->slot), .message = -1};
  int32_t slot = slot_numbered(&all[place->peer], place->slot), i = 0;
  while (i < plan->nmessages && (plan->messages[i].peer != place->peer || plan->messages[i].slot != slot)) i++;
  if (i == plan->nmessages) {
    plan->messages[plan->nmessages++] =
        (bny_message){.peer = place->peer, .slot = slot, .what = all[place->peer].plan.slots[slot]};
    add_step(plan, (bny_step){.kind = BNY_STEP_WAIT, .message = i});
  }
  return (bny_source){.message = i};
}

static void add_send(replay *to, const bny_program_step *step, int32_t slot) {
  bny_plan *plan = &to->plan;
  int32_t first = plan->npeers;
  for (int32_t i = 0; i < step->ndestinations; i++) {
    const bny_program_endpoint *place = &places_of(to->program)[step->destinations + i];
    ck_assert_int_eq(place->slot, to->slot_of[slot]);
    if (place->peer != plan->rank) plan->peers[plan->npeers++] = place->peer;
  }
  if (plan->npeers > first)
    add_step(plan, (bny_step){.kind = BNY_STEP_SEND, .slot = slot, .first = first, .count = plan->npeers - first});
}

static void add_program_step(const bny_request *request, replay *all, replay *to, const bny_program_step *step) {
  bny_plan *plan = &to->plan;
  bool signals = request->call.collective == BNY_BARRIER, delivers = step->kind == BNY_PROGRAM_DELIVER;
  if (!delivers && step->ndestinations == 0) return; /* nobody reads it */
  bny_step made = {.kind = step->kind == BNY_PROGRAM_COPY    ? BNY_STEP_COPY
                           : step->kind == BNY_PROGRAM_MERGE ? BNY_STEP_MERGE
                                                             : BNY_STEP_DELIVER,
                   .first = plan->nsources,
                   .slice = slice_of(request, step)};
  for (int32_t i = 0; i < step->nsources && step->kind != BNY_PROGRAM_COPY; i++) {
    bny_source source = add_source(all, to, &places_of(to->program)[step->sources + i]);
    plan->sources[plan->nsources++] = source;
  }
  made.count = plan->nsources - made.first;
  if (!delivers) made.slot = slot_numbered(to, places_of(to->program)[step->destinations].slot);
  if (!signals) add_step(plan, made);
  if (!delivers) add_send(to, step, made.slot);
}

/* ---- inboxes ----------------------------------------------------------------------------------------------------- */

typedef struct region {
  uint64_t begin, end;
} region;

/* Checks that `receiver` reads all that `sender` writes into its inbox, and that nothing overlaps it. */
static void check_inbox(const replay *all, int32_t nranks, int32_t receiver) {
  region taken[4096];
  int count = 0;
  for (int32_t sender = 0; sender < nranks; sender++) {
    const replay *from = &all[sender];
    for (int32_t i = 0; i < from->program->nsteps; i++) {
      const bny_program_step *step = &steps_of(from->program)[i];
      if (step->kind == BNY_PROGRAM_DELIVER) continue;
      for (int32_t d = 0; d < step->ndestinations; d++) {
        const bny_program_endpoint *to = &places_of(from->program)[step->destinations + d];
        if (to->peer != receiver) continue;
        region mine = {.begin = to->offset};
        uint64_t units = (uint64_t)step->tokens * (uint64_t)step->heads * (uint64_t)from->program->shape.chunks;
        mine.end = mine.begin + units * from->program->shape.unit_bytes;
        ck_assert_msg(mine.end <= from->program->inbox_bytes, "rank %d writes beyond an inbox", sender);
        for (int k = 0; k < count; k++)
          ck_assert_msg(mine.end <= taken[k].begin || mine.begin >= taken[k].end,
                        "messages overlap in the inbox of rank %d", receiver);
        ck_assert_int_lt(count, (int)(sizeof taken / sizeof taken[0]));
        taken[count++] = mine;
        for (int32_t j = 0; j < all[receiver].program->nendpoints; j++) {
          const bny_program_endpoint *at = &places_of(all[receiver].program)[j];
          bool is_source = false;
          for (int32_t s = 0; s < all[receiver].program->nsteps; s++) {
            const bny_program_step *reader = &steps_of(all[receiver].program)[s];
            is_source = is_source || (j >= reader->sources && j < reader->sources + reader->nsources);
          }
          if (!is_source || at->peer != sender || at->slot != to->slot) continue;
          ck_assert_msg(at->offset == to->offset && at->signal == to->signal && at->token0 == to->token0 &&
                            at->head0 == to->head0 && at->heads == to->heads,
                        "rank %d does not read slot %d where rank %d writes it", receiver, to->slot, sender);
        }
      }
    }
  }
}

/* ---- the proof --------------------------------------------------------------------------------------------------- */

static void release(replay *all, int32_t nranks) {
  for (int32_t rank = 0; rank < nranks; rank++) {
    bny_plan *plan = &all[rank].plan;
    free(plan->slots), free(plan->messages), free(plan->sources), free(plan->peers), free(plan->steps);
    free(all[rank].slot_of);
    free((void *)all[rank].program);
  }
}

static banyan_status prove(const bny_request *request, replay *all) {
  const bny_plan *plans[RANKS_MAX];
  for (int32_t rank = 0; rank < request->nranks; rank++) plans[rank] = &all[rank].plan;
  return bny_plan_prove(request, plans);
}

/* Returns BANYAN_ERR_UNSUPPORTED if devices do not run the request. `break_it` swaps two sources of a merge. */
static banyan_status replay_programs(const bny_request *request, const bny_device_settings *settings, bool break_it) {
  replay all[RANKS_MAX] = {0};
  bny_plan *from = NULL;
  banyan_status status = bny_plan_make(request, 0, &from);
  bny_request named = *request;
  for (int32_t rank = 0; rank < request->nranks && status == BANYAN_OK; rank++) {
    bny_program *program = NULL;
    if (!named.algorithm) named.algorithm = from->algorithm;
    status = bny_device_program_make(&named, rank, settings, &program);
    if (status != BANYAN_OK) break;
    int32_t size = program->nsteps + program->nendpoints;
    all[rank] = (replay){plan_for(request, from, rank, size), program, room(size, sizeof(int32_t))};
    add_slots(request, &all[rank]);
  }
  for (int32_t rank = 0; rank < request->nranks && status == BANYAN_OK; rank++)
    for (int32_t i = 0; i < all[rank].program->nsteps; i++)
      add_program_step(request, all, &all[rank], &steps_of(all[rank].program)[i]);
  for (int32_t rank = 0; rank < request->nranks && status == BANYAN_OK; rank++) check_inbox(all, request->nranks, rank);
  for (int32_t i = 0; break_it && i < all[0].plan.nsteps; i++) {
    const bny_step *step = &all[0].plan.steps[i];
    if (step->count < 3 || step->kind == BNY_STEP_SEND) continue;
    bny_source *sources = &all[0].plan.sources[step->first], first = sources[0];
    sources[0] = sources[2];
    sources[2] = first;
    break;
  }
  if (status == BANYAN_OK) status = prove(request, all);
  release(all, request->nranks);
  bny_plan_free(from);
  return status;
}

/* Translates the direct form: all ranks send an owner's rows to it, and the owner merges them in the order of ranks. */
static banyan_status replay_direct(const bny_request *request, const bny_device_settings *settings) {
  replay all[RANKS_MAX] = {0};
  bny_oneshot what;
  bny_protocol protocol;
  bny_arena_sizes needs;
  bny_plan *from = NULL;
  ck_assert_int_eq(bny_plan_make(request, 0, &from), BANYAN_OK);
  ck_assert_int_eq(from->form, BNY_FORM_DIRECT);
  ck_assert_int_eq(bny_device_oneshot_make(request, settings, &what, &protocol, &needs), BANYAN_OK);
  for (int32_t rank = 0; rank < request->nranks; rank++) {
    all[rank] = (replay){plan_for(request, from, rank, 2 * RANKS_MAX), NULL, room(2 * RANKS_MAX, sizeof(int32_t))};
    bny_plan *plan = &all[rank].plan;
    for (int32_t i = 1; i <= request->nranks; i++) {
      int32_t owner = (rank + i) % request->nranks;
      bny_slice rows = {what.shape.token0, what.shape.tokens, what.shape.head0, what.shape.heads, 0, 0};
      if (what.scatter == BANYAN_SCATTER_ROOT && owner != what.root) rows.tokens = 0;
      if (what.scatter == BANYAN_SCATTER_HEADS)
        rows.head0 = what.first[owner], rows.heads = what.first[owner + 1] - what.first[owner];
      if (what.scatter == BANYAN_SCATTER_TOKENS)
        rows.token0 = what.first[owner], rows.tokens = what.first[owner + 1] - what.first[owner];
      if (bny_slice_is_empty(request, &rows)) continue;
      ck_assert_int_le((int)(bny_slice_rows(&rows) * what.shape.chunks), what.units_max);
      int32_t slot = add_slot(request, &all[rank], &rows, owner);
      add_step(plan, (bny_step){.kind = BNY_STEP_COPY, .slot = slot, .slice = rows});
      if (owner == rank) continue;
      plan->peers[plan->npeers] = owner;
      add_step(plan, (bny_step){.kind = BNY_STEP_SEND, .slot = slot, .first = plan->npeers++, .count = 1});
    }
  }
  for (int32_t rank = 0; rank < request->nranks; rank++) {
    bny_plan *plan = &all[rank].plan;
    bool owns = false;
    for (int32_t i = 0; i < plan->nslots; i++) owns = owns || all[rank].slot_of[i] == rank;
    for (int32_t peer = 0; peer < request->nranks && owns; peer++)
      plan->sources[plan->nsources++] =
          add_source(all, &all[rank], &(bny_program_endpoint){.peer = peer, .slot = rank});
    if (owns)
      add_step(plan, (bny_step){.kind = BNY_STEP_DELIVER,
                                .count = plan->nsources,
                                .slice = plan->slots[slot_numbered(&all[rank], rank)].slice});
  }
  banyan_status status = prove(request, all);
  release(all, request->nranks);
  bny_plan_free(from);
  return status;
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static const bny_device_settings settings_of[] = {
    {.protocol = BNY_PROTOCOL_LL16},
    {.protocol = BNY_PROTOCOL_LL128, .lines_whole = true},
    {.protocol = BNY_PROTOCOL_SIMPLE},
    {.protocol = BNY_PROTOCOL_COUNT, .lines_whole = true},
};
enum { SETTINGS = sizeof settings_of / sizeof settings_of[0], ROUNDS = 3 };

static void name_of(const bny_algorithm *algorithm, char *name, size_t bytes) {
  size_t length = 0;
  bny_algorithm_print(algorithm, name, bytes, &length);
  for (char *at = name; *at; at++)
    if (*at == ' ') *at = '_';
}

static bny_request random_request(uint64_t *random, int32_t nranks, const char *name) {
  int32_t tokens = 1 + random_below(random, 5), heads = 1 + random_below(random, 20);
  bny_request request = combine_of(nranks, name, (banyan_scatter)random_below(random, 4), tokens, heads,
                                   random_below(random, 3) ? random_below(random, 70) : 512);
  request.call.order = (banyan_order)random_below(random, 2);
  request.call.wire = (bny_wire)random_below(random, BNY_WIRE_COUNT);
  request.call.root = request.call.scatter == BANYAN_SCATTER_ROOT ? random_below(random, nranks) : 0;
  if (random_below(random, 3) == 0) {
    request.token0 = random_below(random, tokens);
    request.tokens = 1 + random_below(random, tokens - request.token0);
    request.head0 = random_below(random, heads);
    request.heads = 1 + random_below(random, heads - request.head0);
  }
  return request;
}

TEST_RANGE(programs_of_combines_are_proved, 1, PROGRAM_RANKS_MAX + 1) {
  int32_t nranks = _i;
  uint64_t random = (uint64_t)nranks;
  int proved = 0;
  for (int a = 0; bny_algorithms[a]; a++)
    for (int round = 0; round < ROUNDS * SETTINGS; round++) {
      char name[64];
      name_of(bny_algorithms[a], name, sizeof name);
      bny_request request = random_request(&random, nranks, name);
      if (bny_algorithms[a]->reject(&request)) continue;
      ck_assert_msg(replay_programs(&request, &settings_of[round % SETTINGS], false) == BANYAN_OK, "%s of %d ranks: %s",
                    name, nranks, banyan_last_error());
      proved++;
    }
  ck_assert_int_gt(proved, 0);
}

/* Sets all fields but the counts, for a call or a part of one. */
static void set_heads(uint64_t *random, bny_request *request) {
  for (int32_t i = 0; i < request->nranks; i++) request->call.all_heads += (int32_t)request->call.counts[i];
  request->call.all_tokens = 1 + random_below(random, 6);
  request->token0 = random_below(random, request->call.all_tokens);
  request->tokens = request->call.all_tokens - request->token0;
  request->head0 = random_below(random, request->call.all_heads + 1);
  request->heads = request->call.all_heads - request->head0;
  request->call.dim = 1 + random_below(random, 300);
  request->call.dtype = BANYAN_BF16;
}

TEST_RANGE(programs_of_bytes_are_proved, 1, PROGRAM_RANKS_MAX + 1) {
  int32_t nranks = _i;
  uint64_t random = (uint64_t)nranks + 100;
  for (int collective = BNY_ALLGATHER; collective <= BNY_BARRIER; collective++)
    for (int a = 0; bny_algorithms[a]; a++)
      for (int round = 0; round < ROUNDS && collective != BNY_SELECT; round++) { /* devices have no selection */
        char name[64];
        size_t counts[RANKS_MAX];
        name_of(bny_algorithms[a], name, sizeof name);
        bny_request request = request_of((bny_collective)collective, nranks, name);
        bool heads = collective == BNY_ALLGATHER_HEADS;
        for (int32_t i = 0; i < nranks; i++) counts[i] = (size_t)random_below(&random, heads ? 5 : 5000);
        if (bny_call_gathers(&request.call)) request.call.counts = counts;
        if (heads)
          set_heads(&random, &request);
        else if (collective != BNY_BARRIER && collective != BNY_ALLGATHER)
          request.call.bytes = (size_t)random_below(&random, 20000);
        if (collective == BNY_SHIFT) request.call.distance = random_below(&random, nranks);
        if (collective == BNY_BROADCAST) request.call.root = random_below(&random, nranks);
        if (bny_algorithms[a]->reject(&request)) continue;
        ck_assert_msg(replay_programs(&request, &settings_of[round], false) == BANYAN_OK, "%s %s of %d ranks: %s", name,
                      bny_collective_name(request.call.collective), nranks, banyan_last_error());
      }
}

TEST_RANGE(the_direct_form_is_proved, 1, RANKS_MAX + 1) {
  int32_t nranks = _i;
  uint64_t random = (uint64_t)nranks + 200;
  for (int round = 0; round < 60; round++) {
    bny_request request = random_request(&random, nranks, "oneshot");
    if (!bny_request_may_be_direct(&request)) continue;
    ck_assert_msg(replay_direct(&request, &settings_of[round % SETTINGS]) == BANYAN_OK, "%d ranks: %s", nranks,
                  banyan_last_error());
  }
}

TEST(another_order_of_sources_is_rejected) {
  bny_request request = combine_of(4, "oneshot", BANYAN_SCATTER_NONE, 2, 4, 16);
  ck_assert_int_eq(replay_programs(&request, &settings_of[0], false), BANYAN_OK);
  ck_assert_int_eq(replay_programs(&request, &settings_of[0], true), BANYAN_ERR_STATE);
}

int main(void) { return suite_main(suite_of("program replay", 60)); }
