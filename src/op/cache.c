/* SPDX-License-Identifier: Apache-2.0
 * Keeps the operations of blocking calls, by the shape of the call. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "op/operation.h"
#include "base/log.h"

/* The order of the list depends only on the calls, which are the same on all ranks. So all ranks find the operation, or
 * none does. */
static int find(const banyan_comm *comm, const bny_call *call, bool *is_known) {
  int at = 0;
  *is_known = false;
  if (!comm->ops) return at;
  banyan_op *const *list = comm->ops->blocking;
  while (at < BNY_BLOCKING_OPS && list[at] && !bny_call_equal(&list[at]->call, call, comm->nranks)) at++;
  *is_known = at < BNY_BLOCKING_OPS && list[at];
  return at < BNY_BLOCKING_OPS ? at : BNY_BLOCKING_OPS - 1; /* the oldest makes room */
}

static void move_to_front(bny_ops *ops, int at, banyan_op *op) {
  for (; at > 0; at--) ops->blocking[at] = ops->blocking[at - 1];
  ops->blocking[0] = op;
}

banyan_status bny_op_find(banyan_comm *comm, const bny_call *call, banyan_op **op) {
  bool is_known;
  int at = find(comm, call, &is_known);
  banyan_op *found = is_known ? comm->ops->blocking[at] : NULL;
  if (!is_known) {
    banyan_status status = bny_op_make(comm, call, &found);
    if (status != BANYAN_OK) return status;
    bny_op_free(comm->ops->blocking[at]);
  }
  move_to_front(comm->ops, at, found);
  *op = found;
  return BANYAN_OK;
}

/* Structs that point to data which may change before the next call are not remembered. */
void bny_op_remember(banyan_op *op, const banyan_combine_desc *desc, const banyan_partial *in,
                     const banyan_partial *out) {
  if (!desc->valid && !desc->algorithm && !in->values_scale && !out->values_scale && !op->on_device)
    op->given = (bny_op_given){*desc, *in, *out};
}

/* Desc has padding after `order`, which callers leave unset. */
static bool is_same(const bny_op_given *known, const banyan_combine_desc *desc, const banyan_partial *in,
                    const banyan_partial *out) {
  return memcmp(&known->desc, desc, offsetof(banyan_combine_desc, order) + sizeof desc->order) == 0 &&
         known->desc.algorithm == desc->algorithm && known->desc.stream == desc->stream &&
         known->desc.valid == desc->valid && memcmp(&known->in, in, sizeof *in) == 0 &&
         memcmp(&known->out, out, sizeof *out) == 0;
}

banyan_op *bny_op_repeated(const banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                           const banyan_partial *out) {
  if (!comm || !comm->ops || !desc || desc->size != sizeof *desc || !in || in->size != sizeof *in || !out ||
      out->size != sizeof *out)
    return NULL;
  for (int at = 0; at < BNY_BLOCKING_OPS && comm->ops->blocking[at]; at++) {
    banyan_op *op = comm->ops->blocking[at];
    if (!is_same(&op->given, desc, in, out)) continue;
    if (at > 0) move_to_front(comm->ops, at, op);
    return op;
  }
  return NULL;
}

void bny_op_use_stream(banyan_comm *comm, void *stream) {
  if (comm->device.engine) bny_engine_use_stream(comm->device.engine, stream ? stream : comm->stream);
}

banyan_status bny_op_obtain(banyan_comm *comm, const bny_call *call, const bny_op_memory *memory, bool keep,
                            banyan_op **op) {
  banyan_op *found;
  bny_op_use_stream(comm, memory->stream);
  banyan_status status = keep ? bny_op_make(comm, call, &found) : bny_op_find(comm, call, &found);
  if (status != BANYAN_OK) return status;
  status = bny_op_reserve_valid(found, memory->valid);
  if (status != BANYAN_OK) {
    if (keep) bny_op_free(found);
    return status;
  }
  bny_op_bind(found, memory);
  if (keep && found->on_device && found->nkinds > 0 && found->kinds[0].plan->roundings > 0)
    found->counter = bny_engine_take_counter(comm->device.engine);
  *op = found;
  return BANYAN_OK;
}

banyan_status bny_op_run_or_keep(banyan_comm *comm, const bny_call *call, const bny_op_memory *memory,
                                 banyan_op **keep) {
  banyan_op *op;
  banyan_status status = bny_op_obtain(comm, call, memory, keep != NULL, &op);
  if (status != BANYAN_OK) return status;
  if (!keep) return bny_op_run(op);
  *keep = op;
  return BANYAN_OK;
}

void bny_ops_free(banyan_comm *comm) {
  bny_ops *ops = comm->ops;
  for (int i = 0; ops && i < BNY_BLOCKING_OPS; i++) {
    bool twice = false; /* possible in the child of a fork, if a thread of the parent was reordering them */
    for (int j = 0; j < i; j++) twice |= ops->blocking[j] == ops->blocking[i];
    if (!twice) bny_op_free(ops->blocking[i]);
  }
  for (banyan_op *op = ops ? ops->newest : NULL; op; op = op->older) {
    bny_op_free_parts(op);
    op->comm = NULL;
  }
  if (ops && ops->newest && !bny_comm_is_inherited(comm))
    bny_log(BNY_LOG_WARN,
            "banyan_comm_destroy: an operation of this communicator still exists: call banyan_op_free() first");
  free(ops);
  comm->ops = NULL;
}
