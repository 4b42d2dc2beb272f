/* SPDX-License-Identifier: Apache-2.0
 * Bad data of one rank fails its run and all later runs. Earlier runs, which have all their input, complete. */
#include "tests/support/placed.h"

enum { RANKS = 3, HEADS = 4, VALUE_DIM = 8, ROOT = 2, FLAG_STARTED = 1, FLAG_FAILED = 2 };

typedef struct buffers {
  float in[HEADS * VALUE_DIM], lse[HEADS], out[HEADS * VALUE_DIM];
} buffers;

/* Combines to a root: the other ranks need nothing from it and may run ahead. */
static banyan_op *init(world_rank *self, buffers *buffers) {
  banyan_op *op = NULL;
  banyan_partial in, out;
  const banyan_combine_desc desc = {.size = sizeof desc,
                                    .tokens = 1,
                                    .heads = HEADS,
                                    .value_dim = VALUE_DIM,
                                    .scatter = BANYAN_SCATTER_ROOT,
                                    .root = ROOT,
                                    .algorithm = "oneshot"};
  banyan_partial_init(&in, buffers->in, BANYAN_F32, buffers->lse, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(&out, buffers->out, BANYAN_F32, NULL, BANYAN_F32, HEADS, VALUE_DIM);
  world_ok(self, banyan_combine_init(self->comm, &desc, &in, self->rank == ROOT ? &out : NULL, &op), "init");
  return op;
}

static banyan_status run(banyan_op *op) {
  banyan_status status = banyan_start(op);
  return status == BANYAN_OK ? banyan_wait(op) : status;
}

static void fill(buffers *buffers, int32_t rank, int round) {
  for (int i = 0; i < HEADS * VALUE_DIM; i++) buffers->in[i] = (float)(3 * rank + round);
}

static void is_told(world_rank *self, banyan_status status) {
  world_gets(self, status, BANYAN_ERR_DATA, "rank 0");
  world_check(self, banyan_comm_failed_rank(self->comm) == 0, "rank %d is blamed", banyan_comm_failed_rank(self->comm));
}

static bool holds(world_rank *self, const buffers *buffers, int round) {
  if (self->rank != ROOT) return true;
  return world_check(self, buffers->out[5] == (float)(3 + round), "run %d gave %g", round, (double)buffers->out[5]);
}

/* Rank 0 completes a good run and fails in the next one. Meanwhile the root is in the good run, and rank 1 has not
 * started it. */
static void give_bad_data(world_rank *self) {
  buffers buffers = {.out = {0}};
  banyan_op *op = init(self, &buffers);
  if (!op) return;
  fill(&buffers, self->rank, 0);
  if (!world_ok(self, run(op), "a first run") || !holds(self, &buffers, 0) || !world_meet(self)) return;
  fill(&buffers, self->rank, 1);
  banyan_status status = self->rank == ROOT ? banyan_start(op) : BANYAN_OK;
  if (self->rank == ROOT) world_signal(self->world, FLAG_STARTED);
  int awaited = self->rank == 0 ? FLAG_STARTED : FLAG_FAILED;
  if (!world_check(self, world_await(self->world, awaited, 60), "nothing came of rank %d", self->rank == 0 ? ROOT : 0))
    return;
  if (status == BANYAN_OK) status = self->rank == ROOT ? banyan_wait(op) : run(op);
  if (!world_ok(self, status, "a good run before that of bad data") || !holds(self, &buffers, 1)) return;
  if (self->rank == 0) buffers.lse[1] = NAN;
  status = run(op);
  if (self->rank == 0) world_signal(self->world, FLAG_FAILED);
  if (status == BANYAN_OK && self->rank == 1) status = banyan_barrier(self->comm); /* this run needed no peer */
  is_told(self, status);
  world_meet(self);
  banyan_op_free(op);
}

/* Two operations are started. Rank 0 passes bad data to the second, and each rank sees the error before it waits for
 * the first. */
static void give_bad_data_next(world_rank *self) {
  buffers first = {.out = {0}}, second = {.out = {0}};
  banyan_op *good = init(self, &first), *bad = init(self, &second);
  int done;
  if (!good || !bad) return;
  fill(&first, self->rank, 1);
  fill(&second, self->rank, 2);
  if (self->rank == 0) second.lse[1] = NAN;
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
  if (world_ok(self, banyan_wait(good), "a good run before that of bad data")) holds(self, &first, 1);
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
