/* SPDX-License-Identifier: Apache-2.0
 * Plans a decode call.
 *
 * Decode is limited by memory bandwidth, so all SMs should have copies in flight during the whole kernel. Every block
 * of the device gets an equal share of the keys, for any batch. Two rules bound the overhead of a share. If many blocks
 * work on one item, CTA groups are clusters, because a merge within a cluster is cheaper than one through memory. No
 * share is so small that its merge takes longer than reading it. */
#include "device/decode_plan.h"

#include <inttypes.h>

#include "cuda/program.h"
#include "base/status.h"

#define WHERE "decode: "

enum {
  CLUSTER_MAX = 8,         /* the largest cluster that every device with clusters supports */
  SHARE_BYTES_MIN = 65536, /* least share of a block: about 1 us of one SM's part of the bandwidth */
  ITEM_BYTES = 32768,      /* bytes that a block could read while an item begins and ends */
  FOLD_BYTES = 65536,      /* bytes that one block folds at once; more splits take two rounds */
  FAN_IN_MIN = 8,
  FAN_IN_MAX = 64
};

/* The fields of a kernel that follow from its form and variant. */
#define FORM_warp(dim) dim, dim, false, 16, 128
#define FORM_latent(rows) 576, 512, true, rows, 8 * rows
#define FORM_wide(rows) 576, 512, true, rows, 256
#define VARIANT_lean 80, INT32_MAX, BNY_ROWS_lean
#define VARIANT_wgmma 90, 91, BNY_ROWS_lean
#define VARIANT_general 80, INT32_MAX, BNY_ROWS_general
#define VARIANT_e4m3 80, INT32_MAX, BNY_ROWS_e4m3
#define VARIANT_flashmla 80, INT32_MAX, BNY_ROWS_flashmla
#define BNY_DECODE_KERNEL(form, label, size, variant, shared) \
  {"bny_decode_" #label "_" #variant, FORM_##form(size), VARIANT_##variant, shared},
const bny_decode_kernel bny_decode_kernels[] = {
#include "cuda/decode_kernels.def"
    {.name = NULL},
};
#undef BNY_DECODE_KERNEL

/* ---- which kernel ------------------------------------------------------------------------------------------------ */

static banyan_status check_request(const bny_decode_request *request) {
  if (request->batch < 0 || request->keys_max < 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, WHERE "batch is %" PRId32 " and keys_max %" PRId32 ", neither may be negative",
                    request->batch, request->keys_max);
  if (request->kv_heads < 1 || request->heads < 1 || request->heads % request->kv_heads != 0)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    WHERE "heads is %" PRId32 ", must be a multiple of kv_heads, which is %" PRId32, request->heads,
                    request->kv_heads);
  if (request->batch >= BNY_DEVICE_DETAIL_START) /* the limit of the fault word's detail */
    return bny_fail(BANYAN_ERR_UNSUPPORTED, WHERE "batch is %" PRId32 "; kernels take less than %d sequences at once",
                    request->batch, BNY_DEVICE_DETAIL_START);
  return BANYAN_OK;
}

bool bny_decode_kernel_runs(const bny_decode_kernel *kernel, int32_t compute, int32_t shared_bytes_max) {
  return compute >= kernel->compute_min && compute < kernel->compute_end && kernel->shared_bytes <= shared_bytes_max;
}

static bool serves(const bny_decode_kernel *kernel, const bny_decode_request *request,
                   const bny_decode_machine *machine) {
  return kernel->kv == request->kv &&
         (request->dtype == BANYAN_BF16 || (request->dtype == BANYAN_F16 && kernel->kv != BNY_ROWS_flashmla)) &&
         kernel->head_dim == request->head_dim && kernel->value_dim == request->value_dim &&
         kernel->values_in_keys == request->values_in_keys &&
         bny_decode_kernel_runs(kernel, machine->compute, machine->shared_bytes_max);
}

/* Returns the rows of q per sequence and KV head, if tokens are distributed evenly. */
static int32_t rows_of(const bny_decode_request *request) {
  const int32_t group = request->heads / request->kv_heads;
  if (request->kv == BNY_ROWS_lean || request->batch < 1 || request->tokens < 1) return group;
  const int64_t rows = (int64_t)(request->tokens / request->batch + (request->tokens % request->batch != 0)) * group;
  return rows < INT32_MAX ? (int32_t)rows : INT32_MAX;
}

/* Returns whether kernel a is better than b: it has fewer tiles of a group's heads, or as many and fewer rows. Each
 * tile reads all keys. */
static bool better(const bny_decode_kernel *a, const bny_decode_kernel *b, const bny_decode_request *request) {
  const int64_t rows = rows_of(request);
  int64_t a_tiles = (rows + a->rows - 1) / a->rows, b_tiles = (rows + b->rows - 1) / b->rows;
  return a_tiles != b_tiles ? a_tiles < b_tiles : a->rows < b->rows;
}

banyan_status bny_decode_kernel_choose(const bny_decode_request *request, const bny_decode_machine *machine,
                                       const bny_decode_kernel **kernel) {
  banyan_status status = check_request(request);
  if (status != BANYAN_OK) return status;
  const bny_decode_kernel *best = NULL;
  for (const bny_decode_kernel *one = bny_decode_kernels; one->name; one++)
    if (serves(one, request, machine) && (!best || better(one, best, request))) best = one;
  static const char *const rows[] = {"rows of 16 bits with one query token",
                                     "rows of 16 bits with queries, masks or lists of pages", "rows of BANYAN_E4M3",
                                     "rows of BANYAN_KV_ROWS_FLASHMLA_FP8"};
  if (!best)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    WHERE "no kernel for head_dim %" PRId32 ", value_dim %" PRId32
                          "%s and dtype %d, for %s, on a device of compute "
                          "capability %" PRId32 ".%" PRId32 " with %" PRId32 " bytes of shared memory to a block",
                    request->head_dim, request->value_dim, request->values_in_keys ? " within the keys" : "",
                    (int)request->dtype, rows[request->kv], machine->compute / 10, machine->compute % 10,
                    machine->shared_bytes_max);
  *kernel = best;
  return BANYAN_OK;
}

/* ---- how blocks are divided -------------------------------------------------------------------------------------- */

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t key_tile_bytes(const bny_decode_kernel *kernel) {
  int64_t elements = kernel->head_dim + (kernel->values_in_keys ? 0 : kernel->value_dim);
  if (kernel->kv == BNY_ROWS_flashmla) return (int64_t)BNY_DECODE_TILE_KEYS * BNY_FLASHMLA_BYTES;
  return BNY_DECODE_TILE_KEYS * elements * (kernel->kv == BNY_ROWS_e4m3 ? 1 : 2);
}

/* Returns log2 of the blocks of a CTA group. A group has as many blocks as would share an item without clusters, if
 * each has enough to read. */
static int cluster_bits(const bny_decode_kernel *kernel, const bny_decode_machine *machine, int64_t items,
                        int64_t blocks, int64_t key_tiles) {
  int64_t share = divide_up(SHARE_BYTES_MIN, key_tile_bytes(kernel));
  int64_t splits = min64(blocks / max64(items, 1), key_tiles / share);
  int bits = 0;
  while (machine->clusters && 2 << bits <= CLUSTER_MAX && 2 << bits <= splits) bits++;
  return bits;
}

/* Returns how many CTA groups are resident at once. A cluster lies within one part of the device, so surplus SMs of a
 * part hold none. */
static int64_t resident_teams(const bny_decode_machine *machine, const bny_decode_residency *residency, int bits) {
  if (residency->clusters[bits] > 0) return residency->clusters[bits];
  return (int64_t)(machine->sm_count >> bits) * residency->sm_blocks;
}

static uint32_t choose_fan_in(const bny_decode_kernel *kernel, int32_t group, uint32_t cluster) {
  int64_t rows = divide_up(min64(group, kernel->rows), cluster);
  return (uint32_t)min64(max64(FOLD_BYTES / (rows * kernel->value_dim * 4), FAN_IN_MIN), FAN_IN_MAX);
}

/* Returns the most items of a request. Each sequence may have one partial tile, and so may the tokens before and after
 * the sequences. */
static int64_t items_of(const bny_decode_request *request, const bny_decode_kernel *kernel, int64_t row_tiles) {
  const int64_t group = request->heads / request->kv_heads;
  if (request->kv == BNY_ROWS_lean) return (int64_t)request->batch * request->kv_heads * row_tiles;
  return (request->tokens * group / kernel->rows + request->batch + 2) * request->kv_heads;
}

banyan_status bny_decode_plan_make(const bny_decode_request *request, const bny_decode_machine *machine,
                                   const bny_decode_kernel *kernel, const bny_decode_residency *residency,
                                   bny_decode_plan *plan) {
  const int64_t row_tiles = divide_up(rows_of(request), kernel->rows), items = items_of(request, kernel, row_tiles);
  const int64_t key_tiles = bny_decode_key_tiles(request->keys_max);
  const int bits = cluster_bits(kernel, machine, items, (int64_t)machine->sm_count * residency->sm_blocks, key_tiles);
  const uint32_t cluster = 1u << bits;
  bny_decode_division division = {0};
  division.item_cost = (uint32_t)divide_up((int64_t)ITEM_BYTES << bits, key_tile_bytes(kernel));
  division.team_units_min = (uint32_t)divide_up((int64_t)SHARE_BYTES_MIN << bits, key_tile_bytes(kernel));
  division.fan_in = choose_fan_in(kernel, rows_of(request), cluster);
  const int64_t item_units = key_tiles + division.item_cost;
  if (items > INT32_MAX / item_units)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    WHERE "%" PRId64 " items of %" PRId32 " keys are more than one call can count: split the batch",
                    items, request->keys_max);
  const int64_t useful = divide_up(items * item_units, division.team_units_min);
  division.teams = (uint32_t)max64(1, min64(resident_teams(machine, residency, bits), useful));
  plan->kernel = kernel;
  plan->cluster = cluster;
  plan->blocks = division.teams * cluster;
  plan->row_tiles = (int32_t)row_tiles;
  plan->division = division;
  plan->scratch_bytes =
      (size_t)bny_decode_scratch_floats(&division, (uint32_t)kernel->rows, (uint32_t)kernel->value_dim) * 4;
  plan->counters = (size_t)bny_decode_counters(&division, cluster);
  return BANYAN_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static bool is_aligned(const void *base, int64_t a, int64_t b, int64_t c) {
  return (((uintptr_t)base | (uintptr_t)a | (uintptr_t)b | (uintptr_t)c) & 15) == 0;
}

static bool same_cache(const bny_decode_cache *a, const bny_decode_cache *b) {
  return a->base == b->base && a->page_stride == b->page_stride && a->token_stride == b->token_stride &&
         a->head_stride == b->head_stride;
}

static const char *check_general(const bny_decode_call *call) {
  const bny_decode_general *general = &call->general;
  if (!is_aligned(general->q_rope, general->q_rope_batch_stride, general->q_rope_head_stride, 0))
    return "rows of q_rope are not 16-byte aligned";
  if (general->nope_bytes % 16 != 0 && general->q_rope) return "rope_dim is not a multiple of 8";
  if (general->page_keys < 1) return "page_keys is not positive";
  return call->pages == 0 ? "pages is out of range" : NULL;
}

const char *bny_decode_call_check(const bny_decode_call *call, const bny_decode_plan *plan) {
  if (call->batch < 0 || call->kv_heads < 1 || call->group < 1) return "batch, kv_heads or group is out of range";
  const bool lean = plan->kernel->kv == BNY_ROWS_lean;
  if ((lean && divide_up(call->group, plan->kernel->rows) != plan->row_tiles) || call->row_tiles != plan->row_tiles)
    return "group is not that of the plan";
  if (call->batch == 0) return NULL;
  if (!call->q || !call->k.base || !call->v.base || !(call->seq_lens || call->general.last_page_len))
    return "q, k, v or seq_lens is NULL";
  if (!is_aligned(call->q, call->q_batch_stride, call->q_head_stride, 0)) return "rows of q are not 16-byte aligned";
  if (!is_aligned(call->k.base, call->k.page_stride, call->k.token_stride, call->k.head_stride))
    return "rows of k are not 16-byte aligned";
  if (!is_aligned(call->v.base, call->v.page_stride, call->v.token_stride, call->v.head_stride))
    return "rows of v are not 16-byte aligned";
  if (plan->kernel->values_in_keys && !same_cache(&call->k, &call->v)) return "v is not the first columns of k";
  if (!lean) return check_general(call);
  if (call->page_shift < 0 || call->page_shift > BNY_DECODE_WHOLE) return "page_shift is out of range";
  if (!call->page_table && call->page_shift != BNY_DECODE_WHOLE) return "pages without a page_table";
  if (call->pages == 0 || (!call->page_table && call->pages < (uint32_t)call->batch)) return "pages is out of range";
  return NULL;
}
