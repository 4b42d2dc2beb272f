/* SPDX-License-Identifier: Apache-2.0
 *
 * Predicted time of plans, step by step: each rank has a clock, all begin at 0.
 *   COPY: work. MERGE, DELIVER: work over every source, and beta for the bytes of sources that are messages.
 *   SEND: arrives alpha after the sender's clock.
 *   WAIT: for what has not arrived: until then, and a switch if ranks take turns on a core; else a quarter of alpha.
 * The result is the last clock. The same assumptions as in select.c, without its closed formulae. */
#include <stdlib.h>

#include "plan/arrival.h"
#include "plan/slice.h"

typedef struct clock_run {
  const bny_request *request;
  const bny_plan *const *plans;
  bny_arrivals arrivals;
  double *clocks;
  int32_t *next; /* step */
  double turns, switch_ns;
} clock_run;

static double work_ns(const clock_run *run, const bny_plan *plan, const bny_step *step) {
  const bny_link_cost *cost = &run->request->cost;
  double bytes = (double)bny_slice_wire_bytes(run->request, &step->slice), ns = 0;
  if (step->kind == BNY_STEP_COPY) return bytes * cost->gamma_ns_per_byte * run->turns;
  for (int32_t i = 0; i < step->count; i++) {
    bool is_message = plan->sources[step->first + i].message >= 0;
    ns += bytes * (cost->gamma_ns_per_byte + (is_message ? cost->beta_ns_per_byte : 0)) * run->turns;
  }
  return ns;
}

/* False: it waits for something that has not been sent. */
static bool step_run(clock_run *run, int32_t rank) {
  const bny_plan *plan = run->plans[rank];
  const bny_step *step = &plan->steps[run->next[rank]];
  double *clock = &run->clocks[rank];
  const bny_link_cost *cost = &run->request->cost;
  if (step->kind == BNY_STEP_SEND) {
    for (int32_t i = 0; i < step->count; i++) {
      bny_arrival *arrival = bny_arrivals_add(&run->arrivals, rank, step->slot, plan->peers[step->first + i]);
      if (arrival) arrival->when_ns = *clock + cost->alpha_ns;
    }
  } else if (step->kind == BNY_STEP_WAIT) {
    const bny_message *message = &plan->messages[step->message];
    const bny_arrival *arrival = bny_arrivals_find(&run->arrivals, message->peer, message->slot, rank);
    if (!arrival) return false;
    *clock = arrival->when_ns > *clock ? arrival->when_ns + run->switch_ns : *clock + cost->alpha_ns / 4;
  } else {
    *clock += work_ns(run, plan, step);
  }
  run->next[rank]++;
  return true;
}

double bny_plan_cost_ns(const bny_request *request, const bny_plan *const *plans) {
  clock_run run = {.request = request, .plans = plans, .turns = 1};
  int64_t sends = 0;
  double last = 0;
  for (int32_t rank = 0; rank < request->nranks; rank++) sends += plans[rank]->npeers;
  if (request->cost.ranks_per_core > 1) {
    run.turns = request->cost.ranks_per_core;
    run.switch_ns = request->cost.switch_ns * run.turns;
  }
  run.clocks = calloc((size_t)request->nranks, sizeof *run.clocks);
  run.next = calloc((size_t)request->nranks, sizeof *run.next);
  if (!run.clocks || !run.next || !bny_arrivals_init(&run.arrivals, sends)) {
    last = -1;
    goto free_run;
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (int32_t rank = 0; rank < request->nranks; rank++)
      while (run.next[rank] < plans[rank]->nsteps && step_run(&run, rank)) progress = true;
  }
  for (int32_t rank = 0; rank < request->nranks; rank++) last = run.clocks[rank] > last ? run.clocks[rank] : last;
  bny_arrivals_fini(&run.arrivals);

free_run:
  free(run.clocks);
  free(run.next);
  return last;
}
