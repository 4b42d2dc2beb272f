/* SPDX-License-Identifier: Apache-2.0
 * A rank stops or dies at any system call inside banyan_comm_shrink(), and all healthy ranks end in the same
 * communicator. seccomp traps the rank's system calls, and the trap handler counts and executes them. Trials pick
 * random calls by TEST_SEED. TEST_FAULTS=all tries every call of each rank, which takes long.
 *
 * Ranks on several nodes come late, stop for a while, or do not hear others, and no two of them have different
 * communicators. The schedules are random by TEST_SEED. TEST_SCHEDULES is their number. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "comm/comm.h"
#include "injector.h"
#include "tests/support/world.h"

enum { RANKS = 4, FIRST_DEAD = 3, AT_ONCE = 4, TEXT_BYTES = 400 };

typedef struct outcome {
  int ended, aborted;
  banyan_status status;
  uint32_t members;
  double begun_s, ended_s; /* when a schedule calls shrink */
  char text[TEXT_BYTES];
} outcome;

typedef struct trial {
  int32_t victim;
  injector_deed deed;
  int at; /* number of the system call, from 1; 0: only count */
  bool nodes;
  atomic_int has_happened;
  int calls; /* system calls of the victim */
  outcome outcomes[RANKS];
} trial;

static double deadline_s(void) { return world_is_sanitized() ? 4 : 1.5; }

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

static outcome *own_outcome;

static void note_abort(int number) {
  (void)number;
  own_outcome->aborted = 1;
  _exit(1);
}

static void end(world_rank *self, banyan_status status, uint32_t members) {
  outcome *outcome = own_outcome;
  outcome->status = status;
  outcome->members = members;
  snprintf(outcome->text, sizeof outcome->text, "%s", status ? banyan_last_error() : "");
  (void)self;
  outcome->ended = 1;
}

static banyan_status shrink_once(world_rank *self, trial *trial, int32_t *origins, bool injected) {
  int32_t members[RANKS];
  banyan_comm *left = NULL;
  if (injected) injector_arm(trial->deed, trial->at, &trial->has_happened);
  banyan_status status = banyan_comm_shrink(self->comm, members, &left);
  if (injected) trial->calls = injector_disarm();
  if (status != BANYAN_OK) return status;
  for (int32_t i = 0; i < banyan_comm_nranks(left); i++) members[i] = origins[members[i]];
  memcpy(origins, members, sizeof members);
  banyan_comm_destroy(self->comm);
  self->comm = left;
  return BANYAN_OK;
}

/* Shrinks, and shrinks again if the victim is a member, because it may stop after the agreement. */
static void live_on(world_rank *self) {
  trial *trial = self->argument;
  int32_t origins[RANKS] = {0, 1, 2, 3};
  own_outcome = &trial->outcomes[self->rank];
  signal(SIGABRT, note_abort);
  banyan_status status = banyan_barrier(self->comm);
  if (status == BANYAN_OK && !world_meet(self)) return;
  if (self->rank == FIRST_DEAD) raise(SIGKILL);
  while (status == BANYAN_OK) status = banyan_barrier(self->comm);
  for (int round = 0; round < 2 && status != BANYAN_OK; round++) {
    status = shrink_once(self, trial, origins, round == 0 && self->rank == trial->victim);
    if (status == BANYAN_OK)
      status = banyan_barrier(self->comm);
    else
      round = 2;
  }
  uint32_t members = 0;
  for (int32_t i = 0; i < banyan_comm_nranks(self->comm); i++) members |= 1u << origins[i];
  end(self, status, members);
}

static bool is_healthy(const trial *trial, int32_t rank) {
  return rank != FIRST_DEAD && (rank != trial->victim || !trial->has_happened);
}

static void end_stopped(world *world, const pid_t *pids, void *argument) {
  const trial *trial = argument;
  double deadline = world_now_s() + 20 * deadline_s();
  (void)world;
  if (trial->deed != INJECTOR_STOP) return;
  for (int32_t r = 0; r < RANKS; r++)
    while (is_healthy(trial, r) && !*(volatile const int *)&trial->outcomes[r].ended && world_now_s() < deadline)
      world_sleep_ms(2);
  for (int32_t r = 0; r < RANKS; r++) kill(pids[r], SIGKILL);
}

static void run_trial(trial *trial) {
  world_setup setup = {.nranks = RANKS,
                       .processes = true,
                       .deaths = true,
                       .argument = trial,
                       .conduct = end_stopped,
                       .timeout_ns = (int64_t)(deadline_s() * 1e9),
                       .arena_bytes = 65536};
  unsetenv("BANYAN_NODE");
  if (trial->nodes) world_be_nodes("a,b,a,b");
  world_run(&setup, live_on);
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

/* Returns the text of a failure, or NULL. */
static const char *judge(const trial *trial, char *text, size_t bytes) {
  uint32_t healthy = 0;
  for (int32_t r = 0; r < RANKS; r++) healthy |= is_healthy(trial, r) ? 1u << r : 0;
  for (int32_t r = 0; r < RANKS; r++) {
    const outcome *outcome = &trial->outcomes[r];
    if (!is_healthy(trial, r) || (outcome->ended && outcome->status == BANYAN_OK && outcome->members == healthy))
      continue;
    snprintf(text, bytes, "rank %d %s with members %x, not %x, when rank %d %s at call %d%s: %s", r,
             outcome->ended     ? "ended"
             : outcome->aborted ? "was aborted"
                                : "did not end",
             outcome->members, healthy, trial->victim, trial->deed == INJECTOR_STOP ? "stopped" : "died", trial->at,
             trial->nodes ? ", over UCX" : "", outcome->text);
    return text;
  }
  return NULL;
}

/* UCX before 1.14 ends a process by an assertion if a peer dies while it connects. */
static bool is_excused(const trial *trial) {
  bool aborted = false;
  for (int32_t r = 0; r < RANKS; r++) aborted = aborted || trial->outcomes[r].aborted;
  return aborted && trial->nodes && trial->deed == INJECTOR_DIE;
}

static pid_t start(trial *trial) {
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid > 0) return pid;
  run_trial(trial);
  _exit(0);
}

/* Trials run side by side, because each stop waits for a deadline. */
static void run_trials(trial *trials, int ntrials) {
  int excused = 0, happened = 0;
  for (int first = 0; first < ntrials; first += AT_ONCE) {
    int some = ntrials - first < AT_ONCE ? ntrials - first : AT_ONCE;
    pid_t pids[AT_ONCE];
    for (int i = 0; i < some; i++) pids[i] = start(&trials[first + i]);
    for (int i = 0; i < some; i++) waitpid(pids[i], NULL, 0);
    for (int i = 0; i < some; i++) {
      char why[TEXT_BYTES + 200];
      trial *trial = &trials[first + i];
      happened += trial->has_happened;
      if (is_excused(trial))
        excused++;
      else
        ck_assert_msg(!judge(trial, why, sizeof why), "%s (seed %llu)", why, (unsigned long long)random_seed());
    }
  }
  printf("%d trials, in %d of them the call was reached; %d ended by an assertion of UCX (seed %llu)\n", ntrials,
         happened, excused, (unsigned long long)random_seed());
  ck_assert_msg(happened > 0, "no call was reached");
}

/* Returns the number of system calls; a run of waiting calls counts as one. */
static int count_calls(int32_t victim, bool nodes) {
  trial *trial = world_take(sizeof *trial);
  char why[TEXT_BYTES + 200];
  *trial = (struct trial){.victim = victim, .nodes = nodes};
  waitpid(start(trial), NULL, 0);
  ck_assert_msg(!judge(trial, why, sizeof why), "without a fault: %s", why);
  int calls = trial->calls;
  ck_assert_int_gt(calls, 10);
  return calls;
}

static void inject(int32_t victim, injector_deed deed, bool nodes, int most) {
  world_random random = random_seed() * 1000 + (uint64_t)victim * 100 + (uint64_t)deed * 10 + nodes;
  const char *form = getenv("TEST_FAULTS");
  int calls = count_calls(victim, nodes);
  bool all = form && strcmp(form, "all") == 0;
  int ntrials = all || calls < most ? calls : most;
  trial *trials = world_take((size_t)ntrials * sizeof *trials);
  for (int i = 0; i < ntrials; i++) {
    int at =
        ntrials == calls ? i + 1 : 1 + (int)((int64_t)calls * i / ntrials) + random_below(&random, calls / ntrials);
    trials[i] = (trial){.victim = victim, .deed = deed, .at = at, .nodes = nodes};
  }
  run_trials(trials, ntrials);
}

static bool cannot(bool nodes) {
  const bool works = injector_works();
  if (!works) printf("skipped: system calls cannot be trapped here\n");
  return !works || (nodes && !world_has_network());
}

/* ---- schedules of late, stopped and deaf ranks ------------------------------------------------------------------- */

enum { MEMBERS_MAX = 5, SCHEDULES_AT_ONCE = 6 };

/* The course of a rank, in seconds after the failure. */
typedef struct course {
  double late_s, stopped_at_s, stopped_for_s;
  uint32_t deaf_to; /* bit r: no message of rank r reaches this one */
} course;

typedef struct schedule {
  int32_t nranks, dead; /* dead: a rank that is killed first; -1: none, and rank 0 aborts */
  const char *nodes;
  course courses[MEMBERS_MAX];
  outcome outcomes[MEMBERS_MAX];
  _Atomic double begun_s;
  atomic_int ended;
} schedule;

#define SCHEDULE_DEADLINE_S 0.3
static bny_transport_ops deaf_ops;
static const bny_transport_ops *sound_ops;
static const schedule *own_schedule;

static void post_to_some(bny_transport *transport, int32_t rank, int half) {
  if (!(own_schedule->courses[rank].deaf_to >> transport->rank & 1)) sound_ops->post(transport, rank, half);
}

static void tell_some(bny_transport *transport, int32_t rank, int half) {
  if (!(own_schedule->courses[rank].deaf_to >> transport->rank & 1)) sound_ops->tell(transport, rank, half);
}

static uint64_t pulse_of_some(bny_transport *transport, int32_t rank) {
  return own_schedule->courses[transport->rank].deaf_to >> rank & 1 ? 0 : sound_ops->heartbeat(transport, rank);
}

static void lose_messages(banyan_comm *comm) {
  sound_ops = comm->transport->ops;
  deaf_ops = *sound_ops;
  deaf_ops.post = post_to_some;
  deaf_ops.tell = tell_some;
  deaf_ops.heartbeat = pulse_of_some;
  comm->transport->ops = &deaf_ops;
}

/* A busy socket takes messages only when the rank makes progress. Then two messages of the peer arrive at once, so the
 * rank sends every second message of its own only in the next round, or while it waits for something else. */
static struct {
  int32_t rank;
  int half;
} deferred[64];
static int ndeferred;

static void post_later(bny_transport *transport, int32_t rank, int half) {
  (void)transport;
  deferred[ndeferred].rank = rank;
  deferred[ndeferred++].half = half;
}

static void post_now(bny_transport *transport) {
  for (int i = 0; i < ndeferred; i++) sound_ops->post(transport, deferred[i].rank, deferred[i].half);
  if (ndeferred) world_sleep_ms(5);
  ndeferred = 0;
  sound_ops->progress(transport);
}

static bool is_settled(bny_transport *transport, int32_t *peer) {
  return !ndeferred && sound_ops->flushed(transport, peer);
}

static void shrink_over_busy_sockets(world_rank *self) {
  banyan_comm *left = NULL;
  banyan_comm_abort(self->comm, "the sockets of rank 1 are busy from now on");
  sound_ops = self->comm->transport->ops;
  deaf_ops = *sound_ops;
  deaf_ops.post = post_later;
  deaf_ops.progress = post_now;
  deaf_ops.flushed = is_settled;
  if (self->rank == 1) self->comm->transport->ops = &deaf_ops;
  double begun_s = world_now_s();
  if (!world_ok(self, banyan_comm_shrink(self->comm, NULL, &left), "shrink")) return;
  double took_s = world_now_s() - begun_s, deadline_s = (double)self->comm->exec->timeout_ns * 1e-9;
  world_check(self, took_s < deadline_s, "a shrink took %g s with a deadline of %g s", took_s, deadline_s);
  world_ok(self, banyan_barrier(left), "barrier");
  banyan_comm_destroy(left);
}

TEST_IN("schedules", busy_sockets_delay_no_shrink, 1) {
  if (cannot(true)) return;
  world_be_nodes("a,b");
  WORLD_RUN(shrink_over_busy_sockets, .nranks = 2, .processes = true, .timeout_ns = 5000000000);
}

/* A rank with a communicator keeps it until all have ended: a rank may continue alone once the others are gone. */
static void follow_course(world_rank *self) {
  schedule *schedule = self->argument;
  outcome *outcome = &schedule->outcomes[self->rank];
  banyan_comm *left = NULL;
  int32_t members[MEMBERS_MAX];
  own_schedule = schedule;
  banyan_status status = BANYAN_OK;
  if (!world_meet(self)) return;
  self->comm->exec->timeout_ns = (int64_t)(SCHEDULE_DEADLINE_S * 1e9); /* ranks meet with a longer one */
  if (schedule->dead == self->rank) raise(SIGKILL);
  if (schedule->dead < 0 && self->rank == 0) banyan_comm_abort(self->comm, "the schedule begins");
  while (status == BANYAN_OK) status = banyan_barrier(self->comm);
  double none = 0;
  atomic_compare_exchange_strong(&schedule->begun_s, &none, world_now_s());
  lose_messages(self->comm);
  world_sleep_ms(1e3 * schedule->courses[self->rank].late_s);
  outcome->begun_s = world_now_s();
  outcome->status = banyan_comm_shrink(self->comm, members, &left);
  outcome->ended_s = world_now_s();
  snprintf(outcome->text, sizeof outcome->text, "%s", outcome->status ? banyan_last_error() : "");
  for (int32_t i = 0; left && i < banyan_comm_nranks(left); i++) outcome->members |= 1u << members[i];
  if (self->rank % 2) {
    banyan_comm_destroy(self->comm);
    self->comm = NULL;
  }
  outcome->ended = 1;
  atomic_fetch_add(&schedule->ended, 1);
  double until_s = world_now_s() + 40 * SCHEDULE_DEADLINE_S;
  while (left && atomic_load(&schedule->ended) < schedule->nranks - (schedule->dead >= 0) && world_now_s() < until_s)
    world_sleep_ms(2);
  banyan_comm_destroy(left);
}

static void stop_and_continue(world *world, const pid_t *pids, void *argument) {
  const schedule *schedule = argument;
  double until_s = world_now_s() + 100 * SCHEDULE_DEADLINE_S;
  (void)world;
  while (atomic_load(&schedule->begun_s) == 0 && world_now_s() < until_s) world_sleep_ms(2);
  int stopped = 0, continued = 0, all = (1 << schedule->nranks) - 1;
  until_s = atomic_load(&schedule->begun_s) + 40 * SCHEDULE_DEADLINE_S;
  while (continued != all && world_now_s() < until_s) {
    double at_s = world_now_s() - atomic_load(&schedule->begun_s);
    for (int32_t r = 0; r < schedule->nranks; r++) {
      const course *course = &schedule->courses[r];
      bool none = course->stopped_for_s <= 0 || r == schedule->dead;
      if (!none && !(stopped >> r & 1) && at_s >= course->stopped_at_s) kill(pids[r], SIGSTOP), stopped |= 1 << r;
      bool over = none || at_s >= course->stopped_at_s + course->stopped_for_s;
      if (!(continued >> r & 1) && over) kill(pids[r], SIGCONT), continued |= 1 << r;
    }
    world_sleep_ms(2);
  }
}

static void run_schedule(schedule *schedule) {
  world_setup setup = {.nranks = schedule->nranks,
                       .processes = true,
                       .deaths = true,
                       .argument = schedule,
                       .conduct = stop_and_continue,
                       .timeout_ns = 20000000000,
                       .arena_bytes = 65536};
  world_be_nodes(schedule->nodes);
  world_run(&setup, follow_course);
}

/* One rank is dead and one late. Neither of the two that live may continue while the other may as well. */
static const schedule one_late = {
    .nranks = 3, .dead = 2, .nodes = "a,b,c", .courses[1].late_s = 1.5 * SCHEDULE_DEADLINE_S};

static schedule draw_schedule(world_random *random) {
  static const char *const nodes[] = {"a,b,c", "a,b,b", "a,b,c,d", "a,b,a,b", "a,a,b,c", "a,b,c,d,e", "a,a,b,b,c"};
  static const int32_t nranks[] = {3, 3, 4, 4, 4, 5, 5};
  int32_t world = random_below(random, 7);
  schedule drawn = {.nodes = nodes[world], .nranks = nranks[world]};
  drawn.dead = random_below(random, drawn.nranks + 2);
  if (drawn.dead >= drawn.nranks) drawn.dead = -1;
  for (int32_t r = 0; r < drawn.nranks; r++) {
    course *course = &drawn.courses[r];
    int32_t what = random_below(random, 5);
    if (what == 1) course->late_s = SCHEDULE_DEADLINE_S * random_below(random, 40) / 10;
    if (what == 2) course->stopped_at_s = SCHEDULE_DEADLINE_S * random_below(random, 20) / 100;
    if (what == 2) course->stopped_for_s = SCHEDULE_DEADLINE_S * random_below(random, 40) / 10;
    if (what == 3) course->deaf_to = (uint32_t)random_below(random, 1 << drawn.nranks);
  }
  return drawn;
}

/* The rank came when another had its communicator, and messages travel both ways. */
static bool must_be_told(const schedule *schedule, int32_t rank, int32_t other) {
  const outcome *late = &schedule->outcomes[rank], *has = &schedule->outcomes[other];
  if (other == schedule->dead || has->status != BANYAN_OK || late->begun_s < has->ended_s) return false;
  const course *courses = schedule->courses;
  bool is_deaf = courses[rank].deaf_to >> other & 1 || courses[other].deaf_to >> rank & 1;
  return !is_deaf && courses[other].stopped_for_s <= 0;
}

static void judge_schedule(const schedule *schedule, int number) {
  for (int32_t a = 0; a < schedule->nranks; a++) {
    const outcome *one = &schedule->outcomes[a];
    if (a == schedule->dead) continue;
    ck_assert_msg(one->ended && !one->aborted, "schedule %d: rank %d did not end", number, a);
    bool has = one->status == BANYAN_OK;
    ck_assert_msg(has ? (one->members >> a & 1) : one->status == BANYAN_ERR_PEER || one->status == BANYAN_ERR_TIMEOUT,
                  "schedule %d: rank %d got %s with members %x: %s", number, a, banyan_status_string(one->status),
                  one->members, one->text);
    for (int32_t b = 0; !has && b < schedule->nranks; b++)
      ck_assert_msg(!must_be_told(schedule, a, b) || strstr(one->text, "excluded by the others"),
                    "schedule %d on %s: rank %d came %g s after rank %d had a communicator and got %s: %s (seed %llu)",
                    number, schedule->nodes, a, one->begun_s - schedule->outcomes[b].ended_s, b,
                    banyan_status_string(one->status), one->text, (unsigned long long)random_seed());
    for (int32_t b = 0; has && b < a; b++)
      if (b != schedule->dead && schedule->outcomes[b].status == BANYAN_OK)
        ck_assert_msg(one->members == schedule->outcomes[b].members,
                      "schedule %d on %s: rank %d has members %x and rank %d %x (seed %llu)", number, schedule->nodes,
                      a, one->members, b, schedule->outcomes[b].members, (unsigned long long)random_seed());
  }
}

TEST_IN("schedules", late_stopped_and_deaf_ranks_agree, 1) {
  const char *wanted = getenv("TEST_SCHEDULES");
  int count = wanted ? atoi(wanted) : 2 * SCHEDULES_AT_ONCE, with = 0, told = 0, all = 0;
  world_random random = random_seed() * 7919;
  if (cannot(true)) return;
  for (int first = 0; first < count; first += SCHEDULES_AT_ONCE) {
    schedule *schedules = world_take(SCHEDULES_AT_ONCE * sizeof *schedules);
    pid_t pids[SCHEDULES_AT_ONCE];
    int some = count - first < SCHEDULES_AT_ONCE ? count - first : SCHEDULES_AT_ONCE;
    for (int i = 0; i < some; i++) {
      schedules[i] = first + i ? draw_schedule(&random) : one_late;
      pids[i] = fork();
      ck_assert_int_ge(pids[i], 0);
      if (pids[i] == 0) {
        run_schedule(&schedules[i]);
        _exit(0);
      }
    }
    for (int i = 0; i < some; i++) waitpid(pids[i], NULL, 0);
    for (int i = 0; i < some; i++) {
      if (atomic_load(&schedules[i].begun_s) == 0) continue; /* on a busy machine the ranks did not meet in time */
      judge_schedule(&schedules[i], first + i);
      for (int32_t r = 0; r < schedules[i].nranks; r++) {
        all += r != schedules[i].dead;
        with += r != schedules[i].dead && schedules[i].outcomes[r].status == BANYAN_OK;
        bool is_told = false;
        for (int32_t b = 0; b < schedules[i].nranks; b++) is_told |= must_be_told(&schedules[i], r, b);
        told += r != schedules[i].dead && is_told;
      }
    }
  }
  printf("%d schedules: %d of %d ranks have a communicator, %d came later and learned it (seed %llu)\n", count, with,
         all, told, (unsigned long long)random_seed());
  ck_assert_msg(with > 0, "no rank has a communicator");
}

static int victims(void) { return getenv("TEST_FAULTS") ? FIRST_DEAD : 2; }

TEST_LOOP(one_stops_in_shared_memory, victims()) {
  if (!cannot(false)) inject(_i, INJECTOR_STOP, false, 4);
}

TEST_LOOP(one_dies_in_shared_memory, victims()) {
  if (!cannot(false)) inject(_i, INJECTOR_DIE, false, 8);
}

TEST_LOOP(one_stops_over_ucx, victims()) {
  if (!cannot(true)) inject(_i, INJECTOR_STOP, true, 4);
}

TEST_LOOP(one_dies_over_ucx, victims()) {
  if (!cannot(true)) inject(_i, INJECTOR_DIE, true, 4);
}

int main(void) {
  return world_main(suite_of("shrink_faults", getenv("TEST_FAULTS") || getenv("TEST_SCHEDULES") ? 7200 : 300));
}
