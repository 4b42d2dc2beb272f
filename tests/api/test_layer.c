/* SPDX-License-Identifier: Apache-2.0
 * A layer over ranks as operations of one communicator: gather, attention and combine in one, the caller's projection,
 * and the sum of what ranks projected. No rank waits for others between them, unless it needs their data. */
#include <math.h>
#include <sched.h>
#include <stdatomic.h>

#include "tests/support/attend.h"

enum { HALVES = 2, ROUNDS = 3 };

typedef struct layer {
  attend *halves[HALVES];
  atomic_int *past; /* ranks other than the root that have ended their layer */
} layer;

/* One half of the batch on a rank. */
typedef struct half {
  attend_call call;
  banyan_op *attention, *sum;
  const float *attended;
  float *projected, *summed;
  int32_t dim;
} half;

static bool init(world_rank *self, const attend *of, half *made) {
  attend_call_of(of, self, &made->call);
  banyan_allreduce_desc desc = BANYAN_ALLREDUCE_DESC_INIT;
  made->dim = of->shape.heads * of->shape.value_dim;
  size_t bytes = (size_t)made->call.combine.tokens * (size_t)made->dim * sizeof(float);
  made->attended = of->ranks[self->rank].values;
  made->projected = world_take(bytes + 1);
  made->summed = world_take(bytes + 1);
  desc.tokens = made->call.combine.tokens;
  desc.dim = made->dim;
  desc.dtype = BANYAN_F32;
  desc.stream = self->stream;
  desc.scatter = of->combine.scatter;
  desc.algorithm = of->combine.algorithm;
  return world_ok(self, attend_init(self, of, &made->call, &made->attention), "attention") &&
         world_ok(self,
                  banyan_allreduce_init(self->comm, &desc, world_at(self, made->projected),
                                        world_at(self, made->summed), &made->sum),
                  "sum");
}

static float attended(const half *of, int32_t token, int32_t column) {
  const banyan_partial *out = &of->call.out;
  int32_t width = of->call.desc.value_dim ? of->call.desc.value_dim : of->call.desc.head_dim;
  return of->attended[token * out->values_token_stride + column / width * out->values_head_stride + column % width];
}

/* The projection of rank r multiplies by r + 1. */
static void project(const world_rank *self, half *of) {
  for (int32_t t = 0; t < of->call.combine.tokens; t++)
    for (int32_t c = 0; c < of->dim; c++) of->projected[t * of->dim + c] = (float)(self->rank + 1) * attended(of, t, c);
}

static bool check_sum(world_rank *self, const half *of) {
  float factor = (float)(self->nranks * (self->nranks + 1)) / 2;
  for (int32_t t = 0; t < of->call.combine.tokens; t++)
    for (int32_t c = 0; c < of->dim; c++) {
      float got = of->summed[t * of->dim + c], want = factor * attended(of, t, c);
      if (!world_check(self, fabsf(got - want) <= 1e-5f * fabsf(want) + 1e-6f, "token %d, column %d: %g for %g", t, c,
                       (double)got, (double)want))
        return false;
    }
  return true;
}

static bool start(world_rank *self, banyan_op *op) { return world_ok(self, banyan_start(op), "start"); }

static bool wait_for(world_rank *self, banyan_op *op) { return world_ok(self, banyan_wait(op), "wait"); }

/* Waits for several that have been started. On devices all ranks wait until their streams have ended them. */
static bool wait_for_all(world_rank *self, banyan_op *one, banyan_op *other) {
  return wait_for(self, one) && (!other || wait_for(self, other)) && world_finish(self);
}

/* The second half attends while the first is summed: both are started before either is waited for. */
static void two_halves(world_rank *self) {
  const layer *layer = self->argument;
  half halves[HALVES] = {0};
  bool good = true;
  for (int round = 0; round < ROUNDS && good; round++) {
    for (int i = 0; i < HALVES && good; i++) good = attend_draw_all(self, layer->halves[i], round);
    for (int i = 0; i < HALVES && good && round == 0; i++) good = init(self, layer->halves[i], &halves[i]);
    good = good && world_put(self) && start(self, halves[0].attention) && wait_for_all(self, halves[0].attention, NULL);
    if (good) project(self, &halves[0]);
    good = good && world_put(self) && start(self, halves[0].sum) && start(self, halves[1].attention) &&
           wait_for_all(self, halves[0].sum, halves[1].attention);
    if (good) project(self, &halves[1]);
    good = good && world_put(self) && start(self, halves[1].sum) && wait_for_all(self, halves[1].sum, NULL);
    for (int i = 0; i < HALVES && good; i++)
      good = attend_holds(self, layer->halves[i], round) && check_sum(self, &halves[i]);
  }
  for (int i = 0; i < HALVES; i++) banyan_op_free(halves[i].sum), banyan_op_free(halves[i].attention);
}

static attend *make(int32_t nranks, uint64_t seed, banyan_scatter scatter) {
  attend *made = attend_make_plain(nranks, seed, NULL);
  made->gathers = scatter == BANYAN_SCATTER_NONE;
  made->out_dtype = BANYAN_F32;
  made->combine.scatter = scatter;
  if (scatter == BANYAN_SCATTER_ROOT) made->combine.algorithm = "oneshot";
  attend_fill(made);
  return made;
}

TEST_EVERYWHERE(halves_of_a_batch_overlap, 8) {
  if (on == &world_staged) {
    world_skip("halves_of_a_batch_overlap", "an all-gather needs devices that share memory");
    return;
  }
  layer layer;
  int32_t nranks = world_ranks(on, 2 + _i % 4);
  for (int i = 0; i < HALVES; i++) layer.halves[i] = make(nranks, 400 + (uint64_t)(2 * _i + i), BANYAN_SCATTER_NONE);
  WORLD_RUN(two_halves, .nranks = nranks, .on = on, .argument = &layer);
}

/* The root begins its layer only after all others have ended theirs, both operations of it. */
static void root_is_late(world_rank *self) {
  const layer *layer = self->argument;
  half half = {0};
  bool good = attend_draw_all(self, layer->halves[0], 0) && init(self, layer->halves[0], &half);
  good = good && world_ok(self, banyan_barrier(self->comm), "barrier");
  while (good && self->rank == 0 && atomic_load(layer->past) < self->nranks - 1) sched_yield();
  good = good && start(self, half.attention);
  if (self->rank != 0) good = good && start(self, half.sum) && wait_for(self, half.attention);
  if (self->rank == 0) good = good && wait_for(self, half.attention);
  if (good && self->rank == 0) project(self, &half);
  if (self->rank == 0) good = good && start(self, half.sum);
  good = good && wait_for(self, half.sum);
  atomic_fetch_add(layer->past, 1);
  for (int32_t i = 0; good && self->rank == 0 && i < half.call.combine.tokens * half.dim; i++)
    good = world_check(self, half.summed[i] == half.projected[i], "value %d is %g", i, (double)half.summed[i]);
  banyan_op_free(half.sum), banyan_op_free(half.attention);
}

TEST_LOOP(no_barrier_is_between, 8) {
  layer layer = {.past = world_take(sizeof *layer.past)};
  layer.halves[0] = make(2 + _i % 4, 500 + (uint64_t)_i, BANYAN_SCATTER_ROOT);
  WORLD_RUN(root_is_late, .nranks = 2 + _i % 4, .processes = _i >= 4, .argument = &layer);
}

int main(void) { return world_main(suite_of("layer", 120)); }
