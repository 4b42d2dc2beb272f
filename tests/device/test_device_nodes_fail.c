/* SPDX-License-Identifier: Apache-2.0
 * Combines on devices of several nodes that fail: who is named, how soon, and what goes on afterwards. */
#include <math.h>
#include <signal.h>
#include <unistd.h>

#include "comm/comm.h"
#include "tests/device/device_nodes.h"
#include "device/proxy.h"
#include "tests/support/suite.h"

#if !defined HAVE_CUDA || !defined HAVE_CXX17 || !defined HAVE_UCX
int main(void) {
  puts("built without CUDA, without UCX, or without a compiler of C++17");
  return 77;
}
#else

/* ---- failures ---------------------------------------------------------------------------------------------------- */

typedef struct failure_case {
  banyan_status status;
  int32_t culprit;
  const char *says;
} failure_case;

/* The stream ends, and what failed is known. */
static void expect(device_nodes_rank *self, const failure_case *expected, double seconds) {
  banyan_comm *comm = self->world->comm;
  double until = world_now_s() + seconds;
  if (!device_nodes_finish(self)) return;
  while (banyan_comm_status(comm) == BANYAN_OK && world_now_s() < until) world_sleep_ms(1);
  world_check(self->world,
              banyan_comm_status(comm) == expected->status && banyan_comm_failed_rank(comm) == expected->culprit &&
                  strstr(banyan_comm_error(comm), expected->says),
              "status %d, rank %d, \"%s\"", banyan_comm_status(comm), banyan_comm_failed_rank(comm),
              banyan_comm_error(comm));
}

/* Rank 1 does not come any more. */
static void leave_one_out(device_nodes_rank *self, const device_nodes_task *task) {
  static const failure_case late = {BANYAN_ERR_TIMEOUT, 1, "rank 1"};
  combine_attempt *attempt = &task->of->attempts[0];
  if (!world_ok(self->world, device_nodes_start(self, attempt, 0), "combine") || !device_nodes_finish(self) ||
      !world_meet(self->world))
    return;
  double began = world_now_s();
  if (self->world->rank != 1) {
    if (!world_ok(self->world, device_nodes_start(self, attempt, 1), "combine")) return;
    expect(self, &late, 1);
    double took = world_now_s() - began, timeout = (double)task->timeout_ns * 1e-9;
    world_check(self->world, world_is_sanitized() || took < 1.25 * timeout + 0.2, "%.2f s for a deadline of %.2f s",
                took, timeout);
    world_check(self->world, device_nodes_start(self, attempt, 1) == BANYAN_ERR_TIMEOUT, "later calls do not fail");
  }
  world_meet(self->world);
  static const failure_case told = {BANYAN_ERR_TIMEOUT, 1, "rank 1"};
  if (self->world->rank == 1) expect(self, &told, 5);
  world_meet(self->world);
}

static void abort_one(device_nodes_rank *self, const device_nodes_task *task) {
  static const failure_case aborted = {BANYAN_ERR_ABORTED, 2, "rank 2 called banyan_comm_abort()"};
  combine_attempt *attempt = &task->of->attempts[0];
  if (!world_ok(self->world, device_nodes_start(self, attempt, 0), "combine") || !device_nodes_finish(self) ||
      !world_meet(self->world))
    return;
  double began = world_now_s();
  if (self->world->rank != 2 && !world_ok(self->world, device_nodes_start(self, attempt, 1), "combine")) return;
  if (self->world->rank == 2) world_sleep_ms(20), banyan_comm_abort(self->world->comm, "enough");
  expect(self, &aborted, 5);
  world_check(self->world, world_now_s() - began < 5, "an abort took %.1f s", world_now_s() - began);
  world_meet(self->world);
}

static void give_nan(device_nodes_rank *self, const device_nodes_task *task) {
  static const failure_case bad = {BANYAN_ERR_DATA, 1, "rank 1 gave statistics of no row"};
  static float values[4 * 8], lse[4] = {1, 2, NAN, 4};
  float out_values[4 * 8], out_lse[4];
  banyan_partial in, out;
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = 4, .value_dim = 8, .stream = self->stream};
  banyan_partial_init(&in, values, BANYAN_F32, lse, BANYAN_F32, 4, 8);
  banyan_partial_init(&out, out_values, BANYAN_F32, out_lse, BANYAN_F32, 4, 8);
  if (self->world->rank != 1) in.empty |= BANYAN_EMPTY_NAN;
  /* A rank may still be planning when another's device has found it. */
  banyan_status status = banyan_combine(self->world->comm, &desc, &in, &out);
  world_check(self->world, status == BANYAN_OK || status == BANYAN_ERR_DATA, "combine: %s", banyan_last_error());
  (void)task;
  expect(self, &bad, 5);
  world_meet(self->world);
}

/* The thread that is a device's peer is gone: the device ends by itself, and the other ranks by their deadline. */
static void lose_a_proxy(device_nodes_rank *self, const device_nodes_task *task) {
  static const failure_case lost = {BANYAN_ERR_TIMEOUT, 1, "rank 1"};
  combine_attempt *attempt = &task->of->attempts[0];
  if (!world_ok(self->world, device_nodes_start(self, attempt, 0), "combine") || !device_nodes_finish(self) ||
      !world_meet(self->world))
    return;
  if (self->world->rank == 1) {
    bny_proxy *proxy = self->world->comm->device.proxy;
    atomic_store(&proxy->quits, true);
    pthread_join(proxy->thread, NULL);
    proxy->has_thread = false;
  }
  if (!world_meet(self->world) || !world_ok(self->world, device_nodes_start(self, attempt, 1), "combine")) return;
  expect(self, &lost, 5);
  world_meet(self->world);
}

/* A rank that gives up destroys its communicator without waiting for its stream. Its kernel still polls what is freed
 * then. */
static void abort_and_leave(device_nodes_rank *self, const device_nodes_task *task) {
  combine_attempt *attempt = &task->of->attempts[0];
  if (!world_ok(self->world, device_nodes_start(self, attempt, 0), "combine") || !device_nodes_finish(self) ||
      !world_meet(self->world))
    return;
  bool comes = self->world->rank != 1;
  if (comes && !world_ok(self->world, device_nodes_start(self, attempt, 1), "combine")) return;
  if (world_meet(self->world) && comes) banyan_comm_abort(self->world->comm, "enough");
}

static const struct {
  void (*body)(device_nodes_rank *self, const device_nodes_task *task);
  int64_t timeout_ns;
} failures[] = {
    {leave_one_out, SECOND_NS}, {abort_one, 0}, {give_nan, 0}, {lose_a_proxy, SECOND_NS}, {abort_and_leave, 0}};

TEST_LOOP(failures_are_named, (int)(sizeof failures / sizeof failures[0])) {
  device_nodes_begin(3, "");
  combine_task *of = combine_task_new(3, 40);
  combine_group group = combine_group_make(of, 1, 4, 16);
  /* All wait for all, and know whom they miss. */
  combine_task_add(of, &group, (banyan_combine_desc){.wire = BANYAN_F32, .algorithm = "oneshot"}, true);
  device_nodes_run(
      3, (device_nodes_task){
             .of = of, .body = failures[_i].body, .timeout_ns = failures[_i].timeout_ns, .arena_bytes = 1 << 20});
  combine_task_free(of);
}

/* ---- deaths ------------------------------------------------------------------------------------------------------ */

enum { READY, DEAD };

/* Rank 2 is killed while the others' devices wait for it. They go on without it. */
static void survive(device_nodes_rank *self, const device_nodes_task *task) {
  static const failure_case died = {BANYAN_ERR_PEER, 2, "rank 2 died"};
  world_rank *world = self->world;
  combine_attempt *attempt = &task->of->attempts[0];
  if (!world_ok(world, device_nodes_start(self, attempt, 0), "combine") || !device_nodes_finish(self) ||
      !world_meet(world))
    return;
  if (world->rank == 2) {
    world_signal(world->world, READY);
    for (;;) pause();
  }
  if (!world_ok(world, device_nodes_start(self, attempt, 1), "combine")) return;
  double began = world_now_s();
  expect(self, &died, 5);
  world_check(world, world_is_sanitized() || world_now_s() - began < 2, "a death took %.1f s", world_now_s() - began);
  banyan_comm *rest = NULL;
  int32_t members[RANKS_MAX];
  if (!world_ok(world, banyan_comm_shrink(world->comm, members, &rest), "shrink")) return;
  banyan_comm_destroy(world->comm);
  world->comm = rest;
  float value = (float)world->rank, lse = 0, mean = -1;
  banyan_partial in, out;
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = 1, .value_dim = 1, .stream = self->stream};
  banyan_partial_init(&in, &value, BANYAN_F32, &lse, BANYAN_F32, 1, 1);
  banyan_partial_init(&out, &mean, BANYAN_F32, NULL, BANYAN_F32, 1, 1);
  if (!world_ok(world, banyan_combine(rest, &desc, &in, &out), "combine of those who are left") ||
      !device_nodes_finish(self))
    return;
  world_check(world, mean == 4.0f / 3, "%g", (double)mean);
  world_ok(world, banyan_barrier(rest), "barrier");
}

static void kill_one(world *world, const pid_t *pids, void *argument) {
  (void)argument;
  if (!world_await(world, READY, 20)) return;
  world_sleep_ms(50);
  kill(pids[2], SIGKILL);
}

TEST(the_dead_are_named_and_left_behind) {
  device_nodes_begin(4, "");
  combine_task *of = combine_task_new(4, 41);
  combine_group group = combine_group_make(of, 1, 4, 16);
  combine_task_add(of, &group, (banyan_combine_desc){.wire = BANYAN_F32}, true);
  device_nodes_run(4, (device_nodes_task){
                          .of = of, .body = survive, .processes = true, .conduct = kill_one, .arena_bytes = 1 << 20});
  combine_task_free(of);
}

int main(void) {
  if (!world_has_network()) return 77;
  return world_main(suite_of("device_nodes_fail", 60));
}
#endif
