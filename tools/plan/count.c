/* SPDX-License-Identifier: Apache-2.0
 * Counts rounds, messages and bytes of a plan by level. */
#include "tools/plan/count.h"

#include "plan/slice.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Consecutive waits without a send in between are one round, which counts at the farthest level among them. */
static void rounds_count(const bny_request *request, const bny_plan *plan, plan_level_count *levels) {
  int32_t level = -1; /* level of the current round */
  bool fresh = true;
  for (int32_t i = 0; i < plan->nsteps; i++) {
    const bny_step *step = &plan->steps[i];
    if (step->kind == BNY_STEP_SEND) {
      fresh = true;
    } else if (step->kind == BNY_STEP_WAIT) {
      int32_t between = bny_levels_between(request->levels, plan->rank, plan->messages[step->message].peer);
      if (fresh && level >= 0) {
        levels[level].rounds++;
        level = -1;
      }
      level = between > level ? between : level;
      fresh = false;
    }
  }
  if (level >= 0) levels[level].rounds++;
}

static void add_plan(plan_counts *counts, const bny_request *request, const bny_plan *plan) {
  plan_level_count levels[BNY_LEVELS_MAX] = {{0}};
  int64_t work = 0;
  for (int32_t i = 0; i < plan->nsteps; i++) {
    const bny_step *step = &plan->steps[i];
    if (step->kind == BNY_STEP_SEND) {
      for (int32_t k = 0; k < step->count; k++) {
        int32_t level = bny_levels_between(request->levels, plan->rank, plan->peers[step->first + k]);
        levels[level].bytes_sent += (int64_t)plan->slots[step->slot].bytes;
      }
    } else if (step->kind == BNY_STEP_WAIT) {
      const bny_message *message = &plan->messages[step->message];
      plan_level_count *level = &levels[bny_levels_between(request->levels, plan->rank, message->peer)];
      level->messages++;
      level->bytes_received += (int64_t)message->what.bytes;
    } else {
      int64_t bytes = (int64_t)bny_slice_wire_bytes(request, &step->slice);
      work += step->kind == BNY_STEP_COPY ? bytes : bytes * step->count;
    }
  }
  rounds_count(request, plan, levels);
  for (int32_t k = 0; k < request->levels->nlevels; k++) {
    plan_level_count *most = &counts->levels[k];
    most->rounds = larger(most->rounds, levels[k].rounds);
    most->messages = larger(most->messages, levels[k].messages);
    most->bytes_sent = larger(most->bytes_sent, levels[k].bytes_sent);
    most->bytes_received = larger(most->bytes_received, levels[k].bytes_received);
  }
  counts->work_bytes = larger(counts->work_bytes, work);
  counts->slots = larger(counts->slots, plan->nslots);
  counts->steps = larger(counts->steps, plan->nsteps);
  counts->outbox_bytes = larger(counts->outbox_bytes, (int64_t)plan->outbox_bytes);
  counts->nranks++;
}

bool plan_counts_make(const plan_ranks *ranks, const bny_request *request, plan_counts *counts, tool_error *error) {
  int32_t looked = ranks->nranks < PLAN_COUNT_RANKS ? ranks->nranks : PLAN_COUNT_RANKS;
  *counts = (plan_counts){.nranks = 0};
  for (int32_t i = 0; i < looked; i++) {
    int32_t rank = looked > 1 ? (int32_t)((int64_t)i * (ranks->nranks - 1) / (looked - 1)) : 0;
    bny_plan *plan;
    banyan_status status = bny_plan_make(request, rank, &plan);
    if (status != BANYAN_OK) return tool_error_set(error, "%s", banyan_last_error());
    add_plan(counts, request, plan);
    bny_plan_free(plan);
  }
  return true;
}

double plan_count_ns(const bny_link_cost *link, const plan_level_count *count) {
  int64_t later = count->messages > count->rounds ? count->messages - count->rounds : 0;
  return (double)count->rounds * link->alpha_ns + (double)later * bny_link_message_ns(link) +
         (double)count->bytes_received * link->beta_ns_per_byte;
}
