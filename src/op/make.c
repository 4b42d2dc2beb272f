/* SPDX-License-Identifier: Apache-2.0
 * Makes operations: plans and agreement of all ranks, the cache of blocking calls, and queries. */
#include "op/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/live.h"
#include "decode/decode.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/sized.h"
#include "base/status.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

static void free_parts(banyan_op *op) {
  for (int64_t i = 0; op->kinds && i < op->nkinds; i++) {
    bny_run_free(op->kinds[i].run);
    bny_device_run_free(op->kinds[i].device_run);
    bny_plan_free(op->kinds[i].plan);
    free(op->kinds[i].pieces);
  }
  free(op->kinds);
  free(op->outer.first);
  free(op->inner.first);
  op->kinds = op->kind = NULL;
  op->outer = op->inner = (bny_op_cut){0};
  op->nkinds = op->nparts = 0;
}

static void free_op(banyan_op *op) {
  free_parts(op);
  if (op->gather) free_op(op->gather);
  bny_attention_free(op->attention);
  free(op->within);
  free(op->counts);
  free(op->live_tokens);
  free(op);
}

/* Returns the description of a part that peers receive. Bytes and counts are those of the whole call, as the caller
 * gave them, so calls that differ beyond their first part differ from the start. */
static bny_call call_of(const banyan_op *op, const bny_op_kind *kind, bny_phase phase) {
  bny_request request = kind->request;
  request.bytes = op->key.bytes;
  request.counts = op->key.counts;
  bny_call call = bny_call_make(&request, kind->plan, phase);
  if (bny_collective_has_rows(op->key.collective)) bny_call_set_tokens(&call, op->key.tokens);
  return call;
}

static banyan_status make_run(banyan_op *op, bny_op_kind *kind) {
  bny_call call = call_of(op, kind, BNY_PHASE_RUN);
  bny_call_set_tokens(&call, op->key.all_tokens);
  kind->binding = kind->place;
  if (bny_op_runs_on_device(op))
    return bny_device_run_make(&op->comm->device, &kind->request, kind->plan, &call, &kind->binding, &kind->device_run);
  return bny_run_make(op->comm->exec, kind->plan, &call, &kind->binding, &kind->run);
}

/* Later parts take the algorithm that was chosen for the first, unless the caller chose. */
static banyan_status plan_kinds(banyan_op *op) {
  banyan_status status = BANYAN_OK;
  for (int64_t i = 0; i < op->nkinds && status == BANYAN_OK; i++) {
    bny_op_kind *kind = &op->kinds[i];
    if (i > 0 && !op->key.algorithm[0]) kind->request.algorithm = op->kinds[0].plan->algorithm;
    status = bny_plan_make(&kind->request, op->comm->rank, &kind->plan);
    if (status == BANYAN_OK) status = make_run(op, kind);
  }
  return status;
}

static banyan_status fill_within(const banyan_op *op, const bny_request *request, bny_device_combine *combine) {
  if (op->comm->device.proxy)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "a combine within a kernel needs devices that share memory; here those of several nodes "
                    "do not");
  return bny_device_run_within(&op->comm->device, request, combine);
}

/* The operation has one part. Its plan gives the cost and is compared between ranks; the kernel does not use it. */
static banyan_status plan_within(banyan_op *op) {
  op->within = malloc(sizeof *op->within);
  if (!op->within) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  banyan_status status = bny_op_cut_parts(op, SIZE_MAX / 2);
  if (status == BANYAN_OK) status = fill_within(op, &op->kinds[0].request, op->within);
  return status == BANYAN_OK ? bny_plan_make(&op->kinds[0].request, op->comm->rank, &op->kinds[0].plan) : status;
}

/* Splits the call into smaller parts until one fits the outbox, or until nothing is left to split. All ranks split
 * alike, because the same plans fit on every rank. */
static banyan_status cut_and_plan(banyan_op *op) {
  if (op->key.within_kernel) return plan_within(op);
  size_t limit = bny_op_payload_limit(op);
  for (;; limit /= 2) {
    banyan_status status = bny_op_cut_parts(op, limit);
    if (status == BANYAN_OK) status = plan_kinds(op);
    if (status != BANYAN_ERR_MEMORY || limit < 64) return status;
    free_parts(op);
  }
}

static const bny_run *network_run(const bny_op_kind *kind) {
  const bny_proxy_segment *segment = kind->device_run ? bny_device_run_segment(kind->device_run) : NULL;
  return segment ? bny_proxy_segment_run(segment) : kind->run; /* devices that share memory need no network */
}

/* The first call of a shape has a deadline of its own. Only the calling thread reads that of the executor. */
static int64_t set_timeout(banyan_comm *comm, int64_t timeout_ns) {
  int64_t before_ns = comm->exec->timeout_ns;
  comm->exec->timeout_ns = timeout_ns;
  return before_ns;
}

/* All ranks compare their calls. Between nodes each then connects with the ranks that it will send to or receive from.
 * This ends when all are done. */
static banyan_status agree(banyan_op *op) {
  banyan_comm *comm = op->comm;
  bny_call call = call_of(op, &op->kinds[0], BNY_PHASE_AGREE);
  bny_comm_agree_begin(comm, &call);
  banyan_status status = bny_comm_agree_end(comm);
  if (status != BANYAN_OK || !comm->transport->ops->reach) return status;
  call = call_of(op, &op->kinds[0], BNY_PHASE_CONNECT);
  bny_comm_agree_begin(comm, &call);
  for (int64_t i = 0; i < op->nkinds && status == BANYAN_OK; i++) {
    const bny_run *run = network_run(&op->kinds[i]);
    if (run) status = bny_run_reach(comm->agree, run);
  }
  return status == BANYAN_OK ? bny_comm_agree_end(comm) : status;
}

/* Does everything that needs no other rank. */
static banyan_status make_local(banyan_comm *comm, const bny_op_key *key, banyan_op **op) {
  banyan_op *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  made->comm = comm;
  made->key = *key;
  banyan_status status = BANYAN_OK;
  if (key->counts) {
    size_t bytes = (size_t)comm->nranks * sizeof *made->counts;
    made->counts = malloc(bytes);
    if (made->counts)
      memcpy(made->counts, key->counts, bytes);
    else
      status = bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
    made->key.counts = made->counts;
  }
  if (status == BANYAN_OK) status = cut_and_plan(made);
  if (status == BANYAN_OK)
    *op = made;
  else
    free_op(made);
  return status;
}

banyan_status bny_op_refuse(banyan_comm *comm, banyan_status status, bool plans) {
  if (!comm || comm->nranks == 1 || (comm->device.engine && !plans)) return status;
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  banyan_status before = bny_comm_check(comm);
  if (before == BANYAN_OK && comm->last) before = bny_op_progress(comm->last, true);
  if (before == BANYAN_OK) bny_exec_refuse(comm->exec, status, why);
  return bny_fail(status, "%s", why);
}

banyan_status bny_op_make(banyan_comm *comm, const bny_op_key *key, banyan_op **op) {
  banyan_status status = bny_comm_check(comm);
  if (status != BANYAN_OK) return status;
  /* Operations started before come first, and are completed: whether they are complete by now differs from rank to
   * rank. */
  if (comm->last) status = bny_op_progress(comm->last, true);
  if (status != BANYAN_OK) return status;
  banyan_op *made = NULL;
  status = make_local(comm, key, &made);
  if (status != BANYAN_OK) return bny_op_refuse(comm, status, true);
  int64_t timeout_ns = set_timeout(comm, comm->first_timeout_ns);
  status = agree(made);
  set_timeout(comm, timeout_ns);
  if (status != BANYAN_OK) {
    free_op(made);
    return status;
  }
  bny_log(BNY_LOG_DEBUG, "planned in %lld part%s: %s", (long long)made->nparts, made->nparts == 1 ? "" : "s",
          made->kinds[0].plan->reason);
  comm->plans++;
  *op = made;
  return BANYAN_OK;
}

banyan_status bny_op_plan_again(banyan_op *op) {
  banyan_comm *comm = op->comm;
  free_parts(op);
  banyan_status status = cut_and_plan(op);
  if (status != BANYAN_OK) return bny_op_refuse(comm, status, true);
  int64_t timeout_ns = set_timeout(comm, comm->first_timeout_ns);
  status = agree(op);
  set_timeout(comm, timeout_ns);
  return status;
}

banyan_status bny_op_make_attention(banyan_comm *comm, bny_attention *attention, banyan_op **op) {
  banyan_op *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  made->comm = comm;
  made->attention = attention;
  *op = made;
  return BANYAN_OK;
}

/* More merging blocks than rows would have nothing to merge. */
static void tell(const banyan_op *op, const banyan_partial *rows, const banyan_partial *out, int64_t mergers,
                 int32_t warps, bny_device_combine *combine) {
  bny_slice owned = bny_slice_owned(&op->kinds[0].request, op->comm->rank);
  int64_t useful = (bny_slice_rows(&owned) + warps - 1) / warps;
  if (mergers > useful) mergers = useful;
  bny_op_part first = bny_op_part_of(op, 0);
  bny_binding binding = bny_op_binding(op, &first);
  combine->call.in = *rows;
  combine->call.live = bny_device_live_of(&binding);
  combine->call.out = out ? *out : (banyan_partial){0};
  combine->mergers = (uint32_t)(mergers > 1 ? mergers : 1);
}

void bny_op_tell(const banyan_op *op, const banyan_partial *rows, const banyan_partial *out, int32_t blocks,
                 bny_device_combine *combine) {
  const bny_engine *engine = op->comm->device.engine;
  bny_device_combine made = *op->within;
  tell(op, rows, out, (int64_t)blocks * engine->sms / engine->device->facts.sm_count, 1, &made);
  *combine = made;
}

banyan_status bny_op_reserve_live(banyan_op *op, const banyan_live *live) {
  if (bny_op_runs_on_device(op) || !bny_live_selects(live) || op->live_tokens || op->key.all_tokens == 0)
    return BANYAN_OK;
  op->live_tokens = malloc((size_t)op->key.all_tokens);
  return op->live_tokens ? BANYAN_OK : bny_fail(BANYAN_ERR_MEMORY, "out of memory for the live rows of an operation");
}

void bny_op_bind(banyan_op *op, const bny_op_memory *memory) {
  op->memory = *memory;
  if (memory->in) op->in = *memory->in;
  if (memory->out) op->out = *memory->out;
  op->live = memory->live ? *memory->live : (banyan_live){0};
  op->tokens = memory->tokens;
  op->stream = memory->stream;
  if (op->attention != memory->attention) bny_attention_free(op->attention);
  op->attention = memory->attention;
  if (op->gather != memory->gather) banyan_op_free(op->gather);
  op->gather = memory->gather;
  if (op->attention) bny_attention_live(op->attention, &op->live);
  if (!op->within || !op->attention) return;
  const bny_decode *decode = &op->attention->decode;
  banyan_partial rows = bny_attention_rows(&op->attention->desc);
  tell(op, &rows, memory->out, decode->resident_blocks, decode->plan.kernel->block_threads / 32, op->within);
}

bny_attention *bny_op_attention(const banyan_op *op) { return op->attention; }

bool bny_op_key_equal(const bny_op_key *a, const bny_op_key *b, int32_t nranks) {
  bool equal = strcmp(a->algorithm, b->algorithm) == 0;
#define BNY_CALL_NUMBER(type, field, label, names) equal = equal && a->field == b->field;
#define BNY_CALL_LOCAL(type, field) equal = equal && a->field == b->field;
#include "plan/call.def"
  if (!equal || a->counts == b->counts) return equal;
  return a->counts && b->counts && memcmp(a->counts, b->counts, (size_t)nranks * sizeof *a->counts) == 0;
}

banyan_status bny_op_check_within(banyan_comm *comm, const bny_op_key *key) {
  banyan_op op = {.comm = comm, .key = *key};
  bny_device_combine combine;
  bny_request request = bny_op_request(&op);
  return fill_within(&op, &request, &combine);
}

const bny_op_key *bny_op_key_within(const banyan_op *op, banyan_comm **comm) {
  *comm = op->comm;
  return op->within && !op->attention ? &op->key : NULL;
}

/* The order of the list depends only on the calls, which are the same on all ranks. So all ranks find the operation, or
 * none does. */
static int place_of(const banyan_comm *comm, const bny_op_key *key, bool *is_known) {
  banyan_op *const *list = comm->blocking;
  int at = 0;
  while (at < BNY_BLOCKING_OPS - 1 && list[at] && !bny_op_key_equal(&list[at]->key, key, comm->nranks)) at++;
  *is_known = list[at] && bny_op_key_equal(&list[at]->key, key, comm->nranks);
  return at;
}

bool bny_op_is_known(const banyan_comm *comm, const bny_op_key *key) {
  bool is_known;
  place_of(comm, key, &is_known);
  return is_known;
}

banyan_status bny_op_find(banyan_comm *comm, const bny_op_key *key, banyan_op **op) {
  banyan_op **list = comm->blocking, *found = NULL;
  bool is_known;
  int at = place_of(comm, key, &is_known);
  if (is_known) {
    found = list[at];
  } else {
    banyan_status status = bny_op_make(comm, key, &found);
    if (status != BANYAN_OK) return status;
    banyan_op_free(list[at]);
    comm->op_free = banyan_op_free;
  }
  for (; at > 0; at--) list[at] = list[at - 1];
  list[0] = found;
  *op = found;
  return BANYAN_OK;
}

void banyan_op_free(banyan_op *op) {
  if (!op) return;
  if (op->running && !bny_comm_is_inherited(op->comm)) banyan_wait(op); /* bounded by the deadline */
  free_op(op);
}

/* ---- what only each rank knows ----------------------------------------------------------------------------------- */

typedef struct readiness {
  int32_t status;
  char why[252];
} readiness;

banyan_status bny_op_gather(banyan_comm *comm, const void *mine, size_t bytes, void *all) {
  size_t *counts = malloc((size_t)comm->nranks * sizeof *counts);
  if (!counts) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  for (int32_t i = 0; i < comm->nranks; i++) counts[i] = bytes;
  banyan_op *op = NULL;
  banyan_status status =
      bny_op_make(comm, &(bny_op_key){.collective = BNY_ALLGATHER, .counts = counts, .on_host = true}, &op);
  free(counts);
  if (status != BANYAN_OK) return status;
  bny_op_bind(op, &(bny_op_memory){.in_bytes = mine, .out_bytes = all});
  status = banyan_start(op);
  if (status == BANYAN_OK) status = banyan_wait(op);
  banyan_op_free(op);
  return status;
}

banyan_status bny_op_all_ready(banyan_comm *comm, banyan_status own) {
  readiness mine = {.status = (int32_t)own}, *all = calloc((size_t)comm->nranks, sizeof *all);
  if (!all) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  if (own != BANYAN_OK) snprintf(mine.why, sizeof mine.why, "%s", banyan_last_error());
  int64_t timeout_ns = set_timeout(comm, comm->first_timeout_ns);
  banyan_status status = bny_op_gather(comm, &mine, sizeof mine, all);
  set_timeout(comm, timeout_ns);
  for (int32_t i = 0; i < comm->nranks && status == BANYAN_OK; i++)
    if (all[i].status != BANYAN_OK)
      status = bny_fail((banyan_status)all[i].status, "rank %d: %.*s", i, (int)sizeof all[i].why - 1, all[i].why);
  free(all);
  return status;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

static void add_gather(const banyan_op *gather, banyan_op_info *found) {
  banyan_op_info own = {.size = sizeof own};
  banyan_op_query(gather, &own);
  found->predicted_us += own.predicted_us;
  found->bytes_sent += own.bytes_sent;
  found->messages_sent += own.messages_sent;
  found->bytes_between_nodes += own.bytes_between_nodes;
  if (own.arena_bytes > found->arena_bytes) found->arena_bytes = own.arena_bytes;
  found->plan_hash = bny_hash_add(found->plan_hash, own.plan_hash);
}

banyan_status banyan_op_query(const banyan_op *op, banyan_op_info *info) {
  if (!op || !info) return bny_fail(BANYAN_ERR_ARGUMENT, "op and info must not be NULL");
  banyan_op_info found = {.size = sizeof found, .algorithm = "attention"};
  if (op->nparts > 0) {
    const bny_plan *first = op->kinds[0].plan;
    found = (banyan_op_info){.size = sizeof found,
                             .algorithm = first->algorithm,
                             .reason = first->reason,
                             .plan_hash = first->hash,
                             .roundings = (uint64_t)first->roundings};
  }
  if (op->attention) found.reason = op->attention->text;
  for (int64_t i = 0; i < op->nkinds; i++) {
    const bny_op_kind *kind = &op->kinds[i];
    found.predicted_us += (double)kind->count * kind->plan->predicted_ns * 1e-3;
    if (bny_op_runs_on_device(op)) { /* kernels do not count */
      if (kind->plan->roundings > 0) found.saturated = BANYAN_NOT_COUNTED;
      const bny_proxy_segment *segment = op->within ? NULL : bny_device_run_segment(kind->device_run);
      if (segment) found.bytes_between_nodes += bny_proxy_segment_bytes(segment);
      continue;
    }
    /* Parts use the arena one after another. */
    uint64_t arena_bytes = bny_run_arena_bytes(kind->run);
    if (arena_bytes > found.arena_bytes) found.arena_bytes = arena_bytes;
  }
  found.bytes_sent += op->sums.bytes_sent;
  found.messages_sent += op->sums.messages_sent;
  found.bytes_between_nodes += op->sums.bytes_between_nodes;
  if (!bny_op_runs_on_device(op)) found.saturated = op->sums.saturated;
  if (op->gather) add_gather(op->gather, &found);
  return bny_sized_write(&bny_sized_op_info, "info", &found, info);
}

static size_t print_kind(const banyan_op *op, const bny_op_kind *kind, char *text, size_t bytes) {
  if (kind->device_run) return bny_device_run_print(kind->device_run, kind->plan, text, bytes);
  if (!op->within) return bny_plan_print(kind->plan, text, bytes);
  size_t length = bny_plan_print_head(kind->plan, text, bytes);
  bny_append(text, bytes, &length,
             "within a kernel: rows go straight to the ranks that get them, and are merged there in the "
             "order of ranks\n");
  return length;
}

size_t banyan_op_describe(const banyan_op *op, char *text, size_t bytes) {
  if (!text) bytes = 0;
  if (bytes) text[0] = 0;
  if (!op) return 0;
  size_t length = op->gather ? banyan_op_describe(op->gather, text, bytes) : 0;
  size_t room = bytes > length ? bytes - length : 0;
  if (op->nparts > 0) length += print_kind(op, &op->kinds[0], room ? text + length : NULL, room);
  if (op->nparts > 1) bny_append(text, bytes, &length, "and %lld more parts like it\n", (long long)op->nparts - 1);
  if (op->slices > 1)
    bny_append(text, bytes, &length, "in %d slices: one is combined while the next is attended to\n", op->slices);
  if (op->attention) bny_append(text, bytes, &length, "%s\n", op->attention->text);
  return length;
}
