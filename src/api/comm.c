/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls that make and end a communicator. */
#include "comm/comm.h"

#include <inttypes.h>

#include "op/operation.h"
#include "base/float_control.h"
#include "base/sized.h"
#include "base/status.h"

static banyan_status check_bootstrap(const banyan_bootstrap *bootstrap) {
  if (!bootstrap->allgather) return bny_fail(BANYAN_ERR_ARGUMENT, "bootstrap.allgather is NULL");
  if (bootstrap->nranks < 1 || bootstrap->nranks > BNY_RANKS_MAX || bootstrap->rank < 0 ||
      bootstrap->rank >= bootstrap->nranks)
    return bny_fail(BANYAN_ERR_ARGUMENT, "bootstrap has rank %d of %d; there may be 1 to %d", bootstrap->rank,
                    bootstrap->nranks, BNY_RANKS_MAX);
  return BANYAN_OK;
}

static banyan_status check_config(const banyan_comm_config *config) {
  if (config->timeout_ns < 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "config.timeout_ns is %" PRId64 "; it must not be negative",
                    config->timeout_ns);
  if (config->first_timeout_ns < 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "config.first_timeout_ns is %" PRId64 "; it must not be negative",
                    config->first_timeout_ns);
  if (config->threads < 0 || config->threads > BNY_POOL_THREADS_MAX)
    return bny_fail(BANYAN_ERR_ARGUMENT, "config.threads is %" PRId64 "; it must be between 0 and %d", config->threads,
                    BNY_POOL_THREADS_MAX);
  if (config->arena_bytes && (config->arena_bytes < 65536 || config->arena_bytes > (size_t)1 << 34))
    return bny_fail(BANYAN_ERR_ARGUMENT, "config.arena_bytes is %zu; it must be between 64 KiB and 16 GiB",
                    config->arena_bytes);
  return BANYAN_OK;
}

banyan_status banyan_comm_create(const banyan_bootstrap *bootstrap, const banyan_comm_config *config,
                                 banyan_comm **comm) {
  BNY_FLOAT_MODE;
  banyan_bootstrap bootstrap_room;
  banyan_comm_config config_room;
  if (!bootstrap || !comm) return bny_fail(BANYAN_ERR_ARGUMENT, "bootstrap and comm must not be NULL");
  bootstrap = bny_sized_read(&bny_sized_bootstrap, "bootstrap", bootstrap, &bootstrap_room);
  if (!bootstrap) return BANYAN_ERR_ARGUMENT;
  banyan_status status = check_bootstrap(bootstrap);
  if (status != BANYAN_OK) return status;
  if (config) {
    config = bny_sized_read(&bny_sized_comm_config, "config", config, &config_room);
    status = config ? check_config(config) : BANYAN_ERR_ARGUMENT;
    if (status != BANYAN_OK) config = NULL; /* peers get the error in the first exchange, so they do not wait */
  }
  return bny_comm_make(bootstrap, config, status, bootstrap->rank, NULL, comm);
}

void banyan_comm_destroy(banyan_comm *comm) {
  if (!comm) return;
  bny_ops_free(comm);
  bny_comm_free(comm);
}
