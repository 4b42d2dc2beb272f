/* SPDX-License-Identifier: Apache-2.0
 * The table of payloads, and the checks of requests for them. */
#include "exact.h"
#include "plan/plan.h"
#include "base/status.h"
#include "select.h"

static size_t no_bytes(const bny_call *call) {
  (void)call;
  return 0;
}

static size_t wire_bytes(const bny_call *call) { return bny_wire_row_bytes(call->wire, call->value_dim); }

static size_t sum_bytes(const bny_call *call) {
  return call->wire == BNY_WIRE_EXACT ? sizeof(bny_exact_number) : wire_bytes(call);
}

static size_t element_bytes(const bny_call *call) { return (size_t)call->dim * bny_dtype_bytes(call->dtype); }

static size_t list_bytes(const bny_call *call) { return (size_t)call->dim * sizeof(bny_pair); }

/* ---- checks of requests ------------------------------------------------------------------------------------------ */

/* Sizes stay below this limit, so that sums of them never overflow. */
static const double size_limit = 0x1p60;

static banyan_status check_box(const bny_request *request) {
  bool box_is_inside = request->token0 >= 0 && request->tokens >= 0 && request->head0 >= 0 && request->heads >= 0 &&
                       request->call.all_tokens - request->tokens >= request->token0 &&
                       request->call.all_heads - request->heads >= request->head0;
  if (!box_is_inside)
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: the box of %d tokens x %d heads at (%d, %d) is not within %d x %d rows",
                    request->tokens, request->heads, request->token0, request->head0, request->call.all_tokens,
                    request->call.all_heads);
  return BANYAN_OK;
}

static banyan_status check_combine(const bny_request *request) {
  banyan_status status = check_box(request);
  if (status != BANYAN_OK) return status;
  bool is_exact = request->call.order == BANYAN_ORDER_EXACT; /* devices send f32, and add digits where rows arrive */
  bny_wire wire = request->call.wire;
  if (request->call.value_dim < 0 ||
      (is_exact ? wire != BNY_WIRE_EXACT && wire != BNY_WIRE_F32 : (unsigned)wire >= BNY_WIRE_COUNT) ||
      (unsigned)request->call.scatter > BANYAN_SCATTER_TOKENS || (unsigned)request->call.order > BANYAN_ORDER_EXACT)
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: value_dim %d, wire %d, scatter %d or order %d is out of range",
                    request->call.value_dim, (int)request->call.wire, (int)request->call.scatter,
                    (int)request->call.order);
  if (request->call.scatter == BANYAN_SCATTER_ROOT && (request->call.root < 0 || request->call.root >= request->nranks))
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: root %d is not one of %d ranks", request->call.root, request->nranks);
  double row_bytes = 8 + (double)bny_wire_row_bytes(request->call.wire, request->call.value_dim);
  if ((double)request->tokens * request->heads * row_bytes * request->nranks > size_limit)
    return bny_fail(BANYAN_ERR_MEMORY, "plan: %d x %d rows of %d values are more than can be planned for",
                    request->tokens, request->heads, request->call.value_dim);
  return BANYAN_OK;
}

static banyan_status check_bytes(const bny_request *request) {
  double bytes = (double)request->call.bytes * request->nranks;
  if (request->call.collective == BNY_ALLGATHER) {
    if (!request->call.counts) return bny_fail(BANYAN_ERR_ARGUMENT, "plan: an allgather without counts");
    bytes = 0;
    for (int32_t rank = 0; rank < request->nranks; rank++) bytes += (double)request->call.counts[rank];
  }
  if (bytes > size_limit) return bny_fail(BANYAN_ERR_MEMORY, "plan: %g bytes are more than can be planned for", bytes);
  if (request->call.collective == BNY_BROADCAST && (request->call.root < 0 || request->call.root >= request->nranks))
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: root %d is not one of %d ranks", request->call.root, request->nranks);
  if (request->call.collective == BNY_SHIFT &&
      (request->call.distance < 0 || request->call.distance >= request->nranks))
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: distance %d is not in 0 to %d", request->call.distance,
                    request->nranks - 1);
  return BANYAN_OK;
}

static banyan_status check_heads(const bny_request *request) {
  banyan_status status = check_box(request);
  if (status != BANYAN_OK) return status;
  if (!request->call.counts) return bny_fail(BANYAN_ERR_ARGUMENT, "plan: an all-gather of heads without counts");
  size_t heads = 0;
  for (int32_t rank = 0; rank < request->nranks; rank++) heads += request->call.counts[rank];
  if (heads != (size_t)request->call.all_heads)
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: counts of %zu heads for %d", heads, request->call.all_heads);
  if (request->call.dim < 1 || bny_dtype_bytes(request->call.dtype) == 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: dim %d or dtype %d is out of range", request->call.dim,
                    (int)request->call.dtype);
  if ((double)request->tokens * request->heads * (double)element_bytes(&request->call) * request->nranks > size_limit)
    return bny_fail(BANYAN_ERR_MEMORY, "plan: %d x %d heads of %d elements are more than can be planned for",
                    request->tokens, request->heads, request->call.dim);
  return BANYAN_OK;
}

static banyan_status check_lists(const bny_request *request) {
  banyan_status status = check_box(request);
  if (status != BANYAN_OK) return status;
  if (request->call.dim < 1 || request->call.dim > BNY_SELECT_MOST || request->call.scatter != BANYAN_SCATTER_NONE)
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: a selection of %d, scatter %d is out of range", request->call.dim,
                    (int)request->call.scatter);
  if ((double)request->tokens * request->heads * (double)list_bytes(&request->call) * request->nranks > size_limit)
    return bny_fail(BANYAN_ERR_MEMORY, "plan: %d x %d lists of %d pairs are more than can be planned for",
                    request->tokens, request->heads, request->call.dim);
  return BANYAN_OK;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

const bny_payload bny_payloads[BNY_COLLECTIVES] = {
    [BNY_COMBINE] = {BNY_MOTION_MERGE, true, true, true, 1, NULL, wire_bytes, check_combine},
    [BNY_ALLGATHER] = {BNY_MOTION_GATHER, false, false, false, 1, "bytes", no_bytes, check_bytes},
    [BNY_ALLGATHER_HEADS] = {BNY_MOTION_GATHER, true, false, false, 1, "heads", element_bytes, check_heads},
    [BNY_SHIFT] = {BNY_MOTION_SHIFT, false, false, false, 1, NULL, no_bytes, check_bytes},
    [BNY_BROADCAST] = {BNY_MOTION_BROADCAST, false, false, false, 1, NULL, no_bytes, check_bytes},
    [BNY_ALLREDUCE] = {BNY_MOTION_MERGE, true, false, true, 0.25, NULL, sum_bytes, check_combine},
    [BNY_SELECT] = {BNY_MOTION_MERGE, true, false, false, 1, NULL, list_bytes, check_lists},
    [BNY_BARRIER] = {BNY_MOTION_SIGNAL, false, false, false, 1, NULL, no_bytes, check_bytes},
};
