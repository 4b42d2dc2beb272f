/* SPDX-License-Identifier: Apache-2.0
 * The collectives of banyan, as persistent operations. */
#include "tools/perf/perf.h"

static banyan_status run(perf_method *method) { return tool_run(method->op); }

static void allocate(perf_method *method) {
  const perf_case *perf = method->perf;
  bool all = perf->collective == BNY_ALLGATHER_HEADS || perf->collective == BNY_ALLGATHER;
  method->input = method->output = tool_take(perf->bytes);
  if (perf->collective != BNY_BROADCAST && perf->collective != BNY_BARRIER)
    method->output = tool_take(all ? (size_t)perf->world->nranks * perf->bytes : perf->bytes);
}

static banyan_status plan_combine(perf_method *method) {
  const banyan_combine_desc *desc = &method->perf->combine;
  const tool_world *world = method->perf->world;
  int64_t rows = (int64_t)desc->tokens * desc->heads;
  float *memory = method->input; /* values first, so that they are aligned */
  float *max = memory + rows * desc->value_dim, *sum = max + rows;
  method->rows = (perf_rows){rows, desc->value_dim, max, sum, memory, 1, desc->value_dim};
  method->part = tool_part_of_rank(desc, world->rank, world->nranks);
  banyan_partial in = tool_partial_max_sum(memory, max, sum, desc->heads, desc->value_dim), out;
  bool receives = tool_partial_result(desc, world->rank, world->nranks, method->output, &out);
  return banyan_combine_init(world->comm, desc, &in, receives ? &out : NULL, &method->op);
}

/* Every rank has as many heads, of bf16. */
static banyan_status plan_heads(perf_method *method) {
  const perf_case *perf = method->perf;
  banyan_heads_desc desc = {.size = sizeof desc,
                            .tokens = perf->combine.tokens,
                            .heads = perf->combine.heads * perf->world->nranks,
                            .dim = perf->combine.value_dim,
                            .dtype = BANYAN_BF16};
  return banyan_allgather_heads_init(perf->world->comm, &desc, method->input, method->output, &method->op);
}

/* A sum of f32, as one token. */
static banyan_status plan_sums(perf_method *method) {
  banyan_allreduce_desc desc = BANYAN_ALLREDUCE_DESC_INIT;
  desc.tokens = 1;
  desc.dim = (int32_t)(method->perf->bytes / sizeof(float));
  desc.dtype = BANYAN_F32;
  return banyan_allreduce_init(method->perf->world->comm, &desc, method->input, method->output, &method->op);
}

/* One row, of whose pairs each rank offers as many as are chosen. */
static banyan_status plan_list(perf_method *method) {
  perf_list in = perf_list_at(method->input, method->perf->bytes),
            out = perf_list_at(method->output, method->perf->bytes);
  banyan_select_desc desc = BANYAN_SELECT_DESC_INIT;
  desc.tokens = 1;
  desc.k = desc.offers = (int32_t)in.count;
  desc.scores = in.scores;
  desc.indices = in.indices;
  desc.best_scores = out.scores;
  desc.best_indices = out.indices;
  return banyan_select_init(method->perf->world->comm, &desc, &method->op);
}

static banyan_status plan(perf_method *method) {
  const perf_case *perf = method->perf;
  banyan_comm *comm = perf->world->comm;
  switch (perf->collective) {
  case BNY_COMBINE: return plan_combine(method);
  case BNY_ALLGATHER_HEADS: return plan_heads(method);
  case BNY_ALLREDUCE: return plan_sums(method);
  case BNY_SELECT: return plan_list(method);
  case BNY_SHIFT: return banyan_shift_init(comm, method->input, method->output, perf->bytes, 1, &method->op);
  case BNY_BROADCAST: return banyan_broadcast_init(comm, method->input, perf->bytes, 0, &method->op);
  case BNY_BARRIER: return banyan_barrier_init(comm, &method->op);
  default: break;
  }
  size_t *counts = tool_new((size_t)perf->world->nranks, sizeof *counts);
  for (int32_t r = 0; r < perf->world->nranks; r++) counts[r] = perf->bytes;
  return banyan_allgather_init(comm, method->input, method->output, counts, &method->op);
}

bool perf_banyan_method(const perf_case *perf, perf_method *method, tool_error *error) {
  *method = (perf_method){.name = "banyan", .perf = perf, .run = run};
  allocate(method);
  banyan_status status = plan(method);
  return status == BANYAN_OK || tool_error_banyan(error, status, "cannot plan the collective");
}
