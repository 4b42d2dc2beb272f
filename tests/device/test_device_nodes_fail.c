/* SPDX-License-Identifier: Apache-2.0
 * Tests failures of combines that only devices of several nodes have: the culprit, the time, and the state afterwards.
 * test_device_calls.c has those of all devices. */
#include <signal.h>

#include "comm/comm.h"
#include "tests/device/device_nodes.h"
#include "device/proxy.h"

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Checks that the stream ends, and that the communicator reports this failure. */
static void expect(world_rank *self, banyan_status status, int32_t culprit, const char *says) {
  if (device_nodes_finish(self)) world_fails(self, status, culprit, says);
}

/* Completes a first run. Returns NULL if it fails. */
static const combine_attempt *run_first(world_rank *self) {
  const combine_attempt *attempt = &((const combine_task *)self->argument)->attempts[0];
  bool good =
      world_ok(self, device_nodes_start(self, attempt, 0), "combine") && device_nodes_finish(self) && world_meet(self);
  return good ? attempt : NULL;
}

/* The proxy of one device is gone. The device ends by itself, and the other ranks end by their deadline. */
static void lose_a_proxy(world_rank *self) {
  const combine_attempt *attempt = run_first(self);
  if (!attempt) return;
  if (self->rank == 1) {
    bny_proxy *proxy = self->comm->device.proxy;
    atomic_store(&proxy->quits, true);
    pthread_join(proxy->thread, NULL);
    proxy->has_thread = false;
  }
  if (!world_meet(self) || !world_ok(self, device_nodes_start(self, attempt, 1), "combine")) return;
  expect(self, BANYAN_ERR_TIMEOUT, 1, "rank 1");
  world_meet(self);
}

/* A rank that gives up destroys its communicator without a wait for its stream. Its kernel still polls the memory that
 * is then freed. */
static void abort_and_leave(world_rank *self) {
  const combine_attempt *attempt = run_first(self);
  if (!attempt) return;
  bool comes = self->rank != 1;
  if (comes && !world_ok(self, device_nodes_start(self, attempt, 1), "combine")) return;
  if (world_meet(self) && comes) banyan_comm_abort(self->comm, "enough");
  device_nodes_leave(self);
}

static const struct {
  world_body body;
  int64_t timeout_ns;
} failures[] = {{lose_a_proxy, SECOND_NS}, {abort_and_leave, 0}};

TEST_LOOP(failures_are_named, (int)(sizeof failures / sizeof failures[0])) {
  combine_task *of = combine_task_new(3, 40);
  combine_group group = combine_group_make(of, 1, 4, 16);
  /* All ranks wait for all others, and name the rank that is missing. */
  combine_task_add(of, &group, (banyan_combine_desc){.wire = BANYAN_F32, .algorithm = "oneshot"}, true);
  device_nodes_run(of, failures[_i].body, (world_setup){.timeout_ns = failures[_i].timeout_ns});
  combine_task_free(of);
}

/* ---- deaths ------------------------------------------------------------------------------------------------------ */

enum { READY, DEAD };

/* Rank 2 is killed while the devices of the others wait for it. The others continue without it. */
static void survive(world_rank *self) {
  const combine_attempt *attempt = run_first(self);
  if (!attempt) return;
  if (self->rank == 2) {
    world_signal(self->world, READY);
    for (;;) pause();
  }
  if (!world_ok(self, device_nodes_start(self, attempt, 1), "combine")) return;
  double began = world_now_s();
  expect(self, BANYAN_ERR_PEER, 2, "rank 2 died");
  world_check(self, world_is_sanitized() || world_now_s() - began < 10, "a death took %.1f s", world_now_s() - began);
  banyan_comm *rest = NULL;
  int32_t members[RANKS_MAX];
  if (!world_ok(self, banyan_comm_shrink(self->comm, members, &rest), "shrink")) return;
  banyan_comm_destroy(self->comm);
  self->comm = rest;
  float value = (float)self->rank, lse = 0, mean = -1;
  banyan_partial in, out;
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = 1, .value_dim = 1, .stream = self->stream};
  banyan_partial_init(&in, &value, BANYAN_F32, &lse, BANYAN_F32, 1, 1);
  banyan_partial_init(&out, &mean, BANYAN_F32, NULL, BANYAN_F32, 1, 1);
  if (!world_ok(self, banyan_combine(rest, &desc, &in, &out), "combine of those who are left") ||
      !device_nodes_finish(self))
    return;
  world_check(self, mean == 4.0f / 3, "%g", (double)mean);
  world_ok(self, banyan_barrier(rest), "barrier");
  device_nodes_leave(self);
}

static void kill_one(world *world, const pid_t *pids, void *argument) {
  (void)argument;
  if (!world_await(world, READY, 20)) return;
  world_sleep_ms(50);
  kill(pids[2], SIGKILL);
}

TEST(the_dead_are_named_and_left_behind) {
  combine_task *of = combine_task_new(4, 41);
  combine_group group = combine_group_make(of, 1, 4, 16);
  combine_task_add(of, &group, (banyan_combine_desc){.wire = BANYAN_F32}, true);
  device_nodes_run(of, survive, (world_setup){.processes = true, .deaths = true, .conduct = kill_one});
  combine_task_free(of);
}

int main(void) {
  if (!world_has_network()) return 77;
  return world_main(suite_of("device_nodes_fail", 60));
}
