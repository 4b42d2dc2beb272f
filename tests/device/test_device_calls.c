/* SPDX-License-Identifier: Apache-2.0
 * Laws of calls on devices over the fake driver, for each kind of call: what a repeated call asks of the driver, and
 * who is named when a rank does not come, aborts, rejects or gives bad data. Some hold also between nodes. Then how
 * communicators are made, and deadlines. */
#include "comm/comm.h"
#include "tests/device/device_util.h"
#include "tests/support/world.h"

enum { RANKS = 3, HEADS = 4, DIM = 8, TOKENS_MAX = 300, BYTES = 500 };
enum { AT_ONCE_S = 60 };

typedef enum kind { COMBINE, GATHER, SHIFT, BROADCAST, BARRIER } kind;

typedef struct call {
  kind kind;
  const char *algorithm;
  int32_t tokens;
} call;

/* Rows of rank r are r + 1 with weight 1. */
typedef struct rows {
  float in[TOKENS_MAX * HEADS * DIM], lse[TOKENS_MAX * HEADS], out[TOKENS_MAX * HEADS * DIM];
} rows;

static banyan_status combine(world_rank *self, const call *what, rows *rows, bool wrong) {
  const banyan_combine_desc desc = {.size = sizeof desc,
                                    .tokens = what->tokens,
                                    .heads = HEADS,
                                    .value_dim = DIM,
                                    .algorithm = what->algorithm,
                                    .stream = self->stream};
  banyan_partial in, out;
  for (int32_t i = 0; i < what->tokens * HEADS * DIM; i++) rows->in[i] = (float)self->rank + 1;
  banyan_partial_init(&in, rows->in, BANYAN_F32, rows->lse, BANYAN_F32, HEADS, DIM);
  banyan_partial_init(&out, rows->out, BANYAN_F32, NULL, BANYAN_F32, HEADS, DIM);
  if (wrong) in.base = (banyan_base)0;
  return banyan_combine(self->comm, &desc, &in, &out);
}

static rows memory[RANKS]; /* ranks are threads */

static banyan_status begin(world_rank *self, const call *what) {
  static unsigned char in[RANKS][BYTES], out[RANKS][RANKS * BYTES];
  static const size_t counts[RANKS] = {BYTES, 7, BYTES / 2};
  switch (what->kind) {
  case COMBINE: return combine(self, what, &memory[self->rank], false);
  case GATHER: return banyan_allgather(self->comm, in[self->rank], out[self->rank], counts);
  case SHIFT: return banyan_shift(self->comm, in[self->rank], out[self->rank], BYTES, 1);
  case BROADCAST: return banyan_broadcast(self->comm, out[self->rank], BYTES, 1);
  default: return banyan_barrier(self->comm);
  }
}

/* Completes a first call of a shape. */
static bool begin_first(world_rank *self, const call *what) {
  return world_ok(self, begin(self, what), "a first call") && world_finish(self) && world_meet(self);
}

/* All ranks that query the communicator learn of the failure and of its culprit, and later calls fail. */
static void check_failure(world_rank *self, const call *what, banyan_status status, int32_t culprit, const char *says) {
  world_fails(self, status, culprit, says);
  world_check(self, begin(self, what) == status, "later calls do not fail");
}

/* ---- calls of the driver ----------------------------------------------------------------------------------------- */

static const call calls[] = {{COMBINE, "oneshot", 2}, {COMBINE, "twoshot", 3}, {COMBINE, "recursive", 1},
                             {COMBINE, "tree", 2},    {COMBINE, "ring", 3},    {COMBINE, NULL, 2},
                             {.kind = GATHER},        {.kind = SHIFT},         {.kind = BROADCAST},
                             {.kind = BARRIER}};
enum { CALLS = sizeof calls / sizeof calls[0] };

/* The second call of a shape allocates nothing, waits for nothing, and makes no driver calls but a launch. It may use
 * another stream. */
static void call_twice(world_rank *self) {
  char left[256];
  const int valid = FAKE_CUDA(fake_cuda_live)(left, sizeof left);
  void *stream = self->stream;
  self->stream = NULL;
  if (!world_meet(self)) return;
  for (int i = 0; i < CALLS; i++)
    if (!world_ok(self, begin(self, &calls[i]), "call") || !world_finish(self)) return;
  /* The first call does not make or free anything either, because the driver might then wait for kernels. */
  world_check(self, FAKE_CUDA(fake_cuda_live)(left, sizeof left) == valid, "%d objects before, now %s", valid, left);
  uint64_t before = FAKE_CUDA(fake_cuda_setup_calls)();
  if (!world_meet(self)) return;
  world_ok(self, banyan_comm_set_stream(self->comm, stream), "set stream");
  self->stream = stream;
  for (int i = 0; i < CALLS; i++)
    if (!world_ok(self, begin(self, &calls[i]), "call")) return;
  if (!world_meet(self)) return;
  uint64_t made = FAKE_CUDA(fake_cuda_setup_calls)() - before;
  world_check(self, made == 0, "%llu calls that allocate or wait", (unsigned long long)made);
  if (!world_finish(self) || !world_ok(self, banyan_comm_status(self->comm), "status")) return;
  const float last = memory[self->rank].out[HEADS * DIM - 1], mean = (RANKS + 1) / 2.0F;
  world_check(self, last > mean - 1e-4F && last < mean + 1e-4F, "combined %g", (double)last);
}

TEST(hot_calls_do_not_allocate) { WORLD_RUN(call_twice, .nranks = RANKS, .on = &world_emulated); }

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Between nodes the devices end in time. On one node rank 1 calls late, and does not know of the failure: its run ends
 * at once, and its device reports the failure. */
static void leave_one_out(world_rank *self) {
  const call *what = self->argument;
  if (!begin_first(self, what)) return;
  const double began = world_now_s(), timeout_s = (double)self->setup->timeout_ns * 1e-9;
  if (self->rank != 1 && !world_ok(self, begin(self, what), "call")) return;
  if (!world_finish(self)) return;
  if (self->on == &world_staged) {
    const double took = world_now_s() - began;
    world_check(self, world_is_sanitized() || took < 1.25 * timeout_s + 0.2, "%.2f s for a deadline of %.2f s", took,
                timeout_s);
  } else {
    if (self->rank == 1 && !world_ok(self, begin(self, what), "call")) return;
    if (!world_finish(self)) return;
    if (self->rank == 1) check_failure(self, what, BANYAN_ERR_TIMEOUT, 1, "rank 1 did not arrive in time");
    if (!world_meet(self)) return;
  }
  check_failure(self, what, BANYAN_ERR_TIMEOUT, 1, "rank 1");
  world_meet(self);
}

TEST_LOOP(who_does_not_come_is_named, 5) {
  static const call missed[] = {
      {COMBINE, "ring", 1}, {COMBINE, "oneshot", 1}, {.kind = GATHER}, {.kind = BARRIER}, {COMBINE, "oneshot", 1}};
  call what = missed[_i];
  if (_i == 4 && !world_is_here(&world_staged)) return;
  WORLD_RUN(leave_one_out, .nranks = RANKS, .on = _i == 4 ? &world_staged : &world_emulated, .argument = &what,
            .words = _i == 4 ? NULL : "step-ns=20000", .timeout_ns = 4000000000);
}

static void abort_one(world_rank *self) {
  const call *what = self->argument;
  if (!begin_first(self, what)) return;
  const double began = world_now_s();
  if (self->rank != 2 && !world_ok(self, begin(self, what), "call")) return;
  if (!world_meet(self)) return;
  if (self->rank == 2) banyan_comm_abort(self->comm, "enough");
  if (!world_finish(self)) return;
  check_failure(self, what, BANYAN_ERR_ABORTED, 2, "rank 2 called banyan_comm_abort()");
  world_check(self, world_now_s() - began < AT_ONCE_S, "an abort took %.1f s", world_now_s() - began);
  world_meet(self);
}

TEST_LOOP(aborts_end_what_runs, 3) {
  call what = {COMBINE, _i == 0 ? "twoshot" : "oneshot", 1};
  const world_backend *on = _i == 2 ? &world_staged : &world_emulated;
  if (world_is_here(on)) WORLD_RUN(abort_one, .nranks = RANKS, .on = on, .argument = &what);
}

/* Rank 1 names the row by its position in the caller's partial, even if the call is split into parts. */
static void give_nan(world_rank *self) {
  const call *what = self->argument;
  char where[80];
  const int32_t token = what->tokens - 1;
  memset(memory[self->rank].lse, 0, sizeof memory[0].lse);
  if (self->rank == 1) memory[1].lse[token * HEADS + 2] = NAN;
  /* Between nodes a rank may still plan when another rank's device finds the failure. */
  const banyan_status status = begin(self, what);
  world_check(self, status == BANYAN_OK || (self->on == &world_staged && status == BANYAN_ERR_DATA), "combine: %s",
              banyan_last_error());
  if (!world_finish(self)) return;
  snprintf(where, sizeof where, "or a negative d, in token %d, head 2", token);
  check_failure(self, what, BANYAN_ERR_DATA, 1, self->rank == 1 ? where : "rank 1 passed invalid statistics");
  world_meet(self);
}

TEST_LOOP(bad_data_is_named, 5) {
  call what = {COMBINE, _i % 2 ? "oneshot" : "ring", _i / 2 == 1 ? TOKENS_MAX : 1};
  const world_backend *on = _i == 4 ? &world_staged : &world_emulated;
  if (world_is_here(on)) WORLD_RUN(give_nan, .nranks = RANKS, .on = on, .argument = &what, .arena_bytes = 1 << 20);
}

static void differ(world_rank *self) {
  const call what = {.kind = self->rank == 2 ? BROADCAST : BARRIER};
  banyan_status status = begin(self, &what);
  world_gets(self, status, BANYAN_ERR_MISMATCH, "collective");
}

TEST(ranks_in_other_calls_are_reported) { WORLD_RUN(differ, .nranks = RANKS, .on = &world_emulated); }

/* Rank 1 rejects a blocking call of a known shape. Kernels of its peers wait, until it aborts as banyan.h says. */
static void reject_a_run(world_rank *self) {
  const call what = {COMBINE, NULL, 1};
  const bool wrong = self->rank == 1;
  if (!begin_first(self, &what)) return;
  banyan_status status = combine(self, &what, &memory[self->rank], wrong);
  world_check(self, status == (wrong ? BANYAN_ERR_ARGUMENT : BANYAN_OK), "%s", banyan_status_string(status));
  world_check(self, banyan_comm_status(self->comm) == BANYAN_OK, "a rejected call has ended the communicator");
  if (!world_meet(self)) return;
  if (wrong) banyan_comm_abort(self->comm, "rejected");
  if (world_finish(self)) world_fails(self, BANYAN_ERR_ABORTED, 1, "");
  world_meet(self);
}

TEST(runs_that_one_rank_rejects) { WORLD_RUN(reject_a_run, .nranks = 2, .on = &world_emulated); }

/* Peers learn of arguments that banyan_device_combine_init() itself rejects, and the communicator remains usable. */
static void reject_within(world_rank *self) {
  static const char *const named[] = {NULL, "op is NULL", "\"ring\"", "heads", "must not be NULL"};
  for (int wrong = 1; wrong <= 4; wrong++) {
    for (int good = 0; good < 2; good++) { /* consecutive rejections share a text, so a good call follows each */
      const bool is_wrong = !good && self->rank == 1;
      const double since_s = world_now_s();
      banyan_op *op = NULL;
      banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = HEADS, .value_dim = DIM};
      if (is_wrong && wrong == 2) desc.algorithm = "ring";
      if (is_wrong && wrong == 3) desc.heads = -1;
      banyan_status status = banyan_device_combine_init(self->comm, is_wrong && wrong == 4 ? NULL : &desc,
                                                        is_wrong && wrong == 1 ? NULL : &op);
      const char *text = banyan_last_error();
      const bool is_said = good || (strstr(text, named[wrong]) && (is_wrong || strstr(text, "rank 1 rejected")));
      if (!world_check(self,
                       status == (good       ? BANYAN_OK
                                  : is_wrong ? BANYAN_ERR_ARGUMENT
                                             : BANYAN_ERR_PEER) &&
                           is_said && world_now_s() - since_s < AT_ONCE_S,
                       "call %d: %s after %.1f s: %s", wrong, banyan_status_string(status), world_now_s() - since_s,
                       text))
        return;
      banyan_op_free(op);
    }
  }
  world_ok(self, banyan_comm_status(self->comm), "the communicator");
}

TEST(rejections_within_a_kernel) { WORLD_RUN(reject_within, .nranks = RANKS, .on = &world_emulated); }

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static banyan_status create(world_rank *self, const char *device) {
  banyan_comm_config config = world_config(self);
  config.device = device;
  return banyan_comm_create(&self->bootstrap, &config, &self->comm);
}

static void fail_to_create(world_rank *self) {
  const struct {
    const char *name;
    banyan_status status;
    const char *says;
  } cases[] = {{"cuda:0", BANYAN_OK, ""},
               {self->rank == 1 ? NULL : "cuda:0", BANYAN_ERR_MISMATCH, "config.device is"},
               {"abacus", BANYAN_ERR_ARGUMENT, "\"abacus\""},
               {"cuda:x", BANYAN_ERR_ARGUMENT, "\"cuda:x\" is not a device"},
               {"cuda:9", BANYAN_ERR_ARGUMENT, "device 9 was asked for"},
               {"cuda", BANYAN_ERR_ARGUMENT, "no CUDA device is current"}};
  for (int i = 0; i < 6; i++) {
    banyan_status status = create(self, cases[i].name);
    if (cases[i].status == BANYAN_OK)
      world_ok(self, status, "create");
    else
      world_gets(self, status, cases[i].status, cases[i].says);
    banyan_comm_destroy(self->comm);
    self->comm = NULL;
    if (!world_meet(self)) return;
  }
}

TEST(devices_that_are_not_there) { WORLD_RUN(fail_to_create, .nranks = 2, .on = &world_emulated, .bare = true); }

/* One rank has no device. All ranks learn of it. */
static void lack_a_device(world_rank *self) {
  banyan_status status = create(self, self->rank == 1 ? "cuda:9" : "cuda:0");
  world_gets(self, status, BANYAN_ERR_ARGUMENT,
             self->rank == 1 ? "device 9" : "rank 1 could not make its communicator");
}

TEST(one_that_fails_is_reported_to_all) { WORLD_RUN(lack_a_device, .nranks = 3, .on = &world_emulated, .bare = true); }

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

typedef struct patience {
  const char *timeout_ms, *first_ms; /* values of environment variables; NULL: not set */
  int64_t timeout_ns, first_ns;      /* values of options; 0: not set */
  bool host;
  double wanted_s, wanted_first_s;
} patience;

static void look_at_deadlines(world_rank *self) {
  const patience *what = self->argument;
  banyan_comm_config config = {.size = sizeof config,
                               .timeout_ns = what->timeout_ns,
                               .first_timeout_ns = what->first_ns,
                               .device = what->host ? NULL : "cuda:0"};
  if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) return;
  world_check(self, (double)self->comm->exec->timeout_ns == what->wanted_s * 1e9, "%g ns",
              (double)self->comm->exec->timeout_ns);
  world_check(self, (double)self->comm->first_timeout_ns == what->wanted_first_s * 1e9, "%g ns of first calls",
              (double)self->comm->first_timeout_ns);
}

TEST_LOOP(deadlines_of_devices_are_longer, 7) {
  static const patience all[] = {
      {.wanted_s = 600, .wanted_first_s = 600},
      {.host = true, .wanted_s = 30, .wanted_first_s = 30},
      {.timeout_ms = "5000", .wanted_s = 5, .wanted_first_s = 600},
      {.timeout_ms = "5000", .host = true, .wanted_s = 5, .wanted_first_s = 5},
      {.timeout_ms = "5000", .first_ms = "7000", .wanted_s = 5, .wanted_first_s = 7},
      {.timeout_ms = "5000",
       .first_ms = "7000",
       .timeout_ns = 2000000000,
       .first_ns = 3000000000,
       .wanted_s = 2,
       .wanted_first_s = 3},
      {.timeout_ns = 900000000000, .wanted_s = 900, .wanted_first_s = 900},
  };
  patience what = all[_i];
  if (what.timeout_ms) setenv("BANYAN_TIMEOUT_MS", what.timeout_ms, 1);
  if (what.first_ms) setenv("BANYAN_FIRST_TIMEOUT_MS", what.first_ms, 1);
  WORLD_RUN(look_at_deadlines, .nranks = 1, .on = &world_emulated, .bare = true, .argument = &what);
}

/* With the deadline of calls, rank 0 would give up on rank 1 at once. With the deadline of first calls it waits, and
 * fails only at the end. */
static void come_late(world_rank *self) {
  banyan_comm_config config = {
      .size = sizeof config, .timeout_ns = WORLD_GUARD_NS, .device = self->rank ? "cuda:1" : "cuda:0"};
  float o[8] = {0}, lse[4] = {0}, out_o[8], out_lse[4];
  banyan_partial in, out;
  banyan_op *op = NULL;
  if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) return;
  bny_exec *exec = self->comm->exec;
  exec->timeout_ns = 1;
  self->comm->first_timeout_ns = WORLD_GUARD_NS;
  banyan_partial_init(&in, o, BANYAN_F32, lse, BANYAN_F32, 2, 2);
  banyan_partial_init(&out, out_o, BANYAN_F32, out_lse, BANYAN_F32, 2, 2);
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = 2, .value_dim = 2};
  if (self->rank == 1) world_sleep_ms(100);
  if (world_ok(self, banyan_combine_init(self->comm, &desc, &in, &out, &op), "init")) banyan_op_free(op);
  world_check(self, exec->timeout_ns == 1, "the deadline of calls is another now");
  if (self->rank == 0) {
    desc.tokens = 2;
    self->comm->first_timeout_ns = 50000000;
    world_gets(self, banyan_combine_init(self->comm, &desc, &in, &out, &op), BANYAN_ERR_TIMEOUT,
               "rank 1 did not reach the collective within 0.050 s");
  }
  world_meet(self);
}

TEST(first_calls_have_their_own) { WORLD_RUN(come_late, .nranks = 2, .on = &world_emulated, .bare = true); }

int main(void) { return world_main(suite_of("device_calls", WORLD_GUARD_S)); }
