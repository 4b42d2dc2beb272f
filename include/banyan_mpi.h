/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes a communicator from an MPI_Comm. This is a separate library, libbanyan-mpi (pkg-config banyan-mpi), so
 * libbanyan never links MPI. MPI serves only to make the communicator; banyan's collectives do not use it.
 *
 * All calls are collective over the MPI communicator. Make them in a thread that may call MPI. */
#ifndef BANYAN_MPI_H
#define BANYAN_MPI_H

#include <mpi.h>

#include "banyan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* See banyan.h. */
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Makes a bootstrap from the ranks of an intra-communicator, which it duplicates. If its allgather fails, it returns a
 * banyan_status other than BANYAN_OK. MPI does not report which rank was missing, and cannot cancel a collective. If
 * one passes its deadline, MPI therefore keeps the memory of that collective, which is a copy of the data and never the
 * caller's.
 *
 * - BANYAN_ERR_ARGUMENT: comm is MPI_COMM_NULL or an inter-communicator, or a pointer is NULL.
 * - BANYAN_ERR_STATE: MPI is not initialised, or already finalised.
 * - BANYAN_ERR_TIMEOUT: some rank did not call within 30 s. */
typedef struct banyan_mpi banyan_mpi;
banyan_status banyan_mpi_bootstrap(MPI_Comm comm, banyan_mpi **handle, banyan_bootstrap *bootstrap);

/* Frees a bootstrap. Call it as soon as the communicator is made, and before MPI_Finalize(). NULL is allowed. */
void banyan_mpi_destroy(banyan_mpi *handle);

/* Makes the bootstrap, creates the communicator, and frees the bootstrap. config may be NULL. */
banyan_status banyan_comm_create_mpi(MPI_Comm mpi_comm, const banyan_comm_config *config, banyan_comm **comm);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
