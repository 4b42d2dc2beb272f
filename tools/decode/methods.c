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

banyan_status decode_run_op(banyan_op *op) {
  banyan_status status = banyan_start(op);
  return status == BANYAN_OK ? banyan_wait(op) : status;
}

banyan_combine_desc decode_combine_desc(const decode_task *task) {
  const decode_settings *settings = task->settings;
  return (banyan_combine_desc){.size = sizeof(banyan_combine_desc),
                               .tokens = task->problem->batch,
                               .heads = task->problem->heads,
                               .value_dim = task->problem->head_dim,
                               .wire = settings->wire,
                               .scatter = settings->scatter,
                               .order = settings->order,
                               .algorithm = settings->algorithm};
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
  const decode_settings *settings = task->settings;
  tree_state *state = *result = tool_new(1, sizeof *state);
  size_t rows = (size_t)problem->batch * (size_t)problem->heads;
  float *values = decode_take(&state->held, rows * (size_t)problem->head_dim * sizeof *values);
  float *max = decode_take(&state->held, rows * sizeof *max);
  float *sum = decode_take(&state->held, rows * sizeof *sum);
  state->own = tool_partial_max_sum(values, max, sum, problem->heads, problem->head_dim);
  state->attention = decode_shard_attention(problem, task->q, task->shard, task->lengths);
  banyan_combine_desc desc = decode_combine_desc(task);
  tool_part part =
      tool_part_of_rank(settings->scatter, problem->batch, problem->heads, task->world->rank, task->world->nranks);
  banyan_partial out = tool_partial_result(task->out, part.heads, problem->head_dim);
  bool nothing = settings->scatter == BANYAN_SCATTER_ROOT && task->world->rank != 0;
  return banyan_combine_init(task->world->comm, &desc, &state->own, nothing ? NULL : &out, &state->combine);
}

static banyan_status tree_run(void *opaque, int64_t *local_ns) {
  tree_state *state = opaque;
  int64_t start = tool_now_ns();
  banyan_status status = banyan_attention(&state->attention, &state->own);
  *local_ns = tool_now_ns() - start;
  return status == BANYAN_OK ? decode_run_op(state->combine) : status;
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
