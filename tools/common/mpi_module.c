/* SPDX-License-Identifier: Apache-2.0
 * The only code of the tools that calls MPI: see mpi.h. */
#include "tools/common/mpi.h"

#include <mpi.h>

#include "banyan_mpi.h"

/* The merge of rows is a static variable, because MPI passes no argument to an operation. */
static struct {
  tool_mpi_merge *merge;
  int32_t dim;
  MPI_Datatype type;
  MPI_Op op;
} rows;

static bool start(void) { return MPI_Init(NULL, NULL) == MPI_SUCCESS; }

static banyan_status join(const banyan_comm_config *config, banyan_comm **comm) {
  return banyan_comm_create_mpi(MPI_COMM_WORLD, config, comm);
}

static void stop(void) { MPI_Finalize(); }

static void give_up(int exit_status) { MPI_Abort(MPI_COMM_WORLD, exit_status); }

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static bool allgather(const float *mine, int count, float *all) {
  return MPI_Allgather(mine, count, MPI_FLOAT, all, count, MPI_FLOAT, MPI_COMM_WORLD) == MPI_SUCCESS;
}

static bool allreduce(const float *mine, float *all, int count, bool maximum) {
  return MPI_Allreduce(mine, all, count, MPI_FLOAT, maximum ? MPI_MAX : MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS;
}

static void merge(void *in, void *inout, int *count, MPI_Datatype *type) {
  (void)type;
  rows.merge(in, inout, *count, rows.dim);
}

static bool rows_begin(int32_t dim, tool_mpi_merge *function) {
  rows.merge = function;
  rows.dim = dim;
  return MPI_Type_contiguous(dim + 2, MPI_FLOAT, &rows.type) == MPI_SUCCESS &&
         MPI_Type_commit(&rows.type) == MPI_SUCCESS && MPI_Op_create(merge, 1, &rows.op) == MPI_SUCCESS;
}

static bool rows_allreduce(const float *mine, float *all, int count) {
  return MPI_Allreduce(mine, all, count, rows.type, rows.op, MPI_COMM_WORLD) == MPI_SUCCESS;
}

static void rows_end(void) {
  MPI_Op_free(&rows.op);
  MPI_Type_free(&rows.type);
}

__attribute__((visibility("default"))) const tool_mpi banyan_mpi_tool = {
    .start = start,
    .join = join,
    .stop = stop,
    .give_up = give_up,
    .barrier = barrier,
    .allgather = allgather,
    .allreduce = allreduce,
    .rows_begin = rows_begin,
    .rows_allreduce = rows_allreduce,
    .rows_end = rows_end,
};
