/* SPDX-License-Identifier: Apache-2.0
 * Bad data of one rank fails its run and all later runs. Earlier runs, which have all their input, complete. */
#include "tests/support/placed.h"
#include "tests/support/rows.h"

enum { RANKS = 3, HEADS = 4, VALUE_DIM = 8, ROOT = 2, FLAG_STARTED = 1, FLAG_FAILED = 2 };

/* Combines to a root: the other ranks need nothing from it and may run ahead. */
static rows *take(void) {
  rows *made = rows_take(1, HEADS, VALUE_DIM);
  made->desc.scatter = BANYAN_SCATTER_ROOT;
  made->desc.root = ROOT;
  made->desc.algorithm = "oneshot";
  return made;
}

static void fill(const rows *rows, int32_t rank, int round) { rows_set(rows, (float)(3 * rank + round)); }

static void is_told(world_rank *self, banyan_status status) {
  world_gets(self, status, BANYAN_ERR_DATA, "rank 0");
  world_check(self, banyan_comm_failed_rank(self->comm) == 0, "rank %d is blamed", banyan_comm_failed_rank(self->comm));
}

static bool holds(world_rank *self, const rows *rows, int round) {
  return self->rank != ROOT || rows_hold(self, rows, 3 + round);
}

/* Rank 0 completes a good run and fails in the next one. Meanwhile the root is in the good run, and rank 1 has not
 * started it. */
static void give_bad_data(world_rank *self) {
  const rows *rows = take();
  banyan_op *op = NULL;
  if (!world_ok(self, rows_init(rows, self->comm, &op), "init")) return;
  fill(rows, self->rank, 0);
  if (!world_runs(self, op) || !holds(self, rows, 0) || !world_meet(self)) return;
  fill(rows, self->rank, 1);
  banyan_status status = self->rank == ROOT ? banyan_start(op) : BANYAN_OK;
  if (self->rank == ROOT) world_signal(self->world, FLAG_STARTED);
  int awaited = self->rank == 0 ? FLAG_STARTED : FLAG_FAILED;
  if (!world_check(self, world_await(self->world, awaited, 60), "nothing came of rank %d", self->rank == 0 ? ROOT : 0))
    return;
  if (status == BANYAN_OK) status = self->rank == ROOT ? banyan_wait(op) : start_and_wait(op);
  if (!world_ok(self, status, "a good run before that of bad data") || !holds(self, rows, 1)) return;
  if (self->rank == 0) rows->lse[1] = NAN;
  status = start_and_wait(op);
  if (self->rank == 0) world_signal(self->world, FLAG_FAILED);
  if (status == BANYAN_OK && self->rank == 1) status = banyan_barrier(self->comm); /* this run needed no peer */
  is_told(self, status);
  world_meet(self);
  banyan_op_free(op);
}

/* Two operations are started. Rank 0 passes bad data to the second, and each rank sees the error before it waits for
 * the first. */
static void give_bad_data_next(world_rank *self) {
  const rows *first = take(), *second = take();
  banyan_op *good = NULL, *bad = NULL;
  int done;
  if (!world_ok(self, rows_init(first, self->comm, &good), "init") ||
      !world_ok(self, rows_init(second, self->comm, &bad), "init"))
    return;
  fill(first, self->rank, 1);
  fill(second, self->rank, 2);
  if (self->rank == 0) second->lse[1] = NAN;
  if (!world_ok(self, banyan_start(good), "start") ||
      !world_check(self, banyan_start(bad) != BANYAN_ERR_STATE, "start"))
    return;
  banyan_status status = BANYAN_OK;
  if (self->rank == 0) {
    while (status == BANYAN_OK) status = banyan_test(bad, &done);
    world_signal(self->world, FLAG_FAILED);
  } else {
    world_await(self->world, FLAG_FAILED, 60);
    banyan_test(bad, &done);
  }
  if (world_ok(self, banyan_wait(good), "a good run before that of bad data")) holds(self, first, 1);
  status = banyan_wait(bad);
  if (status == BANYAN_OK && self->rank == 1) status = banyan_barrier(self->comm); /* this run needed no peer */
  is_told(self, status);
  world_meet(self);
  banyan_op_free(good);
  banyan_op_free(bad);
}

TEST_LOOP(runs_complete_before_bad_data, PLACED_WAYS) {
  world_setup setup = {.nranks = RANKS};
  if (placed_set((placed)_i, "a,a,b", "a,b,c", &setup)) world_run(&setup, give_bad_data_next);
}

TEST_LOOP(runs_before_bad_data, PLACED_WAYS) {
  world_setup setup = {.nranks = RANKS};
  if (placed_set((placed)_i, "a,b,b", "a,b,c", &setup)) world_run(&setup, give_bad_data);
}

int main(void) { return world_main(suite_of("bad_data", 60)); }
