/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls that broadcast bytes. */
#include "api/api.h"
#include "base/status.h"

static banyan_status check_broadcast(banyan_comm *comm, const void *data, size_t bytes, int32_t root) {
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  banyan_status status = bny_api_check_bytes(bytes);
  if (status != BANYAN_OK) return status;
  if (bytes && !data) return bny_fail(BANYAN_ERR_ARGUMENT, "data is NULL");
  if (root < 0 || root >= comm->nranks)
    return bny_fail(BANYAN_ERR_ARGUMENT, "root is %d, must be 0..%d", root, comm->nranks - 1);
  return bny_api_check_memory_bytes(comm, "data", data, bytes);
}

static banyan_status broadcast(banyan_comm *comm, void *data, size_t bytes, int32_t root, banyan_op **keep) {
  banyan_status status = check_broadcast(comm, data, bytes, root);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  bny_call call = {.collective = BNY_BROADCAST, .bytes = bytes, .root = root};
  return bny_op_run_or_keep(comm, &call, &(bny_op_memory){.in_bytes = data, .out_bytes = data}, keep);
}

banyan_status banyan_broadcast(banyan_comm *comm, void *data, size_t bytes, int32_t root) {
  BNY_FLOAT_MODE;
  return broadcast(comm, data, bytes, root, NULL);
}

banyan_status banyan_broadcast_init(banyan_comm *comm, void *data, size_t bytes, int32_t root, banyan_op **op) {
  BNY_FLOAT_MODE;
  return op ? broadcast(comm, data, bytes, root, op) : bny_api_reject_init(comm);
}
