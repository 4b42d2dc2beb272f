/* SPDX-License-Identifier: Apache-2.0
 * Makes ranks from an MPI communicator. This is part of libbanyan-mpi and uses only what banyan.h declares. */
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "banyan_mpi.h"

struct banyan_mpi {
  MPI_Comm comm;
  banyan_status failure; /* not BANYAN_OK: final, and MPI may still hold the communicator */
};

static const int64_t default_timeout_ns = 30000000000;
/* The part of a long gap between two tests that counts. The process was stopped for the rest. */
static const int64_t gap_ns = 250000000;
static const int64_t spin_ns = 2000000; /* afterwards sleeps between the tests */

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static banyan_status fail_memory(void) {
  return banyan_bootstrap_fail(BANYAN_ERR_MEMORY, "out of memory for ranks of MPI");
}

/* MPI_Wait with a deadline. After BANYAN_ERR_TIMEOUT MPI still owns the request. */
static banyan_status wait_for(MPI_Request *request, int64_t timeout_ns) {
  int64_t begun_ns = now_ns(), seen_ns = begun_ns;
  if (timeout_ns <= 0) timeout_ns = default_timeout_ns;
  for (;;) {
    int done = 0;
    if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return banyan_bootstrap_fail(BANYAN_ERR_BOOTSTRAP, "MPI_Test failed in a collective of all ranks");
    if (done) return BANYAN_OK;
    int64_t now = now_ns(), paused_ns = now - seen_ns - gap_ns, waited_ns;
    if (paused_ns > 0) begun_ns += paused_ns;
    seen_ns = now;
    waited_ns = now - begun_ns;
    if (waited_ns >= timeout_ns)
      return banyan_bootstrap_fail(
          BANYAN_ERR_TIMEOUT, "the deadline passed in a collective of MPI, which does not say which rank was missing");
    if (waited_ns < spin_ns)
      sched_yield();
    else
      nanosleep(&(struct timespec){0, 100000}, NULL);
  }
}

/* Gathers through its own memory, because after a timeout MPI may write to it at any later time. */
static banyan_status gather(struct banyan_mpi *self, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  int nranks;
  MPI_Request request;
  if (MPI_Comm_size(self->comm, &nranks) != MPI_SUCCESS)
    return banyan_bootstrap_fail(BANYAN_ERR_BOOTSTRAP, "MPI_Comm_size failed");
  if (bytes > INT_MAX || bytes > PTRDIFF_MAX / ((size_t)nranks + 1))
    return banyan_bootstrap_fail(BANYAN_ERR_ARGUMENT, "MPI counts at most 2^31 - 1 bytes of a rank");
  char *memory = malloc(bytes * ((size_t)nranks + 1) + 1);
  if (!memory) return fail_memory();
  char *copy = memory + bytes * (size_t)nranks;
  if (bytes > 0) memcpy(copy, mine, bytes);
  if (MPI_Iallgather(copy, (int)bytes, MPI_BYTE, memory, (int)bytes, MPI_BYTE, self->comm, &request) != MPI_SUCCESS) {
    free(memory);
    return banyan_bootstrap_fail(BANYAN_ERR_BOOTSTRAP, "MPI_Iallgather failed");
  }
  banyan_status status = wait_for(&request, timeout_ns);
  if (status) return status; /* MPI keeps the memory forever */
  if (bytes > 0) memcpy(all, memory, bytes * (size_t)nranks);
  free(memory);
  return BANYAN_OK;
}

static int allgather_mpi(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  struct banyan_mpi *self = context;
  if (self->failure)
    return (int)banyan_bootstrap_fail(self->failure,
                                      "an earlier collective of MPI failed; this would meet its messages");
  return (int)(self->failure = gather(self, mine, all, bytes, timeout_ns));
}

static bool mpi_is_up(void) {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised && !finalised;
}

/* Duplicates the communicator. Messages of the copy do not mix with the caller's, and its errors return instead of
 * ending the program. */
static banyan_status duplicate(MPI_Comm comm, MPI_Comm **place) {
  MPI_Request request;
  MPI_Comm *made = malloc(sizeof *made);
  if (!made) return fail_memory();
  if (MPI_Comm_idup(comm, made, &request) != MPI_SUCCESS) {
    free(made);
    return banyan_bootstrap_fail(BANYAN_ERR_BOOTSTRAP, "MPI_Comm_idup failed");
  }
  banyan_status status = wait_for(&request, 0);
  if (status) return status; /* MPI may still write the handle */
  MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
  *place = made;
  return BANYAN_OK;
}

banyan_status banyan_mpi_bootstrap(MPI_Comm comm, banyan_mpi **handle, banyan_bootstrap *bootstrap) {
  int inter = 0, rank, nranks;
  MPI_Comm *own = NULL;
  if (!handle || !bootstrap) return banyan_bootstrap_fail(BANYAN_ERR_ARGUMENT, "handle and bootstrap must not be NULL");
  if (comm == MPI_COMM_NULL) return banyan_bootstrap_fail(BANYAN_ERR_ARGUMENT, "the MPI communicator is MPI_COMM_NULL");
  if (!mpi_is_up())
    return banyan_bootstrap_fail(BANYAN_ERR_STATE,
                                 "MPI is not running: call this between MPI_Init() and MPI_Finalize()");
  if (MPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter)
    return banyan_bootstrap_fail(BANYAN_ERR_ARGUMENT,
                                 "the MPI communicator is an inter-communicator; merge its groups first");
  if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &nranks) != MPI_SUCCESS)
    return banyan_bootstrap_fail(BANYAN_ERR_BOOTSTRAP, "MPI_Comm_rank or MPI_Comm_size failed");
  struct banyan_mpi *made = calloc(1, sizeof *made);
  if (!made) return fail_memory();
  banyan_status status = duplicate(comm, &own);
  if (status) {
    free(made);
    return status;
  }
  made->comm = *own;
  free(own);
  *handle = made;
  *bootstrap = (banyan_bootstrap){
      .size = sizeof *bootstrap, .rank = rank, .nranks = nranks, .context = made, .allgather = allgather_mpi};
  return BANYAN_OK;
}

void banyan_mpi_destroy(banyan_mpi *handle) {
  if (!handle) return;
  if (!handle->failure && mpi_is_up()) MPI_Comm_free(&handle->comm);
  free(handle);
}

banyan_status banyan_comm_create_mpi(MPI_Comm mpi_comm, const banyan_comm_config *config, banyan_comm **comm) {
  banyan_mpi *handle;
  banyan_bootstrap bootstrap;
  banyan_status status = banyan_mpi_bootstrap(mpi_comm, &handle, &bootstrap);
  if (status) return status;
  status = banyan_comm_create(&bootstrap, config, comm);
  banyan_mpi_destroy(handle);
  return status;
}
