/* SPDX-License-Identifier: Apache-2.0
 * The ranks of a tool. They come from MPI under mpirun, from the variables RANK and WORLD_SIZE, or are local processes
 * that the tool starts (--ranks N); otherwise there is one rank. Also the few messages that ranks exchange besides
 * combines. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "tools/common/mpi.h"
#include "tools/common/util.h"

#define TOOL_WORLD_ABOUT                                                                                        \
  "The ranks are those of mpirun if it started the program; else those that RANK, WORLD_SIZE, MASTER_ADDR and " \
  "MASTER_PORT name, as torchrun sets them; else the processes that --ranks starts; else one."

typedef struct tool_world_options {
  const char *program;
  int32_t ranks;      /* argument of --ranks; 0: not set */
  int64_t timeout_ns; /* 0: the library's default */
  bool pin;           /* bind each rank to one allowed CPU */
  bool own_cores;     /* pin each local rank to its own core; if there are too few, warn and share */
  bool on_nodes;      /* bind each local rank to the cores of one NUMA node */
} tool_world_options;

typedef struct tool_world {
  banyan_comm *comm;
  int32_t rank;
  int32_t nranks;
  const tool_mpi *mpi; /* set if ranks are those of MPI_COMM_WORLD, else NULL */
  const char *how;     /* "under mpirun" */
  const char *program;
} tool_world;

/* Launches or joins the ranks, works, complains and leaves. Returns the exit status, which is a failure if the work is
 * not `good`. */
typedef bool tool_world_work(void *arguments, const tool_world *world, bool *good, tool_error *error);
int tool_world_run(const tool_world_options *options, char **argv, tool_world_work *work, void *arguments);

/* Creates a communicator with this process as the only rank. */
banyan_status tool_world_alone(const banyan_comm_config *config, banyan_comm **comm);

/* All-gathers `bytes` of every rank into `all`, in rank order. */
bool tool_world_gather(const tool_world *world, const void *mine, size_t bytes, void *all, tool_error *error);

/* Sets each value to its maximum over all ranks; NaN counts as infinite. */
bool tool_world_max(const tool_world *world, double *values, int count, tool_error *error);

/* Returns true if `ok` is true on all ranks. Otherwise returns false on all ranks, with the error of the first rank
 * where it is false. If it is false here, *error must be set at the call. */
bool tool_world_agree(const tool_world *world, bool ok, tool_error *error);

/* Reports progress on stderr from rank 0 every few seconds, if the work takes that long. The struct begins as zeros. */
typedef struct tool_progress {
  int64_t start_ns, printed_ns;
} tool_progress;

void tool_world_progress(const tool_world *world, tool_progress *progress, const char *what, int64_t done, int64_t all);
