/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls of the shift: each rank sends to rank + distance. */
#include "api/api.h"
#include "base/status.h"

static banyan_status check_shift(banyan_comm *comm, const void *send, const void *receive, size_t bytes) {
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  banyan_status status = bny_api_check_bytes(bytes);
  if (status != BANYAN_OK) return status;
  if (bytes && (!send || !receive)) return bny_fail(BANYAN_ERR_ARGUMENT, "%s is NULL", send ? "receive" : "send");
  if (bny_api_overlap(send, bytes, receive, bytes)) return bny_fail(BANYAN_ERR_ARGUMENT, "send and receive overlap");
  status = bny_api_check_memory_bytes(comm, "send", send, bytes);
  return status == BANYAN_OK ? bny_api_check_memory_bytes(comm, "receive", receive, bytes) : status;
}

static banyan_status shift(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance,
                           banyan_op **keep) {
  banyan_status status = check_shift(comm, send, receive, bytes);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  int32_t distance_mod = distance % comm->nranks;
  bny_call call = {.collective = BNY_SHIFT,
                   .bytes = bytes,
                   .distance = distance_mod < 0 ? distance_mod + comm->nranks : distance_mod};
  return bny_op_run_or_keep(comm, &call, &(bny_op_memory){.in_bytes = send, .out_bytes = receive}, keep);
}

banyan_status banyan_shift(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance) {
  BNY_FLOAT_MODE;
  return shift(comm, send, receive, bytes, distance, NULL);
}

banyan_status banyan_shift_init(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance,
                                banyan_op **op) {
  BNY_FLOAT_MODE;
  return op ? shift(comm, send, receive, bytes, distance, op) : bny_api_reject_init(comm);
}
