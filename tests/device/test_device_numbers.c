/* SPDX-License-Identifier: Apache-2.0
 * Tests special numbers on devices of the fake driver: rows of NaN, rows of a result that the caller's type cannot
 * hold, and values that the wire cannot hold. */
#include "tests/support/attend.h"

/* ---- logits of NaN ----------------------------------------------------------------------------------------------- */

/* The error bound relative to the reference, as in test_device_attention. */
static const double bound = 3e-5;

enum { ALONE, WITHIN_ONE_KERNEL, APART, WAYS };

typedef struct nan_task {
  attend *of;
  int way;
  bool is_empty; /* rows of NaN count as rows without keys */
} nan_task;

/* Rank 1's first key of the first sequence is NaN for one KV head. Rows of that head are NaN only on rank 1. */
static void make_nan_task(nan_task *made, int32_t head_dim) {
  const bool latent = head_dim == 576;
  const problem_shape shape = {.batch = 2,
                               .heads = latent ? 4 : 6,
                               .kv_heads = latent ? 1 : 2,
                               .head_dim = head_dim,
                               .value_dim = latent ? 512 : head_dim,
                               .latent = latent,
                               .dtype = BANYAN_BF16,
                               .keys_max = 40};
  made->of = attend_make_plain(2, (uint64_t)head_dim, &shape);
  made->of->alone = made->way == ALONE;
  made->of->combine.algorithm = made->way == WITHIN_ONE_KERNEL ? "oneshot" : "ring";
  bool has_keys;
  do { /* in every sequence, on both ranks */
    made->of->seed++;
    attend_fill(made->of);
    has_keys = true;
    for (int32_t i = 0; i < 4; i++) has_keys = has_keys && made->of->ranks[i / 2].shard.lens[i % 2];
  } while (!has_keys);
  store(made->of->ranks[1].shard.memory[0][0].data, 0, BANYAN_BF16, NAN);
}

static void attend_to_nan(world_rank *self) {
  nan_task *task = self->argument;
  banyan_op *op = NULL;
  attend_call call;
  if (!attend_ready(self, task->of, 0, &call)) return;
  call.desc.empty = task->is_empty ? BANYAN_EMPTY_NAN : 0;
  const banyan_status status = attend_init(self, task->of, &call, &op);
  if (world_ok(self, status, "init") && world_ok(self, banyan_start(op), "start") && world_finish(self)) {
    if (task->is_empty || task->way == ALONE)
      world_ok(self, banyan_comm_status(self->comm), "status");
    else
      world_fails(self, BANYAN_ERR_DATA, 1, "rank 1 passed invalid statistics");
  }
  world_meet(self);
  banyan_op_free(op);
}

/* Checks row `row` of rank r against the reference over `count` shards from `first` on. */
static void check_row(const attend *of, int32_t r, int32_t first, int32_t count, int32_t row) {
  attend what = *of;
  attention_row reference;
  int32_t dim = of->shape.value_dim;
  what.alone = count == 1;
  attend_reference(&what, first, row / of->shape.heads, row % of->shape.heads, &reference);
  double error = attention_row_error(&reference, dim, of->ranks[r].values + (size_t)row * (size_t)dim,
                                     of->ranks[r].lse[row], bound);
  ck_assert_msg(error <= 1, "rank %d, row %d: error %g of the bound", r, row, error);
}

static void check_nan_row(const nan_task *task, int32_t r, int32_t row) {
  int32_t dim = task->of->shape.value_dim;
  const float *values = task->of->ranks[r].values + (size_t)row * (size_t)dim;
  float lse = task->of->ranks[r].lse[row];
  bool right = task->is_empty ? lse == -INFINITY : isnan(lse);
  for (int32_t i = 0; i < dim; i++) right = right && (task->is_empty ? values[i] == 0 : isnan(values[i]));
  ck_assert_msg(right, "rank %d, row %d: lse %g, values from %g on", r, row, (double)lse, (double)values[0]);
}

static const int32_t head_dims[] = {64, 128, 256, 576};

/* Attention alone returns a row of NaN, which is bad data for a combine. With BANYAN_EMPTY_NAN it counts as a row
 * without keys. */
TEST_LOOP(rows_of_nan, 2 * WAYS * (int)(sizeof head_dims / sizeof head_dims[0])) {
  if (!world_is_here(&world_emulated)) return;
  nan_task task = {.way = _i / 2 % WAYS, .is_empty = _i % 2};
  make_nan_task(&task, head_dims[_i / 2 / WAYS]);
  const problem_shape *shape = &task.of->shape;
  WORLD_RUN(attend_to_nan, .nranks = 2, .on = &world_emulated, .argument = &task);
  for (int32_t r = 0; r < 2 && (task.way == ALONE || task.is_empty); r++)
    for (int32_t row = 0; row < shape->batch * shape->heads; row++) {
      bool is_nan = row < shape->heads / shape->kv_heads;
      if (task.way != ALONE)
        check_row(task.of, r, 0, is_nan ? 1 : 2, row);
      else if (is_nan && r == 1)
        check_nan_row(&task, r, row);
      else
        check_row(task.of, r, r, 1, row);
    }
}

/* ---- rows that a type cannot hold -------------------------------------------------------------------------------- */

enum { TOKENS = 2, HEADS = 3, VALUE_DIM = 8, ROWS = TOKENS * HEADS, LOST = 5 };

typedef struct lost_task {
  const char *algorithm;
  bool has_sum;
  float values[2][ROWS * VALUE_DIM];
  uint16_t lse[ROWS], sum[ROWS]; /* rank 1's result */
} lost_task;

static void lose_a_row(world_rank *self) {
  lost_task *task = self->argument;
  float values[ROWS * VALUE_DIM], lse[ROWS] = {0}, other_lse[ROWS];
  banyan_partial in, out;
  banyan_combine_desc desc = {
      .size = sizeof desc, .tokens = TOKENS, .heads = HEADS, .value_dim = VALUE_DIM, .algorithm = task->algorithm};
  for (int i = 0; i < ROWS * VALUE_DIM; i++) values[i] = (float)(1 + i / VALUE_DIM + 2 * self->rank);
  lse[LOST] = 70000;
  banyan_partial_init(&in, values, BANYAN_F32, lse, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(&out, task->values[self->rank], BANYAN_F32, other_lse, BANYAN_F32, HEADS, VALUE_DIM);
  if (self->rank == 1) {
    out.lse = task->lse;
    out.stats_dtype = BANYAN_F16;
    out.stats_kind = task->has_sum ? BANYAN_STATS_MAX_SUM : BANYAN_STATS_LSE;
    out.sum = task->has_sum ? task->sum : NULL;
  }
  if (!world_ok(self, banyan_combine(self->comm, &desc, &in, &out), "combine") || !world_finish(self)) return;
  world_fails(self, BANYAN_ERR_DATA, 1,
              self->rank == 1 ? "rank 1 cannot hold the statistics of token 1, head 2 of its result"
                              : "rank 1 cannot hold the statistics of a row of its result");
  world_check(self, banyan_combine(self->comm, &desc, &in, &out) == BANYAN_ERR_DATA, "later calls do not fail");
  world_meet(self);
}

/* Only rank 1 uses the type. Both ranks fail, and rank 1 names the row. All other rows are correct. */
TEST_LOOP(rows_that_a_type_cannot_hold, 4) {
  if (!world_is_here(&world_emulated)) return;
  lost_task task = {.algorithm = _i % 2 ? "oneshot" : "ring", .has_sum = _i / 2};
  WORLD_RUN(lose_a_row, .nranks = 2, .on = &world_emulated, .argument = &task);
  for (int r = 0; r < 2; r++)
    for (int i = 0; i < LOST * VALUE_DIM; i++)
      ck_assert_msg(task.values[r][i] == (float)(2 + i / VALUE_DIM), "rank %d, value %d: %g", r, i,
                    (double)task.values[r][i]);
  for (int i = 0; i < LOST; i++) {
    double sum = task.has_sum ? load(task.sum, i, BANYAN_F16) : 1;
    double weight = load(task.lse, i, BANYAN_F16) + log(sum);
    ck_assert_msg(fabs(weight - log(2)) < 1e-3, "row %d weighs %g", i, weight);
  }
}

/* ---- values beyond the wire -------------------------------------------------------------------------------------- */

typedef struct saturating {
  banyan_dtype wire;
  const char *algorithm;
  float values[2][2 * VALUE_DIM], merged[2][2 * VALUE_DIM], lse[2][2];
} saturating;

/* Runs an operation twice, whose wire cannot hold two of this rank's values. */
static void count_saturated(world_rank *self, banyan_op *op, const char *what) {
  saturating *of = self->argument;
  banyan_op_info info = {.size = sizeof info};
  const float most = of->wire == BANYAN_F16 ? 65504 : of->wire == BANYAN_BF16 ? 0x1.fep+127f : 0x1.ep+127f;
  for (uint64_t run = 1; run < 3; run++) {
    if (!world_ok(self, banyan_start(op), "start") || !world_finish(self)) return;
    world_check(self, of->merged[self->rank][VALUE_DIM + 1] == -most, "%s: %g is not the least of the wire", what,
                (double)of->merged[self->rank][VALUE_DIM + 1]);
    world_ok(self, banyan_op_query(op, &info), "query");
    world_check(self, info.saturated == 2 * run * (uint64_t)(self->rank == 0), "%s: %llu values of %llu runs", what,
                (unsigned long long)info.saturated, (unsigned long long)run);
    world_meet(self);
  }
}

static void saturate(world_rank *self) {
  saturating *of = self->argument;
  float *values = of->values[self->rank], *merged = of->merged[self->rank];
  banyan_partial in, out;
  banyan_op *op = NULL;
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 2, .heads = 1, .value_dim = VALUE_DIM};
  banyan_allreduce_desc sum = BANYAN_ALLREDUCE_DESC_INIT;
  if (self->rank == 0) values[0] = 3.4e38f, values[VALUE_DIM + 1] = -3.4e38f, values[2] = INFINITY;
  of->lse[self->rank][0] = of->lse[self->rank][1] = self->rank ? -INFINITY : 0;
  desc.wire = sum.wire = of->wire, desc.algorithm = sum.algorithm = of->algorithm;
  banyan_partial_init(&in, values, BANYAN_F32, of->lse[self->rank], BANYAN_F32, 1, VALUE_DIM);
  banyan_partial_init(&out, merged, BANYAN_F32, NULL, BANYAN_F32, 1, VALUE_DIM);
  if (!world_ok(self, banyan_combine_init(self->comm, &desc, &in, &out, &op), "init")) return;
  count_saturated(self, op, "a combine");
  banyan_op_free(op);
  sum.tokens = 2, sum.dim = VALUE_DIM, sum.dtype = BANYAN_F32;
  if (!world_ok(self, banyan_allreduce_init(self->comm, &sum, values, merged, &op), "init")) return;
  count_saturated(self, op, "a sum");
  banyan_op_free(op);
}

TEST_LOOP(values_beyond_the_wire, 6) {
  saturating of = {.wire = (banyan_dtype[]){BANYAN_F16, BANYAN_BF16, BANYAN_E4M3}[_i % 3],
                   .algorithm = _i < 3 ? "oneshot" : "ring"};
  if (world_is_here(&world_emulated)) WORLD_RUN(saturate, .nranks = 2, .on = &world_emulated, .argument = &of);
}

int main(void) { return world_main(suite_of("device_numbers", WORLD_GUARD_S)); }
