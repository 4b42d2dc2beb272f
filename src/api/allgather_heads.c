/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls that gather the heads of all ranks into one tensor. */
#include <inttypes.h>
#include <stdlib.h>

#include "api/api.h"
#include "base/sized.h"
#include "base/status.h"

enum { DIM_MAX = 65536 };

static banyan_status check_shape(const banyan_heads_desc *desc) {
  if (desc->tokens < 0 || desc->heads < 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc has tokens %d, heads %d; none may be negative", desc->tokens,
                    desc->heads);
  if ((int64_t)desc->tokens * desc->heads > INT32_MAX)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc has %d tokens x %d heads; at most 2^31 - 1 of both together",
                    desc->tokens, desc->heads);
  if (desc->dim < 1 || desc->dim > DIM_MAX)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.dim is %d, must be 1 to %d", desc->dim, DIM_MAX);
  if (bny_dtype_bytes(desc->dtype) == 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.dtype is %d, which is not a banyan_dtype", (int)desc->dtype);
  return BANYAN_OK;
}

static banyan_status read_counts(banyan_comm *comm, const banyan_heads_desc *desc) {
  int64_t total = 0;
  if (!comm->head_counts) comm->head_counts = calloc((size_t)comm->nranks, sizeof *comm->head_counts);
  if (!comm->head_counts) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for the counts of %d ranks", comm->nranks);
  for (int32_t i = 0; i < comm->nranks; i++) {
    int32_t first, number;
    bny_slice_split(desc->heads, comm->nranks, i, &first, &number);
    if (desc->counts) number = desc->counts[i];
    if (number < 0) return bny_fail(BANYAN_ERR_ARGUMENT, "desc.counts[%d] is %d, must not be negative", i, number);
    comm->head_counts[i] = (size_t)number;
    total += number;
  }
  if (total == desc->heads) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "desc.counts add up to %" PRId64 " heads, and desc.heads is %d", total,
                  desc->heads);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static banyan_status check_tensor(const bny_api_tensor *of, const char *name, const banyan_heads_desc *desc) {
  int64_t bytes = (int64_t)bny_dtype_bytes(desc->dtype);
  if (bny_api_tensor_is_empty(of)) return BANYAN_OK;
  if (!of->rows.at) return bny_fail(BANYAN_ERR_ARGUMENT, "%s is NULL", name);
  if ((uintptr_t)of->rows.at % (uintptr_t)bytes)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s is not aligned to its dtype, of %" PRId64 " bytes", name, bytes);
  return BANYAN_OK;
}

/* Describes `tokens` x `heads` rows. The caller's strides are in elements; if both are 0 the tensor is contiguous. The
 * stride of a dimension of size one is not used and becomes 0. */
static banyan_status make_tensor(const void *at, const char *name, int64_t token_stride, int64_t head_stride,
                                 int32_t tokens, int32_t heads, const banyan_heads_desc *desc, bny_api_tensor *made) {
  bool contiguous = token_stride == 0 && head_stride == 0;
  int64_t bytes = (int64_t)bny_dtype_bytes(desc->dtype);
  int64_t token = tokens < 2 ? 0 : contiguous ? (int64_t)heads * desc->dim : token_stride;
  int64_t head = heads < 2 ? 0 : contiguous ? desc->dim : head_stride;
  if (bny_extent_too_large(tokens, token, heads, head))
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "desc.%s_token_stride is %" PRId64 " and desc.%s_head_stride %" PRId64 ", out of range for %d x %d",
                    name, token_stride, name, head_stride, tokens, heads);
  *made =
      (bny_api_tensor){{(char *)(uintptr_t)at, token * bytes, head * bytes}, tokens, heads, (int64_t)desc->dim * bytes};
  return check_tensor(made, name, desc);
}

static banyan_status check_all(const bny_api_tensor *all, const banyan_heads_desc *desc) {
  int64_t bytes = (int64_t)bny_dtype_bytes(desc->dtype);
  if (bny_api_tensor_is_empty(all) ||
      !bny_rows_overlap(all->tokens, all->rows.token_stride, all->heads, all->rows.head_stride, all->row_bytes))
    return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT,
                  "desc.all_token_stride %" PRId64 " and desc.all_head_stride %" PRId64
                  " make heads of %d elements overlap",
                  all->rows.token_stride / bytes, all->rows.head_stride / bytes, desc->dim);
}

/* Describes both tensors of a run of `tokens`. */
static banyan_status bind(const banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all,
                          int32_t tokens, bny_op_memory *memory) {
  bny_api_tensor own, whole;
  int64_t first = 0;
  for (int32_t i = 0; i < comm->rank; i++) first += (int64_t)comm->head_counts[i];
  banyan_status status = make_tensor(mine, "mine", desc->mine_token_stride, desc->mine_head_stride, tokens,
                                     (int32_t)comm->head_counts[comm->rank], desc, &own);
  if (status == BANYAN_OK)
    status = make_tensor(all, "all", desc->all_token_stride, desc->all_head_stride, tokens, desc->heads, desc, &whole);
  if (status == BANYAN_OK) status = check_all(&whole, desc);
  if (status != BANYAN_OK) return status;
  memory->mine = own.rows;
  memory->all = whole.rows;
  memory->in_place = false;
  if (bny_api_tensor_is_empty(&own)) return BANYAN_OK;
  bool strides_match = own.rows.token_stride == whole.rows.token_stride &&
                       (own.heads < 2 || own.rows.head_stride == whole.rows.head_stride);
  memory->in_place = own.rows.at == bny_strided_at(&whole.rows, 0, first).at && strides_match;
  if (memory->in_place || !bny_api_tensors_overlap(&own, &whole)) return BANYAN_OK;
  return bny_fail(
      BANYAN_ERR_ARGUMENT,
      "mine overlaps all, and is not its own place in it, which is head %" PRId64 " with the strides of all", first);
}

static banyan_status check_device_memory(banyan_comm *comm, const bny_api_heads *gathered) {
  bool moves = gathered->call.tokens > 0 && gathered->call.all_heads > 0;
  if (!comm->device.engine || !moves) return BANYAN_OK;
  banyan_status status =
      bny_api_check_memory_bytes(comm, "mine", gathered->memory.mine.at, (size_t)comm->head_counts[comm->rank]);
  if (status == BANYAN_OK) status = bny_api_check_memory_bytes(comm, "all", gathered->memory.all.at, 1);
  if (status != BANYAN_OK || !gathered->valid.tokens) return status;
  return bny_api_check_memory_bytes(comm, "valid.tokens", gathered->valid.tokens, 1);
}

banyan_status bny_api_heads_read(banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all,
                                 bool blocking, bny_api_heads *gathered) {
  banyan_heads_desc room;
  if (!comm || !desc) return bny_fail(BANYAN_ERR_ARGUMENT, "comm and desc must not be NULL");
  const banyan_heads_desc *known = bny_sized_read(&bny_sized_heads_desc, "desc", desc, &room);
  if (!known) return BANYAN_ERR_ARGUMENT;
  banyan_status status = check_shape(known);
  if (status == BANYAN_OK) status = read_counts(comm, known);
  if (status != BANYAN_OK) return status;
  *gathered = (bny_api_heads){.call = {.collective = BNY_ALLGATHER_HEADS,
                                       .all_tokens = known->tokens,
                                       .tokens = known->tokens,
                                       .all_heads = known->heads,
                                       .dim = known->dim,
                                       .dtype = known->dtype,
                                       .counts = comm->head_counts}};
  const banyan_valid_rows *valid = known->valid;
  status = bny_api_read_tokens(comm, &valid, &gathered->valid, blocking, &gathered->call);
  if (status == BANYAN_OK) status = bind(comm, known, mine, all, gathered->call.tokens, &gathered->memory);
  if (status == BANYAN_OK) status = check_device_memory(comm, gathered);
  gathered->memory.valid = &gathered->valid;
  gathered->memory.tokens = gathered->call.tokens;
  gathered->memory.stream = known->stream;
  return status;
}

static banyan_status gather(banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all,
                            banyan_op **keep) {
  bny_api_heads gathered;
  banyan_status status = bny_api_heads_read(comm, desc, mine, all, !keep, &gathered);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  return bny_op_run_or_keep(comm, &gathered.call, &gathered.memory, keep);
}

banyan_status banyan_allgather_heads(banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all) {
  BNY_FLOAT_MODE;
  return gather(comm, desc, mine, all, NULL);
}

banyan_status banyan_allgather_heads_init(banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all,
                                          banyan_op **op) {
  BNY_FLOAT_MODE;
  return op ? gather(comm, desc, mine, all, op) : bny_api_reject_init(comm);
}
