/* SPDX-License-Identifier: Apache-2.0
 * Tests all-gather, shift, broadcast and barrier on devices over the fake driver, except for their results: the
 * driver's calls, and failures. */
#include "tests/device/device_util.h"
#include "tests/support/world.h"

enum { RANKS = 3, BYTES = 500 };

typedef enum kind { GATHER, SHIFT, BROADCAST, BARRIER, KINDS } kind;

static banyan_status call(world_rank *self, kind kind) {
  static unsigned char in[RANKS][BYTES], out[RANKS][RANKS * BYTES];
  static const size_t counts[RANKS] = {BYTES, 7, BYTES / 2};
  switch (kind) {
  case GATHER: return banyan_allgather(self->comm, in[self->rank], out[self->rank], counts);
  case SHIFT: return banyan_shift(self->comm, in[self->rank], out[self->rank], BYTES, 1);
  case BROADCAST: return banyan_broadcast(self->comm, out[self->rank], BYTES, 1);
  default: return banyan_barrier(self->comm);
  }
}

/* The second call of a shape makes no driver calls but launches. It may use another stream. */
static void call_twice(world_rank *self) {
  for (int kind = 0; kind < KINDS; kind++)
    if (!world_ok(self, call(self, (enum kind)kind), "call") || !world_finish(self)) return;
  uint64_t before = FAKE_CUDA(fake_cuda_setup_calls)();
  world_meet(self);
  world_ok(self, banyan_comm_set_stream(self->comm, self->stream), "set stream");
  for (int kind = 0; kind < KINDS; kind++) world_ok(self, call(self, (enum kind)kind), "call");
  world_meet(self);
  uint64_t calls = FAKE_CUDA(fake_cuda_setup_calls)() - before;
  world_check(self, calls == 0, "%llu calls that allocate or wait", (unsigned long long)calls);
  if (world_finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
}

TEST(hot_calls_do_not_allocate) { WORLD_RUN(call_twice, .nranks = RANKS, .on = &world_emulated); }

/* Rank 1 does not call. All other ranks report it. */
static void leave_one_out(world_rank *self) {
  kind kind = *(enum kind *)self->argument;
  if (!world_ok(self, call(self, kind), "call") || !world_finish(self)) return;
  if (self->rank != 1 && !world_ok(self, call(self, kind), "call")) return;
  if (!world_finish(self)) return;
  world_fails(self, BANYAN_ERR_TIMEOUT, 1, "");
}

TEST_LOOP(who_does_not_come_is_named, 2) {
  kind kind = _i ? BARRIER : GATHER;
  WORLD_RUN(leave_one_out, .nranks = RANKS, .on = &world_emulated, .words = "step-ns=20000", .timeout_ns = 4000000000,
            .argument = &kind);
}

static void differ(world_rank *self) {
  banyan_status status = call(self, self->rank == 2 ? BROADCAST : BARRIER);
  world_check(self, status == BANYAN_ERR_MISMATCH && strstr(banyan_last_error(), "collective"), "status %d, %s", status,
              banyan_last_error());
}

TEST(ranks_in_other_calls_are_reported) { WORLD_RUN(differ, .nranks = RANKS, .on = &world_emulated); }

int main(void) { return world_main(suite_of("device_bytes", 60)); }
