/* SPDX-License-Identifier: Apache-2.0
 * Makes the plans of all ranks: those of the library, of Ring Attention, and of three all-reduces. */
#include "tools/simulate/rivals.h"

#include <stdlib.h>
#include <string.h>

/* Makes the plans of the last stage, whose request is set. */
static bool plans_make(sim_case *made, tool_error *error) {
  int32_t at = made->nstages++;
  bny_request *request = &made->requests[at];
  bny_plan **plans = tool_new((size_t)request->nranks, sizeof *plans);
  made->stages[at] = (sim_stage){request, plans};
  for (int32_t r = 0; r < request->nranks; r++)
    if (bny_plan_make_like(request, plans[0], r, &plans[r]) != BANYAN_OK)
      return tool_error_set(error, "rank %d: %s", r, banyan_last_error());
  return true;
}

void sim_case_release(sim_case *made) {
  for (int32_t i = 0; i < made->nstages; i++)
    for (int32_t r = 0; r < made->requests[i].nranks; r++) bny_plan_free(made->stages[i].plans[r]);
  made->nstages = 0;
}

bool sim_case_make(const plan_ranks *ranks, const plan_shape *shape, sim_case *made, tool_error *error) {
  *made = (sim_case){.requests = {plan_request_make(ranks, shape)}};
  if (plans_make(made, error)) return true;
  sim_case_release(made);
  return false;
}

bool sim_case_allreduces(const plan_ranks *ranks, const plan_shape *shape, sim_case *made, tool_error *error) {
  static char names[SIM_STAGES_MAX][64]; /* the requests point to them */
  double rows = (double)shape->tokens * shape->heads;
  double sizes[3] = {rows * 4, rows * 4, rows * shape->value_dim * (double)tool_dtype_bytes(shape->wire)};
  *made = (sim_case){.nstages = 0};
  bool ok = true;
  for (int i = 0; i < 3 && ok; i++) {
    plan_shape reduction;
    bny_candidate best;
    ok = plan_flat_best(ranks, shape, sizes[i], &reduction, &best, error);
    if (!ok) break;
    size_t length = 0;
    bny_algorithm_print(best.algorithm, names[i], sizeof names[i], &length);
    reduction.algorithm = names[i];
    made->requests[i] = plan_request_make(ranks, &reduction);
    ok = plans_make(made, error);
  }
  if (!ok) sim_case_release(made);
  return ok;
}

/* ---- Ring Attention ---------------------------------------------------------------------------------------------- */

double sim_memory_speed(const plan_ranks *ranks) {
  const bny_locality *locality = ranks->localities;
  if (locality != NULL && locality->memory_gbytes_per_s > 0) return locality->memory_gbytes_per_s;
  return bny_prices_default.rows[BNY_LINK_MEMORY].gbytes_per_s;
}

/* Slot s holds what the rank s before this one held. A DELIVER of it is the attention to it. */
static bny_plan *ring_plan(int32_t rank, int32_t nranks, size_t bytes) {
  bny_plan *plan = calloc(1, sizeof *plan);
  size_t count = (size_t)nranks;
  if (plan == NULL) return NULL;
  *plan = (bny_plan){.collective = BNY_SHIFT, .rank = rank, .nranks = nranks, .algorithm = "ring attention"};
  plan->slots = calloc(count, sizeof *plan->slots);
  plan->messages = calloc(count, sizeof *plan->messages);
  plan->sources = calloc(count, sizeof *plan->sources);
  plan->peers = calloc(1, sizeof *plan->peers);
  plan->steps = calloc(3 * count + 1, sizeof *plan->steps);
  if (!plan->slots || !plan->messages || !plan->sources || !plan->peers || !plan->steps)
    return bny_plan_free(plan), NULL;
  const bny_slice all = {.heads = 1, .bytes = bytes};
  plan->peers[plan->npeers++] = (rank + 1) % nranks;
  plan->steps[plan->nsteps++] = (bny_step){.kind = BNY_STEP_COPY, .slot = 0, .slice = all};
  for (int32_t s = 0; s < nranks; s++) {
    plan->slots[plan->nslots++] = (bny_slot){.slice = all, .bytes = bytes};
    plan->sources[plan->nsources++] = (bny_source){.slot = s, .message = -1};
    if (s < nranks - 1)
      plan->steps[plan->nsteps++] = (bny_step){.kind = BNY_STEP_SEND, .slot = s, .first = 0, .count = 1};
    plan->steps[plan->nsteps++] =
        (bny_step){.kind = BNY_STEP_DELIVER, .slot = -1, .first = s, .count = 1, .slice = all};
    if (s == nranks - 1) break;
    plan->messages[plan->nmessages] = (bny_message){(rank + nranks - 1) % nranks, s, plan->slots[s]};
    plan->steps[plan->nsteps++] = (bny_step){.kind = BNY_STEP_WAIT, .message = plan->nmessages++};
  }
  return plan;
}

bool sim_case_ring(const plan_ranks *ranks, const plan_shape *shape, const plan_keys *keys, sim_case *made,
                   tool_error *error) {
  size_t bytes = (size_t)plan_shard_bytes(shape, keys);
  *made = (sim_case){.nstages = 1, .ring = true};
  made->requests[0] = (bny_request){.call.collective = BNY_SHIFT,
                                    .nranks = ranks->nranks,
                                    .call.bytes = bytes,
                                    .call.distance = 1,
                                    .levels = ranks->levels};
  made->stages[0] = (sim_stage){&made->requests[0], tool_new((size_t)ranks->nranks, sizeof(bny_plan *))};
  bool ok = true;
  for (int32_t r = 0; r < ranks->nranks && ok; r++)
    ok = (made->stages[0].plans[r] = ring_plan(r, ranks->nranks, bytes)) != NULL;
  if (!ok) sim_case_release(made);
  return ok || tool_error_set(error, "out of memory");
}
