/* SPDX-License-Identifier: Apache-2.0 Ranks that are threads of this process, all on one GPU. Each has a stream and a
 * communicator. Calls that all ranks make together run in threads; one thread can put work on the streams of all. */
#ifndef BNY_TOOLS_COMMON_DEVICE_RANKS_H
#define BNY_TOOLS_COMMON_DEVICE_RANKS_H

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
  /* The arguments of device_ranks_call(). */
  bool (*body)(device_rank *self, void *argument);
  void *argument;
} device_ranks;

/* `name` is as tool_option_device() takes it. */
bool device_ranks_open(const char *name, int32_t nranks, int64_t timeout_ns, device_ranks *ranks, tool_error *error);
void device_ranks_close(device_ranks *ranks);

/* Runs the body in a thread for each rank and waits for all. A rank that fails ends what the others wait for. */
bool device_ranks_call(device_ranks *ranks, bool (*body)(device_rank *self, void *argument), void *argument,
                       tool_error *error);

/* Waits until all streams are idle, and returns what the communicators report. */
bool device_ranks_finish(device_ranks *ranks, tool_error *error);

/* Measures operations on a device: each rank puts many runs in its own graph, and the graphs are replayed
 * concurrently. */
typedef struct device_timing {
  /* Puts a run of one rank on its stream. */
  bool (*put)(void *argument, int32_t run, int32_t rank, tool_error *error);
  void *argument;
  int32_t ranks;              /* number of ranks that take part, from the first; 0: all */
  int32_t runs;               /* in a graph */
  int32_t warmup, iterations; /* replays before, replays that count */
} device_timing;

/* Returns the microseconds of one run. Waits for at most twice the communicators' timeout. */
bool device_time(device_ranks *ranks, const device_timing *timing, double *p50_us, double *p99_us, tool_error *error);

/* banyan_start(), for `put`. */
bool device_time_start(banyan_op *op, tool_error *error);

#endif
