/* SPDX-License-Identifier: Apache-2.0
 * Combines on a GPU: ranks are threads of this process, all on one device, and the time is that of a graph in which
 * every rank combines over and over, on a branch of its own. Beside it, measured alike: a copy of the partial by every
 * rank, and the three reductions of the Tree Attention paper, of maxima, denominators and numerators, each of them a
 * combine. */
#ifndef BNY_TOOLS_PERF_DEVICE_H
#define BNY_TOOLS_PERF_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/perf/measure.h"

typedef struct perf_device_settings {
  const char *device; /* "cuda" or "cuda:N" */
  int32_t nranks;
  int64_t timeout_ns; /* 0: 30 s */
  bool between;       /* a kernel that evicts caches stands between runs */
} perf_device_settings;

typedef struct perf_device_row {
  size_t bytes; /* of a rank's partial */
  int64_t rows;
  char algorithm[32];
  int32_t runs;          /* in a graph */
  int32_t iterations;    /* replays of it */
  double p50_us, p99_us; /* of a run */
  double copy_us, reductions_us;
  double between_us; /* of what stands between runs; the other times are without it */
  perf_errors errors;
} perf_device_row;

/* False in builds without CUDA. */
bool perf_device_built(void);

/* All sizes, printed to stdout as they come, or as JSON. *correct: all results that were checked. */
bool perf_device_work(const perf_device_settings *settings, const perf_case *cases, int count,
                      const perf_protocol *protocol, bool json, bool *correct, tool_error *error);

#endif
