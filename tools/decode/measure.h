/* SPDX-License-Identifier: Apache-2.0
 * Runs each method on each layer: checks what it gives, then takes its time. */
#ifndef BNY_TOOLS_DECODE_MEASURE_H
#define BNY_TOOLS_DECODE_MEASURE_H

#include <stdbool.h>

#include "tools/decode/methods.h"

/* Over all ranks and layers: errors, bytes and memory are the largest of any rank, times the slowest rank's. */
typedef struct decode_result {
  const decode_method *method;
  banyan_scatter scatter; /* as delivered */
  decode_facts facts;
  double max_abs_error;
  double max_rel_error; /* worst row of |out - reference|_2 / |reference|_2 */
  double rel_error_bound;
  double latency_p50_us, latency_p99_us;
  double local_p50_us;   /* attention of the slowest rank */
  double combine_p50_us; /* the rest of an iteration: its latency less the slowest attention */
  bool ranks_comparable; /* all ranks hold all rows */
  bool ranks_equal;      /* in every bit */
  bool runs_equal;       /* every run gave the bits of the first */
  bool verified;
} decode_result;

/* methods[count] and results[count]; the same on all ranks. */
bool decode_measure(const tool_world *world, const decode_problem *problem, const decode_settings *settings,
                    const decode_method *const *methods, int count, int32_t repeat, decode_result *results,
                    tool_error *error);

#endif
