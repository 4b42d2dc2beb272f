/* SPDX-License-Identifier: Apache-2.0
 * Runs on devices whose number of tokens and whose valid rows are read by kernels: operations, blocking calls of a
 * class, and a captured graph that serves every batch up to its capacity. Over the fake driver, with emulated
 * devices. */
#include <check.h>
#include <math.h>

#include "tests/support/suite.h"
#include "tests/device/device_world.h"

enum { RANKS = 3, MOST = 12, HEADS = 3, VALUE_DIM = 40, ROW = HEADS * VALUE_DIM, ROUNDS = 6 };

#if !defined HAVE_CUDA || !defined HAVE_CXX17
int main(void) {
  puts("built without CUDA, or without a compiler of C++17");
  return 77;
}
#else

/* Rank r gives lse 0 and values r + token where a row is valid; its kernels left NaN elsewhere. */
typedef struct memory {
  float in[MOST * ROW], in_lse[MOST * HEADS], out[MOST * ROW], out_lse[MOST * HEADS];
  int32_t tokens, starts[MOST + 1], lengths[MOST];
} memory;

typedef struct problem {
  banyan_scatter scatter;
  const char *algorithm;
  bool keeps, one_device, has_nan;
} problem;

/* Sequences of two tokens; the last token of an odd number is padding. A sequence has keys on some ranks. */
static int32_t length_of(int32_t sequence, int32_t rank, int round) {
  return (sequence + rank + round) % 3 == 0 || sequence % 5 == 4 ? 0 : 7;
}

static void fill(memory *memory, int32_t rank, int32_t tokens, int round) {
  memory->tokens = tokens;
  for (int32_t i = 0; i <= MOST / 2; i++) memory->starts[i] = 2 * i < tokens / 2 * 2 ? 2 * i : tokens / 2 * 2;
  for (int32_t i = 0; i < MOST / 2; i++) memory->lengths[i] = length_of(i, rank, round);
  for (int32_t t = 0; t < MOST; t++) {
    bool lives = t < tokens / 2 * 2 && length_of(t / 2, rank, round) > 0;
    for (int32_t i = 0; i < ROW; i++) memory->in[t * ROW + i] = lives ? (float)(rank + t) : NAN;
    for (int32_t h = 0; h < HEADS; h++) memory->in_lse[t * HEADS + h] = lives ? 0 : t % 2 ? NAN : 0;
  }
  for (int i = 0; i < MOST * ROW; i++) memory->out[i] = -7;
}

/* The value of a token of the result; -7 where nothing is written. */
static double expected(const problem *problem, int32_t nranks, int32_t token, int32_t tokens, int round) {
  double sum = 0, count = 0;
  if (token >= tokens) return -7;
  for (int32_t r = 0; r < nranks; r++) {
    if (token >= tokens / 2 * 2 || length_of(token / 2, r, round) == 0) continue;
    sum += r + token;
    count++;
  }
  return count > 0 ? sum / count : problem->keeps ? -7 : 0;
}

static bool holds(world_rank *self, const problem *problem, const memory *memory, int32_t tokens, int round) {
  int32_t first = 0, number = tokens, heads = HEADS, head0;
  if (problem->scatter == BANYAN_SCATTER_TOKENS) banyan_split(tokens, self->nranks, self->rank, &first, &number);
  if (problem->scatter == BANYAN_SCATTER_HEADS) banyan_split(HEADS, self->nranks, self->rank, &head0, &heads);
  for (int32_t t = 0; t < MOST; t++) {
    double value = t < number ? expected(problem, self->nranks, first + t, tokens, round) : -7;
    for (int32_t i = 0; i < heads * VALUE_DIM; i++) {
      double found = (double)memory->out[t * heads * VALUE_DIM + i];
      if (t * heads * VALUE_DIM + i >= MOST * ROW || fabs(found - value) <= 1e-5) continue;
      return world_check(self, false, "round %d of %d tokens: token %d is %g, not %g", round, tokens, t, found, value);
    }
  }
  return true;
}

static void describe(const problem *problem, memory *memory, int32_t heads, banyan_partial *in, banyan_partial *out,
                     banyan_live *live, banyan_combine_desc *desc) {
  banyan_partial_init(in, memory->in, BANYAN_F32, memory->in_lse, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(out, memory->out, BANYAN_F32, memory->out_lse, BANYAN_F32, heads, VALUE_DIM);
  *live = (banyan_live){.size = sizeof *live,
                        .tokens = &memory->tokens,
                        .batch = MOST / 2,
                        .seq_lens = memory->lengths,
                        .query_start_loc = memory->starts,
                        .empty_rows = problem->keeps ? BANYAN_EMPTY_ROWS_KEPT : BANYAN_EMPTY_ROWS_WRITTEN};
  *desc = (banyan_combine_desc){.size = sizeof *desc,
                                .tokens = MOST,
                                .heads = HEADS,
                                .value_dim = VALUE_DIM,
                                .scatter = problem->scatter,
                                .algorithm = problem->algorithm,
                                .live = live};
}

static const int32_t counts[ROUNDS] = {MOST, 5, 0, 1, 8, 11};

static bool join(world_rank *self, const problem *problem) {
  return device_world_join(self, problem->one_device ? 0 : self->rank);
}

/* The number of tokens and the lengths change in memory from replay to replay. */
static void replay(world_rank *self) {
  const problem *problem = self->argument;
  device_world_own own;
  banyan_partial in, out;
  banyan_live live;
  banyan_combine_desc desc;
  banyan_op *op = NULL;
  memory *memory = calloc(1, sizeof *memory);
  int32_t heads = HEADS, head0;
  if (!join(self, problem) || !device_world_make_own(self, problem->one_device ? 0 : self->rank, &own)) return;
  if (problem->scatter == BANYAN_SCATTER_HEADS) banyan_split(HEADS, self->nranks, self->rank, &head0, &heads);
  describe(problem, memory, heads, &in, &out, &live, &desc);
  desc.stream = own.stream;
  if (!world_ok(self, banyan_combine_init(self->comm, &desc, &in, &out, &op), "init")) return;
  live = (banyan_live){0}; /* it has been read */
  FAKE_CUDA(fake_cuda_capture)(own.stream, true);
  world_ok(self, banyan_start(op), "start");
  FAKE_CUDA(fake_cuda_capture)(own.stream, false);
  for (int round = 0; round < ROUNDS; round++) {
    fill(memory, self->rank, counts[round], round);
    FAKE_CUDA(fake_cuda_replay)(own.stream);
    if (!device_world_run(self) || !world_ok(self, banyan_comm_status(self->comm), "status")) break;
    if (!holds(self, problem, memory, counts[round], round)) break;
  }
  world_meet(self);
  banyan_op_free(op);
  device_world_free_own(&own);
  free(memory);
}

/* Blocking calls of any number up to 12 make plans for 1, 2, 4, 8 and 16. */
static void call(world_rank *self) {
  const problem *problem = self->argument;
  banyan_partial in, out;
  banyan_live live;
  banyan_combine_desc desc;
  memory *memory = calloc(1, sizeof *memory);
  int32_t heads = HEADS, head0;
  if (!join(self, problem)) return;
  if (problem->scatter == BANYAN_SCATTER_HEADS) banyan_split(HEADS, self->nranks, self->rank, &head0, &heads);
  describe(problem, memory, heads, &in, &out, &live, &desc);
  live.tokens = NULL;
  for (int round = 0; round < 2 * MOST; round++) {
    desc.tokens = 1 + round * 5 % MOST;
    fill(memory, self->rank, desc.tokens, round);
    if (!world_ok(self, banyan_combine(self->comm, &desc, &in, &out), "combine") || !device_world_run(self)) break;
    if (!holds(self, problem, memory, desc.tokens, round)) break;
  }
  char text[1024];
  banyan_comm_describe(self->comm, text, sizeof text);
  world_check(self, strstr(text, "plans made: 5") != NULL, "%s", text);
  world_meet(self);
  free(memory);
}

/* Rank 1 runs with another number than the others. */
static void disagree(world_rank *self) {
  const problem *problem = self->argument;
  banyan_partial in, out;
  banyan_live live;
  banyan_combine_desc desc;
  banyan_op *op = NULL;
  memory *memory = calloc(1, sizeof *memory);
  if (!join(self, problem)) return;
  describe(problem, memory, HEADS, &in, &out, &live, &desc);
  fill(memory, self->rank, self->rank == 1 ? 4 : 6, 0);
  if (world_ok(self, banyan_combine_init(self->comm, &desc, &in, &out, &op), "init") &&
      world_ok(self, banyan_start(op), "start") && device_world_run(self)) {
    banyan_status status = banyan_comm_status(self->comm);
    const char *text = banyan_comm_error(self->comm);
    bool numbers = strstr(text, "tokens") && (strstr(text, "4") || strstr(text, "6"));
    /* Kernels that had ended before they could notice leave it to the host of another rank. */
    bool heard = strstr(text, "rank 1 is in another call than rank") != NULL;
    world_check(self, status == BANYAN_ERR_MISMATCH && (numbers || heard), "%s: %s", banyan_status_string(status),
                text);
  }
  world_meet(self);
  banyan_op_free(op);
  free(memory);
}

/* Rank 1 has starts that decrease, or pass the tokens of the run. Nobody waits for it. Every second time its
 * statistics are NaN as well: the starts are named all the same, because they may be why such a row is read. */
static void start_wrongly(world_rank *self) {
  const problem *problem = self->argument;
  banyan_partial in, out;
  banyan_live live;
  banyan_combine_desc desc;
  banyan_op *op = NULL;
  memory *memory = calloc(1, sizeof *memory);
  if (!join(self, problem)) return;
  describe(problem, memory, HEADS, &in, &out, &live, &desc);
  fill(memory, self->rank, 8, 0);
  memset(memory->in, 0, sizeof memory->in); /* with starts that decrease any row may be valid */
  memset(memory->in_lse, 0, sizeof memory->in_lse);
  for (int32_t i = 0; self->rank == 1 && problem->has_nan && i < MOST * HEADS; i++) memory->in_lse[i] = NAN;
  if (self->rank == 1) memory->starts[problem->keeps ? 3 : 6] = problem->keeps ? 1 : 9;
  bool good = world_ok(self, banyan_combine_init(self->comm, &desc, &in, &out, &op), "init") &&
              world_ok(self, banyan_start(op), "start") && device_world_run(self);
  banyan_comm_status(self->comm); /* a rank whose kernel has noticed it tells the others */
  if (world_meet(self) && good) {
    banyan_status status = banyan_comm_status(self->comm);
    const char *text = banyan_comm_error(self->comm);
    const char *says = problem->keeps ? "query_start_loc[3]" : "query_start_loc[6]";
    const char *numbers = problem->keeps ? "is 1, less than 4" : "is 9 of 8";
    bool heard = strstr(text, "rank 1 failed") != NULL; /* its kernel had ended before */
    bool named = strstr(text, says) && (self->rank != 1 || strstr(text, numbers));
    world_check(self, status == BANYAN_ERR_ARGUMENT && (named || (heard && self->rank != 1)), "%s: %s",
                banyan_status_string(status), text);
  }
  world_meet(self);
  banyan_op_free(op);
  free(memory);
}

static void run(problem *problem, int32_t nranks, world_body body) {
  device_world_begin(RANKS, "");
  world_run(&(world_setup){.nranks = nranks, .bare = true, .argument = problem}, body);
  device_world_end();
}

static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "ring"};

TEST_LOOP(a_graph_serves_any_number, 16) {
  problem problem = {.scatter = _i % 2   ? BANYAN_SCATTER_TOKENS
                                : _i % 4 ? BANYAN_SCATTER_HEADS
                                         : BANYAN_SCATTER_NONE,
                     .algorithm = algorithms[_i / 4],
                     .keeps = _i % 3 == 0};
  run(&problem, RANKS, replay);
}

TEST_LOOP(blocking_calls_share_plans, 2) {
  problem problem = {.scatter = _i ? BANYAN_SCATTER_TOKENS : BANYAN_SCATTER_NONE};
  run(&problem, 2, call);
}

TEST_LOOP(other_numbers_are_a_mismatch, 4) {
  problem problem = {.algorithm = algorithms[_i]};
  run(&problem, RANKS, disagree);
}

TEST_LOOP(wrong_starts_end_the_run, 16) {
  problem problem = {.algorithm = algorithms[_i / 4], .keeps = _i % 2, .has_nan = _i / 2 % 2};
  run(&problem, RANKS, start_wrongly);
}

int main(void) { return world_main(suite_of("device live", 120)); }
#endif
