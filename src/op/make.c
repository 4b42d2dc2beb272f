/* SPDX-License-Identifier: Apache-2.0
 * Makes operations: plans them, and lets all ranks agree on them. */
#include "op/operation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/pass.h"
#include "op/valid.h"
#include "attention/call.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/sized.h"
#include "base/status.h"
#include "plan/builder.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

void bny_op_free_parts(banyan_op *op) {
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
  op->run = NULL;
  op->outer = op->inner = (bny_op_cut){0};
  op->nkinds = op->nparts = 0;
}

static void free_op(banyan_op *op) {
  if (op->comm) {
    *(op->newer ? &op->newer->older : &op->comm->ops->newest) = op->older;
    if (op->older) op->older->newer = op->newer;
  }
  bny_op_free_parts(op);
  for (int i = 0; i < BNY_STAGES; i++)
    if (op->stages[i] != op) bny_op_free(op->stages[i]);
  bny_attention_free(op->attention);
  bny_pass_free(op->pass);
  free(op->within);
  free(op->counts);
  free(op->valid_tokens);
  free(op);
}

void bny_op_free(banyan_op *op) {
  if (!op) return;
  if (op->state == BNY_OP_RUNNING && op->comm && !bny_comm_is_inherited(op->comm))
    bny_op_finish(op, true, NULL); /* bounded by the deadline */
  free_op(op);
}

/* Returns the description of a part that peers receive. Bytes and counts are those of the caller's whole call, so calls
 * that differ only after their first part still differ at the start. */
static bny_notice notice_of(const banyan_op *op, const bny_op_kind *kind, bny_phase phase) {
  bny_request request = kind->request;
  request.call.bytes = op->call.bytes;
  request.call.counts = op->call.counts;
  bny_notice notice = bny_notice_make(&request, kind->plan, phase);
  if (bny_call_has_rows(&op->call)) bny_notice_set_tokens(&notice, op->call.tokens);
  return notice;
}

static banyan_status make_run(banyan_op *op, bny_op_kind *kind) {
  bny_notice notice = notice_of(op, kind, BNY_PHASE_RUN);
  bny_notice_set_tokens(&notice, op->call.all_tokens);
  kind->binding = kind->place;
  if (op->on_device)
    return bny_device_run_make(&op->comm->device, &kind->request, kind->plan, &notice, &kind->binding,
                               &kind->device_run);
  return bny_run_make(op->comm->exec, kind->plan, &notice, &kind->binding, &kind->run);
}

/* Later parts use the algorithm that was chosen for the first, unless the caller chose one. */
static banyan_status plan_kinds(banyan_op *op) {
  banyan_status status = BANYAN_OK;
  for (int64_t i = 0; i < op->nkinds && status == BANYAN_OK; i++) {
    bny_op_kind *kind = &op->kinds[i];
    if (i > 0 && !op->call.algorithm[0]) kind->request.algorithm = op->kinds[0].plan->algorithm;
    status = bny_plan_make(&kind->request, op->comm->rank, &kind->plan);
    if (status == BANYAN_OK) status = make_run(op, kind);
  }
  return status;
}

/* The operation has one part. Its plan gives the cost and is compared between ranks; kernels do not use it. Rows that
 * attention's kernel pushes are merged by a launch of their own. */
static banyan_status plan_within(banyan_op *op) {
  op->within = malloc(sizeof *op->within);
  if (!op->within) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  banyan_status status = bny_op_cut_parts(op, SIZE_MAX / 2);
  if (status == BANYAN_OK) status = bny_op_make_within(op, &op->kinds[0].request, op->within);
  bny_op_kind *kind = op->kinds;
  if (status == BANYAN_OK && op->call.attends)
    status = bny_device_run_make_merge(&op->comm->device, &kind->request, &kind->device_run);
  return status == BANYAN_OK ? bny_plan_make(&kind->request, op->comm->rank, &kind->plan) : status;
}

/* Returns whether a part was too large for the outbox or the arenas, which holds on all ranks. A rank that lacks memory
 * must not split its call further alone. */
static bool is_too_large(const banyan_op *op) {
  bny_candidate candidates[BNY_CANDIDATES_MAX];
  const bny_op_kind *kind = op->kinds, *end = kind + op->nkinds;
  while (kind && kind < end && (kind->run || kind->device_run)) kind++;
  if (!kind || kind == end) return false;
  if (kind->plan) return op->on_device; /* for a device, a lack of memory is another error */
  int32_t count = bny_algorithm_candidates(&kind->request, candidates);
  for (int32_t i = 0; i < count; i++)
    if (candidates[i].chosen) return false;
  return count > 0;
}

/* Splits the call into smaller parts until one fits the outbox, or nothing is left to split. All ranks split in the
 * same way, because the same plans fit on every rank. */
static banyan_status cut_and_plan(banyan_op *op) {
  if (op->call.within_kernel) return plan_within(op);
  size_t limit = bny_op_payload_limit(op);
  for (;; limit /= 2) {
    banyan_status status = bny_op_cut_parts(op, limit);
    if (status == BANYAN_OK) status = plan_kinds(op);
    if (status != BANYAN_ERR_MEMORY || limit < 4 || !is_too_large(op)) return status;
    bny_op_free_parts(op);
  }
}

/* All ranks compare their calls. Between nodes each rank then connects with the ranks that it will exchange data with.
 * The call ends when all ranks are done. */
static banyan_status agree_by_deadline(banyan_op *op) {
  banyan_comm *comm = op->comm;
  bny_notice notice = notice_of(op, &op->kinds[0], BNY_PHASE_AGREE);
  bny_comm_agree_begin(comm, &notice);
  banyan_status status = bny_comm_agree_end(comm);
  if (status != BANYAN_OK || !comm->transport->ops->connect) return status;
  notice = notice_of(op, &op->kinds[0], BNY_PHASE_CONNECT);
  bny_comm_agree_begin(comm, &notice);
  for (int64_t i = 0; i < op->nkinds && status == BANYAN_OK; i++) {
    const bny_op_kind *kind = &op->kinds[i];
    const bny_proxy_segment *segment = kind->device_run ? bny_device_run_segment(kind->device_run) : NULL;
    const bny_run *run = segment ? segment->run : kind->run; /* devices that share memory need no network */
    if (run) status = bny_run_reach(comm->agree, run);
  }
  return status == BANYAN_OK ? bny_comm_agree_end(comm) : status;
}

/* Does the same, with the deadline of the first call of a shape. Only the calling thread reads the executor's
 * timeout. */
static banyan_status agree(banyan_op *op) {
  bny_exec *exec = op->comm->exec;
  int64_t timeout_ns = exec->timeout_ns;
  exec->timeout_ns = op->comm->first_timeout_ns;
  banyan_status status = agree_by_deadline(op);
  exec->timeout_ns = timeout_ns;
  return status;
}

static banyan_status make_empty(banyan_comm *comm, const bny_call *call, banyan_op **op) {
  if (!comm->ops) comm->ops = calloc(1, sizeof *comm->ops);
  banyan_op *made = comm->ops ? calloc(1, sizeof *made) : NULL;
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  made->comm = comm;
  made->stages[BNY_STAGE_ROWS] = made;
  made->first = BNY_STAGE_ROWS;
  made->older = comm->ops->newest;
  if (made->older) made->older->newer = made;
  comm->ops->newest = made;
  made->call = *call;
  /* If there is a proxy, collectives that it does not serve move host memory. */
  const bny_device_exec *device = &comm->device;
  made->on_device = device->engine && !call->on_host && (!device->proxy || bny_payload_of(call)->on_proxy);
  *op = made;
  return BANYAN_OK;
}

/* Does everything that needs no other rank. */
static banyan_status make_local(banyan_comm *comm, const bny_call *call, banyan_op **op) {
  banyan_op *made = NULL;
  banyan_status status = make_empty(comm, call, &made);
  if (status != BANYAN_OK) return status;
  if (call->counts) {
    size_t bytes = (size_t)comm->nranks * sizeof *made->counts;
    made->counts = malloc(bytes);
    if (made->counts)
      memcpy(made->counts, call->counts, bytes);
    else
      status = bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
    made->call.counts = made->counts;
  }
  if (status == BANYAN_OK) status = cut_and_plan(made);
  if (status == BANYAN_OK)
    *op = made;
  else
    free_op(made);
  return status;
}

banyan_status bny_op_make(banyan_comm *comm, const bny_call *call, banyan_op **op) {
  banyan_status status = bny_comm_check(comm);
  if (status != BANYAN_OK) return status;
  /* Earlier operations are completed first, because ranks differ in which of them are already complete. */
  if (comm->ops && comm->ops->last) status = bny_op_progress(comm->ops->last, true);
  if (status != BANYAN_OK) return status;
  banyan_op *made = NULL;
  status = make_local(comm, call, &made);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, true);
  status = agree(made);
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
  bny_op_free_parts(op);
  banyan_status status = cut_and_plan(op);
  return status == BANYAN_OK ? agree(op) : bny_op_reject(op->comm, status, true);
}

banyan_status bny_op_make_attention(banyan_comm *comm, bny_attention *attention, banyan_op **op) {
  banyan_status status = make_empty(comm, &(bny_call){.collective = BNY_COMBINE}, op);
  if (status == BANYAN_OK) (*op)->attention = attention;
  return status;
}

banyan_status bny_op_reserve_valid(banyan_op *op, const banyan_valid_rows *valid) {
  if (op->on_device || !bny_valid_selects(valid) || op->valid_tokens || op->call.all_tokens == 0) return BANYAN_OK;
  op->valid_tokens = malloc((size_t)op->call.all_tokens);
  if (op->valid_tokens) return BANYAN_OK;
  banyan_status status = bny_fail(BANYAN_ERR_MEMORY, "out of memory for the valid rows of an operation");
  return bny_op_reject(op->comm, status, false);
}

static void set_stages(banyan_op *op, banyan_op *const *calls) {
  op->first = BNY_STAGE_ROWS;
  for (int i = BNY_STAGES - 1; i >= 0; i--) {
    if (i == BNY_STAGE_ROWS) continue;
    if (op->stages[i] != calls[i]) bny_op_free(op->stages[i]);
    op->stages[i] = calls[i];
    if (calls[i] && i < op->first) op->first = i;
  }
}

void bny_op_bind(banyan_op *op, const bny_op_memory *memory) {
  op->memory = *memory;
  if (memory->in) op->in = *memory->in;
  if (memory->out) op->out = *memory->out;
  op->valid = memory->valid ? *memory->valid : (banyan_valid_rows){0};
  op->tokens = memory->tokens;
  op->stream = memory->stream ? memory->stream : op->comm->stream;
  op->given.desc.size = 0;
  op->kind = NULL;
  if (op->attention != memory->attention) bny_attention_free(op->attention);
  op->attention = memory->attention;
  set_stages(op, memory->stages);
  if (op->attention) bny_attention_set_valid(op->attention, &op->valid);
  if (op->within && op->attention) bny_op_set_valid_within(op, op->within);
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
      bny_op_make(comm, &(bny_call){.collective = BNY_ALLGATHER, .counts = counts, .on_host = true}, &op);
  free(counts);
  if (status != BANYAN_OK) return status;
  bny_op_bind(op, &(bny_op_memory){.in_bytes = mine, .out_bytes = all});
  status = bny_op_run(op);
  bny_op_free(op);
  return status;
}

banyan_status bny_op_all_ready(banyan_comm *comm, banyan_status own) {
  readiness mine = {.status = (int32_t)own}, *all = calloc((size_t)comm->nranks, sizeof *all);
  if (!all) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  if (own != BANYAN_OK) snprintf(mine.why, sizeof mine.why, "%s", banyan_last_error());
  int64_t timeout_ns = comm->exec->timeout_ns;
  comm->exec->timeout_ns = comm->first_timeout_ns;
  banyan_status status = bny_op_gather(comm, &mine, sizeof mine, all);
  comm->exec->timeout_ns = timeout_ns;
  for (int32_t i = 0; i < comm->nranks && status == BANYAN_OK; i++)
    if (all[i].status != BANYAN_OK)
      status = bny_fail((banyan_status)all[i].status, "rank %d: %.*s", i, (int)sizeof all[i].why - 1, all[i].why);
  free(all);
  return status;
}
