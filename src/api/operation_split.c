/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "api/live.h"
#include "api/operation_parts.h"
#include "base/status.h"

size_t bny_op_payload_limit(const banyan_op *op) {
  const banyan_comm *comm = op->comm;
  bool device = bny_op_runs_on_device(op);
  if (device && !comm->device.proxy) return comm->device.outbox_bytes; /* fewer launches are better */
  size_t levels = 1;
  while ((int64_t)1 << levels < comm->nranks) levels++;
  size_t fits = comm->transport->half_bytes / (2 + 2 * levels);
  return device || fits < comm->part_bytes ? fits : comm->part_bytes;
}

bny_request bny_op_request(const banyan_op *op) {
  const banyan_comm *comm = op->comm;
  const bny_op_key *key = &op->key;
  bool device = bny_op_runs_on_device(op) && !comm->device.proxy; /* between nodes, plans are those of the host */
  return (bny_request){
#define BNY_CALL_NUMBER(type, field, label, names) .field = key->field,
#include "plan/call.def"
      .tokens = key->all_tokens,
      .heads = key->all_heads,
      .nranks = comm->nranks,
      .counts = key->counts,
      .algorithm = key->algorithm[0] ? key->algorithm : NULL,
      .cost = device ? comm->device.cost : comm->cost,
      .levels = comm->levels,
      .outbox_bytes = device ? comm->device.outbox_bytes : comm->transport->half_bytes,
      .slots_max = comm->transport->slots_max,
  };
}

typedef struct cut {
  int32_t tokens, heads; /* of a part, at most */
  int32_t token_parts, head_parts;
} cut;

static int32_t divide_up(int64_t value, int64_t by) { return (int32_t)((value + by - 1) / by); }

enum { PARTS_MAX = 1 << 20 };

static size_t row_bytes_of(const bny_op_key *key) {
  if (key->collective == BNY_ALLGATHER_HEADS) return (size_t)key->dim * bny_dtype_bytes(key->dtype);
  return 2 * sizeof(float) + bny_wire_row_bytes(key->wire, key->value_dim);
}

static cut cut_rows(const bny_op_key *key, int32_t slices, size_t limit) {
  cut found = {key->all_tokens, key->all_heads, 1, 1};
  if (key->all_tokens == 0 || key->all_heads == 0) return found;
  if (slices > 1) found.tokens = divide_up(key->all_tokens, slices);
  size_t row_bytes = row_bytes_of(key);
  size_t rows = limit / row_bytes ? limit / row_bytes : 1;
  if (rows < (size_t)key->all_heads) {
    found.tokens = 1;
    found.heads = (int32_t)rows;
  } else if (rows / (size_t)key->all_heads < (size_t)found.tokens) {
    found.tokens = (int32_t)(rows / (size_t)key->all_heads);
  }
  found.token_parts = divide_up(key->all_tokens, found.tokens);
  found.head_parts = divide_up(key->all_heads, found.heads);
  return found;
}

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* Finds this rank's heads. */
static void set_heads(const banyan_op *op, bny_binding *binding) {
  for (int32_t i = 0; i < op->comm->rank; i++) binding->in_head0 += (int32_t)op->counts[i];
  binding->in_heads = (int32_t)op->counts[op->comm->rank];
}

static void set_rows(banyan_op *op, const cut *how, int32_t index) {
  bny_op_part *part = &op->parts[index];
  bny_request *request = &part->request;
  request->token0 = index / how->head_parts * how->tokens;
  request->head0 = index % how->head_parts * how->heads;
  request->tokens = smaller(how->tokens, op->key.all_tokens - request->token0);
  request->heads = smaller(how->heads, op->key.all_heads - request->head0);
  bool by_tokens = op->key.scatter == BANYAN_SCATTER_TOKENS;
  part->place = (bny_binding){.in = &op->in,
                              .out = &op->out,
                              .tokens_most = op->key.all_tokens,
                              .token_owners = by_tokens ? op->comm->nranks : 1};
  if (op->key.collective == BNY_ALLGATHER_HEADS) set_heads(op, &part->place);
  int32_t number;
  if (op->key.scatter == BANYAN_SCATTER_HEADS)
    bny_slice_split(op->key.all_heads, op->comm->nranks, op->comm->rank, &part->place.out_head0, &number);
  if (by_tokens)
    bny_slice_split(op->key.all_tokens, op->comm->nranks, op->comm->rank, &part->place.out_token0, &number);
}

/* Returns how many bytes of one rank fit a part, and how many parts that makes: at most one more than is allowed. */
static size_t bytes_per_part(const banyan_op *op, size_t limit, int32_t *parts) {
  size_t largest = op->key.bytes;
  size_t part_bytes = limit;
  if (op->key.collective == BNY_ALLGATHER) {
    part_bytes = limit / (size_t)op->comm->nranks;
    for (int32_t i = 0; i < op->comm->nranks; i++)
      if (op->counts[i] > largest) largest = op->counts[i];
  }
  part_bytes = part_bytes / 64 ? part_bytes / 64 * 64 : 64;
  *parts = largest > part_bytes * PARTS_MAX ? PARTS_MAX + 1
           : largest                        ? divide_up((int64_t)largest, (int64_t)part_bytes)
                                            : 1;
  return part_bytes;
}

static size_t clamp(size_t value, size_t from, size_t at_most) {
  size_t left = value > from ? value - from : 0;
  return left < at_most ? left : at_most;
}

static banyan_status set_bytes(banyan_op *op, size_t part_bytes, int32_t index) {
  bny_op_part *part = &op->parts[index];
  banyan_comm *comm = op->comm;
  size_t nranks = (size_t)comm->nranks, from = part_bytes * (size_t)index;
  part->in_offset = part->out_offset = from;
  if (op->key.collective != BNY_ALLGATHER) {
    size_t bytes = clamp(op->key.bytes, from, part_bytes);
    part->request.bytes = bytes;
    if (op->key.collective == BNY_SHIFT) {
      int32_t sender = (comm->rank - op->key.distance + comm->nranks) % comm->nranks;
      part->place = (bny_binding){.in_byte0 = (size_t)comm->rank * bytes, .out_byte0 = (size_t)sender * bytes};
    }
    return BANYAN_OK;
  }
  part->pieces = calloc(2 * nranks, sizeof *part->pieces);
  if (!part->pieces) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an allgather in parts");
  size_t *counts = part->pieces, *offsets = part->pieces + nranks, begin = 0;
  for (size_t r = 0; r < nranks; begin += op->counts[r], r++) {
    counts[r] = clamp(op->counts[r], from, part_bytes);
    offsets[r] = begin + from;
    if (r < (size_t)comm->rank) part->place.in_byte0 += counts[r];
  }
  part->out_offset = 0; /* the offsets have it */
  part->place.piece_counts = counts;
  part->place.piece_offsets = offsets;
  part->request.counts = counts;
  return BANYAN_OK;
}

banyan_status bny_op_cut(banyan_op *op, size_t limit) {
  size_t part_bytes = 0;
  bool rows = bny_collective_has_rows(op->key.collective);
  cut how = {0};
  if (rows) {
    how = cut_rows(&op->key, op->slices, limit);
    op->nparts = how.token_parts * how.head_parts;
  } else {
    part_bytes = bytes_per_part(op, limit, &op->nparts);
  }
  if (op->nparts > PARTS_MAX)
    return bny_fail(BANYAN_ERR_MEMORY, "the call is too large: it takes more than %d parts; raise arena_bytes",
                    PARTS_MAX);
  op->parts = calloc((size_t)op->nparts, sizeof *op->parts);
  if (!op->parts) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation of %d parts", op->nparts);
  banyan_status status = BANYAN_OK;
  for (int32_t i = 0; i < op->nparts && status == BANYAN_OK; i++) {
    op->parts[i].request = bny_op_request(op);
    if (rows)
      set_rows(op, &how, i);
    else
      status = set_bytes(op, part_bytes, i);
  }
  return status;
}

bny_binding bny_op_binding(const banyan_op *op, const bny_op_part *part) {
  const bny_op_memory *memory = &op->memory;
  bny_binding binding = part->place;
  binding.live_tokens = bny_live_selects(&op->live) ? op->live_tokens : NULL;
  binding.live = &op->live;
  binding.tokens = op->tokens;
  binding.keeps_empty_rows = op->live.empty_rows == BANYAN_EMPTY_ROWS_KEPT;
  binding.mine = memory->mine;
  binding.all = memory->all;
  binding.in_place = memory->in_place;
  if (bny_collective_has_rows(op->key.collective)) return binding;
  binding.in_bytes = memory->in_bytes ? (const char *)memory->in_bytes + part->in_offset : NULL;
  binding.out_bytes = memory->out_bytes ? (char *)memory->out_bytes + part->out_offset : NULL;
  return binding;
}
