/* SPDX-License-Identifier: Apache-2.0
 * The time of operations on a device: many runs of each rank in a graph of its own, which are replayed side by side. */
#ifndef BNY_TOOLS_COMMON_DEVICE_TIME_H
#define BNY_TOOLS_COMMON_DEVICE_TIME_H

#include "tools/common/device_ranks.h"

typedef struct device_timing {
  /* Puts a run of one rank on its stream. */
  bool (*put)(void *argument, int32_t run, int32_t rank, tool_error *error);
  void *argument;
  int32_t ranks;              /* the first so many take part; 0: all */
  int32_t runs;               /* in a graph */
  int32_t warmup, iterations; /* replays before, replays that count */
} device_timing;

/* Microseconds of one run. Waits for twice the communicators' timeout at most. */
bool device_time(device_ranks *ranks, const device_timing *timing, double *p50_us, double *p99_us, tool_error *error);

/* banyan_start(), for `put`. */
bool device_time_start(banyan_op *op, tool_error *error);

#endif
