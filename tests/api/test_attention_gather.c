/* SPDX-License-Identifier: Apache-2.0
 * Attention that gathers q first, on the host: several operations at once have the bits of attention to a q that is
 * whole. Fields that do not fit are named. */
#include <check.h>
#include <stdio.h>

#include "tests/api/attention_problem.h"
#include "tests/support/lone.h"
#include "tests/support/suite.h"

enum { ROWS_MAX = 3 * 80, VALUES_MAX = 512 };

/* A rank has q whole, its own heads of it, and memory for the q that is gathered. */
typedef struct share {
  problem_shape shape;
  problem_shard shard;
  uint16_t *whole, *mine, *gathered;
  int32_t counts[WORLD_RANKS_MAX];
  banyan_heads_desc gather;
  banyan_attention_desc desc; /* with `gather` set */
  banyan_combine_desc combine;
} share;

static void deal(world_random *random, int32_t heads, int32_t nranks, int32_t *counts) {
  int32_t left = heads;
  for (int32_t r = 0; r < nranks; r++) {
    counts[r] = r == nranks - 1 ? left : random_below(random, left + 1);
    left -= counts[r];
  }
}

static void fill(share *of, world_random *random, int32_t rank) {
  const problem_shape *shape = &of->shape;
  int32_t first = 0, number = of->counts[rank], dim = shape->head_dim;
  for (int32_t r = 0; r < rank; r++) first += of->counts[r];
  for (int32_t i = 0; i < shape->batch * shape->heads * dim; i++)
    of->whole[i] = problem_bits(shape->dtype, 2 * random_unit(random));
  for (int32_t b = 0; b < shape->batch; b++)
    memcpy(of->mine + b * number * dim, of->whole + (b * shape->heads + first) * dim,
           (size_t)(number * dim) * sizeof *of->mine);
  memset(of->gathered, 0xff, (size_t)(shape->batch * shape->heads * (dim + 8)) * sizeof *of->gathered);
}

/* `random` is the same on all ranks; `own` is this rank's. Rows of the gathered q lie apart on some ranks. */
static void make(share *made, world_random *random, world_random *own, int32_t rank, int32_t nranks) {
  made->shape = problem_shape_random(random);
  const problem_shape *shape = &made->shape;
  size_t elements = (size_t)(shape->batch * shape->heads * (shape->head_dim + 8));
  deal(random, shape->heads, nranks, made->counts);
  made->whole = calloc(elements, sizeof *made->whole);
  made->mine = calloc(elements, sizeof *made->mine);
  made->gathered = calloc(elements, sizeof *made->gathered);
  problem_shard_make(own, shape, made->whole, &made->shard);
  made->gather = (banyan_heads_desc){.size = sizeof made->gather,
                                     .tokens = shape->batch,
                                     .heads = shape->heads,
                                     .dim = shape->head_dim,
                                     .dtype = shape->dtype,
                                     .counts = made->counts};
  made->desc = made->shard.desc;
  made->desc.q = made->gathered;
  made->desc.q_mine = made->mine;
  made->desc.gather = &made->gather;
  if (rank % 2) {
    made->desc.q_head_stride = shape->head_dim + 8;
    made->desc.q_batch_stride = shape->heads * made->desc.q_head_stride;
  }
  made->combine = (banyan_combine_desc){
      .size = sizeof made->combine, .tokens = shape->batch, .heads = shape->heads, .value_dim = shape->value_dim};
}

static void release(share *of) {
  free(of->whole);
  free(of->mine);
  free(of->gathered);
}

typedef struct result {
  float values[ROWS_MAX * VALUES_MAX], lse[ROWS_MAX];
  banyan_partial partial;
} result;

static result *take(const problem_shape *shape) {
  result *made = calloc(1, sizeof *made);
  if (!made) abort();
  banyan_partial_init(&made->partial, made->values, BANYAN_F32, made->lse, BANYAN_F32, shape->heads, shape->value_dim);
  return made;
}

static bool same(world_rank *self, const result *a, const result *b, const char *what, int run) {
  return world_check(self,
                     memcmp(a->values, b->values, sizeof a->values) == 0 && memcmp(a->lse, b->lse, sizeof a->lse) == 0,
                     "%s, run %d: other bits than with a whole q", what, run);
}

/* Several operations are started before the first is waited for, and a call comes between. */
static void queue(world_rank *self) {
  enum { OPS = 3 };
  world_random random = {world_seed() * 17}, own = {(uint64_t)self->rank + 5};
  share of[OPS];
  result *expected[OPS], *found[OPS];
  banyan_op *ops[OPS] = {NULL};
  bool good = true;
  for (int i = 0; i < OPS; i++) {
    make(&of[i], &random, &own, self->rank, self->nranks);
    expected[i] = take(&of[i].shape);
    found[i] = take(&of[i].shape);
    fill(&of[i], &random, self->rank);
    good =
        good &&
        world_ok(self,
                 banyan_attention_combine_init(self->comm, &of[i].desc, &of[i].combine, &found[i]->partial, &ops[i]),
                 "init") &&
        world_ok(self, banyan_attention_combine(self->comm, &of[i].shard.desc, &of[i].combine, &expected[i]->partial),
                 "whole");
  }
  for (int i = 0; i < OPS && good; i++) good = world_ok(self, banyan_start(ops[i]), "start");
  good = good && world_ok(self, banyan_barrier(self->comm), "barrier");
  for (int i = OPS - 1; i >= 0 && good; i--)
    good = world_ok(self, banyan_wait(ops[i]), "wait") && same(self, expected[i], found[i], "queue", i);
  for (int i = 0; i < OPS; i++) {
    banyan_op_free(ops[i]);
    free(expected[i]);
    free(found[i]);
    release(&of[i]);
  }
}

TEST(operations_in_a_queue) { WORLD_RUN(queue, .nranks = 4); }

/* ---- rejections -------------------------------------------------------------------------------------------------- */

#define CASES                                                                                        \
  CASE("desc.gather has tokens 7, and batch is ", of.gather.tokens = 7)                              \
  CASE("desc.gather has heads 1000, and heads is ", of.gather.heads = 1000)                          \
  CASE("desc.gather has dim 65, and head_dim is ", of.gather.dim = 65)                               \
  CASE("desc.gather has dtype 1, and q_dtype is ", of.gather.dtype = BANYAN_F32)                     \
  CASE("desc.gather has all_token_stride 3, and q_batch_stride is ", of.gather.all_token_stride = 3) \
  CASE("desc.gather.size is 7", of.gather.size = 7)                                                  \
  CASE("desc.gather.stream", of.gather.stream = &of)                                                 \
  CASE("mine is NULL", of.desc.q_mine = NULL)                                                        \
  CASE("desc.counts[0] is -1", of.counts[0] = -1)

TEST(wrong_fields_are_named) {
  banyan_comm *comm = lone_comm(NULL);
  world_random random = {9}, own = {10};
  share of;
  make(&of, &random, &own, 0, 1);
  fill(&of, &random, 0);
  result *out = take(&of.shape);
  share good = of;
#define CASE(named, ...)                                                                                          \
  __VA_ARGS__;                                                                                                    \
  ck_assert_int_eq(banyan_attention_combine(comm, &of.desc, &of.combine, &out->partial), BANYAN_ERR_ARGUMENT);    \
  ck_assert_msg(strstr(banyan_last_error(), named), "the text does not name %s: %s", named, banyan_last_error()); \
  of = good;
  CASES
#undef CASE
  banyan_op *op = NULL;
  ck_assert_int_eq(banyan_attention(&of.desc, &out->partial), BANYAN_ERR_ARGUMENT);
  ck_assert_msg(strstr(banyan_last_error(), "desc.gather"), "%s", banyan_last_error());
  ck_assert_int_eq(banyan_attention_init(comm, &of.desc, &out->partial, &op), BANYAN_ERR_ARGUMENT);
  ck_assert_msg(strstr(banyan_last_error(), "desc.gather"), "%s", banyan_last_error());
  ck_assert_msg(banyan_attention_combine(comm, &of.desc, &of.combine, &out->partial) == BANYAN_OK, "%s",
                banyan_last_error());
  free(out);
  release(&of);
  banyan_comm_destroy(comm);
}

int main(void) { return world_main(suite_of("attention gather", 120)); }
