/* SPDX-License-Identifier: Apache-2.0
 * Plans of all ranks for the simulator: of the library's own algorithms, and of what they are compared with. */
#ifndef BNY_TOOLS_SIMULATE_RIVALS_H
#define BNY_TOOLS_SIMULATE_RIVALS_H

#include "tools/plan/methods.h"
#include "tools/simulate/simulate.h"

enum { SIM_STAGES_MAX = 3, SIM_RING_RANKS_MAX = 512 };

/* One simulation: plans of all ranks in stages, with the requests that they were made from. */
typedef struct sim_case {
  bny_request requests[SIM_STAGES_MAX];
  sim_stage stages[SIM_STAGES_MAX];
  int32_t nstages;
  bool ring; /* Ring Attention: its computing is attention */
} sim_case;

/* By shape->algorithm, or by predicted cost. */
bool sim_case_make(const plan_ranks *ranks, const plan_shape *shape, sim_case *made, tool_error *error);

/* Maxima, denominators and numerators, each reduced by the algorithm without levels that is predicted to be fastest. */
bool sim_case_allreduces(const plan_ranks *ranks, const plan_shape *shape, sim_case *made, tool_error *error);

/* Ring Attention: a rank sends the keys and values that it has to the next one and attends to them meanwhile. */
bool sim_case_ring(const plan_ranks *ranks, const plan_shape *shape, const plan_keys *keys, sim_case *made,
                   tool_error *error);
void sim_case_release(sim_case *made);

/* Bytes of keys and values that a rank holds, and the speed with which it reads them. */
double sim_shard_bytes(const plan_shape *shape, const plan_keys *keys);
double sim_memory_speed(const plan_ranks *ranks);

#endif
