/* SPDX-License-Identifier: Apache-2.0
 * Combines on every backend: each algorithm, scatter, wire and order, 1 to 17 ranks, and a different convention on each
 * rank. Results are compared with a merge in double precision, and bit for bit between ranks and runs. */
#include "tests/support/combine_task.h"
#include "tests/support/rows.h"
#include "tests/support/sheet_element.h"

enum { WIRES = 4, SMALLEST_ARENA = 64 << 10 };
static const banyan_dtype wires[WIRES] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3};

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* A backend runs one in this many attempts. */
static int32_t one_in(const world_backend *on) {
  if (on == &world_staged || on == &world_emulated) return 45;
  if (world_is_quick()) return 24;
  return on == &world_gpu_processes ? 12 : on->is_device ? 1 : 2;
}

static void run_task(combine_task *task, world_setup setup) {
  setup.nranks = task->nranks;
  setup.argument = task;
  world_run(&setup, combine_task_run);
  combine_task_check(task);
  combine_task_free(task);
}

static const char *const machines[] = {"", "no-vmm,no-ipc", "no-files"};

TEST_EVERYWHERE(merges_random_shapes, 17) {
  combine_task *task = combine_task_new(world_ranks(on, _i + 1), 1);
  combine_group groups[WIRES];
  for (int w = 0; w < WIRES; w++) {
    if (one_in(on) == 45 && (w + _i / 3) % 2) continue; /* skips every second wire, to save time */
    groups[w] = combine_group_random(task);
    combine_task_add_some(task, &groups[w], wires[w], one_in(on));
  }
  run_task(task, (world_setup){.on = on,
                               .arena_bytes = on == &world_staged && _i % 2 ? 256 << 10 : 4 << 20,
                               .one_device = _i % 2,
                               .words = on == &world_emulated ? machines[_i / 3 % 3] : NULL});
}

/* Combines over levels: groups of 2 and 4 ranks, the last one smaller, as if links between groups were slow. */
TEST_RANDOM(merges_over_levels, 49) {
  static const char *const levels[] = {"2", "4", "2,4", "3", "5", "2,6", "8"};
  static const int32_t nranks[] = {3, 4, 6, 7, 8, 11, 16};
  combine_task *task = combine_task_new(nranks[_i % 7], 4 + (uint64_t)_i);
  combine_group groups[WIRES];
  task->levels = levels[_i / 7];
  task->aligned = !strpbrk(task->levels, "356") || (task->levels[0] != '2' && task->levels[0] - '0' >= task->nranks);
  if (task->levels[0] - '0' >= task->nranks) { /* a single group has no levels */
    combine_task_free(task);
    return;
  }
  setenv("BANYAN_LEVELS", task->levels, 1);
  for (int w = 0; w < 3; w++) {
    groups[w] = combine_group_random(task);
    combine_task_add_some(task, &groups[w], wires[w], 2);
  }
  run_task(task, (world_setup){.arena_bytes = 4 << 20});
}

/* Nodes with equal and unequal numbers of ranks, in blocks or round-robin. */
static const struct {
  const char *names;
  int32_t nranks;
} nodes[] = {{"a,a,b,b", 4}, {"a,a,b,b,c,c", 6}, {"a,a,a,a,b,b,b,b", 8},
             {"a,b,c,d", 4}, {"a,a,a,b", 4},     {"a,b,b,b,a", 5}};

TEST_RANDOM(nodes_of_many_shapes, 2 * (int)(sizeof nodes / sizeof nodes[0])) {
  const world_backend *on = _i % 2 ? &world_staged : &world_nodes;
  if (!world_is_here(on)) return;
  combine_task *task = combine_task_new(nodes[_i / 2].nranks, 45 + (uint64_t)_i / 2);
  combine_group groups[WIRES];
  for (int w = 0; w < WIRES; w++) {
    if (on->is_device && w % 3 != _i / 2 % 3) continue;
    groups[w] = combine_group_make(task, 1 + w, 5 + 2 * w, w == 1 ? 7 : 24); /* odd: rows are aligned to two bytes */
    combine_task_add_some(task, &groups[w], wires[w], on->is_device ? 68 : 8);
  }
  run_task(task, (world_setup){.on = on, .nodes = nodes[_i / 2].names, .arena_bytes = 512 << 10});
}

/* Calls larger than the arena are split by tokens, and by heads if one token is too large. */
TEST_EVERYWHERE(merges_in_parts, 6) {
  static const int32_t nranks[] = {1, 2, 3, 5, 8, 17};
  const int count = on == &world_emulated ? 2 : 3;
  combine_task *task = combine_task_new(on == &world_emulated ? 2 + _i / 2 : world_ranks(on, nranks[_i]), 2);
  combine_group groups[3];
  groups[0] = combine_group_make(task, 3 + random_below(&task->random, 5), 9, on == &world_emulated ? 160 : 64);
  groups[1] = combine_group_make(task, 40 + random_below(&task->random, 5), 5, 0);
  if (count > 2) groups[2] = combine_group_make(task, 2, 40 + random_below(&task->random, 9), 96);
  for (int g = 0; g < count; g++) combine_task_add_some(task, &groups[g], wires[(g + _i) % 3], one_in(on));
  size_t least = on->is_device ? 128 << 10 : SMALLEST_ARENA;
  /* A ring of 17 ranks has 289 slots. */
  run_task(task, (world_setup){.on = on, .arena_bytes = task->nranks > 5 ? 512 << 10 : least});
}

/* Many large rows use every protocol, and give more work than there are blocks. */
TEST_EVERYWHERE(merges_many_rows, 4) {
  bool emulated = (on != &world_gpu && on != &world_gpu_processes) || world_is_quick();
  combine_task *task = combine_task_new(world_ranks(on, 2 + 2 * _i), 23);
  combine_group group = combine_group_make(task, emulated ? 3 : 16, emulated ? 12 : 128, _i % 2 ? 512 : 128);
  combine_task_add_some(task, &group, wires[_i % WIRES], on->is_device && emulated ? 45 : 8);
  run_task(task, (world_setup){.on = on, .arena_bytes = 64 << 20});
}

/* Random calls of each form of each algorithm. Results of even ranks and inputs of odd ranks are then combined
 * again. */
static void add_calls(combine_task *task, combine_group *of) {
  static const char *const forms[] = {NULL,        "oneshot", "twoshot",      "recursive",          "recursive_halving",
                                      "ring",      "tree",    "tree_knomial", "recursive_doubling", "tree_balanced",
                                      "tree_chain"};
  world_random *random = &task->random;
  banyan_combine_desc desc = {.wire = wires[random_below(random, WIRES)],
                              .order = (banyan_order)random_below(random, 2)};
  for (int i = 0; i < 3; i++) {
    desc.scatter = i ? (banyan_scatter)random_below(random, 4) : BANYAN_SCATTER_NONE;
    desc.root = random_below(random, task->nranks);
    desc.algorithm = forms[random_below(random, desc.order == BANYAN_ORDER_CANONICAL ? 8 : 11)];
    if (desc.scatter && desc.algorithm && strcmp(desc.algorithm, "recursive_doubling") == 0) desc.algorithm = "ring";
    combine_attempt *made = combine_task_add(task, of, desc, i == 0);
    if (i == 0) of->canonical = desc.order == BANYAN_ORDER_CANONICAL ? &made->out[COMBINE_FIRST][0] : NULL;
  }
}

TEST_RANDOM(results_are_combined_again, 54) {
  enum { GROUPS = 5 };
  combine_group groups[2][GROUPS];
  combine_task *tasks[2];
  for (int again = 0; again < 2; again++) {
    combine_task *task = tasks[again] = combine_task_new(1 + _i % 9, 500 + 2 * (uint64_t)_i);
    for (int g = 0; g < GROUPS; g++) {
      combine_group *of = &groups[again][g];
      *of = again ? groups[0][g] : combine_group_random(task);
      for (int32_t r = 0; again && r < task->nranks; r += 2) {
        const sheet *out = &tasks[0]->attempts[3 * g].out[COMBINE_OWN][r];
        if (out->partial.lse) of->in[r] = *out;
      }
      if (again) of->reference = sheet_merge(of->in, task->nranks);
      add_calls(task, of);
    }
    WORLD_RUN(combine_task_run, .nranks = task->nranks, .processes = _i % 6 == 5, .argument = task);
    combine_task_check(task);
  }
  for (int again = 0; again < 2; again++) combine_task_free(tasks[again]);
}

/* ---- the exact order --------------------------------------------------------------------------------------------- */

static void add_exact(combine_task *task, const combine_group *of, const world_backend *on, bool first) {
  static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};
  for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++) {
    banyan_combine_desc desc = {.scatter = (banyan_scatter)scatter, .order = BANYAN_ORDER_EXACT};
    desc.root = random_below(&task->random, task->nranks);
    desc.algorithm = algorithms[on->is_device ? 5 * (scatter % 2) : random_below(&task->random, 6)];
    combine_task_add(task, of, desc, first && scatter == 0);
  }
}

/* The bits depend on the partials only, whatever the algorithm and the rank that holds each partial. */
TEST_EVERYWHERE(exact_order_does_not_see_ranks, 27) {
  combine_task *task = combine_task_new(world_ranks(on, 1 + _i % 9 + _i / 9 * 4), 90 + (uint64_t)_i);
  combine_group group = combine_group_random(task), turned = group;
  for (int32_t r = 0; r < task->nranks; r++) turned.in[r] = group.in[(r + 1 + _i) % task->nranks];
  add_exact(task, &group, on, true);
  group.canonical = turned.canonical = &task->attempts[0].out[COMBINE_FIRST][0];
  add_exact(task, &turned, on, false);
  run_task(task, (world_setup){.on = on, .one_device = _i % 2});
}

/* ---- in place ---------------------------------------------------------------------------------------------------- */

/* The output is the input's memory, with the same layout; in one part and in several. */
static void combine_in_place(world_rank *self) {
  const combine_task *task = self->argument;
  bool good = world_put(self);
  for (int32_t i = 0; i < task->nattempts && good; i++) {
    const combine_attempt *attempt = &task->attempts[i];
    banyan_combine_desc desc = attempt->desc;
    desc.stream = self->stream;
    banyan_partial partial = world_partial(self, attempt->out[COMBINE_OWN][self->rank].partial);
    good = world_ok(self, banyan_combine(self->comm, &desc, &partial, &partial),
                    combine_attempt_text(attempt, COMBINE_OWN));
  }
  if (good && world_finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
}

TEST_EVERYWHERE(merges_in_place, 10) {
  static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};
  static const int32_t nranks[] = {1, 2, 5, 8, 17};
  const int32_t tokens = on == &world_emulated ? 2 : 6, heads = on == &world_emulated ? 3 : 20;
  const int32_t value_dim = on->is_device ? 200 : 48; /* more than a row's warp reads at once */
  combine_task *task = combine_task_new(world_ranks(on, nranks[_i / 2]), 3);
  world_random *random = &task->random;
  combine_group from = {.tokens = tokens, .heads = heads, .value_dim = value_dim};
  for (int32_t r = 0; r < task->nranks; r++) {
    do from.in[r] = sheet_output(random, SHEET_PLAIN, tokens, heads, value_dim);
    while (!from.in[r].partial.lse);
    sheet_fill(&from.in[r], random, SHEET_PLAIN, r, task->nranks);
  }
  from.model = from.in[0];
  from.reference = sheet_merge(from.in, task->nranks);
  for (int a = 0; a < 6; a++) {
    banyan_combine_desc desc = {.wire = BANYAN_F32, .algorithm = algorithms[a]};
    combine_attempt *made = combine_task_add(task, &from, desc, true);
    for (int32_t r = 0; r < task->nranks; r++) made->out[COMBINE_OWN][r] = sheet_copy(&from.in[r]);
  }
  world_setup setup = {.on = on, .nranks = task->nranks, .argument = task};
  setup.arena_bytes = on->is_device ? 0 : _i % 2 ? SMALLEST_ARENA : 0;
  world_run(&setup, combine_in_place);
  for (int32_t i = 0; i < task->nattempts; i++)
    for (int32_t r = 0; r < task->nranks; r++) combine_attempt_check(task, &task->attempts[i], r, COMBINE_OWN);
  combine_task_free(task);
}

/* ---- repeated runs ----------------------------------------------------------------------------------------------- */

/* Operations are created once and run with different rows each time; each rank checks its own result. */
static bool is_merged(world_rank *self, const combine_task *task) {
  for (int32_t i = 0; i < task->nattempts; i++) {
    const combine_attempt *attempt = &task->attempts[i];
    const sheet_part part = sheet_part_of(&attempt->desc, self->nranks, self->rank);
    char why[256] = "";
    const oracle_row *reference = sheet_merge(attempt->of->in, self->nranks);
    if (!world_check(self,
                     sheet_matches(&attempt->out[COMBINE_OWN][self->rank], reference, attempt->of->heads,
                                   attempt->token0 + part.token0, attempt->head0 + part.head0, attempt->desc.wire,
                                   2 * self->nranks, why, sizeof why),
                     "%s: %s", why, combine_attempt_text(attempt, COMBINE_OWN)))
      return false;
  }
  return true;
}

static void refill(world_rank *self, const combine_task *task, int round) {
  for (int32_t i = 0; i < task->nattempts; i++) {
    world_random random = random_seed() * 77 + (uint64_t)(1000 * round + 10 * i + self->rank);
    sheet mine = task->attempts[i].of->in[self->rank];
    if (i == 0 || task->attempts[i].of != task->attempts[i - 1].of)
      sheet_fill(&mine, &random, task->attempts[i].of->mood, self->rank, self->nranks);
  }
}

static void replay_all(world_rank *self) {
  enum { ROUNDS = 4 };
  const combine_task *task = self->argument;
  banyan_op *ops[COMBINE_ATTEMPTS_MAX] = {NULL};
  bool good = world_put(self);
  for (int32_t i = 0; i < task->nattempts && good; i++) {
    const combine_attempt *attempt = &task->attempts[i];
    const sheet *to = &attempt->out[COMBINE_OWN][self->rank];
    banyan_combine_desc desc = attempt->desc;
    banyan_partial in = world_partial(self, combine_attempt_input(attempt, self->rank)),
                   out = world_partial(self, to->partial);
    desc.stream = self->stream;
    good = world_ok(self, banyan_combine_init(self->comm, &desc, &in, to->tokens && to->heads ? &out : NULL, &ops[i]),
                    "init");
  }
  good = good && world_record(self, ops, task->nattempts);
  for (int round = 0; round < ROUNDS && good; round++) {
    refill(self, task, round);
    good = world_replay(self) && world_ok(self, banyan_comm_status(self->comm), "status") && world_meet(self) &&
           is_merged(self, task) && world_meet(self);
  }
  for (int32_t i = 0; i < task->nattempts; i++) banyan_op_free(ops[i]);
}

TEST_EVERYWHERE(merges_again_and_again, 9) {
  combine_task *task = combine_task_new(world_ranks(on, 1 + _i), 70);
  combine_group group = combine_group_make(task, 3, 7, 1 + random_below(&task->random, 150));
  combine_task_add_some(task, &group, wires[_i % WIRES], on->is_device ? 12 : 4);
  world_setup setup = {.on = on, .nranks = task->nranks, .argument = task, .one_device = _i % 2};
  world_run(&setup, replay_all);
  combine_task_free(task);
}

/* ---- the smallest arena ------------------------------------------------------------------------------------------ */

enum { ROW_VALUES = 128, LONG_VALUES = 4096 };

/* Every rank contributes one row of ones. The merged row is the same. */
static banyan_status combine_row(world_rank *self, const char *algorithm, banyan_order order, rows *row) {
  rows_set(row, 1);
  row->lse[0] = 0; /* the last call has written there */
  row->out = row->in;
  row->desc.algorithm = algorithm, row->desc.order = order;
  return rows_combine(row, self->comm);
}

static void combine_rows_by_all(world_rank *self) {
  static const char *const names[] = {"oneshot", "twoshot", "recursive_doubling", "recursive_halving", "tree", "ring"};
  rows *row = rows_take(1, 1, ROW_VALUES);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    for (int order = BANYAN_ORDER_PLAN; order <= BANYAN_ORDER_CANONICAL; order++) {
      banyan_status status = combine_row(self, names[i], (banyan_order)order, row);
      if (!world_check(self, status == BANYAN_OK, "%s, order %d: %s", names[i], order, banyan_last_error())) return;
      const float *values = row->values;
      if (!world_check(self, values[0] == 1 && values[ROW_VALUES - 1] == 1, "%s: %g", names[i], values[0])) return;
    }
}

TEST_RANGE(takes_a_row_by_every_algorithm_in_the_smallest_arena, 2, 18) {
  WORLD_RUN(combine_rows_by_all, .nranks = _i, .arena_bytes = SMALLEST_ARENA);
}

typedef struct long_row {
  size_t arena_bytes; /* 0: not known yet */
  size_t needed;
} long_row;

/* The text names an arena size that is large enough. */
static void combine_a_long_row(world_rank *self) {
  long_row *task = self->argument;
  banyan_status status = combine_row(self, "ring", BANYAN_ORDER_CANONICAL, rows_take(1, 1, LONG_VALUES));
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
  world_setup setup = {.nranks = 9, .arena_bytes = SMALLEST_ARENA, .argument = &task};
  world_run(&setup, combine_a_long_row);
  ck_assert_uint_gt(task.needed, SMALLEST_ARENA);
  setup.arena_bytes = task.arena_bytes = task.needed;
  world_run(&setup, combine_a_long_row);
}

/* Checks the oracle itself: stored numbers read back unchanged, and rounding is to nearest even. */
TEST(elements_of_the_oracle) {
  static const banyan_dtype dtypes[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3, BANYAN_E5M2};
  static const int exponents[] = {120, 14, 120, 7, 14};
  world_random random = random_seed();
  for (int i = 0; i < 100000; i++) {
    const banyan_dtype dtype = dtypes[i % 5];
    uint32_t memory = 0, again = 0;
    double value = random_unit(&random) * exp2(random_unit(&random) * exponents[i % 5]);
    oracle_store(&memory, dtype, 0, value);
    double stored = oracle_load(&memory, dtype, 0);
    oracle_store(&again, dtype, 0, stored);
    if (memory != again || fabs(stored - value) > fmax(oracle_unit(dtype) * fabs(value), oracle_step(dtype) / 2))
      ck_abort_msg("dtype %d: %a is stored as %a", (int)dtype, value, stored);
  }
}

int main(void) {
  sheet_eight_bits = true;
  return world_main(suite_of("combine", 300));
}
