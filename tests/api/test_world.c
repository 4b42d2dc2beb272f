/* SPDX-License-Identifier: Apache-2.0
 * Combines of the whole library in worlds of ranks that are threads: every algorithm, scatter, wire and order, 1 to 17
 * ranks, each rank with a convention of its own, against a merge in double precision. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/combine_task.h"
#include "tests/support/suite.h"

static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void combine_all(world_rank *self) {
  const combine_task *task = self->argument;
  for (int32_t i = 0; i < task->nattempts; i++) {
    const combine_attempt *attempt = &task->attempts[i];
    banyan_partial in = combine_attempt_input(attempt, self->rank);
    for (int run = 0; run < COMBINE_RUNS; run++) {
      const sheet *out = &attempt->out[run][self->rank];
      banyan_status status =
          banyan_combine(self->comm, &attempt->desc, &in, out->tokens && out->heads ? &out->partial : NULL);
      if (!world_ok(self, status, combine_attempt_text(attempt, run))) return;
    }
  }
}

static void run_task(combine_task *task, size_t arena_bytes) {
  WORLD_RUN(combine_all, .nranks = task->nranks, .arena_bytes = arena_bytes, .argument = task);
  combine_task_check(task);
  combine_task_free(task);
}

TEST_RANGE(merges_random_shapes, 1, COMBINE_RANKS_MAX + 1) {
  combine_task *task = combine_task_new(_i, 1);
  combine_group groups[3];
  for (int w = 0; w < 3; w++) {
    groups[w] = combine_group_random(task);
    combine_task_add_all(task, &groups[w], wires[w]);
  }
  run_task(task, 4 << 20);
}

/* The same over levels: groups of 2 and 4 ranks, the last of them short, as if links between them were slow. */
TEST_RANDOM(merges_over_levels, 49) {
  static const char *const levels[] = {"2", "4", "2,4", "3", "5", "2,6", "8"};
  static const int32_t nranks[] = {3, 4, 6, 7, 8, 11, 16};
  combine_task *task = combine_task_new(nranks[_i % 7], 4 + (uint64_t)_i);
  combine_group groups[3];
  task->levels = levels[_i / 7];
  task->aligned = !strpbrk(task->levels, "356") || (task->levels[0] != '2' && task->levels[0] - '0' >= task->nranks);
  if (task->levels[0] - '0' >= task->nranks) { /* one group: no levels */
    combine_task_free(task);
    return;
  }
  setenv("BANYAN_LEVELS", task->levels, 1);
  for (int w = 0; w < 3; w++) {
    groups[w] = combine_group_random(task);
    combine_task_add_all(task, &groups[w], wires[w]);
  }
  run_task(task, 4 << 20);
}

/* Larger than the arena: in many parts, cut by tokens, and by heads where one token is too large. */
TEST_LOOP(merges_in_parts, 6) {
  static const int32_t nranks[] = {1, 2, 3, 5, 8, 17};
  combine_task *task = combine_task_new(nranks[_i], 2);
  combine_group groups[3];
  groups[0] = combine_group_make(task, 3 + random_below(&task->random, 5), 11, 64);
  groups[1] = combine_group_make(task, 2, 40 + random_below(&task->random, 9), 96);
  groups[2] = combine_group_make(task, 40 + random_below(&task->random, 5), 5, 0);
  for (int g = 0; g < 3; g++) combine_task_add_all(task, &groups[g], wires[(g + _i) % 3]);
  run_task(task, task->nranks > 8 ? 512 << 10 : 64 << 10); /* a ring of 17 keeps 289 slots */
}

/* ---- in place ---------------------------------------------------------------------------------------------------- */

/* The output in the input's own memory, laid out identically; whole and in parts. */
static void combine_in_place(world_rank *self) {
  const combine_task *task = self->argument;
  for (int32_t i = 0; i < task->nattempts; i++) {
    const combine_attempt *attempt = &task->attempts[i];
    const banyan_partial *partial = &attempt->out[COMBINE_OWN][self->rank].partial;
    banyan_status status = banyan_combine(self->comm, &attempt->desc, partial, partial);
    if (!world_ok(self, status, combine_attempt_text(attempt, COMBINE_OWN))) return;
  }
}

TEST_LOOP(merges_in_place, 10) {
  static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};
  static const int32_t nranks[] = {1, 2, 5, 8, 17};
  enum { TOKENS = 6, HEADS = 20, VALUE_DIM = 48 };
  combine_task *task = combine_task_new(nranks[_i / 2], 3);
  world_random *random = &task->random;
  combine_group from = {.tokens = TOKENS, .heads = HEADS, .value_dim = VALUE_DIM};
  for (int32_t r = 0; r < task->nranks; r++) {
    do from.in[r] = sheet_output(&task->pool, random, SHEET_PLAIN, TOKENS, HEADS, VALUE_DIM);
    while (!from.in[r].partial.lse);
    sheet_fill(&from.in[r], random, SHEET_PLAIN, r, task->nranks);
  }
  from.model = from.in[0];
  from.reference = sheet_merge(&task->pool, from.in, task->nranks);
  for (int a = 0; a < 6; a++) {
    banyan_combine_desc desc = {.wire = BANYAN_F32, .algorithm = algorithms[a]};
    combine_attempt *made = combine_task_add(task, &from, desc, true);
    for (int32_t r = 0; r < task->nranks; r++) made->out[COMBINE_OWN][r] = sheet_copy(&task->pool, &from.in[r]);
  }
  WORLD_RUN(combine_in_place, .nranks = task->nranks, .arena_bytes = _i % 2 ? 64 << 10 : 0, .argument = task);
  for (int32_t i = 0; i < task->nattempts; i++)
    for (int32_t r = 0; r < task->nranks; r++) combine_attempt_check(task, &task->attempts[i], r, COMBINE_OWN);
  combine_task_free(task);
}

/* ---- the least arena --------------------------------------------------------------------------------------------- */

enum { ROW_VALUES = 128, LONG_VALUES = 4096 };

/* One row of ones, which every rank gives, by this algorithm. Its merge is the row itself. */
static banyan_status combine_row(world_rank *self, const char *algorithm, banyan_order order, int32_t value_dim,
                                 float *values) {
  float lse = 0;
  banyan_partial row;
  for (int32_t i = 0; i < value_dim; i++) values[i] = 1;
  banyan_partial_init(&row, values, BANYAN_F32, &lse, BANYAN_F32, 1, value_dim);
  banyan_combine_desc desc = {
      .size = sizeof desc, .tokens = 1, .heads = 1, .value_dim = value_dim, .algorithm = algorithm, .order = order};
  return banyan_combine(self->comm, &desc, &row, &row);
}

static void combine_rows_by_all(world_rank *self) {
  static const char *const names[] = {"oneshot", "twoshot", "recursive_doubling", "recursive_halving", "tree", "ring"};
  float values[ROW_VALUES];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    for (int order = BANYAN_ORDER_PLAN; order <= BANYAN_ORDER_CANONICAL; order++) {
      banyan_status status = combine_row(self, names[i], (banyan_order)order, ROW_VALUES, values);
      if (!world_check(self, status == BANYAN_OK, "%s, order %d: %s", names[i], order, banyan_last_error())) return;
      if (!world_check(self, values[0] == 1 && values[ROW_VALUES - 1] == 1, "%s: %g", names[i], values[0])) return;
    }
}

TEST_RANGE(takes_a_row_by_every_algorithm_in_the_smallest_arena, 2, 18) {
  WORLD_RUN(combine_rows_by_all, .nranks = _i, .arena_bytes = 64 << 10);
}

typedef struct long_row {
  size_t arena_bytes; /* 0: not known yet */
  size_t needed;
} long_row;

/* The text names the size of an arena that is large enough. */
static void combine_a_long_row(world_rank *self) {
  long_row *task = self->argument;
  float values[LONG_VALUES];
  banyan_status status = combine_row(self, "ring", BANYAN_ORDER_CANONICAL, LONG_VALUES, values);
  const char *says = strstr(banyan_last_error(), "set arena_bytes to ");
  if (task->arena_bytes) {
    world_check(self, status == BANYAN_OK, "an arena of %zu bytes: %s", task->arena_bytes, banyan_last_error());
    return;
  }
  if (!world_check(self, status == BANYAN_ERR_MEMORY && says, "status %d: %s", (int)status, banyan_last_error()))
    return;
  world_check(self, !strstr(says, "split"), "a row cannot be split: %s", says);
  if (self->rank == 0) task->needed = strtoull(says + strlen("set arena_bytes to "), NULL, 10);
}

TEST(names_the_arena_that_a_long_row_needs) {
  long_row task = {0};
  world_setup setup = {.nranks = 9, .arena_bytes = 64 << 10, .argument = &task};
  world_run(&setup, combine_a_long_row);
  ck_assert_uint_gt(task.needed, 64 << 10);
  setup.arena_bytes = task.arena_bytes = task.needed;
  world_run(&setup, combine_a_long_row);
}

int main(void) { return world_main(suite_of("world", 300)); }
