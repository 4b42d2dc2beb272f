/* SPDX-License-Identifier: Apache-2.0
 * Ranks that attend to random shards on devices of the fake driver, or on the host, for tests. */
#ifndef BNY_TESTS_DEVICE_ATTENTION_H
#define BNY_TESTS_DEVICE_ATTENTION_H

#include <stdio.h>

#include "tests/api/attention_problem.h"
#include "tests/device/device_world.h"

enum { RANKS_MAX = 4, SETS = 5 };

typedef struct attention_set {
  problem_shape shape;
  banyan_scatter scatter;
  banyan_dtype wire;
  banyan_order order;
  const char *algorithm;
  uint16_t *q;
  problem_shard shards[RANKS_MAX];
  float *values[RANKS_MAX], *lse[RANKS_MAX];             /* result of a rank */
  float *other_values[RANKS_MAX], *other_lse[RANKS_MAX]; /* in another way */
  float *rows[RANKS_MAX];                                /* values, m, d */
} attention_set;

typedef struct attention_task {
  int32_t nranks;
  bool host, one_device;
  attention_set sets[SETS];
  char wrong[96]; /* what the error of a rank that is given it must name */
} attention_task;

static inline size_t attention_rows(const problem_shape *shape) { return (size_t)(shape->batch * shape->heads); }

static inline void attention_set_make(world_random *random, int32_t nranks, attention_set *made) {
  made->shape = problem_shape_random(random);
  made->q = problem_queries(random, &made->shape);
  size_t rows = attention_rows(&made->shape), values = rows * (size_t)made->shape.value_dim;
  for (int32_t r = 0; r < nranks; r++) {
    problem_shard_make(random, &made->shape, made->q, &made->shards[r]);
    made->values[r] = calloc(values, sizeof(float));
    made->other_values[r] = calloc(values, sizeof(float));
    made->lse[r] = calloc(rows, sizeof(float));
    made->other_lse[r] = calloc(rows, sizeof(float));
    made->rows[r] = calloc(values + 2 * rows, sizeof(float));
  }
}

static inline attention_task *attention_task_make(int32_t nranks, uint64_t seed) {
  world_random random = {world_seed() * 100 + seed};
  attention_task *made = calloc(1, sizeof *made);
  made->nranks = nranks;
  for (int i = 0; i < SETS; i++) {
    attention_set_make(&random, nranks, &made->sets[i]);
    made->sets[i].scatter = (banyan_scatter)random_below(&random, 4);
  }
  return made;
}

static inline void attention_task_free(attention_task *task) {
  for (int i = 0; i < SETS; i++) {
    attention_set *set = &task->sets[i];
    free(set->q);
    for (int32_t r = 0; r < task->nranks; r++) {
      problem_shard_free(&set->shards[r]);
      free(set->values[r]);
      free(set->other_values[r]);
      free(set->lse[r]);
      free(set->other_lse[r]);
      free(set->rows[r]);
    }
  }
  free(task);
}

static inline void attention_run(attention_task *task, void (*body)(world_rank *)) {
  world_setup setup = {.nranks = task->nranks, .bare = true, .argument = task};
  world_run(&setup, body);
}

static inline banyan_partial attention_result(const attention_set *set, float *values, float *lse) {
  banyan_partial made;
  banyan_partial_init(&made, values, BANYAN_F32, lse, BANYAN_F32, set->shape.heads, set->shape.value_dim);
  return made;
}

static inline banyan_combine_desc attention_combine(const attention_set *set, void *stream) {
  return (banyan_combine_desc){.size = sizeof(banyan_combine_desc),
                               .tokens = set->shape.batch,
                               .heads = set->shape.heads,
                               .value_dim = set->shape.value_dim,
                               .wire = set->wire,
                               .scatter = set->scatter,
                               .order = set->order,
                               .algorithm = set->algorithm,
                               .stream = stream};
}

#endif
