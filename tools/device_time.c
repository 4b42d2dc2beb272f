/* SPDX-License-Identifier: Apache-2.0 */
#include "device_time.h"

#include <stdlib.h>

bool device_time_start(banyan_op *op, tool_error *error) {
  banyan_status status = banyan_start(op);
  return status == BANYAN_OK || tool_error_banyan(error, status, "banyan_start");
}

static bool capture(device_ranks *ranks, const device_timing *timing, gpu_graph **graph, tool_error *error) {
  tool_error later = {.text = ""};
  bool ok = gpu_capture_begin(ranks->device, ranks->streams, ranks->nranks, error);
  for (int32_t run = 0; ok && run < timing->runs; run++) {
    for (int32_t rank = 0; ok && rank < ranks->nranks; rank++) {
      ok = timing->put(timing->argument, run, rank, error);
    }
  }
  return gpu_capture_end(ranks->device, ranks->streams, ranks->nranks, graph, ok ? error : &later) && ok;
}

bool device_time(device_ranks *ranks, const device_timing *timing, double *p50_us, double *p99_us, tool_error *error) {
  gpu_graph *graph = NULL;
  size_t iterations = (size_t)timing->iterations;
  double *times = malloc(iterations * sizeof *times);
  double seconds = ranks->timeout_ns > 0 ? 2e-9 * (double)ranks->timeout_ns : 60;
  bool ok = (times != NULL || tool_error_set(error, "out of memory")) && capture(ranks, timing, &graph, error) &&
            gpu_graph_time(graph, ranks->streams[0], timing->warmup, timing->iterations, seconds, times, error) &&
            device_ranks_finish(ranks, error);
  if (ok) {
    *p50_us = tool_percentile(times, iterations, 50) / timing->runs;
    *p99_us = tool_percentile(times, iterations, 99) / timing->runs;
  }
  gpu_graph_free(graph);
  free(times);
  return ok;
}
