/* SPDX-License-Identifier: Apache-2.0
 * Checks partials, memory and valid rows for several public calls. */
#include "api/api.h"
#include "op/valid.h"
#include "base/sized.h"
#include "base/status.h"

banyan_status bny_api_check_partial(const banyan_partial **partial, banyan_partial *room, const bny_box *box,
                                    bool is_output) {
  const char *name = is_output ? "out" : "in";
  if (bny_box_is_empty(box)) return BANYAN_OK;
  if (!*partial)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s is NULL, but this rank has %d x %d rows there", name, box->tokens,
                    box->heads);
  const banyan_partial *known = bny_sized_read(&bny_sized_partial, name, *partial, room);
  if (!known) return BANYAN_ERR_ARGUMENT;
  *partial = known;
  const char *wrong = bny_partial_check(known, box, is_output), *names[2];
  if (wrong) return bny_fail(BANYAN_ERR_ARGUMENT, "%s: %s", name, wrong);
  if (is_output && bny_partial_overlaps_itself(known, box, names))
    return bny_fail(BANYAN_ERR_ARGUMENT, "out.%s overlaps out.%s: give each its own memory", names[1], names[0]);
  return BANYAN_OK;
}

banyan_status bny_api_check_memory(banyan_comm *comm, const char *what, const void *pointer) {
  return comm->device.engine ? bny_engine_reach(comm->device.engine, what, pointer) : BANYAN_OK;
}

banyan_status bny_api_check_memory_partial(banyan_comm *comm, const banyan_partial *partial, const bny_box *box,
                                           bool is_output) {
  if (!comm->device.engine || bny_box_is_empty(box)) return BANYAN_OK;
  banyan_status status = BANYAN_OK;
  if (box->value_dim > 0) status = bny_api_check_memory(comm, is_output ? "out.values" : "in.values", partial->values);
  if (status == BANYAN_OK) status = bny_api_check_memory(comm, is_output ? "out.lse" : "in.lse", partial->lse);
  if (status == BANYAN_OK && partial->stats_kind == BANYAN_STATS_MAX_SUM)
    status = bny_api_check_memory(comm, is_output ? "out.sum" : "in.sum", partial->sum);
  if (status == BANYAN_OK && partial->values_scale)
    status = bny_api_check_memory(comm, is_output ? "out.values_scale" : "in.values_scale", partial->values_scale);
  return status;
}

banyan_status bny_api_check_memory_valid(banyan_comm *comm, const banyan_valid_rows *valid) {
  if (!comm->device.engine || !valid) return BANYAN_OK;
  const struct {
    const char *what;
    const void *pointer;
  } all[] = {{"valid.tokens", valid->tokens},
             {"valid.seq_lens", valid->batch > 0 ? valid->seq_lens : NULL},
             {"valid.query_start_loc", valid->query_start_loc},
             {"valid.token_mask", valid->token_mask}};
  banyan_status status = BANYAN_OK;
  for (size_t i = 0; i < sizeof all / sizeof all[0] && status == BANYAN_OK; i++)
    if (all[i].pointer) status = bny_api_check_memory(comm, all[i].what, all[i].pointer);
  return status;
}

banyan_status bny_api_check_memory_bytes(banyan_comm *comm, const char *what, const void *pointer, size_t bytes) {
  if (bytes == 0) return BANYAN_OK;
  return comm->device.proxy ? bny_engine_reach_by_host(comm->device.engine, what, pointer)
                            : bny_api_check_memory(comm, what, pointer);
}

banyan_status bny_api_read_valid(const banyan_comm *comm, const banyan_valid_rows **valid, banyan_valid_rows *room,
                                 bool blocking, bny_call *call) {
  banyan_status status = bny_valid_check(valid, room, call->all_tokens);
  if (status != BANYAN_OK) return status;
  bool device = comm->device.engine && (!comm->device.proxy || bny_payload_of(call)->on_proxy);
  call->counts_tokens = *valid && (*valid)->tokens;
  if (comm->device.engine && !device && call->counts_tokens)
    status = bny_engine_reach_by_host(comm->device.engine, "valid.tokens", (*valid)->tokens);
  if (status != BANYAN_OK) return status;
  if (blocking && !device) {
    status = bny_valid_count(*valid, call->all_tokens, &call->tokens);
    if (status == BANYAN_OK && bny_valid_selects(*valid)) status = bny_valid_read(*valid, call->tokens, NULL);
  }
  if (blocking && !call->counts_tokens) call->all_tokens = bny_valid_class(call->tokens, call->all_heads);
  return status;
}

banyan_status bny_api_read_tokens(const banyan_comm *comm, const banyan_valid_rows **valid, banyan_valid_rows *counted,
                                  bool blocking, bny_call *call) {
  banyan_valid_rows room;
  banyan_status status = bny_valid_check(valid, &room, 0);
  if (status != BANYAN_OK) return status;
  if (*valid) *counted = (banyan_valid_rows){.size = sizeof *counted, .tokens = (*valid)->tokens};
  *valid = *valid ? counted : NULL;
  return bny_api_read_valid(comm, valid, NULL, blocking, call);
}

banyan_status bny_api_oneshot_alone(const banyan_comm *comm, const char *what, int32_t most_over_nodes,
                                    const char **algorithm) {
  const bool is_over_nodes = comm->device.proxy != NULL;
  const int32_t most = is_over_nodes ? most_over_nodes : BNY_DIRECT_RANKS_MAX;
  if (!comm->device.engine) return BANYAN_OK;
  if (*algorithm && (*algorithm)[0] && strcmp(*algorithm, "oneshot") != 0)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "the algorithm is \"%s\"; on devices %s has \"oneshot\" alone", *algorithm,
                    what);
  if (comm->nranks > most && most == 0)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "on devices %s needs memory that all ranks share: use a communicator without a device, or split it",
                    what);
  if (comm->nranks > most)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "on devices %s needs at most %d ranks: use a communicator without a device, or split it", what,
                    most);
  *algorithm = "oneshot";
  return BANYAN_OK;
}

banyan_status bny_api_check_algorithm(const char *name) {
  if (!name || strlen(name) < BNY_ALGORITHM_NAME_BYTES) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "desc.algorithm \"%.40s...\" is not the name of an algorithm", name);
}

banyan_status bny_api_set_way(const banyan_comm *comm, banyan_dtype wire, const char *algorithm, bny_call *key) {
  const bool is_exact = key->order == BANYAN_ORDER_EXACT;
  key->wire = is_exact && !comm->device.engine ? BNY_WIRE_EXACT : bny_wire_of_dtype(wire ? wire : BANYAN_F32);
  if (key->wire == BNY_WIRE_COUNT)
    return bny_fail(
        BANYAN_ERR_ARGUMENT,
        "desc.wire is %d, which is not a wire format; use BANYAN_F32, BANYAN_F16, BANYAN_BF16 or BANYAN_E4M3", wire);
  if ((unsigned)key->scatter > BANYAN_SCATTER_TOKENS)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.scatter is %d, which is not a banyan_scatter", key->scatter);
  if ((unsigned)key->order > BANYAN_ORDER_EXACT)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.order is %d, which is not a banyan_order", key->order);
  if (is_exact && wire && wire != BANYAN_F32)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "desc.wire is %d, and the exact order has a wire format of its own: leave it 0", wire);
  if (key->scatter != BANYAN_SCATTER_ROOT) key->root = 0;
  if (key->root < 0 || key->root >= comm->nranks)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.root is %d, must be 0..%d", key->root, comm->nranks - 1);
  banyan_status status = bny_api_check_algorithm(algorithm);
  if (!algorithm) algorithm = comm->algorithm;
  if (status == BANYAN_OK && is_exact)
    status = bny_api_oneshot_alone(comm, "BANYAN_ORDER_EXACT", BNY_MERGE_SOURCES_MAX, &algorithm);
  if (status == BANYAN_OK && algorithm) strncpy(key->algorithm, algorithm, sizeof key->algorithm - 1);
  return status;
}

banyan_status bny_api_reject_init(banyan_comm *comm) {
  return bny_op_reject(comm, bny_fail(BANYAN_ERR_ARGUMENT, "op is NULL"), true);
}

bool bny_api_overlap(const void *first, size_t first_bytes, const void *second, size_t second_bytes) {
  uintptr_t a = (uintptr_t)first, b = (uintptr_t)second;
  return first_bytes && second_bytes && a < b + second_bytes && b < a + first_bytes;
}

static int64_t magnitude(int64_t value) { return value < 0 ? -value : value; }

/* The first byte of a token's heads, and the number of bytes that they span. */
static const char *first_byte(const bny_api_tensor *of) {
  return of->rows.at + (of->rows.head_stride < 0 ? of->rows.head_stride * (of->heads - 1) : 0);
}

static int64_t token_extent(const bny_api_tensor *of) {
  return magnitude(of->rows.head_stride) * (of->heads - 1) + of->row_bytes;
}

bool bny_api_tensors_overlap(const bny_api_tensor *a, const bny_api_tensor *b) {
  int64_t stride = magnitude(a->rows.token_stride), b_stride = magnitude(b->rows.token_stride);
  int64_t a_bytes = token_extent(a), b_bytes = token_extent(b);
  intptr_t a_begin = (intptr_t)first_byte(a), b_begin = (intptr_t)first_byte(b);
  intptr_t a_low = a_begin + (a->rows.token_stride < 0 ? a->rows.token_stride * (a->tokens - 1) : 0);
  intptr_t b_low = b_begin + (b->rows.token_stride < 0 ? b->rows.token_stride * (b->tokens - 1) : 0);
  intptr_t a_high = a_low + stride * (a->tokens - 1) + a_bytes;
  intptr_t b_high = b_low + b_stride * (b->tokens - 1) + b_bytes;
  if (a_high <= b_low || b_high <= a_low) return false;
  if (a->tokens < 2) stride = b_stride; /* a single token may be in the columns of the other's */
  if (b->tokens < 2) b_stride = stride;
  if (b_stride != stride || a_bytes > stride || b_bytes > stride) return true;
  int64_t column = (b_begin - a_begin) % stride;
  if (column < 0) column += stride;
  return column < a_bytes || column + b_bytes > stride;
}

banyan_status bny_api_check_bytes(size_t bytes) {
  if (bytes <= bny_api_bytes_max) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "bytes is %zu: larger than any memory (%zu bytes)", bytes, bny_api_bytes_max);
}
