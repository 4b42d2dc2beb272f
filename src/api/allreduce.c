/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls that sum tensors of all ranks. */
#include <inttypes.h>

#include "api/api.h"
#include "op/valid.h"
#include "plan/columns.h"
#include "base/sized.h"
#include "base/status.h"

static banyan_status check_desc(const banyan_allreduce_desc *desc) {
  if (desc->tokens < 0 || desc->dim < 0 || (int64_t)desc->tokens * desc->dim > INT32_MAX)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "desc has tokens %d, dim %d; none may be negative, and at most 2^31 - 1 values", desc->tokens,
                    desc->dim);
  if (!bny_dtype_is_float(desc->dtype))
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.dtype is %d; use BANYAN_F32, BANYAN_F16 or BANYAN_BF16",
                    (int)desc->dtype);
  return BANYAN_OK;
}

/* Describes `tokens` x `columns` values. The stride of a single token is not used and becomes 0. */
static banyan_status make_tensor(const void *at, const char *name, int64_t stride, const bny_box *box,
                                 banyan_dtype dtype, bny_api_tensor *made) {
  int64_t bytes = (int64_t)bny_dtype_bytes(dtype), token = box->tokens < 2 ? 0 : stride ? stride : box->heads;
  *made = (bny_api_tensor){{(char *)(uintptr_t)at, 0, bytes}, box->tokens, box->heads, bytes};
  if (bny_api_tensor_is_empty(made)) return BANYAN_OK;
  if (!at) return bny_fail(BANYAN_ERR_ARGUMENT, "%s is NULL", name);
  if ((uintptr_t)at % (uintptr_t)bytes)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s is not aligned to its dtype, of %" PRId64 " bytes", name, bytes);
  if (bny_extent_too_large(box->tokens, token, box->heads, 1) ||
      (box->tokens > 1 && token > -box->heads && token < box->heads))
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.%s_stride is %" PRId64 ", out of range for %d tokens of %d values", name,
                    stride, box->tokens, box->heads);
  made->rows.token_stride = token * bytes;
  return BANYAN_OK;
}

/* Describes both tensors of a run. Strides refer to this rank's tensors, and a result may be some of the tokens or
 * columns. */
static banyan_status bind(banyan_comm *comm, const banyan_allreduce_desc *desc, const bny_call *key, const void *in,
                          void *out, bny_op_memory *memory) {
  bny_api_tensor mine, result;
  bny_box all = {key->tokens, key->dim, 1}, own = all;
  int32_t token0 = 0, head0 = 0;
  if (key->scatter == BANYAN_SCATTER_HEADS) bny_slice_split(all.heads, comm->nranks, comm->rank, &head0, &own.heads);
  if (key->scatter == BANYAN_SCATTER_TOKENS)
    bny_slice_split(all.tokens, comm->nranks, comm->rank, &token0, &own.tokens);
  if (key->scatter == BANYAN_SCATTER_ROOT && key->root != comm->rank) own.tokens = 0;
  banyan_status status = make_tensor(in, "in", desc->in_stride, &all, key->dtype, &mine);
  if (status == BANYAN_OK) status = make_tensor(out, "out", desc->out_stride, &own, key->dtype, &result);
  if (status != BANYAN_OK) return status;
  memory->mine = mine.rows;
  memory->all = result.rows;
  if (!bny_api_tensor_is_empty(&mine)) status = bny_api_check_memory(comm, "in", in);
  if (status == BANYAN_OK && !bny_api_tensor_is_empty(&result)) status = bny_api_check_memory(comm, "out", out);
  if (status == BANYAN_OK) status = bny_api_check_memory_valid(comm, memory->valid);
  if (status != BANYAN_OK) return status;
  if (bny_api_tensor_is_empty(&result) || !bny_api_tensors_overlap(&mine, &result)) return BANYAN_OK;
  bool is_same = bny_strided_at(&mine.rows, token0, head0).at == result.rows.at &&
                 (own.tokens < 2 || mine.rows.token_stride == result.rows.token_stride);
  /* The first of this rank's tokens then depends on the number of a run. */
  bool moves = key->counts_tokens && key->scatter == BANYAN_SCATTER_TOKENS;
  if (is_same && !moves) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "out overlaps in: use separate memory, or the same memory with each sum at the "
                                       "address of its own input");
}

static banyan_status allreduce(banyan_comm *comm, const banyan_allreduce_desc *desc, const void *in, void *out,
                               banyan_op **keep) {
  banyan_allreduce_desc room;
  banyan_valid_rows counted;
  if (!comm || !desc)
    return bny_op_reject(comm, bny_fail(BANYAN_ERR_ARGUMENT, "comm and desc must not be NULL"), keep != NULL);
  const banyan_allreduce_desc *known = bny_sized_read(&bny_sized_allreduce_desc, "desc", desc, &room);
  banyan_status status = known ? check_desc(known) : BANYAN_ERR_ARGUMENT;
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  bny_call key = {.collective = BNY_ALLREDUCE,
                  .all_tokens = known->tokens,
                  .tokens = known->tokens,
                  .dtype = known->dtype,
                  .scatter = known->scatter,
                  .order = known->order,
                  .root = known->root};
  status = bny_api_set_way(comm, known->wire, known->algorithm, &key);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  bny_call_set_columns(&key, known->dim, comm->nranks);
  if ((int64_t)key.all_heads * key.value_dim > INT32_MAX)
    return bny_op_reject(comm,
                         bny_fail(BANYAN_ERR_ARGUMENT,
                                  "dim is %d: in whole blocks of E4M3 on each rank that is more than 2^31 - 1 columns",
                                  known->dim),
                         keep != NULL);
  if ((int64_t)key.all_heads * key.all_tokens > INT32_MAX)
    return bny_op_reject(comm,
                         bny_fail(BANYAN_ERR_ARGUMENT,
                                  "desc has %d tokens of %d blocks of E4M3, more than 2^31 - 1 blocks: each rank's "
                                  "columns have blocks of their own. Use fewer tokens",
                                  key.all_tokens, key.all_heads),
                         keep != NULL);
  const banyan_valid_rows *valid = known->valid;
  status = bny_api_read_tokens(comm, &valid, &counted, !keep, &key);
  bny_op_memory memory = {.valid = valid, .tokens = key.tokens, .stream = known->stream};
  if (status == BANYAN_OK) status = bind(comm, known, &key, in, out, &memory);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  return bny_op_run_or_keep(comm, &key, &memory, keep);
}

banyan_status banyan_allreduce(banyan_comm *comm, const banyan_allreduce_desc *desc, const void *in, void *out) {
  BNY_FLOAT_MODE;
  return allreduce(comm, desc, in, out, NULL);
}

banyan_status banyan_allreduce_init(banyan_comm *comm, const banyan_allreduce_desc *desc, const void *in, void *out,
                                    banyan_op **op) {
  BNY_FLOAT_MODE;
  return op ? allreduce(comm, desc, in, out, op) : bny_api_reject_init(comm);
}
