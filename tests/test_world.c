/* SPDX-License-Identifier: Apache-2.0
 * Combines of random shapes over ranks that are threads: every algorithm, scatter, wire and order, 1 to 17 ranks, each rank
 * with a convention of its own, against a merge in double precision. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheet.h"
#include "world.h"

enum { RANKS = 17, ATTEMPTS = 160 };

/* The first two runs give all ranks outputs of one convention, so that bits can be compared; the third does not. */
enum { FIRST, AGAIN, OWN, RUNS };

static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};
static const char *const over_levels[] = {"oneshot", "levels", NULL};
static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};
static const char *const wire_names[] = {"", "f32", "f16", "bf16"};

/* Inputs of all ranks, what they merge to, and the convention in which bits are compared. */
typedef struct group {
  int32_t tokens, heads, value_dim;
  sheet_mood mood;
  sheet in[RANKS];
  sheet model;
  void *reference;
  const sheet *canonical; /* all rows in canonical order, as one attempt gave them */
  banyan_dtype wire;      /* of that attempt */
} group;

/* A combine of a box of a group's rows. */
typedef struct attempt {
  const group *of;
  int32_t token0, head0;
  banyan_combine_desc desc;
  sheet out[RUNS][RANKS];
} attempt;

typedef struct task {
  int32_t nranks, nattempts;
  const char *levels; /* BANYAN_LEVELS; NULL: unset */
  bool aligned;       /* these groups serve canonical order */
  world_random random;
  sheet_pool pool;
  attempt attempts[ATTEMPTS];
} task;

/* ---- making ---------------------------------------------------------------------------------------------------------- */

static group make_group(task *task, int32_t tokens, int32_t heads, int32_t value_dim) {
  world_random *random = &task->random;
  group made = {.tokens = tokens, .heads = heads, .value_dim = value_dim};
  made.mood = (sheet_mood)random_below(random, SHEET_MOODS);
  for (int32_t r = 0; r < task->nranks; r++)
    made.in[r] = sheet_input(&task->pool, random, made.mood, r, task->nranks, tokens, heads, value_dim);
  made.model = sheet_output(&task->pool, random, made.mood, 1, 1, value_dim);
  made.reference = sheet_merge(&task->pool, made.in, task->nranks);
  return made;
}

static group make_random_group(task *task) {
  static const int32_t value_dims[] = {0, 1, 3, 8, 16, 17, 33, 64, 100};
  world_random *random = &task->random;
  int32_t tokens = random_one_in(random, 12) ? 0 : 1 + random_below(random, 5);
  int32_t heads = random_one_in(random, 12) ? 0 : 1 + random_below(random, 20);
  return make_group(task, tokens, heads, value_dims[random_below(random, 9)]);
}

/* The range of the attempt's rows that a rank gets. */
static void owned(const attempt *attempt, int32_t rank, int32_t nranks, int32_t *token0, int32_t *tokens, int32_t *head0,
                  int32_t *heads) {
  const banyan_combine_desc *desc = &attempt->desc;
  *token0 = *head0 = 0;
  *tokens = desc->tokens;
  *heads = desc->heads;
  if (desc->scatter == BANYAN_SCATTER_ROOT && rank != desc->root) *tokens = 0;
  if (desc->scatter == BANYAN_SCATTER_HEADS) sheet_split(desc->heads, nranks, rank, head0, heads);
  if (desc->scatter == BANYAN_SCATTER_TOKENS) sheet_split(desc->tokens, nranks, rank, token0, tokens);
}

static attempt *add_attempt(task *task, const group *of, banyan_combine_desc desc, bool whole) {
  world_random *random = &task->random;
  ck_assert_int_lt(task->nattempts, ATTEMPTS);
  attempt *made = &task->attempts[task->nattempts++];
  *made = (attempt){.of = of, .desc = desc};
  made->token0 = whole ? 0 : random_below(random, of->tokens);
  made->head0 = whole ? 0 : random_below(random, of->heads);
  made->desc.size = sizeof made->desc;
  made->desc.tokens = whole || !of->tokens ? of->tokens : 1 + random_below(random, of->tokens - made->token0);
  made->desc.heads = whole || !of->heads ? of->heads : 1 + random_below(random, of->heads - made->head0);
  made->desc.value_dim = of->value_dim;
  for (int32_t r = 0; r < task->nranks; r++) {
    int32_t token0, tokens, head0, heads;
    owned(made, r, task->nranks, &token0, &tokens, &head0, &heads);
    made->out[FIRST][r] = sheet_output_like(&task->pool, &of->model, tokens, heads);
    made->out[AGAIN][r] = sheet_output_like(&task->pool, &of->model, tokens, heads);
    made->out[OWN][r] = sheet_output(&task->pool, random, of->mood, tokens, heads, of->value_dim);
  }
  return made;
}

/* Every algorithm, scatter and order. */
static void add_all(task *task, group *of, banyan_dtype wire) {
  int names = task->levels ? 3 : 6;
  for (int a = 0; a < names; a++) {
    for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++) {
      for (int order = BANYAN_ORDER_PLAN; order <= BANYAN_ORDER_CANONICAL; order++) {
        if (task->levels && !task->aligned && a == 1 && order == BANYAN_ORDER_CANONICAL) continue;
        banyan_combine_desc desc = {.wire = wire, .scatter = (banyan_scatter)scatter, .order = (banyan_order)order,
                                    .algorithm = task->levels ? over_levels[a] : algorithms[a]};
        desc.root = random_below(&task->random, task->nranks);
        bool first = a == 0 && scatter == BANYAN_SCATTER_NONE;
        attempt *made = add_attempt(task, of, desc, first || !random_one_in(&task->random, 4));
        if (first && order == BANYAN_ORDER_CANONICAL) of->canonical = &made->out[FIRST][0];
      }
    }
  }
}

/* ---- running --------------------------------------------------------------------------------------------------------- */

static const char *describe(const attempt *attempt, int run) {
  static _Thread_local char text[256];
  const banyan_combine_desc *desc = &attempt->desc;
  snprintf(text, sizeof text,
           "algorithm %s, scatter %d (root %d), order %d, wire %s, box %d+%d of %d x %d+%d of %d, value_dim %d, mood %d, "
           "run %d",
           desc->algorithm ? desc->algorithm : "chosen", desc->scatter, desc->root, desc->order, wire_names[desc->wire],
           attempt->token0, desc->tokens, attempt->of->tokens, attempt->head0, desc->heads, attempt->of->heads,
           desc->value_dim, attempt->of->mood, run);
  return text;
}

static banyan_partial input_of(const attempt *attempt, int32_t rank) {
  banyan_partial in = attempt->of->in[rank].partial;
  int64_t values = attempt->token0 * in.values_token_stride + attempt->head0 * in.values_head_stride;
  int64_t stats = attempt->token0 * in.stats_token_stride + attempt->head0 * in.stats_head_stride;
  in.values = (char *)in.values + values * (in.values_dtype == BANYAN_F32 ? 4 : 2);
  in.lse = (char *)in.lse + stats * (in.stats_dtype == BANYAN_F32 ? 4 : 2);
  if (in.sum) in.sum = (char *)in.sum + stats * (in.stats_dtype == BANYAN_F32 ? 4 : 2);
  return in;
}

static void combine_all(world_rank *self) {
  const task *task = self->argument;
  for (int32_t i = 0; i < task->nattempts; i++) {
    const attempt *attempt = &task->attempts[i];
    banyan_partial in = input_of(attempt, self->rank);
    for (int run = 0; run < RUNS; run++) {
      const sheet *out = &attempt->out[run][self->rank];
      banyan_status status =
          banyan_combine(self->comm, &attempt->desc, &in, out->tokens && out->heads ? &out->partial : NULL);
      if (!world_ok(self, status, describe(attempt, run))) return;
    }
  }
}

/* ---- checking -------------------------------------------------------------------------------------------------------- */

/* How often a row goes through the wire: once, and once more at each merge on the way. */
static int32_t rounds_of(const attempt *attempt, int32_t nranks) {
  int32_t levels = 0;
  while (1 << levels < nranks) levels++;
  const char *name = attempt->desc.algorithm;
  bool chain = attempt->desc.order == BANYAN_ORDER_PLAN &&
               (!name || strcmp(name, "ring") == 0 || strcmp(name, "levels") == 0);
  return chain ? nranks + 1 : levels + 3;
}

static void check_bits(const task *task, const attempt *attempt, int32_t rank, int32_t token0, int32_t head0) {
  const sheet *out = &attempt->out[FIRST][rank], *again = &attempt->out[AGAIN][rank], *other = &attempt->out[FIRST][0];
  const sheet *canonical = attempt->desc.order == BANYAN_ORDER_CANONICAL ? attempt->of->canonical : NULL;
  for (int32_t t = 0; t < out->tokens; t++) {
    for (int32_t h = 0; h < out->heads; h++) {
      ck_assert_msg(sheet_same_bits(out, t, h, again, t, h), "%d ranks, rank %d, two runs differ: %s", task->nranks, rank,
                    describe(attempt, 0));
      if (attempt->desc.scatter == BANYAN_SCATTER_NONE)
        ck_assert_msg(sheet_same_bits(out, t, h, other, t, h), "%d ranks, ranks 0 and %d differ: %s", task->nranks, rank,
                      describe(attempt, 0));
      if (canonical)
        ck_assert_msg(sheet_same_bits(out, t, h, canonical, attempt->token0 + token0 + t, attempt->head0 + head0 + h),
                      "%d ranks, rank %d, token %d, head %d is not canonical: %s", task->nranks, rank, t, h,
                      describe(attempt, 0));
    }
  }
}

static void check_output(const task *task, const attempt *attempt, int32_t rank, int run) {
  sheet_bounds bounds = {task->nranks, rounds_of(attempt, task->nranks), attempt->desc.wire};
  const sheet *out = &attempt->out[run][rank];
  int32_t token0, tokens, head0, heads;
  owned(attempt, rank, task->nranks, &token0, &tokens, &head0, &heads);
  char why[256];
  ck_assert_msg(sheet_matches(out, attempt->of->reference, attempt->of->heads, attempt->token0 + token0,
                              attempt->head0 + head0, &bounds, why, sizeof why),
                "%d ranks, rank %d: %s: %s (seed %llu)", task->nranks, rank, why, describe(attempt, run),
                (unsigned long long)world_seed());
  ck_assert_msg(sheet_gaps_are_untouched(out), "%d ranks, rank %d wrote beside its rows: %s", task->nranks, rank,
                describe(attempt, run));
}

static void check_attempt(const task *task, const attempt *attempt) {
  for (int32_t r = 0; r < task->nranks; r++) {
    int32_t token0, tokens, head0, heads;
    owned(attempt, r, task->nranks, &token0, &tokens, &head0, &heads);
    for (int run = 0; run < RUNS; run++) check_output(task, attempt, r, run);
    check_bits(task, attempt, r, token0, head0);
  }
}

static void run_task(task *task, size_t arena_bytes) {
  world_setup setup = {.nranks = task->nranks, .arena_bytes = arena_bytes, .argument = task};
  world_run(&setup, combine_all);
  for (int32_t i = 0; i < task->nattempts; i++) check_attempt(task, &task->attempts[i]);
  task->nattempts = 0;
  sheet_pool_free(&task->pool);
}

static task *new_task(int32_t nranks, uint64_t salt) {
  task *made = calloc(1, sizeof *made);
  ck_assert_ptr_nonnull(made);
  made->nranks = nranks;
  made->random.state = world_seed() * 1000 + salt * 100 + (uint64_t)nranks;
  return made;
}

START_TEST(merges_random_shapes) {
  task *task = new_task(_i, 1);
  group groups[3];
  for (int w = 0; w < 3; w++) {
    groups[w] = make_random_group(task);
    add_all(task, &groups[w], wires[w]);
  }
  run_task(task, 4 << 20);
  free(task);
}
END_TEST

/* The same over levels: groups of 2 and 4 ranks, the last of them short, as if links between them were slow. */
START_TEST(merges_over_levels) {
  static const char *const levels[] = {"2", "4", "2,4", "3", "5", "2,6", "8"};
  static const int32_t nranks[] = {3, 4, 6, 7, 8, 11, 16};
  task *task = new_task(nranks[_i % 7], 4 + (uint64_t)_i);
  group groups[3];
  task->levels = levels[_i / 7];
  task->aligned = !strpbrk(task->levels, "356") || (task->levels[0] != '2' && task->levels[0] - '0' >= task->nranks);
  if (task->levels[0] - '0' >= task->nranks) { /* one group: no levels */
    free(task);
    return;
  }
  setenv("BANYAN_LEVELS", task->levels, 1);
  for (int w = 0; w < 3; w++) {
    groups[w] = make_random_group(task);
    add_all(task, &groups[w], wires[w]);
  }
  run_task(task, 4 << 20);
  free(task);
}
END_TEST

/* Larger than the arena: in many parts, cut by tokens, and by heads where one token is too large. */
START_TEST(merges_in_parts) {
  static const int32_t nranks[] = {1, 2, 3, 5, 8, 17};
  task *task = new_task(nranks[_i], 2);
  group groups[3];
  groups[0] = make_group(task, 3 + random_below(&task->random, 5), 11, 64);
  groups[1] = make_group(task, 2, 40 + random_below(&task->random, 9), 96);
  groups[2] = make_group(task, 40 + random_below(&task->random, 5), 5, 0);
  for (int g = 0; g < 3; g++) add_all(task, &groups[g], wires[(g + _i) % 3]);
  run_task(task, task->nranks > 8 ? 512 << 10 : 64 << 10); /* a ring of 17 keeps 289 slots */
  free(task);
}
END_TEST

/* ---- in place -------------------------------------------------------------------------------------------------------- */

/* The output in the input's own memory, laid out identically; whole and in parts. */
static void combine_in_place(world_rank *self) {
  const task *task = self->argument;
  for (int32_t i = 0; i < task->nattempts; i++) {
    const attempt *attempt = &task->attempts[i];
    const banyan_partial *partial = &attempt->out[OWN][self->rank].partial;
    if (!world_ok(self, banyan_combine(self->comm, &attempt->desc, partial, partial), describe(attempt, OWN))) return;
  }
}

START_TEST(merges_in_place) {
  static const int32_t nranks[] = {1, 2, 5, 8, 17};
  enum { TOKENS = 6, HEADS = 20, VALUE_DIM = 48 };
  task *task = new_task(nranks[_i / 2], 3);
  world_random *random = &task->random;
  group from = {.tokens = TOKENS, .heads = HEADS, .value_dim = VALUE_DIM};
  for (int32_t r = 0; r < task->nranks; r++) {
    do from.in[r] = sheet_output(&task->pool, random, SHEET_PLAIN, TOKENS, HEADS, VALUE_DIM);
    while (!from.in[r].partial.lse);
    sheet_fill(&from.in[r], random, SHEET_PLAIN, r, task->nranks);
  }
  from.model = from.in[0];
  from.reference = sheet_merge(&task->pool, from.in, task->nranks);
  for (int a = 0; a < 6; a++) {
    attempt *made = add_attempt(task, &from, (banyan_combine_desc){.wire = BANYAN_F32, .algorithm = algorithms[a]}, true);
    for (int32_t r = 0; r < task->nranks; r++) made->out[OWN][r] = sheet_copy(&task->pool, &from.in[r]);
  }
  world_setup setup = {.nranks = task->nranks, .arena_bytes = _i % 2 ? 64 << 10 : 0, .argument = task};
  world_run(&setup, combine_in_place);
  for (int32_t i = 0; i < task->nattempts; i++)
    for (int32_t r = 0; r < task->nranks; r++) check_output(task, &task->attempts[i], r, OWN);
  sheet_pool_free(&task->pool);
  free(task);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("world");
  TCase *random = tcase_create("random");
  tcase_set_timeout(random, 300);
  tcase_add_loop_test(random, merges_random_shapes, 1, RANKS + 1);
  tcase_add_loop_test(random, merges_over_levels, 0, 49);
  tcase_add_loop_test(random, merges_in_parts, 0, 6);
  tcase_add_loop_test(random, merges_in_place, 0, 10);
  suite_add_tcase(suite, random);
  return world_main(suite);
}
