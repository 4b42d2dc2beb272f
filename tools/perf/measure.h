/* SPDX-License-Identifier: Apache-2.0
 * Takes the times of one case: all methods in one loop, in a rotating order, each call with new data. */
#ifndef BNY_TOOLS_PERF_MEASURE_H
#define BNY_TOOLS_PERF_MEASURE_H

#include <stdbool.h>

#include "tools/perf/methods.h"

typedef struct perf_protocol {
  int32_t iterations; /* 0: by size */
  int32_t warmup;
  bool check;
  bool against_mpi;
  bool in_a_row; /* calls follow one another without a barrier, and the time is half of that of two in a row */
} perf_protocol;

/* Times of an iteration are those of the slowest rank. */
typedef struct perf_row {
  size_t bytes;
  int64_t rows; /* combine */
  char algorithm[32];
  double p50_us, p99_us;
  int mpi_count;
  double mpi_p50_us[PERF_MPI_METHODS];            /* in the order of perf_mpi_methods() */
  uint64_t bytes_sent;                            /* by the rank that sends most */
  uint64_t most_between_nodes, all_between_nodes; /* likewise to other nodes, and by all ranks */
  int32_t iterations;
  perf_errors errors; /* over all ranks; wrong: of all methods */
} perf_row;

bool perf_measure(const perf_case *perf, const perf_protocol *protocol, perf_row *row, tool_error *error);

#endif
