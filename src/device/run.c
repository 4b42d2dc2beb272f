/* SPDX-License-Identifier: Apache-2.0
 * Makes runs on a device from requests, and launches them. */
#include "device/run.h"

#include <stdlib.h>

#include "cuda/selection.h"
#include "device/program.h"
#include "plan/columns.h"
#include "base/hash.h"
#include "base/status.h"

struct bny_device_run {
  bny_device_exec *exec;
  bny_engine_kernel kernel;
  int32_t blocks, threads;
  bny_device_settings settings; /* settings of the exec, with the run's protocol */
  bny_plan_form form;
  bool heads, sums, lists; /* the plan is an all-gather of heads, sums tensors, or selects */
  uint32_t shared_bytes;   /* dynamic, of a block */
  int32_t nranks;
  int32_t unit_columns;       /* sums: columns of a unit */
  const char *kernel_name;    /* static text */
  int32_t nsteps;             /* steps of the program */
  bny_oneshot oneshot;        /* BNY_FORM_DIRECT: used instead of a program */
  void *program;              /* address in device memory, owned by the engine */
  bny_proxy_segment *segment; /* owned by the proxy; NULL: none */
};

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

/* Rough costs for predictions. PCIe is generation 4 with 16 lanes. On an H200 the interpreter took 2 to 4 times as long
 * for a twoshot as the direct kernels for a oneshot, from 520 B to 4 MiB, where these costs favour twoshot by up to 3.7
 * (docs/gpu-results/). */
enum { STEPWISE = 4 };
static const bny_link_cost over_nvlink = {
    .alpha_ns = 1000, .beta_ns_per_byte = 0.004, .gamma_ns_per_byte = 0.001, .stepwise = STEPWISE};
static const bny_link_cost over_pcie = {
    .alpha_ns = 2500, .beta_ns_per_byte = 0.042, .gamma_ns_per_byte = 0.001, .stepwise = STEPWISE};

/* Divides a half of an arena among protocols. Most of it is for large messages. A unit has at least 128 bytes and one
 * signal. */
static bny_arena_sizes divide(uint64_t half_bytes, const bny_device_settings *settings) {
  enum { ALIGNMENT = 256, PARTS = 32 };
  uint64_t part = half_bytes / PARTS / ALIGNMENT * ALIGNMENT;
  if (settings->protocol == BNY_PROTOCOL_SIMPLE)
    return (bny_arena_sizes){.signals = 2 * part / sizeof(uint64_t),
                             .proxy_words = 2 * part / sizeof(uint64_t),
                             .inbox_bytes = {[BNY_PROTOCOL_SIMPLE] = 30 * part}};
  bny_arena_sizes sizes = {.signals = part / sizeof(uint64_t)};
  sizes.inbox_bytes[BNY_PROTOCOL_LL16] =
      (settings->lines_whole ? 6 : 11) * part; /* combines within kernels use it, too */
  sizes.inbox_bytes[BNY_PROTOCOL_LL128] = settings->lines_whole ? 10 * part : 0;
  sizes.inbox_bytes[BNY_PROTOCOL_SIMPLE] = (settings->lines_whole ? 15 : 20) * part;
  return sizes;
}

banyan_status bny_device_exec_make(bny_engine *engine, bool nodes, bny_device_exec *exec) {
  const bny_arenas *arenas = engine->arenas;
  bny_device_exec made = {
      .engine = engine,
      /* An access of 16 bytes over PCIe may arrive in two halves, and messages in host memory cross it. */
      .settings = {.protocol = nodes || arenas->kind == BNY_MEMORY_HOST ? BNY_PROTOCOL_SIMPLE : BNY_PROTOCOL_COUNT,
                   .lines_whole = arenas->lines_whole},
      .cost = arenas->lines_whole ? over_nvlink : over_pcie, /* all ranks decide alike */
  };
  size_t head = bny_arena_shape_make(&(bny_arena_sizes){0}).bytes;
  if (arenas->bytes > head) made.sizes = divide((arenas->bytes - head) / 2, &made.settings);
  if (made.sizes.signals == 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "arenas of %zu bytes are too small for runs on devices", arenas->bytes);
  made.outbox_bytes = made.sizes.inbox_bytes[BNY_PROTOCOL_SIMPLE];
  engine->group.shape = bny_arena_shape_make(&made.sizes);
  *exec = made;
  return BANYAN_OK;
}

static banyan_status check_room(const bny_device_exec *exec, const bny_arena_sizes *needs) {
  const char *lacks = bny_arena_lacks(&exec->sizes, needs);
  if (!lacks) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_MEMORY, "%s in arenas of %zu bytes is too small; raise arena_bytes", lacks,
                  exec->engine->arenas->bytes);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* With several nodes, all warps poll words in host memory over a link that also carries payload. This limit is an
 * estimate, not a measurement. */
enum { BLOCKS_BETWEEN_NODES = 16 };

/* Blocks of a combine occupy their SMs while they wait for other ranks. If the blocks of one communicator filled one
 * rank's device, and those of another communicator filled a second device, neither would ever end. A run therefore
 * takes this many blocks, or a quarter of the resident blocks. That allows for two communicators, each with one run and
 * a next run that is launched early. The last block need not have rows (bny_worker_announces). */
enum { BLOCKS_USUAL = 33, RUNS_BESIDE = 4 };

static int32_t blocks_of_combine(const bny_engine *engine, int32_t resident) {
  if (engine->blocks_max > 0) return engine->blocks_max < resident ? engine->blocks_max : resident;
  int32_t share = resident / RUNS_BESIDE;
  return share < 1 ? 1 : share < BLOCKS_USUAL ? share : BLOCKS_USUAL;
}

/* Returns how many blocks a run may have. Ranks on one device wait for each other, so the blocks of all of them must be
 * resident at once. Blocks of an early next run must not keep out blocks that another rank has not begun yet. */
static int32_t blocks_that_fit(const bny_device_run *run) {
  const bny_engine *engine = run->exec->engine;
  int32_t resident = engine->sms * run->kernel.blocks_per_sm, blocks = blocks_of_combine(engine, resident);
  if (run->segment && blocks > BLOCKS_BETWEEN_NODES) blocks = BLOCKS_BETWEEN_NODES;
  return engine->arenas->ranks_per_device > 1 && resident > 1 && blocks > resident / 2 ? resident / 2 : blocks;
}

/* Spreads rows over all SMs of a run first, and then over more warps per SM. A single warp has its SM to itself. One
 * warp announces the run and should have no row. */
static void set_grid(bny_device_run *run, const bny_unit_shape *shape) {
  int32_t fit = blocks_that_fit(run), sms = run->exec->engine->sms < fit ? run->exec->engine->sms : fit;
  int32_t warps_max = BNY_BLOCK_THREADS_MAX / 32;
  int64_t warps = shape->chunks, rows = (int64_t)shape->tokens * shape->heads;
  while (warps * 2 <= warps_max && rows * shape->chunks + 1 > warps * sms) warps *= 2;
  run->threads = (int32_t)warps * 32;
  run->blocks = bny_device_blocks(shape, run->threads, fit);
  if (run->blocks < 1) run->blocks = 1;
}

/* A block has a row. Its shared memory may leave room for fewer blocks. */
static banyan_status set_grid_of_lists(bny_device_run *run, const bny_unit_shape *shape) {
  bny_device *device = run->exec->engine->device;
  int32_t k = shape->value_dim, most = BNY_BLOCK_THREADS_MAX, rows = shape->tokens * shape->heads;
  run->threads = k < most ? (k + 31) / 32 * 32 : most;
  if (k <= BNY_SELECTION_SHARED_MOST) run->shared_bytes = (uint32_t)((k + 1) * (int32_t)sizeof(bny_pair));
  banyan_status status = device->ops->kernel_residency(device, &run->kernel.kernel, (uint32_t)run->threads,
                                                       run->shared_bytes, &run->kernel.blocks_per_sm);
  int32_t fit = blocks_that_fit(run);
  run->blocks = rows < 1 ? 1 : rows < fit ? rows : fit;
  return status;
}

static banyan_status find_kernel(bny_device_run *run, const char *name) {
  run->kernel_name = name;
  return bny_engine_find(run->exec->engine, name, &run->kernel);
}

static banyan_status make_oneshot(bny_device_run *run, const bny_request *request) {
  bny_protocol protocol;
  bny_arena_sizes needs;
  banyan_status status = bny_device_oneshot_make(request, &run->settings, &run->oneshot, &protocol, &needs);
  if (status == BANYAN_OK) status = check_room(run->exec, &needs);
  if (status == BANYAN_OK)
    status = find_kernel(
        run, bny_device_oneshot_kernel(protocol, run->oneshot.shape.wire, request->call.order, request->nranks));
  if (status != BANYAN_OK) return status;
  run->form = BNY_FORM_DIRECT;
  run->unit_columns = run->oneshot.shape.value_dim;
  if (run->lists) return set_grid_of_lists(run, &run->oneshot.shape);
  set_grid(run, &run->oneshot.shape);
  return BANYAN_OK;
}

/* Returns the key of a run's program: a hash of its plan and of the facts that the plan does not contain. */
static uint64_t key_of(const bny_plan *plan, const bny_program *program, const size_t *piece_offsets) {
  uint64_t key = plan->hash + (uint64_t)program->protocol;
  for (int32_t rank = 0; piece_offsets && rank < plan->nranks; rank++) key = bny_hash_add(key, piece_offsets[rank]);
  return key;
}

static banyan_status make_program(bny_device_run *run, const bny_request *request, const bny_plan *plan,
                                  const bny_notice *call, const bny_binding *binding) {
  bny_program *program = NULL;
  /* A fixed algorithm makes the plans of all ranks alike. */
  bny_request named = *request;
  if (!named.algorithm) named.algorithm = plan->algorithm;
  bny_device_settings settings = run->settings;
  settings.piece_offsets = binding->piece_offsets;
  banyan_status status = BANYAN_OK;
  if (run->exec->proxy) status = bny_proxy_segment_get(run->exec->proxy, &named, call, &settings, &run->segment);
  if (run->segment) settings.nodes = &run->segment->nodes;
  if (status == BANYAN_OK) status = bny_device_program_make(&named, plan->rank, &settings, &program);
  if (status != BANYAN_OK) return status;
  bny_arena_sizes needs = bny_device_program_needs(program);
  status = check_room(run->exec, &needs);
  if (status == BANYAN_OK) status = find_kernel(run, bny_device_program_kernel(program));
  if (status == BANYAN_OK)
    status = bny_engine_load(run->exec->engine, key_of(plan, program, binding->piece_offsets), program, &run->program);
  /* If a plan exceeds the arenas, it does so on all ranks, and they split the call into smaller parts. A lack of memory
   * is a different error. */
  if (status == BANYAN_ERR_MEMORY && run->program == NULL && bny_arena_lacks(&run->exec->sizes, &needs) == NULL)
    status = bny_fail(BANYAN_ERR_SYSTEM, "%s", banyan_last_error());
  run->form = BNY_FORM_STEPS;
  run->nsteps = program->nsteps;
  run->unit_columns = program->shape.value_dim;
  if (status == BANYAN_OK) set_grid(run, &program->shape);
  free(program);
  return status;
}

static banyan_status make(bny_device_run *run, const bny_request *request, const bny_plan *plan, const bny_notice *call,
                          const bny_binding *binding) {
  bool direct = plan->form == BNY_FORM_DIRECT && !run->exec->proxy;
  return direct ? make_oneshot(run, request) : make_program(run, request, plan, call, binding);
}

banyan_status bny_device_run_make(bny_device_exec *exec, const bny_request *request, const bny_plan *plan,
                                  const bny_notice *call, const bny_binding *binding, bny_device_run **run) {
  bny_device_run *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory to bind a plan");
  made->exec = exec;
  made->nranks = request->nranks;
  made->heads = bny_call_has_rows(&request->call) && bny_call_gathers(&request->call);
  made->sums = request->call.collective == BNY_ALLREDUCE;
  made->lists = request->call.collective == BNY_SELECT;
  made->settings = exec->settings;
  banyan_status status = make(made, request, plan, call, binding);
  if (status != BANYAN_OK) {
    free(made);
    return status;
  }
  *run = made;
  return BANYAN_OK;
}

banyan_status bny_device_run_make_merge(bny_device_exec *exec, const bny_request *request, bny_device_run **run) {
  bny_device_run *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a run");
  made->exec = exec;
  made->settings = bny_device_within_settings;
  banyan_status status = make_oneshot(made, request);
  if (status != BANYAN_OK) {
    free(made);
    return status;
  }
  made->oneshot.pushed = 1;
  *run = made;
  return BANYAN_OK;
}

const bny_proxy_segment *bny_device_run_segment(const bny_device_run *run) { return run->segment; }

void bny_device_run_free(bny_device_run *run) { free(run); }

size_t bny_device_run_print(const bny_device_run *run, const bny_plan *plan, char *text, size_t bytes) {
  size_t length = 0;
  if (run->form == BNY_FORM_DIRECT) {
    length = bny_plan_print_head(plan, text, bytes);
    bny_append(text, bytes, &length,
               "rows go straight to the ranks that get them, and are merged there in the order of ranks\n");
  } else {
    length = bny_plan_print(plan, text, bytes);
    bny_append(text, bytes, &length, "a program of %d steps\n", run->nsteps);
  }
  bny_append(text, bytes, &length, "by kernel %s, %d blocks of %d threads\n", run->kernel_name, run->blocks,
             run->threads);
  return length;
}

banyan_status bny_device_run_within(const bny_device_exec *exec, const bny_request *request,
                                    bny_device_combine *combine) {
  bny_arena_sizes needs;
  bny_device_combine made;
  if (exec->sizes.inbox_bytes[BNY_PROTOCOL_LL16] == 0)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "a combine within a kernel needs arenas in memory of devices; these are in host memory");
  banyan_status status =
      bny_device_combine_make(request, exec->engine->group.rank, &(banyan_partial){0}, NULL, 1, &made, &needs);
  if (status == BANYAN_OK) status = check_room(exec, &needs);
  if (status != BANYAN_OK) return status;
  made.group = exec->engine->group;
  *combine = made;
  return BANYAN_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Returns whether the statistics of `in` and `out` share memory. If they do, a row has the same address in both. */
static bool shares_stats(const bny_binding *binding) {
  const banyan_partial *in = binding->in, *out = binding->out;
  if (!in || !out || !out->lse || !in->lse) return false;
  int64_t first = binding->out_token0 * in->stats_token_stride + binding->out_head0 * in->stats_head_stride;
  size_t offset = (size_t)first * bny_dtype_bytes(in->stats_dtype);
  return (char *)out->lse == (char *)in->lse + offset || (in->sum && (char *)out->sum == (char *)in->sum + offset);
}

/* Returns all zeros for a run whose rows are all valid, so that kernels skip every check. */
bny_device_valid bny_device_valid_of(const bny_binding *binding) {
  const banyan_valid_rows *rows = binding->valid;
  bny_device_valid valid = {.most = binding->tokens_most,
                            .count = binding->tokens,
                            .owners = binding->token_owners,
                            .keeps_empty_rows = binding->keeps_empty_rows};
  if (rows) {
    valid.tokens = rows->tokens;
    valid.seq_lens = rows->seq_lens;
    valid.query_start_loc = rows->query_start_loc;
    valid.token_mask = rows->token_mask;
    valid.batch = rows->batch;
  }
  bool all =
      !valid.tokens && !valid.seq_lens && !valid.query_start_loc && !valid.token_mask && valid.count == valid.most;
  if (all) valid.most = 0;
  return valid;
}

static void set_heads(const bny_binding *binding, bny_device_call *call) {
  call->in.values = binding->mine.at;
  call->in.values_token_stride = binding->mine.token_stride;
  call->in.values_head_stride = binding->mine.head_stride;
  call->in_head0 = binding->in_head0;
  call->out.values = binding->all.at;
  call->out.values_token_stride = binding->all.token_stride;
  call->out.values_head_stride = binding->all.head_stride;
}

/* Tensors to sum are numerators without statistics. Columns are those of the whole tensor, on all ranks. */
static void set_sums(const bny_device_run *run, const bny_binding *binding, bny_device_call *call) {
  int64_t bytes = (int64_t)bny_dtype_bytes(binding->dtype);
  banyan_partial tensor = {
      .values_dtype = binding->dtype, .values_kind = BANYAN_VALUES_NUMERATOR, .values_head_stride = run->unit_columns};
  call->in = call->out = tensor;
  call->in.values = binding->mine.at;
  call->in.values_token_stride = binding->mine.token_stride / bytes;
  int64_t first = bny_call_columns(binding->call, run->nranks, binding->out_head0, 0).first;
  if (binding->all.at) call->out.values = binding->all.at - first * bytes;
  call->out.values_token_stride = binding->all.token_stride / bytes;
  call->out_head0 = 0;
}

banyan_status bny_device_run_start(bny_device_run *run, const bny_binding *binding, void *stream) {
  bny_device_call call = {
      .out_token0 = binding->out_token0,
      .out_head0 = binding->out_head0,
      .in_bytes = (const unsigned char *)binding->in_bytes,
      .out_bytes = (unsigned char *)binding->out_bytes,
      .in_byte0 = binding->in_byte0,
      .out_byte0 = binding->out_byte0,
      .saturated = binding->saturated,
      .valid = bny_device_valid_of(binding),
  };
  if (run->heads) {
    set_heads(binding, &call);
  } else if (run->sums) {
    set_sums(run, binding, &call);
  } else {
    if (binding->in) call.in = *binding->in;
    if (binding->out) call.out = *binding->out;
    call.shares_stats = shares_stats(binding);
  }
  const bny_selection selection = {.shape = run->oneshot.shape, .all_heads = binding->heads, .lists = binding->lists};
  bny_engine_launch launch = {
      .kernel = &run->kernel,
      .blocks = run->blocks,
      .threads = run->threads,
      .shared_bytes = run->shared_bytes,
      .what = run->lists                     ? (const void *)&selection
              : run->form == BNY_FORM_DIRECT ? (const void *)&run->oneshot
                                             : (const void *)&run->program,
      .call = &call,
  };
  return bny_engine_start(run->exec->engine, &launch, stream);
}
