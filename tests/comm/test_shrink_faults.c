/* SPDX-License-Identifier: Apache-2.0
 * A rank stops or dies at any system call inside banyan_comm_shrink(), and all healthy ranks end in the same
 * communicator. seccomp traps the rank's system calls, and the trap handler counts and executes them. Trials pick
 * random calls by TEST_SEED. TEST_FAULTS=all tries every call of each rank, which takes long. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "injector.h"
#include "tests/support/world.h"

enum { RANKS = 4, FIRST_DEAD = 3, AT_ONCE = 4, TEXT_BYTES = 400 };

typedef struct outcome {
  int ended, aborted;
  banyan_status status;
  uint32_t members;
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
        ck_assert_msg(!judge(trial, why, sizeof why), "%s (seed %llu)", why, (unsigned long long)world_seed());
    }
  }
  printf("%d trials, in %d of them the call was reached; %d ended by an assertion of UCX (seed %llu)\n", ntrials,
         happened, excused, (unsigned long long)world_seed());
  ck_assert_msg(happened > 0, "no call was reached");
}

/* Returns the number of system calls; a run of waiting calls counts as one. */
static int count_calls(int32_t victim, bool nodes) {
  trial *trial = world_share(sizeof *trial);
  char why[TEXT_BYTES + 200];
  *trial = (struct trial){.victim = victim, .nodes = nodes};
  waitpid(start(trial), NULL, 0);
  ck_assert_msg(!judge(trial, why, sizeof why), "without a fault: %s", why);
  int calls = trial->calls;
  world_unshare(trial, sizeof *trial);
  ck_assert_int_gt(calls, 10);
  return calls;
}

static void inject(int32_t victim, injector_deed deed, bool nodes, int most) {
  world_random random = {world_seed() * 1000 + (uint64_t)victim * 100 + (uint64_t)deed * 10 + nodes};
  const char *form = getenv("TEST_FAULTS");
  int calls = count_calls(victim, nodes);
  bool all = form && strcmp(form, "all") == 0;
  int ntrials = all || calls < most ? calls : most;
  trial *trials = world_share((size_t)ntrials * sizeof *trials);
  for (int i = 0; i < ntrials; i++) {
    int at =
        ntrials == calls ? i + 1 : 1 + (int)((int64_t)calls * i / ntrials) + random_below(&random, calls / ntrials);
    trials[i] = (trial){.victim = victim, .deed = deed, .at = at, .nodes = nodes};
  }
  run_trials(trials, ntrials);
  world_unshare(trials, (size_t)ntrials * sizeof *trials);
}

static bool cannot(bool nodes) {
  const char *why = nodes ? "built without UCX" : NULL;
#ifdef HAVE_UCX
  why = NULL;
#endif
  if (!injector_works()) why = "system calls cannot be trapped here";
  if (why) printf("skipped: %s\n", why);
  return why || (nodes && !world_has_network());
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

int main(void) { return world_main(suite_of("shrink_faults", getenv("TEST_FAULTS") ? 7200 : 300)); }
