/* SPDX-License-Identifier: Apache-2.0
 * Attention and the combine of its rows as one operation. Between nodes, `overlap` may run the batch in slices: one
 * slice is combined while attention of the next runs. `fused` never runs slices, because it passes no expected
 * attention time. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/decode/decode.h"

typedef struct fused_state {
  banyan_op *op;
  uint64_t rows_bytes;          /* size of the partials in the operation */
  float *bounds, *error, *read; /* with epsilon */
  const float *out;
  int32_t rows, result_rows, dim;
} fused_state;

static void fused_destroy(void *opaque) { banyan_op_free(((fused_state *)opaque)->op); }

/* Makes the codes of pages of 16 keys, by which attention skips pages. */
static banyan_status prune(const decode_task *task, banyan_attention_desc *attention, fused_state *state) {
  enum { PAGE_KEYS = 16 };
  const decode_problem *problem = task->problem;
  int32_t pages = task->shard->capacity / PAGE_KEYS + 1;
  size_t floats = 2 + PAGE_KEYS * (2 + ((size_t)problem->head_dim + 7) / 8 * 2);
  state->rows = problem->batch * problem->heads;
  state->bounds = tool_new((size_t)problem->batch * (size_t)pages * (size_t)problem->kv_heads * floats, sizeof(float));
  state->error = tool_new((size_t)state->rows, sizeof(float));
  state->read = tool_new((size_t)state->rows, sizeof(float));
  attention->prune = (banyan_prune){.bounds = state->bounds,
                                    .keys = PAGE_KEYS,
                                    .batch_pages = pages,
                                    .epsilon = task->settings->epsilon,
                                    .error = state->error,
                                    .read = state->read};
  return banyan_page_bounds_update(attention, NULL);
}

static banyan_status make(const decode_task *task, int32_t keys_max, void **result) {
  const decode_problem *problem = task->problem;
  const decode_settings *settings = task->settings;
  banyan_attention_desc attention = decode_shard_attention(problem, task->q, task->shard, task->lengths);
  const tool_world *world = task->world;
  tool_part part = tool_part_of_rank(&settings->combine, world->rank, world->nranks);
  banyan_partial out;
  bool receives = tool_partial_result(&settings->combine, world->rank, world->nranks, task->out, &out);
  fused_state *state = *result = tool_new(1, sizeof *state);
  attention.keys_max = keys_max;
  state->rows_bytes = (uint64_t)problem->batch * (uint64_t)problem->heads * (uint64_t)(problem->head_dim + 2) * 4;
  state->out = task->out;
  state->result_rows = part.tokens * part.heads;
  state->dim = problem->head_dim;
  banyan_status status = settings->epsilon > 0 ? prune(task, &attention, state) : BANYAN_OK;
  if (status != BANYAN_OK) return status;
  return banyan_attention_combine_init(world->comm, &attention, &settings->combine, receives ? &out : NULL, &state->op);
}

static banyan_status fused_create(const decode_task *task, void **result) { return make(task, 0, result); }

static banyan_status overlap_create(const decode_task *task, void **result) {
  return make(task, task->shard->capacity, result);
}

static banyan_status fused_run(void *state, int64_t *local_ns) {
  *local_ns = 0;
  return tool_run(((fused_state *)state)->op);
}

/* Parses the number of slices from the operation's description, the only place that has it. */
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
  if (state->bounds == NULL) return;
  facts->errors = state->error;
  for (int32_t i = 0; i < state->rows; i++) facts->pages_read += (double)state->read[i] / state->rows;
  for (int32_t i = 0; i < state->result_rows; i++) {
    double length = 0;
    for (int32_t j = 0; j < state->dim; j++) length += pow((double)state->out[i * state->dim + j], 2);
    facts->certified = fmax(facts->certified, (double)state->error[i] / sqrt(length));
  }
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
