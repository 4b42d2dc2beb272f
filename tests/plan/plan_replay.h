/* SPDX-License-Identifier: Apache-2.0
 * Runs the plans of all ranks one step at a time in one thread, with CPU kernels. A device that runs the same plans
 * must give the same bits. */
#pragma once

#include "plan/plan.h"

/* The memory of one rank. out may be NULL if the rank gets no result. */
typedef struct replay_rank {
  const banyan_partial *in, *out;
  int32_t out_token0, out_head0;
} replay_rank;

/* Replays these plans of a combine, which the prover accepts. Each outbox begins as NaN. Returns false if a rank waits
 * for a message that never comes, or has bad data. */
bool replay_plans(const bny_plan *const *plans, int32_t nranks, const replay_rank *ranks);
