/* SPDX-License-Identifier: Apache-2.0
 * Shrinks a failed communicator to its surviving ranks, and tests who is a member, that the result works, and what
 * excluded ranks get. In test_shrink_faults.c a rank dies in the middle of it. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "comm/comm.h"
#include "tests/support/rows.h"
#include "tests/support/world.h"

enum { HEADS = 4, VALUE_DIM = 16, FLAG_STOPPED = 1, FLAG_DONE = 2 };

typedef enum deed { DIE, STOP, ABORT, LEAVE, LATE } deed;

typedef struct scenario {
  deed deed;
  uint32_t culprits; /* bit r: rank r fails */
  int shrunk[WORLD_RANKS_MAX];
} scenario;

static bool is_in(uint32_t set, int32_t rank) { return (uint64_t)set >> (rank < 32 ? rank : 32) & 1; }

/* Rank r of the first communicator contributes value r + 1 with equal weights. The result is the mean over members. */
static const rows *values_of(const world_rank *self) {
  const rows *made = rows_take(1, HEADS, VALUE_DIM);
  rows_set(made, (float)(self->rank + 1));
  return made;
}

static bool check_mean(world_rank *self, const rows *rows, banyan_comm *comm, const int32_t *members) {
  double sum = 0;
  int32_t nranks = banyan_comm_nranks(comm);
  for (int32_t i = 0; i < nranks; i++) sum += members[i] + 1;
  return world_ok(self, rows_combine(rows, comm), "combine of those left") && rows_hold(self, rows, sum / nranks);
}

static void do_deed(world_rank *self, const scenario *scenario) {
  if (scenario->deed == DIE) raise(SIGKILL);
  if (scenario->deed == STOP) {
    world_signal(self->world, FLAG_STOPPED);
    raise(SIGSTOP);
  }
  if (scenario->deed == ABORT) banyan_comm_abort(self->comm, "enough");
  if (scenario->deed == LEAVE) {
    banyan_comm_destroy(self->comm);
    self->comm = NULL;
  }
}

/* Calls until an error is reported, as a program does. */
static banyan_status go_on(world_rank *self) {
  const rows *rows = values_of(self);
  banyan_status status = BANYAN_OK;
  while (status == BANYAN_OK) status = rows_combine(rows, self->comm);
  return status;
}

static bool check_members(world_rank *self, const scenario *scenario, banyan_comm *comm, const int32_t *members) {
  uint32_t out = scenario->deed == ABORT ? 0 : scenario->culprits, seen = 0;
  int32_t nranks = banyan_comm_nranks(comm), last = -1;
  for (int32_t i = 0; i < nranks; i++) {
    if (!world_check(self, members[i] > last && members[i] < self->nranks, "members out of order")) return false;
    last = members[i];
    seen |= 1u << members[i];
  }
  uint32_t all = (1u << self->nranks) - 1;
  return world_check(self, members[banyan_comm_rank(comm)] == self->rank, "rank %d is member %d", self->rank,
                     banyan_comm_rank(comm)) &&
         world_check(self, !(seen & out) && (seen | out) == all, "members are %x without %x", seen, out);
}

static void shrink_and_go_on(world_rank *self, scenario *scenario) {
  const rows *rows = values_of(self);
  int32_t members[WORLD_RANKS_MAX];
  banyan_comm *left = NULL;
  if (!world_ok(self, banyan_comm_shrink(self->comm, members, &left), "shrink")) return;
  banyan_comm_destroy(self->comm);
  self->comm = left;
  if (!check_members(self, scenario, left, members)) return;
  for (int i = 0; i < 10; i++)
    if (!check_mean(self, rows, left, members)) return;
  scenario->shrunk[self->rank] = 1;
}

static void play(world_rank *self) {
  scenario *scenario = self->argument;
  if (!world_ok(self, rows_combine(values_of(self), self->comm), "combine") || !world_meet(self)) return;
  if (is_in(scenario->culprits, self->rank)) do_deed(self, scenario);
  if (!self->comm) return;
  if (scenario->deed == LATE && is_in(scenario->culprits, self->rank)) { /* the timeout named it */
    world_await(self->world, FLAG_DONE, 10);
    banyan_comm *left = NULL;
    banyan_status status = banyan_comm_shrink(self->comm, NULL, &left);
    world_gets(self, status, BANYAN_ERR_PEER, "excluded by");
    return;
  }
  banyan_status status = go_on(self);
  banyan_status wanted = scenario->deed == ABORT                            ? BANYAN_ERR_ABORTED
                         : scenario->deed == STOP || scenario->deed == LATE ? BANYAN_ERR_TIMEOUT
                                                                            : BANYAN_ERR_PEER;
  if (!world_check(self, status == wanted, "got %s: %s", banyan_status_string(status), banyan_last_error())) return;
  shrink_and_go_on(self, scenario);
  world_signal(self->world, FLAG_DONE);
}

static void kill_stopped(world *world, const pid_t *pids, void *argument) {
  const scenario *scenario = argument;
  if (scenario->deed != STOP) return;
  world_await(world, FLAG_DONE, 15);
  for (int32_t r = 0; r < WORLD_RANKS_MAX; r++)
    if (is_in(scenario->culprits, r)) kill(pids[r], SIGKILL);
}

/* Shared memory of one node, several nodes round-robin in the order of ranks, and nodes in blocks. */
static const char *const node_lists[] = {NULL, "a,b,a,b,a,b", "a,a,a,b,b,b"};

static void run_scenario(scenario scenario, int32_t nranks, bool processes, const char *nodes, double timeout_s) {
  if (!world_be_nodes(nodes)) return;
  struct scenario *shared = world_take(sizeof *shared);
  *shared = scenario;
  WORLD_RUN(play, .nranks = nranks, .processes = processes, .argument = shared,
            .conduct = processes ? kill_stopped : NULL,
            .deaths = processes && (scenario.deed == DIE || scenario.deed == STOP),
            .timeout_ns = (int64_t)(timeout_s * (world_is_sanitized() ? 4e9 : 1e9)));
  for (int32_t r = 0; r < nranks; r++) {
    bool out = scenario.deed != ABORT && is_in(scenario.culprits, r);
    ck_assert_msg(shared->shrunk[r] == !out, "rank %d: %d", r, shared->shrunk[r]);
  }
}

TEST_LOOP(without_the_dead, 3) {
  run_scenario((scenario){.deed = DIE, .culprits = 1u << 1}, 3, true, node_lists[_i], 10);
  run_scenario((scenario){.deed = DIE, .culprits = 1u << 0 | 1u << 4}, 6, true, node_lists[_i], 10);
  run_scenario((scenario){.deed = DIE, .culprits = 1u << 1}, 2, true, node_lists[_i], 10);
  run_scenario((scenario){.deed = DIE, .culprits = 1u << 0}, 2, true, node_lists[_i], 10);
}

TEST_LOOP(without_the_stopped, 3) {
  run_scenario((scenario){.deed = STOP, .culprits = 1u << 2}, 4, true, node_lists[_i], 0.5);
}

TEST_LOOP(all_after_an_abort, 6) {
  run_scenario((scenario){.deed = ABORT, .culprits = 1u << 3}, 4, _i % 2, node_lists[_i / 2], 10);
}

TEST_LOOP(without_those_who_left, 6) {
  run_scenario((scenario){.deed = LEAVE, .culprits = 1u << 0}, 4, _i % 2, node_lists[_i / 2], 10);
}

TEST_LOOP(a_rank_that_was_given_up_is_told, 6) {
  run_scenario((scenario){.deed = LATE, .culprits = 1u << 1}, 4, _i % 2, node_lists[_i / 2], 0.4);
}

/* ---- repeated shrinks and rejections ----------------------------------------------------------------------------- */

/* Waits until all ranks have this communicator. A rank that leaves earlier would fail ranks still in the common
 * call. */
static bool settle(world_rank *self, int32_t nranks) {
  atomic_int *settled = (atomic_int *)self->argument + nranks;
  double deadline = world_now_s() + 20;
  atomic_fetch_add(settled, 1);
  while (atomic_load(settled) < nranks && world_now_s() < deadline) world_sleep_ms(0.1);
  return world_check(self, atomic_load(settled) == nranks, "not all of %d ranks came to where one leaves", nranks);
}

static void shrink_to_nothing(world_rank *self) {
  int32_t members[WORLD_RANKS_MAX], origins[WORLD_RANKS_MAX];
  for (int32_t i = 0; i < self->nranks; i++) origins[i] = i;
  while (banyan_comm_nranks(self->comm) > 1) {
    banyan_comm *left = NULL;
    int32_t nranks = banyan_comm_nranks(self->comm);
    if (!settle(self, nranks)) return;
    if (banyan_comm_rank(self->comm) == nranks - 1) {
      banyan_comm_destroy(self->comm);
      self->comm = NULL;
      return;
    }
    world_check(self, go_on(self) == BANYAN_ERR_PEER, "got %s", banyan_last_error());
    if (!world_ok(self, banyan_comm_shrink(self->comm, members, &left), "shrink")) return;
    banyan_comm_destroy(self->comm);
    self->comm = left;
    for (int32_t i = 0; i < banyan_comm_nranks(left); i++) members[i] = origins[members[i]];
    memcpy(origins, members, sizeof origins);
    if (!check_mean(self, values_of(self), left, origins)) return;
  }
}

TEST_LOOP(again_and_again, 6) {
  world_setup setup = {.nranks = 6, .processes = _i % 2};
  if (!world_be_nodes(node_lists[_i / 2])) return;
  atomic_int *settled = world_take((WORLD_RANKS_MAX + 1) * sizeof *settled); /* indexed by size of the communicator */
  setup.argument = settled;
  world_run(&setup, shrink_to_nothing);
}

TEST_RANKS(wrong_calls_are_rejected, 1, .nranks = 2) {
  banyan_comm *left = NULL, *none = NULL;
  world_check(self, banyan_comm_shrink(self->comm, NULL, &left) == BANYAN_ERR_STATE, "got %s", banyan_last_error());
  if (!world_meet(self)) return;
  banyan_comm_abort(self->comm, NULL);
  if (!world_ok(self, banyan_comm_shrink(self->comm, NULL, &left), "shrink")) return;
  world_check(self, banyan_comm_shrink(self->comm, NULL, &none) == BANYAN_ERR_STATE, "got %s", banyan_last_error());
  world_check(self, banyan_comm_nranks(left) == self->nranks && !none, "got %d ranks", banyan_comm_nranks(left));
  banyan_comm_destroy(left);
}

/* With an unknown kernel name, the surviving ranks agree but cannot create their communicator. */
TEST_RANKS(failure_writes_nothing, 1, .nranks = 3, .processes = true) {
  int32_t members[3] = {-7, -7, -7};
  banyan_comm *left = NULL;
  banyan_comm_abort(self->comm, NULL);
  if (self->rank == 1) setenv("BANYAN_KERNELS", "none such", 1);
  banyan_status status = banyan_comm_shrink(self->comm, members, &left);
  world_check(self, status == BANYAN_ERR_ARGUMENT && !left, "got %s: %s", banyan_status_string(status),
              banyan_last_error());
  world_check(self, members[0] == -7 && members[1] == -7 && members[2] == -7, "members were written on failure");
  world_meet(self); /* a rank that left would be excluded */
}

/* The last rank is on a node of its own, and comes when the others have their communicator. All ranks that it has
 * exchanged messages with are dead. The members wait for nobody then, and some have destroyed the old communicator. */
typedef struct strange {
  bool destroys;
  atomic_int members;
} strange;

static void come_late_to_strangers(world_rank *self) {
  int32_t late = self->nranks - 1;
  strange *strange = self->argument;
  banyan_comm *left = NULL;
  if (!world_ok(self, banyan_barrier(self->comm), "barrier") || !world_meet(self)) return;
  self->comm->exec->timeout_ns = world_is_sanitized() ? 4000000000 : 1000000000; /* ranks meet with a longer one */
  bool is_stranger = !self->comm->transport->ops->is_connected(self->comm->transport, late);
  if (self->rank != late) {
    if (!is_stranger) raise(SIGKILL);
    go_on(self);
    if (!world_ok(self, banyan_comm_shrink(self->comm, NULL, &left), "shrink")) return;
    atomic_fetch_add(&strange->members, 1);
    if (strange->destroys) banyan_comm_destroy(self->comm), self->comm = NULL;
    world_signal(self->world, FLAG_STOPPED);
    world_await(self->world, FLAG_DONE, WORLD_GUARD_S);
    banyan_comm_destroy(left);
    return;
  }
  world_await(self->world, FLAG_STOPPED, WORLD_GUARD_S);
  go_on(self);
  banyan_status status = banyan_comm_shrink(self->comm, NULL, &left);
  world_gets(self, status, BANYAN_ERR_PEER, "rank 5 was excluded by the others");
  world_signal(self->world, FLAG_DONE);
}

TEST_LOOP(strangers_tell_a_late_rank, 2) {
  if (!world_be_nodes("a,a,a,a,a,b")) return;
  strange *strange = world_take(sizeof *strange);
  strange->destroys = _i;
  WORLD_RUN(come_late_to_strangers, .nranks = 6, .processes = true, .deaths = true, .argument = strange,
            .timeout_ns = 20000000000);
  ck_assert_int_gt(atomic_load(&strange->members), 0);
}

/* A shrink that waits for a late rank ends when its communicator is aborted. */
static void *abort_soon(void *argument) {
  world_sleep_ms(300);
  banyan_comm_abort(argument, "no more waiting");
  return NULL;
}

static void abort_a_shrink(world_rank *self) {
  banyan_comm *left = NULL;
  pthread_t thread;
  banyan_comm_abort(self->comm, NULL);
  if (self->rank == 0) {
    pthread_create(&thread, NULL, abort_soon, self->comm);
    double begun_s = world_now_s();
    banyan_status status = banyan_comm_shrink(self->comm, NULL, &left);
    world_gets(self, status, BANYAN_ERR_ABORTED, "aborted");
    world_check(self, world_now_s() - begun_s < WORLD_GUARD_S / 10, "it took %g s", world_now_s() - begun_s);
    pthread_join(thread, NULL);
    world_signal(self->world, FLAG_DONE);
  }
  world_await(self->world, FLAG_DONE, WORLD_GUARD_S);
}

TEST_LOOP(an_abort_ends_it, 2) {
  if (!world_be_nodes(_i ? "a,b" : NULL)) return;
  WORLD_RUN(abort_a_shrink, .nranks = 2, .processes = true);
}

int main(void) {
  unsetenv("BANYAN_UCX_PUT"); /* ranks leave their calls here, which puts over TCP do not support */
  return world_main(suite_of("shrink", 120));
}
