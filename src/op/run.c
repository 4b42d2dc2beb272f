/* SPDX-License-Identifier: Apache-2.0
 * Runs operations in the order in which they were started. */
#include <inttypes.h>
#include <stdio.h>

#include "op/pass.h"
#include "op/valid.h"
#include "op/operation.h"
#include "base/status.h"
#include "exec/payload.h"

/* ---- progress ---------------------------------------------------------------------------------------------------- */

/* A failure ends every running operation. */
static banyan_status give_up(banyan_comm *comm, banyan_status status) {
  for (banyan_op *op = comm->ops->first, *next; op; op = next) {
    next = op->next;
    op->next = NULL;
    op->state = BNY_OP_IDLE;
    for (int32_t i = 0; i < BNY_STAGES; i++)
      if (op->stages[i]) op->stages[i]->run = NULL;
  }
  comm->ops->first = comm->ops->last = NULL;
  return status;
}

/* Binds the current part to its memory. If the part has no rows, which is the same on all ranks, returns false and
 * advances to the next part that may have some. The first part always runs, because ranks compare their calls in it. */
static bool bind_part(banyan_op *op) {
  bny_op_part part = bny_op_part_of(op, op->current);
  bny_op_kind *kind = part.kind;
  kind->binding = bny_op_binding(op, &part);
  if (bny_call_has_rows(&op->call)) {
    bny_valid_tokens valid = {op->call.all_tokens, op->tokens, kind->place.token_owners, 0};
    bny_slice rows = bny_slice_valid(&valid, &(bny_slice){.token0 = part.token0, .tokens = part.tokens});
    if (op->current > 0 && rows.tokens == 0 && part.tokens > 0) {
      op->current = bny_op_part_after(op, op->current);
      return false;
    }
    bny_run_set_part(kind->run, op->tokens, part.token0 - kind->request.token0, part.head0 - kind->request.head0);
  }
  op->kind = kind;
  return true;
}

static void end_part(banyan_op *op, const bny_run_report *part) {
  bny_run_report *all = &op->report;
  bny_run_report sum = all->lost ? *all : *part;
  sum.bytes_sent = all->bytes_sent + part->bytes_sent;
  sum.messages_sent = all->messages_sent + part->messages_sent;
  sum.saturated = all->saturated + part->saturated;
  sum.bytes_between_nodes = all->bytes_between_nodes + part->bytes_between_nodes;
  *all = sum;
  op->run = NULL;
  op->current++;
  if (op->nparts > 1) op->kind = NULL;
}

/* Runs parts of an operation's stage until they are complete or would wait. */
static banyan_status progress_parts(banyan_op *op, int64_t tag, bool block, bool *done) {
  *done = false;
  while (op->current < op->nparts) {
    if (op->current >= op->ready) return BANYAN_OK;
    if (!op->run) {
      if (!op->kind && !bind_part(op)) continue;
      op->comm->exec->record.tag = tag;
      op->run = op->kind->run;
      bny_run_begin(op->run);
    }
    const bny_run_report *report;
    banyan_status status = bny_run_progress(op->run, block, &report);
    if (status != BANYAN_OK || !report) return status;
    end_part(op, report);
  }
  *done = true;
  return BANYAN_OK;
}

/* Does the part of attention that needs the stage that is complete. Peers wait for this rank already, so an error ends
 * the communicator. */
static banyan_status attend_after(banyan_op *op) {
  banyan_status status = BANYAN_OK;
  if (op->stage == BNY_STAGE_GATHER && !op->stages[BNY_STAGE_SELECT])
    status = bny_attention_start(op->attention, NULL, op->tokens);
  if (op->stage == BNY_STAGE_SELECT) status = bny_attention_start_chosen(op->attention, op->tokens);
  if (op->stage == BNY_STAGE_KEYS) status = bny_pass_attend(op);
  if (op->stage == BNY_STAGE_RESULTS) bny_pass_deliver(op);
  if (op->stage == BNY_STAGE_TOPS) bny_attention_offer(op->attention);
  if (op->stage == BNY_STAGE_PAGES) status = bny_attention_read_chosen(op->attention);
  if (status == BANYAN_OK || op->comm->exec->failure.status != BANYAN_OK) return status;
  return bny_exec_fail(op->comm->exec, status, op->comm->rank, "rank %d: %s", op->comm->rank, banyan_last_error());
}

/* Writes the errors of pruning for a complete run. */
static void write_errors(const banyan_op *op) {
  if (!op->attention->desc.prune.error) return;
  bny_call call = op->call;
  call.tokens = op->tokens;
  bny_box result = bny_op_result_box(op->comm, &call);
  bny_attention_write_errors(op->attention, (int64_t)result.tokens * result.heads);
}

/* Gathered shards take the place of rows from peers. */
static bool is_skipped(const banyan_op *op) {
  bool is_taken = op->pass && op->pass->is_taken;
  return !op->stages[op->stage] || (op->stage == BNY_STAGE_ROWS && is_taken) ||
         (op->stage == BNY_STAGE_RESULTS && !is_taken);
}

/* Moves to the next stage that the run takes. Returns false after the last. */
static bool next_stage(banyan_op *op) {
  do op->stage++;
  while (op->stage < BNY_STAGES && is_skipped(op));
  return op->stage < BNY_STAGES;
}

/* Call it before and after the caller's own work, which may take longer than a deadline. */
static void rest(const banyan_comm *comm) {
  const banyan_op *first = comm->ops->first, *stage = first ? first->stages[first->stage] : NULL;
  if (stage && stage->run) bny_run_rest(stage->run);
}

banyan_status bny_op_progress(banyan_op *op, bool block) {
  bny_ops *ops = op->comm->ops;
  while (op->state == BNY_OP_RUNNING) {
    banyan_op *first = ops->first;
    bool done;
    banyan_status status = progress_parts(first->stages[first->stage], first->tag, block, &done);
    if (status == BANYAN_OK && done && first->attention) status = attend_after(first);
    if (status != BANYAN_OK) return give_up(op->comm, status);
    if (!done) return BANYAN_OK;
    if (first->attention && next_stage(first)) continue;
    if (first->attention) write_errors(first);
    ops->first = first->next;
    if (!ops->first) ops->last = NULL;
    first->next = NULL;
    first->state = BNY_OP_COMPLETE;
  }
  return BANYAN_OK;
}

banyan_status bny_op_advance(banyan_op *op) {
  banyan_status status = bny_op_progress(op, false);
  rest(op->comm);
  return status;
}

banyan_status bny_op_reject(banyan_comm *comm, banyan_status status, bool plans) {
  if (!comm || comm->nranks == 1 || (comm->device.engine && !plans)) return status;
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  banyan_status before = bny_comm_check(comm);
  if (before == BANYAN_OK && comm->ops && comm->ops->last) before = bny_op_progress(comm->ops->last, true);
  if (before == BANYAN_OK) bny_exec_reject(comm->exec, status, why);
  return bny_fail(status, "%s", why);
}

/* Reports a page that two ranks offer, so that its keys count twice. */
static banyan_status report_pages(const bny_run_report *pages) {
  const bny_doubled *of = &pages->doubled;
  return bny_fail(BANYAN_ERR_DATA,
                  "the page at position %" PRId64 " of sequence %d, KV head %d is offered twice, by rank %d and rank "
                  "%d: each key belongs to one rank; check queries.key_start",
                  of->index, pages->lost_token, pages->lost_head, of->ranks[0], of->ranks[1]);
}

/* Reports a complete run to its caller. */
static banyan_status report(banyan_op *op) {
  if (op->state == BNY_OP_COMPLETE) op->state = BNY_OP_REPORTED;
  const banyan_op *pages = op->stages[BNY_STAGE_PAGES], *keys = op->stages[BNY_STAGE_SELECT];
  if (op->state == BNY_OP_RUNNING) return BANYAN_OK;
  if (pages && pages->report.lost) return report_pages(&pages->report);
  if (keys && keys->report.lost) op = op->stages[BNY_STAGE_SELECT];
  if (!op->report.lost) return BANYAN_OK;
  return bny_payload_table[op->call.collective].report(&op->report, op->comm->rank, &op->kinds[0].place);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Puts all parts on the stream. The host then has nothing left to do. */
static banyan_status start_on_device(banyan_op *op) {
  banyan_status status = bny_comm_check(op->comm);
  for (int i = op->first; i < BNY_STAGE_ROWS && status == BANYAN_OK; i++)
    if (op->stages[i]) status = start_on_device(op->stages[i]);
  if (status == BANYAN_OK && op->attention) status = bny_attention_start(op->attention, op->within, op->tokens);
  for (int64_t i = 0; i < op->nparts && status == BANYAN_OK; i++) {
    bny_op_part part = bny_op_part_of(op, i);
    part.kind->binding = bny_op_binding(op, &part);
    status = bny_device_run_start(part.kind->device_run, &part.kind->binding, op->stream);
  }
  return status;
}

/* Rejects a start. If the communicator has failed, reports that failure instead of `why`. */
static banyan_status reject_start(banyan_op *op, const char *why) {
  banyan_status status = bny_comm_check(op->comm);
  return status == BANYAN_OK ? bny_fail(BANYAN_ERR_STATE, "%s", why) : give_up(op->comm, status);
}

/* Reads which rows of this run are valid. */
static banyan_status read_valid(banyan_op *op) {
  banyan_status status = BANYAN_OK;
  if (op->valid.tokens) {
    status = bny_valid_count(&op->valid, op->call.all_tokens, &op->tokens);
    op->kind = NULL;
  }
  if (status != BANYAN_OK || !bny_valid_selects(&op->valid)) return status;
  return bny_valid_read(&op->valid, op->tokens, op->valid_tokens);
}

banyan_status bny_op_check_scales(const char *name, const banyan_partial *partial, int32_t heads) {
  int32_t head = bny_partial_scale_check(partial, heads);
  if (head < 0) return BANYAN_OK;
  int64_t index = head * partial->values_scale_stride;
  return bny_fail(BANYAN_ERR_ARGUMENT, "%s.values_scale[%" PRId64 "] of head %d is %g, must be finite and above 0",
                  name, index, head, (double)partial->values_scale[index]);
}

/* Checks the scales of this run, if it has rows. */
static banyan_status check_scales(const banyan_op *op) {
  bny_call call = op->call;
  call.tokens = op->tokens;
  if (!bny_payload_of(&call)->has_statistics || call.tokens == 0 || call.all_heads == 0) return BANYAN_OK;
  banyan_status status = bny_op_check_scales("in", &op->in, call.all_heads);
  bny_box result = bny_op_result_box(op->comm, &call);
  if (status == BANYAN_OK && !bny_box_is_empty(&result)) status = bny_op_check_scales("out", &op->out, result.heads);
  return status;
}

/* The hidden stages have the tokens of the rows; those of keys and pages have sequences in their place. */
static void set_tokens(banyan_op *op) {
  static const bny_op_stage hidden[] = {BNY_STAGE_SELECT, BNY_STAGE_TOPS, BNY_STAGE_PAGES, BNY_STAGE_RESULTS,
                                        BNY_STAGE_CERTIFICATE};
  for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
    banyan_op *stage = op->stages[hidden[i]];
    if (!stage) continue;
    bool of_sequences = hidden[i] == BNY_STAGE_SELECT || hidden[i] == BNY_STAGE_PAGES;
    stage->tokens = of_sequences ? bny_attention_sequences(op->attention, op->tokens) : op->tokens;
    stage->kind = NULL;
  }
}

/* Checks the caller's memory that this run reads, and computes its rows, before other ranks wait for this one. */
static banyan_status prepare(banyan_op *op, bool is_checked) {
  banyan_status status = BANYAN_OK;
  for (int32_t i = op->first; i < BNY_STAGES && status == BANYAN_OK; i++) {
    banyan_op *stage = op->stages[i];
    if (!stage) continue;
    if (stage->valid.size) status = read_valid(stage);
    stage->current = 0;
    stage->ready = stage->nparts;
    stage->report = (bny_run_report){0};
  }
  if (status == BANYAN_OK && op->attention) set_tokens(op);
  op->stage = op->first;
  if (status == BANYAN_OK && !is_checked) status = check_scales(op);
  if (status == BANYAN_OK && op->attention && !is_checked) status = bny_attention_check(op->attention, op->tokens);
  if (status != BANYAN_OK || !op->attention || op->first <= BNY_STAGE_SELECT) return status;
  if (op->pass) {
    bny_pass_pack(op);
    return BANYAN_OK;
  }
  if (op->slices <= 1) return bny_attention_start(op->attention, NULL, op->tokens);
  op->ready = 0;
  return BANYAN_OK;
}

/* Returns how many sequences are attended to before the next look at the network. If nothing is on the network, these
 * are all sequences of the slice. */
static int32_t count_sequences(const banyan_op *op, int32_t left) {
  bool is_waited_for = op->current < op->ready || op->comm->ops->first != op;
  return is_waited_for && left > op->sequences ? op->sequences : left;
}

static banyan_status attend_slice(banyan_op *op, int32_t first, int32_t end) {
  banyan_status status = BANYAN_OK;
  while (first < end && status == BANYAN_OK) {
    int32_t count = count_sequences(op, end - first);
    status = bny_attention_start_slice(op->attention, first, count);
    first += count;
    if (status == BANYAN_OK && first < end) status = bny_op_advance(op);
  }
  return status;
}

static banyan_status attend_slices(banyan_op *op) {
  int32_t batch = op->attention->desc.batch < op->tokens ? op->attention->desc.batch : op->tokens;
  banyan_status status = BANYAN_OK;
  while (op->ready < op->nparts && status == BANYAN_OK) {
    bny_op_part part = bny_op_part_of(op, op->ready);
    if (part.token0 >= batch) break;
    int32_t end = part.tokens < batch - part.token0 ? part.token0 + part.tokens : batch;
    status = attend_slice(op, part.token0, end);
    op->ready += op->inner.parts;
    if (status == BANYAN_OK && op->ready < op->nparts) status = bny_op_advance(op);
  }
  op->ready = op->nparts;
  return status;
}

/* Appends the operation to the queue; one on a device is put on its stream. */
static banyan_status enqueue(banyan_op *op, bool is_checked) {
  banyan_comm *comm = op->comm;
  bny_ops *ops = comm->ops;
  if (bny_comm_is_inherited(comm)) return bny_comm_reject_child(comm);
  if (op->within && !op->attention)
    return reject_start(
        op,
        "the operation is part of your kernel: launch that kernel with the parameter that banyan_op_device() writes");
  if (op->on_device) return start_on_device(op);
  if (op->state == BNY_OP_RUNNING || op->state == BNY_OP_COMPLETE)
    return reject_start(op, "the operation was started already; wait for it first");
  op->state = BNY_OP_IDLE;
  op->tag = comm->tag;
  if (comm->exec->failure.status != BANYAN_OK) return bny_exec_check(comm->exec, NULL);
  banyan_status status = BANYAN_OK;
  if (op->attention && op->nparts == 0) {
    status = bny_attention_check(op->attention, INT32_MAX);
    return status == BANYAN_OK ? bny_attention_start(op->attention, NULL, INT32_MAX) : status;
  }
  status = prepare(op, is_checked);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, false);
  op->state = BNY_OP_RUNNING;
  if (ops->last)
    ops->last->next = op;
  else
    ops->first = op;
  ops->last = op;
  if (op->ready < op->nparts) status = attend_slices(op);
  return status == BANYAN_OK ? status : bny_op_reject(comm, give_up(comm, status), false);
}

/* A run that is complete at once is reported by a wait or a test all the same. Otherwise timing would decide whether a
 * second start is an error. */
banyan_status bny_op_start(banyan_op *op) {
  banyan_status status = enqueue(op, false);
  return status == BANYAN_OK && op->state == BNY_OP_RUNNING && op->comm->ops->first == op ? bny_op_advance(op) : status;
}

banyan_status bny_op_run(banyan_op *op) {
  banyan_status status = enqueue(op, true);
  if (status == BANYAN_OK) status = bny_op_progress(op, true);
  return status == BANYAN_OK ? report(op) : status;
}

banyan_status bny_op_finish(banyan_op *op, bool block, int *done) {
  if (bny_comm_is_inherited(op->comm)) return bny_comm_reject_child(op->comm);
  bool is_complete = op->state == BNY_OP_COMPLETE || op->state == BNY_OP_REPORTED;
  if (!is_complete && op->comm->exec->failure.status != BANYAN_OK)
    return give_up(op->comm, bny_exec_check(op->comm->exec, NULL));
  if (block) rest(op->comm);
  banyan_status status = bny_op_progress(op, block);
  if (status != BANYAN_OK) return status;
  if (done) *done = op->state != BNY_OP_RUNNING;
  return report(op);
}
