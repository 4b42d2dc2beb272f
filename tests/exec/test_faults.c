/* SPDX-License-Identifier: Apache-2.0
 * Ranks that die, stop, leave, abort or pass invalid data: every survivor gets an error that names the rank in time. */
#include <pthread.h>
#include <signal.h>

#include "tests/support/placed.h"
#include "tests/support/rows.h"

enum { HEADS = 8, VALUE_DIM = 32, FLAG_ALL_TOLD = 1, FLAG_GO = 2 };

/* The report of a survivor. */
typedef struct verdict {
  int is_set; /* 1 once the other fields are set */
  int status, culprit, repeated, known;
  double seconds; /* since the fault */
  char text[256];
} verdict;

typedef enum deed { DIE_BEFORE, DIE_AMID, EXIT_BEFORE, STOP_BEFORE, STOP_AMID, LEAVE, SLEEP } deed;

typedef struct scenario {
  deed deed;
  int32_t culprit;
  const char *algorithm;
  banyan_scatter scatter;
  _Atomic double deed_s; /* time of the fault */
  double sleep_ms;
  verdict verdicts[WORLD_RANKS_MAX];
} scenario;

static rows *describe(const scenario *scenario) {
  rows *made = rows_take(1, HEADS, VALUE_DIM);
  made->desc.scatter = scenario->scatter;
  made->desc.algorithm = scenario->algorithm;
  return made;
}

static void note(world_rank *self, scenario *scenario, banyan_status status) {
  verdict *verdict = &scenario->verdicts[self->rank];
  verdict->seconds = world_now_s() - scenario->deed_s;
  verdict->status = (int)status;
  snprintf(verdict->text, sizeof verdict->text, "%s", banyan_last_error());
  verdict->culprit = banyan_comm_failed_rank(self->comm);
  verdict->known = (int)banyan_comm_status(self->comm);
  verdict->repeated = (int)banyan_barrier(self->comm);
  verdict->is_set = 1;
}

/* All ranks but the culprit continue to call until `is_set` is set. */
static void go_on(world_rank *self, scenario *scenario, banyan_op *op) {
  banyan_status status = BANYAN_OK;
  for (int i = 0; i < 1000000 && status == BANYAN_OK; i++) status = start_and_wait(op);
  note(self, scenario, status);
}

static void do_deed(world_rank *self, scenario *scenario, banyan_op *op) {
  if (scenario->deed == DIE_AMID || scenario->deed == STOP_AMID) banyan_start(op);
  scenario->deed_s = world_now_s();
  if (scenario->deed == DIE_BEFORE || scenario->deed == DIE_AMID) raise(SIGKILL);
  if (scenario->deed == EXIT_BEFORE) _exit(0);
  if (scenario->deed == STOP_BEFORE || scenario->deed == STOP_AMID) raise(SIGSTOP);
  if (scenario->deed == LEAVE) {
    banyan_op_free(op);
    banyan_comm_destroy(self->comm);
    self->comm = NULL;
  }
}

static void play(world_rank *self) {
  scenario *scenario = self->argument;
  banyan_op *op = NULL;
  if (!world_ok(self, rows_init(describe(scenario), self->comm, &op), "init")) return;
  for (int i = 0; i < 3; i++)
    if (!world_runs(self, op)) return;
  if (!world_ok(self, banyan_barrier(self->comm), "barrier") || !world_meet(self)) return;
  if (self->rank == scenario->culprit) {
    do_deed(self, scenario, op);
    return;
  }
  go_on(self, scenario, op);
  banyan_op_free(op);
}

/* Kills the stopped ranks once all others have the error. */
static void end_stopped(world *world, const pid_t *pids, void *argument) {
  (void)world;
  const scenario *scenario = argument;
  double deadline = world_now_s() + 15;
  for (int32_t r = 0; r < WORLD_RANKS_MAX; r++) {
    if (r == scenario->culprit || scenario->verdicts[r].known < 0) continue;
    while (!*(volatile const int *)&scenario->verdicts[r].is_set && world_now_s() < deadline) world_sleep_ms(1);
  }
  kill(pids[scenario->culprit], SIGKILL);
}

static void check_verdicts(const scenario *scenario, int32_t nranks, banyan_status expected, double at_least_s,
                           double at_most_s) {
  for (int32_t r = 0; r < nranks; r++) {
    const verdict *seen = &scenario->verdicts[r];
    if (r == scenario->culprit) continue;
    ck_assert_msg(seen->is_set, "%d ranks, algorithm %s: rank %d got no error", nranks, scenario->algorithm, r);
    ck_assert_msg(seen->status == (int)expected, "%d ranks, algorithm %s: rank %d got %s: %s", nranks,
                  scenario->algorithm, r, banyan_status_string((banyan_status)seen->status), seen->text);
    ck_assert_msg(seen->known == seen->status && seen->repeated == seen->status, "rank %d later got %d and %d, not %d",
                  r, seen->known, seen->repeated, seen->status);
    char name[16];
    snprintf(name, sizeof name, "rank %d", scenario->culprit);
    ck_assert_msg(seen->culprit == scenario->culprit && strstr(seen->text, name),
                  "%d ranks, algorithm %s: rank %d blames rank %d, not %d: %s", nranks, scenario->algorithm, r,
                  seen->culprit, scenario->culprit, seen->text);
    ck_assert_msg(seen->seconds >= at_least_s && seen->seconds <= at_most_s,
                  "%d ranks, algorithm %s: rank %d got the error after %.3f s, not %g to %g: %s", nranks,
                  scenario->algorithm, r, seen->seconds, at_least_s, at_most_s, seen->text);
  }
}

/* Allows extra time on loaded machines and under sanitizers. */
static double slack(double seconds) { return world_is_sanitized() ? 4 * seconds : seconds; }

static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring"};
static const int32_t nranks_of[] = {2, 3, 5};

static scenario *open_scenario(deed deed, int index, int32_t *nranks) {
  scenario *made = world_take(sizeof *made);
  *nranks = nranks_of[index % 3];
  made->deed = deed;
  made->algorithm = algorithms[index / 3 % 5];
  made->culprit = index % 2 ? 0 : *nranks - 1;
  for (int32_t r = *nranks; r < WORLD_RANKS_MAX; r++) made->verdicts[r].known = -1;
  return made;
}

static void play_death(deed deed, int index) {
  int32_t nranks;
  scenario *scenario = open_scenario(deed, index, &nranks);
  WORLD_RUN(play, .nranks = nranks, .processes = true, .deaths = true, .argument = scenario);
  check_verdicts(scenario, nranks, BANYAN_ERR_PEER, 0, slack(0.5));
}

TEST_LOOP(death_before_a_collective, 15) { play_death(DIE_BEFORE, _i); }
TEST_LOOP(death_in_mid_collective, 15) { play_death(DIE_AMID, _i); }
TEST_LOOP(exit_without_destroy, 3) { play_death(EXIT_BEFORE, _i); }
TEST_LOOP(leaving_while_others_go_on, 15) { play_death(LEAVE, _i); }

static void play_stop_of(scenario *scenario, int32_t nranks, double at_least, double late_s) {
  world_setup setup = {.nranks = nranks,
                       .processes = true,
                       .deaths = true,
                       .argument = scenario,
                       .timeout_ns = world_is_sanitized() ? 1000000000 : 400000000,
                       .conduct = end_stopped};
  world_run(&setup, play);
  double deadline_s = (double)setup.timeout_ns * 1e-9;
  check_verdicts(scenario, nranks, BANYAN_ERR_TIMEOUT, deadline_s * at_least, deadline_s + slack(late_s));
}

static void play_stop(deed deed, int index) {
  int32_t nranks;
  scenario *scenario = open_scenario(deed, index, &nranks);
  play_stop_of(scenario, nranks, 0.9, 0.5);
}

TEST_RANGE(stop_before_a_collective, 3, 9) { play_stop(STOP_BEFORE, _i); }
TEST_RANGE(stop_in_mid_collective, 9, 15) { play_stop(STOP_AMID, _i); }

/* ---- a job that is stopped as a whole ---------------------------------------------------------------------------- */

static const double pause_timeout_s = 1.5;

typedef struct paused {
  _Atomic int32_t waiting;
  bool shrinks; /* ranks are in banyan_comm_shrink(), not in a barrier */
} paused;

/* The others wait for rank 0 while all are stopped; rank 0 arrives after all were resumed. */
static void wait_through_pause(world_rank *self) {
  paused *paused = self->argument;
  banyan_comm *left = NULL;
  if (!world_ok(self, banyan_barrier(self->comm), "barrier") || !world_meet(self)) return;
  if (self->rank == 0) {
    world_await(self->world, FLAG_GO, 60);
    world_sleep_ms(100); /* let the others read the clock first */
  } else {
    paused->waiting += 1;
  }
  if (paused->shrinks) banyan_comm_abort(self->comm, "only a communicator that has failed shrinks");
  if (!paused->shrinks) {
    world_ok(self, banyan_barrier(self->comm), "a barrier over a pause");
  } else if (world_ok(self, banyan_comm_shrink(self->comm, NULL, &left), "to shrink over a pause")) {
    world_check(self, banyan_comm_nranks(left) == self->nranks, "%d ranks are left", banyan_comm_nranks(left));
    world_meet(self);
    banyan_comm_destroy(left);
  }
}

static void pause_all(world *world, const pid_t *pids, void *argument) {
  enum { NRANKS = 3 };
  const paused *paused = argument;
  for (int i = 0; i < 10000 && paused->waiting < NRANKS - 1; i++) world_sleep_ms(1);
  world_sleep_ms(20); /* the ranks should wait by now, or the pause tests nothing */
  for (int r = 0; r < NRANKS; r++) kill(pids[r], SIGSTOP);
  world_sleep_ms(2e3 * pause_timeout_s);
  for (int r = 0; r < NRANKS; r++) kill(pids[r], SIGCONT);
  world_signal(world, FLAG_GO);
}

TEST_LOOP(a_pause_of_all_is_nobodys_fault, 4) {
  paused *paused = world_take(sizeof *paused);
  paused->shrinks = _i / 2;
  world_setup setup = {
      .nranks = 3, .timeout_ns = (int64_t)(pause_timeout_s * 1e9), .argument = paused, .conduct = pause_all};
  placed way = _i % 2 ? PLACED_APART : PLACED_PROCESSES;
  if (placed_set(way, "a,a,b", "a,b,c", &setup)) world_run(&setup, wait_through_pause);
  world_be_nodes(NULL);
}

/* ---- deaths while ranks connect ---------------------------------------------------------------------------------- */

/* A bootstrap that counts its exchanges. Between nodes, ranks connect after the second-last exchange of create. */
typedef struct counted {
  const banyan_bootstrap *bootstrap;
  int calls, die_after; /* 0: never */
  double die_ms;
} counted;

static void *die_soon(void *argument) {
  world_sleep_ms(*(const double *)argument);
  raise(SIGKILL);
  return NULL;
}

static int count_allgather(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  counted *self = context;
  pthread_t killer;
  int result = self->bootstrap->allgather(self->bootstrap->context, mine, all, bytes, timeout_ns);
  if (++self->calls == self->die_after) pthread_create(&killer, NULL, die_soon, &self->die_ms);
  return result;
}

static void connect_and_die(world_rank *self) {
  scenario *scenario = self->argument;
  verdict *verdict = &scenario->verdicts[self->rank];
  counted counts = {.bootstrap = &self->bootstrap, .die_ms = scenario->sleep_ms};
  banyan_bootstrap bootstrap = self->bootstrap;
  bootstrap.context = &counts;
  bootstrap.allgather = count_allgather;
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 1000000000, .arena_bytes = 65536};
  if (!world_ok(self, banyan_comm_create(&bootstrap, &config, &self->comm), "create")) return;
  banyan_comm_destroy(self->comm);
  self->comm = NULL;
  if (self->rank == scenario->culprit) counts.die_after = 2 * counts.calls - 1;
  banyan_status status = banyan_comm_create(&bootstrap, &config, &self->comm);
  while (status == BANYAN_OK) status = banyan_barrier(self->comm);
  verdict->status = (int)status;
  snprintf(verdict->text, sizeof verdict->text, "%s", banyan_last_error());
  if (self->rank == scenario->culprit) world_sleep_ms(60000); /* dies while it sleeps */
  banyan_comm_destroy(self->comm);
  self->comm = NULL;
  verdict->is_set = 1; /* no assertion of UCX has ended this process */
}

/* No survivor blames the other survivor. */
TEST_LOOP(death_while_connecting, 9) {
  scenario *scenario = world_take(sizeof *scenario);
  world_random random = random_seed() + (uint64_t)_i;
  scenario->culprit = _i % 3;
  scenario->sleep_ms = 2 * (random_unit(&random) + 1);
  world_setup setup = {.nranks = 3, .bare = true, .deaths = true, .argument = scenario};
  if (placed_set(PLACED_APART, "a,a,b", "a,b,c", &setup)) world_run(&setup, connect_and_die);
  for (int32_t r = 0; r < 3 && setup.processes; r++) {
    const verdict *seen = &scenario->verdicts[r];
    char healthy[32];
    snprintf(healthy, sizeof healthy, "rank %d ", 3 - r - scenario->culprit);
    /* UCX before 1.14 may end a healthy rank by an assertion. */
    if (r == scenario->culprit || !scenario->verdicts[3 - r - scenario->culprit].is_set) continue;
    ck_assert_msg(strncmp(seen->text, healthy, strlen(healthy)) != 0,
                  "rank %d died after %.1f ms, but rank %d says: %s", scenario->culprit, scenario->sleep_ms, r,
                  seen->text);
  }
  world_be_nodes(NULL);
}

TEST_LOOP(leaving_threads, 15) {
  int32_t nranks;
  scenario *scenario = open_scenario(LEAVE, _i, &nranks);
  WORLD_RUN(play, .nranks = nranks, .argument = scenario);
  check_verdicts(scenario, nranks, BANYAN_ERR_PEER, 0, slack(0.5));
}

/* In trees and chains, a rank that waits for a waiting rank must blame the rank at the end of the chain. */
TEST_LOOP(chain_to_a_stopped_rank, 5) {
  static const struct {
    const char *algorithm;
    banyan_scatter scatter;
    int32_t nranks, culprit;
  } chains[] = {{"ring", BANYAN_SCATTER_NONE, 5, 2},
                {"ring", BANYAN_SCATTER_HEADS, 4, 3},
                {"tree", BANYAN_SCATTER_ROOT, 9, 8},
                {"tree", BANYAN_SCATTER_NONE, 9, 7},
                {"recursive", BANYAN_SCATTER_NONE, 7, 5}};
  scenario *scenario = world_take(sizeof *scenario);
  scenario->deed = STOP_BEFORE;
  scenario->algorithm = chains[_i].algorithm;
  scenario->scatter = chains[_i].scatter;
  scenario->culprit = chains[_i].culprit;
  int32_t nranks = chains[_i].nranks;
  for (int32_t r = nranks; r < WORLD_RANKS_MAX; r++) scenario->verdicts[r].known = -1;
  play_stop_of(scenario, nranks, 0.75, 1);
}

/* ---- a death at any moment --------------------------------------------------------------------------------------- */

static void kill_at_random(world *world, const pid_t *pids, void *argument) {
  scenario *scenario = argument;
  world_await(world, FLAG_GO, 10);
  world_sleep_ms(scenario->sleep_ms);
  scenario->deed_s = world_now_s();
  kill(pids[scenario->culprit], SIGKILL);
}

static void run_until_verdict(world_rank *self) {
  scenario *scenario = self->argument;
  banyan_op *op = NULL;
  if (!world_ok(self, rows_init(describe(scenario), self->comm, &op), "init") || !world_meet(self)) return;
  world_signal(self->world, FLAG_GO);
  go_on(self, scenario, op);
  banyan_op_free(op);
}

TEST_LOOP(death_at_any_moment, 30) {
  world_random random = random_seed() + 1000 + (uint64_t)_i;
  int32_t nranks;
  scenario *scenario = open_scenario(DIE_AMID, _i, &nranks);
  scenario->sleep_ms = 5 + 20 * fabs(random_unit(&random));
  WORLD_RUN(run_until_verdict, .nranks = nranks, .processes = true, .deaths = true, .argument = scenario,
            .conduct = kill_at_random);
  check_verdicts(scenario, nranks, BANYAN_ERR_PEER, -0.1, slack(0.5));
}

/* ---- two deaths -------------------------------------------------------------------------------------------------- */

/* Rank 0 dies after its own part, which delays no rank. Rank 1 dies before its part, which delays all. */
static void die_one_after_another(world_rank *self) {
  scenario *scenario = self->argument;
  banyan_op *op = NULL;
  rows *rows = describe(scenario);
  rows->desc.scatter = BANYAN_SCATTER_ROOT;
  rows->desc.root = 2;
  if (!world_ok(self, rows_init(rows, self->comm, &op), "init")) return;
  if (!world_meet(self)) return;
  if (self->rank == 0) {
    banyan_start(op);
    banyan_wait(op);
    world_signal(self->world, FLAG_GO);
    raise(SIGKILL);
  }
  world_await(self->world, FLAG_GO, 5);
  world_sleep_ms(50);
  if (self->rank == 1) {
    scenario->deed_s = world_now_s();
    raise(SIGKILL);
  }
  banyan_status status = start_and_wait(op);
  note(self, scenario, status);
  banyan_op_free(op);
}

TEST(second_death_is_noticed) {
  scenario *scenario = world_take(sizeof *scenario);
  scenario->algorithm = "oneshot";
  scenario->culprit = 1;
  WORLD_RUN(die_one_after_another, .nranks = 3, .processes = true, .deaths = true, .argument = scenario,
            .timeout_ns = 5000000000);
  const verdict *seen = &scenario->verdicts[2];
  ck_assert_msg(seen->status == BANYAN_ERR_PEER && seen->culprit == 1 && seen->seconds < slack(0.6),
                "%s, rank %d, %.3f s: %s", banyan_status_string((banyan_status)seen->status), seen->culprit,
                seen->seconds, seen->text);
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */

static void *abort_soon(void *argument) {
  world_rank *self = argument;
  scenario *scenario = self->argument;
  world_sleep_ms(50);
  scenario->deed_s = world_now_s();
  banyan_comm_abort(self->comm, "the operator said so");
  return NULL;
}

/* The last rank stays away. Rank 0 aborts from another thread while it waits itself. */
static void wait_for_abort(world_rank *self) {
  scenario *scenario = self->argument;
  pthread_t thread;
  banyan_status status = BANYAN_OK;
  double end = world_now_s() + 10;
  if (!world_ok(self, banyan_barrier(self->comm), "barrier") || !world_meet(self)) return;
  if (self->rank == 0) pthread_create(&thread, NULL, abort_soon, self);
  if (self->rank < self->nranks - 1 || self->rank == 0)
    while (status == BANYAN_OK && world_now_s() < end) status = banyan_barrier(self->comm);
  else
    for (; status == BANYAN_OK && world_now_s() < end; world_sleep_ms(1)) status = banyan_comm_status(self->comm);
  if (self->rank == 0) pthread_join(thread, NULL);
  note(self, scenario, status);
}

TEST_LOOP(abort_from_another_thread, 6) {
  scenario *scenario = world_take(sizeof *scenario);
  int32_t nranks = 1 + _i / 2 * 2;
  WORLD_RUN(wait_for_abort, .nranks = nranks, .processes = _i % 2, .argument = scenario);
  for (int32_t r = 0; r < nranks; r++) {
    const verdict *seen = &scenario->verdicts[r];
    ck_assert_msg(seen->status == BANYAN_ERR_ABORTED && seen->repeated == BANYAN_ERR_ABORTED && seen->culprit == 0,
                  "rank %d of %d: %d, then %d, blames %d: %s", r, nranks, seen->status, seen->repeated, seen->culprit,
                  seen->text);
    ck_assert_msg(seen->seconds < slack(0.5), "rank %d got the error after %.3f s", r, seen->seconds);
    if (r == 0) ck_assert_msg(strstr(seen->text, "the operator said so"), "%s", seen->text);
  }
}

/* ---- slow, but alive --------------------------------------------------------------------------------------------- */

TEST_RANKS(slow_ranks_are_no_error, 2, .nranks = 3, .processes = _i,
           .timeout_ns = world_is_sanitized() ? 1500000000 : 500000000) {
  for (int round = 0; round < 2; round++) {
    if (self->rank == round) world_sleep_ms(world_is_sanitized() ? 400 : 250);
    if (!world_ok(self, banyan_barrier(self->comm), "barrier with a slow rank")) return;
  }
}

static double busy_ms(double deadlines) { return deadlines * (world_is_sanitized() ? 1500 : 500); }

/* Both ranks work for longer than the deadline, rank 0 after its start. Rank 1 then waits for less than the
 * deadline. */
TEST_RANKS(own_work_is_no_wait, 2, .nranks = 2, .processes = _i, .timeout_ns = (int64_t)busy_ms(1) * 1000000) {
  char data[100] = {0};
  banyan_op *op;
  int done = 0;
  if (!world_ok(self, banyan_broadcast_init(self->comm, data, sizeof data, 1, &op), "init")) return;
  if (self->rank == 1) world_sleep_ms(busy_ms(1.5));
  if (!world_ok(self, banyan_start(op), "start")) return;
  if (self->rank == 0) world_sleep_ms(busy_ms(1.2));
  world_ok(self, banyan_wait(op), "wait");
  world_check(self, banyan_test(op, &done) == BANYAN_OK && done, "the operation is not complete");
  banyan_op_free(op);
}

/* ---- statistics of NaN or infinity ------------------------------------------------------------------------------- */

static void give_nonsense(world_rank *self) {
  scenario *scenario = self->argument;
  const rows *rows = describe(scenario);
  if (!world_ok(self, rows_combine(rows, self->comm), "combine") || !world_meet(self)) return;
  if (self->rank == scenario->culprit) {
    rows->lse[5] = (float)scenario->sleep_ms;
    scenario->deed_s = world_now_s();
  }
  banyan_status status = BANYAN_OK;
  for (int i = 0; i < 3 && status == BANYAN_OK; i++) status = rows_combine(rows, self->comm);
  note(self, scenario, status);
}

TEST_LOOP(nonsense_is_named, 16) {
  int32_t nranks;
  scenario *scenario = open_scenario(SLEEP, _i / 2, &nranks);
  scenario->sleep_ms = _i % 2 ? (double)NAN : (double)INFINITY;
  WORLD_RUN(give_nonsense, .nranks = nranks, .processes = _i % 4 == 0, .argument = scenario);
  check_verdicts(scenario, nranks, BANYAN_ERR_DATA, -1, slack(0.5));
  const verdict *own = &scenario->verdicts[scenario->culprit];
  ck_assert_int_eq(own->status, BANYAN_ERR_DATA);
  ck_assert_msg(strstr(own->text, "token 0") && strstr(own->text, "head 5"), "%s", own->text);
}

int main(void) {
  suite_deal(4);
  return world_main(suite_of("faults", 60));
}
