/* SPDX-License-Identifier: Apache-2.0
 * The three all-reduces of the Tree Attention paper, on banyan_combine():
 *   1. M = max over ranks of m
 *   2. D = sum over ranks of d 2^(m - M)
 *   3. N = sum over ranks of n 2^(m - M);  out = N / D
 * A combine of partials with equal maxima is a sum. A row with d = 0 counts as empty. In (3) only the numerators are
 * used, so every rank passes D as d, which also keeps the values in the range of a 16-bit wire format. */
#include <math.h>

#include "tools/decode/decode.h"

enum { MAXIMA, DENOMINATORS, NUMERATORS, REDUCTIONS };

typedef struct allreduce3_state {
  uint64_t held;
  size_t rows, dim;
  banyan_attention_desc attention;
  banyan_partial own;
  float *n, *m, *d;             /* parts of `own` */
  float *zero;                  /* the maximum that all ranks pass in (2) and (3) */
  float *max, *max_sum;         /* result of (1) */
  float *den, *den_max;         /* result of (2): den * 2^den_max */
  float *all_n, *all_m, *all_d; /* result of (3): all_n * 2^all_m */
  float *out;
  banyan_op *ops[REDUCTIONS];
} allreduce3_state;

static void allreduce3_destroy(void *opaque) {
  allreduce3_state *state = opaque;
  for (int i = 0; i < REDUCTIONS; i++) banyan_op_free(state->ops[i]);
}

static void allreduce3_allocate(allreduce3_state *state) {
  float **const statistics[] = {&state->m,   &state->d,       &state->zero,  &state->max,  &state->max_sum,
                                &state->den, &state->den_max, &state->all_m, &state->all_d};
  state->n = decode_take(&state->held, state->rows * state->dim * sizeof(float));
  state->all_n = decode_take(&state->held, state->rows * state->dim * sizeof(float));
  for (size_t i = 0; i < sizeof statistics / sizeof statistics[0]; i++)
    *statistics[i] = decode_take(&state->held, state->rows * sizeof(float));
}

static banyan_status allreduce3_plan(allreduce3_state *state, const decode_task *task) {
  const decode_problem *problem = task->problem;
  int32_t heads = problem->heads, dim = problem->head_dim;
  banyan_combine_desc desc = task->settings->combine;
  banyan_partial in[REDUCTIONS] = {tool_partial_max_sum(NULL, state->m, state->d, heads, 0),
                                   tool_partial_max_sum(NULL, state->zero, state->d, heads, 0),
                                   tool_partial_max_sum(state->n, state->zero, state->den, heads, dim)};
  banyan_partial out[REDUCTIONS] = {tool_partial_max_sum(NULL, state->max, state->max_sum, heads, 0),
                                    tool_partial_max_sum(NULL, state->den_max, state->den, heads, 0),
                                    tool_partial_max_sum(state->all_n, state->all_m, state->all_d, heads, dim)};
  banyan_status status = BANYAN_OK;
  desc.scatter = BANYAN_SCATTER_NONE;
  for (int i = 0; i < REDUCTIONS && status == BANYAN_OK; i++) {
    desc.value_dim = i == NUMERATORS ? dim : 0;
    status = banyan_combine_init(task->world->comm, &desc, &in[i], &out[i], &state->ops[i]);
  }
  return status;
}

static banyan_status allreduce3_create(const decode_task *task, void **result) {
  allreduce3_state *state = *result = tool_new(1, sizeof *state);
  state->rows = (size_t)task->problem->batch * (size_t)task->problem->heads;
  state->dim = (size_t)task->problem->head_dim;
  state->out = task->out;
  allreduce3_allocate(state);
  state->own = tool_partial_max_sum(state->n, state->m, state->d, task->problem->heads, task->problem->head_dim);
  state->attention = decode_shard_attention(task->problem, task->q, task->shard, task->lengths);
  return allreduce3_plan(state, task);
}

/* Rescales n and d of this rank to the common maximum. */
static void rescale(allreduce3_state *state) {
  for (size_t r = 0; r < state->rows; r++) {
    float factor = state->m[r] == -INFINITY ? 0 : exp2f(state->m[r] - state->max[r]);
    state->d[r] *= factor;
    for (size_t i = 0; i < state->dim; i++) state->n[r * state->dim + i] *= factor;
  }
}

static void finish(allreduce3_state *state) {
  for (size_t r = 0; r < state->rows; r++) {
    float factor = state->den[r] > 0 ? exp2f(state->all_m[r]) / state->den[r] : 0;
    for (size_t i = 0; i < state->dim; i++) state->out[r * state->dim + i] = state->all_n[r * state->dim + i] * factor;
  }
}

static banyan_status allreduce3_run(void *opaque, int64_t *local_ns) {
  allreduce3_state *state = opaque;
  int64_t start = tool_now_ns();
  banyan_status status = banyan_attention(&state->attention, &state->own);
  *local_ns = tool_now_ns() - start;
  if (status == BANYAN_OK) status = tool_run(state->ops[MAXIMA]);
  if (status == BANYAN_OK) {
    rescale(state);
    status = tool_run(state->ops[DENOMINATORS]);
  }
  if (status == BANYAN_OK) {
    for (size_t r = 0; r < state->rows; r++)
      state->den[r] = state->den[r] > 0 ? state->den[r] * exp2f(state->den_max[r]) : 0;
    status = tool_run(state->ops[NUMERATORS]);
  }
  if (status == BANYAN_OK) finish(state);
  return status;
}

static void allreduce3_query(void *opaque, decode_facts *facts) {
  allreduce3_state *state = opaque;
  *facts = (decode_facts){.extra_bytes = state->held};
  for (int i = REDUCTIONS - 1; i >= 0; i--) { /* the largest first: its algorithm and reason are reported */
    decode_facts_add(facts, state->ops[i], 1);
  }
}

const decode_method decode_method_allreduce3 = {.name = "allreduce3",
                                                .uses_wire = true,
                                                .same_bits = true,
                                                .create = allreduce3_create,
                                                .run = allreduce3_run,
                                                .query = allreduce3_query,
                                                .destroy = allreduce3_destroy};
