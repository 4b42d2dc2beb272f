/* SPDX-License-Identifier: Apache-2.0
 * Ranks with devices on several nodes, for tests: devices of the fake driver, which runs the library's kernels by a
 * thread of its own, and UCX on the loopback interface between ranks that take themselves for ranks of several nodes.
 * What rank is where is in the names. */
#ifndef BNY_TESTS_DEVICE_NODES_H
#define BNY_TESTS_DEVICE_NODES_H

#include <check.h>

#include "tests/support/combine_task.h"
#include "tests/device/device_util.h"

enum { RANKS_MAX = 8, SECOND_NS = 1000000000 };

static const char *const device_nodes_names[] = {NULL, NULL, "a,b", "a,a,b", "a,b,a,b", "a,a,b,b,c"};

/* The emulator's clock is slower than time, so that no deadline of a kernel passes early. */
static inline void device_nodes_begin_on(const char *names, const char *words) {
  char more[256];
  snprintf(more, sizeof more, "%sdevices=%d,live,moved,step-ns=20,seed=%llu", words, RANKS_MAX,
           (unsigned long long)world_seed());
  setenv("FAKE_CUDA", more, 1);
  setenv("BANYAN_CUDA_LIBRARY", fake_cuda_path(), 1);
  setenv("BANYAN_DEVICE_NODES", "staged", 1);
  world_be_nodes(names);
  fake_cuda_set_image("emulated", 8);
}

static inline void device_nodes_begin(int32_t nranks, const char *words) {
  device_nodes_begin_on(device_nodes_names[nranks], words);
}

typedef struct device_nodes_rank {
  world_rank *world;
  bny_device *device;
  void *stream;
} device_nodes_rank;

typedef struct device_nodes_task {
  combine_task *of;
  bool processes, one_device, on_host;
  size_t arena_bytes;
  int64_t timeout_ns;
  void (*body)(device_nodes_rank *self, const struct device_nodes_task *task);
  void *argument;
  void (*conduct)(world *world, const pid_t *pids, void *argument);
} device_nodes_task;

static inline banyan_status device_nodes_create(world_rank *world, const device_nodes_task *task, int32_t ordinal,
                                                banyan_comm **comm) {
  char name[16];
  snprintf(name, sizeof name, "cuda:%d", ordinal);
  banyan_comm_config config = {.size = sizeof config,
                               .arena_bytes = task->arena_bytes,
                               .timeout_ns = task->timeout_ns ? task->timeout_ns : WORLD_GUARD_NS,
                               .device = task->on_host ? NULL : name};
  return banyan_comm_create(&world->bootstrap, &config, comm);
}

static inline void device_nodes_live(world_rank *world) {
  const device_nodes_task *task = world->argument;
  device_nodes_rank self = {.world = world};
  int32_t ordinal = task->one_device ? 0 : world->rank;
  if (world_ok(world, open_fake(ordinal, &self.device), "open") &&
      world_ok(world, self.device->ops->stream_make(self.device, &self.stream), "stream") &&
      world_ok(world, device_nodes_create(world, task, ordinal, &world->comm), "create"))
    task->body(&self, task);
  if (!self.device) return;
  banyan_comm_destroy(world->comm);
  world->comm = NULL;
  self.device->ops->stream_free(self.device, self.stream);
  self.device->ops->close(self.device);
}

static inline void device_nodes_run(int32_t nranks, device_nodes_task task) {
  world_setup setup = {.nranks = nranks,
                       .processes = task.processes,
                       .bare = true,
                       .deaths = task.conduct != NULL,
                       .argument = &task,
                       .conduct = task.conduct};
  world_run(&setup, device_nodes_live);
  char left[256];
  if (!task.processes) ck_assert_msg(FAKE_CUDA(fake_cuda_live)(left, sizeof left) == 0, "left: %s", left);
}

/* Until the stream is done, which it is at some time, whatever happened. */
static inline bool device_nodes_finish(device_nodes_rank *self) {
  banyan_status status = bny_device_wait(self->device, self->stream, (int64_t)(world_now_s() * 1e9) + WORLD_GUARD_NS);
  return world_check(self->world, status == BANYAN_OK, "a stream does not end: %s", banyan_last_error());
}

static inline banyan_status device_nodes_start(device_nodes_rank *self, combine_attempt *attempt, int run) {
  int32_t rank = self->world->rank;
  banyan_combine_desc desc = attempt->desc;
  desc.stream = self->stream;
  banyan_partial in = combine_attempt_input(attempt, rank);
  const sheet *out = &attempt->out[run][rank];
  return banyan_combine(self->world->comm, &desc, &in, out->tokens && out->heads ? &out->partial : NULL);
}

#endif
