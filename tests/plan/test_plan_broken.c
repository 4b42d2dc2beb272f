/* SPDX-License-Identifier: Apache-2.0
 * The prover rejects broken plans and reports the fault. */
#include "tests/plan/plan_util.h"

/* ---- changes to plans -------------------------------------------------------------------------------------------- */

static int32_t step_find(const bny_plan *plan, bny_step_kind kind, int32_t skip) {
  for (int32_t i = 0; i < plan->nsteps; i++)
    if (plan->steps[i].kind == kind && skip-- == 0) return i;
  ck_abort_msg("rank %d has no such step", plan->rank);
  return -1;
}

static void step_remove(bny_plan *plan, int32_t step) {
  memmove(plan->steps + step, plan->steps + step + 1, (size_t)(plan->nsteps - step - 1) * sizeof *plan->steps);
  plan->nsteps--;
}

static void step_insert(bny_plan *plan, int32_t at, bny_step step) {
  bny_step *steps = realloc(plan->steps, (size_t)(plan->nsteps + 1) * sizeof *steps);
  ck_assert_ptr_nonnull(steps);
  plan->steps = steps;
  memmove(steps + at + 1, steps + at, (size_t)(plan->nsteps - at) * sizeof *steps);
  steps[at] = step;
  plan->nsteps++;
}

static void step_move(bny_plan *plan, int32_t from, int32_t to) {
  bny_step step = plan->steps[from];
  step_remove(plan, from);
  step_insert(plan, to, step);
}

static void sources_swap(bny_plan *plan, int32_t step) {
  bny_source *sources = plan->sources + plan->steps[step].first;
  bny_source first = sources[0];
  sources[0] = sources[1];
  sources[1] = first;
}

/* Returns the valid plans of all ranks. */
static bny_plan **sound(const bny_request *request) {
  bny_plan **plans = plans_make(request);
  ck_assert_msg(plans_prove(request, plans) == BANYAN_OK, "before it is broken: %s", banyan_last_error());
  return plans;
}

static void check_broken(const bny_request *request, bny_plan **plans, const char *text) {
  ck_assert_msg(plans_prove(request, plans) == BANYAN_ERR_STATE, "not rejected; expected \"%s\"", text);
  ck_assert_msg(strstr(banyan_last_error(), text) != NULL, "\"%s\" lacks \"%s\"", banyan_last_error(), text);
  plans_free(request, plans);
}

/* The statements break `plans`, and the proof fails with this text. */
#define BROKEN(request, text, ...)         \
  do {                                     \
    bny_plan **plans = sound(&(request));  \
    __VA_ARGS__;                           \
    check_broken(&(request), plans, text); \
  } while (0)

static bny_request oneshot(void) { return combine_of(4, "oneshot", BANYAN_SCATTER_NONE, 2, 8, 16); }

static bny_request twoshot(void) { return combine_of(4, "twoshot", BANYAN_SCATTER_NONE, 2, 8, 16); }

static bny_request lossy_twoshot(void) {
  bny_request request = twoshot();
  request.call.wire = BNY_WIRE_BF16;
  return request;
}

static bny_request canonical(void) {
  bny_request request = oneshot();
  request.call.order = BANYAN_ORDER_CANONICAL;
  return request;
}

static bny_request ring(void) { return combine_of(4, "ring", BANYAN_SCATTER_HEADS, 2, 8, 16); }

static bny_request barrier(void) { return request_of(BNY_BARRIER, 5, NULL); }

/* ---- sends and waits --------------------------------------------------------------------------------------------- */

static void wait_for_own_piece_of_peer(bny_plan **plans) {
  /* Rank 0 waits for a slot that rank 1 never sends (its own piece) instead of the result. */
  for (int32_t i = 0; i < plans[0]->nmessages; i++)
    if (plans[0]->messages[i].peer == 1 && plans[0]->messages[i].slot == 4) {
      plans[0]->messages[i].slot = 1;
      plans[0]->messages[i].what = plans[1]->slots[1];
    }
}

static void wait_in_a_circle(bny_plan **plans) {
  for (int rank = 0; rank < 4; rank++) {
    int32_t send = step_find(plans[rank], BNY_STEP_SEND, 0);
    step_move(plans[rank], send, step_find(plans[rank], BNY_STEP_WAIT, 2));
  }
}

static void send_twice(bny_plan **plans) {
  int32_t send = step_find(plans[3], BNY_STEP_SEND, 0);
  step_insert(plans[3], send, plans[3]->steps[send]);
}

static void wait_twice(bny_plan **plans) {
  int32_t wait = step_find(plans[3], BNY_STEP_WAIT, 0);
  step_insert(plans[3], wait, plans[3]->steps[wait]);
}

static void read_before_wait(bny_plan **plans) {
  step_move(plans[1], step_find(plans[1], BNY_STEP_DELIVER, 0), step_find(plans[1], BNY_STEP_WAIT, 2));
}

static void send_to_the_deaf(bny_plan **plans) {
  bny_step send = plans[1]->steps[step_find(plans[1], BNY_STEP_SEND, 0)];
  int32_t *peers = realloc(plans[1]->peers, (size_t)(plans[1]->npeers + 1) * sizeof *peers);
  ck_assert_ptr_nonnull(peers);
  plans[1]->peers = peers;
  send.first = plans[1]->npeers;
  send.count = 1;
  peers[plans[1]->npeers++] = 2;
  step_insert(plans[1], plans[1]->nsteps, send);
}

TEST(test_sends_and_waits) {
  bny_request one = oneshot(), two = twoshot(), root = combine_of(4, "oneshot", BANYAN_SCATTER_ROOT, 2, 8, 16);
  BROKEN(one, "rank 0, step 4 (wait): deadlock: slot 0 of rank 1",
         plans[1]->steps[step_find(plans[1], BNY_STEP_SEND, 0)].count--);
  BROKEN(one, "deadlock: slot 0 of rank 2", step_remove(plans[2], step_find(plans[2], BNY_STEP_SEND, 0)));
  BROKEN(two, "deadlock: slot 1 of rank 1", wait_for_own_piece_of_peer(plans));
  BROKEN(one, "deadlock", wait_in_a_circle(plans));
  BROKEN(one, "a second time", send_twice(plans));
  BROKEN(one, "a second time", wait_twice(plans));
  BROKEN(one, "before that is written", step_move(plans[1], step_find(plans[1], BNY_STEP_SEND, 0), 0));
  BROKEN(one, "before it has waited for it", read_before_wait(plans));
  BROKEN(root, "(send): slot 0 is sent to rank 2, which never waits for it", send_to_the_deaf(plans));
}

static void copy_the_bytes_of_another(bny_plan **plans) {
  /* Rank 0 publishes rank 1's range as its own, and every plan agrees. */
  plans[0]->slots[0].slice = plans[1]->slots[0].slice;
  for (int32_t i = 0; i < plans[0]->nsteps; i++)
    if (plans[0]->steps[i].kind == BNY_STEP_COPY) plans[0]->steps[i].slice = plans[0]->slots[0].slice;
  for (int32_t i = 0; i < plans[0]->nsteps; i++)
    if (plans[0]->steps[i].kind == BNY_STEP_DELIVER && plans[0]->sources[plans[0]->steps[i].first].message < 0)
      plans[0]->steps[i].slice = plans[0]->slots[0].slice;
  for (int32_t rank = 1; rank < 3; rank++)
    for (int32_t i = 0; i < plans[rank]->nmessages; i++)
      if (plans[rank]->messages[i].peer == 0) plans[rank]->messages[i].what = plans[0]->slots[0];
  for (int32_t rank = 1; rank < 3; rank++)
    for (int32_t i = 0; i < plans[rank]->nsteps; i++) {
      bny_step *step = &plans[rank]->steps[i];
      if (step->kind == BNY_STEP_DELIVER && plans[rank]->sources[step->first].message >= 0 &&
          plans[rank]->messages[plans[rank]->sources[step->first].message].peer == 0)
        step->slice = plans[0]->slots[0].slice;
    }
}

static void shift_to_itself(bny_plan **plans) {
  for (int32_t rank = 0; rank < 3; rank++)
    plans[rank]->steps[step_find(plans[rank], BNY_STEP_DELIVER, 0)].slice = plans[rank]->slots[0].slice;
  for (int32_t rank = 0; rank < 3; rank++)
    plans[rank]->sources[plans[rank]->steps[step_find(plans[rank], BNY_STEP_DELIVER, 0)].first] =
        (bny_source){.slot = 0, .message = -1};
}

static void skip_a_round(bny_plan **plans) {
  for (int32_t rank = 0; rank < 5; rank++) {
    step_remove(plans[rank], step_find(plans[rank], BNY_STEP_SEND, 2));
    step_remove(plans[rank], step_find(plans[rank], BNY_STEP_WAIT, 2));
  }
}

TEST(test_bytes_and_barrier) {
  size_t counts[3] = {64, 64, 64};
  bny_request gather = request_of(BNY_ALLGATHER, 3, "oneshot"), shift = request_of(BNY_SHIFT, 3, NULL);
  bny_request five = barrier(), four = request_of(BNY_BARRIER, 4, NULL);
  gather.call.counts = counts;
  shift.call.bytes = 64;
  shift.call.distance = 1;
  BROKEN(gather, "it copies what is not this rank's input", copy_the_bytes_of_another(plans));
  BROKEN(shift, "it delivers what this rank does not own", shift_to_itself(plans));
  BROKEN(five, "leaves the barrier without knowing that rank", skip_a_round(plans));
  BROKEN(four, "leaves the barrier without knowing that rank",
         step_remove(plans[2], step_find(plans[2], BNY_STEP_WAIT, 1)));
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void swap_on_all_ranks(bny_plan **plans) {
  for (int rank = 0; rank < 4; rank++) sources_swap(plans[rank], step_find(plans[rank], BNY_STEP_DELIVER, 0));
}

static void merge_twice(bny_plan **plans) {
  const bny_step *deliver = &plans[0]->steps[step_find(plans[0], BNY_STEP_DELIVER, 0)];
  plans[0]->sources[deliver->first + 1] = plans[0]->sources[deliver->first];
}

static void copy_over_merge(bny_plan **plans) {
  int32_t copy = step_find(plans[0], BNY_STEP_COPY, 0);
  step_insert(plans[0], plans[0]->nsteps, plans[0]->steps[copy]);
}

static void deliver_unrounded(bny_plan **plans) {
  /* The owner delivers from the partials, but the others get its result through the wire format. */
  const bny_step *merge = &plans[1]->steps[step_find(plans[1], BNY_STEP_MERGE, 0)];
  bny_step *deliver = &plans[1]->steps[step_find(plans[1], BNY_STEP_DELIVER, 0)];
  deliver->first = merge->first;
  deliver->count = merge->count;
}

static void deliver_once_more(bny_plan **plans) {
  step_insert(plans[0], plans[0]->nsteps, plans[0]->steps[step_find(plans[0], BNY_STEP_DELIVER, 0)]);
}

static void deliver_another_instead(bny_plan **plans) {
  int32_t first = step_find(plans[0], BNY_STEP_DELIVER, 0), second = step_find(plans[0], BNY_STEP_DELIVER, 1);
  plans[0]->steps[second] = plans[0]->steps[first];
}

static void deliver_nothing(bny_plan **plans) {
  plans[1]->steps[step_find(plans[1], BNY_STEP_DELIVER, 0)].slice.heads = 0;
}

TEST(test_values) {
  bny_request one = oneshot(), two = twoshot(), ordered = canonical(), lossy = lossy_twoshot(), owners = ring();
  BROKEN(one, "rank 3, step 5 (deliver): it delivers another expression than rank 0",
         sources_swap(plans[3], step_find(plans[3], BNY_STEP_DELIVER, 0)));
  BROKEN(ordered, "another expression than the canonical one", swap_on_all_ranks(plans));
  BROKEN(one, "it merges the contribution of rank 0 twice", merge_twice(plans));
  BROKEN(two, "lack the contribution of rank", plans[2]->steps[step_find(plans[2], BNY_STEP_MERGE, 0)].count--);
  BROKEN(two, "is written a second time", copy_over_merge(plans));
  BROKEN(lossy, "delivers another expression than rank", deliver_unrounded(plans));
  BROKEN(lossy, "rounding differs from the request", plans[1]->round_nodes = !plans[1]->round_nodes);
  BROKEN(one, "it delivers 0 rows, but owns 16", step_remove(plans[0], step_find(plans[0], BNY_STEP_DELIVER, 0)));
  BROKEN(two, "it delivers 12 rows, but owns 16", step_remove(plans[0], step_find(plans[0], BNY_STEP_DELIVER, 0)));
  BROKEN(one, "it delivers 32 rows, but owns 16", deliver_once_more(plans));
  BROKEN(two, "it delivers again what step", deliver_another_instead(plans));
  BROKEN(one, "it delivers 14 rows, but owns 16",
         plans[1]->steps[step_find(plans[1], BNY_STEP_DELIVER, 0)].slice.heads--);
  BROKEN(one, "or nothing", deliver_nothing(plans));
  BROKEN(owners, "does not hold the whole slice",
         plans[1]->steps[step_find(plans[1], BNY_STEP_DELIVER, 0)].slice.heads++);
  BROKEN(owners, "it delivers 0 rows, but owns 4", step_remove(plans[0], step_find(plans[0], BNY_STEP_DELIVER, 0)));
}

/* ---- form -------------------------------------------------------------------------------------------------------- */

static void too_many_sources(bny_plan **plans) {
  bny_step *deliver = &plans[0]->steps[step_find(plans[0], BNY_STEP_DELIVER, 0)];
  deliver->count = 65;
  plans[0]->nsources = 65;
  plans[0]->sources = realloc(plans[0]->sources, 65 * sizeof *plans[0]->sources);
  ck_assert_ptr_nonnull(plans[0]->sources);
  memset(plans[0]->sources, 0, 65 * sizeof *plans[0]->sources);
}

TEST(test_form) {
  bny_request one = oneshot(), two = twoshot();
  BROKEN(two, "slots overlap", plans[1]->slots[1].offset = plans[1]->slots[0].offset + 64);
  BROKEN(two, "not a multiple of 64", plans[1]->slots[1].offset += 4);
  BROKEN(two, "beyond the outbox", plans[1]->slots[0].offset = plans[1]->outbox_bytes);
  BROKEN(one, "bytes and 1 slots of an outbox", plans[1]->outbox_bytes = ((size_t)1 << 40) + 64);
  BROKEN(one, "are not those of its slice", plans[1]->slots[0].bytes -= 64);
  BROKEN(one, "message 0 is not what slot 0 of rank 3 holds", plans[0]->messages[0].what.offset += 64);
  BROKEN(one, "slot 77 of rank 3, which has 1", plans[0]->messages[0].slot = 77);
  BROKEN(one, "message 0 is of rank 0", plans[0]->messages[0].peer = 0);
  BROKEN(one, "it sends to rank 4", plans[0]->peers[0] = 4);
  BROKEN(one, "its peers are not in the list", plans[0]->steps[step_find(plans[0], BNY_STEP_SEND, 0)].count = 0);
  BROKEN(one, "slot 9 does not exist", plans[0]->steps[step_find(plans[0], BNY_STEP_COPY, 0)].slot = 9);
  BROKEN(one, "message -1 does not exist", plans[0]->steps[step_find(plans[0], BNY_STEP_WAIT, 0)].message = -1);
  BROKEN(one, "source 0 does not exist", plans[0]->sources[0] = (bny_source){.slot = 12, .message = -1});
  BROKEN(one, "it has 65 sources", too_many_sources(plans));
  BROKEN(one, "it does not write all of slot 0", plans[0]->steps[step_find(plans[0], BNY_STEP_COPY, 0)].slice.tokens--);
  BROKEN(one, "unknown kind 17", plans[0]->steps[0].kind = (bny_step_kind)17);
  BROKEN(one, "its hash differs from that of rank 0", plans[2]->hash++);
  BROKEN(one, "number 2 is of rank 1", plans[2]->rank = 1);
  BROKEN(one, "its wire format", plans[2]->wire = BNY_WIRE_F16);
}

/* Several sends may use one list of peers. The proof must end. */
static void send_much_to_the_deaf(bny_plan **plans) {
  bny_step send = plans[1]->steps[step_find(plans[1], BNY_STEP_SEND, 0)], copy = plans[1]->steps[0];
  bny_slot slot = plans[1]->slots[0];
  plans[1]->slots = realloc(plans[1]->slots, 40 * sizeof slot);
  ck_assert_ptr_nonnull(plans[1]->slots);
  for (int32_t i = plans[1]->nslots; i < 40; i++) {
    plans[1]->slots[i] = slot;
    plans[1]->slots[i].offset = plans[1]->outbox_bytes;
    plans[1]->outbox_bytes += (slot.bytes + 63) / 64 * 64;
    copy.slot = send.slot = plans[1]->nslots++;
    step_insert(plans[1], plans[1]->nsteps, copy);
    step_insert(plans[1], plans[1]->nsteps, send);
  }
}

TEST(test_many_sends) {
  bny_request one = oneshot();
  BROKEN(one, "never waits for it", send_much_to_the_deaf(plans));
}

/* ---- plans over plain memory ------------------------------------------------------------------------------------- */

/* Runs the plans of all ranks one step at a time in one thread, with CPU kernels. */
typedef struct replay_rank {
  const banyan_partial *in, *out;
} replay_rank;

typedef struct rank_state {
  const bny_plan *plan;
  char *outbox;
  bool *sent; /* [nslots] */
  int32_t next;
} rank_state;

static bny_wire_view view_of(const bny_plan *plan, const bny_slot *slot, char *outbox, const bny_slice *slice) {
  bny_wire_layout layout = bny_wire_layout_make(plan->wire, bny_slice_rows(&slot->slice), plan->value_dim);
  int64_t row = (int64_t)(slice->token0 - slot->slice.token0) * slot->slice.heads + slice->head0 - slot->slice.head0;
  char *at = outbox + slot->offset;
  size_t row_bytes = bny_wire_row_bytes(plan->wire, plan->value_dim);
  return (bny_wire_view){.m = (float *)(void *)(at + layout.m) + row,
                         .d = (float *)(void *)(at + layout.d) + row,
                         .n = at + layout.n + (size_t)row * row_bytes,
                         .token_stride = slot->slice.heads};
}

static bny_wire_view source_view(rank_state *all, const bny_plan *plan, const bny_source *source,
                                 const bny_slice *slice) {
  if (source->message < 0) return view_of(plan, &plan->slots[source->slot], all[plan->rank].outbox, slice);
  const bny_message *message = &plan->messages[source->message];
  return view_of(plan, &message->what, all[message->peer].outbox, slice);
}

/* Returns false on bad data. */
static bool run_step(rank_state *all, const bny_plan *plan, const bny_step *step, const replay_rank *rank) {
  const bny_kernels *kernels = bny_kernels_find("portable");
  bny_box box = {step->slice.tokens, step->slice.heads, plan->value_dim};
  bny_wire_view views[BNY_MERGE_SOURCES_MAX], to;
  if (step->kind == BNY_STEP_SEND) all[plan->rank].sent[step->slot] = true;
  if (step->kind == BNY_STEP_SEND || step->kind == BNY_STEP_WAIT) return true;
  if (step->kind != BNY_STEP_DELIVER)
    to = view_of(plan, &plan->slots[step->slot], all[plan->rank].outbox, &step->slice);
  if (step->kind == BNY_STEP_COPY)
    return kernels->encode(&box, rank->in, step->slice.token0, step->slice.head0, plan->wire, &to) < 0;
  for (int32_t i = 0; i < step->count; i++)
    views[i] = source_view(all, plan, &plan->sources[step->first + i], &step->slice);
  if (step->kind == BNY_STEP_MERGE)
    kernels->merge(&box, plan->wire, step->count, views, plan->round_nodes, &to);
  else
    kernels->merge_finish(&box, plan->wire, step->count, views, plan->round_nodes, rank->out, step->slice.token0,
                          step->slice.head0);
  return true;
}

static bool may_run(const rank_state *all, const bny_plan *plan, const bny_step *step) {
  if (step->kind != BNY_STEP_WAIT) return true;
  const bny_message *message = &plan->messages[step->message];
  return all[message->peer].sent[message->slot];
}

static bool run_all(rank_state *all, int32_t nranks, const replay_rank *ranks) {
  bool moved = true, done = false;
  while (moved && !done) {
    moved = false;
    done = true;
    for (int32_t rank = 0; rank < nranks; rank++) {
      const bny_plan *plan = all[rank].plan;
      for (; all[rank].next < plan->nsteps && may_run(all, plan, &plan->steps[all[rank].next]); all[rank].next++) {
        if (!run_step(all, plan, &plan->steps[all[rank].next], &ranks[rank])) return false;
        moved = true;
      }
      done = done && all[rank].next == plan->nsteps;
    }
  }
  return done;
}

/* Replays these plans of a combine, which the prover accepts. Each outbox begins as NaN. Returns false if a rank waits
 * for a message that never comes, or has bad data. */
static bool replay_plans(const bny_plan *const *plans, int32_t nranks, const replay_rank *ranks) {
  rank_state *all = calloc((size_t)nranks, sizeof *all);
  bool made = all;
  for (int32_t rank = 0; made && rank < nranks; rank++) {
    size_t bytes = (plans[rank]->outbox_bytes + 127) / 64 * 64;
    all[rank].plan = plans[rank];
    all[rank].outbox = aligned_alloc(64, bytes);
    all[rank].sent = calloc((size_t)plans[rank]->nslots + 1, sizeof *all[rank].sent);
    made = all[rank].outbox && all[rank].sent;
    if (made) memset(all[rank].outbox, 0xff, bytes);
  }
  bool ran = made && run_all(all, nranks, ranks);
  for (int32_t rank = 0; all && rank < nranks; rank++) {
    free(all[rank].outbox);
    free(all[rank].sent);
  }
  free(all);
  return ran;
}

/* ---- random changes ---------------------------------------------------------------------------------------------- */

enum { TOKENS = 2, HEADS = 6, DIM = 4, ROWS = TOKENS * HEADS, RANKS_MAX = 5 };

/* Changes one number, or removes, repeats or moves a step. */
static void damage(bny_plan *plan, uint64_t *random) {
  struct {
    void *items;
    size_t bytes;
  } parts[] = {{plan->slots, (size_t)plan->nslots * sizeof *plan->slots},
               {plan->messages, (size_t)plan->nmessages * sizeof *plan->messages},
               {plan->sources, (size_t)plan->nsources * sizeof *plan->sources},
               {plan->peers, (size_t)plan->npeers * sizeof *plan->peers},
               {plan->steps, (size_t)plan->nsteps * sizeof *plan->steps}};
  int part = random_below(random, 8);
  if (plan->nsteps == 0) return;
  int32_t step = random_below(random, plan->nsteps), other = random_below(random, plan->nsteps);
  if (part == 5) step_remove(plan, step);
  if (part == 6) step_insert(plan, other, plan->steps[step]);
  if (part == 7) step_move(plan, step, other);
  if (part > 4 || parts[part].bytes == 0) return;
  int32_t value = random_below(random, 2) ? random_below(random, 9) - 2 : (int32_t)random_next(random);
  size_t word = (size_t)random_below(random, (int32_t)(parts[part].bytes / sizeof value));
  memcpy((char *)parts[part].items + word * sizeof value, &value, sizeof value);
}

/* Runs plans on fixed inputs. `results` of each rank begin as 0. */
static void run(const bny_plan *const *plans, int32_t nranks, float results[RANKS_MAX][ROWS * DIM]) {
  static float values[RANKS_MAX][ROWS * DIM], lse[RANKS_MAX][ROWS];
  banyan_partial in[RANKS_MAX], out[RANKS_MAX];
  replay_rank ranks[RANKS_MAX];
  for (int32_t rank = 0; rank < nranks; rank++) {
    for (int i = 0; i < ROWS * DIM; i++) values[rank][i] = (float)(1 + (rank * 31 + i * 7) % 53) / 8;
    for (int i = 0; i < ROWS; i++) lse[rank][i] = (float)((rank * 5 + i * 3) % 11) / 4;
    memset(results[rank], 0, ROWS * DIM * sizeof(float));
    banyan_partial_init(&in[rank], values[rank], BANYAN_F32, lse[rank], BANYAN_F32, HEADS, DIM);
    banyan_partial_init(&out[rank], results[rank], BANYAN_F32, NULL, BANYAN_F32, HEADS, DIM);
    ranks[rank] = (replay_rank){.in = &in[rank], .out = &out[rank]};
  }
  ck_assert(replay_plans(plans, nranks, ranks));
}

/* Damages a plan at random. The prover ends without invalid reads. Plans that it accepts give the right result, which
 * is the same on all ranks, and of those that it rejects it names a rank. Most are rejected. */
TEST(test_random_damage) {
  static const char *const names[] = {"oneshot", "twoshot", "recursive_halving", "tree", "ring"};
  static float right[RANKS_MAX][ROWS * DIM], results[RANKS_MAX][ROWS * DIM];
  uint64_t random = 2024;
  int rejections = 0, rounds = 20000;
  for (int round = 0; round < rounds; round++) {
    bny_request request = combine_of(3 + random_below(&random, 3), names[round % 5],
                                     (banyan_scatter)random_below(&random, 4), TOKENS, HEADS, DIM);
    request.call.order = (banyan_order)random_below(&random, 2);
    bny_plan **plans = plans_make(&request);
    run((const bny_plan *const *)plans, request.nranks, right);
    damage(plans[random_below(&random, request.nranks)], &random);
    banyan_status status = plans_prove(&request, plans);
    rejections += status != BANYAN_OK;
    ck_assert_msg(status == BANYAN_OK || strstr(banyan_last_error(), "rank "), "%s", banyan_last_error());
    if (status == BANYAN_OK) run((const bny_plan *const *)plans, request.nranks, results);
    for (int32_t rank = 0; rank < request.nranks && status == BANYAN_OK; rank++) {
      bool same = memcmp(results[rank], results[0], sizeof results[0]) == 0;
      ck_assert_msg(same || request.call.scatter != BANYAN_SCATTER_NONE, "round %d: rank %d has other bits", round,
                    rank);
      for (int i = 0; i < ROWS * DIM; i++)
        ck_assert_msg(results[rank][i] - right[rank][i] <= 1e-4F && right[rank][i] - results[rank][i] <= 1e-4F,
                      "round %d, %s: rank %d has %g, not %g", round, request_text(&request), rank,
                      (double)results[rank][i], (double)right[rank][i]);
    }
    plans_free(&request, plans);
  }
  ck_assert_int_gt(rejections, rounds / 3);
}

int main(void) { return suite_main(suite_of("plan_broken", 60)); }
