/* SPDX-License-Identifier: Apache-2.0
 * Attention and the combine of its rows on devices, for a capacity: kernels read how many tokens a run has, and which
 * of them a rank leaves out. A graph is captured once and replayed with changing numbers, or each run is a call. What
 * lies past a run's tokens is neither read nor written. Results are compared with a reference in double precision. Over
 * the fake driver, with emulated devices. */
#include <check.h>
#include <math.h>

#include "tests/api/attention_problem.h"
#include "tests/device/device_world.h"
#include "tests/support/suite.h"

#if !defined HAVE_CUDA || !defined HAVE_CXX17
int main(void) {
  puts("built without CUDA, or without a compiler of C++17");
  return 77;
}
#else

enum { RANKS_MAX = 9, ROUNDS = 4, SHAPES = 6, POISON = 0x5a };

/* A rank's shard, and what it says of a run. */
typedef struct shard {
  problem_shard of;
  int32_t most[PROBLEM_BATCH_MAX]; /* keys of each sequence that are there */
  uint16_t *q;
  size_t q_bytes, values_bytes, lse_bytes;
  banyan_queries queries;
  int32_t starts[PROBLEM_BATCH_MAX + 1], tokens;
  uint8_t mask[PROBLEM_BATCH_MAX];
  float *values, *lse;
} shard;

typedef struct task {
  int32_t nranks;
  problem_shape shape;
  banyan_scatter scatter;
  const char *algorithm;
  banyan_dtype wire;
  bool several, has_mask, keeps, blocking, one_device;
  uint64_t seed;
  shard shards[RANKS_MAX];
} task;

/* ---- making ------------------------------------------------------------------------------------------------------ */

static void make_shard(world_random *random, task *made, const uint16_t *q, int32_t rank) {
  const problem_shape *shape = &made->shape;
  shard *one = &made->shards[rank];
  problem_shard_make(random, shape, q, &one->of);
  memcpy(one->most, one->of.lengths, sizeof one->most);
  one->q_bytes = (size_t)(shape->batch * shape->heads * shape->head_dim) * sizeof *q;
  one->q = aligned_alloc(64, (one->q_bytes + 63) / 64 * 64);
  one->of.desc.q = one->q;
  const size_t rows = (size_t)(shape->batch * shape->heads);
  one->values_bytes = rows * (size_t)shape->value_dim * sizeof(float);
  one->lse_bytes = rows * sizeof(float);
  one->values = malloc(one->values_bytes);
  one->lse = malloc(one->lse_bytes);
  one->queries = (banyan_queries){.size = sizeof one->queries, .tokens = shape->batch, .query_start_loc = one->starts};
  if (made->several) one->of.desc.queries = &one->queries;
}

static task *make_task(int32_t nranks, int kind) {
  static const struct {
    int32_t batch, heads, kv_heads, head_dim, value_dim;
  } shapes[SHAPES] = {{5, 4, 2, 64, 64}, {37, 2, 1, 64, 64},   {6, 3, 1, 128, 128},
                      {4, 6, 2, 96, 96}, {3, 10, 1, 576, 512}, {2, 34, 1, 576, 512}};
  world_random random = {world_seed() * 700 + (uint64_t)(nranks * 100 + kind)};
  task *made = calloc(1, sizeof *made);
  made->nranks = nranks;
  made->seed = random.state;
  made->shape = (problem_shape){.batch = shapes[kind % SHAPES].batch,
                                .heads = shapes[kind % SHAPES].heads,
                                .kv_heads = shapes[kind % SHAPES].kv_heads,
                                .head_dim = shapes[kind % SHAPES].head_dim,
                                .value_dim = shapes[kind % SHAPES].value_dim,
                                .latent = shapes[kind % SHAPES].head_dim == 576,
                                .dtype = random_one_in(&random, 2) ? BANYAN_BF16 : BANYAN_F16,
                                .page_keys = random_one_in(&random, 2) ? 8 : 0,
                                .keys_max = 1 + random_below(&random, 24)};
  made->scatter = (banyan_scatter)random_below(&random, 4);
  made->algorithm = nranks == 1 || !random_one_in(&random, 3) ? NULL : kind % 2 ? "ring" : "twoshot";
  made->wire = random_one_in(&random, 4) ? BANYAN_BF16 : BANYAN_F32;
  made->several = random_one_in(&random, 2);
  made->has_mask = random_one_in(&random, 2);
  made->keeps = random_one_in(&random, 3);
  made->blocking = random_one_in(&random, 3);
  made->one_device = random_one_in(&random, 4);
  uint16_t *q = problem_queries(&random, &made->shape);
  for (int32_t r = 0; r < nranks; r++) make_shard(&random, made, q, r);
  for (int32_t r = 0; r < nranks; r++) memcpy(made->shards[r].q, q, made->shards[r].q_bytes);
  free(q);
  return made;
}

static void free_task(task *task) {
  for (int32_t r = 0; r < task->nranks; r++) {
    problem_shard_free(&task->shards[r].of);
    free(task->shards[r].q);
    free(task->shards[r].values);
    free(task->shards[r].lse);
  }
  free(task);
}

/* The run's tokens and starts are the same on all ranks; lengths and masks are not. Past the tokens lie lengths that
 * would be refused. */
static void draw(task *task, int32_t rank, int round) {
  world_random all = {task->seed * 1000 + (uint64_t)round};
  world_random own = {task->seed * 1000 + (uint64_t)(100 + round * RANKS_MAX + rank)};
  shard *one = &task->shards[rank];
  const int32_t most = task->shape.batch;
  one->tokens = round == 0 ? most : round == 1 ? 0 : random_below(&all, most + 1);
  one->starts[0] = random_one_in(&all, 3) ? random_below(&all, one->tokens + 1) : 0;
  for (int32_t b = 0; b < most; b++) {
    int32_t next = one->starts[b] + random_below(&all, 3);
    one->starts[b + 1] = next < one->tokens ? next : one->tokens;
    one->of.lengths[b] = one->most[b] ? random_below(&own, one->most[b] + 1) : 0;
    if (!task->several && b >= one->tokens) one->of.lengths[b] = b % 2 ? -3 : INT32_MAX;
    one->mask[b] = !random_one_in(&own, 3);
  }
  memset(one->values, POISON, one->values_bytes);
  memset(one->lse, POISON, one->lse_bytes);
}

/* Sequences whose tokens a mask leaves out, or that have none, get pages that would be refused: no key is read. */
static void spoil_pages(const task *task, shard *one) {
  for (int32_t b = 0; b < task->shape.batch && one->of.desc.pages.table; b++) {
    int32_t token = task->several ? one->starts[b] : b, end = task->several ? one->starts[b + 1] : b + 1;
    while (task->has_mask && token < end && !one->mask[token]) token++;
    int32_t *page = &one->of.pages[b * one->of.desc.pages.table_stride];
    if ((*page < 0) != (token == end)) *page = -1 - *page;
  }
}

static bool owned(const task *task, int32_t rank, int32_t tokens, int32_t *box) {
  box[0] = box[2] = 0;
  box[1] = tokens;
  box[3] = task->shape.heads;
  if (task->scatter == BANYAN_SCATTER_HEADS) banyan_split(task->shape.heads, task->nranks, rank, &box[2], &box[3]);
  if (task->scatter == BANYAN_SCATTER_TOKENS) banyan_split(tokens, task->nranks, rank, &box[0], &box[1]);
  if (task->scatter == BANYAN_SCATTER_ROOT && rank != 0) box[1] = 0;
  return box[1] > 0 && box[3] > 0;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

/* The sequence of a token; -1: it has none. */
static int32_t sequence_of(const task *task, int32_t token) {
  if (!task->several) return token;
  const int32_t *starts = task->shards[0].starts;
  for (int32_t b = 0; b < task->shape.batch; b++)
    if (token >= starts[b] && token < starts[b + 1]) return b;
  return -1;
}

static void reference_of(const task *task, int32_t token, int32_t head, problem_row *row) {
  static _Thread_local problem_shard seen[RANKS_MAX];
  const int32_t b = sequence_of(task, token);
  memset(row, 0, sizeof *row);
  row->max = -INFINITY;
  if (b < 0) return;
  for (int32_t r = 0; r < task->nranks; r++) {
    const shard *one = &task->shards[r];
    seen[r] = one->of;
    seen[r].desc.q = one->q + (int64_t)(token - b) * one->of.desc.q_batch_stride;
    if (task->has_mask && !one->mask[token]) seen[r].lengths[b] = 0;
  }
  problem_row_make(seen, task->nranks, b, head, row);
}

static bool is_poison(const void *from, size_t bytes) {
  const unsigned char *at = from;
  for (size_t i = 0; i < bytes; i++)
    if (at[i] != POISON) return false;
  return true;
}

static bool holds(world_rank *self, const task *task, int round) {
  const shard *one = &task->shards[self->rank];
  const size_t dim = (size_t)task->shape.value_dim;
  int32_t box[4];
  const bool has = owned(task, self->rank, one->tokens, box);
  const size_t count = has ? (size_t)(box[1] * box[3]) : 0;
  for (size_t i = 0; i < count; i++) {
    const int32_t token = box[0] + (int32_t)i / box[3], head = box[2] + (int32_t)i % box[3];
    problem_row reference;
    reference_of(task, token, head, &reference);
    if (reference.sum == 0 && task->keeps) {
      if (!world_check(self, is_poison(one->values + i * dim, dim * 4) && is_poison(one->lse + i, 4),
                       "round %d of %d tokens: the empty row of token %d was not kept", round, one->tokens, token))
        return false;
      continue;
    }
    const double error = problem_row_error(&reference, task->shape.value_dim, one->values + i * dim, one->lse[i],
                                           task->wire == BANYAN_F32 ? 3e-5 : 2e-2);
    if (!world_check(self, error <= 1,
                     "round %d of %d tokens, token %d, head %d: error %g of the bound; %d of %d x %d/%d x %d, scatter "
                     "%d, by %s, several %d, mask %d",
                     round, one->tokens, token, head, error, self->nranks, task->shape.batch, task->shape.heads,
                     task->shape.kv_heads, task->shape.head_dim, task->scatter,
                     task->algorithm ? task->algorithm : "any", task->several, task->has_mask))
      return false;
  }
  return world_check(self,
                     is_poison(one->values + count * dim, one->values_bytes - count * dim * 4) &&
                         is_poison(one->lse + count, one->lse_bytes - count * 4),
                     "round %d of %d tokens: rows past them were written", round, one->tokens);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

typedef struct rig {
  task *task;
  device_world_own own;
  banyan_live live;
  banyan_combine_desc combine;
  banyan_partial out;
  banyan_op *op;
} rig;

static bool make(world_rank *self, rig *rig) {
  task *task = rig->task = self->argument;
  shard *one = &task->shards[self->rank];
  const int ordinal = task->one_device ? 0 : self->rank;
  int32_t box[4];
  if (!device_world_join(self, ordinal) || !device_world_make_own(self, ordinal, &rig->own)) return false;
  owned(task, self->rank, task->shape.batch, box);
  banyan_partial_init(&rig->out, one->values, BANYAN_F32, one->lse, BANYAN_F32, box[3], task->shape.value_dim);
  rig->live = (banyan_live){.size = sizeof rig->live,
                            .tokens = &one->tokens,
                            .token_mask = task->has_mask ? one->mask : NULL,
                            .empty_rows = task->keeps ? BANYAN_EMPTY_ROWS_KEPT : BANYAN_EMPTY_ROWS_WRITTEN};
  rig->combine = (banyan_combine_desc){.size = sizeof rig->combine,
                                       .tokens = task->shape.batch,
                                       .heads = task->shape.heads,
                                       .value_dim = task->shape.value_dim,
                                       .wire = task->wire,
                                       .scatter = task->scatter,
                                       .algorithm = task->algorithm,
                                       .stream = rig->own.stream,
                                       .live = &rig->live};
  one->of.desc.stream = rig->own.stream;
  return true;
}

static bool begin(world_rank *self, rig *rig, bool captures) {
  const task *task = rig->task;
  const bool within = !task->algorithm || strcmp(task->algorithm, "oneshot") == 0;
  banyan_op_info info = {.size = sizeof info};
  bool good = world_ok(self,
                       banyan_attention_combine_init(self->comm, &task->shards[self->rank].of.desc, &rig->combine,
                                                     &rig->out, &rig->op),
                       "init") &&
              world_ok(self, banyan_op_query(rig->op, &info), "query") &&
              world_check(self, strstr(info.reason, within ? "combined within it" : "a combine of its own") != NULL,
                          "%s", info.reason);
  rig->live = (banyan_live){0}; /* it has been read */
  if (!good || !captures) return good;
  FAKE_CUDA(fake_cuda_capture)(rig->own.stream, true);
  good = world_ok(self, banyan_start(rig->op), "start");
  FAKE_CUDA(fake_cuda_capture)(rig->own.stream, false);
  return good;
}

static void attend(world_rank *self) {
  rig rig = {NULL};
  bool good = make(self, &rig);
  if (good && !rig.task->blocking) good = begin(self, &rig, true);
  for (int round = 0; round < ROUNDS && good; round++) {
    draw(rig.task, self->rank, round);
    spoil_pages(rig.task, &rig.task->shards[self->rank]);
    if (rig.task->blocking)
      good = world_ok(
          self, banyan_attention_combine(self->comm, &rig.task->shards[self->rank].of.desc, &rig.combine, &rig.out),
          "attention_combine");
    else
      FAKE_CUDA(fake_cuda_replay)(rig.own.stream);
    good = good && device_world_run(self) && world_ok(self, banyan_comm_status(self->comm), "status") &&
           holds(self, rig.task, round);
    good = world_meet(self) && good;
  }
  banyan_op_free(rig.op);
  device_world_free_own(&rig.own);
}

static void run(task *task, world_body body) {
  setenv("BANYAN_ARENA_KIB", "24576", 1);
  device_world_begin(RANKS_MAX, "");
  world_run(&(world_setup){.nranks = task->nranks, .bare = true, .argument = task}, body);
  device_world_end();
  free_task(task);
}

TEST_RANDOM(a_graph_serves_any_number, 2 * RANKS_MAX) { run(make_task(1 + _i % RANKS_MAX, _i), attend); }

/* ---- what is wrong ----------------------------------------------------------------------------------------------- */

/* Runs once, and has the ranks whose kernels noticed something tell the others. */
static bool run_once(world_rank *self, rig *rig) {
  bool good = begin(self, rig, false) && world_ok(self, banyan_start(rig->op), "start") && device_world_run(self);
  banyan_comm_status(self->comm);
  return world_meet(self) && good;
}

/* The last rank runs with another number than the others. */
static void disagree(world_rank *self) {
  rig rig = {NULL};
  bool good = make(self, &rig);
  draw(rig.task, self->rank, 0);
  rig.task->shards[self->rank].tokens = self->rank == self->nranks - 1 ? 3 : 5;
  if (good && run_once(self, &rig)) {
    banyan_status status = banyan_comm_status(self->comm);
    const char *text = banyan_comm_error(self->comm);
    bool numbers = strstr(text, "tokens") && (strstr(text, "3") || strstr(text, "5"));
    bool heard = strstr(text, "is in another call than rank") != NULL; /* kernels that had ended leave it to hosts */
    world_check(self, status == BANYAN_ERR_MISMATCH && (numbers || heard), "%s: %s", banyan_status_string(status),
                text);
  }
  world_meet(self);
  banyan_op_free(rig.op);
  device_world_free_own(&rig.own);
}

static task *make_plain(int32_t nranks, bool apart) {
  task *made = make_task(nranks, 0);
  made->scatter = BANYAN_SCATTER_NONE;
  made->algorithm = apart ? "ring" : NULL;
  made->several = made->has_mask = false;
  for (int32_t r = 0; r < nranks; r++) made->shards[r].of.desc.queries = NULL;
  return made;
}

TEST_LOOP(other_numbers_are_a_mismatch, 6) { run(make_plain(2 + _i / 2, _i % 2), disagree); }

/* Rank 1 has starts that decrease, or pass the run's tokens: its rows would not all come. */
static void start_wrongly(world_rank *self) {
  rig rig = {NULL};
  bool good = make(self, &rig);
  const bool decreases = self->nranks % 2;
  shard *one = &rig.task->shards[self->rank];
  draw(rig.task, self->rank, 0);
  one->tokens = 4;
  for (int32_t b = 0; b <= rig.task->shape.batch; b++) one->starts[b] = b < 4 ? b : 4;
  if (self->rank == 1) one->starts[decreases ? 3 : 5] = decreases ? 1 : 6;
  if (good && run_once(self, &rig)) {
    banyan_status status = banyan_comm_status(self->comm);
    const char *text = banyan_comm_error(self->comm);
    const char *says = decreases ? "query_start_loc[3]" : "query_start_loc[5]";
    const char *numbers = decreases ? "is 1, less than 2" : "is 6 of 4";
    bool heard = strstr(text, "rank 1 failed") != NULL; /* its kernel had ended before */
    bool named = strstr(text, says) && (self->rank != 1 || strstr(text, numbers));
    world_check(self, status == BANYAN_ERR_ARGUMENT && (named || (heard && self->rank != 1)), "%s: %s",
                banyan_status_string(status), text);
  }
  world_meet(self);
  banyan_op_free(rig.op);
  device_world_free_own(&rig.own);
}

TEST_LOOP(wrong_starts_end_the_run, 6) {
  task *task = make_plain(2 + _i / 2, _i % 2);
  task->several = true;
  for (int32_t r = 0; r < task->nranks; r++) task->shards[r].of.desc.queries = &task->shards[r].queries;
  run(task, start_wrongly);
}

int main(void) { return world_main(suite_of("device attention live", 180)); }
#endif
