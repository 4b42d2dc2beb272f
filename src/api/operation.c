/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls on persistent operations. */
#include "op/operation.h"
#include "base/sized.h"
#include "base/status.h"

static const char no_op[] = "op is NULL";

banyan_status banyan_start(banyan_op *op) { return op ? bny_op_start(op) : bny_fail(BANYAN_ERR_ARGUMENT, no_op); }

banyan_status banyan_test(banyan_op *op, int *done) {
  if (!op || !done) return bny_fail(BANYAN_ERR_ARGUMENT, "op and done must not be NULL");
  return bny_op_finish(op, false, done);
}

banyan_status banyan_wait(banyan_op *op) {
  return op ? bny_op_finish(op, true, NULL) : bny_fail(BANYAN_ERR_ARGUMENT, no_op);
}

void banyan_op_free(banyan_op *op) { bny_op_free(op); }

banyan_status banyan_op_query(const banyan_op *op, banyan_op_info *info) {
  if (!op || !info) return bny_fail(BANYAN_ERR_ARGUMENT, "op and info must not be NULL");
  banyan_op_info found = bny_op_query(op);
  return bny_sized_write(&bny_sized_op_info, "info", &found, info);
}

size_t banyan_op_describe(const banyan_op *op, char *text, size_t bytes) {
  if (!text) bytes = 0;
  if (bytes) text[0] = 0;
  return op ? bny_op_describe(op, text, bytes) : 0;
}

banyan_status banyan_comm_reject(banyan_comm *comm, banyan_status status, const char *why, int init) {
  if (!comm || !why || status <= BANYAN_OK || status > BANYAN_ERR_ABORTED)
    return bny_fail(BANYAN_ERR_ARGUMENT, "comm and why must not be NULL, and status is %d, must be a failure", status);
  return bny_op_reject(comm, bny_fail(status, "%s", why), init != 0);
}
