/* SPDX-License-Identifier: Apache-2.0
 * All-gathers of heads over random shapes, layouts and token counts, as blocking calls and operations on every backend.
 * Also tests shared plans and the bytes sent. */
#include "tests/support/heads.h"
#include "tests/support/lone.h"
#include "tests/support/world.h"

enum { SHAPES = 12, SHAPES_ON_DEVICES = 2, RUNS = 6, RUNS_ON_DEVICES = 4, TOKENS_MOST = 40 };

typedef struct memory {
  unsigned char *mine, *all;
  int32_t *tokens;
} memory;

static bool check(world_rank *self, const heads_problem *of, int run, const memory *at, const char *what) {
  char why[300] = "";
  return world_ok(self, banyan_comm_status(self->comm), "status") &&
         world_check(self, heads_hold(of, *at->tokens, run, at->all, why, sizeof why), "%s: %s", what, why);
}

/* Each run has its own number of tokens, the same on all ranks. Memory may be NULL without tokens. */
static bool call_often(world_rank *self, heads_problem *problem, world_random *random, const memory *at) {
  int32_t most = problem->desc.tokens;
  banyan_valid_rows valid = world_valid(self, (banyan_valid_rows){.size = sizeof valid, .tokens = at->tokens});
  bool good = true;
  for (int run = 0; run < (self->on->is_device ? RUNS_ON_DEVICES : RUNS) && good; run++) {
    bool counts = run % 2;
    int32_t tokens = *at->tokens = !counts ? most : random_one_in(random, 4) ? 0 : random_below(random, most + 1);
    problem->desc.valid = counts ? &valid : NULL;
    heads_fill(problem, tokens, run, at->mine, at->all);
    bool none = !tokens && !self->on->is_device;
    good = world_put(self) &&
           world_ok(self,
                    banyan_allgather_heads(self->comm, &problem->desc,
                                           none ? NULL : world_at(self, heads_mine(problem, at->mine, at->all)),
                                           none ? NULL : world_at(self, heads_all(problem, at->all))),
                    "call") &&
           world_finish(self) && check(self, problem, run, at, "call");
  }
  return good;
}

/* Bytes are sent for the tokens of the run only: the ranks together send each row at least once to every other rank. */
static bool sent_is_right(world_rank *self, const heads_problem *problem, const banyan_op *op, int32_t tokens) {
  banyan_op_info info = {.size = sizeof info};
  if (self->on->is_device) return true;
  if (!world_ok(self, banyan_op_query(op, &info), "query")) return false;
  size_t whole = (size_t)tokens * (size_t)problem->desc.heads * problem->row_bytes;
  if (strcmp(info.algorithm, "oneshot") != 0)
    return world_check(self, info.bytes_sent <= whole * (size_t)self->nranks, "%s sent %llu bytes for %d tokens",
                       info.algorithm, (unsigned long long)info.bytes_sent, tokens);
  size_t expected =
      (size_t)tokens * (size_t)problem->number * problem->row_bytes * (size_t)(self->nranks > 1 ? self->nranks - 1 : 0);
  return world_check(self, info.bytes_sent == expected, "it sent %llu bytes for %d tokens, not %zu",
                     (unsigned long long)info.bytes_sent, tokens, expected);
}

/* One operation serves every number of tokens; on devices it is captured in a graph. */
static bool start_often(world_rank *self, heads_problem *problem, world_random *random, const memory *at) {
  banyan_valid_rows valid = world_valid(self, (banyan_valid_rows){.size = sizeof valid, .tokens = at->tokens});
  banyan_op *op = NULL;
  problem->desc.valid = &valid;
  *at->tokens = problem->desc.tokens;
  bool good =
      world_put(self) && world_ok(self,
                                  banyan_allgather_heads_init(self->comm, &problem->desc,
                                                              world_at(self, heads_mine(problem, at->mine, at->all)),
                                                              world_at(self, heads_all(problem, at->all)), &op),
                                  "init");
  valid = (banyan_valid_rows){0}; /* init has read it */
  good = good && world_record(self, &op, 1);
  for (int run = 0; run < (self->on->is_device ? RUNS_ON_DEVICES : RUNS) && good; run++) {
    *at->tokens = run == 0 ? problem->desc.tokens : run == 1 ? 0 : random_below(random, problem->desc.tokens + 1);
    heads_fill(problem, *at->tokens, run, at->mine, at->all);
    good = world_replay(self) && check(self, problem, run, at, "operation") &&
           sent_is_right(self, problem, op, *at->tokens);
  }
  banyan_op_free(op);
  return good;
}

static void gather_all(world_rank *self) {
  uint64_t salt = *(const uint64_t *)self->argument;
  world_random random = random_seed() * 7919 + salt;
  bool good = true;
  for (int shape = 0; shape < (self->on->is_device ? SHAPES_ON_DEVICES : SHAPES) && good; shape++) {
    heads_problem problem;
    heads_make(&problem, random_next(&random), self->rank, self->nranks,
               self->on->is_device ? TOKENS_MOST / 4 : TOKENS_MOST);
    if (salt % 3 < 2) world_vary(self, (int32_t)salt + 1 + (1 + (int32_t)salt / 2) * shape);
    problem.desc.stream = self->stream;
    memory at = {world_take(problem.mine.bytes), world_take(problem.all.bytes), world_take(sizeof(int32_t))};
    good = call_often(self, &problem, &random, &at) && start_often(self, &problem, &random, &at);
  }
}

/* Small arenas split calls into parts. */
TEST_EVERYWHERE(ranks_gather, 27) {
  if (on == &world_staged) return; /* the staged backend keeps heads in host memory */
  uint64_t salt = (uint64_t)_i;
  if (on == &world_emulated) setenv("BANYAN_ARENA_KIB", "1024", 0); /* a small arena is faster to clear */
  WORLD_RUN(gather_all, .nranks = world_ranks(on, 1 + _i % 9), .on = on, .argument = &salt,
            .arena_bytes = _i % 3 == 2 ? 64 << 10 : 0,
            .words = on == &world_emulated && _i % 3 == 1 ? "no-vmm,no-ipc" : NULL);
}

TEST_LOOP(levels_gather, 3) {
  static const char *const levels[] = {"2", "4", "2,4"};
  uint64_t salt = 300 + (uint64_t)_i;
  setenv("BANYAN_LEVELS", levels[_i], 1);
  WORLD_RUN(gather_all, .nranks = 8, .argument = &salt);
}

/* Nodes with equal and unequal numbers of ranks, also with the ranks of a node not adjacent. */
TEST_LOOP(nodes_of_many_shapes, 10) {
  static const struct {
    const char *nodes;
    int32_t nranks;
  } layouts[] = {{"a,a,b,b", 4}, {"a,b", 2}, {"a,a,a,b", 4}, {"a,b,a,c,b", 5}, {"a,a,b,b,c,c,d", 7}};
  uint64_t salt = 400 + (uint64_t)_i;
  if (!world_is_here(&world_nodes)) return;
  WORLD_RUN(gather_all, .nranks = layouts[_i / 2].nranks, .on = &world_nodes, .nodes = layouts[_i / 2].nodes,
            .argument = &salt, .arena_bytes = _i % 2 ? 64 << 10 : 0);
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

enum { TOKENS = 3, HEADS = 4, DIM = 8 };

/* Tensors in different columns of one matrix do not overlap. */
TEST(columns_beside_each_other) {
  banyan_comm *comm = lone_comm(NULL);
  static uint16_t whole[2 * TOKENS * HEADS * DIM];
  banyan_heads_desc desc = {.size = sizeof desc, .tokens = TOKENS, .heads = HEADS, .dim = DIM, .dtype = BANYAN_F16};
  desc.all_token_stride = desc.mine_token_stride = 2 * HEADS * DIM;
  desc.all_head_stride = desc.mine_head_stride = DIM;
  for (int i = 0; i < 2 * TOKENS * HEADS * DIM; i++) whole[i] = (uint16_t)i;
  ck_assert_msg(banyan_allgather_heads(comm, &desc, whole + HEADS * DIM, whole) == BANYAN_OK, "%s",
                banyan_last_error());
  for (int t = 0; t < TOKENS; t++)
    ck_assert_mem_eq(whole + 2 * t * HEADS * DIM, whole + (2 * t + 1) * HEADS * DIM, HEADS * DIM * sizeof *whole);
  ck_assert_int_eq(banyan_allgather_heads(comm, &desc, whole + HEADS * DIM - 1, whole), BANYAN_ERR_ARGUMENT);
  banyan_comm_destroy(comm);
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

TEST_RANKS(classes_share_plans, 1, .nranks = 3) {
  enum { MOST = 300, CALLS = 600 };
  world_random random = random_seed();
  uint16_t *mine = calloc(MOST * HEADS, DIM * sizeof *mine), *all = calloc(MOST * HEADS, DIM * sizeof *all);
  if (!mine || !all) abort();
  int before = world_plans_made(self);
  for (int i = 0; i < CALLS; i++) {
    banyan_heads_desc desc = {.size = sizeof desc, .heads = HEADS, .dim = DIM, .dtype = BANYAN_F16};
    desc.tokens = 1 + random_below(&random, MOST);
    if (!world_ok(self, banyan_allgather_heads(self->comm, &desc, mine, all), "call")) break;
  }
  int plans = world_plans_made(self) - before;
  world_check(self, plans > 0 && plans <= 10, "%d calls made %d plans", CALLS, plans);
  free(mine);
  free(all);
}

int main(void) { return world_main(suite_of("heads", 120)); }
