/* SPDX-License-Identifier: Apache-2.0
 * Divides rows and bytes into units, chooses the protocol, and computes the layout of arenas and the size of
 * launches. */
#include "device/program.h"

#include "base/status.h"
#include "f8.h"

/* Payloads up to these sizes go by packets with flags. Larger ones go by plain stores, because the flags' extra bytes
 * cost more than a release. The limits are estimates for cases that were not measured. */
static const bny_unit_limits usual_limits = {.ll16_bytes = 128 << 10, .ll128_bytes = 4 << 20, .round_bytes = 256 << 10};
enum { UNIT_ALIGNMENT = 128, ARENA_ALIGNMENT = 256 };
/* This many units keep a device busy, so rows are not divided further. */
enum { UNITS_ENOUGH = 1024 };
/* Larger payloads of bytes and sums are divided into units of this many packets for each lane. */
enum { ROUNDS_MANY = 4 };

static const bny_unit_limits *limits_of(const bny_device_settings *settings) {
  return settings->limits ? settings->limits : &usual_limits;
}

static int32_t rounds_of(uint64_t bytes, const bny_device_settings *settings) {
  return bytes <= limits_of(settings)->round_bytes ? 1 : ROUNDS_MANY;
}

static uint64_t payload_bytes(const bny_request *request) {
  const bny_payload *payload = bny_payload_of(&request->call);
  uint64_t bytes = 0;
  if (payload->has_rows) {
    uint64_t row = (payload->has_statistics ? 8 : 0) + payload->row_bytes(&request->call);
    return (uint64_t)request->tokens * (uint64_t)request->heads * row;
  }
  if (!bny_call_gathers(&request->call)) return request->call.bytes;
  for (int32_t rank = 0; rank < request->nranks; rank++) bytes += request->call.counts[rank];
  return bytes;
}

bool bny_unit_protocol_serves(int32_t protocol, const bny_device_settings *settings) {
  switch (protocol) {
  case BNY_PROTOCOL_LL128: return settings->lines_whole;
  default: return true;
  }
}

int32_t bny_unit_protocol(const bny_request *request, const bny_device_settings *settings) {
  /* Writes before a barrier on one rank must be visible after it on all others. Flags in packets order only their own
   * packet. */
  if (request->call.collective == BNY_BARRIER) return BNY_PROTOCOL_SIMPLE;
  if (request->call.collective == BNY_SELECT) return BNY_PROTOCOL_SIMPLE; /* a pair fills 16 bytes, without a flag */
  if (settings->protocol >= 0 && settings->protocol < BNY_PROTOCOL_COUNT) return settings->protocol;
  const bny_unit_limits *limits = limits_of(settings);
  uint64_t bytes = payload_bytes(request);
  if (bytes <= limits->ll16_bytes) return BNY_PROTOCOL_LL16;
  return bytes <= limits->ll128_bytes && settings->lines_whole ? BNY_PROTOCOL_LL128 : BNY_PROTOCOL_SIMPLE;
}

static uint64_t round_up(uint64_t bytes, uint64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

static int32_t bits_of(int32_t wire) { return 8 * (int32_t)bny_wire_formats[wire].element_bytes; }

static void set_unit_bytes(bny_unit_shape *shape, int32_t packets) {
  uint64_t bytes = (uint64_t)packets * BNY_PACKET_BYTES;
  shape->unit_bytes = (uint32_t)round_up(bytes, UNIT_ALIGNMENT);
}

static banyan_status shape_of_bytes(const bny_request *request, int32_t protocol, const bny_device_settings *settings,
                                    bny_unit_shape *shape) {
  uint64_t whole = request->call.bytes;
  if (request->call.collective == BNY_SHIFT)
    whole *= (uint64_t)request->nranks;
  else if (bny_call_gathers(&request->call))
    whole = payload_bytes(request);
  int32_t rounds = rounds_of(whole, settings);
  int32_t bytes = request->call.collective == BNY_BARRIER ? 4 : 4 * bny_protocol_round_words(protocol) * rounds;
  uint64_t units = request->call.collective == BNY_BARRIER ? 1 : (whole + (uint64_t)bytes - 1) / (uint64_t)bytes;
  if (units > INT32_MAX)
    return bny_fail(BANYAN_ERR_MEMORY, "%llu bytes are too many for one call on a device", (unsigned long long)whole);
  *shape = (bny_unit_shape){
      .tokens = 1, .heads = (int32_t)units, .wire = BNY_UNIT_BYTES, .chunk_columns = bytes, .chunks = 1};
  set_unit_bytes(shape, bny_protocol_packets(protocol, bytes / 4));
  return BANYAN_OK;
}

/* A unit is a row. */
static banyan_status shape_of_heads(const bny_request *request, int32_t protocol, bny_unit_shape *shape) {
  int32_t row_bytes = (int32_t)bny_payload_of(&request->call)->row_bytes(&request->call), words = (row_bytes + 3) / 4;
  *shape = (bny_unit_shape){.token0 = request->token0,
                            .tokens = request->tokens,
                            .head0 = request->head0,
                            .heads = request->heads,
                            .value_dim = row_bytes,
                            .wire = BNY_UNIT_HEADS,
                            .chunk_columns = 4 * words,
                            .chunks = 1};
  set_unit_bytes(shape, bny_protocol_packets(protocol, words));
  return BANYAN_OK;
}

/* Returns how many rows of a sum's plan a unit has. A unit has one owner, which the direct kernels require, if rows are
 * divided evenly or one by one. */
static int32_t rows_of_sums(const bny_request *request, int32_t protocol, const bny_device_settings *settings) {
  const bny_call *call = &request->call;
  int32_t rounds = rounds_of(payload_bytes(request), settings);
  int32_t words = bny_protocol_round_words(protocol) * rounds - bny_protocol_header_words(protocol);
  int32_t most = words * (32 / bits_of((int32_t)call->wire)) / 8 * 8;
  if (call->wire == BNY_WIRE_E4M3) most = rounds * bny_protocol_round_columns(protocol) / call->value_dim;
  if (call->scatter != BANYAN_SCATTER_HEADS) return most;
  if (call->all_heads % request->nranks) return bny_request_may_be_direct(request) ? 1 : most;
  int32_t each = call->all_heads / request->nranks, parts = (each + most - 1) / most;
  while (parts > 1 && each % parts) parts--;
  return parts ? each / parts : most;
}

/* A unit is a list. */
static banyan_status shape_of_lists(const bny_request *request, bny_unit_shape *shape) {
  *shape = (bny_unit_shape){.token0 = request->token0,
                            .tokens = request->tokens,
                            .head0 = request->head0,
                            .heads = request->heads,
                            .value_dim = request->call.dim,
                            .wire = BNY_UNIT_LISTS,
                            .chunks = 1};
  shape->unit_bytes = (uint32_t)round_up(bny_payload_of(&request->call)->row_bytes(&request->call), UNIT_ALIGNMENT);
  return BANYAN_OK;
}

/* A unit is some columns of a token. */
static banyan_status shape_of_sums(const bny_request *request, int32_t protocol, const bny_device_settings *settings,
                                   bny_unit_shape *shape) {
  const bny_call *call = &request->call;
  int32_t row = call->value_dim, columns = rows_of_sums(request, protocol, settings) * row;
  int32_t groups = call->scatter == BANYAN_SCATTER_HEADS ? request->nranks : 1;
  *shape = (bny_unit_shape){.column0 = request->head0 * row,
                            .columns = request->heads * row,
                            .row_columns = row,
                            .dim = call->dim,
                            .groups = groups,
                            .group_columns = call->all_heads / groups * row,
                            .value_dim = columns,
                            .wire = (int32_t)request->call.wire,
                            .chunk_columns = columns,
                            .chunks = 1};
  bny_unit_box box = bny_unit_box_of(shape, &(bny_slice){.token0 = request->token0,
                                                         .tokens = request->tokens,
                                                         .head0 = request->head0,
                                                         .heads = request->heads});
  shape->token0 = box.token0;
  shape->tokens = box.tokens;
  shape->head0 = box.head0;
  shape->heads = box.heads;
  set_unit_bytes(shape, bny_protocol_packets_of(protocol, bits_of(shape->wire), columns));
  return BANYAN_OK;
}

banyan_status bny_unit_shape_make(const bny_request *request, int32_t protocol, const bny_device_settings *settings,
                                  bny_unit_shape *shape) {
  if (!bny_call_has_rows(&request->call)) return shape_of_bytes(request, protocol, settings, shape);
  if (bny_call_gathers(&request->call)) return shape_of_heads(request, protocol, shape);
  if (request->call.collective == BNY_ALLREDUCE) return shape_of_sums(request, protocol, settings, shape);
  if (request->call.collective == BNY_SELECT) return shape_of_lists(request, shape);
  int64_t rows = (int64_t)request->tokens * request->heads;
  int32_t bits = bits_of(request->call.wire);
  if (rows * BNY_CHUNKS_MAX > INT32_MAX)
    return bny_fail(BANYAN_ERR_MEMORY, "%lld rows are too many for one call on a device", (long long)rows);
  const uint64_t alignment = bits == 8 ? BNY_SCALE_BLOCK : 8;
  int32_t chunks = 1, columns = request->call.value_dim;
  while (!settings->whole_rows && chunks < BNY_CHUNKS_MAX && bny_protocol_packets_of(protocol, bits, columns) > 32 &&
         2 * chunks * rows <= UNITS_ENOUGH) {
    chunks *= 2;
    columns = (int32_t)round_up((uint64_t)((request->call.value_dim + chunks - 1) / chunks), alignment);
  }
  *shape = (bny_unit_shape){.token0 = request->token0,
                            .tokens = request->tokens,
                            .head0 = request->head0,
                            .heads = request->heads,
                            .value_dim = request->call.value_dim,
                            .wire = (int32_t)request->call.wire,
                            .chunk_columns = columns,
                            .chunks = chunks};
  set_unit_bytes(shape, bny_protocol_packets_of(protocol, bits, columns));
  return BANYAN_OK;
}

bny_unit_box bny_unit_box_of(const bny_unit_shape *shape, const bny_slice *slice) {
  if (shape->columns && slice->heads > 0) {
    int32_t rows = shape->value_dim / shape->row_columns;
    int32_t first = slice->head0 / rows, last = (slice->head0 + slice->heads - 1) / rows;
    return (bny_unit_box){slice->token0, slice->tokens, first, last + 1 - first};
  }
  if (shape->wire != BNY_UNIT_BYTES) return (bny_unit_box){slice->token0, slice->tokens, slice->head0, slice->heads};
  if (slice->bytes == 0) return (bny_unit_box){0};
  size_t unit = (size_t)shape->chunk_columns, first = slice->byte0 / unit, end = slice->byte0 + slice->bytes;
  return (bny_unit_box){0, 1, (int32_t)first, (int32_t)((end + unit - 1) / unit - first)};
}

uint64_t bny_unit_box_units(const bny_unit_shape *shape, const bny_unit_box *box) {
  return (uint64_t)box->tokens * (uint64_t)box->heads * (uint64_t)shape->chunks;
}

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

bny_arena_shape bny_arena_shape_make(const bny_arena_sizes *sizes) {
  bny_arena_shape shape;
  uint64_t at = round_up(sizeof(bny_arena_head), ARENA_ALIGNMENT);
  for (int protocol = 0; protocol < BNY_PROTOCOL_COUNT; protocol++)
    for (int half = 0; half < 2; half++) {
      shape.inbox[protocol][half] = at;
      at += round_up(sizes->inbox_bytes[protocol], ARENA_ALIGNMENT);
    }
  for (int half = 0; half < 2; half++) {
    shape.signals[half] = at;
    at += round_up(sizes->signals * sizeof(uint64_t), ARENA_ALIGNMENT);
  }
  shape.bytes = at;
  return shape;
}

const char *bny_arena_lacks(const bny_arena_sizes *sizes, const bny_arena_sizes *needs) {
  static const char *const inboxes[BNY_PROTOCOL_COUNT] = {"the LL16 inbox", "the LL128 inbox",
                                                          "the inbox of plain stores"};
  for (int protocol = 0; protocol < BNY_PROTOCOL_COUNT; protocol++)
    if (needs->inbox_bytes[protocol] > sizes->inbox_bytes[protocol]) return inboxes[protocol];
  if (needs->proxy_words > sizes->proxy_words) return "the words of messages between nodes";
  return needs->signals > sizes->signals ? "the signals" : NULL;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

int32_t bny_device_blocks(const bny_unit_shape *shape, int32_t threads, int32_t blocks_max) {
  int64_t units = (int64_t)shape->tokens * shape->heads * shape->chunks, warps = threads / 32;
  /* one warp more than units if possible, because the last warp announces the run */
  int64_t blocks = units / warps + 1;
  return (int32_t)(blocks < blocks_max ? blocks : blocks_max);
}

enum { ONESHOT, INTERPRET, BYTES, SELECT };

/* Returns the name of a kernel of kernels.def, or NULL. */
static const char *find_kernel(int form, int32_t protocol, int32_t bits, int how) {
  static const struct {
    const char *name;
    int form, protocol, bits, how;
  } kernels[] = {
#define BNY_CUDA_KERNEL(name, form, protocol, bits, how) {#name, form, protocol, bits, how},
#include "cuda/kernels.def"
#undef BNY_CUDA_KERNEL
  };
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
    if (kernels[i].form == form && kernels[i].protocol == protocol && kernels[i].bits == bits && kernels[i].how == how)
      return kernels[i].name;
  return NULL;
}

const char *bny_device_oneshot_kernel(bny_protocol protocol, int32_t wire, banyan_order order, int32_t nranks) {
  if (wire == BNY_UNIT_LISTS) return find_kernel(SELECT, (int32_t)protocol, 0, 0);
  const int how = order == BANYAN_ORDER_EXACT         ? BNY_ONESHOT_EXACT
                  : nranks > BNY_ONESHOT_NARROW_RANKS ? BNY_ONESHOT_WIDE
                                                      : BNY_ONESHOT_NARROW;
  return find_kernel(ONESHOT, (int32_t)protocol, bits_of(wire), how);
}

const char *bny_device_program_kernel(const bny_program *program) {
  const int32_t wire = program->shape.wire;
  if (wire >= 0) return find_kernel(INTERPRET, program->protocol, bits_of(wire), program->exact);
  return find_kernel(BYTES, program->protocol, 0, wire == BNY_UNIT_HEADS);
}
