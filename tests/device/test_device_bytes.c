/* SPDX-License-Identifier: Apache-2.0
 * Gather, shift, broadcast and barrier on devices, from banyan.h down: over the fake driver, which runs the library's
 * kernels on emulated devices. */
#include <check.h>

#include "tests/device/device_world.h"
#include "tests/support/suite.h"

enum { RANKS_MAX = 5, MOVES = 16, GUARD = 32 };

#if !defined HAVE_CUDA || !defined HAVE_CXX17
int main(void) {
  puts("built without CUDA, or without a compiler of C++17");
  return 77;
}
#else

typedef enum kind { GATHER, GATHER_IN_PLACE, SHIFT, BROADCAST, BARRIER, KINDS } kind;
static const char *const kind_names[] = {"gather", "gather in place", "shift", "broadcast", "barrier"};

/* One call of all ranks, and its memory: of `sizes` bytes, and guards behind them. */
typedef struct move {
  kind kind;
  size_t counts[RANKS_MAX], bytes; /* bytes: of shift, broadcast and all counts */
  int32_t root, distance;
  unsigned char *in[RANKS_MAX], *out[RANKS_MAX];
} move;

typedef struct task {
  int32_t nranks, nmoves;
  bool one_device;
  size_t arena_bytes;
  int64_t timeout_ns;
  void (*body)(world_rank *self);
  world_random random;
  move moves[MOVES];
} task;

/* ---- a world ----------------------------------------------------------------------------------------------------- */

static void live(world_rank *self) {
  const task *task = self->argument;
  char device[16];
  snprintf(device, sizeof device, "cuda:%d", task->one_device ? 0 : self->rank);
  banyan_comm_config config = {.size = sizeof config,
                               .arena_bytes = task->arena_bytes,
                               .device = device,
                               .timeout_ns = task->timeout_ns ? task->timeout_ns : WORLD_GUARD_NS};
  if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) return;
  task->body(self);
  world_meet(self);
}

static task *make_task(int32_t nranks, uint64_t seed, void (*body)(world_rank *self)) {
  task *made = calloc(1, sizeof *made);
  *made = (task){.nranks = nranks, .body = body, .random = {world_seed() * 1000 + seed}};
  return made;
}

static void free_task(task *task) {
  for (int32_t i = 0; i < task->nmoves; i++)
    for (int32_t r = 0; r < task->nranks; r++) {
      if (task->moves[i].in[r] != task->moves[i].out[r]) free(task->moves[i].in[r]);
      free(task->moves[i].out[r]);
    }
  free(task);
  device_world_end();
}

static void run(task *task) { WORLD_RUN(live, .nranks = task->nranks, .bare = true, .argument = task); }

/* ---- moves ------------------------------------------------------------------------------------------------------- */

static bool gathers(const move *move) { return move->kind <= GATHER_IN_PLACE; }

/* Byte `index` of what `rank` gives in `round`. */
static unsigned char byte_of(int32_t rank, int round, size_t index) {
  return (unsigned char)((size_t)rank * 37 + (size_t)round * 11 + index * 3 + (index >> 8));
}

static size_t begin_of(const move *move, int32_t rank) {
  size_t begin = 0;
  for (int32_t r = 0; r < rank; r++) begin += move->counts[r];
  return begin;
}

static unsigned char *mine_of(const move *move, int32_t rank) {
  return move->in[rank] + (move->kind == GATHER_IN_PLACE ? begin_of(move, rank) : 0);
}

/* Memory as it is before a round. */
static void fill(move *move, int32_t nranks, int round) {
  for (int32_t r = 0; r < nranks; r++) {
    size_t given = gathers(move) ? move->counts[r] : move->bytes;
    memset(move->out[r], 0x5a, move->bytes + GUARD);
    unsigned char *mine = mine_of(move, r);
    for (size_t i = 0; i < given && (move->kind != BROADCAST || r == move->root); i++) mine[i] = byte_of(r, round, i);
  }
}

static void add_move(task *task, kind kind, size_t bytes_max) {
  world_random *random = &task->random;
  move *made = &task->moves[task->nmoves++];
  made->kind = kind;
  made->root = random_below(random, task->nranks);
  made->distance = random_below(random, 2 * task->nranks + 1) - task->nranks;
  if (kind != BARRIER) made->bytes = (size_t)random_below(random, (int32_t)bytes_max);
  if (gathers(made)) {
    for (int32_t r = 0; r < task->nranks; r++)
      made->counts[r] = random_one_in(random, 3) ? 0 : (size_t)random_below(random, (int32_t)bytes_max);
    made->bytes = begin_of(made, task->nranks);
  }
  for (int32_t r = 0; r < task->nranks; r++) {
    made->out[r] = malloc(made->bytes + GUARD);
    made->in[r] = kind == GATHER || kind == SHIFT ? malloc(made->bytes + GUARD) : made->out[r];
  }
  fill(made, task->nranks, 0);
}

static void check_bytes(const move *move, int32_t rank, const unsigned char *at, size_t bytes, int32_t from,
                        int round) {
  for (size_t i = 0; i < bytes; i++)
    ck_assert_msg(at[i] == byte_of(from, round, i), "%s, rank %d, round %d: byte %zu of %zu from rank %d is wrong",
                  kind_names[move->kind], rank, round, i, bytes, from);
}

static void check(const task *task, const move *move, int round) {
  int32_t nranks = task->nranks;
  for (int32_t r = 0; r < nranks; r++) {
    const unsigned char *out = move->out[r];
    int32_t sender = ((r - move->distance) % nranks + nranks) % nranks;
    if (move->kind == SHIFT) check_bytes(move, r, out, move->bytes, sender, round);
    if (move->kind == BROADCAST) check_bytes(move, r, out, move->bytes, move->root, round);
    for (int32_t from = 0; from < nranks && gathers(move); from++)
      check_bytes(move, r, out + begin_of(move, from), move->counts[from], from, round);
    for (size_t i = move->bytes; i < move->bytes + GUARD; i++)
      ck_assert_msg(out[i] == 0x5a, "%s: rank %d wrote beyond its end", kind_names[move->kind], r);
  }
}

static banyan_status call(world_rank *self, const move *move) {
  unsigned char *mine = mine_of(move, self->rank), *out = move->out[self->rank];
  switch (move->kind) {
  case SHIFT: return banyan_shift(self->comm, mine, out, move->bytes, move->distance);
  case BROADCAST: return banyan_broadcast(self->comm, out, move->bytes, move->root);
  case BARRIER: return banyan_barrier(self->comm);
  default: return banyan_allgather(self->comm, mine, out, move->counts);
  }
}

static banyan_status init(world_rank *self, const move *move, banyan_op **op) {
  unsigned char *mine = mine_of(move, self->rank), *out = move->out[self->rank];
  switch (move->kind) {
  case SHIFT: return banyan_shift_init(self->comm, mine, out, move->bytes, move->distance, op);
  case BROADCAST: return banyan_broadcast_init(self->comm, out, move->bytes, move->root, op);
  case BARRIER: return banyan_barrier_init(self->comm, op);
  default: return banyan_allgather_init(self->comm, mine, out, move->counts, op);
  }
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void call_all(world_rank *self) {
  const task *task = self->argument;
  device_world_own own;
  device_world_make_own(self, task->one_device ? 0 : self->rank, &own);
  world_ok(self, banyan_comm_set_stream(self->comm, own.stream), "set stream");
  bool good = own.stream != NULL;
  for (int32_t i = 0; i < task->nmoves && good; i++) good = world_ok(self, call(self, &task->moves[i]), "call");
  if (good && device_world_run(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  device_world_free_own(&own);
}

/* In small arenas, larger ones go in parts. */
TEST_LOOP(bytes_arrive, 2 * RANKS_MAX) {
  device_world_begin(RANKS_MAX, _i % 3 == 2 ? "no-vmm,no-ipc" : "");
  task *task = make_task(1 + _i / 2, (uint64_t)_i, call_all);
  task->one_device = _i % 4 == 3;
  task->arena_bytes = _i % 2 ? 64 << 10 : 0;
  for (int round = 0; round < 2; round++)
    for (int kind = 0; kind < KINDS; kind++) add_move(task, (enum kind)kind, round ? 6000 : 300);
  add_move(task, GATHER_IN_PLACE, 9000);
  run(task);
  for (int32_t i = 0; i < task->nmoves; i++) check(task, &task->moves[i], 0);
  free_task(task);
}

/* The second call of a shape asks the driver for nothing but launches, and may come on another stream. */
static void call_twice(world_rank *self) {
  const task *task = self->argument;
  for (int32_t i = 0; i < task->nmoves; i++)
    if (!world_ok(self, call(self, &task->moves[i]), "call") || !device_world_run(self)) return;
  device_world_own own;
  device_world_make_own(self, self->rank, &own);
  world_meet(self);
  uint64_t before = FAKE_CUDA(fake_cuda_setup_calls)();
  world_meet(self);
  world_ok(self, banyan_comm_set_stream(self->comm, own.stream), "set stream");
  for (int32_t i = 0; i < task->nmoves; i++) world_ok(self, call(self, &task->moves[i]), "call");
  world_meet(self);
  uint64_t calls = FAKE_CUDA(fake_cuda_setup_calls)() - before;
  world_check(self, calls == 0, "%llu calls that allocate or wait", (unsigned long long)calls);
  device_world_run(self);
  world_ok(self, banyan_comm_status(self->comm), "status");
  device_world_free_own(&own);
}

TEST(hot_calls_do_not_allocate) {
  device_world_begin(RANKS_MAX, "");
  task *task = make_task(3, 60, call_twice);
  for (int kind = 0; kind < KINDS; kind++) add_move(task, (enum kind)kind, 700);
  run(task);
  for (int32_t i = 0; i < task->nmoves; i++) check(task, &task->moves[i], 0);
  free_task(task);
}

/* Persistent operations on a stream of their own, captured once and replayed with other bytes. */
static void capture_and_replay(world_rank *self) {
  task *task = self->argument;
  banyan_op *ops[MOVES] = {NULL};
  device_world_own own;
  if (!device_world_make_own(self, self->rank, &own)) return;
  world_ok(self, banyan_comm_set_stream(self->comm, own.stream), "set stream");
  for (int32_t i = 0; i < task->nmoves; i++) world_ok(self, init(self, &task->moves[i], &ops[i]), "init");
  world_ok(self, banyan_comm_set_stream(self->comm, NULL), "set stream"); /* they have no stream */
  FAKE_CUDA(fake_cuda_capture)(own.stream, true);
  for (int32_t i = 0; i < task->nmoves; i++) {
    int done = 0;
    world_ok(self, banyan_start(ops[i]), "start");
    world_check(self, banyan_test(ops[i], &done) == BANYAN_OK && done, "an operation on a stream is not done");
  }
  FAKE_CUDA(fake_cuda_capture)(own.stream, false);
  for (int round = 0; round < 4 && world_meet(self); round++) {
    for (int32_t i = 0; i < task->nmoves && self->rank == 0; i++) fill(&task->moves[i], task->nranks, round);
    FAKE_CUDA(fake_cuda_replay)(own.stream);
    if (!device_world_run(self)) break;
    for (int32_t i = 0; i < task->nmoves && self->rank == 0; i++) check(task, &task->moves[i], round);
  }
  for (int32_t i = 0; i < task->nmoves; i++) banyan_op_free(ops[i]);
  device_world_free_own(&own);
}

TEST(graphs) {
  device_world_begin(RANKS_MAX, "");
  task *task = make_task(4, 70, capture_and_replay);
  for (int kind = 0; kind < KINDS; kind++) add_move(task, (enum kind)kind, 900);
  run(task);
  free_task(task);
}

/* Rank 1 does not come: all come to know of it. */
static void leave_one_out(world_rank *self) {
  const task *task = self->argument;
  if (!world_ok(self, call(self, &task->moves[0]), "call") || !device_world_run(self)) return;
  if (self->rank != 1 && !world_ok(self, call(self, &task->moves[0]), "call")) return;
  if (!device_world_run(self)) return;
  double deadline = world_now_s() + WORLD_GUARD_S;
  while (banyan_comm_status(self->comm) == BANYAN_OK && world_now_s() < deadline) world_sleep_ms(1);
  world_check(self, banyan_comm_status(self->comm) == BANYAN_ERR_TIMEOUT && banyan_comm_failed_rank(self->comm) == 1,
              "status %d, rank %d", banyan_comm_status(self->comm), banyan_comm_failed_rank(self->comm));
}

TEST_LOOP(who_does_not_come_is_named, 2) {
  const kind kinds[] = {GATHER, BARRIER};
  device_world_begin(RANKS_MAX, "step-ns=20000");
  task *task = make_task(3, 80, leave_one_out);
  task->timeout_ns = 4000000000;
  add_move(task, kinds[_i], 500);
  run(task);
  free_task(task);
}

static void differ(world_rank *self) {
  const task *task = self->argument;
  banyan_status status = call(self, &task->moves[self->rank == 2]);
  world_check(self, status == BANYAN_ERR_MISMATCH && strstr(banyan_last_error(), "collective"), "status %d, %s", status,
              banyan_last_error());
}

TEST(ranks_in_other_calls_are_told) {
  device_world_begin(RANKS_MAX, "");
  task *task = make_task(3, 90, differ);
  add_move(task, BARRIER, 1);
  add_move(task, BROADCAST, 100);
  run(task);
  free_task(task);
}

static void refuse_stream(world_rank *self) {
  world_check(self, banyan_comm_set_stream(self->comm, self) == BANYAN_ERR_ARGUMENT, "a host has no streams");
  world_check(self, banyan_comm_set_stream(NULL, NULL) == BANYAN_ERR_ARGUMENT, "nor has nobody");
}

TEST(hosts_have_no_streams) { WORLD_RUN(refuse_stream, .nranks = 1); }

int main(void) { return world_main(suite_of("device_bytes", 60)); }
#endif
