/* SPDX-License-Identifier: Apache-2.0
 * Combines of ranks with emulated devices on several nodes (world_staged), in memory that devices reach directly. The
 * names of nodes assign ranks to nodes. */
#pragma once

#include "tests/device/device_util.h"
#include "tests/support/combine_task.h"
#include "tools/common/gpu.h"

enum { RANKS_MAX = 8, SECOND_NS = 1000000000 };

static inline void device_nodes_run(combine_task *of, world_body body, world_setup setup) {
  if (!setup.on) setup.on = &world_staged;
  setup.nranks = of->nranks;
  setup.arena_bytes = 1 << 20;
  setup.argument = of;
  world_run(&setup, body);
}

/* Waits for the stream of this rank, which ends even after a failure. */
static inline bool device_nodes_finish(world_rank *self) {
  tool_error error = {.text = ""};
  if (!self->on->is_device) return true;
  return world_check(self, gpu_wait(world_gpu_of(self), self->stream, WORLD_GUARD_S, &error), "%s", error.text);
}

static inline banyan_status device_nodes_start(world_rank *self, const combine_attempt *attempt, int run) {
  banyan_combine_desc desc = attempt->desc;
  desc.stream = self->stream;
  banyan_partial in = combine_attempt_input(attempt, self->rank);
  const sheet *out = &attempt->out[run][self->rank];
  return banyan_combine(self->comm, &desc, &in, out->tokens && out->heads ? &out->partial : NULL);
}

/* Lets a rank leave at once, without a wait for others. */
static inline void device_nodes_leave(world_rank *self) {
  banyan_comm_destroy(self->comm);
  self->comm = NULL;
}
