/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls that gather bytes. */
#include "api/api.h"
#include "base/status.h"

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
  banyan_status status = check_gather(comm, mine, all, counts);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  bny_call call = {.collective = BNY_ALLGATHER, .counts = counts};
  return bny_op_run_or_keep(comm, &call, &(bny_op_memory){.in_bytes = mine, .out_bytes = all}, keep);
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
