/* SPDX-License-Identifier: Apache-2.0
 * The method tree, which is local attention and one combine, and helpers that all methods share. */
#include "tools/decode/decode.h"

#include <stdio.h>
#include <string.h>

void *decode_take(uint64_t *held, size_t bytes) {
  *held += bytes;
  return tool_take(bytes);
}

void decode_facts_add(decode_facts *facts, const banyan_op *op, int32_t runs) {
  banyan_op_info info = {.size = sizeof info};
  if (op == NULL || banyan_op_query(op, &info) != BANYAN_OK) return;
  if (facts->algorithm[0] == '\0') {
    snprintf(facts->algorithm, sizeof facts->algorithm, "%s", info.algorithm);
    snprintf(facts->reason, sizeof facts->reason, "%s", info.reason);
  } else if (strstr(facts->algorithm, info.algorithm) == NULL) {
    size_t length = strlen(facts->algorithm);
    snprintf(facts->algorithm + length, sizeof facts->algorithm - length, "+%s", info.algorithm);
  }
  facts->roundings += info.roundings;
  facts->bytes_sent += info.bytes_sent * (uint64_t)runs;
  facts->extra_bytes += info.arena_bytes;
  facts->arena_bytes += info.arena_bytes;
}

/* ---- tree -------------------------------------------------------------------------------------------------------- */

typedef struct tree_state {
  uint64_t held;
  banyan_attention_desc attention;
  banyan_partial own;
  banyan_op *combine;
} tree_state;

static void tree_destroy(void *opaque) { banyan_op_free(((tree_state *)opaque)->combine); }

static banyan_status tree_create(const decode_task *task, void **result) {
  const decode_problem *problem = task->problem;
  const banyan_combine_desc *desc = &task->settings->combine;
  const tool_world *world = task->world;
  tree_state *state = *result = tool_new(1, sizeof *state);
  size_t rows = (size_t)problem->batch * (size_t)problem->heads;
  float *values = decode_take(&state->held, rows * (size_t)problem->head_dim * sizeof *values);
  float *max = decode_take(&state->held, rows * sizeof *max);
  float *sum = decode_take(&state->held, rows * sizeof *sum);
  state->own = tool_partial_max_sum(values, max, sum, problem->heads, problem->head_dim);
  state->attention = decode_shard_attention(problem, task->q, task->shard, task->lengths);
  banyan_partial out;
  bool receives = tool_partial_result(desc, world->rank, world->nranks, task->out, &out);
  return banyan_combine_init(world->comm, desc, &state->own, receives ? &out : NULL, &state->combine);
}

static banyan_status tree_run(void *opaque, int64_t *local_ns) {
  tree_state *state = opaque;
  int64_t start = tool_now_ns();
  banyan_status status = banyan_attention(&state->attention, &state->own);
  *local_ns = tool_now_ns() - start;
  return status == BANYAN_OK ? tool_run(state->combine) : status;
}

static void tree_query(void *opaque, decode_facts *facts) {
  tree_state *state = opaque;
  *facts = (decode_facts){.extra_bytes = state->held};
  decode_facts_add(facts, state->combine, 1);
}

const decode_method decode_method_tree = {.name = "tree",
                                          .scatters = true,
                                          .uses_wire = true,
                                          .same_bits = true,
                                          .create = tree_create,
                                          .run = tree_run,
                                          .query = tree_query,
                                          .destroy = tree_destroy};
