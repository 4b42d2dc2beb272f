/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls that move bytes, and the barrier, whose messages have none. */
#include "api/api.h"
#include "base/status.h"

/* Runs or keeps a call, unless its check has failed. */
static banyan_status run(banyan_comm *comm, banyan_status status, const bny_call *call, const void *in, void *out,
                         banyan_op **keep) {
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  return bny_op_run_or_keep(comm, call, &(bny_op_memory){.in_bytes = in, .out_bytes = out}, keep);
}

/* ---- allgather --------------------------------------------------------------------------------------------------- */

static banyan_status check_gather(banyan_comm *comm, const void *mine, const void *all, const size_t *counts) {
  if (!comm || !counts) return bny_fail(BANYAN_ERR_ARGUMENT, "comm and counts must not be NULL");
  size_t total = 0, before = 0;
  for (int32_t i = 0; i < comm->nranks; i++) {
    if (i == comm->rank) before = total;
    if (__builtin_add_overflow(total, counts[i], &total) || total > bny_api_bytes_max)
      return bny_fail(BANYAN_ERR_ARGUMENT, "counts[%d] is %zu: the sum of counts is larger than any memory (%zu bytes)",
                      i, counts[i], bny_api_bytes_max);
  }
  if ((total && !all) || (counts[comm->rank] && !mine))
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s is NULL", total && !all ? "all" : "mine");
  if ((uintptr_t)mine != (uintptr_t)all + before && bny_api_overlap(mine, counts[comm->rank], all, total))
    return bny_fail(BANYAN_ERR_ARGUMENT, "mine overlaps all, and is not its own place in it, which is byte %zu",
                    before);
  banyan_status status = bny_api_check_memory_bytes(comm, "mine", mine, counts[comm->rank]);
  return status == BANYAN_OK ? bny_api_check_memory_bytes(comm, "all", all, total) : status;
}

static banyan_status gather(banyan_comm *comm, const void *mine, void *all, const size_t *counts, banyan_op **keep) {
  bny_call call = {.collective = BNY_ALLGATHER, .counts = counts};
  return run(comm, check_gather(comm, mine, all, counts), &call, mine, all, keep);
}

banyan_status banyan_allgather(banyan_comm *comm, const void *mine, void *all, const size_t *counts) {
  BNY_FLOAT_MODE;
  return gather(comm, mine, all, counts, NULL);
}

banyan_status banyan_allgather_init(banyan_comm *comm, const void *mine, void *all, const size_t *counts,
                                    banyan_op **op) {
  BNY_FLOAT_MODE;
  return op ? gather(comm, mine, all, counts, op) : bny_api_reject_init(comm);
}

/* ---- shift ------------------------------------------------------------------------------------------------------- */

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
  int32_t rest = comm ? distance % comm->nranks : 0;
  bny_call call = {.collective = BNY_SHIFT, .bytes = bytes, .distance = rest < 0 ? rest + comm->nranks : rest};
  return run(comm, check_shift(comm, send, receive, bytes), &call, send, receive, keep);
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

/* ---- broadcast --------------------------------------------------------------------------------------------------- */

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
  bny_call call = {.collective = BNY_BROADCAST, .bytes = bytes, .root = root};
  return run(comm, check_broadcast(comm, data, bytes, root), &call, data, data, keep);
}

banyan_status banyan_broadcast(banyan_comm *comm, void *data, size_t bytes, int32_t root) {
  BNY_FLOAT_MODE;
  return broadcast(comm, data, bytes, root, NULL);
}

banyan_status banyan_broadcast_init(banyan_comm *comm, void *data, size_t bytes, int32_t root, banyan_op **op) {
  BNY_FLOAT_MODE;
  return op ? broadcast(comm, data, bytes, root, op) : bny_api_reject_init(comm);
}

/* ---- barrier ----------------------------------------------------------------------------------------------------- */

static banyan_status barrier(banyan_comm *comm, banyan_op **keep) {
  return run(comm, BANYAN_OK, &(bny_call){.collective = BNY_BARRIER}, NULL, NULL, keep);
}

banyan_status banyan_barrier(banyan_comm *comm) {
  BNY_FLOAT_MODE;
  return comm ? barrier(comm, NULL) : bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
}

banyan_status banyan_barrier_init(banyan_comm *comm, banyan_op **op) {
  BNY_FLOAT_MODE;
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  return op ? barrier(comm, op) : bny_api_reject_init(comm);
}
