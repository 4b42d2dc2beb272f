/* SPDX-License-Identifier: Apache-2.0
 * Chooses the kernel for an attention call on a device, plans the call, and launches it. */
#include "device/decode.h"

#include <inttypes.h>

#include "merge_math.h"
#include "op.h"
#include "base/status.h"

#define WHERE "attention on a device: "

/* ---- what is asked ----------------------------------------------------------------------------------------------- */

static bool same_rows(const bny_attention_desc *desc) {
  return desc->kv.v == desc->kv.k && desc->kv.v_batch_stride == desc->kv.k_batch_stride &&
         desc->kv.v_head_stride == desc->kv.k_head_stride && desc->kv.v_token_stride == desc->kv.k_token_stride;
}

static bool is_power_of_two(int32_t value) { return value > 0 && (value & (value - 1)) == 0; }

/* Returns the kind of rows that a kernel must read. LEAN rows have one query token that sees all keys, and use nothing
 * of bny_decode_general. */
static bny_decode_rows rows_of(const bny_attention_desc *desc) {
  if (desc->kv.rows == BANYAN_KV_ROWS_FLASHMLA_FP8) return BNY_ROWS_flashmla;
  if (desc->kv.dtype == BANYAN_E4M3) return BNY_ROWS_e4m3;
  bool lean = !desc->has_queries && desc->soft_cap == 0 && !desc->sinks && desc->rope.dim == 0 &&
              !desc->kv.pages.indptr && (!desc->kv.pages.table || is_power_of_two(desc->kv.pages.keys));
  return lean ? BNY_ROWS_lean : BNY_ROWS_general;
}

static banyan_status check_types(const bny_attention_desc *desc) {
  if (desc->q_dtype != BANYAN_F16 && desc->q_dtype != BANYAN_BF16)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, WHERE "q_dtype is %d; it must be BANYAN_F16 or BANYAN_BF16",
                    (int)desc->q_dtype);
  if (desc->kv.dtype != desc->q_dtype && desc->kv.dtype != BANYAN_E4M3)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    WHERE "kv_dtype is %d and q_dtype %d; keys must have that of q, or be BANYAN_E4M3",
                    (int)desc->kv.dtype, (int)desc->q_dtype);
  if ((desc->kv.scales.k || desc->kv.scales.v) && desc->kv.scales.token_stride != 0)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    WHERE "kv_scale_token_stride is %" PRId64 "; it must be 0, as keys of a head share a scale here",
                    desc->kv.scales.token_stride);
  if (desc->kv.rows != BANYAN_KV_ROWS_PLAIN &&
      (desc->kv.rows != BANYAN_KV_ROWS_FLASHMLA_FP8 || desc->q_dtype != BANYAN_BF16 || desc->kv.dtype != BANYAN_E4M3))
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    WHERE "kv_rows is %d; rows that are not plain must be BANYAN_KV_ROWS_FLASHMLA_FP8, of kv_dtype "
                          "BANYAN_E4M3 with q_dtype BANYAN_BF16",
                    (int)desc->kv.rows);
  if (desc->rope.dim % 8 != 0)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, WHERE "rope_dim is %" PRId32 "; it must be a multiple of 8",
                    desc->rope.dim);
  return BANYAN_OK;
}

static banyan_status request_of(const bny_attention_desc *desc, bny_decode_request *request) {
  if (desc->parts)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    WHERE "parts is set; keys of devices are in one memory of the device: attend to other parts on the "
                          "host, and combine the partials");
  banyan_status status = check_types(desc);
  if (status == BANYAN_OK && desc->queries.key_pattern_len > 0)
    status = bny_fail(BANYAN_ERR_UNSUPPORTED,
                      WHERE "queries.key_pattern_len is %" PRId64
                            "; it must be 0: take RANGES, equal weights, or weights that divide their sum",
                      desc->queries.key_pattern_len);
  if (status == BANYAN_OK && desc->queries.key_mask)
    status =
        bny_fail(BANYAN_ERR_UNSUPPORTED, WHERE "queries.key_mask is given; devices serve sequences without padding: "
                                               "leave it out of queries and keys");
  if (status != BANYAN_OK) return status;
  if (desc->keys_max < 1)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    WHERE "keys_max is %" PRId32 "; say how many keys a sequence has at most, as seq_lens "
                          "is not read here",
                    desc->keys_max);
  *request = (bny_decode_request){
      .batch = desc->batch,
      .heads = desc->heads,
      .kv_heads = desc->kv_heads,
      .head_dim = desc->head_dim,
      .value_dim = desc->value_dim,
      .values_in_keys =
          desc->value_dim < desc->head_dim && (same_rows(desc) || desc->kv.rows == BANYAN_KV_ROWS_FLASHMLA_FP8),
      .dtype = desc->q_dtype,
      .keys_max = desc->keys_max,
      .kv = rows_of(desc),
      .tokens = desc->tokens,
  };
  return BANYAN_OK;
}

static bny_decode_cache cache_of(const void *base, int64_t bytes, int64_t page, int64_t head, int64_t token) {
  return (bny_decode_cache){
      .base = base, .page_stride = bytes * page, .token_stride = bytes * token, .head_stride = bytes * head};
}

static bny_decode_general general_of(const bny_attention_desc *desc) {
  bny_decode_general general = {
      .tokens = desc->tokens,
      .soft_cap_log2 = (float)((double)desc->soft_cap * BNY_LOG2_E),
      .nope_bytes = desc->rope.dim ? 2 * (desc->head_dim - desc->rope.dim) : INT32_MAX,
      .sinks = desc->sinks,
      .k_scale = desc->kv.dtype == BANYAN_E4M3 ? desc->kv.scales.k : NULL,
      .v_scale = desc->kv.dtype == BANYAN_E4M3 ? desc->kv.scales.v : NULL,
      .kv_scale_stride = desc->kv.scales.head_stride,
      .q_rope = desc->rope.dim ? desc->rope.q : NULL,
      .q_rope_batch_stride = desc->rope.dim ? 2 * desc->rope.batch_stride : 0,
      .q_rope_head_stride = desc->rope.dim ? 2 * desc->rope.head_stride : 0,
      .page_indptr = desc->kv.pages.table ? desc->kv.pages.indptr : NULL,
      .last_page_len = desc->kv.pages.table && desc->kv.pages.indptr ? desc->kv.pages.last_len : NULL,
      .query_start_loc = desc->queries.query_start_loc,
      .query_start = desc->queries.query_start,
      .tree_mask = desc->queries.tree_mask,
      .key_start = desc->queries.key_start,
      .key_block = desc->queries.key_block,
      .key_stride = desc->queries.key_stride,
      .window = desc->queries.window,
  };
  bny_decode_divide_pages(&general,
                          desc->kv.pages.table && desc->kv.pages.keys > 0 ? (uint32_t)desc->kv.pages.keys : 1);
  return general;
}

static bny_decode_call call_of(const bny_attention_desc *desc, const bny_decode_plan *plan) {
  const bool lean = plan->kernel->kv == BNY_ROWS_lean, flashmla = plan->kernel->kv == BNY_ROWS_flashmla;
  const int64_t bytes = desc->kv.dtype == BANYAN_E4M3 ? 1 : 2;
  bny_decode_call call = {
      .batch = desc->batch,
      .kv_heads = desc->kv_heads,
      .group = desc->group,
      .row_tiles = plan->row_tiles,
      .keys_max = desc->keys_max,
      .scale_log2 = (float)(desc->scale * BNY_LOG2_E),
      .q = desc->q,
      .q_batch_stride = 2 * desc->q_batch_stride,
      .q_head_stride = 2 * desc->q_head_stride,
      .k = cache_of(desc->kv.k, bytes, desc->kv.k_batch_stride, desc->kv.k_head_stride, desc->kv.k_token_stride),
      .v = cache_of(desc->kv.v, bytes, desc->kv.v_batch_stride, desc->kv.v_head_stride, desc->kv.v_token_stride),
      .page_table = desc->kv.pages.table,
      .page_table_stride = desc->kv.pages.table_stride,
      .page_shift = desc->kv.pages.table && lean ? __builtin_ctz((unsigned)desc->kv.pages.keys) : BNY_DECODE_WHOLE,
      /* Without a number of pages, only negative ids are rejected. */
      .pages = desc->kv.pages.table && desc->kv.pages.count && desc->kv.pages.count <= INT32_MAX
                   ? (uint32_t)desc->kv.pages.count
                   : (uint32_t)INT32_MAX + 1,
      .seq_lens = desc->kv.seq_lens,
      .nan_is_empty = desc->empty == BANYAN_EMPTY_NAN,
      .is_f16 = desc->q_dtype == BANYAN_F16,
      .division = plan->division,
  };
  if (!lean) call.general = general_of(desc);
  if (flashmla) call.v = call.k;
  return call;
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Ranks that share a device each get a part of it, for attention too, so that the blocks of all ranks are resident at
 * once. If a grid filled the device, its pushes could wait for ranks whose own blocks cannot start. Clusters are
 * affected most, because they need adjacent SMs. */

/* Limits the residency to this rank's part of the device, at least one cluster. */
static void limit_clusters(const bny_engine *engine, bny_decode_residency *residency) {
  for (int bits = 1; bits < BNY_DECODE_CLUSTER_SIZES; bits++) {
    int64_t all = residency->clusters[bits], some = all * engine->sms / engine->device->facts.sm_count;
    if (all > 0) residency->clusters[bits] = some > 0 ? (int32_t)some : 1;
  }
}

static banyan_status find_kernel(bny_decode *decode, const bny_decode_kernel *row, bny_decode_residency *residency) {
  bny_device *device = decode->engine->device;
  const bny_device_kernel *kernel = bny_engine_decode_kernel(decode->engine, row - bny_decode_kernels);
  banyan_status status = BANYAN_OK;
  if (kernel)
    status = device->ops->kernel_residency(device, kernel, (uint32_t)row->block_threads, (uint32_t)row->shared_bytes,
                                           &residency->sm_blocks);
  for (int bits = 1; kernel && status == BANYAN_OK && bits < BNY_DECODE_CLUSTER_SIZES; bits++)
    status = device->ops->kernel_clusters(device, kernel, (uint32_t)row->block_threads, (uint32_t)row->shared_bytes,
                                          1u << bits, &residency->clusters[bits]);
  limit_clusters(decode->engine, residency);
  if (status == BANYAN_OK && residency->sm_blocks < 1)
    status = bny_fail(BANYAN_ERR_UNSUPPORTED, "kernel %s does not fit on device %d", row->name, device->facts.ordinal);
  if (status == BANYAN_OK) decode->kernel = *kernel;
  return status;
}

static banyan_status make_plan(bny_decode *decode, const bny_decode_request *request) {
  const bny_device_facts *facts = &decode->engine->device->facts;
  bny_decode_machine machine = {.compute = facts->compute,
                                .sm_count = decode->engine->sms,
                                .shared_bytes_max = facts->shared_bytes_max,
                                .clusters = facts->clusters};
  bny_decode_residency residency = {0};
  const bny_decode_kernel *row = NULL;
  banyan_status status = bny_decode_kernel_choose(request, &machine, &row);
  if (status == BANYAN_OK) status = find_kernel(decode, row, &residency);
  if (status == BANYAN_OK) status = bny_decode_plan_make(request, &machine, row, &residency, &decode->plan);
  return status;
}

banyan_status bny_decode_make(bny_engine *engine, const bny_attention_desc *desc, const banyan_partial *out,
                              bny_decode *decode) {
  bny_decode made = {.engine = engine, .apart.group = engine->group};
  void *scratch = NULL, *counters = NULL;
  banyan_status status = request_of(desc, &made.request);
  if (status == BANYAN_OK) status = make_plan(&made, &made.request);
  if (status != BANYAN_OK) return status;
  made.call = call_of(desc, &made.plan);
  if (out) made.call.out = *out;
  const char *wrong = bny_decode_call_check(&made.call, &made.plan);
  if (wrong) return bny_fail(BANYAN_ERR_UNSUPPORTED, WHERE "%s", wrong);
  status = bny_engine_memory(engine, BNY_USE_SCRATCH, made.plan.scratch_bytes, &scratch);
  if (status == BANYAN_OK)
    status = bny_engine_memory(engine, BNY_USE_COUNTERS, made.plan.counters * sizeof *made.call.counters, &counters);
  if (status != BANYAN_OK) return status;
  made.call.scratch = scratch;
  made.call.counters = counters;
  *decode = made;
  return BANYAN_OK;
}

static bool same_request(const bny_decode_request *a, const bny_decode_request *b) {
  return a->batch == b->batch && a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
         a->value_dim == b->value_dim && a->values_in_keys == b->values_in_keys && a->dtype == b->dtype &&
         a->keys_max == b->keys_max && a->kv == b->kv && a->tokens == b->tokens;
}

bool bny_decode_rebind(bny_decode *decode, const bny_attention_desc *desc) {
  bny_decode_request request = {0};
  if (request_of(desc, &request) != BANYAN_OK || !same_request(&request, &decode->request)) return false;
  bny_decode_call call = call_of(desc, &decode->plan);
  if (bny_decode_call_check(&call, &decode->plan)) return false;
  call.scratch = decode->call.scratch;
  call.counters = decode->call.counters;
  call.out = decode->call.out;
  decode->call = call;
  return true;
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

banyan_status bny_decode_start(bny_decode *decode, const bny_device_combine *combine, void *stream) {
  bny_engine *engine = decode->engine;
  void *arguments[] = {&decode->call, (void *)(uintptr_t)(combine ? combine : &decode->apart)};
  bny_device_launch launch = {
      .kernel = &decode->kernel,
      .grid = {decode->plan.blocks, 1, 1},
      .block = {(uint32_t)decode->plan.kernel->block_threads, 1, 1},
      .shared_bytes = (uint32_t)decode->plan.kernel->shared_bytes,
      /* If ranks share a device, an early launch could keep out blocks that the previous kernel waits for. */
      .early = engine->sms == engine->sms_all,
      .arguments = arguments,
  };
  if (decode->plan.cluster > 1) {
    launch.cluster[0] = decode->plan.cluster;
    launch.cluster[1] = launch.cluster[2] = 1;
  }
  return engine->device->ops->launch(engine->device, &launch, stream);
}
