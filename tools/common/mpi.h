/* SPDX-License-Identifier: Apache-2.0
 * MPI for tools that run under mpirun. The functions are in a separate module, which is loaded only under mpirun. No
 * tool links MPI. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "banyan.h"
#include "tools/common/util.h"

/* Merges `rows` rows of `in` into those of `inout`. */
typedef void tool_mpi_merge(const float *in, float *inout, int64_t rows, int32_t dim);

typedef struct tool_mpi {
  bool (*start)(void);
  banyan_status (*join)(const banyan_comm_config *config, banyan_comm **comm);
  void (*stop)(void);
  void (*give_up)(int exit_status);
  void (*barrier)(void);
  /* These return false if MPI fails. */
  bool (*allgather)(const float *mine, int count, float *all);
  bool (*allreduce)(const float *mine, float *all, int count, bool maximum);
  /* An allreduce of rows of dim + 2 numbers by a custom operation. Only one dim and one merge may be active at a
   * time. */
  bool (*rows_begin)(int32_t dim, tool_mpi_merge *merge);
  bool (*rows_allreduce)(const float *mine, float *all, int rows);
  void (*rows_end)(void);
} tool_mpi;

/* The module exports this variable. */
extern const tool_mpi banyan_mpi_tool;

/* Returns NULL and sets *error if there is no module or if it cannot be loaded. */
const tool_mpi *tool_mpi_load(tool_error *error);
