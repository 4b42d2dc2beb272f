/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls that select the best keys, of this rank and of all ranks. */
#include <inttypes.h>
#include <string.h>

#include "api/api.h"
#include "base/sized.h"
#include "base/status.h"
#include "op/valid.h"

static int32_t lists_per_token(const banyan_select_desc *desc) { return desc->heads ? desc->heads : 1; }

static banyan_status check_k(int32_t k) {
  if (k >= 1 && k <= BNY_SELECT_MOST) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "k is %d, must be 1..%d", k, BNY_SELECT_MOST);
}

static banyan_status check_desc(const banyan_select_desc *desc) {
  if (desc->tokens < 0 || desc->heads < 0 || (int64_t)desc->tokens * lists_per_token(desc) > INT32_MAX)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "desc has tokens %d, heads %d; none may be negative, and at most 2^31 - 1 rows", desc->tokens,
                    desc->heads);
  banyan_status status = check_k(desc->k);
  if (status != BANYAN_OK) return status;
  if (desc->offers < 0 || desc->offers > desc->k)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.offers is %d, must be 0..%d (k)", desc->offers, desc->k);
  return bny_api_check_algorithm(desc->algorithm);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct array {
  const char *name;
  const void *at;
  size_t element_bytes, bytes; /* bytes: of all rows */
} array;

static banyan_status check_stride(const char *name, int64_t rows, int64_t stride, int32_t width) {
  if (stride >= width && !bny_extent_too_large(rows, stride, width, 1)) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "desc.%s_stride is %" PRId64 ", out of range for %" PRId64 " rows of %d pairs",
                  name, stride, rows, width);
}

/* Each array has a place of its own. Those of inputs may be one another's. `comm` is NULL for host memory. */
static banyan_status check_arrays(banyan_comm *comm, const array *arrays, int count, int inputs) {
  for (int i = 0; i < count; i++) {
    const array *a = &arrays[i];
    banyan_status status = comm ? bny_api_check_memory_bytes(comm, a->name, a->at, a->bytes) : BANYAN_OK;
    if (status != BANYAN_OK) return status;
    if ((uintptr_t)a->at % a->element_bytes)
      return bny_fail(BANYAN_ERR_ARGUMENT, "%s is not aligned to its elements, of %zu bytes", a->name,
                      a->element_bytes);
    for (int j = i > inputs ? i : inputs; j < count; j++)
      if (i != j && a->at && arrays[j].at && bny_api_overlap(a->at, a->bytes, arrays[j].at, arrays[j].bytes))
        return bny_fail(BANYAN_ERR_ARGUMENT, "%s overlaps %s: use separate memory", arrays[j].name, a->name);
  }
  return BANYAN_OK;
}

/* `tokens`: those of this call. */
static banyan_status bind(banyan_comm *comm, const banyan_select_desc *desc, int32_t tokens, bny_lists *lists) {
  int64_t rows = (int64_t)tokens * lists_per_token(desc);
  *lists = bny_chosen_lists(desc);
  banyan_status status = check_stride("in", rows, lists->in_stride, desc->offers);
  if (status == BANYAN_OK) status = check_stride("out", rows, lists->out_stride, desc->k);
  if (status != BANYAN_OK || rows == 0) return status;
  if (desc->offers > 0 && !desc->scores) return bny_fail(BANYAN_ERR_ARGUMENT, "desc.scores is NULL");
  if (desc->offers > 0 && !desc->indices) return bny_fail(BANYAN_ERR_ARGUMENT, "desc.indices is NULL");
  if (!desc->best_scores && !desc->best_indices && !desc->own)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "desc.best_scores, desc.best_indices and desc.own are NULL: there is no result");
  size_t in = desc->offers ? (size_t)((rows - 1) * lists->in_stride + desc->offers) : 0;
  size_t out = (size_t)((rows - 1) * lists->out_stride + desc->k), one = (size_t)rows;
  const array arrays[] = {{"desc.scores", desc->scores, 4, 4 * in},
                          {"desc.indices", desc->indices, 8, 8 * in},
                          {"desc.rows", desc->rows, 4, 4 * in},
                          {"desc.best_scores", desc->best_scores, 4, 4 * out},
                          {"desc.best_indices", desc->best_indices, 8, 8 * out},
                          {"desc.counts", desc->counts, 4, 4 * one},
                          {"desc.own", desc->own, 4, 4 * out},
                          {"desc.own_counts", desc->own_counts, 4, 4 * one}};
  return check_arrays(comm, arrays, sizeof arrays / sizeof arrays[0], 3);
}

banyan_status bny_api_select_check(banyan_comm *comm, const banyan_select_desc *desc, bny_lists *lists) {
  const char *algorithm = desc->algorithm;
  banyan_status status = check_desc(desc);
  if (status == BANYAN_OK) status = bny_api_oneshot_alone(comm, "attention that selects", 0, &algorithm);
  return status == BANYAN_OK ? bind(comm, desc, desc->tokens, lists) : status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static banyan_status choose(banyan_comm *comm, const banyan_select_desc *desc, banyan_op **keep) {
  banyan_select_desc room;
  banyan_valid_rows counted;
  if (!comm || !desc)
    return bny_op_reject(comm, bny_fail(BANYAN_ERR_ARGUMENT, "comm and desc must not be NULL"), keep != NULL);
  const banyan_select_desc *known = bny_sized_read(&bny_sized_select_desc, "desc", desc, &room);
  banyan_status status = known ? check_desc(known) : BANYAN_ERR_ARGUMENT;
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  bny_call key = {.collective = BNY_SELECT,
                  .all_tokens = known->tokens,
                  .tokens = known->tokens,
                  .all_heads = lists_per_token(known),
                  .dim = known->k};
  bool on_device = comm->device.engine && !comm->device.proxy;
  const char *algorithm = known->algorithm ? known->algorithm : on_device ? NULL : comm->algorithm;
  if (on_device) status = bny_api_oneshot_alone(comm, "a selection", 0, &algorithm);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  if (algorithm) strncpy(key.algorithm, algorithm, sizeof key.algorithm - 1);
  const banyan_valid_rows *valid = known->valid;
  status = bny_api_read_tokens(comm, &valid, &counted, !keep, &key);
  bny_op_memory memory = {.valid = valid, .tokens = key.tokens};
  if (status == BANYAN_OK && !comm->device.proxy) status = bny_api_check_memory_valid(comm, valid);
  if (status == BANYAN_OK) status = bind(comm, known, key.tokens, &memory.lists);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  return bny_op_run_or_keep(comm, &key, &memory, keep);
}

banyan_status banyan_select(banyan_comm *comm, const banyan_select_desc *desc) {
  BNY_FLOAT_MODE;
  return choose(comm, desc, NULL);
}

banyan_status banyan_select_init(banyan_comm *comm, const banyan_select_desc *desc, banyan_op **op) {
  BNY_FLOAT_MODE;
  return op ? choose(comm, desc, op) : bny_api_reject_init(comm);
}

banyan_status banyan_topk(const float *scores, int64_t stride, const int32_t *lens, int32_t rows, int32_t n, int32_t k,
                          float *best, int32_t *positions) {
  BNY_FLOAT_MODE;
  banyan_status status = check_k(k);
  if (status != BANYAN_OK) return status;
  if (rows < 0 || n < 0) return bny_fail(BANYAN_ERR_ARGUMENT, "rows %d and n %d must not be negative", rows, n);
  if (rows == 0) return BANYAN_OK;
  if (stride == 0) stride = n;
  if (stride < n || bny_extent_too_large(rows, stride, n, 1))
    return bny_fail(BANYAN_ERR_ARGUMENT, "stride is %" PRId64 ", out of range for %d rows of %d scores", stride, rows,
                    n);
  if ((!scores && n > 0) || !best || !positions)
    return bny_fail(BANYAN_ERR_ARGUMENT, "scores, best and positions must not be NULL");
  size_t made = 4 * (size_t)rows * (size_t)k;
  const array arrays[] = {{"scores", scores, 4, 4 * (size_t)((rows - 1) * stride + n)},
                          {"lens", lens, 4, 4 * (size_t)rows},
                          {"best", best, 4, made},
                          {"positions", positions, 4, made}};
  status = check_arrays(NULL, arrays, sizeof arrays / sizeof arrays[0], 2);
  if (status != BANYAN_OK) return status;
  for (int32_t row = 0; lens && row < rows; row++)
    if (lens[row] < 0 || lens[row] > n)
      return bny_fail(BANYAN_ERR_ARGUMENT, "lens[%d] is %d, must be 0..%d", row, lens[row], n);
  const bny_kernels *kernels = bny_kernels_find(NULL);
  for (int32_t row = 0; row < rows; row++, best += k, positions += k)
    bny_select_top(kernels, n ? scores + row * stride : NULL, lens ? lens[row] : n, k, best, positions);
  return BANYAN_OK;
}
