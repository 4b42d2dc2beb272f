/* SPDX-License-Identifier: Apache-2.0
 * Plans of all ranks for the simulator: those of the library's algorithms, and those of methods to compare with. */
#pragma once

#include "tools/plan/methods.h"
#include "tools/simulate/simulate.h"

enum { SIM_STAGES_MAX = 3, SIM_RING_RANKS_MAX = 512 };

/* One simulation: the plans of all ranks in stages, with the requests for them. */
typedef struct sim_case {
  bny_request requests[SIM_STAGES_MAX];
  sim_stage stages[SIM_STAGES_MAX];
  int32_t nstages;
  bool ring; /* Ring Attention: computing steps are attention */
} sim_case;

/* Uses shape->algorithm, or the fastest algorithm by predicted cost. */
bool sim_case_make(const plan_ranks *ranks, const plan_shape *shape, sim_case *made, tool_error *error);

/* All-reduces maxima, denominators and numerators, each by its fastest algorithm without levels by predicted cost. */
bool sim_case_allreduces(const plan_ranks *ranks, const plan_shape *shape, sim_case *made, tool_error *error);

/* Ring Attention: each rank sends its current keys and values to the next rank, and attends to them meanwhile. */
bool sim_case_ring(const plan_ranks *ranks, const plan_shape *shape, const plan_keys *keys, sim_case *made,
                   tool_error *error);
void sim_case_release(sim_case *made);

/* The speed at which a rank reads keys and values. */
double sim_memory_speed(const plan_ranks *ranks);
