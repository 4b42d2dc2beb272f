/* SPDX-License-Identifier: Apache-2.0
 * Cuts a call that does not fit the arena into parts, and binds each part to its memory. */
#include <stdlib.h>

#include "op/valid.h"
#include "op/operation.h"
#include "base/status.h"

size_t bny_op_payload_limit(const banyan_op *op) {
  const banyan_comm *comm = op->comm;
  bool device = op->on_device;
  if (device && !comm->device.proxy) return comm->device.outbox_bytes; /* fewer launches are better */
  size_t levels = 1;
  while ((int64_t)1 << levels < comm->nranks) levels++;
  size_t fits = comm->transport->half_bytes / (2 + 2 * levels);
  return device || fits < comm->part_bytes ? fits : comm->part_bytes;
}

bny_request bny_op_request(const banyan_op *op) {
  const banyan_comm *comm = op->comm;
  const bny_call *call = &op->call;
  bool device = op->on_device && !comm->device.proxy; /* between nodes, plans are those of the host */
  return (bny_request){
      .call = *call,
      .tokens = call->all_tokens,
      .heads = call->all_heads,
      .nranks = comm->nranks,
      .algorithm = call->algorithm[0] ? call->algorithm : NULL,
      .cost = device ? comm->device.cost : comm->cost,
      .levels = comm->levels,
      .outbox_bytes = device ? comm->device.outbox_bytes : comm->transport->half_bytes,
      .slots_max = comm->transport->slots_max,
  };
}

bny_box bny_op_result_box(const banyan_comm *comm, const bny_call *call) {
  bny_box box = {call->tokens, call->all_heads, call->value_dim};
  int32_t first;
  if (call->scatter == BANYAN_SCATTER_HEADS)
    bny_slice_split(call->all_heads, comm->nranks, comm->rank, &first, &box.heads);
  if (call->scatter == BANYAN_SCATTER_TOKENS)
    bny_slice_split(call->tokens, comm->nranks, comm->rank, &first, &box.tokens);
  if (call->scatter == BANYAN_SCATTER_ROOT && call->root != comm->rank) box.tokens = 0;
  return box;
}

static int64_t divide_up(int64_t value, int64_t by) { return value / by + (value % by != 0); }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- parts that are alike ---------------------------------------------------------------------------------------- */

enum { KINDS_MAX = 1 << 14 };

static int compare_parts(const void *a, const void *b) {
  int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
  return first < second ? -1 : first > second;
}

/* Fills in where each rank's share of a dimension begins, or, for an all-gather of bytes, where it ends. */
static void fill_bounds(const banyan_op *op, bool heads, int64_t *bounds) {
  const bny_call *call = &op->call;
  int32_t all = heads ? call->all_heads : call->all_tokens, nranks = op->comm->nranks, first = 0, number;
  bool scattered = bny_call_merges(call) && call->scatter == (heads ? BANYAN_SCATTER_HEADS : BANYAN_SCATTER_TOKENS);
  bool gathers = bny_call_gathers(call);
  int64_t sum = 0;
  for (int32_t rank = 0; rank < nranks; rank++) {
    if (scattered) bny_slice_split(all, nranks, rank, &first, &number);
    bounds[rank] = gathers && !bny_call_has_rows(call) ? (int64_t)op->counts[rank] : scattered ? first : sum;
    if (gathers && heads) sum += (int64_t)op->counts[rank];
  }
}

/* Two parts differ from their predecessor at each bound: the part that contains the bound, and the part after it.
 * Programs of devices contain the offsets of rows, so on devices each part has its own plan. */
static banyan_status find_spans(const banyan_op *op, bool heads, bny_op_cut *cut) {
  int64_t nranks = op->comm->nranks, found = 1;
  cut->parts = cut->all > 0 ? divide_up(cut->all, cut->each) : 1;
  cut->spans = cut->parts;
  if (op->on_device && bny_call_has_rows(&op->call)) return BANYAN_OK;
  int64_t *bounds = malloc((size_t)(nranks + 1) * sizeof *bounds);
  cut->first = malloc((size_t)(2 * nranks + 3) * sizeof *cut->first);
  if (!bounds || !cut->first) {
    free(bounds);
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  }
  fill_bounds(op, heads, bounds);
  bounds[nranks] = cut->all;
  cut->first[0] = 0;
  for (int64_t i = 0; i <= nranks; i++) {
    cut->first[found++] = bounds[i] / cut->each;
    cut->first[found++] = divide_up(bounds[i], cut->each);
  }
  free(bounds);
  qsort(cut->first, (size_t)found, sizeof *cut->first, compare_parts);
  cut->spans = 0;
  for (int64_t i = 0; i < found; i++)
    if (cut->first[i] < cut->parts && (i == 0 || cut->first[i] != cut->first[i - 1]))
      cut->first[cut->spans++] = cut->first[i];
  return BANYAN_OK;
}

static int64_t span_of(const bny_op_cut *cut, int64_t part) {
  int64_t low = 0, high = cut->spans;
  if (!cut->first) return part;
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    if (cut->first[middle] <= part)
      low = middle;
    else
      high = middle;
  }
  return low;
}

static int64_t first_part(const bny_op_cut *cut, int64_t span) { return cut->first ? cut->first[span] : span; }

static int64_t count_parts(const bny_op_cut *cut, int64_t span) {
  return (span + 1 < cut->spans ? first_part(cut, span + 1) : cut->parts) - first_part(cut, span);
}

bny_op_part bny_op_part_of(const banyan_op *op, int64_t index) {
  int64_t outer = index / op->inner.parts, inner = index % op->inner.parts;
  bny_op_part part = {&op->kinds[span_of(&op->outer, outer) * op->inner.spans + span_of(&op->inner, inner)], 0, 0, 0,
                      0};
  if (bny_call_has_rows(&op->call)) {
    part.token0 = (int32_t)(outer * op->outer.each);
    part.tokens = (int32_t)smaller(op->outer.each, op->outer.all - part.token0);
    part.head0 = (int32_t)(inner * op->inner.each);
  } else {
    part.byte0 = (size_t)outer * (size_t)op->outer.each;
  }
  return part;
}

/* The rows of an owner are its first tokens, so the next rows belong to the next owner. */
int64_t bny_op_part_after(const banyan_op *op, int64_t index) {
  bny_op_part part = bny_op_part_of(op, index);
  int32_t owners = part.kind->place.token_owners, all = op->call.all_tokens, first, number;
  if (owners == 1) return op->nparts;
  int32_t owner = bny_levels_part_of(all, owners, part.token0 + part.tokens - 1) + 1;
  if (owner >= owners) return op->nparts;
  bny_slice_split(all, owners, owner, &first, &number);
  int64_t next = first / op->outer.each * op->inner.parts;
  return number > 0 ? next : op->nparts;
}

/* ---- cutting ----------------------------------------------------------------------------------------------------- */

static size_t row_bytes_of(const bny_call *call) {
  const bny_payload *payload = bny_payload_of(call);
  return (payload->has_statistics ? 2 * sizeof(float) : 0) + payload->row_bytes(call);
}

static void cut_rows(banyan_op *op, size_t limit) {
  const bny_call *call = &op->call;
  int64_t tokens = call->all_tokens, heads = call->all_heads, rows = (int64_t)(limit / row_bytes_of(call));
  if (tokens > 0 && heads > 0) {
    if (op->slices > 1) tokens = divide_up(tokens, op->slices);
    if (rows < 1) rows = 1;
    if (rows < heads) {
      tokens = 1;
      heads = rows;
    } else {
      tokens = smaller(tokens, rows / heads);
    }
  }
  op->outer = (bny_op_cut){.all = call->all_tokens, .each = tokens > 0 ? tokens : 1};
  op->inner = (bny_op_cut){.all = call->all_heads, .each = heads > 0 ? heads : 1};
}

/* Cuts bytes into parts. A part of an all-gather has the same number of bytes of each rank. */
static void cut_bytes(banyan_op *op, size_t limit) {
  size_t largest = op->call.bytes;
  if (bny_call_gathers(&op->call)) {
    limit /= (size_t)op->comm->nranks;
    for (int32_t i = 0; i < op->comm->nranks; i++)
      if (op->counts[i] > largest) largest = op->counts[i];
  }
  op->outer = (bny_op_cut){.all = (int64_t)largest, .each = limit / 64 ? (int64_t)(limit / 64 * 64) : 64};
  op->inner = (bny_op_cut){.all = 1, .each = 1};
}

/* ---- what a kind of part is -------------------------------------------------------------------------------------- */

static void set_heads(const banyan_op *op, bny_binding *binding) {
  for (int32_t i = 0; i < op->comm->rank; i++) binding->in_head0 += (int32_t)op->counts[i];
  binding->in_heads = (int32_t)op->counts[op->comm->rank];
}

static void set_rows(const banyan_op *op, const bny_op_part *part) {
  bny_op_kind *kind = part->kind;
  bny_request *request = &kind->request;
  request->token0 = part->token0;
  request->head0 = part->head0;
  request->tokens = part->tokens;
  request->heads = (int32_t)smaller(op->inner.each, op->call.all_heads - request->head0);
  bool by_tokens = op->call.scatter == BANYAN_SCATTER_TOKENS;
  kind->place = (bny_binding){.in = &op->in,
                              .out = &op->out,
                              .tokens_most = op->call.all_tokens,
                              .token_owners = by_tokens ? op->comm->nranks : 1,
                              .token0 = request->token0,
                              .dtype = op->call.dtype,
                              .tokens_planned = request->tokens};
  if (bny_call_gathers(&op->call)) set_heads(op, &kind->place);
  int32_t number;
  if (op->call.scatter == BANYAN_SCATTER_HEADS)
    bny_slice_split(op->call.all_heads, op->comm->nranks, op->comm->rank, &kind->place.out_head0, &number);
}

static size_t clamp(size_t value, size_t from, size_t at_most) {
  size_t left = value > from ? value - from : 0;
  return left < at_most ? left : at_most;
}

static banyan_status set_bytes(const banyan_op *op, const bny_op_part *part) {
  bny_op_kind *kind = part->kind;
  const banyan_comm *comm = op->comm;
  size_t nranks = (size_t)comm->nranks, from = part->byte0, part_bytes = (size_t)op->outer.each;
  if (!bny_call_gathers(&op->call)) {
    size_t bytes = clamp(op->call.bytes, from, part_bytes);
    kind->request.call.bytes = bytes;
    if (op->call.collective == BNY_SHIFT) {
      int32_t sender = (comm->rank - op->call.distance + comm->nranks) % comm->nranks;
      kind->place = (bny_binding){.in_byte0 = (size_t)comm->rank * bytes, .out_byte0 = (size_t)sender * bytes};
    }
    return BANYAN_OK;
  }
  kind->pieces = calloc(2 * nranks, sizeof *kind->pieces);
  if (!kind->pieces) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an allgather in parts");
  size_t *counts = kind->pieces, *offsets = kind->pieces + nranks, begin = 0;
  for (size_t r = 0; r < nranks; begin += op->counts[r], r++) {
    counts[r] = clamp(op->counts[r], from, part_bytes);
    offsets[r] = begin;
    if (r < (size_t)comm->rank) kind->place.in_byte0 += counts[r];
  }
  kind->place.piece_counts = counts;
  kind->place.piece_offsets = offsets;
  kind->request.call.counts = counts;
  return BANYAN_OK;
}

banyan_status bny_op_cut_parts(banyan_op *op, size_t limit) {
  bool rows = bny_call_has_rows(&op->call);
  if (rows)
    cut_rows(op, limit);
  else
    cut_bytes(op, limit);
  banyan_status status = find_spans(op, false, &op->outer);
  if (status == BANYAN_OK) status = find_spans(op, true, &op->inner);
  if (status != BANYAN_OK) return status;
  op->nparts = op->outer.parts * op->inner.parts;
  op->nkinds = op->outer.spans * op->inner.spans;
  if (op->nkinds > KINDS_MAX)
    return bny_fail(BANYAN_ERR_MEMORY, "the call is too large: it takes more than %d plans; raise arena_bytes",
                    KINDS_MAX);
  op->kinds = calloc((size_t)op->nkinds, sizeof *op->kinds);
  if (!op->kinds) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation of %d plans", (int)op->nkinds);
  for (int64_t i = 0; i < op->nkinds && status == BANYAN_OK; i++) {
    int64_t outer = i / op->inner.spans, inner = i % op->inner.spans;
    bny_op_part part =
        bny_op_part_of(op, first_part(&op->outer, outer) * op->inner.parts + first_part(&op->inner, inner));
    part.kind->request = bny_op_request(op);
    part.kind->count = count_parts(&op->outer, outer) * count_parts(&op->inner, inner);
    if (rows)
      set_rows(op, &part);
    else
      status = set_bytes(op, &part);
  }
  return status;
}

bny_binding bny_op_binding(const banyan_op *op, const bny_op_part *part) {
  const bny_op_memory *memory = &op->memory;
  bny_binding binding = part->kind->place;
  binding.valid_tokens = bny_valid_selects(&op->valid) ? op->valid_tokens : NULL;
  binding.valid = &op->valid;
  binding.tokens = op->tokens;
  binding.keeps_empty_rows = op->valid.empty_rows == BANYAN_EMPTY_ROWS_KEPT;
  binding.mine = memory->mine;
  binding.all = memory->all;
  binding.lists = memory->lists;
  binding.heads = op->call.all_heads;
  binding.call = &op->call;
  if (op->counter) binding.saturated = (uint64_t *)op->comm->device.engine->words.device + op->counter;
  binding.in_place = memory->in_place;
  int32_t tokens = op->on_device ? op->call.all_tokens : op->tokens, number; /* kernels find it themselves */
  if (op->call.scatter == BANYAN_SCATTER_TOKENS)
    bny_slice_split(tokens, op->comm->nranks, op->comm->rank, &binding.out_token0, &number);
  if (bny_call_has_rows(&op->call)) return binding;
  binding.in_bytes = memory->in_bytes ? (const char *)memory->in_bytes + part->byte0 : NULL;
  binding.out_bytes = memory->out_bytes ? (char *)memory->out_bytes + part->byte0 : NULL;
  return binding;
}
