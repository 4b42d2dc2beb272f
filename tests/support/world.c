/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/world.h"
#include "tests/support/generator.h"
#include "tests/support/clock.h"
#include "tests/support/sanitized.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GATHER_BYTES_MAX = 4096, FLAGS = 64 };

/* Shared by all ranks; processes map it as shared memory. */
struct world {
  int32_t nranks;
  atomic_int arrived, generation;
  atomic_int failure_state; /* 0 none, 1 being written, 2 complete */
  char failure[1024];
  atomic_int flags[FLAGS];
  unsigned char gathered[WORLD_RANKS_MAX][GATHER_BYTES_MAX];
};

bool world_is_sanitized(void) { return IS_SANITIZED; }

/* ---- time and memory --------------------------------------------------------------------------------------------- */

double world_now_s(void) { return now_s(); }

void world_sleep_ms(double milliseconds) { sleep_s(milliseconds * 1e-3); }

void *world_share(size_t bytes) {
  void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(memory, MAP_FAILED);
  return memory;
}

void world_unshare(void *memory, size_t bytes) { munmap(memory, bytes ? bytes : 1); }

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void note_failure(world *world, const char *format, va_list arguments) {
  int none = 0;
  if (!atomic_compare_exchange_strong(&world->failure_state, &none, 1)) return;
  vsnprintf(world->failure, sizeof world->failure, format, arguments);
  atomic_store(&world->failure_state, 2);
}

static void fail_world(world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail_world(world *world, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  note_failure(world, format, arguments);
  va_end(arguments);
}

bool world_check(world_rank *self, bool ok, const char *format, ...) {
  if (ok) return true;
  char text[800];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fail_world(self->world, "rank %d of %d: %s", self->rank, self->nranks, text);
  banyan_comm_abort(self->comm, "a test failed");
  return false;
}

bool world_ok(world_rank *self, banyan_status status, const char *what) {
  if (status == BANYAN_OK) return true;
  return world_check(self, false, "%s: %s: %s", what, banyan_status_string(status), banyan_last_error());
}

/* ---- barrier ----------------------------------------------------------------------------------------------------- */

static bool meet(world *world, double seconds) {
  int generation = atomic_load(&world->generation);
  if (atomic_fetch_add(&world->arrived, 1) + 1 == world->nranks) {
    atomic_store(&world->arrived, 0);
    atomic_fetch_add(&world->generation, 1);
    return true;
  }
  double deadline = world_now_s() + seconds;
  for (int polls = 0; atomic_load(&world->generation) == generation; polls++) {
    if (atomic_load(&world->failure_state) || world_now_s() > deadline) return false;
    if (polls < 100)
      sched_yield();
    else
      world_sleep_ms(0.2);
  }
  return true;
}

bool world_meet(world_rank *self) {
  return world_check(self, meet(self->world, WORLD_GUARD_S), "not all ranks came to a meeting of the test");
}

void world_signal(world *world, int flag) { atomic_store(&world->flags[flag], 1); }

bool world_await(world *world, int flag, double seconds) {
  double deadline = world_now_s() + seconds;
  while (!atomic_load(&world->flags[flag])) {
    if (world_now_s() > deadline) return false;
    world_sleep_ms(0.1);
  }
  return true;
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

typedef struct process_rank {
  world *world;
  int32_t rank;
} process_rank;

static int allgather_processes(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  process_rank *self = context;
  world *world = self->world;
  if (bytes > GATHER_BYTES_MAX) return 1;
  memcpy(world->gathered[self->rank], mine, bytes);
  if (!meet(world, (double)timeout_ns * 1e-9)) return 1;
  for (int32_t i = 0; i < world->nranks; i++) memcpy((char *)all + (size_t)i * bytes, world->gathered[i], bytes);
  return meet(world, (double)timeout_ns * 1e-9) ? 0 : 1;
}

typedef struct job {
  world_rank rank;
  const world_setup *setup;
  world_body body;
} job;

static void live(job *job) {
  world_rank *self = &job->rank;
  const world_setup *setup = job->setup;
  banyan_comm_config config = {
      .size = sizeof config,
      .timeout_ns = setup->timeout_ns ? setup->timeout_ns : WORLD_GUARD_NS,
      .arena_bytes = setup->arena_bytes,
      .algorithm = setup->algorithm,
  };
  if (!setup->bare && !world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) return;
  job->body(self);
  banyan_comm_destroy(self->comm);
}

static void *live_as_thread(void *argument) {
  live(argument);
  return NULL;
}

static job job_of(world *world, const world_setup *setup, world_body body, int32_t rank) {
  return (job){.rank = {.world = world, .rank = rank, .nranks = setup->nranks, .argument = setup->argument},
               .setup = setup,
               .body = body};
}

static void run_threads(world *world, const world_setup *setup, world_body body) {
  banyan_threads *group;
  pthread_t threads[WORLD_RANKS_MAX];
  job jobs[WORLD_RANKS_MAX];
  ck_assert_int_eq(banyan_threads_create(setup->nranks, &group), BANYAN_OK);
  for (int32_t i = 0; i < setup->nranks; i++) {
    jobs[i] = job_of(world, setup, body, i);
    ck_assert_int_eq(banyan_threads_bootstrap(group, i, &jobs[i].rank.bootstrap), BANYAN_OK);
    ck_assert_int_eq(pthread_create(&threads[i], NULL, live_as_thread, &jobs[i]), 0);
  }
  for (int32_t i = 0; i < setup->nranks; i++) pthread_join(threads[i], NULL);
  banyan_threads_destroy(group);
}

static void live_as_process(world *world, const world_setup *setup, world_body body, int32_t rank) {
  process_rank context = {world, rank};
  job job = job_of(world, setup, body, rank);
  job.rank.bootstrap = (banyan_bootstrap){.size = sizeof(banyan_bootstrap),
                                          .rank = rank,
                                          .nranks = setup->nranks,
                                          .context = &context,
                                          .allgather = allgather_processes};
  live(&job);
  _exit(0); /* the exit handlers of Check belong to its own process */
}

static void run_processes(world *world, const world_setup *setup, world_body body) {
  pid_t pids[WORLD_RANKS_MAX];
  for (int32_t i = 0; i < setup->nranks; i++) {
    pids[i] = fork();
    ck_assert_int_ge(pids[i], 0);
    if (pids[i] == 0) live_as_process(world, setup, body, i);
  }
  if (setup->conduct) setup->conduct(world, pids, setup->argument);
  for (int32_t i = 0; i < setup->nranks; i++) {
    int how = 0;
    ck_assert_int_eq(waitpid(pids[i], &how, 0), pids[i]);
    if (WIFSIGNALED(how) && !setup->deaths) fail_world(world, "rank %d died of signal %d", i, WTERMSIG(how));
    if (WIFEXITED(how) && WEXITSTATUS(how)) fail_world(world, "rank %d exited with %d", i, WEXITSTATUS(how));
  }
}

void world_run(const world_setup *setup, world_body body) {
  ck_assert_int_le(setup->nranks, WORLD_RANKS_MAX);
  world *world = world_share(sizeof *world);
  world->nranks = setup->nranks;
  if (setup->processes)
    run_processes(world, setup, body);
  else
    run_threads(world, setup, body);
  char failure[sizeof world->failure];
  bool failed = atomic_load(&world->failure_state) != 0;
  memcpy(failure, world->failure, sizeof failure);
  world_unshare(world, sizeof *world);
  ck_assert_msg(!failed, "%s (seed %llu)", failure, (unsigned long long)world_seed());
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

uint64_t world_seed(void) {
  const char *text = getenv("TEST_SEED");
  return text ? strtoull(text, NULL, 0) : 1;
}

uint64_t random_next(world_random *random) { return random_word(&random->state); }

int32_t random_below(world_random *random, int32_t limit) {
  return limit > 0 ? (int32_t)(random_next(random) % (uint64_t)limit) : 0;
}

double random_unit(world_random *random) { return (double)(random_next(random) >> 11) * 0x1p-52 - 1.0; }

bool random_one_in(world_random *random, int32_t n) { return random_below(random, n) == 0; }

/* ---- program ----------------------------------------------------------------------------------------------------- */

void world_be_nodes(const char *nodes) {
  setenv("UCX_TLS", "tcp", 0);
  setenv("UCX_NET_DEVICES", "lo", 0);
  if (nodes)
    setenv("BANYAN_NODE", nodes, 1);
  else
    unsetenv("BANYAN_NODE");
}

bool world_has_network(void) {
  bool has = access("/sys/class/net/lo", F_OK) == 0;
  if (!has) printf("skipped: no /sys/class/net, where UCX looks for devices\n");
  return has;
}

int world_main(struct Suite *suite) {
  SRunner *runner = srunner_create(suite);
  srunner_set_fork_status(runner, CK_FORK);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
