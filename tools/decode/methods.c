/* SPDX-License-Identifier: Apache-2.0
 * The methods that banyan-decode compares; the tree is the library's own combine. */
#include "tools/decode/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *decode_memory_get(decode_memory *memory, size_t bytes) {
  void *block = memory->count < DECODE_BLOCKS_MAX ? tool_allocate(bytes) : NULL;
  if (block == NULL) {
    memory->failed = true;
    return NULL;
  }
  memory->blocks[memory->count++] = block;
  memory->bytes += bytes;
  return block;
}

void decode_memory_release(decode_memory *memory) {
  for (int i = 0; i < memory->count; i++) free(memory->blocks[i]);
  *memory = (decode_memory){.count = 0};
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
  decode_memory memory;
  banyan_attention_desc attention;
  banyan_partial own;
  banyan_op *combine;
} tree_state;

static void tree_destroy(void *opaque) {
  tree_state *state = opaque;
  if (state != NULL) {
    banyan_op_free(state->combine);
    decode_memory_release(&state->memory);
    free(state);
  }
}

static banyan_status tree_create(const decode_task *task, void **result) {
  const decode_problem *problem = task->problem;
  const decode_settings *settings = task->settings;
  tree_state *state = calloc(1, sizeof *state);
  if (state == NULL) return BANYAN_ERR_MEMORY;
  size_t rows = (size_t)problem->batch * (size_t)problem->heads;
  float *values = decode_memory_get(&state->memory, rows * (size_t)problem->head_dim * sizeof *values);
  float *max = decode_memory_get(&state->memory, rows * sizeof *max);
  float *sum = decode_memory_get(&state->memory, rows * sizeof *sum);
  if (state->memory.failed) {
    tree_destroy(state);
    return BANYAN_ERR_MEMORY;
  }
  state->own = tool_partial_max_sum(values, max, sum, problem->heads, problem->head_dim);
  state->attention = decode_shard_attention(problem, task->q, task->shard, task->lengths);
  banyan_combine_desc desc = decode_combine_desc(task);
  tool_part part =
      tool_part_of_rank(settings->scatter, problem->batch, problem->heads, task->world->rank, task->world->nranks);
  banyan_partial out = tool_partial_result(task->out, part.heads, problem->head_dim);
  bool nothing = settings->scatter == BANYAN_SCATTER_ROOT && task->world->rank != 0;
  banyan_status status =
      banyan_combine_init(task->world->comm, &desc, &state->own, nothing ? NULL : &out, &state->combine);
  if (status != BANYAN_OK) {
    tree_destroy(state);
    return status;
  }
  *result = state;
  return BANYAN_OK;
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
  *facts = (decode_facts){.extra_bytes = state->memory.bytes};
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
