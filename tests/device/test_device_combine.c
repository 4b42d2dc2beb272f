/* SPDX-License-Identifier: Apache-2.0
 * Combines on devices, from banyan.h down: over the fake driver, which runs the library's kernels on emulated devices.
 * Ranks are threads; launches return at once, and run together once all ranks have made theirs. */
#include <check.h>
#include <math.h>

#include "comm/comm.h"
#include "tests/device/device_world.h"
#include "tests/support/sheet.h"
#include "tests/support/suite.h"
#include "tests/support/world.h"

enum { RANKS_MAX = 5, ATTEMPTS = 96 };

#if !defined HAVE_CUDA || !defined HAVE_CXX17
int main(void) {
  puts("built without CUDA, or without a compiler of C++17");
  return 77;
}
#else

static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};
static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3};

/* ---- a world with devices ---------------------------------------------------------------------------------------- */

typedef struct attempt {
  banyan_combine_desc desc;
  sheet in[RANKS_MAX], out[RANKS_MAX];
  void *reference;
} attempt;

typedef struct task {
  int32_t nranks, nattempts;
  bool one_device;
  size_t arena_bytes;
  int64_t timeout_ns;
  banyan_status create; /* what becomes of making communicators */
  const char *says;
  void (*body)(world_rank *self);
  sheet_pool pool;
  world_random random;
  attempt attempts[ATTEMPTS];
} task;

static void begin(const char *words) { device_world_begin(RANKS_MAX, words); }

static banyan_status create(world_rank *self, const task *task, const char *device) {
  banyan_comm_config config = {.size = sizeof config,
                               .timeout_ns = task->timeout_ns ? task->timeout_ns : WORLD_GUARD_NS,
                               .arena_bytes = task->arena_bytes,
                               .device = device};
  return banyan_comm_create(&self->bootstrap, &config, &self->comm);
}

static void live(world_rank *self) {
  const task *task = self->argument;
  char device[16];
  snprintf(device, sizeof device, "cuda:%d", task->one_device ? 0 : self->rank);
  if (!world_ok(self, create(self, task, device), "create")) return;
  task->body(self);
  world_meet(self);
}

static void run(task *task) { WORLD_RUN(live, .nranks = task->nranks, .bare = true, .argument = task); }

/* ---- attempts ---------------------------------------------------------------------------------------------------- */

static attempt *add_attempt(task *task, const char *algorithm, banyan_scatter scatter, int32_t tokens, int32_t heads,
                            int32_t value_dim) {
  world_random *random = &task->random;
  attempt *made = &task->attempts[task->nattempts++];
  sheet_mood mood = (sheet_mood)random_below(random, SHEET_MOODS);
  made->desc = (banyan_combine_desc){.size = sizeof made->desc,
                                     .tokens = tokens,
                                     .heads = heads,
                                     .value_dim = value_dim,
                                     .wire = wires[random_below(random, sizeof wires / sizeof wires[0])],
                                     .scatter = scatter,
                                     .root = random_below(random, task->nranks),
                                     .order = (banyan_order)random_below(random, 2),
                                     .algorithm = algorithm};
  for (int32_t r = 0; r < task->nranks; r++) {
    const sheet_part part = sheet_part_of(&made->desc, task->nranks, r);
    made->in[r] = sheet_input(&task->pool, random, mood, r, task->nranks, tokens, heads, value_dim);
    made->out[r] = sheet_output(&task->pool, random, mood, part.tokens, part.heads, value_dim);
  }
  made->reference = sheet_merge(&task->pool, made->in, task->nranks);
  return made;
}

static attempt *add_random(task *task, const char *algorithm, banyan_scatter scatter) {
  world_random *random = &task->random;
  return add_attempt(task, algorithm, scatter, 1 + random_below(random, 3), 1 + random_below(random, 7),
                     random_below(random, 160));
}

static const banyan_partial *out_of(const attempt *attempt, int32_t rank) {
  const sheet *out = &attempt->out[rank];
  return out->tokens && out->heads ? &out->partial : NULL;
}

static banyan_status start(world_rank *self, const attempt *attempt, void *stream) {
  banyan_combine_desc desc = attempt->desc;
  desc.stream = stream;
  return banyan_combine(self->comm, &desc, &attempt->in[self->rank].partial, out_of(attempt, self->rank));
}

static void check_attempt(const task *task, const attempt *attempt) {
  const banyan_combine_desc *desc = &attempt->desc;
  sheet_bounds bounds = {.nranks = task->nranks, .rounds = 2 * task->nranks, .wire = desc->wire};
  for (int32_t r = 0; r < task->nranks; r++) {
    const sheet *out = &attempt->out[r];
    const sheet_part part = sheet_part_of(desc, task->nranks, r);
    char why[256] = "";
    if (!out->tokens || !out->heads) continue;
    bool good = sheet_matches(out, attempt->reference, desc->heads, part.token0, part.head0, &bounds, why, sizeof why);
    ck_assert_msg(good, "rank %d of %d, %s, scatter %d, %d x %d x %d: %s", r, task->nranks,
                  desc->algorithm ? desc->algorithm : "chosen", desc->scatter, desc->tokens, desc->heads,
                  desc->value_dim, why);
    ck_assert_msg(sheet_gaps_are_untouched(out), "rank %d wrote beside its rows", r);
  }
}

static task *make_task(int32_t nranks, uint64_t seed, void (*body)(world_rank *self)) {
  task *made = calloc(1, sizeof *made);
  *made = (task){.nranks = nranks, .body = body, .random = {world_seed() * 100 + seed}};
  return made;
}

static void free_task(task *task) {
  sheet_pool_free(&task->pool);
  free(task);
  device_world_end();
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static device_world_own make_own(world_rank *self) {
  device_world_own own;
  device_world_make_own(self, ((const task *)self->argument)->one_device ? 0 : self->rank, &own);
  return own;
}

static void combine_all(world_rank *self) {
  const task *task = self->argument;
  device_world_own own = make_own(self);
  bool good = own.stream != NULL;
  for (int32_t i = 0; i < task->nattempts && good; i++)
    good = world_ok(self, start(self, &task->attempts[i], own.stream), "combine");
  if (good && device_world_run(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  device_world_free_own(&own);
}

static const char *const machines[] = {"", "no-vmm,no-ipc", "no-files"};

TEST_RANDOM(every_algorithm_and_scatter, 3 * RANKS_MAX) {
  begin(machines[_i / RANKS_MAX]);
  task *task = make_task(1 + _i % RANKS_MAX, (uint64_t)_i, combine_all);
  task->one_device = _i % 2;
  for (int a = 0; a < 6; a++)
    for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++)
      add_random(task, algorithms[a], (banyan_scatter)scatter);
  run(task);
  for (int32_t i = 0; i < task->nattempts; i++) check_attempt(task, &task->attempts[i]);
  free_task(task);
}

/* More than an arena takes at once goes in parts. */
TEST(large_calls_go_in_parts) {
  begin("");
  task *task = make_task(3, 50, combine_all);
  task->arena_bytes = 128 << 10;
  for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++)
    add_attempt(task, scatter % 2 ? "twoshot" : "oneshot", (banyan_scatter)scatter, 5, 9, 160);
  run(task);
  for (int32_t i = 0; i < task->nattempts; i++) check_attempt(task, &task->attempts[i]);
  free_task(task);
}

/* ---- streams, graphs, persistent operations ---------------------------------------------------------------------- */

/* The second call of a shape allocates nothing, waits for nothing and asks the driver for nothing but a launch. */
static void call_twice(world_rank *self) {
  const task *task = self->argument;
  char left[256];
  int live = FAKE_CUDA(fake_cuda_live)(left, sizeof left);
  if (!world_meet(self)) return;
  for (int32_t i = 0; i < task->nattempts; i++)
    if (!world_ok(self, start(self, &task->attempts[i], NULL), "combine") || !device_world_run(self)) return;
  /* Nor does the first make or free anything: the driver might wait for kernels meanwhile. */
  world_check(self, FAKE_CUDA(fake_cuda_live)(left, sizeof left) == live, "%d objects before, now %s", live, left);
  uint64_t before = FAKE_CUDA(fake_cuda_setup_calls)();
  if (!world_meet(self)) return;
  for (int32_t i = 0; i < task->nattempts; i++)
    if (!world_ok(self, start(self, &task->attempts[i], NULL), "combine")) return;
  if (!world_meet(self)) return;
  uint64_t calls = FAKE_CUDA(fake_cuda_setup_calls)() - before;
  world_check(self, calls == 0, "%llu calls that allocate or wait", (unsigned long long)calls);
  device_world_run(self);
}

TEST(hot_calls_do_not_allocate) {
  begin("");
  task *task = make_task(3, 60, call_twice);
  for (int a = 0; a < 6; a++) add_random(task, algorithms[a], BANYAN_SCATTER_NONE);
  run(task);
  for (int32_t i = 0; i < task->nattempts; i++) check_attempt(task, &task->attempts[i]);
  free_task(task);
}

/* Captured once on streams of their own, replayed with other inputs. */
static void capture_and_replay(world_rank *self) {
  task *task = self->argument;
  device_world_own own = make_own(self);
  void *stream = own.stream;
  if (!stream) return;
  FAKE_CUDA(fake_cuda_capture)(stream, true);
  for (int32_t i = 0; i < task->nattempts; i++) world_ok(self, start(self, &task->attempts[i], stream), "combine");
  FAKE_CUDA(fake_cuda_capture)(stream, false);
  for (int round = 0; round < 5; round++) {
    FAKE_CUDA(fake_cuda_replay)(stream);
    if (!device_world_run(self)) break;
  }
  for (int32_t i = 0; i < task->nattempts && self->rank == 0; i++) check_attempt(task, &task->attempts[i]);
  world_meet(self);
  device_world_free_own(&own);
}

TEST(graphs) {
  begin("");
  task *task = make_task(3, 70, capture_and_replay);
  for (int a = 0; a < 3; a++) add_random(task, algorithms[a], BANYAN_SCATTER_NONE);
  run(task);
  free_task(task);
}

static void use_persistent(world_rank *self) {
  const task *task = self->argument;
  banyan_op *ops[ATTEMPTS] = {NULL};
  for (int32_t i = 0; i < task->nattempts; i++)
    if (!world_ok(self,
                  banyan_combine_init(self->comm, &task->attempts[i].desc, &task->attempts[i].in[self->rank].partial,
                                      out_of(&task->attempts[i], self->rank), &ops[i]),
                  "init"))
      return;
  for (int round = 0; round < 3; round++) {
    int done = 0;
    for (int32_t i = 0; i < task->nattempts; i++) world_ok(self, banyan_start(ops[i]), "start");
    for (int32_t i = 0; i < task->nattempts; i++) world_ok(self, banyan_wait(ops[i]), "wait");
    world_ok(self, banyan_test(ops[0], &done), "test");
    world_check(self, done == 1, "an operation on a stream is not done");
    if (!device_world_run(self)) break;
  }
  char text[512];
  banyan_comm_describe(self->comm, text, sizeof text);
  world_check(self, strstr(text, "combines on cuda (Fake ") != NULL, "%s", text);
  for (int32_t i = 0; i < task->nattempts; i++) banyan_op_free(ops[i]);
}

TEST(persistent_operations) {
  begin("");
  task *task = make_task(3, 80, use_persistent);
  for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++)
    add_random(task, NULL, (banyan_scatter)scatter);
  run(task);
  for (int32_t i = 0; i < task->nattempts; i++) check_attempt(task, &task->attempts[i]);
  free_task(task);
}

TEST(few_multiprocessors) {
  begin("");
  setenv("BANYAN_DEVICE_SMS", "2", 1);
  task *task = make_task(2, 90, combine_all);
  add_attempt(task, "oneshot", BANYAN_SCATTER_NONE, 8, 32, 64);
  add_attempt(task, "twoshot", BANYAN_SCATTER_NONE, 8, 32, 64);
  run(task);
  for (int32_t i = 0; i < task->nattempts; i++) check_attempt(task, &task->attempts[i]);
  ck_assert_uint_le(FAKE_CUDA(fake_cuda_most_blocks)(), 2 * 8); /* 8 blocks of 256 threads on each */
  free_task(task);
}

/* Later ranks put all of their runs on their streams before earlier ones do. */
static void start_one_after_another(world_rank *self) {
  const task *task = self->argument;
  banyan_op *ops[ATTEMPTS] = {NULL};
  device_world_own own = make_own(self);
  for (int32_t i = 0; i < task->nattempts; i++) {
    banyan_combine_desc desc = task->attempts[i].desc;
    desc.stream = own.stream;
    if (!world_ok(self,
                  banyan_combine_init(self->comm, &desc, &task->attempts[i].in[self->rank].partial,
                                      out_of(&task->attempts[i], self->rank), &ops[i]),
                  "init"))
      break;
  }
  for (int32_t turn = task->nranks - 1; turn >= 0; turn--) {
    for (int32_t i = 0; i < task->nattempts && turn == self->rank; i++) world_ok(self, banyan_start(ops[i]), "start");
    world_meet(self);
  }
  if (device_world_run(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  for (int32_t i = 0; i < task->nattempts; i++) banyan_op_free(ops[i]);
  device_world_free_own(&own);
}

/* A rank's next run does not take the room that another rank's blocks need for this one. Rank 1 gets nothing, and so is
 * ahead. */
TEST(ranks_of_one_device_leave_room) {
  begin("sms=2");
  task *task = make_task(2, 95, start_one_after_another);
  task->one_device = true;
  for (int i = 0; i < 8; i++) add_attempt(task, "oneshot", BANYAN_SCATTER_TOKENS, 1, 128, 8);
  run(task);
  for (int32_t i = 0; i < task->nattempts; i++) check_attempt(task, &task->attempts[i]);
  free_task(task);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* All ranks come to know of it, and of whom, by asking. */
static void check_failure(world_rank *self, banyan_status status, int32_t culprit, const char *says) {
  double deadline = world_now_s() + WORLD_GUARD_S;
  while (banyan_comm_status(self->comm) == BANYAN_OK && world_now_s() < deadline) world_sleep_ms(1);
  world_check(self,
              banyan_comm_status(self->comm) == status && banyan_comm_failed_rank(self->comm) == culprit &&
                  strstr(banyan_comm_error(self->comm), says),
              "status %d, rank %d, \"%s\"", banyan_comm_status(self->comm), banyan_comm_failed_rank(self->comm),
              banyan_comm_error(self->comm));
  world_check(self, start(self, &((const task *)self->argument)->attempts[0], NULL) == status,
              "later calls do not fail");
}

static void leave_one_out(world_rank *self) {
  const task *task = self->argument;
  if (!world_ok(self, start(self, &task->attempts[0], NULL), "combine") || !device_world_run(self)) return;
  if (self->rank != 1 && !world_ok(self, start(self, &task->attempts[0], NULL), "combine")) return;
  if (!device_world_run(self)) return;
  /* It comes at last, knowing nothing: its run ends at once, and its device tells. */
  if (self->rank == 1 && !world_ok(self, start(self, &task->attempts[0], NULL), "combine")) return;
  if (!device_world_run(self)) return;
  if (self->rank == 1) check_failure(self, BANYAN_ERR_TIMEOUT, 1, "rank 1 did not come in time");
  if (!world_meet(self)) return;
  check_failure(self, BANYAN_ERR_TIMEOUT, 1, "rank 1 did not come in time");
}

TEST_LOOP(who_does_not_come_is_named, 2) {
  begin("step-ns=20000");
  task *task = make_task(3, 100, leave_one_out);
  task->timeout_ns = 4000000000;
  add_attempt(task, _i ? "oneshot" : "ring", BANYAN_SCATTER_NONE, 1, 4, 64);
  run(task);
  free_task(task);
}

static void abort_one(world_rank *self) {
  const task *task = self->argument;
  if (!world_ok(self, start(self, &task->attempts[0], NULL), "combine") || !device_world_run(self)) return;
  if (self->rank != 2 && !world_ok(self, start(self, &task->attempts[0], NULL), "combine")) return;
  if (!world_meet(self)) return;
  if (self->rank == 2) banyan_comm_abort(self->comm, "enough");
  if (!device_world_run(self)) return;
  check_failure(self, BANYAN_ERR_ABORTED, 2, "rank 2 called banyan_comm_abort()");
}

TEST_LOOP(aborts_end_what_runs, 2) {
  begin("");
  task *task = make_task(3, 110, abort_one);
  add_attempt(task, _i ? "oneshot" : "twoshot", BANYAN_SCATTER_NONE, 1, 4, 64);
  run(task);
  free_task(task);
}

static void give_nan(world_rank *self) {
  const task *task = self->argument;
  const attempt *attempt = &task->attempts[0];
  static float values[4 * 8], lse[4] = {1, 2, NAN, 4};
  float out_values[4 * 8], out_lse[4];
  banyan_partial in, out;
  banyan_partial_init(&in, values, BANYAN_F32, lse, BANYAN_F32, 4, 8);
  banyan_partial_init(&out, out_values, BANYAN_F32, out_lse, BANYAN_F32, 4, 8);
  const banyan_partial *given = self->rank == 1 ? &in : &attempt->in[self->rank].partial;
  if (!world_ok(self, banyan_combine(self->comm, &attempt->desc, given, &out), "combine") || !device_world_run(self))
    return;
  check_failure(self, BANYAN_ERR_DATA, 1, "rank 1 gave statistics of no row");
}

TEST_LOOP(bad_data_is_named, 2) {
  begin("");
  task *task = make_task(3, 120, give_nan);
  add_attempt(task, _i ? "oneshot" : "ring", BANYAN_SCATTER_NONE, 1, 4, 8);
  run(task);
  free_task(task);
}

static void fail_to_create(world_rank *self) {
  const task *task = self->argument;
  const char *names[] = {"cuda:0", self->rank == 1 ? NULL : "cuda:0", "abacus", "cuda:x", "cuda:9", "cuda"};
  const banyan_status statuses[] = {BANYAN_OK,           BANYAN_ERR_MISMATCH, BANYAN_ERR_ARGUMENT,
                                    BANYAN_ERR_ARGUMENT, BANYAN_ERR_ARGUMENT, BANYAN_ERR_ARGUMENT};
  const char *says[] = {"",
                        "config.device is",
                        "\"abacus\"",
                        "\"cuda:x\" is no device",
                        "device 9 was asked for",
                        "no CUDA device is current"};
  for (int i = 0; i < 6; i++) {
    banyan_status status = create(self, task, names[i]);
    world_check(self, status == statuses[i] && (status == BANYAN_OK || strstr(banyan_last_error(), says[i])),
                "case %d: status %d, %s", i, status, banyan_last_error());
    banyan_comm_destroy(self->comm);
    self->comm = NULL;
    if (!world_meet(self)) return;
  }
}

TEST(devices_that_are_not_there) {
  begin("");
  task *task = make_task(2, 130, NULL);
  WORLD_RUN(fail_to_create, .nranks = 2, .bare = true, .argument = task);
  free_task(task);
}

/* One rank lacks what the others have: all get the error. */
static void lack_an_image(world_rank *self) {
  const task *task = self->argument;
  banyan_status status = create(self, task, self->rank == 1 ? "cuda:9" : "cuda:0");
  world_check(self,
              status == BANYAN_ERR_ARGUMENT &&
                  strstr(banyan_last_error(), self->rank == 1 ? "device 9" : "rank 1 could not make its communicator"),
              "status %d, %s", status, banyan_last_error());
}

TEST(one_that_fails_is_told_to_all) {
  begin("");
  task *task = make_task(3, 140, NULL);
  WORLD_RUN(lack_an_image, .nranks = 3, .bare = true, .argument = task);
  setenv("BANYAN_CUDA_IMAGE", "/nowhere/image", 1);
  task->body = NULL;
  free_task(task);
}

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

typedef struct patience {
  const char *timeout_ms, *first_ms; /* environment variables; NULL: not set */
  int64_t timeout_ns, first_ns;      /* settings of the program; 0: not set */
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
  begin("");
  if (what.timeout_ms) setenv("BANYAN_TIMEOUT_MS", what.timeout_ms, 1);
  if (what.first_ms) setenv("BANYAN_FIRST_TIMEOUT_MS", what.first_ms, 1);
  WORLD_RUN(look_at_deadlines, .nranks = 1, .bare = true, .argument = &what);
  device_world_end();
}

/* By the deadline of calls rank 0 would give up on rank 1 at once; by that of first calls it waits, but rank 1
 * never comes. */
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
    world_check(self, banyan_combine_init(self->comm, &desc, &in, &out, &op) == BANYAN_ERR_TIMEOUT, "a rank came");
    world_check(self, strstr(banyan_last_error(), "rank 1 has not come to the collective within 0.050 s") != NULL, "%s",
                banyan_last_error());
  }
  world_meet(self);
}

TEST(first_calls_have_their_own) {
  begin("");
  WORLD_RUN(come_late, .nranks = 2, .bare = true);
  device_world_end();
}

/* ---- two communicators ------------------------------------------------------------------------------------------- */

enum { PAIR_TOKENS = 16, PAIR_HEADS = 32, PAIR_DIM = 64, PAIR_ROWS = PAIR_TOKENS * PAIR_HEADS, PAIR_ROUNDS = 3 };

typedef struct pair_side {
  banyan_comm *comm;
  void *stream;
  banyan_op *op;
  float in[PAIR_ROWS * PAIR_DIM], in_lse[PAIR_ROWS], out[PAIR_ROWS * PAIR_DIM], out_lse[PAIR_ROWS];
} pair_side;

static bool pair_make(world_rank *self, pair_side *side, int number, bny_device *device) {
  char name[16];
  snprintf(name, sizeof name, "cuda:%d", self->rank);
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = WORLD_GUARD_NS, .device = name};
  banyan_partial in, out;
  for (int i = 0; i < PAIR_ROWS * PAIR_DIM; i++) side->in[i] = (float)(number + 2 * self->rank + i % 8);
  banyan_partial_init(&in, side->in, BANYAN_F32, side->in_lse, BANYAN_F32, PAIR_HEADS, PAIR_DIM);
  banyan_partial_init(&out, side->out, BANYAN_F32, side->out_lse, BANYAN_F32, PAIR_HEADS, PAIR_DIM);
  if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &side->comm), "create") ||
      !world_ok(self, device->ops->stream_make(device, &side->stream), "stream"))
    return false;
  banyan_combine_desc desc = {.size = sizeof desc,
                              .tokens = PAIR_TOKENS,
                              .heads = PAIR_HEADS,
                              .value_dim = PAIR_DIM,
                              .algorithm = "oneshot",
                              .stream = side->stream};
  return world_ok(self, banyan_combine_init(side->comm, &desc, &in, &out, &side->op), "init");
}

/* The mean of both ranks' values, for all have one weight. */
static void pair_check(world_rank *self, const pair_side *side, int number) {
  for (int i = 0; i < PAIR_ROWS * PAIR_DIM; i++)
    if (!world_check(self, side->out[i] == (float)(number + 1 + i % 8), "value %d is %g", i, (double)side->out[i]))
      return;
}

static void pair_run(world_rank *self) {
  bny_device *device = NULL;
  pair_side *sides = calloc(2, sizeof *sides);
  bool good = world_ok(self, open_fake(self->rank, &device), "open");
  for (int i = 0; i < 2 && good; i++) good = pair_make(self, &sides[i], 10 * i, device);
  for (int round = 0; round < PAIR_ROUNDS && good; round++)
    for (int i = 0; i < 2 && good; i++) good = world_ok(self, banyan_start(sides[i ^ self->rank].op), "start");
  good = device_world_run(self) && good;
  for (int i = 0; i < 2; i++) {
    if (good && world_ok(self, banyan_comm_status(sides[i].comm), "status")) pair_check(self, &sides[i], 10 * i);
    banyan_op_free(sides[i].op);
    banyan_comm_destroy(sides[i].comm);
    if (sides[i].stream) device->ops->stream_free(device, sides[i].stream);
  }
  if (device) device->ops->close(device);
  free(sides);
}

/* Two ranks use two communicators in opposite orders, each on a stream of its own. There is work for more blocks than
 * the devices hold at once: were a combine to take them all, that of one communicator would wait on each device for
 * that of the other. */
TEST_LOOP(opposite_orders_do_not_starve, 2) {
  begin(_i ? "sms=4" : "sms=16");
  WORLD_RUN(pair_run, .nranks = 2, .bare = true);
  ck_assert_uint_eq(FAKE_CUDA(fake_cuda_most_blocks)(), _i ? 8 : 32);
  device_world_end();
}

int main(void) { return world_main(suite_of("device_combine", 60)); }
#endif
