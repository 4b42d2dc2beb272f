/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls on persistent operations. */
#include "op/operation.h"
#include "base/float_control.h"
#include "base/sized.h"
#include "base/status.h"

/* Its communicator must exist as well. */
static banyan_status check(const banyan_op *op) {
  if (op && op->comm) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, op ? "the communicator of op was destroyed" : "op is NULL");
}

banyan_status banyan_start(banyan_op *op) {
  BNY_FLOAT_MODE;
  banyan_status status = check(op);
  return status == BANYAN_OK ? bny_op_start(op) : status;
}

banyan_status banyan_test(banyan_op *op, int *done) {
  BNY_FLOAT_MODE;
  if (!done) return bny_fail(BANYAN_ERR_ARGUMENT, "done is NULL");
  banyan_status status = check(op);
  return status == BANYAN_OK ? bny_op_finish(op, false, done) : status;
}

banyan_status banyan_wait(banyan_op *op) {
  BNY_FLOAT_MODE;
  banyan_status status = check(op);
  return status == BANYAN_OK ? bny_op_finish(op, true, NULL) : status;
}

void banyan_op_free(banyan_op *op) {
  BNY_FLOAT_MODE;
  bny_op_free(op);
}

banyan_status banyan_op_query(const banyan_op *op, banyan_op_info *info) {
  if (!info) return bny_fail(BANYAN_ERR_ARGUMENT, "info is NULL");
  banyan_status status = check(op);
  if (status != BANYAN_OK) return status;
  banyan_op_info found = bny_op_query(op);
  return bny_sized_write(&bny_sized_op_info, "info", &found, info);
}

size_t banyan_op_describe(const banyan_op *op, char *text, size_t bytes) {
  if (!text) bytes = 0;
  if (bytes) text[0] = 0;
  return op && op->comm ? bny_op_describe(op, text, bytes) : 0;
}

banyan_status banyan_comm_reject(banyan_comm *comm, banyan_status status, const char *why, int init) {
  if (!comm || !why || status <= BANYAN_OK || status > BANYAN_ERR_ABORTED)
    return bny_fail(BANYAN_ERR_ARGUMENT, "comm and why must not be NULL, and status, here %d, must be a failure",
                    status);
  return bny_op_reject(comm, bny_fail(status, "%s", why), init != 0);
}
