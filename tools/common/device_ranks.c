/* SPDX-License-Identifier: Apache-2.0
 * Ranks that are threads on one device: starts them, times their calls, and reports the first error. */
#include "tools/common/device_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double timeout_s(const device_ranks *ranks) {
  return ranks->timeout_ns > 0 ? (double)ranks->timeout_ns * 1e-9 : 30;
}

/* ---- calls of all ranks ------------------------------------------------------------------------------------------ */

static void *live(void *opaque) {
  device_rank *self = opaque;
  device_ranks *ranks = self->all;
  self->ok = gpu_enter(ranks->device, &self->error) && ranks->body(self, ranks->argument);
  if (!self->ok && self->comm != NULL) banyan_comm_abort(self->comm, "this rank gave up");
  return NULL;
}

/* Returns whether all ranks succeeded. *error is that of the first rank that failed by itself. */
static bool sum_up(const device_ranks *ranks, tool_error *error) {
  const device_rank *first = NULL;
  for (int32_t r = 0; r < ranks->nranks; r++) {
    const device_rank *rank = &ranks->ranks[r];
    bool is_abort = rank->comm != NULL && banyan_comm_status(rank->comm) == BANYAN_ERR_ABORTED;
    if (!rank->ok && (first == NULL || !is_abort)) {
      first = rank;
      if (!is_abort) break;
    }
  }
  return first == NULL || tool_error_set(error, "rank %d: %s", first->rank, first->error.text);
}

bool device_ranks_call(device_ranks *ranks, bool (*body)(device_rank *self, void *argument), void *argument,
                       tool_error *error) {
  pthread_t threads[DEVICE_RANKS_MAX];
  int32_t started = 0;
  ranks->body = body;
  ranks->argument = argument;
  while (started < ranks->nranks && pthread_create(&threads[started], NULL, live, &ranks->ranks[started]) == 0)
    started++;
  for (int32_t r = 0; r < started; r++) pthread_join(threads[r], NULL);
  if (started < ranks->nranks)
    return tool_error_set(error, "cannot start a thread for each of %d ranks", ranks->nranks);
  return sum_up(ranks, error);
}

static bool plan_rank(device_rank *self, void *argument) {
  banyan_status status = self->all->plan(argument, self->rank);
  return status == BANYAN_OK || tool_error_banyan(&self->error, status, "cannot plan the operations");
}

bool device_ranks_plan(device_ranks *ranks, banyan_status (*plan)(void *argument, int32_t rank), void *argument,
                       tool_error *error) {
  ranks->plan = plan;
  return device_ranks_call(ranks, plan_rank, argument, error);
}

bool device_ranks_finish(device_ranks *ranks, tool_error *error) {
  for (int32_t r = 0; r < ranks->nranks; r++) {
    if (!gpu_wait(ranks->device, ranks->streams[r], 2 * timeout_s(ranks), error)) return false;
  }
  for (int32_t r = 0; r < ranks->nranks; r++) {
    if (banyan_comm_status(ranks->ranks[r].comm) != BANYAN_OK)
      return tool_error_set(error, "rank %d: %s", r, banyan_comm_error(ranks->ranks[r].comm));
  }
  return true;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static bool join(device_rank *self, void *argument) {
  const device_ranks *ranks = self->all;
  char name[20];
  (void)argument;
  snprintf(name, sizeof name, "cuda:%d", gpu_facts_of(ranks->device)->ordinal);
  banyan_bootstrap bootstrap = {.size = sizeof bootstrap};
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = ranks->timeout_ns, .device = name};
  banyan_status status = banyan_threads_bootstrap(ranks->group, self->rank, &bootstrap);
  if (status == BANYAN_OK) status = banyan_comm_create(&bootstrap, &config, &self->comm);
  return status == BANYAN_OK || tool_error_banyan(&self->error, status, "cannot create a communicator");
}

bool device_ranks_open(const char *name, int32_t nranks, int64_t timeout_ns, device_ranks *ranks, tool_error *error) {
  *ranks = (device_ranks){.nranks = nranks, .timeout_ns = timeout_ns};
  int32_t ordinal = 0;
  bool ok = tool_option_device(name, &ordinal, error) &&
            (nranks <= DEVICE_RANKS_MAX ||
             tool_error_set(error, "%d ranks on a device: %d at most", nranks, DEVICE_RANKS_MAX)) &&
            gpu_open(ordinal, &ranks->device, error);
  for (int32_t r = 0; ok && r < nranks; r++) {
    ranks->ranks[r] = (device_rank){.all = ranks, .rank = r};
    ok = gpu_stream_make(ranks->device, &ranks->streams[r], error);
  }
  if (ok) {
    banyan_status status = banyan_threads_create(nranks, &ranks->group);
    ok = (status == BANYAN_OK || tool_error_banyan(error, status, "banyan_threads_create")) &&
         device_ranks_call(ranks, join, NULL, error);
  }
  if (!ok) device_ranks_close(ranks);
  return ok;
}

void device_ranks_close(device_ranks *ranks) {
  for (int32_t r = 0; r < ranks->nranks && r < DEVICE_RANKS_MAX; r++) banyan_comm_destroy(ranks->ranks[r].comm);
  for (int32_t r = 0; ranks->device != NULL && r < ranks->nranks; r++)
    gpu_stream_free(ranks->device, ranks->streams[r]);
  banyan_threads_destroy(ranks->group);
  gpu_close(ranks->device);
  *ranks = (device_ranks){.nranks = 0};
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

bool device_time_start(banyan_op *op, tool_error *error) {
  banyan_status status = banyan_start(op);
  return status == BANYAN_OK || tool_error_banyan(error, status, "banyan_start");
}

static bool capture(device_ranks *ranks, int32_t rank, const device_timing *timing, gpu_graph **graph,
                    tool_error *error) {
  tool_error later = {.text = ""};
  void *stream = ranks->streams[rank];
  bool ok = gpu_capture_begin(ranks->device, stream, error);
  for (int32_t run = 0; ok && run < timing->runs; run++)
    ok = timing->put(timing->argument, timing->form, run, rank, error);
  return gpu_capture_end(ranks->device, stream, graph, ok ? error : &later) && ok;
}

bool device_time(device_ranks *ranks, const device_timing *timing, double *p50_us, double *p99_us, tool_error *error) {
  gpu_graph *graphs[DEVICE_RANKS_MAX] = {NULL};
  int32_t count = ranks->nranks;
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
