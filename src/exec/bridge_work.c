/* SPDX-License-Identifier: Apache-2.0
 * Calls of a bridge: planned for the host, and made programs of two kinds of steps for the device: all that is put in is
 * pushed to the proxy, then all that comes of it is waited for and given to the caller. */
#include <stdlib.h>
#include <string.h>

#include "exec/bridge_parts.h"
#include "exec/device_program.h"
#include "status.h"

/* Blocks of a launch at most: enough to keep the link to the host's memory busy. An estimate, to be replaced by
 * measurement. */
enum { BLOCKS_MAX = 16, UNIT_ALIGNMENT = 128 };

/* ---- units ----------------------------------------------------------------------------------------------------------- */

/* In f32 whatever the wire is, which is the network's. A unit is a whole row, so that the host finds its values together. */
static bny_unit_shape shape_of(const bny_request *request) {
  int32_t words = bny_protocol_header_words(BNY_PROTOCOL_SIMPLE) + request->value_dim;
  uint32_t bytes = (uint32_t)(bny_protocol_packets(BNY_PROTOCOL_SIMPLE, words) * bny_protocol_packet_bytes(BNY_PROTOCOL_SIMPLE));
  return (bny_unit_shape){
    .tokens = request->all_tokens,
    .heads = request->all_heads,
    .value_dim = request->value_dim,
    .wire = BNY_WIRE_F32,
    .chunk_columns = request->value_dim,
    .chunks = 1,
    .unit_bytes = (bytes + UNIT_ALIGNMENT - 1) / UNIT_ALIGNMENT * UNIT_ALIGNMENT,
  };
}

/* What units hold: m, d, and a numerator. */
static banyan_partial partial_of(char *first, const bny_slice *box, const bny_unit_shape *shape) {
  int64_t stride = shape->unit_bytes / (int64_t)sizeof(float);
  float *words = (float *)(void *)first;
  return (banyan_partial){
    .size = sizeof(banyan_partial),
    .values = words + bny_protocol_header_words(BNY_PROTOCOL_SIMPLE),
    .values_token_stride = stride * box->heads,
    .values_head_stride = stride,
    .values_dtype = BANYAN_F32,
    .values_kind = BANYAN_VALUES_NUMERATOR,
    .lse = words,
    .sum = words + 1,
    .stats_token_stride = stride * box->heads,
    .stats_head_stride = stride,
    .stats_dtype = BANYAN_F32,
    .stats_kind = BANYAN_STATS_MAX_SUM,
    .base = BANYAN_BASE_2,
    .empty = BANYAN_EMPTY_NEG_INF,
  };
}

static void place_units(const bny_bridge *bridge, int32_t rank, const bny_unit_shape *shape, uint64_t first,
                        bny_bridge_units *units) {
  units->first = first;
  for (int half = 0; half < 2; half++) {
    size_t offset = bridge->shape.inbox[BNY_PROTOCOL_SIMPLE][half] + first * shape->unit_bytes;
    units->partial[half] = partial_of(bny_bridge_address(bridge, rank, offset), &units->box, shape);
  }
}

/* ---- launches -------------------------------------------------------------------------------------------------------- */

/* How many units fit an inbox. */
static uint64_t units_max(const bny_bridge *bridge, const bny_unit_shape *shape) {
  uint64_t fit = bridge->sizes.inbox_bytes[BNY_PROTOCOL_SIMPLE] / shape->unit_bytes;
  return fit < bridge->sizes.signals ? fit : bridge->sizes.signals;
}

/* As many slices as fit, from `first` on. No rank has more units of results than of what it puts in, so all cut alike. */
static void fill_launch(bny_bridge_work *work, int32_t first, bny_bridge_launch *launch) {
  bny_bridge *bridge = work->bridge;
  uint64_t most = units_max(bridge, &launch->shape), in = 0, out = 0;
  launch->work = work;
  launch->first = first;
  for (int32_t i = first; i < work->nslices; i++) {
    bny_bridge_slice *slice = &work->slices[i];
    if (in + slice->in.count > most) break;
    place_units(bridge, BNY_BRIDGE_PROXY, &launch->shape, in, &slice->in);
    place_units(bridge, BNY_BRIDGE_DEVICE, &launch->shape, out, &slice->out);
    in += slice->in.count;
    out += slice->out.count;
    launch->count++;
  }
}

static void add_step(bny_program *program, bny_program_kind kind, const bny_bridge_units *units, int32_t number) {
  if (units->count == 0) return;
  bny_program_step *steps = (bny_program_step *)(void *)(program + 1);
  bny_program_place *places = (bny_program_place *)(void *)(steps + program->nplaces); /* as many as there is room for */
  bool copies = kind == BNY_PROGRAM_COPY;
  places[program->nsteps] = (bny_program_place){
    .offset = units->first * program->shape.unit_bytes,
    .signal = (uint32_t)units->first,
    .peer = BNY_BRIDGE_PROXY,
    .slot = number,
    .token0 = units->box.token0,
    .head0 = units->box.head0,
    .heads = units->box.heads,
  };
  steps[program->nsteps] = (bny_program_step){
    .kind = kind,
    .sources = program->nsteps,
    .nsources = !copies,
    .destinations = program->nsteps,
    .ndestinations = copies,
    .token0 = units->box.token0,
    .tokens = units->box.tokens,
    .head0 = units->box.head0,
    .heads = units->box.heads,
  };
  program->nsteps++;
}

static int32_t count_steps(const bny_bridge_launch *launch) {
  int32_t steps = 0;
  for (int32_t i = launch->first; i < launch->first + launch->count; i++)
    steps += (launch->work->slices[i].in.count > 0) + (launch->work->slices[i].out.count > 0);
  return steps;
}

static bny_program *make_program(const bny_bridge_launch *launch) {
  int32_t steps = count_steps(launch);
  size_t bytes = sizeof(bny_program) + (size_t)steps * (sizeof(bny_program_step) + sizeof(bny_program_place));
  bny_program *program = calloc(1, bytes);
  if (!program) return NULL;
  *program = (bny_program){.bytes = bytes, .label = (uint64_t)(uintptr_t)launch, .protocol = BNY_PROTOCOL_SIMPLE,
                           .nplaces = steps, .shape = launch->shape};
  const bny_bridge_slice *slices = &launch->work->slices[launch->first];
  for (int32_t i = 0; i < launch->count; i++) add_step(program, BNY_PROGRAM_COPY, &slices[i].in, i);
  for (int32_t i = 0; i < launch->count; i++) add_step(program, BNY_PROGRAM_DELIVER, &slices[i].out, i);
  return program;
}

static banyan_status make_launch(bny_bridge_work *work, int32_t first, bny_bridge_launch *launch) {
  bny_engine *engine = work->bridge->engine;
  fill_launch(work, first, launch);
  if (launch->count == 0)
    return bny_fail(BANYAN_ERR_MEMORY, "a part of the call does not fit arenas of %llu bytes; raise arena_bytes",
                    (unsigned long long)work->bridge->shape.bytes);
  bny_program *program = make_program(launch);
  if (!program) return bny_fail(BANYAN_ERR_SYSTEM, "out of memory for a device program");
  banyan_status status = bny_engine_find(engine, bny_device_program_kernel(program), &launch->kernel);
  if (status == BANYAN_OK) status = bny_engine_load(engine, program->label, program, &launch->program);
  /* Not in the sense in which all ranks would cut the call into smaller parts. */
  if (status == BANYAN_ERR_MEMORY) status = bny_fail(BANYAN_ERR_SYSTEM, "%s", banyan_last_error());
  free(program);
  int32_t blocks_max = engine->sms * launch->kernel.blocks_per_sm;
  launch->threads = BNY_BLOCK_THREADS_MAX;
  launch->blocks = bny_device_blocks(&launch->shape, launch->threads, blocks_max < BLOCKS_MAX ? blocks_max : BLOCKS_MAX);
  return status;
}

static banyan_status make_launches(bny_bridge_work *work, const bny_request *request) {
  /* No launch without a slice, so there are no more of them. A program's label is the address of its launch. */
  work->launches = calloc((size_t)work->nslices, sizeof *work->launches);
  if (!work->launches) return bny_fail(BANYAN_ERR_SYSTEM, "out of memory to bind %d plans", work->nslices);
  banyan_status status = BANYAN_OK;
  for (int32_t first = 0; first < work->nslices && status == BANYAN_OK;) {
    bny_bridge_launch *launch = &work->launches[work->nlaunches++];
    launch->shape = shape_of(request);
    status = make_launch(work, first, launch);
    first += launch->count;
  }
  return status;
}

/* ---- works ----------------------------------------------------------------------------------------------------------- */

static banyan_status make_slice(bny_bridge *bridge, const bny_bridge_part *part, bny_bridge_slice *slice) {
  const bny_request *request = &part->request;
  int32_t rank = bridge->transport->rank;
  banyan_status status = bny_plan_make(request, rank, &slice->plan);
  if (status != BANYAN_OK) return status;
  slice->in.box = (bny_slice){request->token0, request->tokens, request->head0, request->heads, 0, 0};
  slice->out.box = bny_slice_owned(request, rank);
  slice->in.count = (uint64_t)bny_slice_rows(&slice->in.box);
  slice->out.count = (uint64_t)bny_slice_rows(&slice->out.box);
  slice->binding = (bny_binding){.in_token0 = slice->in.box.token0, .in_head0 = slice->in.box.head0,
                                 .out_token0 = slice->out.box.token0, .out_head0 = slice->out.box.head0};
  return bny_run_make(bridge->exec, slice->plan, &part->call, &slice->binding, &slice->run);
}

static uint64_t key_of(const bny_bridge_part *parts, int32_t count) {
  uint64_t key = (uint64_t)count;
  for (int32_t i = 0; i < count; i++)
    key = (key ^ bny_request_hash(&parts[i].request, parts[i].request.algorithm)) * UINT64_C(0x9e3779b97f4a7c15);
  return key;
}

banyan_status bny_bridge_plan(bny_bridge *bridge, const bny_bridge_part *parts, int32_t count, bny_bridge_work **work) {
  uint64_t key = key_of(parts, count);
  bny_bridge_work *latest = atomic_load_explicit(&bridge->works, memory_order_relaxed);
  for (bny_bridge_work *at = latest; at; at = at->next) {
    if (at->key != key) continue;
    *work = at;
    return BANYAN_OK;
  }
  bny_bridge_work *made = calloc(1, sizeof *made);
  bny_bridge_slice *slices = calloc((size_t)count, sizeof *slices);
  if (!made || !slices) {
    free(made), free(slices);
    return bny_fail(BANYAN_ERR_SYSTEM, "out of memory to bind %d plans", count);
  }
  *made = (bny_bridge_work){.bridge = bridge, .key = key, .slices = slices, .nslices = count, .next = latest};
  banyan_status status = BANYAN_OK;
  for (int32_t i = 0; i < count && status == BANYAN_OK; i++) status = make_slice(bridge, &parts[i], &slices[i]);
  if (status == BANYAN_OK) status = make_launches(made, &parts[0].request);
  if (status != BANYAN_OK) {
    bny_bridge_free_work(made);
    return status;
  }
  atomic_store_explicit(&bridge->works, made, memory_order_release);
  *work = made;
  return BANYAN_OK;
}

void bny_bridge_free_work(bny_bridge_work *work) {
  for (int32_t i = 0; i < work->nslices; i++) {
    bny_run_free(work->slices[i].run);
    bny_plan_free(work->slices[i].plan);
  }
  free(work->slices);
  free(work->launches);
  free(work);
}

const bny_run *bny_bridge_run_of(const bny_bridge_work *work, int32_t part) { return work->slices[part].run; }

/* ---- starting -------------------------------------------------------------------------------------------------------- */

banyan_status bny_bridge_start(bny_bridge_work *work, const bny_binding *binding, void *stream) {
  bny_device_call call = {.in = *binding->in, .out_token0 = binding->out_token0, .out_head0 = binding->out_head0};
  if (binding->out) call.out = *binding->out;
  banyan_status status = BANYAN_OK;
  for (int32_t i = 0; i < work->nlaunches && status == BANYAN_OK; i++) {
    const bny_bridge_launch *launch = &work->launches[i];
    bny_engine_launch asked = {.kernel = &launch->kernel, .blocks = launch->blocks, .threads = launch->threads,
                               .what = &launch->program, .call = &call};
    status = bny_engine_start(work->bridge->engine, &asked, stream);
  }
  return status;
}
