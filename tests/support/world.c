/* SPDX-License-Identifier: Apache-2.0
 * Ranks of tests as threads or processes: they meet, share memory, and report the first failure. */
#include "tests/support/world.h"
#include "tests/support/clock.h"
#include "tests/support/placed.h"
#include "tests/support/sanitized.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

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

/* ---- memory of calls --------------------------------------------------------------------------------------------- */

/* Address space shared with processes forked later. Only the used part takes memory. */
enum { TAKEN_MAX = 1 << 30, TAKEN_ALIGNMENT = 64 };

typedef struct taken {
  atomic_size_t used;
  unsigned char memory[];
} taken;

static taken *all_taken;
static pthread_once_t taken_once = PTHREAD_ONCE_INIT;

static void reserve(void) {
  void *made = mmap(NULL, TAKEN_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) perror("mmap"), abort();
  all_taken = made;
  all_taken->used = TAKEN_ALIGNMENT; /* the counter itself takes this */
}

void *world_take(size_t bytes) {
  pthread_once(&taken_once, reserve);
  size_t whole = (bytes + TAKEN_ALIGNMENT) / TAKEN_ALIGNMENT * TAKEN_ALIGNMENT;
  size_t at = atomic_fetch_add(&all_taken->used, whole);
  if (whole > TAKEN_MAX || at > TAKEN_MAX - whole) fprintf(stderr, "a test takes %zu bytes more\n", bytes), abort();
  return (unsigned char *)all_taken + at;
}

unsigned char *world_taken(size_t *bytes) {
  pthread_once(&taken_once, reserve);
  *bytes = atomic_load(&all_taken->used);
  return (unsigned char *)all_taken;
}

/* ---- tests of one process ---------------------------------------------------------------------------------------- */

extern char **environ;

bool world_is_one_process(void) {
  const char *fork = getenv("CK_FORK");
  return fork && strcmp(fork, "no") == 0;
}

void world_anew(void) {
  static char **first; /* the environment of the first test */
  size_t count = 0;
  if (!world_is_one_process()) return;
  if (all_taken) {
    memset(all_taken->memory, 0, atomic_load(&all_taken->used) - sizeof *all_taken);
    atomic_store(&all_taken->used, TAKEN_ALIGNMENT);
  }
  if (!first) {
    while (environ[count]) count++;
    first = calloc(count + 1, sizeof *first);
    for (size_t i = 0; first && i < count; i++) first[i] = strdup(environ[i]);
    return;
  }
  clearenv();
  for (char **variable = first; *variable; variable++) putenv(strdup(*variable));
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void fail_world(world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail_world(world *world, const char *format, ...) {
  int none = 0;
  va_list arguments;
  if (!atomic_compare_exchange_strong(&world->failure_state, &none, 1)) return;
  va_start(arguments, format);
  vsnprintf(world->failure, sizeof world->failure, format, arguments);
  va_end(arguments);
  atomic_store(&world->failure_state, 2);
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

bool world_gets(world_rank *self, banyan_status status, banyan_status expected, const char *says) {
  return world_check(self, status == expected && strstr(banyan_last_error(), says), "%s, which lacks \"%s\": %s",
                     banyan_status_string(status), says, banyan_last_error());
}

bool world_runs(world_rank *self, banyan_op *op) { return world_ok(self, start_and_wait(op), "a run"); }

bool world_fails(world_rank *self, banyan_status status, int32_t culprit, const char *says) {
  double deadline = world_now_s() + WORLD_GUARD_S;
  while (banyan_comm_status(self->comm) == BANYAN_OK && world_now_s() < deadline) world_sleep_ms(1);
  const banyan_status found = banyan_comm_status(self->comm);
  const int32_t failed = banyan_comm_failed_rank(self->comm);
  const char *text = banyan_comm_error(self->comm);
  return world_check(self, found == status && failed == culprit && strstr(text, says), "status %d, rank %d, \"%s\"",
                     (int)found, failed, text);
}

int world_plans_made(const world_rank *self) {
  char text[4096];
  banyan_comm_describe(self->comm, text, sizeof text);
  const char *at = strstr(text, "plans made: ");
  return at ? atoi(at + strlen("plans made: ")) : 0;
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
      world_sleep_ms(polls < 200 ? 0.2 : 1);
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

void world_stop_in_turn(world *world, const pid_t *pids, void *argument) {
  world_random random = random_seed();
  int32_t nranks = *(int32_t *)argument, stops = 0;
  for (; !world_await(world, WORLD_DONE, 0.05); stops++) {
    const pid_t pid = pids[random_below(&random, nranks)];
    kill(pid, SIGSTOP);
    world_sleep_ms(5 + random_below(&random, 20));
    kill(pid, SIGCONT);
  }
  printf("%d ranks, %d stops\n", nranks, stops);
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

/* On a GPU, kernels meet in microseconds and time is limited, so a wait of seconds has failed. */
banyan_comm_config world_config(const world_rank *self) {
  int32_t timeout_s = !self->on->timeout_s ? WORLD_GUARD_S : world_is_quick() ? 60 : self->on->timeout_s;
  return (banyan_comm_config){
      .size = sizeof(banyan_comm_config),
      .timeout_ns = self->setup->timeout_ns ? self->setup->timeout_ns : timeout_s * INT64_C(1000000000),
      .arena_bytes = self->setup->arena_bytes,
      .algorithm = self->setup->algorithm,
      .device = self->device[0] ? self->device : NULL,
  };
}

static void live(job *job) {
  world_rank *self = &job->rank;
  bool good = !self->on->open || self->on->open(self);
  banyan_comm_config config = world_config(self);
  if (good && !self->setup->bare)
    good = world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create");
  if (good) job->body(self);
  if (self->on->is_device && self->comm) world_meet(self); /* all arenas are in use until the last rank ends */
  banyan_comm_destroy(self->comm);
  self->comm = NULL;
  if (self->on->close) self->on->close(self);
}

static void *live_as_thread(void *argument) {
  live(argument);
  return NULL;
}

static job job_of(world *world, const world_setup *setup, world_body body, int32_t rank) {
  return (job){.rank = {.world = world,
                        .rank = rank,
                        .nranks = setup->nranks,
                        .argument = setup->argument,
                        .on = setup->on,
                        .setup = setup},
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
  _exit(0); /* Check's exit handlers belong to the parent process */
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

void world_run(const world_setup *wanted, world_body body) {
  world_setup setup = *wanted;
  if (!setup.on) setup.on = setup.processes ? &world_processes : &world_threads;
  ck_assert_int_le(setup.nranks, WORLD_RANKS_MAX);
  if (setup.on->begin) setup.on->begin(&setup);
  world *world = world_share(sizeof *world);
  world->nranks = setup.nranks;
  if (setup.on->processes || setup.processes)
    run_processes(world, &setup, body);
  else
    run_threads(world, &setup, body);
  char failure[sizeof world->failure];
  bool failed = atomic_load(&world->failure_state) != 0;
  memcpy(failure, world->failure, sizeof failure);
  world_unshare(world, sizeof *world);
  ck_assert_msg(!failed, "%s (seed %llu)", failure, (unsigned long long)random_seed());
  if (setup.on->end) setup.on->end();
}

/* ---- backends ---------------------------------------------------------------------------------------------------- */

const world_backend *const world_backends[WORLD_BACKENDS] = {
    &world_threads, &world_processes, &world_nodes, &world_emulated, &world_staged, &world_gpu, &world_gpu_processes};

const char *world_nodes_of(const world_setup *setup) {
  static const char *const usual[] = {NULL, NULL, "a,b", "a,a,b", "a,b,a,b", "a,a,b,b,c"};
  static char text[2 * WORLD_RANKS_MAX + 1];
  if (setup->nodes) return setup->nodes;
  if (setup->nranks < 2 || setup->nranks > 5) { /* three ranks on a node */
    for (int32_t r = 0; r < setup->nranks; r++) snprintf(text + 2 * r, 3, "%c,", 'a' + r / 3);
    text[2 * setup->nranks - 1] = 0;
    return text;
  }
  return usual[setup->nranks];
}

static void begin_nodes(const world_setup *setup) { world_be_nodes(world_nodes_of(setup)); }

static bool has_nodes(void) {
#ifdef HAVE_UCX
  return !net_is_absent();
#else
  return printf("skipped: built without UCX\n"), false;
#endif
}

const world_backend world_threads = {.name = "threads", .every = 1, .ranks_max = WORLD_RANKS_MAX};
const world_backend world_processes = {
    .name = "processes", .processes = true, .every = 4, .ranks_max = WORLD_RANKS_MAX};
const world_backend world_nodes = {
    .name = "nodes", .processes = true, .every = 6, .ranks_max = 8, .is_here = has_nodes, .begin = begin_nodes};

bool world_is_here(const world_backend *on) { return !on->is_here || on->is_here(); }
bool world_is_quick(void) { return getenv("GPU_TEST_QUICK") != NULL; }

int32_t world_ranks(const world_backend *on, int32_t nranks) {
  return nranks <= on->ranks_max ? nranks : 1 + nranks % on->ranks_max;
}

/* With a sanitizer, tests with many cases run a third of them. */
static int every_of(const world_backend *on, int count) { return on->every * (IS_SANITIZED && count > 8 ? 3 : 1); }

/* Only runs that request a GPU use one. */
int world_share_of(const world_backend *on, int count) {
  const char *wanted = getenv("CK_RUN_CASE");
  bool is_gpu = on == &world_gpu || on == &world_gpu_processes;
  if (is_gpu && (!wanted || strcmp(wanted, on->name) != 0)) return 0;
  if (is_gpu && world_is_quick()) return count > 0;
  const char *few = getenv("GPU_TEST_CASES");
  if (is_gpu && few && atoi(few) < count) return atoi(few);
  int every = every_of(on, count);
  return (count + every - 1) / every;
}

/* Selects cases so that each remainder of the case number occurs. */
static int case_index; /* the running case, as Check counts it */

void world_skip(const char *test, const char *why) {
  printf("SKIP %s %d %s\n", test, case_index, why);
  fflush(stdout);
}

int world_case_of(const world_backend *on, int index, int count) {
  world_anew();
  case_index = index;
  index %= 10000;
  int every = every_of(on, count);
  return world_is_quick() ? 1 % count : (index * every + index % every) % count;
}

void *world_at(const world_rank *self, const void *memory) {
  return self->on->at ? self->on->at(self, memory) : (void *)(uintptr_t)memory;
}

banyan_partial world_partial(const world_rank *self, banyan_partial partial) {
  partial.values = world_at(self, partial.values);
  partial.lse = world_at(self, partial.lse);
  partial.sum = world_at(self, partial.sum);
  partial.values_scale = world_at(self, partial.values_scale);
  return partial;
}

banyan_valid_rows world_valid(const world_rank *self, banyan_valid_rows valid) {
  valid.tokens = world_at(self, valid.tokens);
  valid.seq_lens = world_at(self, valid.seq_lens);
  valid.query_start_loc = world_at(self, valid.query_start_loc);
  valid.token_mask = world_at(self, valid.token_mask);
  return valid;
}

bool world_put(world_rank *self) { return !self->on->put || self->on->put(self); }
bool world_finish(world_rank *self) { return !self->on->finish || self->on->finish(self); }

bool world_capture(world_rank *self, bool on) { return self->on->capture(self, on); }

bool world_record(world_rank *self, banyan_op *const *ops, int count) {
  self->recorded = ops;
  self->nrecorded = count;
  if (!self->on->capture) return true;
  bool good = world_capture(self, true);
  for (int i = 0; i < count && good; i++) good = world_ok(self, banyan_start(ops[i]), "start in a graph");
  return world_capture(self, false) && good;
}

bool world_replay(world_rank *self) {
  if (!world_put(self)) return false;
  if (self->on->replay) return self->on->replay(self);
  bool good = true;
  uint32_t count = (uint32_t)self->nrecorded, turn = self->replays++, own = turn + (uint32_t)self->rank;
  for (uint32_t i = 0; i < count && good; i++)
    good = world_ok(self, banyan_start(self->recorded[(turn + i) % count]), "start");
  for (uint32_t i = 0; i < count && good; i++) {
    banyan_op *op = self->recorded[(own + i) % count];
    int done = (own + i) % 3 == 0; /* some are not polled */
    for (int polls = 0; polls < 2 && !done && good; polls++) good = world_ok(self, banyan_test(op, &done), "test");
    good = good && world_ok(self, banyan_wait(op), "wait");
  }
  return good;
}

/* ---- program ----------------------------------------------------------------------------------------------------- */

bool world_be_nodes(const char *nodes) {
  if (nodes && !world_has_network()) return false;
  setenv("UCX_TLS", "tcp", 0);
  setenv("UCX_NET_DEVICES", "lo", 0);
  if (nodes)
    setenv("BANYAN_NODE", nodes, 1);
  else
    unsetenv("BANYAN_NODE");
  return true;
}

bool world_has_network(void) {
  const char *why = access("/sys/class/net/lo", F_OK) == 0 ? NULL : "no /sys/class/net, where UCX looks for devices";
#ifndef HAVE_UCX
  why = "built without UCX";
#endif
  if (why) printf("skipped: %s\n", why);
  return !why;
}

int world_main(struct Suite *suite) {
  const char *wanted = getenv("CK_RUN_CASE");
  for (int b = 0; b < WORLD_BACKENDS && wanted; b++)
    if (strcmp(wanted, world_backends[b]->name) == 0 && !world_is_here(world_backends[b])) return 77;
  if (wanted && strcmp(wanted, world_gpu.name) == 0) world_hold_gpus();
  return suite_main(suite);
}
