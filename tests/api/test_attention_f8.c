/* SPDX-License-Identifier: Apache-2.0
 * Attention whose results are values of eight bits, alone and merged over 1 to 9 ranks, which are processes or threads:
 * random shapes, shards, conventions and numbers of tokens, against double precision (attention_problem.h, oracle.h).
 *
 * Every rank draws the shards of all, so that it knows what its result should be. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBLEM_TAKE(bytes) aligned_alloc(64, ((bytes) + 63) / 64 * 64)
#include "tests/api/attention_problem.h"
#include "tests/support/oracle.h"
#include "tests/support/suite.h"
#include "tests/support/world.h"

enum { RANKS_MAX = 9, BATCH = PROBLEM_BATCH_MAX, HEADS_MAX = 8, DIM_MAX = ORACLE_DIM_MAX, GAP = 3, CASES = 25 };
enum { VALUES_MAX = BATCH * HEADS_MAX * (DIM_MAX + GAP), STATS_MAX = BATCH * HEADS_MAX };

typedef struct call {
  problem_shape shape;
  uint16_t *q;
  problem_shard shards[RANKS_MAX];
  banyan_combine_desc combine;
  int32_t tokens; /* tokens of the run */
} call;

/* A result of eight bits. */
typedef struct result {
  banyan_partial partial;
  uint8_t values[VALUES_MAX];
  float lse[STATS_MAX], sum[STATS_MAX], scales[2 * HEADS_MAX];
} result;

/* ---- making ------------------------------------------------------------------------------------------------------ */

static void call_make(call *made, world_random *random, int32_t nranks) {
  memset(made, 0, sizeof *made);
  problem_shape *shape = &made->shape;
  shape->batch = 1 + random_below(random, BATCH);
  shape->kv_heads = 1 + random_below(random, 2);
  shape->heads = shape->kv_heads * (1 + random_below(random, HEADS_MAX / 2));
  shape->head_dim = shape->value_dim = 1 + random_below(random, DIM_MAX);
  shape->dtype = random_one_in(random, 2) ? BANYAN_BF16 : BANYAN_F16;
  shape->keys_max = 1 + random_below(random, 60);
  shape->page_keys = random_one_in(random, 2) ? 1 << random_below(random, 5) : 0;
  made->q = problem_queries(random, shape);
  for (int32_t r = 0; r < nranks; r++) problem_shard_make(random, shape, made->q, &made->shards[r]);
  made->tokens = random_one_in(random, 2) ? shape->batch : random_below(random, shape->batch + 1);
  made->combine = (banyan_combine_desc){.size = sizeof made->combine,
                                        .tokens = shape->batch,
                                        .heads = shape->heads,
                                        .value_dim = shape->value_dim,
                                        .wire = BANYAN_F32,
                                        .scatter = (banyan_scatter)random_below(random, 4),
                                        .order = (banyan_order)random_below(random, 2)};
}

static void call_free(call *made, int32_t nranks) {
  for (int32_t r = 0; r < nranks; r++) {
    free(made->shards[r].k);
    free(made->shards[r].v);
    free(made->shards[r].pages);
  }
  free(made->q);
}

static void result_make(result *made, world_random *random, int32_t tokens, int32_t heads, int32_t dim) {
  memset(made, 0xa5, sizeof *made);
  banyan_partial *p = &made->partial;
  banyan_dtype dtype = random_one_in(random, 2) ? BANYAN_E4M3 : BANYAN_E5M2;
  banyan_partial_init(p, made->values, dtype, made->lse, BANYAN_F32, heads, dim);
  int64_t row = dim + random_below(random, GAP + 1);
  bool heads_first = random_one_in(random, 2);
  p->values_head_stride = heads_first ? row * tokens : row;
  p->values_token_stride = heads_first ? row : row * heads;
  for (int32_t h = 0; h < 2 * HEADS_MAX; h++) made->scales[h] = (float)exp2(2 * random_unit(random) - 3);
  p->values_scale = random_one_in(random, 3) ? NULL : made->scales;
  p->values_scale_stride = random_below(random, 3);
  p->base = random_one_in(random, 2) ? BANYAN_BASE_2 : BANYAN_BASE_E;
  if (random_one_in(random, 2)) {
    p->stats_kind = BANYAN_STATS_MAX_SUM;
    p->sum = made->sum;
    if (random_one_in(random, 2)) p->values_kind = BANYAN_VALUES_NUMERATOR;
  }
}

/* ---- the expected rows ------------------------------------------------------------------------------------------- */

static oracle_row expected_row(const problem_shard *shards, int32_t count, int32_t token, int32_t head, int32_t dim) {
  problem_row row;
  oracle_row made = {.is_empty = true};
  problem_row_make(shards, count, token, head, &row);
  if (row.sum <= 0) return made;
  made.is_empty = false;
  made.m = row.max * 1.4426950408889634;
  made.d = row.sum;
  for (int32_t i = 0; i < dim; i++) {
    made.o[i] = row.values[i] / row.sum;
    made.mean[i] = row.weight[i] / row.sum;
  }
  return made;
}

/* Rows of `out`, from (token[0], head[0]) on, are those of attention over the shards. */
static bool rows_hold(world_rank *self, const call *call, const problem_shard *shards, int32_t count, const result *out,
                      const int32_t token[2], const int32_t head[2], const char *what) {
  int32_t dim = call->shape.value_dim;
  for (int32_t t = 0; t < token[1]; t++)
    for (int32_t h = 0; h < head[1]; h++) {
      oracle_row expected = expected_row(shards, count, token[0] + t, head[0] + h, dim);
      const char *wrong = oracle_compare(&out->partial, t, h, dim, BANYAN_F32, 0, &expected);
      if (!world_check(self, !wrong, "%s, %d ranks, row (%d, %d) of dim %d, type %d, scatter %d: %s", what, count, t, h,
                       dim, (int)out->partial.values_dtype, (int)call->combine.scatter, wrong ? wrong : ""))
        return false;
    }
  return true;
}

/* Bytes beside rows are as they were. */
static bool gaps_hold(world_rank *self, const result *out, int32_t tokens, int32_t heads, int32_t dim) {
  uint8_t left[VALUES_MAX];
  const banyan_partial *p = &out->partial;
  memcpy(left, out->values, sizeof left);
  for (int32_t t = 0; t < tokens; t++)
    for (int32_t h = 0; h < heads; h++)
      memset(left + t * p->values_token_stride + h * p->values_head_stride, 0xa5, (size_t)dim);
  for (int32_t i = 0; i < VALUES_MAX; i++)
    if (!world_check(self, left[i] == 0xa5, "byte %d beside the rows was written", i)) return false;
  return true;
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static bool attend_alone(world_rank *self, const call *call, world_random *random) {
  static _Thread_local result out;
  const problem_shape *shape = &call->shape;
  result_make(&out, random, shape->batch, shape->heads, shape->value_dim);
  return world_ok(self, banyan_attention(&call->shards[self->rank].desc, &out.partial), "attention") &&
         rows_hold(self, call, &call->shards[self->rank], 1, &out, (int32_t[]){0, shape->batch},
                   (int32_t[]){0, shape->heads}, "attention") &&
         gaps_hold(self, &out, shape->batch, shape->heads, shape->value_dim);
}

/* Finds the first row, and how many the rank has of a run of so many tokens. */
static void own_rows(const call *call, int32_t tokens, int32_t rank, int32_t nranks, int32_t token[2],
                     int32_t head[2]) {
  token[0] = head[0] = 0;
  token[1] = tokens;
  head[1] = call->shape.heads;
  if (call->combine.scatter == BANYAN_SCATTER_HEADS) banyan_split(head[1], nranks, rank, &head[0], &head[1]);
  if (call->combine.scatter == BANYAN_SCATTER_TOKENS) banyan_split(token[1], nranks, rank, &token[0], &token[1]);
  if (call->combine.scatter == BANYAN_SCATTER_ROOT && rank != call->combine.root) token[1] = 0;
}

static bool attend_together(world_rank *self, call *call, world_random *random, bool by_operation) {
  static _Thread_local result out;
  int32_t token[2], head[2], most[2];
  own_rows(call, call->shape.batch, self->rank, self->nranks, most, head);
  result_make(&out, random, most[1] ? most[1] : 1, head[1] ? head[1] : 1, call->shape.value_dim);
  own_rows(call, call->tokens, self->rank, self->nranks, token, head);
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &call->tokens};
  banyan_combine_desc combine = call->combine;
  combine.valid = &valid;
  const problem_shard *shard = &call->shards[self->rank];
  bool has_rows = combine.scatter != BANYAN_SCATTER_ROOT || self->rank == combine.root;
  if (!by_operation)
    return world_ok(self, banyan_attention_combine(self->comm, &shard->desc, &combine, has_rows ? &out.partial : NULL),
                    "call") &&
           rows_hold(self, call, call->shards, self->nranks, &out, token, head, "call") &&
           gaps_hold(self, &out, token[1], head[1], call->shape.value_dim);
  banyan_op *op = NULL;
  bool good =
      world_ok(self,
               banyan_attention_combine_init(self->comm, &shard->desc, &combine, has_rows ? &out.partial : NULL, &op),
               "init") &&
      world_ok(self, banyan_start(op), "start") && world_ok(self, banyan_wait(op), "wait") &&
      rows_hold(self, call, call->shards, self->nranks, &out, token, head, "operation") &&
      gaps_hold(self, &out, token[1], head[1], call->shape.value_dim);
  banyan_op_free(op);
  return good;
}

static void attend(world_rank *self) {
  world_random common = {world_seed() * 1000003 + (uint64_t)self->nranks}, own = {world_seed() + (uint64_t)self->rank};
  static _Thread_local call call;
  bool good = true;
  for (int i = 0; i < CASES && good; i++) {
    call_make(&call, &common, self->nranks);
    call.combine.root = random_below(&common, self->nranks);
    if (call.combine.scatter != BANYAN_SCATTER_ROOT) call.combine.root = 0;
    good = attend_alone(self, &call, &own) && attend_together(self, &call, &own, i % 2);
    call_free(&call, self->nranks);
  }
}

TEST_LOOP(processes_attend, RANKS_MAX) { WORLD_RUN(attend, .nranks = 1 + _i, .processes = true); }
TEST_LOOP(threads_attend, 3) { WORLD_RUN(attend, .nranks = 2 + 3 * _i); }

TEST(nodes_attend_in_slices) {
  if (!world_has_network()) return;
  setenv("BANYAN_SLICES", "3", 1);
  world_be_nodes("a,a,b,b,c");
  WORLD_RUN(attend, .nranks = 5, .processes = true);
}

int main(void) { return world_main(suite_of("attention_f8", WORLD_GUARD_S)); }
