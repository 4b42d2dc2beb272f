/* SPDX-License-Identifier: Apache-2.0
 * A program for mpirun (see test-boot-mpi) that tests ranks of MPI communicators. */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan_mpi.h"
#include "tests/support/self.h"

static int world_rank;

static void check(bool holds, const char *what, int line) {
  int initialised, finalised;
  if (holds) return;
  fprintf(stderr, "rank %d, line %d: not so: %s (last error: %s)\n", world_rank, line, what, banyan_last_error());
  if (MPI_Initialized(&initialised) == MPI_SUCCESS && MPI_Finalized(&finalised) == MPI_SUCCESS && initialised &&
      !finalised)
    MPI_Abort(MPI_COMM_WORLD, 1);
  abort();
}
#define CHECK(condition) check(condition, #condition, __LINE__)

static void gather_rounds(MPI_Comm comm) {
  banyan_mpi *handle = NULL;
  banyan_bootstrap bootstrap;
  int rank, nranks;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &nranks);
  CHECK(banyan_mpi_bootstrap(comm, &handle, &bootstrap) == BANYAN_OK);
  CHECK(bootstrap.rank == rank && bootstrap.nranks == nranks && bootstrap.size == sizeof bootstrap);
  for (size_t bytes = 0; bytes <= 100000; bytes = bytes * 7 + 1) {
    unsigned char *mine = malloc(bytes + 1), *all = malloc((size_t)nranks * bytes + 1);
    memset(mine, rank * 31 + 5, bytes + 1);
    CHECK(bootstrap.allgather(bootstrap.context, mine, all, bytes, 10000000000) == 0);
    for (size_t i = 0; i < (size_t)nranks * bytes; i++) CHECK(all[i] == (unsigned char)((int)(i / bytes) * 31 + 5));
    free(all);
    free(mine);
  }
  banyan_mpi_destroy(handle);
}

static void reject(banyan_status status, banyan_status expected, const char *named) {
  CHECK(status == expected && strstr(banyan_last_error(), named) != NULL);
  CHECK(banyan_barrier(NULL) == BANYAN_ERR_ARGUMENT); /* replaces the error text */
}

/* Communicators are rejected before MPI_Init and after MPI_Finalize. */
static void check_absent(void) {
  banyan_mpi *handle = NULL;
  banyan_bootstrap bootstrap;
  banyan_comm *comm = NULL;
  reject(banyan_mpi_bootstrap(MPI_COMM_WORLD, &handle, &bootstrap), BANYAN_ERR_STATE, "MPI is not running");
  reject(banyan_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm), BANYAN_ERR_STATE, "MPI is not running");
  CHECK(handle == NULL && comm == NULL);
}

static void check_arguments(void) {
  banyan_mpi *handle = NULL;
  banyan_bootstrap bootstrap = {.rank = -7};
  reject(banyan_mpi_bootstrap(MPI_COMM_NULL, &handle, &bootstrap), BANYAN_ERR_ARGUMENT, "MPI_COMM_NULL");
  reject(banyan_mpi_bootstrap(MPI_COMM_WORLD, NULL, &bootstrap), BANYAN_ERR_ARGUMENT, "handle");
  reject(banyan_mpi_bootstrap(MPI_COMM_WORLD, &handle, NULL), BANYAN_ERR_ARGUMENT, "bootstrap");
  CHECK(handle == NULL && bootstrap.rank == -7);
  banyan_mpi_destroy(NULL);
}

static void make_communicator(MPI_Comm comm) {
  banyan_comm *made = NULL;
  int nranks;
  MPI_Comm_size(comm, &nranks);
  CHECK(banyan_comm_create_mpi(comm, NULL, &made) == BANYAN_OK);
  CHECK(banyan_comm_nranks(made) == nranks);
  CHECK(banyan_barrier(made) == BANYAN_OK);
  banyan_comm_destroy(made);
}

/* The last rank skips an allgather. The others get an error at their deadline, and later calls fail at once. */
static void miss_an_allgather(MPI_Comm comm) {
  banyan_mpi *handle;
  banyan_bootstrap bootstrap;
  CHECK(banyan_mpi_bootstrap(comm, &handle, &bootstrap) == BANYAN_OK);
  int mine = 1, *all = calloc((size_t)bootstrap.nranks, sizeof *all);
  double before = MPI_Wtime(), waited = self_waited_s();
  if (bootstrap.rank < bootstrap.nranks - 1) {
    CHECK(bootstrap.allgather(bootstrap.context, &mine, all, sizeof mine, 300000000) == BANYAN_ERR_TIMEOUT);
    double took = MPI_Wtime() - before;
    CHECK(took > 0.29 && took < 3 + self_waited_s() - waited); /* other processes may use the cores */
    CHECK(bootstrap.allgather(bootstrap.context, &mine, all, sizeof mine, 300000000) == BANYAN_ERR_TIMEOUT);
    CHECK(all[0] == 0);
  }
  MPI_Barrier(comm);
  banyan_mpi_destroy(handle);
  free(all);
}

int main(int argc, char **argv) {
  check_absent();
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  check_arguments();
  gather_rounds(MPI_COMM_WORLD);
  MPI_Comm part;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank == 0, -world_rank, &part); /* the others, in reverse order */
  gather_rounds(part);
  make_communicator(MPI_COMM_WORLD);
  make_communicator(part);
  MPI_Comm_free(&part);
  int nranks;
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  if (nranks > 1) miss_an_allgather(MPI_COMM_WORLD);
  if (world_rank == 0) printf("%d ranks: ok\n", nranks);
  MPI_Finalize();
  check_absent();
  return 0;
}
