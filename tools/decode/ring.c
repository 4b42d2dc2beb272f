/* SPDX-License-Identifier: Apache-2.0
 * Ring Attention on banyan_shift(). In step s a rank attends to the shard of rank - s, while that shard already travels
 * to the next rank. After nranks steps every rank has attended to all keys. Each rank begins with its own keys, so the
 * merge order differs between ranks, and results differ in the last bits. */
#include <math.h>

#include "tools/decode/decode.h"

/* Own shard -> A, then alternately A -> B and B -> A. */
enum { OWN_TO_A, A_TO_B, B_TO_A, SHIFTS };

typedef struct ring_state {
  uint64_t held;
  const decode_problem *problem;
  int32_t rank, nranks;
  banyan_attention_desc attention; /* k, v and seq_lens change from step to step */
  const void *own;
  size_t value_offset; /* where v begins in a shard */
  void *travelling[2];
  int32_t *lengths;             /* [nranks][batch] */
  banyan_partial visit;         /* attention to the current shard */
  float *n, *m, *d;             /* parts of that partial */
  float *sum_n, *sum_m, *sum_d; /* merged so far */
  float *out;
  banyan_op *shifts[SHIFTS];
} ring_state;

static void ring_destroy(void *opaque) {
  ring_state *state = opaque;
  for (int i = 0; i < SHIFTS; i++) banyan_op_free(state->shifts[i]);
}

static void ring_allocate(ring_state *state, const decode_task *task) {
  const decode_problem *problem = task->problem;
  uint64_t *held = &state->held;
  size_t rows = (size_t)problem->batch * (size_t)problem->heads, dim = (size_t)problem->head_dim;
  state->n = decode_take(held, rows * dim * sizeof(float));
  state->m = decode_take(held, rows * sizeof(float));
  state->d = decode_take(held, rows * sizeof(float));
  state->sum_n = decode_take(held, rows * dim * sizeof(float));
  state->sum_m = decode_take(held, rows * sizeof(float));
  state->sum_d = decode_take(held, rows * sizeof(float));
  state->lengths = decode_take(held, (size_t)state->nranks * (size_t)problem->batch * sizeof(int32_t));
  for (int32_t i = 0; i < 2 && i < state->nranks - 1; i++) state->travelling[i] = decode_take(held, task->shard->bytes);
}

static banyan_status ring_create(const decode_task *task, void **result) {
  const decode_problem *problem = task->problem;
  ring_state *state = *result = tool_new(1, sizeof *state);
  state->problem = problem;
  state->rank = task->world->rank;
  state->nranks = task->world->nranks;
  state->own = task->shard->block;
  state->value_offset = task->shard->bytes / 2;
  state->out = task->out;
  ring_allocate(state, task);
  for (int32_t r = 0; r < state->nranks; r++)
    decode_problem_shard_lengths(problem, r, state->nranks, state->lengths + (size_t)r * (size_t)problem->batch);
  state->visit = tool_partial_max_sum(state->n, state->m, state->d, problem->heads, problem->head_dim);
  state->attention = decode_shard_attention(problem, task->q, task->shard, task->lengths);
  const void *from[SHIFTS] = {state->own, state->travelling[0], state->travelling[1]};
  void *to[SHIFTS] = {state->travelling[0], state->travelling[1], state->travelling[0]};
  banyan_status status = BANYAN_OK;
  for (int i = 0; i < SHIFTS && i < state->nranks - 1 && status == BANYAN_OK; i++)
    status = banyan_shift_init(task->world->comm, from[i], to[i], task->shard->bytes, 1, &state->shifts[i]);
  return status;
}

/* Merges a visit: m = max(a.m, b.m), x = a.x 2^(a.m - m) + b.x 2^(b.m - m). The first visit is copied. */
static void ring_merge(ring_state *state, bool first) {
  size_t rows = (size_t)state->problem->batch * (size_t)state->problem->heads;
  size_t dim = (size_t)state->problem->head_dim;
  for (size_t r = 0; r < rows; r++) {
    float *to = state->sum_n + r * dim;
    const float *from = state->n + r * dim;
    float m = first || state->m[r] > state->sum_m[r] ? state->m[r] : state->sum_m[r];
    bool empty = m == -INFINITY;
    float keep = first || empty ? 0 : exp2f(state->sum_m[r] - m), add = empty ? 0 : exp2f(state->m[r] - m);
    if (first)
      for (size_t i = 0; i < dim; i++) to[i] = add * from[i];
    else
      for (size_t i = 0; i < dim; i++) to[i] = keep * to[i] + add * from[i];
    state->sum_d[r] = (first ? 0 : keep * state->sum_d[r]) + add * state->d[r];
    state->sum_m[r] = m;
  }
}

static void ring_finish(ring_state *state) {
  size_t rows = (size_t)state->problem->batch * (size_t)state->problem->heads;
  size_t dim = (size_t)state->problem->head_dim;
  for (size_t r = 0; r < rows; r++) {
    float factor = state->sum_d[r] > 0 ? 1 / state->sum_d[r] : 0;
    for (size_t i = 0; i < dim; i++) state->out[r * dim + i] = state->sum_n[r * dim + i] * factor;
  }
}

static banyan_status ring_run(void *opaque, int64_t *local_ns) {
  ring_state *state = opaque;
  banyan_status status = BANYAN_OK;
  *local_ns = 0;
  for (int32_t step = 0; step < state->nranks && status == BANYAN_OK; step++) {
    const char *block = step == 0 ? state->own : state->travelling[(step - 1) % 2];
    int32_t owner = (state->rank - step + state->nranks) % state->nranks;
    banyan_op *shift = state->shifts[step == 0 ? OWN_TO_A : step % 2 == 1 ? A_TO_B : B_TO_A];
    bool last = step == state->nranks - 1;
    state->attention.kv.k = block;
    state->attention.kv.v = block + state->value_offset;
    state->attention.kv.seq_lens = state->lengths + (size_t)owner * (size_t)state->problem->batch;
    if (!last && (status = banyan_start(shift)) != BANYAN_OK) break;
    int64_t start = tool_now_ns();
    status = banyan_attention(&state->attention, &state->visit);
    *local_ns += tool_now_ns() - start;
    if (status == BANYAN_OK) ring_merge(state, step == 0);
    banyan_status arrived = last ? BANYAN_OK : banyan_wait(shift);
    status = status == BANYAN_OK ? arrived : status;
  }
  if (status == BANYAN_OK) ring_finish(state);
  return status;
}

static void ring_query(void *opaque, decode_facts *facts) {
  ring_state *state = opaque;
  int32_t later = state->nranks > 1 ? state->nranks - 2 : 0; /* shifts after the first */
  *facts = (decode_facts){.extra_bytes = state->held};
  decode_facts_add(facts, state->shifts[OWN_TO_A], 1);
  decode_facts_add(facts, state->shifts[A_TO_B], (later + 1) / 2);
  decode_facts_add(facts, state->shifts[B_TO_A], later / 2);
}

const decode_method decode_method_ring = {
    .name = "ring", .create = ring_create, .run = ring_run, .query = ring_query, .destroy = ring_destroy};
