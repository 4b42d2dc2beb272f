/* SPDX-License-Identifier: Apache-2.0
 * The public calls. Arguments are checked here, and nowhere below. */
#include "api/api.h"

#include <string.h>

#include "op/live.h"
#include "base/sized.h"
#include "base/status.h"

void banyan_split(int32_t count, int32_t parts, int32_t index, int32_t *first, int32_t *number) {
  int32_t begin = 0, size = 0;
  if (count > 0 && index >= 0 && index < parts) bny_slice_split(count, parts, index, &begin, &size);
  if (first) *first = begin;
  if (number) *number = size;
}

banyan_status bny_api_run_or_keep(banyan_comm *comm, const bny_op_key *key, const bny_op_memory *memory,
                                  banyan_op **keep) {
  banyan_op *op;
  banyan_status status = keep ? bny_op_make(comm, key, &op) : bny_op_find(comm, key, &op);
  if (status != BANYAN_OK) return status;
  status = bny_op_reserve_live(op, memory->live);
  if (status != BANYAN_OK) {
    if (keep) banyan_op_free(op);
    return bny_op_refuse(comm, status, false);
  }
  bny_op_memory bound = *memory;
  if (!bound.stream) bound.stream = comm->stream;
  bny_op_bind(op, &bound);
  if (keep) {
    *keep = op;
    return BANYAN_OK;
  }
  status = banyan_start(op);
  return status == BANYAN_OK ? banyan_wait(op) : status;
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static bny_wire wire_of(const banyan_combine_desc *desc) {
  return bny_wire_of_dtype(desc->wire ? desc->wire : BANYAN_F32);
}

static banyan_status check_combine(const banyan_comm *comm, const banyan_combine_desc *desc) {
  if (desc->tokens < 0 || desc->heads < 0 || desc->value_dim < 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc has tokens %d, heads %d, value_dim %d; none may be negative",
                    desc->tokens, desc->heads, desc->value_dim);
  if ((int64_t)desc->tokens * desc->heads > INT32_MAX || desc->value_dim > 65536)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc has %d tokens x %d heads of %d values; at most 2^31 - 1 rows of 65536",
                    desc->tokens, desc->heads, desc->value_dim);
  if (wire_of(desc) == BNY_WIRE_COUNT)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "desc.wire is %d, which is no wire format; these are BANYAN_F32, BANYAN_F16, BANYAN_BF16 and "
                    "BANYAN_E4M3",
                    desc->wire);
  if ((unsigned)desc->scatter > BANYAN_SCATTER_TOKENS)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.scatter is %d, which is no banyan_scatter", desc->scatter);
  if ((unsigned)desc->order > BANYAN_ORDER_CANONICAL)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.order is %d, which is no banyan_order", desc->order);
  if (desc->scatter == BANYAN_SCATTER_ROOT && (desc->root < 0 || desc->root >= comm->nranks))
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.root is %d, must be 0..%d", desc->root, comm->nranks - 1);
  if (desc->algorithm && strlen(desc->algorithm) >= BNY_ALGORITHM_NAME_BYTES)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.algorithm \"%.40s...\" is no algorithm's name", desc->algorithm);
  return BANYAN_OK;
}

banyan_status bny_api_combine_key(const banyan_comm *comm, const banyan_combine_desc **desc, banyan_combine_desc *room,
                                  bny_op_key *key) {
  if (!comm || !*desc) return bny_fail(BANYAN_ERR_ARGUMENT, "comm and desc must not be NULL");
  const banyan_combine_desc *known = bny_sized_read(&bny_sized_combine_desc, "desc", *desc, room);
  if (!known) return BANYAN_ERR_ARGUMENT;
  banyan_status status = check_combine(comm, known);
  if (status != BANYAN_OK) return status;
  bny_op_key made = {
      .collective = BNY_COMBINE,
      .all_tokens = known->tokens,
      .tokens = known->tokens,
      .all_heads = known->heads,
      .value_dim = known->value_dim,
      .wire = wire_of(known),
      .scatter = known->scatter,
      .order = known->order,
      .root = known->scatter == BANYAN_SCATTER_ROOT ? known->root : 0,
  };
  const char *algorithm = known->algorithm ? known->algorithm : comm->algorithm;
  if (algorithm) strncpy(made.algorithm, algorithm, sizeof made.algorithm - 1);
  *desc = known;
  *key = made;
  return BANYAN_OK;
}

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

/* Checks that the result overwrites no row of the input but its own. */
static banyan_status check_apart(const banyan_comm *comm, const bny_op_key *key, const banyan_partial *in,
                                 const bny_box *all, const banyan_partial *out, const bny_box *result) {
  int32_t token0 = 0, head0 = 0, number;
  const char *names[2];
  if (key->scatter == BANYAN_SCATTER_HEADS) banyan_split(key->all_heads, comm->nranks, comm->rank, &head0, &number);
  if (key->scatter == BANYAN_SCATTER_TOKENS) banyan_split(key->tokens, comm->nranks, comm->rank, &token0, &number);
  if (bny_box_is_empty(result) || !bny_partial_overlaps(in, all, out, result, token0, head0, names)) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT,
                  "out.%s overlaps in.%s: give them memory apart, or each row of the result the place and type that it "
                  "has in the same array of in",
                  names[1], names[0]);
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

banyan_status bny_api_check_memory_live(banyan_comm *comm, const banyan_live *live) {
  if (!comm->device.engine || !live) return BANYAN_OK;
  const struct {
    const char *what;
    const void *pointer;
  } all[] = {{"live.tokens", live->tokens},
             {"live.seq_lens", live->batch > 0 ? live->seq_lens : NULL},
             {"live.query_start_loc", live->query_start_loc},
             {"live.token_mask", live->token_mask}};
  banyan_status status = BANYAN_OK;
  for (size_t i = 0; i < sizeof all / sizeof all[0] && status == BANYAN_OK; i++)
    if (all[i].pointer) status = bny_api_check_memory(comm, all[i].what, all[i].pointer);
  return status;
}

/* Checks the memory of collectives of bytes. Between nodes they move host memory. */
static banyan_status check_memory_bytes(banyan_comm *comm, const char *what, const void *pointer, size_t bytes) {
  return bytes > 0 && !comm->device.proxy ? bny_api_check_memory(comm, what, pointer) : BANYAN_OK;
}

/* Reports to the peers what is wrong with a collective call. */
static banyan_status refuse(banyan_comm *comm, banyan_status status, banyan_op **keep) {
  return bny_op_refuse(comm, status, keep != NULL);
}

static banyan_status refuse_init(banyan_comm *comm) {
  return bny_op_refuse(comm, bny_fail(BANYAN_ERR_ARGUMENT, "op is NULL"), true);
}

banyan_status banyan_comm_refuse(banyan_comm *comm, banyan_status status, const char *why, int init) {
  if (!comm || !why || status <= BANYAN_OK || status > BANYAN_ERR_ABORTED)
    return bny_fail(BANYAN_ERR_ARGUMENT, "comm and why must not be NULL, and status is %d, must be a failure", status);
  return bny_op_refuse(comm, bny_fail(status, "%s", why), init != 0);
}

banyan_status bny_api_read_live(const banyan_comm *comm, const banyan_live **live, banyan_live *room, bool blocking,
                                bny_op_key *key) {
  banyan_status status = bny_live_check(live, room, key->all_tokens);
  if (status != BANYAN_OK) return status;
  bool device = comm->device.engine && (!comm->device.proxy || key->collective == BNY_COMBINE);
  key->counts_tokens = *live && (*live)->tokens;
  if (blocking && !device) {
    status = bny_live_count(*live, key->all_tokens, &key->tokens);
    if (status == BANYAN_OK && bny_live_selects(*live)) status = bny_live_read(*live, key->tokens, NULL);
  }
  if (blocking && !key->counts_tokens) key->all_tokens = bny_live_class(key->tokens, key->all_heads);
  return status;
}

static banyan_status combine(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                             const banyan_partial *out, banyan_op **keep) {
  banyan_combine_desc desc_room;
  banyan_partial in_room, out_room;
  banyan_live live_room;
  bny_op_key key;
  banyan_status status = bny_api_combine_key(comm, &desc, &desc_room, &key);
  const banyan_live *live = status == BANYAN_OK ? desc->live : NULL;
  if (status == BANYAN_OK) status = bny_api_read_live(comm, &live, &live_room, !keep, &key);
  if (status != BANYAN_OK) return refuse(comm, status, keep);
  bny_box all = {key.tokens, key.all_heads, key.value_dim}, result = bny_op_result_box(comm, &key);
  status = bny_api_check_partial(&in, &in_room, &all, false);
  if (status == BANYAN_OK) status = bny_api_check_partial(&out, &out_room, &result, true);
  if (status == BANYAN_OK) status = check_apart(comm, &key, in, &all, out, &result);
  if (status == BANYAN_OK) status = bny_api_check_memory_partial(comm, in, &all, false);
  if (status == BANYAN_OK) status = bny_api_check_memory_partial(comm, out, &result, true);
  if (status == BANYAN_OK) status = bny_api_check_memory_live(comm, live);
  if (status == BANYAN_OK && !keep && !comm->device.engine && !bny_box_is_empty(&all))
    status = bny_op_check_scales("in", in, all.heads);
  if (status == BANYAN_OK && !keep && !comm->device.engine && !bny_box_is_empty(&result))
    status = bny_op_check_scales("out", out, result.heads);
  if (status != BANYAN_OK) return refuse(comm, status, keep);
  bny_op_memory memory = {.in = in,
                          .out = bny_box_is_empty(&result) ? NULL : out,
                          .live = live,
                          .tokens = key.tokens,
                          .stream = desc->stream};
  return bny_api_run_or_keep(comm, &key, &memory, keep);
}

banyan_status banyan_combine(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                             const banyan_partial *out) {
  return combine(comm, desc, in, out, NULL);
}

banyan_status banyan_combine_init(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                                  const banyan_partial *out, banyan_op **op) {
  if (!op) return refuse_init(comm);
  return combine(comm, desc, in, out, op);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static bool overlap(const void *first, size_t first_bytes, const void *second, size_t second_bytes) {
  uintptr_t a = (uintptr_t)first, b = (uintptr_t)second;
  return first_bytes && second_bytes && a < b + second_bytes && b < a + first_bytes;
}

/* No machine has more. A larger number is an error of the caller, whose memory nobody may touch for it. */
static const size_t bytes_max = (size_t)1 << 44;

static banyan_status check_gather(banyan_comm *comm, const void *mine, const void *all, const size_t *counts) {
  if (!comm || !counts) return bny_fail(BANYAN_ERR_ARGUMENT, "comm and counts must not be NULL");
  size_t total = 0, before = 0;
  for (int32_t i = 0; i < comm->nranks; i++) {
    if (i == comm->rank) before = total;
    if (__builtin_add_overflow(total, counts[i], &total) || total > bytes_max)
      return bny_fail(BANYAN_ERR_ARGUMENT, "counts[%d] is %zu: the sum of counts is larger than any memory (%zu bytes)",
                      i, counts[i], bytes_max);
  }
  if ((total && !all) || (counts[comm->rank] && !mine))
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s is NULL", total && !all ? "all" : "mine");
  if ((uintptr_t)mine != (uintptr_t)all + before && overlap(mine, counts[comm->rank], all, total))
    return bny_fail(BANYAN_ERR_ARGUMENT, "mine overlaps all, and is not its own place in it, which is byte %zu",
                    before);
  banyan_status status = check_memory_bytes(comm, "mine", mine, counts[comm->rank]);
  return status == BANYAN_OK ? check_memory_bytes(comm, "all", all, total) : status;
}

static banyan_status gather(banyan_comm *comm, const void *mine, void *all, const size_t *counts, banyan_op **keep) {
  banyan_status status = check_gather(comm, mine, all, counts);
  if (status != BANYAN_OK) return refuse(comm, status, keep);
  bny_op_key key = {.collective = BNY_ALLGATHER, .counts = counts};
  return bny_api_run_or_keep(comm, &key, &(bny_op_memory){.in_bytes = mine, .out_bytes = all}, keep);
}

banyan_status banyan_allgather(banyan_comm *comm, const void *mine, void *all, const size_t *counts) {
  return gather(comm, mine, all, counts, NULL);
}

banyan_status banyan_allgather_init(banyan_comm *comm, const void *mine, void *all, const size_t *counts,
                                    banyan_op **op) {
  return op ? gather(comm, mine, all, counts, op) : refuse_init(comm);
}

static banyan_status check_bytes(size_t bytes) {
  if (bytes <= bytes_max) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "bytes is %zu: larger than any memory (%zu bytes)", bytes, bytes_max);
}

static banyan_status check_shift(banyan_comm *comm, const void *send, const void *receive, size_t bytes) {
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  banyan_status status = check_bytes(bytes);
  if (status != BANYAN_OK) return status;
  if (bytes && (!send || !receive)) return bny_fail(BANYAN_ERR_ARGUMENT, "%s is NULL", send ? "receive" : "send");
  if (overlap(send, bytes, receive, bytes)) return bny_fail(BANYAN_ERR_ARGUMENT, "send and receive overlap");
  status = check_memory_bytes(comm, "send", send, bytes);
  return status == BANYAN_OK ? check_memory_bytes(comm, "receive", receive, bytes) : status;
}

static banyan_status shift(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance,
                           banyan_op **keep) {
  banyan_status status = check_shift(comm, send, receive, bytes);
  if (status != BANYAN_OK) return refuse(comm, status, keep);
  int32_t distance_mod = distance % comm->nranks;
  bny_op_key key = {.collective = BNY_SHIFT,
                    .bytes = bytes,
                    .distance = distance_mod < 0 ? distance_mod + comm->nranks : distance_mod};
  return bny_api_run_or_keep(comm, &key, &(bny_op_memory){.in_bytes = send, .out_bytes = receive}, keep);
}

banyan_status banyan_shift(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance) {
  return shift(comm, send, receive, bytes, distance, NULL);
}

banyan_status banyan_shift_init(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance,
                                banyan_op **op) {
  return op ? shift(comm, send, receive, bytes, distance, op) : refuse_init(comm);
}

static banyan_status check_broadcast(banyan_comm *comm, const void *data, size_t bytes, int32_t root) {
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  banyan_status status = check_bytes(bytes);
  if (status != BANYAN_OK) return status;
  if (bytes && !data) return bny_fail(BANYAN_ERR_ARGUMENT, "data is NULL");
  if (root < 0 || root >= comm->nranks)
    return bny_fail(BANYAN_ERR_ARGUMENT, "root is %d, must be 0..%d", root, comm->nranks - 1);
  return check_memory_bytes(comm, "data", data, bytes);
}

static banyan_status broadcast(banyan_comm *comm, void *data, size_t bytes, int32_t root, banyan_op **keep) {
  banyan_status status = check_broadcast(comm, data, bytes, root);
  if (status != BANYAN_OK) return refuse(comm, status, keep);
  bny_op_key key = {.collective = BNY_BROADCAST, .bytes = bytes, .root = root};
  return bny_api_run_or_keep(comm, &key, &(bny_op_memory){.in_bytes = data, .out_bytes = data}, keep);
}

banyan_status banyan_broadcast(banyan_comm *comm, void *data, size_t bytes, int32_t root) {
  return broadcast(comm, data, bytes, root, NULL);
}

banyan_status banyan_broadcast_init(banyan_comm *comm, void *data, size_t bytes, int32_t root, banyan_op **op) {
  return op ? broadcast(comm, data, bytes, root, op) : refuse_init(comm);
}

banyan_status banyan_barrier(banyan_comm *comm) {
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  return bny_api_run_or_keep(comm, &(bny_op_key){.collective = BNY_BARRIER}, &(bny_op_memory){0}, NULL);
}

banyan_status banyan_barrier_init(banyan_comm *comm, banyan_op **op) {
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  if (!op) return refuse_init(comm);
  return bny_api_run_or_keep(comm, &(bny_op_key){.collective = BNY_BARRIER}, &(bny_op_memory){0}, op);
}
