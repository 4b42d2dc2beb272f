/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention and the combine of its rows at the same time, on the host: the batch is cut into slices, and while the rows
 * of one are on the network, the next is attended to. It pays where a combine waits for the network and attention takes
 * long enough. Within a node ranks copy by themselves, so nothing would be hidden there.
 *
 * All ranks must cut alike. So they tell each other once for a shape how long attention will take, and count with the
 * longest time. */
#include <math.h>
#include <stdlib.h>

#include "api/operation_parts.h"
#include "decode/decode.h"

/* A core reads keys at about this speed (docs/performance.md, "Local attention"). */
static const double keys_bytes_per_ns = 8;

enum { SLICES_MAX = 8 };

/* A gain of less is not worth more messages. */
static const double least_gain = 0.02;

/* Without lengths keys_max counts, as far as it is set. */
static double attention_ns(const bny_attention *attention, bool has_lengths) {
  const banyan_attention_desc *desc = &attention->desc;
  int32_t threads = attention->pool ? bny_pool_threads(attention->pool) : 1;
  double row = (desc->head_dim + bny_decode_value_dim(desc)) * (double)bny_dtype_bytes(desc->kv_dtype);
  double bytes = (double)desc->batch * desc->keys_max * desc->kv_heads * row;
  if (has_lengths && desc->keys_max == 0) bytes = (double)bny_decode_attention_bytes(desc);
  return bytes / (keys_bytes_per_ns * threads);
}

/* The longest that any rank will take. Collective. */
static banyan_status longest_attention(banyan_comm *comm, double own_ns, double *longest_ns) {
  double *all = calloc((size_t)comm->nranks, sizeof *all);
  if (!all) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  banyan_status status = bny_op_gather(comm, &own_ns, sizeof own_ns, all);
  *longest_ns = 0;
  for (int32_t i = 0; i < comm->nranks; i++)
    if (all[i] > *longest_ns) *longest_ns = all[i];
  free(all);
  return status;
}

/* The predicted time of a combine of one slice of `slices`. */
static banyan_status slice_ns(const banyan_op *op, int32_t slices, double *ns) {
  bny_request request = bny_op_request(op);
  request.algorithm = op->parts[0].plan->algorithm;
  request.tokens = (op->key.all_tokens + slices - 1) / slices;
  bny_plan *plan = NULL;
  banyan_status status = bny_plan_make(&request, op->comm->rank, &plan);
  if (status == BANYAN_OK) *ns = plan->predicted_ns;
  bny_plan_free(plan);
  return status;
}

/* The combine of each slice but the last is hidden behind the attention of the next, as far as that takes as long. Each
 * costs this rank its messages. */
static double total_ns(double attention, double combine, double messages, int32_t slices) {
  double left = combine - attention / slices;
  return attention + combine + (slices - 1) * (messages + (left > 0 ? left : 0));
}

static banyan_status choose_slices(const banyan_op *op, double attention, int32_t *slices) {
  const bny_levels *levels = op->comm->levels;
  const bny_link_cost *link = levels ? &levels->levels[levels->nlevels - 1].link : &op->comm->cost;
  /* Ranks send different numbers of messages, and must choose alike. */
  double messages = bny_link_message_ns(link) * ceil(log2(op->comm->nranks)), combine, best;
  banyan_status status = slice_ns(op, 1, &combine);
  if (status != BANYAN_OK) return status;
  best = (1 - least_gain) * (attention + combine);
  for (int32_t n = 2; n <= SLICES_MAX && n <= op->key.all_tokens; n *= 2) {
    status = slice_ns(op, n, &combine);
    if (status != BANYAN_OK) return status;
    double total = total_ns(attention, combine, messages, n);
    if (total >= best) continue;
    best = total;
    *slices = n;
  }
  return BANYAN_OK;
}

banyan_status bny_op_overlap(banyan_op *op, bool has_lengths) {
  banyan_comm *comm = op->comm;
  const bny_attention *attention = op->attention;
  if (attention->engine || comm->nranks == 1 || !comm->transport->ops->reach || attention->desc.queries || op->gather ||
      op->key.all_tokens < 2 || op->nparts > 1)
    return BANYAN_OK;
  double longest_ns = 0;
  int32_t slices = comm->slices ? comm->slices : 1;
  banyan_status status = BANYAN_OK;
  if (!comm->slices) {
    status = longest_attention(comm, attention_ns(attention, has_lengths), &longest_ns);
    if (status == BANYAN_OK) status = choose_slices(op, longest_ns, &slices);
  }
  if (status != BANYAN_OK || slices == 1) return status;
  op->slices = slices;
  return bny_op_plan_again(op);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

banyan_status bny_op_attend_slices(banyan_op *op) {
  int32_t batch = op->attention->desc.batch < op->tokens ? op->attention->desc.batch : op->tokens;
  banyan_status status = BANYAN_OK;
  for (op->ready = 0; op->ready < op->nparts && status == BANYAN_OK;) {
    const bny_request *part = &op->parts[op->ready].request;
    int32_t end = part->token0 + part->tokens < batch ? part->token0 + part->tokens : batch;
    if (end > part->token0) status = bny_attention_start_slice(op->attention, part->token0, end - part->token0);
    while (op->ready < op->nparts && op->parts[op->ready].request.token0 == part->token0) op->ready++;
    if (status == BANYAN_OK && op->ready < op->nparts) status = bny_op_advance(op);
  }
  op->ready = op->nparts;
  return status;
}
