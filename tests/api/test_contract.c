/* SPDX-License-Identifier: Apache-2.0
 * Promises of the header beyond arguments and numbers: impossible sizes, calls that differ after their first part,
 * planning while operations run, unlimited deadlines, failures found by asking, and forked children of ranks. */
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/support/world.h"

enum { LONG = 400000, SHORT = 300000, RANKS = 3, LATE_MS = 40 };

static const size_t arena_bytes = 64 << 10; /* so that LONG and SHORT take several parts, and begin alike */

/* ---- calls that differ beyond their first part ------------------------------------------------------------------- */

typedef enum call { SHIFT, BROADCAST, GATHER, CALLS } call;

static const char *const fields[] = {"bytes", "bytes", "counts"};

typedef struct ends {
  call call;
  bool repeated;
} ends;

typedef struct buffers {
  unsigned char from[LONG], to[RANKS * LONG];
} buffers;

static banyan_status make_call(world_rank *self, call call, buffers *buffers, size_t bytes) {
  size_t counts[RANKS] = {SHORT, bytes, LONG};
  if (call == SHIFT) return banyan_shift(self->comm, buffers->from, buffers->to, bytes, 1);
  if (call == BROADCAST) return banyan_broadcast(self->comm, buffers->from, bytes, 1);
  return banyan_allgather(self->comm, buffers->from, buffers->to, counts);
}

static void fill(world_rank *self, buffers *buffers) {
  memset(buffers->from, self->rank + 1, sizeof buffers->from);
  memset(buffers->to, 0, sizeof buffers->to);
}

/* Rank 0 differs from all others and must receive nothing, not even the parts that agree. */
static bool is_untouched(world_rank *self, call call, const buffers *buffers) {
  if (self->rank != 0) return true;
  if (call == BROADCAST) return buffers->from[0] == 1;
  return buffers->to[call == GATHER ? SHORT : 0] == 0;
}

static void differ_late(world_rank *self) {
  const ends *ends = self->argument;
  buffers *buffers = calloc(1, sizeof *buffers);
  bool good = buffers != NULL;
  for (int i = 0; i < 2 && good && ends->repeated; i++)
    good = world_ok(self, make_call(self, ends->call, buffers, i ? SHORT : LONG), "a call that agrees");
  if (good && world_meet(self)) {
    fill(self, buffers);
    banyan_status status = make_call(self, ends->call, buffers, self->rank == 0 ? SHORT : LONG);
    world_gets(self, status, BANYAN_ERR_MISMATCH, fields[ends->call]);
    world_check(self, is_untouched(self, ends->call, buffers), "it got data of a call in which ranks differ");
  }
  free(buffers);
}

TEST_LOOP(difference_beyond_the_first_part, 2 * CALLS) {
  ends ends = {.call = (call)(_i % CALLS), .repeated = _i >= CALLS};
  WORLD_RUN(differ_late, .nranks = RANKS, .arena_bytes = arena_bytes, .timeout_ns = 5000000000, .argument = &ends);
}

/* ---- impossible sizes -------------------------------------------------------------------------------------------- */

TEST_RANKS(sizes_that_cannot_be, 1, .nranks = RANKS, .arena_bytes = arena_bytes) {
  unsigned char byte = 0, all[RANKS];
  for (int shift = 45; shift < 63; shift++) {
    banyan_status status = banyan_broadcast(self->comm, &byte, (size_t)1 << shift, 0);
    if (!world_check(self, status != BANYAN_OK && status < BANYAN_ERR_TIMEOUT, "2^%d bytes: %s", shift,
                     banyan_status_string(status)))
      return;
    size_t counts[RANKS] = {1, (size_t)1 << shift, 1};
    status = banyan_allgather(self->comm, &byte, all, counts);
    if (!world_check(self, status != BANYAN_OK && status < BANYAN_ERR_TIMEOUT, "a count of 2^%d: %s", shift,
                     banyan_status_string(status)))
      return;
  }
  size_t wraps[RANKS] = {SIZE_MAX / 2, SIZE_MAX / 2, 3};
  if (!world_check(self, banyan_allgather(self->comm, &byte, all, wraps) == BANYAN_ERR_ARGUMENT, "counts that wrap"))
    return;
  world_ok(self, banyan_barrier(self->comm), "the communicator remains usable");
}

/* ---- planning while operations run ------------------------------------------------------------------------------- */

TEST_RANKS(planning_amid, 1, .nranks = RANKS) {
  world_random own = random_seed() * 5 + (uint64_t)self->rank;
  unsigned char sent[64], received[64], more[300], there[300];
  banyan_op *op = NULL, *other = NULL;
  bool good = world_ok(self, banyan_shift_init(self->comm, sent, received, sizeof sent, 1, &op), "init");
  int32_t left = (self->rank + self->nranks - 1) % self->nranks;
  for (int round = 0; round < 40 && good; round++) {
    memset(sent, round + self->rank, sizeof sent);
    memset(more, 2 * round + self->rank, sizeof more);
    if (random_one_in(&own, 4)) world_sleep_ms(random_below(&own, 4));
    good = world_ok(self, banyan_start(op), "start") &&
           world_ok(self, banyan_shift(self->comm, more, there, (size_t)(100 + round), 1), "a new shape amid") &&
           world_ok(self, banyan_barrier_init(self->comm, &other), "init amid") &&
           world_ok(self, banyan_wait(op), "wait");
    banyan_op_free(other);
    other = NULL;
    good = good &&
           world_check(self, received[63] == (unsigned char)(round + left), "round %d: the first is wrong", round) &&
           world_check(self, there[99 + round] == (unsigned char)(2 * round + left), "round %d: the second is wrong",
                       round);
  }
  banyan_op_free(op);
}

/* ---- unlimited deadlines ----------------------------------------------------------------------------------------- */

TEST_RANKS(patience_without_end, 2, .nranks = 2, .timeout_ns = INT64_MAX, .processes = _i == 1) {
  for (int round = 0; round < 3; round++) {
    if (round % self->nranks == self->rank) world_sleep_ms(LATE_MS);
    if (!world_ok(self, banyan_barrier(self->comm), "barrier")) return;
  }
}

/* ---- failures found by asking ------------------------------------------------------------------------------------ */

TEST_RANKS(failures_learnt_by_asking, 1, .nranks = 2) {
  banyan_op *ops[3] = {NULL, NULL, NULL};
  for (int i = 0; i < 3; i++)
    if (!world_ok(self, banyan_barrier_init(self->comm, &ops[i]), "init")) return;
  if (self->rank == 0) {
    for (int i = 0; i < 3; i++)
      if (!world_ok(self, banyan_start(ops[i]), "start")) return;
    world_signal(self->world, 1);
    banyan_status status = BANYAN_OK;
    for (double begin = world_now_s(); status == BANYAN_OK && world_now_s() - begin < 10;)
      status = banyan_comm_status(self->comm);
    world_check(self, status == BANYAN_ERR_ABORTED, "status is %s", banyan_status_string(status));
    world_check(self, banyan_comm_failed_rank(self->comm) == 1, "the wrong rank is blamed");
    world_check(self, banyan_wait(ops[1]) == status, "wait says something else");
  } else {
    world_await(self->world, 1, 10);
    banyan_comm_abort(self->comm, "enough");
  }
  world_check(self, banyan_start(ops[0]) == BANYAN_ERR_ABORTED, "start after an abort");
  world_check(self, banyan_barrier(self->comm) == BANYAN_ERR_ABORTED, "a new call after an abort");
  for (int i = 0; i < 3; i++) banyan_op_free(ops[i]); /* operations of a failed communicator, some without a wait */
}

/* ---- forked children --------------------------------------------------------------------------------------------- */

/* A child may only free its copies. Returns 0 if everything else is rejected. */
static int use_copies(banyan_comm *comm, banyan_op *idle, banyan_op *started) {
  int done;
  char byte = 0;
  banyan_op *op;
  banyan_comm *shrunk;
  const banyan_status found[] = {banyan_start(idle),
                                 banyan_test(started, &done),
                                 banyan_wait(started),
                                 banyan_broadcast(comm, &byte, 1, 0),
                                 banyan_barrier_init(comm, &op),
                                 banyan_comm_status(comm),
                                 banyan_comm_shrink(comm, NULL, &shrunk),
                                 banyan_comm_split(comm, 0, 0, &shrunk),
                                 banyan_barrier(comm)};
  for (size_t i = 0; i < sizeof found / sizeof found[0]; i++)
    if (found[i] != BANYAN_ERR_STATE) return (int)i + 1;
  if (!strstr(banyan_last_error(), "child of a fork") || !strstr(banyan_comm_error(comm), "child of a fork"))
    return 100;
  if (banyan_broadcast(comm, NULL, 1, 0) != BANYAN_ERR_ARGUMENT) return 101;
  banyan_comm_abort(comm, "by a child");
  banyan_op_free(started);
  banyan_op_free(idle);
  banyan_comm_destroy(comm);
  return 0;
}

static int end_of(pid_t child) {
  int how = 0;
  return child > 0 && waitpid(child, &how, 0) == child ? how : -1;
}

/* Children inherit operations, one of them running, and free all of them. No peer notices. */
static void have_children(world_rank *self) {
  char data[64] = {0};
  banyan_op *idle, *started;
  for (int round = 0; round < 4; round++) {
    if (!world_ok(self, banyan_barrier(self->comm), "barrier") ||
        !world_ok(self, banyan_broadcast_init(self->comm, data, sizeof data, 0, &idle), "init") ||
        !world_ok(self, banyan_barrier_init(self->comm, &started), "init") || !world_meet(self))
      return;
    bool first = self->rank == round % self->nranks;
    if (first && !world_ok(self, banyan_start(started), "start")) return;
    pid_t child = fork();
    if (child == 0) _exit(use_copies(self->comm, idle, started));
    int how = end_of(child);
    if (!world_check(self, how == 0, "the child of round %d ended with %#x", round, how) || !world_meet(self)) return;
    if ((!first && !world_ok(self, banyan_start(started), "start")) || !world_ok(self, banyan_wait(started), "wait") ||
        !world_runs(self, idle))
      return;
    banyan_op_free(started);
    banyan_op_free(idle);
  }
  world_ok(self, banyan_barrier(self->comm), "barrier after the children");
}

static const struct {
  int32_t nranks;
  bool processes;
  const char *nodes;
} families[] = {{1, false, NULL}, {3, false, NULL}, {3, true, NULL}, {3, true, "a,a,b"}};

TEST_LOOP(children_take_no_part, (int)(sizeof families / sizeof families[0])) {
  if (!world_be_nodes(families[_i].nodes)) return;
  WORLD_RUN(have_children, .nranks = families[_i].nranks, .processes = families[_i].processes);
}

/* ---- children of callbacks --------------------------------------------------------------------------------------- */

/* How a child comes about while its parent is in a call, and how it continues. */
typedef enum way { CHECK_RETURNS, CHECK_ENDS_WAIT, SIGNAL_HANDLER, ALLGATHER } way;

static struct callback {
  way way;
  pid_t child;
  int how, calls;
  bool is_child;
  world *world;
  banyan_bootstrap bootstrap; /* ALLGATHER: the one that is wrapped */
} callback;

/* The child returns from the callback at once. The parent returns when the child has ended, and then the other ranks
 * come. */
static bool fork_once(void) {
  if (callback.child || callback.is_child) return false;
  pid_t child = fork();
  callback.is_child = child == 0;
  callback.child = child;
  if (child > 0) callback.how = end_of(child);
  if (child != 0) world_signal(callback.world, 1);
  return child == 0;
}

static int check_forks(void *context) {
  (void)context;
  return fork_once() && callback.way == CHECK_ENDS_WAIT;
}

static void handler_forks(int signal) {
  (void)signal;
  fork_once();
}

static int allgather_forks(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  (void)context;
  callback.calls++;
  if (fork_once()) return 0;
  return callback.bootstrap.allgather(callback.bootstrap.context, mine, all, bytes, timeout_ns);
}

static bool child_makes_its_own(void) {
  banyan_threads *group;
  banyan_bootstrap bootstrap;
  banyan_comm *own;
  banyan_on_wait(NULL, NULL);
  if (banyan_threads_create(1, &group) != BANYAN_OK || banyan_threads_bootstrap(group, 0, &bootstrap) != BANYAN_OK ||
      banyan_comm_create(&bootstrap, NULL, &own) != BANYAN_OK)
    return false;
  bool good = banyan_barrier(own) == BANYAN_OK;
  banyan_comm_destroy(own);
  banyan_threads_destroy(group);
  return good;
}

/* Returns 0 if the child got the error, took no further part, and may go on alone. */
static int use_as_child(banyan_comm *comm, banyan_status status) {
  if (status != BANYAN_ERR_STATE || !strstr(banyan_last_error(), "child of a fork")) return 1;
  if (callback.calls > 1) return 2;
  if (comm && banyan_barrier(comm) != BANYAN_ERR_STATE) return 3;
  banyan_comm_destroy(comm);
  return child_makes_its_own() ? 0 : 4;
}

static bool begin_forks(world_rank *self) {
  callback.world = self->world;
  if (self->rank > 0) return world_await(self->world, 1, WORLD_GUARD_S);
  if (callback.way != SIGNAL_HANDLER) banyan_on_wait(check_forks, NULL);
  if (callback.way != SIGNAL_HANDLER) return true;
  signal(SIGALRM, handler_forks);
  return setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 30000}, NULL) == 0;
}

static void end_forks(world_rank *self, banyan_status status) {
  if (callback.is_child) _exit(use_as_child(self->comm, status));
  banyan_on_wait(NULL, NULL);
  if (!world_ok(self, status, "the call")) return;
  if (self->rank == 0)
    world_check(self, callback.child > 0 && callback.how == 0, "the child ended with %#x", callback.how);
  world_ok(self, banyan_barrier(self->comm), "barrier after the child");
}

/* Rank 0 forks while it waits for the others. */
static void fork_in_wait(world_rank *self) {
  banyan_op *op = NULL;
  if (!world_ok(self, banyan_barrier_init(self->comm, &op), "init") || !begin_forks(self)) return;
  banyan_status status = start_and_wait(op);
  if (!callback.is_child) banyan_op_free(op);
  end_forks(self, status);
}

TEST_LOOP(children_of_callbacks_take_no_part, (3 * (int)(sizeof families / sizeof families[0]))) {
  int which = _i / 3;
  callback = (struct callback){.way = (way)(_i % 3)};
  if (families[which].nranks == 1 || (callback.way == SIGNAL_HANDLER && !families[which].processes)) return;
  if (!world_be_nodes(families[which].nodes)) return;
  WORLD_RUN(fork_in_wait, .nranks = families[which].nranks, .processes = families[which].processes);
}

/* Rank 0 forks while it waits for the others in a shrink. */
static void fork_in_shrink(world_rank *self) {
  banyan_comm *left = NULL;
  banyan_status status = banyan_barrier(self->comm);
  if (!world_ok(self, status, "barrier") || !world_meet(self)) return;
  if (self->rank == 0) banyan_comm_abort(self->comm, "the ranks shrink");
  while (status == BANYAN_OK) status = banyan_barrier(self->comm);
  if (!world_meet(self) || !begin_forks(self)) return;
  status = banyan_comm_shrink(self->comm, NULL, &left);
  if (!callback.is_child && left) {
    world_check(self, banyan_comm_nranks(left) == self->nranks, "%d ranks are left", banyan_comm_nranks(left));
    banyan_comm_destroy(self->comm);
    self->comm = left;
  }
  end_forks(self, status);
}

TEST_LOOP(children_of_a_shrink_take_no_part, 6) {
  callback = (struct callback){.way = (way)(_i % 3)};
  if (!world_be_nodes(_i / 3 ? "a,a,b" : NULL)) return;
  WORLD_RUN(fork_in_shrink, .nranks = 3, .processes = true);
}

/* Rank 0 forks while its communicator is made. */
static void fork_in_creation(world_rank *self) {
  if (callback.way == ALLGATHER && self->rank == 0) {
    callback.bootstrap = self->bootstrap;
    callback.world = self->world;
    self->bootstrap.allgather = allgather_forks;
  } else if (!begin_forks(self)) {
    return;
  }
  banyan_status status = banyan_comm_create(&self->bootstrap, NULL, &self->comm);
  end_forks(self, status);
}

TEST_LOOP(children_of_a_creation_take_no_part, 4) {
  static const way ways[] = {CHECK_RETURNS, CHECK_ENDS_WAIT, ALLGATHER, ALLGATHER};
  callback = (struct callback){.way = ways[_i]};
  WORLD_RUN(fork_in_creation, .nranks = 3, .bare = true, .processes = _i == 3);
}

/* ---- a rank that comes after the deadline ------------------------------------------------------------------------ */

/* The last rank makes its call when all others have the timeout. Their messages have arrived, and it gets the
 * failure. */
static void come_late(world_rank *self) {
  const bool is_first = *(const bool *)self->argument;
  banyan_op *op = NULL;
  char data[2][64] = {{0}};
  if (!world_ok(self, banyan_barrier(self->comm), "barrier")) return;
  if (!is_first && !world_ok(self, banyan_shift(self->comm, data[0], data[1], 64, 1), "before")) return;
  if (!world_meet(self)) return;
  bool is_late = self->rank == self->nranks - 1;
  for (int32_t r = 0; is_late && r < self->nranks - 1; r++)
    if (!world_await(self->world, r, WORLD_GUARD_S)) return;
  banyan_status status = is_first ? banyan_broadcast_init(self->comm, data[0], 64, 0, &op)
                                  : banyan_shift(self->comm, data[0], data[1], 64, 1);
  /* Rank 0 gets its data from the last rank, rank 1 from rank 0, and the others fail in the next call. */
  if (status == BANYAN_OK && !is_late) status = banyan_barrier(self->comm);
  world_check(self, status == BANYAN_ERR_TIMEOUT, "%s: %s", banyan_status_string(status), banyan_last_error());
  world_signal(self->world, self->rank);
  banyan_op_free(op);
}

TEST_LOOP(a_late_rank_gets_the_failure, 6) {
  static const world_backend *const backends[] = {&world_threads, &world_processes, &world_nodes};
  bool is_first = _i % 2;
  if (!world_is_here(backends[_i / 2])) return;
  WORLD_RUN(come_late, .nranks = 3, .on = backends[_i / 2], .timeout_ns = 400000000, .argument = &is_first);
}

/* ---- tests far apart --------------------------------------------------------------------------------------------- */

/* The clock of the calling thread is ahead by this time. */
static _Thread_local int64_t ahead_ns;

/* Replaces that of the C library in this program. */
int clock_gettime(clockid_t clock, struct timespec *now) {
  long result = syscall(SYS_clock_gettime, clock, now);
  int64_t ns = now->tv_nsec + ahead_ns;
  *now = (struct timespec){now->tv_sec + ns / 1000000000, ns % 1000000000};
  return (int)result;
}

static const double pauses[] = {0.1, 0.25, 0.5, 1, 3, 100}; /* in deadlines */

/* Rank 0 tests with pauses. Rank 1 does not come before rank 0 has the timeout. */
static void test_with_pauses(world_rank *self) {
  const double pause = *(const double *)self->argument, deadline_s = 600;
  banyan_op *op = NULL;
  banyan_status status = banyan_barrier_init(self->comm, &op);
  if (!world_ok(self, status, "init") || !world_meet(self)) return;
  if (self->rank == 1) {
    world_await(self->world, 1, WORLD_GUARD_S);
    world_check(self, banyan_barrier(self->comm) == BANYAN_ERR_TIMEOUT, "%s", banyan_last_error());
    banyan_op_free(op);
    return;
  }
  int done = 0, tests = 0;
  world_ok(self, banyan_start(op), "start");
  for (; status == BANYAN_OK && tests < 100; tests++) {
    if (tests > 0) ahead_ns += (int64_t)(pause * deadline_s * 1e9);
    status = banyan_test(op, &done);
  }
  int wanted = pause < 0.5 ? 1 + (int)ceil(1 / pause) : 3;
  world_check(self, status == BANYAN_ERR_TIMEOUT && tests == wanted, "%d tests of %d: %s", tests, wanted,
              banyan_last_error());
  world_check(self, pause <= 0.5 || strstr(banyan_last_error(), " with pauses"), "%s", banyan_last_error());
  ahead_ns = 0;
  world_signal(self->world, 1);
  banyan_op_free(op);
}

TEST_LOOP(tests_far_apart_reach_the_deadline, (int)(sizeof pauses / sizeof pauses[0])) {
  double pause = pauses[_i];
  WORLD_RUN(test_with_pauses, .nranks = 2, .argument = &pause);
}

int main(void) { return world_main(suite_of("contract", 120)); }
