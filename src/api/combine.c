/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls that merge the partials of all ranks. */
#include "api/api.h"

#include <string.h>

#include "base/sized.h"
#include "base/status.h"

static banyan_status check_combine(const banyan_combine_desc *desc) {
  if (desc->tokens < 0 || desc->heads < 0 || desc->value_dim < 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc has tokens %d, heads %d, value_dim %d; none may be negative",
                    desc->tokens, desc->heads, desc->value_dim);
  if ((int64_t)desc->tokens * desc->heads > INT32_MAX || desc->value_dim > 65536)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc has %d tokens x %d heads of %d values; at most 2^31 - 1 rows of 65536",
                    desc->tokens, desc->heads, desc->value_dim);
  return BANYAN_OK;
}

banyan_status bny_api_combine_call(const banyan_comm *comm, const banyan_combine_desc **desc, banyan_combine_desc *room,
                                   bny_call *call) {
  if (!comm || !*desc) return bny_fail(BANYAN_ERR_ARGUMENT, "comm and desc must not be NULL");
  const banyan_combine_desc *known = bny_sized_read(&bny_sized_combine_desc, "desc", *desc, room);
  if (!known) return BANYAN_ERR_ARGUMENT;
  bny_call made = {
      .collective = BNY_COMBINE,
      .all_tokens = known->tokens,
      .tokens = known->tokens,
      .all_heads = known->heads,
      .value_dim = known->value_dim,
      .scatter = known->scatter,
      .order = known->order,
      .root = known->root,
  };
  banyan_status status = check_combine(known);
  if (status == BANYAN_OK) status = bny_api_set_way(comm, known->wire, known->algorithm, &made);
  if (status != BANYAN_OK) return status;
  *desc = known;
  *call = made;
  return BANYAN_OK;
}

/* Checks that the result overwrites no row of the input except its own. */
static banyan_status check_apart(const banyan_comm *comm, const bny_call *call, const banyan_partial *in,
                                 const bny_box *all, const banyan_partial *out, const bny_box *result) {
  int32_t token0 = 0, head0 = 0, number;
  const char *names[2];
  if (call->scatter == BANYAN_SCATTER_HEADS) banyan_split(call->all_heads, comm->nranks, comm->rank, &head0, &number);
  if (call->scatter == BANYAN_SCATTER_TOKENS) banyan_split(call->tokens, comm->nranks, comm->rank, &token0, &number);
  if (bny_box_is_empty(result) || !bny_partial_overlaps(in, all, out, result, token0, head0, names)) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT,
                  "out.%s overlaps in.%s: use separate memory, or the same array with each row at the same address and "
                  "of the same type",
                  names[1], names[0]);
}

static banyan_status combine(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                             const banyan_partial *out, banyan_op **keep) {
  banyan_combine_desc desc_room;
  banyan_partial in_room, out_room;
  banyan_valid_rows valid_room;
  bny_call call;
  banyan_status status = bny_api_combine_call(comm, &desc, &desc_room, &call);
  const banyan_valid_rows *valid = status == BANYAN_OK ? desc->valid : NULL;
  if (status == BANYAN_OK) status = bny_api_read_valid(comm, &valid, &valid_room, !keep, &call);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  bny_box all = {call.tokens, call.all_heads, call.value_dim}, result = bny_op_result_box(comm, &call);
  status = bny_api_check_partial(&in, &in_room, &all, false);
  if (status == BANYAN_OK) status = bny_api_check_partial(&out, &out_room, &result, true);
  if (status == BANYAN_OK) status = check_apart(comm, &call, in, &all, out, &result);
  if (status == BANYAN_OK) status = bny_api_check_memory_partial(comm, in, &all, false);
  if (status == BANYAN_OK) status = bny_api_check_memory_partial(comm, out, &result, true);
  if (status == BANYAN_OK) status = bny_api_check_memory_valid(comm, valid);
  if (status == BANYAN_OK && !keep && !comm->device.engine && !bny_box_is_empty(&all))
    status = bny_op_check_scales("in", in, all.heads);
  if (status == BANYAN_OK && !keep && !comm->device.engine && !bny_box_is_empty(&result))
    status = bny_op_check_scales("out", out, result.heads);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  bny_op_memory memory = {.in = in,
                          .out = bny_box_is_empty(&result) ? NULL : out,
                          .valid = valid,
                          .tokens = call.tokens,
                          .stream = desc->stream};
  banyan_op *op;
  status = bny_op_obtain(comm, &call, &memory, keep != NULL, &op);
  if (status != BANYAN_OK) return status;
  if (keep) {
    *keep = op;
    return BANYAN_OK;
  }
  if (!bny_box_is_empty(&all) && memory.out) bny_op_remember(op, desc, in, out);
  return bny_op_run(op);
}

banyan_status banyan_combine(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                             const banyan_partial *out) {
  BNY_FLOAT_MODE;
  banyan_op *op = bny_op_repeated(comm, desc, in, out);
  return op ? bny_op_run(op) : combine(comm, desc, in, out, NULL);
}

banyan_status banyan_combine_init(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                                  const banyan_partial *out, banyan_op **op) {
  BNY_FLOAT_MODE;
  return op ? combine(comm, desc, in, out, op) : bny_api_reject_init(comm);
}

void banyan_split(int32_t count, int32_t parts, int32_t index, int32_t *first, int32_t *number) {
  int32_t begin = 0, size = 0;
  if (count > 0 && index >= 0 && index < parts) bny_slice_split(count, parts, index, &begin, &size);
  if (first) *first = begin;
  if (number) *number = size;
}
