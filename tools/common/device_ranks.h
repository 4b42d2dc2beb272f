/* SPDX-License-Identifier: Apache-2.0
 * Ranks that are threads of this process, all on one GPU. Each has a stream and a communicator. Collective calls run in
 * one thread per rank. A single thread may enqueue work on the streams of all ranks. */
#pragma once

#include "banyan.h"
#include "tools/common/gpu.h"
#include "tools/common/util.h"

enum { DEVICE_RANKS_MAX = 32 };

typedef struct device_rank {
  struct device_ranks *all;
  int32_t rank;
  banyan_comm *comm;
  tool_error error;
  bool ok;
} device_rank;

typedef struct device_ranks {
  gpu *device;
  int32_t nranks;
  int64_t timeout_ns; /* 0: 30 s */
  banyan_threads *group;
  void *streams[DEVICE_RANKS_MAX];
  device_rank ranks[DEVICE_RANKS_MAX];
  /* The arguments of device_ranks_call() and device_ranks_plan(). */
  bool (*body)(device_rank *self, void *argument);
  banyan_status (*plan)(void *argument, int32_t rank);
  void *argument;
} device_ranks;

/* `name` is "cuda" or "cuda:N", as tool_option_device() reads it. */
bool device_ranks_open(const char *name, int32_t nranks, int64_t timeout_ns, device_ranks *ranks, tool_error *error);
void device_ranks_close(device_ranks *ranks);

/* Runs the body in one thread per rank and waits for all of them. If a rank fails, the waits of the others end. */
bool device_ranks_call(device_ranks *ranks, bool (*body)(device_rank *self, void *argument), void *argument,
                       tool_error *error);

/* Lets each rank plan its operations, in the same way. */
bool device_ranks_plan(device_ranks *ranks, banyan_status (*plan)(void *argument, int32_t rank), void *argument,
                       tool_error *error);

/* Waits until all streams are idle. Returns false if a communicator has failed. */
bool device_ranks_finish(device_ranks *ranks, tool_error *error);

/* Measures operations on a device. Each rank records many runs in its own graph, and all graphs are replayed
 * concurrently. */
typedef struct device_timing {
  /* Enqueues one run of a rank on its stream, in one of the caller's forms. */
  bool (*put)(void *argument, int form, int32_t run, int32_t rank, tool_error *error);
  void *argument;
  int form;
  int32_t runs;               /* runs per graph */
  int32_t warmup, iterations; /* replays before the measurement, and measured replays */
} device_timing;

/* Measures the time of one run in microseconds. Waits for at most twice the communicators' timeout. */
bool device_time(device_ranks *ranks, const device_timing *timing, double *p50_us, double *p99_us, tool_error *error);

/* Calls banyan_start(), for use in `put`. */
bool device_time_start(banyan_op *op, tool_error *error);
