/* SPDX-License-Identifier: Apache-2.0
 * Combines of the whole library in worlds of ranks that are threads: every algorithm, scatter, wire and order, 1 to 17 ranks,
 * each rank with a convention of its own, against a merge in double precision. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "combine_task.h"

static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};

/* ---- running --------------------------------------------------------------------------------------------------------- */

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
  world_setup setup = {.nranks = task->nranks, .arena_bytes = arena_bytes, .argument = task};
  world_run(&setup, combine_all);
  combine_task_check(task);
  combine_task_free(task);
}

START_TEST(merges_random_shapes) {
  combine_task *task = combine_task_new(_i, 1);
  combine_group groups[3];
  for (int w = 0; w < 3; w++) {
    groups[w] = combine_group_random(task);
    combine_task_add_all(task, &groups[w], wires[w]);
  }
  run_task(task, 4 << 20);
}
END_TEST

/* The same over levels: groups of 2 and 4 ranks, the last of them short, as if links between them were slow. */
START_TEST(merges_over_levels) {
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
END_TEST

/* Larger than the arena: in many parts, cut by tokens, and by heads where one token is too large. */
START_TEST(merges_in_parts) {
  static const int32_t nranks[] = {1, 2, 3, 5, 8, 17};
  combine_task *task = combine_task_new(nranks[_i], 2);
  combine_group groups[3];
  groups[0] = combine_group_make(task, 3 + random_below(&task->random, 5), 11, 64);
  groups[1] = combine_group_make(task, 2, 40 + random_below(&task->random, 9), 96);
  groups[2] = combine_group_make(task, 40 + random_below(&task->random, 5), 5, 0);
  for (int g = 0; g < 3; g++) combine_task_add_all(task, &groups[g], wires[(g + _i) % 3]);
  run_task(task, task->nranks > 8 ? 512 << 10 : 64 << 10); /* a ring of 17 keeps 289 slots */
}
END_TEST

/* ---- in place -------------------------------------------------------------------------------------------------------- */

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

START_TEST(merges_in_place) {
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
  world_setup setup = {.nranks = task->nranks, .arena_bytes = _i % 2 ? 64 << 10 : 0, .argument = task};
  world_run(&setup, combine_in_place);
  for (int32_t i = 0; i < task->nattempts; i++)
    for (int32_t r = 0; r < task->nranks; r++) combine_attempt_check(task, &task->attempts[i], r, COMBINE_OWN);
  combine_task_free(task);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("world");
  TCase *random = tcase_create("random");
  tcase_set_timeout(random, 300);
  tcase_add_loop_test(random, merges_random_shapes, 1, COMBINE_RANKS_MAX + 1);
  tcase_add_loop_test(random, merges_over_levels, 0, 49);
  tcase_add_loop_test(random, merges_in_parts, 0, 6);
  tcase_add_loop_test(random, merges_in_place, 0, 10);
  suite_add_tcase(suite, random);
  return world_main(suite);
}
