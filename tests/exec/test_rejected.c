/* SPDX-License-Identifier: Apache-2.0
 * If one rank rejects a call, its peers get the text at once. If ranks compare their calls, the communicator remains
 * usable on all ranks. In a run of a known shape, it fails. */
#include "tests/support/attention_oracle.h"
#include "tests/support/placed.h"
#include "tests/support/rows.h"

enum { HEADS = 4, VALUE_DIM = 8, BYTES = 64, AT_ONCE_S = 10 }; /* a tenth of the deadline */

/* A combine is of rows[0]; rows[1] and rows[2] have other shapes. */
typedef struct buffers {
  rows *rows[3];
  unsigned char bytes[BYTES * WORLD_RANKS_MAX], more[BYTES * WORLD_RANKS_MAX];
} buffers;

static buffers *take(void) {
  buffers *made = world_take(sizeof *made);
  made->rows[0] = rows_take(2, HEADS / 2, VALUE_DIM);
  made->rows[1] = rows_take(1, HEADS, VALUE_DIM);
  made->rows[2] = rows_take(1, 2, VALUE_DIM);
  return made;
}

static banyan_status combine(world_rank *self, buffers *buffers, int which, bool wrong) {
  rows call = *buffers->rows[which];
  if (wrong) call.in.base = (banyan_base)0;
  return rows_combine(&call, self->comm);
}

static banyan_status combine_init(world_rank *self, buffers *buffers, bool wrong) {
  banyan_op *op = NULL;
  rows call = *buffers->rows[2];
  call.desc.algorithm = wrong ? "telepathy" : NULL;
  banyan_status status = rows_init(&call, self->comm, &op);
  banyan_op_free(op);
  return status;
}

static banyan_status gather(world_rank *self, buffers *buffers, bool wrong) {
  size_t counts[WORLD_RANKS_MAX];
  for (int32_t i = 0; i < self->nranks; i++) counts[i] = 7;
  return banyan_allgather(self->comm, buffers->bytes, wrong ? NULL : buffers->more, counts);
}

static banyan_status barrier_init(world_rank *self, bool wrong) {
  banyan_op *op = NULL;
  banyan_status status = banyan_barrier_init(self->comm, wrong ? NULL : &op);
  banyan_op_free(op);
  return status;
}

/* First calls of a shape, and the field that the error must name. */
enum { KINDS = 6 };
static const char *const named[KINDS] = {"in: base",   "telepathy", "all is NULL", "send and receive overlap",
                                         "root is 99", "op is NULL"};

static banyan_status make_call(world_rank *self, buffers *buffers, int kind, bool wrong) {
  switch (kind) {
  case 0: return combine(self, buffers, 1, wrong);
  case 1: return combine_init(self, buffers, wrong);
  case 2: return gather(self, buffers, wrong);
  case 3: return banyan_shift(self->comm, buffers->bytes, wrong ? buffers->bytes + 1 : buffers->more, BYTES, 1);
  case 4: return banyan_broadcast(self->comm, buffers->bytes, BYTES, wrong ? 99 : 0);
  default: return barrier_init(self, wrong);
  }
}

static bool is_rejected(world_rank *self, banyan_status status, int32_t by, int kind, double since_s) {
  banyan_status expected = self->rank == by ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER;
  char who[32];
  snprintf(who, sizeof who, "rank %d rejected", by);
  const char *text = banyan_last_error();
  bool good = status == expected && strstr(text, named[kind]) && (self->rank == by || strstr(text, who));
  return world_check(self, good, "call %d, rejected by rank %d: %s: %s", kind, by, banyan_status_string(status),
                     text) &&
         world_check(self, world_now_s() - since_s < AT_ONCE_S, "call %d: told after %.1f s", kind,
                     world_now_s() - since_s);
}

static bool works(world_rank *self, buffers *buffers, float value) {
  rows_set(buffers->rows[0], value * (float)(self->rank + 1));
  return world_ok(self, banyan_comm_status(self->comm), "the communicator") &&
         world_ok(self, combine(self, buffers, 0, false), "a good combine") &&
         rows_hold(self, buffers->rows[0], (double)value * (self->nranks + 1) / 2);
}

/* Each rank rejects each call once. The rejecting rank waits for no peer and runs ahead. */
static void reject_in_turn(world_rank *self) {
  buffers *buffers = take();
  bool good = true;
  for (int kind = 0; kind < KINDS && good; kind++) {
    for (int32_t by = 0; by < self->nranks && good; by++) {
      double since_s = world_now_s();
      banyan_status status = make_call(self, buffers, kind, self->rank == by);
      good = is_rejected(self, status, by, kind, since_s);
      if (good && by % 2)
        good = works(self, buffers, (float)(kind + 1)); /* other rejections follow each other directly */
    }
    good = good && world_ok(self, make_call(self, buffers, kind, false), "the call as it should be") &&
           works(self, buffers, 3);
  }
}

/* All ranks reject the same call many times without waiting, and stay in step. */
static void reject_together(world_rank *self) {
  buffers *buffers = take();
  bool good = works(self, buffers, 1);
  for (int round = 0; round < 50 && good; round++)
    good = world_check(self, make_call(self, buffers, round % KINDS, true) == BANYAN_ERR_ARGUMENT, "round %d", round);
  if (good) works(self, buffers, 2);
}

/* Rank 0 rejects several calls before its peers reach the first one. */
static void reject_ahead(world_rank *self) {
  buffers *buffers = take();
  bool good = works(self, buffers, 1);
  for (int i = 0; i < 12 && good; i++) { /* rejections in a row count as one */
    if (i == 0 && self->rank > 0) world_sleep_ms(30);
    banyan_status status = make_call(self, buffers, 0, self->rank == 0);
    good = is_rejected(self, status, 0, 0, world_now_s());
  }
  if (good) works(self, buffers, 2);
}

/* The rejecting rank stays a member: only ranks that died, left or are late are excluded. */
static void shrink_to_all(world_rank *self) {
  banyan_comm *left = NULL;
  if (!world_ok(self, banyan_comm_shrink(self->comm, NULL, &left), "shrink")) return;
  world_check(self, banyan_comm_nranks(left) == self->nranks, "%d ranks of %d are left", banyan_comm_nranks(left),
              self->nranks);
  world_ok(self, banyan_barrier(left), "barrier of those left");
  world_meet(self);
  banyan_comm_destroy(left);
}

/* The shape is known: the others are already in the run and have sent data. */
static void reject_a_run(world_rank *self) {
  buffers *buffers = take();
  if (works(self, buffers, 1) && world_meet(self)) {
    double since_s = world_now_s();
    banyan_status status = combine(self, buffers, 0, self->rank == 1);
    if (self->rank == 1 && status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), "in: base"))
      status = banyan_barrier(self->comm);
    const char *text = banyan_last_error();
    world_check(self, status == BANYAN_ERR_PEER && strstr(text, "rank 1 rejected") && strstr(text, "in: base"),
                "a run: %s: %s", banyan_status_string(status), text);
    world_check(self, world_now_s() - since_s < AT_ONCE_S, "told after %.1f s", world_now_s() - since_s);
    world_check(self, banyan_comm_failed_rank(self->comm) == 1, "rank %d is blamed",
                banyan_comm_failed_rank(self->comm));
    if (world_meet(self)) shrink_to_all(self);
  }
}

/* The last rank is the root of a combine of which rank 0 rejects a run. The other ranks do not need rank 0 for it and
 * go on to the next call, before the root comes or meanwhile. Each of them gets the reason there. */
static void reject_for_the_root(world_rank *self) {
  rows *rows = rows_take(1, HEADS, VALUE_DIM);
  rows->desc.algorithm = "oneshot";
  rows->desc.scatter = BANYAN_SCATTER_ROOT;
  rows->desc.root = self->nranks - 1;
  bool is_root = self->rank == rows->desc.root, good = true;
  for (int i = 0; i < 3 && good; i++)
    good = world_ok(self, rows_combine(rows, self->comm), "before") &&
           world_ok(self, banyan_barrier(self->comm), "before");
  if (good && (!is_root || world_await(self->world, 1, WORLD_GUARD_S))) {
    if (self->rank == 0) rows->in.base = (banyan_base)0;
    banyan_status status = rows_combine(rows, self->comm);
    if (self->rank == 0) world_signal(self->world, 1);
    if (status != BANYAN_ERR_PEER || !strstr(banyan_last_error(), "in: base")) status = banyan_barrier(self->comm);
    world_gets(self, status, BANYAN_ERR_PEER, "rank 0 rejected");
  }
}

/* ---- arguments of attention -------------------------------------------------------------------------------------- */

enum { KEYS = 5, DIM_MAX = 24, ROUNDS = 30, PAGE = 2, PAGES = 3 };

typedef struct decode {
  float q[2 * HEADS * DIM_MAX], out[2 * HEADS * DIM_MAX], sinks[HEADS], k_scale, out_scale;
  int8_t v[PAGES * PAGE * DIM_MAX];
  int32_t lens[2], loc[3], start[2], table[2 * PAGES], tokens;
  banyan_attention_desc desc;
  banyan_queries queries;
  banyan_valid_rows valid;
  banyan_combine_desc combine;
  banyan_partial to;
} decode;

/* A call whose values are all 3, so its result is 3. Another `dim` gives another shape. */
static void decode_make(decode *made, int32_t dim) {
  memset(made, 0, sizeof *made);
  memset(made->v, 3, sizeof made->v);
  made->k_scale = made->out_scale = 1;
  made->tokens = 2;
  for (int b = 0; b < 2; b++) made->lens[b] = KEYS, made->start[b] = KEYS, made->loc[b + 1] = b + 1;
  for (int i = 0; i < 2 * PAGES; i++) made->table[i] = i % PAGES;
  made->queries = (banyan_queries){
      .size = sizeof made->queries, .tokens = 2, .query_start_loc = made->loc, .query_start = made->start};
  made->valid = (banyan_valid_rows){.size = sizeof made->valid, .tokens = &made->tokens};
  made->combine = (banyan_combine_desc){
      .size = sizeof made->combine, .tokens = 2, .heads = HEADS, .value_dim = dim, .valid = &made->valid};
  banyan_partial_init(&made->to, made->out, BANYAN_F32, NULL, BANYAN_F32, HEADS, dim);
  made->desc =
      attention_desc_of(2, HEADS, 1, PAGE, dim, dim, BANYAN_F32, BANYAN_I8, made->q, made->v, made->v, made->lens);
  made->desc.kv.pages = (banyan_pages){.table = made->table, .table_stride = PAGES, .keys = PAGE, .count = PAGES};
  made->desc.kv.scales.k = &made->k_scale, made->desc.queries = &made->queries;
}

enum { ARGUMENTS = 14, OF_RANK_0 = 12 };

/* Makes one argument invalid and returns the name in its error. Other ranks ignore arguments of OF_RANK_0. */
static const char *spoil(decode *call, int argument) {
  switch (argument) {
  case 0: return call->table[4] = PAGES, "page_table[1][1] is 3";
  case 1: return call->lens[1] = -1, "seq_lens[1] is -1";
  case 2: return call->loc[1] = 3, "query_start_loc[1] is 3";
  case 3: return call->k_scale = 0, "k_scale[0]";
  case 4: return call->start[0] = -7, "query_start[0] is -7";
  case 5: return call->tokens = 3, "valid.tokens leads to 3";
  case 6: return call->tokens = 1, "query_start_loc[2] is 2";
  case 7: return call->desc.kv.k = NULL, "k is NULL";
  case 8: return call->desc.heads = 0, "heads is 0";
  case 9: return call->to.base = (banyan_base)0, "base";
  case 10: return call->desc.kv.pages.table_stride = PAGES - 1, "page_table_stride of 2";
  case 11:
    call->to.values_dtype = BANYAN_E4M3, call->to.values_scale = &call->out_scale, call->out_scale = -1;
    return "values_scale";
  case OF_RANK_0: return call->desc.sinks = call->sinks, call->sinks[1] = NAN, "sinks[1]";
  default: return call->combine.algorithm = "telepathy", "telepathy";
  }
}

static bool attends(world_rank *self, decode *call, int32_t dim) {
  decode_make(call, dim);
  return world_ok(self, banyan_comm_status(self->comm), "the communicator") &&
         world_ok(self, banyan_attention_combine(self->comm, &call->desc, &call->combine, &call->to), "attention") &&
         world_check(self, call->out[2 * HEADS * dim - 1] > 2.99F && call->out[2 * HEADS * dim - 1] < 3.01F,
                     "attended to %g, not 3", (double)call->out[2 * HEADS * dim - 1]);
}

/* A random rank rejects a first call of attention for a random argument. Then all ranks make a valid call. */
static void reject_attention(world_rank *self) {
  decode *call = malloc(sizeof *call);
  world_random random = random_seed();
  bool good = call != NULL;
  for (int round = 0; round < ROUNDS && good; round++) {
    int32_t by = random_below(&random, self->nranks), argument = random_below(&random, ARGUMENTS),
            dim = 1 + round % DIM_MAX;
    if (argument == OF_RANK_0) by = 0;
    double since_s = world_now_s();
    decode_make(call, dim);
    call->combine.order = round < DIM_MAX ? BANYAN_ORDER_PLAN : BANYAN_ORDER_CANONICAL;
    decode other = *call;
    const char *name = spoil(self->rank == by ? call : &other, argument);
    banyan_status status = banyan_attention_combine(self->comm, &call->desc, &call->combine, &call->to);
    const char *text = banyan_last_error();
    bool rejected = status == (self->rank == by ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER) && strstr(text, name);
    good = world_check(self, rejected && world_now_s() - since_s < AT_ONCE_S,
                       "argument %d, rejected by rank %d: %s: %s", argument, by, banyan_status_string(status), text) &&
           attends(self, call, dim);
  }
  free(call);
}

/* In a later call the communicator fails on all ranks, whatever the argument, and each rank reports it. */
static void reject_known_attention(world_rank *self) {
  decode *call = malloc(sizeof *call);
  world_random random = random_seed();
  int32_t by = random_below(&random, self->nranks), argument = random_below(&random, ARGUMENTS - 1);
  if (argument == OF_RANK_0) by = 0;
  if (call && attends(self, call, 8) && attends(self, call, 8)) {
    decode_make(call, 8);
    if (self->rank == by) spoil(call, argument);
    banyan_status status = banyan_attention_combine(self->comm, &call->desc, &call->combine, &call->to);
    world_check(self, status == (self->rank == by ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER), "argument %d: %s: %s",
                argument, banyan_status_string(status), banyan_last_error());
    status = banyan_barrier(self->comm);
    world_check(self, status == BANYAN_ERR_PEER && banyan_comm_status(self->comm) == status, "argument %d, then: %s",
                argument, banyan_last_error());
    world_meet(self);
  }
  free(call);
}

static void run(int way, world_body body) {
  world_setup setup = {.nranks = 4, .timeout_ns = 100000000000};
  if (placed_set((placed)way, "a,a,b,b", "a,b,c,d", &setup)) world_run(&setup, body);
}

TEST_LOOP(first_calls, PLACED_WAYS) { run(_i, reject_in_turn); }
TEST_LOOP(the_same_on_all_ranks, PLACED_WAYS) { run(_i, reject_together); }
TEST_LOOP(several_in_a_row, PLACED_WAYS) { run(_i, reject_ahead); }
TEST_LOOP(known_shapes, PLACED_WAYS) { run(_i, reject_a_run); }
TEST_LOOP(known_shapes_without_waiting, PLACED_WAYS) { run(_i, reject_for_the_root); }
TEST_LOOP(attention, PLACED_WAYS) { run(_i, reject_attention); }
TEST_LOOP(known_attention, PLACED_WAYS) { run(_i, reject_known_attention); }

int main(void) { return world_main(suite_of("rejected", 120)); }
