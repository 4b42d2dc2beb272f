/* SPDX-License-Identifier: Apache-2.0
 * Predicted time of plans, step by step. Each rank has a clock, and all begin at 0.
 *   COPY: work. MERGE, DELIVER: work over every source.
 *   SEND: arrives alpha after the sender's clock; message_ns for each receiver but the first where messages are posted.
 *   WAIT: until the arrival, plus a switch if ranks take turns on a core; message_ns if it has arrived.
 * The result is the last clock. The assumptions are those of select.c, without its closed formulae.
 *
 * If all ranks are alike, the reader pays beta for the bytes of sources that are messages, because it reads them from
 * memory. If the request has levels, alpha and beta are those of the level between the two ranks, and bytes cross a
 * link of that level. A rank has one at each level. It carries sent messages one after another, and likewise received
 * ones, in the order in which the rank waits. Links shared by the ranks of an island are not modelled, because ranks
 * are processed one by one, not by time. */
#include "tools/prove/prove.h"

#include "plan/slice.h"

/* The time when a rank's link of one level is free again. */
typedef struct link_clock {
  double out_ns, in_ns;
} link_clock;

typedef struct clock_run {
  const bny_request *request;
  const bny_plan *const *plans;
  bny_arrivals arrivals;
  bny_ready ready;
  double *clocks;
  link_clock *links;         /* by rank and level; NULL without levels */
  const bny_link_cost *work; /* gamma, and how ranks take turns on a core */
} clock_run;

static double turns_of(const bny_link_cost *cost) { return cost->ranks_per_core > 1 ? cost->ranks_per_core : 1; }

static double switch_of(const bny_link_cost *cost) {
  return cost->ranks_per_core > 1 ? cost->switch_ns * cost->ranks_per_core : 0;
}

static const bny_link_cost *link_of(const clock_run *run, int32_t level) {
  return run->links ? &run->request->levels->levels[level].link : &run->request->cost;
}

static int32_t level_of(const clock_run *run, int32_t a, int32_t b) {
  return run->links ? bny_levels_between(run->request->levels, a, b) : 0;
}

static link_clock *link_clock_of(const clock_run *run, int32_t rank, int32_t level) {
  return &run->links[(size_t)rank * (size_t)run->request->levels->nlevels + (size_t)level];
}

static double work_ns(const clock_run *run, const bny_plan *plan, const bny_step *step) {
  double bytes = (double)bny_slice_wire_bytes(run->request, &step->slice), ns = 0;
  if (step->kind == BNY_STEP_COPY) return bytes * run->work->gamma_ns_per_byte * turns_of(run->work);
  for (int32_t i = 0; i < step->count; i++) {
    bool is_read = !run->links && plan->sources[step->first + i].message >= 0;
    ns += bytes * (run->work->gamma_ns_per_byte + (is_read ? run->work->beta_ns_per_byte : 0)) * turns_of(run->work);
  }
  return ns;
}

static void run_send(clock_run *run, const bny_plan *plan, const bny_step *step) {
  for (int32_t i = 0; i < step->count; i++) {
    int32_t peer = plan->peers[step->first + i], level = level_of(run, plan->rank, peer);
    const bny_link_cost *link = link_of(run, level);
    if (i > 0 && link->posted > 0) run->clocks[plan->rank] += bny_link_message_ns(link);
    bny_arrival *arrival = bny_arrivals_add(&run->arrivals, plan->rank, step->slot, peer);
    if (!arrival) continue;
    double leaves = run->clocks[plan->rank];
    if (run->links) {
      link_clock *clock = link_clock_of(run, plan->rank, level);
      if (clock->out_ns > leaves) leaves = clock->out_ns;
      leaves += (double)plan->slots[step->slot].bytes * link->beta_ns_per_byte * turns_of(link);
      clock->out_ns = leaves;
    }
    arrival->when_ns = leaves + link->alpha_ns;
    bny_ready_wake(&run->ready, run->plans[peer], plan->rank, step->slot);
  }
}

/* Returns false if the message has not been sent. */
static bool run_wait(clock_run *run, const bny_plan *plan, const bny_step *step) {
  const bny_message *message = &plan->messages[step->message];
  const bny_arrival *arrival = bny_arrivals_find(&run->arrivals, message->peer, message->slot, plan->rank);
  if (!arrival) return false;
  int32_t level = level_of(run, message->peer, plan->rank);
  const bny_link_cost *link = link_of(run, level);
  double *clock = &run->clocks[plan->rank], when = arrival->when_ns;
  if (run->links) {
    link_clock *in = link_clock_of(run, plan->rank, level);
    double busy = in->in_ns + (double)message->what.bytes * link->beta_ns_per_byte * turns_of(link);
    in->in_ns = when = busy > when ? busy : when;
  }
  *clock = when > *clock ? when + switch_of(link) : *clock + (link->posted > 0 ? 0 : bny_link_message_ns(link));
  return true;
}

static void run_rank(clock_run *run, int32_t rank) {
  const bny_plan *plan = run->plans[rank];
  for (int32_t *next = &run->ready.next[rank]; *next < plan->nsteps; ++*next) {
    const bny_step *step = &plan->steps[*next];
    if (step->kind == BNY_STEP_SEND) {
      run_send(run, plan, step);
    } else if (step->kind != BNY_STEP_WAIT) {
      run->clocks[rank] += work_ns(run, plan, step);
    } else if (!run_wait(run, plan, step)) {
      run->ready.waits[rank] = true;
      return;
    }
  }
}

double bny_plan_cost_ns(const bny_request *request, const bny_plan *const *plans) {
  clock_run run = {.request = request, .plans = plans, .work = &request->cost};
  const bny_levels *levels = request->levels;
  size_t nranks = (size_t)request->nranks, mark = tool_mark();
  int64_t sends = 0;
  double last = 0;
  for (int32_t rank = 0; rank < request->nranks; rank++) sends += plans[rank]->npeers;
  if (levels) run.work = &levels->levels[0].link;
  if (levels) run.links = tool_new(nranks * (size_t)levels->nlevels, sizeof *run.links);
  run.clocks = tool_new(nranks, sizeof *run.clocks);
  run.ready = bny_ready_make(request->nranks);
  run.arrivals = bny_arrivals_make(sends);
  for (int32_t rank = bny_ready_take(&run.ready); rank >= 0; rank = bny_ready_take(&run.ready)) run_rank(&run, rank);
  for (int32_t rank = 0; rank < request->nranks; rank++) last = run.clocks[rank] > last ? run.clocks[rank] : last;
  tool_release(mark);
  return last;
}
