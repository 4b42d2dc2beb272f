/* SPDX-License-Identifier: Apache-2.0
 * Attention and the combine of its rows as one operation. Between nodes, `overlap` may run the batch in slices: one is
 * combined while the next is attended to. `fused` never does, because it does not say how long attention will be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/decode/decode.h"

typedef struct fused_state {
  banyan_op *op;
  uint64_t rows_bytes; /* partials that the operation holds */
} fused_state;

static void fused_destroy(void *opaque) {
  fused_state *state = opaque;
  if (state == NULL) return;
  banyan_op_free(state->op);
  free(state);
}

static banyan_status make(const decode_task *task, int32_t keys_max, void **result) {
  const decode_problem *problem = task->problem;
  const decode_settings *settings = task->settings;
  banyan_attention_desc attention = decode_shard_attention(problem, task->q, task->shard, task->lengths);
  banyan_combine_desc desc = decode_combine_desc(task);
  tool_part part =
      tool_part_of_rank(settings->scatter, problem->batch, problem->heads, task->world->rank, task->world->nranks);
  banyan_partial out = tool_partial_result(task->out, part.heads, problem->head_dim);
  bool nothing = settings->scatter == BANYAN_SCATTER_ROOT && task->world->rank != 0;
  fused_state *state = calloc(1, sizeof *state);
  if (state == NULL) return BANYAN_ERR_MEMORY;
  attention.keys_max = keys_max;
  state->rows_bytes = (uint64_t)problem->batch * (uint64_t)problem->heads * (uint64_t)(problem->head_dim + 2) * 4;
  *result = state;
  return banyan_attention_combine_init(task->world->comm, &attention, &desc, nothing ? NULL : &out, &state->op);
}

static banyan_status fused_create(const decode_task *task, void **result) { return make(task, 0, result); }

static banyan_status overlap_create(const decode_task *task, void **result) {
  return make(task, task->shard->capacity, result);
}

static banyan_status fused_run(void *state, int64_t *local_ns) {
  *local_ns = 0;
  return decode_run_op(((fused_state *)state)->op);
}

/* The operation says how many slices there are in its description alone. */
static int32_t slices_of(const banyan_op *op) {
  char text[16384];
  banyan_op_describe(op, text, sizeof text);
  const char *at = strstr(text, "\nin ");
  int slices = 1;
  return at != NULL && sscanf(at, "\nin %d slices", &slices) == 1 ? slices : 1;
}

static void fused_query(void *opaque, decode_facts *facts) {
  const fused_state *state = opaque;
  *facts = (decode_facts){.extra_bytes = state->rows_bytes, .slices = slices_of(state->op)};
  decode_facts_add(facts, state->op, 1);
}

const decode_method decode_method_fused = {.name = "fused",
                                           .scatters = true,
                                           .uses_wire = true,
                                           .same_bits = true,
                                           .is_one = true,
                                           .create = fused_create,
                                           .run = fused_run,
                                           .query = fused_query,
                                           .destroy = fused_destroy};

const decode_method decode_method_overlap = {.name = "overlap",
                                             .scatters = true,
                                             .uses_wire = true,
                                             .same_bits = true,
                                             .is_one = true,
                                             .create = overlap_create,
                                             .run = fused_run,
                                             .query = fused_query,
                                             .destroy = fused_destroy};
