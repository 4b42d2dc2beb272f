/* SPDX-License-Identifier: Apache-2.0
 * Between nodes, an abort waits for no peer, even if the peer is stopped with a full socket. A forked child takes no
 * data from its parent's connections. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/support/world.h"

#include "tests/transport/net_util.h"

enum { TRIES = 3, BYTES = 20 << 20, FLAG_ABORTED = 1 };

/* Rank 1 stops. Rank 0 sends more than the sockets hold, and aborts. */
static void abort_while_peer_is_stopped(world_rank *self) {
  double *took_ms = self->argument;
  char *data = calloc(1, BYTES);
  banyan_op *op = NULL;
  if (!world_check(self, data, "no memory") ||
      !world_ok(self, banyan_broadcast_init(self->comm, data, BYTES, 0, &op), "init"))
    return;
  if (!world_meet(self)) return;
  if (self->rank == 1)
    raise(SIGSTOP);
  else
    world_sleep_ms(50);
  if (self->rank == 0 && world_ok(self, banyan_start(op), "start")) {
    double begun = world_now_s();
    banyan_comm_abort(self->comm, "enough");
    *took_ms = 1e3 * (world_now_s() - begun);
    world_signal(self->world, FLAG_ABORTED);
  }
  if (self->rank == 1) banyan_start(op);
  banyan_status status = banyan_wait(op);
  /* When rank 0 leaves, its unsent data and the report after it may be lost with the connection. */
  bool may_be_lost = self->rank == 1 && status == BANYAN_ERR_PEER;
  world_check(self, status == BANYAN_ERR_ABORTED || may_be_lost, "got %s: %s", banyan_status_string(status),
              banyan_last_error());
  banyan_op_free(op);
  free(data);
}

static void wake(world *world, const pid_t *pids, void *argument) {
  (void)argument;
  world_await(world, FLAG_ABORTED, 20);
  kill(pids[1], SIGCONT);
}

TEST(aborting_waits_for_nobody) {
  double *took_ms = world_take(sizeof *took_ms), least_ms = 1e9;
  world_be_nodes("a,b");
  setenv("BANYAN_PART_KIB", "32768", 1);
  for (int i = 0; i < TRIES; i++) {
    WORLD_RUN(abort_while_peer_is_stopped, .nranks = 2, .processes = true, .argument = took_ms, .conduct = wake,
              .arena_bytes = 1 << 27);
    if (*took_ms < least_ms) least_ms = *took_ms;
  }
  ck_assert_msg(least_ms < 4, "banyan_comm_abort() took %.1f ms at least", least_ms);
}

static void have_a_curious_child(world_rank *self) {
  pid_t child = self->rank == 0 ? fork() : -1;
  if (child == 0) {
    double end = world_now_s() + 0.1;
    while (world_now_s() < end) (void)banyan_comm_status(self->comm);
    _exit(0);
  }
  double end = world_now_s() + 0.2;
  int goes_on = 1;
  while (goes_on) { /* until rank 0 ends the loop */
    goes_on = world_now_s() < end;
    if (!world_ok(self, banyan_broadcast(self->comm, &goes_on, sizeof goes_on, 0), "broadcast") ||
        !world_ok(self, banyan_barrier(self->comm), "barrier"))
      break;
  }
  if (child > 0) waitpid(child, NULL, 0);
}

TEST(a_child_takes_no_messages) {
  world_be_nodes("a,b");
  WORLD_RUN(have_a_curious_child, .nranks = 2, .processes = true, .timeout_ns = 5000000000);
}

static int count_a_look(void *looks) { return ++*(int *)looks == 0; }

/* Leaving waits for an absent peer, and runs the thread's banyan_on_wait() check meanwhile. */
static void leave_with_a_check(world_rank *self) {
  int looks = 0;
  if (!world_ok(self, banyan_barrier(self->comm), "barrier") || !world_meet(self)) return;
  if (self->rank == 0) {
    banyan_on_wait(count_a_look, &looks);
    banyan_comm_destroy(self->comm);
    banyan_on_wait(NULL, NULL);
    self->comm = NULL;
    world_check(self, looks > 1, "%d looks", looks);
  }
  world_meet(self);
}

TEST(leaving_looks_for_signals) {
  world_be_nodes("a,b");
  WORLD_RUN(leave_with_a_check, .nranks = 2, .processes = true);
}

int main(void) {
  if (net_is_absent()) return 77;
  unsetenv("BANYAN_UCX_PUT"); /* ranks leave their calls here, which puts over TCP do not support */
  return world_main(suite_of("net_abort", 60));
}
