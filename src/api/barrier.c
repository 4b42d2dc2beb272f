/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls of the barrier. */
#include "api/api.h"
#include "base/status.h"

banyan_status banyan_barrier(banyan_comm *comm) {
  BNY_FLOAT_MODE;
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  return bny_op_run_or_keep(comm, &(bny_call){.collective = BNY_BARRIER}, &(bny_op_memory){0}, NULL);
}

banyan_status banyan_barrier_init(banyan_comm *comm, banyan_op **op) {
  BNY_FLOAT_MODE;
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  if (!op) return bny_api_reject_init(comm);
  return bny_op_run_or_keep(comm, &(bny_call){.collective = BNY_BARRIER}, &(bny_op_memory){0}, op);
}
