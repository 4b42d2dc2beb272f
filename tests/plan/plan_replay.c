/* SPDX-License-Identifier: Apache-2.0
 * Executes the steps of all ranks' plans over plain memory, without an executor. */
#include "tests/plan/plan_replay.h"

#include <stdlib.h>
#include <string.h>

typedef struct rank_state {
  const bny_plan *plan;
  char *outbox;
  bool *sent; /* [nslots] */
  int32_t next;
} rank_state;

static bny_wire_view view_of(const bny_plan *plan, const bny_slot *slot, char *outbox, const bny_slice *slice) {
  bny_wire_layout layout = bny_wire_layout_make(plan->wire, bny_slice_rows(&slot->slice), plan->value_dim);
  int64_t row = (int64_t)(slice->token0 - slot->slice.token0) * slot->slice.heads + slice->head0 - slot->slice.head0;
  char *at = outbox + slot->offset;
  size_t row_bytes = bny_wire_row_bytes(plan->wire, plan->value_dim);
  return (bny_wire_view){.m = (float *)(void *)(at + layout.m) + row,
                         .d = (float *)(void *)(at + layout.d) + row,
                         .n = at + layout.n + (size_t)row * row_bytes,
                         .token_stride = slot->slice.heads};
}

static bny_wire_view source_view(rank_state *all, const bny_plan *plan, const bny_source *source,
                                 const bny_slice *slice) {
  if (source->message < 0) return view_of(plan, &plan->slots[source->slot], all[plan->rank].outbox, slice);
  const bny_message *message = &plan->messages[source->message];
  return view_of(plan, &message->what, all[message->peer].outbox, slice);
}

/* Returns false on bad data. */
static bool run_step(rank_state *all, const bny_plan *plan, const bny_step *step, const replay_rank *rank) {
  const bny_kernels *kernels = bny_kernels_find("portable");
  bny_box box = {step->slice.tokens, step->slice.heads, plan->value_dim};
  bny_wire_view views[BNY_MERGE_SOURCES_MAX], to;
  if (step->kind == BNY_STEP_SEND) all[plan->rank].sent[step->slot] = true;
  if (step->kind == BNY_STEP_SEND || step->kind == BNY_STEP_WAIT) return true;
  if (step->kind != BNY_STEP_DELIVER)
    to = view_of(plan, &plan->slots[step->slot], all[plan->rank].outbox, &step->slice);
  if (step->kind == BNY_STEP_COPY)
    return kernels->encode(&box, rank->in, step->slice.token0, step->slice.head0, plan->wire, &to) < 0;
  for (int32_t i = 0; i < step->count; i++)
    views[i] = source_view(all, plan, &plan->sources[step->first + i], &step->slice);
  if (step->kind == BNY_STEP_MERGE)
    kernels->merge(&box, plan->wire, step->count, views, plan->round_nodes, &to);
  else
    kernels->merge_finish(&box, plan->wire, step->count, views, plan->round_nodes, rank->out,
                          step->slice.token0 - rank->out_token0, step->slice.head0 - rank->out_head0);
  return true;
}

static bool may_run(const rank_state *all, const bny_plan *plan, const bny_step *step) {
  if (step->kind != BNY_STEP_WAIT) return true;
  const bny_message *message = &plan->messages[step->message];
  return all[message->peer].sent[message->slot];
}

static bool run_all(rank_state *all, int32_t nranks, const replay_rank *ranks) {
  bool moved = true, done = false;
  while (moved && !done) {
    moved = false;
    done = true;
    for (int32_t rank = 0; rank < nranks; rank++) {
      const bny_plan *plan = all[rank].plan;
      for (; all[rank].next < plan->nsteps && may_run(all, plan, &plan->steps[all[rank].next]); all[rank].next++) {
        if (!run_step(all, plan, &plan->steps[all[rank].next], &ranks[rank])) return false;
        moved = true;
      }
      done = done && all[rank].next == plan->nsteps;
    }
  }
  return done;
}

bool replay_plans(const bny_plan *const *plans, int32_t nranks, const replay_rank *ranks) {
  rank_state *all = calloc((size_t)nranks, sizeof *all);
  bool made = all;
  for (int32_t rank = 0; made && rank < nranks; rank++) {
    size_t bytes = (plans[rank]->outbox_bytes + 127) / 64 * 64;
    all[rank].plan = plans[rank];
    all[rank].outbox = aligned_alloc(64, bytes);
    all[rank].sent = calloc((size_t)plans[rank]->nslots + 1, sizeof *all[rank].sent);
    made = all[rank].outbox && all[rank].sent;
    if (made) memset(all[rank].outbox, 0xff, bytes);
  }
  bool ran = made && run_all(all, nranks, ranks);
  for (int32_t rank = 0; all && rank < nranks; rank++) {
    free(all[rank].outbox);
    free(all[rank].sent);
  }
  free(all);
  return ran;
}
