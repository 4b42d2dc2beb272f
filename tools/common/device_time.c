/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/device_time.h"

#include <stdlib.h>

bool device_time_start(banyan_op *op, tool_error *error) {
  banyan_status status = banyan_start(op);
  return status == BANYAN_OK || tool_error_banyan(error, status, "banyan_start");
}

/* All runs of a rank. */
static bool capture(device_ranks *ranks, int32_t rank, const device_timing *timing, gpu_graph **graph,
                    tool_error *error) {
  tool_error later = {.text = ""};
  void *stream = ranks->streams[rank];
  bool ok = gpu_capture_begin(ranks->device, stream, error);
  for (int32_t run = 0; ok && run < timing->runs; run++) ok = timing->put(timing->argument, run, rank, error);
  return gpu_capture_end(ranks->device, stream, graph, ok ? error : &later) && ok;
}

bool device_time(device_ranks *ranks, const device_timing *timing, double *p50_us, double *p99_us, tool_error *error) {
  gpu_graph *graphs[DEVICE_RANKS_MAX] = {NULL};
  int32_t count = timing->ranks > 0 ? timing->ranks : ranks->nranks;
  size_t iterations = (size_t)timing->iterations;
  double *times = malloc(iterations * sizeof *times);
  gpu_rounds rounds = {timing->warmup, timing->iterations,
                       ranks->timeout_ns > 0 ? 2e-9 * (double)ranks->timeout_ns : 60};
  bool ok = times != NULL || tool_error_set(error, "out of memory");
  for (int32_t rank = 0; ok && rank < count; rank++) ok = capture(ranks, rank, timing, &graphs[rank], error);
  ok = ok && gpu_graphs_time(graphs, ranks->streams, count, &rounds, times, error) && device_ranks_finish(ranks, error);
  if (ok) {
    *p50_us = tool_percentile(times, iterations, 50) / timing->runs;
    *p99_us = tool_percentile(times, iterations, 99) / timing->runs;
  }
  for (int32_t rank = 0; rank < count; rank++) gpu_graph_free(graphs[rank]);
  free(times);
  return ok;
}
