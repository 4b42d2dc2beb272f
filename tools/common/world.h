/* SPDX-License-Identifier: Apache-2.0 The ranks of a tool: from MPI under mpirun, from the variables RANK and
 * WORLD_SIZE, as local processes that the tool starts (--ranks N), or one rank alone. Also the few messages that they
 * exchange besides. */
#ifndef BNY_TOOLS_COMMON_WORLD_H
#define BNY_TOOLS_COMMON_WORLD_H

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
  int32_t ranks;      /* argument of --ranks; 0: not given */
  int64_t timeout_ns; /* 0: the library's default */
  bool pin;           /* bind each rank to one allowed CPU */
  bool own_cores;     /* local ranks are pinned to a core each, or share cores with a warning */
  bool on_nodes;      /* local ranks are bound to the cores of a NUMA node each */
} tool_world_options;

typedef struct tool_world {
  banyan_comm *comm;
  int32_t rank;
  int32_t nranks;
  const tool_mpi *mpi; /* set if ranks are those of MPI_COMM_WORLD, else NULL */
  const char *how;     /* "under mpirun" */
  const char *program;
} tool_world;

/* If this process is to start the ranks: starts them, waits, sets *exit_status and returns true. */
bool tool_world_launch(const tool_world_options *options, char **argv, int *exit_status);

/* Joins the other ranks; blocks until all are there. */
bool tool_world_join(const tool_world_options *options, tool_world *world, tool_error *error);

/* A communicator of this process alone. */
banyan_status tool_world_alone(const banyan_comm_config *config, banyan_comm **comm);

/* Leaves. If `failed` is a failure, this rank ends while others may still run, and aborts them. */
void tool_world_leave(tool_world *world, tool_exit failed);

/* `bytes` of every rank, in rank order, on every rank. */
bool tool_world_gather(const tool_world *world, const void *mine, size_t bytes, void *all, tool_error *error);

/* Each value becomes the largest over all ranks; NaN counts as infinite. */
bool tool_world_max(const tool_world *world, double *values, int count, tool_error *error);

/* Returns true if `ok` is true on all ranks. Otherwise returns false on all of them, with the error of the first rank
 * where it is false; *error is this rank's own if it is false here. */
bool tool_world_agree(const tool_world *world, bool ok, tool_error *error);

/* Reports progress on stderr from rank 0, when work takes a few seconds and then every few seconds. Begin with
 * zeros. */
typedef struct tool_progress {
  int64_t start_ns, printed_ns;
} tool_progress;

void tool_world_progress(const tool_world *world, tool_progress *progress, const char *what, int64_t done, int64_t all);

/* "program: rank 2: text" on stderr. */
void tool_world_complain(const tool_world *world, const tool_error *error);

#endif
