/* SPDX-License-Identifier: Apache-2.0
 * Combines within a kernel of a device: attention's kernel, or the caller's. */
#include "op/operation.h"
#include "base/status.h"

banyan_status bny_op_make_within(const banyan_op *op, const bny_request *request, bny_device_combine *combine) {
  if (op->comm->device.proxy)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "a combine within a kernel needs devices that share memory; here those of several nodes do not");
  return bny_device_run_within(&op->comm->device, request, combine);
}

/* Merging blocks beyond the number of rows would have nothing to merge. */
void bny_op_fill_within(const banyan_op *op, const banyan_partial *rows, const banyan_partial *out, int64_t mergers,
                        int32_t warps, bny_device_combine *combine) {
  bny_slice owned = bny_slice_owned(&op->kinds[0].request, op->comm->rank);
  int64_t useful = (bny_slice_rows(&owned) + warps - 1) / warps;
  if (mergers > useful) mergers = useful;
  bny_op_part first = bny_op_part_of(op, 0);
  bny_binding binding = bny_op_binding(op, &first);
  combine->call.in = *rows;
  combine->call.valid = bny_device_valid_of(&binding);
  combine->call.out = out ? *out : (banyan_partial){0};
  combine->mergers = (uint32_t)(mergers > 1 ? mergers : 1);
}

void bny_op_within(const banyan_op *op, const banyan_partial *rows, const banyan_partial *out, int32_t blocks,
                   bny_device_combine *combine) {
  const bny_engine *engine = op->comm->device.engine;
  bny_device_combine made = *op->within;
  bny_op_fill_within(op, rows, out, (int64_t)blocks * engine->sms / engine->device->facts.sm_count, 1, &made);
  *combine = made;
}

banyan_status bny_op_check_within(banyan_comm *comm, const bny_call *key) {
  banyan_op op = {.comm = comm, .key = *key, .on_device = true};
  bny_device_combine combine;
  bny_request request = bny_op_request(&op);
  return bny_op_make_within(&op, &request, &combine);
}
