/* SPDX-License-Identifier: Apache-2.0
 * The collectives of banyan, as persistent operations. */
#include "tools/perf/perf.h"

/* Rows that are checked of one result. */
enum { ROWS_CHECKED = 512 };

typedef struct banyan_state {
  const perf_case *perf;
  tool_part part;
  perf_rows rows;       /* combine: input */
  void *input, *output; /* memory; of broadcast and barrier the output is the input */
  void *scratch;        /* allgather-heads: one rank's share of the output, to be checked */
  banyan_op *op;
} banyan_state;

static void fill_bytes(void *opaque, uint32_t key) {
  banyan_state *state = opaque;
  const perf_case *perf = state->perf;
  if (perf->collective != BNY_BROADCAST || perf->world->rank == 0)
    perf_bytes_fill(state->input, perf->bytes, key, perf->world->rank);
}

static void fill_rows(void *opaque, uint32_t key) {
  banyan_state *state = opaque;
  perf_rows_fill(&state->rows, key, state->perf->world->rank);
}

static banyan_status run(void *opaque) {
  banyan_state *state = opaque;
  banyan_status status = banyan_start(state->op);
  return status == BANYAN_OK ? banyan_wait(state->op) : status;
}

static void check_rows(void *opaque, uint32_t key, perf_errors *errors) {
  banyan_state *state = opaque;
  const perf_case *perf = state->perf;
  perf_rows_check(&state->part, perf->heads, perf->head_dim, state->output, key, perf->world->nranks, ROWS_CHECKED,
                  tool_error_bound_of(perf->wire, state->op), errors);
}

static void check_bytes(void *opaque, uint32_t key, perf_errors *errors) {
  banyan_state *state = opaque;
  const perf_case *perf = state->perf;
  int32_t rank = perf->world->rank, nranks = perf->world->nranks;
  size_t wrong = 0;
  if (perf->collective == BNY_ALLGATHER_HEADS) {
    wrong = perf_heads_check(state->output, perf->bytes, (size_t)perf->tokens, nranks, key, state->scratch);
  } else if (perf->collective == BNY_ALLGATHER) {
    for (int32_t r = 0; r < nranks; r++)
      wrong += perf_bytes_check((char *)state->output + (size_t)r * perf->bytes, perf->bytes, key, r);
  } else {
    int32_t source = perf->collective == BNY_SHIFT ? (rank + nranks - 1) % nranks : 0;
    wrong = perf_bytes_check(state->output, perf->bytes, key, source);
  }
  errors->wrong += (int64_t)wrong;
}

static void fill_sums(void *opaque, uint32_t key) {
  banyan_state *state = opaque;
  perf_sums_fill(state->input, state->perf->bytes / sizeof(float), key, state->perf->world->rank);
}

static void check_sums(void *opaque, uint32_t key, perf_errors *errors) {
  banyan_state *state = opaque;
  const perf_case *perf = state->perf;
  errors->wrong += (int64_t)perf_sums_check(state->output, perf->bytes / sizeof(float), key, perf->world->nranks);
}

static void fill_list(void *opaque, uint32_t key) {
  banyan_state *state = opaque;
  perf_list list = perf_list_at(state->input, state->perf->bytes);
  perf_list_fill(&list, key, state->perf->world->rank, state->perf->world->nranks);
}

static void check_list(void *opaque, uint32_t key, perf_errors *errors) {
  banyan_state *state = opaque;
  perf_list list = perf_list_at(state->output, state->perf->bytes);
  errors->wrong += (int64_t)perf_list_check(&list, key, state->perf->world->nranks);
}

static void check_nothing(void *opaque, uint32_t key, perf_errors *errors) {
  (void)opaque;
  (void)key;
  (void)errors;
}

static void destroy(void *opaque) { banyan_op_free(((banyan_state *)opaque)->op); }

static void allocate(banyan_state *state) {
  const perf_case *perf = state->perf;
  bool heads = perf->collective == BNY_ALLGATHER_HEADS;
  size_t output = heads || perf->collective == BNY_ALLGATHER ? (size_t)perf->world->nranks * perf->bytes : perf->bytes;
  state->input = tool_take(perf->bytes);
  state->output = state->input;
  if (perf->collective != BNY_BROADCAST && perf->collective != BNY_BARRIER) state->output = tool_take(output);
  if (heads) state->scratch = tool_take(perf->bytes);
}

static banyan_status plan_combine(banyan_state *state) {
  const perf_case *perf = state->perf;
  const tool_world *world = perf->world;
  int64_t rows = (int64_t)perf->tokens * perf->heads;
  float *memory = state->input; /* values first, so that they are aligned */
  float *max = memory + rows * perf->head_dim, *sum = max + rows;
  state->rows = (perf_rows){rows, perf->head_dim, max, sum, memory, 1, perf->head_dim};
  state->part = tool_part_of_rank(perf->scatter, perf->tokens, perf->heads, world->rank, world->nranks);
  banyan_partial in = tool_partial_max_sum(memory, max, sum, perf->heads, perf->head_dim);
  banyan_partial out = tool_partial_result(state->output, state->part.heads, perf->head_dim);
  banyan_combine_desc desc = {.size = sizeof desc,
                              .tokens = perf->tokens,
                              .heads = perf->heads,
                              .value_dim = perf->head_dim,
                              .wire = perf->wire,
                              .scatter = perf->scatter,
                              .order = perf->order,
                              .algorithm = perf->algorithm};
  bool nothing = perf->scatter == BANYAN_SCATTER_ROOT && world->rank != 0;
  return banyan_combine_init(world->comm, &desc, &in, nothing ? NULL : &out, &state->op);
}

/* Every rank has as many heads, of bf16. */
static banyan_status plan_heads(banyan_state *state) {
  const perf_case *perf = state->perf;
  banyan_heads_desc desc = {.size = sizeof desc,
                            .tokens = perf->tokens,
                            .heads = perf->heads * perf->world->nranks,
                            .dim = perf->head_dim,
                            .dtype = BANYAN_BF16};
  return banyan_allgather_heads_init(perf->world->comm, &desc, state->input, state->output, &state->op);
}

/* A sum of f32, as one token. */
static banyan_status plan_sums(banyan_state *state) {
  banyan_allreduce_desc desc = BANYAN_ALLREDUCE_DESC_INIT;
  desc.tokens = 1;
  desc.dim = (int32_t)(state->perf->bytes / sizeof(float));
  desc.dtype = BANYAN_F32;
  return banyan_allreduce_init(state->perf->world->comm, &desc, state->input, state->output, &state->op);
}

/* One row, of whose pairs each rank offers as many as are chosen. */
static banyan_status plan_list(banyan_state *state) {
  perf_list in = perf_list_at(state->input, state->perf->bytes), out = perf_list_at(state->output, state->perf->bytes);
  banyan_select_desc desc = BANYAN_SELECT_DESC_INIT;
  desc.tokens = 1;
  desc.k = desc.offers = (int32_t)in.count;
  desc.scores = in.scores;
  desc.indices = in.indices;
  desc.best_scores = out.scores;
  desc.best_indices = out.indices;
  return banyan_select_init(state->perf->world->comm, &desc, &state->op);
}

static banyan_status plan(banyan_state *state) {
  const perf_case *perf = state->perf;
  banyan_comm *comm = perf->world->comm;
  switch (perf->collective) {
  case BNY_COMBINE: return plan_combine(state);
  case BNY_ALLGATHER_HEADS: return plan_heads(state);
  case BNY_ALLREDUCE: return plan_sums(state);
  case BNY_SELECT: return plan_list(state);
  case BNY_SHIFT: return banyan_shift_init(comm, state->input, state->output, perf->bytes, 1, &state->op);
  case BNY_BROADCAST: return banyan_broadcast_init(comm, state->input, perf->bytes, 0, &state->op);
  case BNY_BARRIER: return banyan_barrier_init(comm, &state->op);
  default: break;
  }
  size_t *counts = tool_new((size_t)perf->world->nranks, sizeof *counts);
  for (int32_t r = 0; r < perf->world->nranks; r++) counts[r] = perf->bytes;
  return banyan_allgather_init(comm, state->input, state->output, counts, &state->op);
}

bool perf_banyan_method(const perf_case *perf, perf_method *method, banyan_op **op, tool_error *error) {
  banyan_state *state = tool_new(1, sizeof *state);
  state->perf = perf;
  allocate(state);
  banyan_status status = plan(state);
  if (status != BANYAN_OK) return tool_error_banyan(error, status, "cannot plan the collective");
  bool rows = perf->collective == BNY_COMBINE, nothing = perf->collective == BNY_BARRIER;
  bool sums = perf->collective == BNY_ALLREDUCE, lists = perf->collective == BNY_SELECT;
  *method = (perf_method){.name = "banyan",
                          .state = state,
                          .fill = rows    ? fill_rows
                                  : sums  ? fill_sums
                                  : lists ? fill_list
                                          : fill_bytes,
                          .run = run,
                          .check = rows      ? check_rows
                                   : sums    ? check_sums
                                   : lists   ? check_list
                                   : nothing ? check_nothing
                                             : check_bytes,
                          .destroy = destroy};
  *op = state->op;
  return true;
}
