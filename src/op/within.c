/* SPDX-License-Identifier: Apache-2.0
 * Combines within a kernel of a device: attention's kernel, which pushes rows and is followed by one that merges them,
 * or the caller's, which does both. */
#include "op/operation.h"
#include "base/status.h"

banyan_status bny_op_make_within(const banyan_op *op, const bny_request *request, bny_device_combine *combine) {
  if (op->comm->device.proxy)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "a combine within a kernel needs devices that share memory; here those of several nodes do not");
  return bny_device_run_within(&op->comm->device, request, combine);
}

void bny_op_set_valid_within(const banyan_op *op, bny_device_combine *combine) {
  bny_op_part first = bny_op_part_of(op, 0);
  bny_binding binding = bny_op_binding(op, &first);
  combine->call.valid = bny_device_valid_of(&binding);
}

/* Merging blocks beyond the number of rows would have nothing to merge. */
void bny_op_within(const banyan_op *op, const banyan_partial *rows, const banyan_partial *out, int32_t blocks,
                   bny_device_combine *combine) {
  const bny_engine *engine = op->comm->device.engine;
  bny_slice owned = bny_slice_owned(&op->kinds[0].request, op->comm->rank);
  int64_t mergers = (int64_t)blocks * engine->sms / engine->device->facts.sm_count, useful = bny_slice_rows(&owned);
  if (mergers > useful) mergers = useful;
  bny_device_combine made = *op->within;
  bny_op_set_valid_within(op, &made);
  made.call.in = *rows;
  made.call.out = out ? *out : (banyan_partial){0};
  made.mergers = (uint32_t)(mergers > 1 ? mergers : 1);
  *combine = made;
}

banyan_status bny_op_check_within(banyan_comm *comm, const bny_call *call) {
  banyan_op op = {.comm = comm, .call = *call, .on_device = true};
  bny_device_combine combine;
  bny_request request = bny_op_request(&op);
  return bny_op_make_within(&op, &request, &combine);
}
