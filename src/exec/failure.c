/* SPDX-License-Identifier: Apache-2.0
 * Handles failures of an executor: records this rank's own, learns those of other ranks, and describes them. Also
 * handles calls that a rank rejects. */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/process.h"
#include "base/status.h"
#include "exec/run.h"
#include "transport/rejection.h"

/* The time that a failing call may take to send the failure, because the rank may not look at the network again. */
enum { SPREAD_NS = 5000000 };

/* Writes "operation 12: combine, 16640 bytes by tree, step 3 of 8, waiting for rank 2". */
static void describe_run(const bny_run *run, char *text, size_t bytes) {
  const bny_plan *plan = run->plan;
  size_t length = 0;
  bny_append(text, bytes, &length, "operation %llu: ", (unsigned long long)run->exec->epoch);
  if (run->exec->record.tag >= 0) bny_append(text, bytes, &length, "tag %lld, ", (long long)run->exec->record.tag);
  bny_append(text, bytes, &length, "%s, %llu bytes by %s", run->record.name, (unsigned long long)run->record.note.bytes,
             run->record.algorithm);
  if (run->next >= plan->nsteps) return;
  bny_append(text, bytes, &length, ", step %d of %d", run->next + 1, plan->nsteps);
  const bny_step *step = &plan->steps[run->next];
  if (!run->ready)
    bny_append(text, bytes, &length, ", at its beginning");
  else if (step->kind == BNY_STEP_WAIT)
    bny_append(text, bytes, &length, ", waiting for rank %d", plan->messages[step->message].peer);
}

const bny_failure bny_exec_failure_of_child = {
    BANYAN_ERR_STATE, -1,
    "this process is the child of a fork, and the communicator is its parent's: the child may destroy its copy and "
    "make a communicator of its own, and do nothing else"};

banyan_status bny_exec_check_process(const bny_exec *exec) {
  if (exec->process == bny_process()) return BANYAN_OK;
  return bny_fail(bny_exec_failure_of_child.status, "rank %d: %s", exec->transport->rank,
                  bny_exec_failure_of_child.text);
}

static banyan_status keep(bny_exec *exec, const bny_failure *failure) {
  exec->failure = *failure;
  if (exec->transport->ops->broadcast_fault) exec->transport->ops->broadcast_fault(exec->transport, SPREAD_NS);
  bny_record_fail(&exec->record, exec->epoch, failure->status, failure->culprit, failure->text);
  return bny_fail(failure->status, "%s", failure->text);
}

static banyan_status record(bny_exec *exec, banyan_status status, int32_t culprit, const char *text) {
  if (exec->failure.status != BANYAN_OK) return bny_fail(exec->failure.status, "%s", exec->failure.text);
  bny_failure failure = {.status = status, .culprit = culprit};
  size_t length = 0;
  char place[192] = ""; /* the step of this rank; others may be at another step */
  if (exec->run) describe_run(exec->run, place, sizeof place);
  bny_append(failure.text, sizeof failure.text, &length, "%s; this rank is %s%s", text,
             exec->run ? "in " : "between operations", place);
  return keep(exec, &failure);
}

/* Decides which runs still complete. If a rank gave bad data or was missing in a run, earlier runs get everything they
 * need from the ranks that reached that run. Other faults end every run; a run that timed out has waited long
 * enough. */
static bool spares_run(const bny_exec *exec, uint64_t fault) {
  banyan_status status = bny_fault_status(fault);
  return exec->run && (status == BANYAN_ERR_DATA || status == BANYAN_ERR_PEER) &&
         bny_fault_is_after(fault, exec->epoch);
}

/* Moves the fault to an earlier run: this rank's run has failed although the fault spared it, and so have the runs that
 * need this rank. */
static void bring_forward(bny_exec *exec, uint64_t fault) {
  if (!spares_run(exec, fault)) return;
  atomic_compare_exchange_strong(exec->fault, &fault, bny_fault_in_run(fault, exec->epoch));
}

banyan_status bny_exec_adopt(bny_exec *exec, const bny_failure *failure) {
  if (bny_exec_check_process(exec) != BANYAN_OK) return bny_exec_failure_of_child.status;
  uint64_t first = 0, fault = bny_fault_pack(failure->status, failure->culprit, exec->transport->rank);
  if (!atomic_compare_exchange_strong(exec->fault, &first, fault)) return bny_exec_check(exec, NULL);
  return keep(exec, failure);
}

static banyan_status take_fault(bny_exec *exec, const bny_notice *notice);
static bool is_explained_by(const bny_exec *exec, int32_t rank, banyan_status status, char *text, size_t bytes);

static banyan_status fail(bny_exec *exec, uint64_t fault, const char *text) {
  if (bny_exec_check_process(exec) != BANYAN_OK) return bny_exec_failure_of_child.status;
  banyan_status status = bny_fault_status(fault);
  int32_t culprit = bny_fault_culprit(fault);
  uint64_t first = 0;
  if (exec->run) fault = bny_fault_in_run(fault, exec->epoch);
  bool is_first = atomic_compare_exchange_strong(exec->fault, &first, fault);
  /* All ranks report the same failure. For a mismatch, each reports what differs from its own call. If a device read a
   * wrong argument or bad data, this rank may know more than the rank that reported it first. */
  char by_culprit[sizeof exec->failure.text];
  bool same_culprit = bny_fault_culprit(first) == culprit;
  bool knows_more =
      bny_fault_status(first) == status &&
      (status == BANYAN_ERR_MISMATCH || (status == BANYAN_ERR_ARGUMENT && same_culprit) ||
       (status == BANYAN_ERR_DATA && same_culprit &&
        (culprit == exec->transport->rank || !is_explained_by(exec, culprit, status, by_culprit, sizeof by_culprit))));
  if (!is_first) bring_forward(exec, first);
  if (!is_first && !knows_more) return take_fault(exec, NULL);
  return record(exec, status, culprit, text);
}

/* The number under which a rank explains its fault among the rejections, which have the numbers of runs. */
static uint64_t number_of_fault(int32_t rank) { return UINT64_C(1) << 63 | (uint32_t)rank; }

/* Lets other ranks report the text of this rank's own failure. */
static void explain_fault(bny_exec *exec, banyan_status status, const char *text) {
  uint64_t number = number_of_fault(exec->transport->rank);
  bny_rejection reason = {.first = number, .last = number, .rank = exec->transport->rank, .status = (int32_t)status};
  snprintf(reason.text, sizeof reason.text, "%.*s", (int)sizeof reason.text - 1, text);
  bny_rejection_add(exec->transport, &reason);
}

/* Writes the text in which that rank explained its fault. Returns false if it is not known. */
static bool is_explained_by(const bny_exec *exec, int32_t rank, banyan_status status, char *text, size_t bytes) {
  bny_rejection reason;
  if (rank < 0 || !bny_rejection_find(exec->transport, number_of_fault(rank), &reason)) return false;
  snprintf(text, bytes, "%s", reason.text);
  return reason.status == (int32_t)status;
}

banyan_status bny_exec_fail(bny_exec *exec, banyan_status status, int32_t culprit, const char *format, ...) {
  char text[sizeof exec->failure.text];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (culprit == exec->transport->rank) explain_fault(exec, status, text);
  return fail(exec, bny_fault_pack(status, culprit, exec->transport->rank), text);
}

static const char no_room[] = "cannot hold the statistics of %s of its result in the type of out.stats_dtype";

banyan_status bny_exec_fail_result(bny_exec *exec, int32_t culprit, const char *row) {
  if (bny_exec_check_process(exec) != BANYAN_OK) return bny_exec_failure_of_child.status;
  uint64_t first = 0, fault = bny_fault_of_result(bny_fault_pack(BANYAN_ERR_DATA, culprit, exec->transport->rank));
  bool is_first = atomic_compare_exchange_strong(exec->fault, &first, fault);
  /* Another rank that reported this fault first does not know the row. */
  bool knows_row = culprit == exec->transport->rank && bny_fault_is_of_result(first) &&
                   bny_fault_status(first) == BANYAN_ERR_DATA && bny_fault_culprit(first) == culprit;
  if (!is_first && !knows_row) return take_fault(exec, NULL);
  char text[sizeof exec->failure.text];
  size_t length = 0;
  bny_append(text, sizeof text, &length, "rank %d ", culprit);
  bny_append(text, sizeof text, &length, no_room, row);
  return record(exec, BANYAN_ERR_DATA, culprit, text);
}

void bny_exec_abort(bny_exec *exec, const char *reason) {
  int none = 0;
  if (reason && atomic_compare_exchange_strong(&exec->reason_state, &none, 1)) {
    size_t length = 0;
    bny_append(exec->reason, sizeof exec->reason, &length, "%s", reason);
    atomic_store_explicit(&exec->reason_state, 2, memory_order_release);
  }
  bny_exec_stop(exec, BANYAN_ERR_ABORTED, exec->transport->rank);
}

void bny_exec_stop(bny_exec *exec, banyan_status status, int32_t culprit) {
  if (exec->process != bny_process()) return;
  uint64_t fine = 0;
  atomic_compare_exchange_strong(exec->fault, &fine, bny_fault_pack(status, culprit, exec->transport->rank));
  if (exec->transport->ops->broadcast_fault) exec->transport->ops->broadcast_fault(exec->transport, 0);
}

static uint32_t epoch_begun(bny_exec *exec, int32_t rank) {
  bny_rank_line *line = exec->transport->ops->line(exec->transport, rank);
  return (uint32_t)(atomic_load_explicit(&line->started, memory_order_acquire) >> 32);
}

/* Returns true if the call of a rank is known. A rank of another node is asked, which may take a moment. Its answer
 * about a run before `epoch` counts only if no newer one comes. */
static bool learn_call(bny_exec *exec, int32_t rank, uint32_t epoch) {
  enum { PATIENCE_NS = 50000000 };
  bny_transport *transport = exec->transport;
  const bny_transport_ops *ops = transport->ops;
  if (!ops->probe || bny_transport_is_same_node(transport, rank)) return true;
  int64_t deadline_ns = bny_clock_ns() + PATIENCE_NS;
  bool knows = false;
  while (bny_clock_ns() < deadline_ns) {
    knows = ops->probe(transport, rank);
    if (knows && (int32_t)(epoch_begun(exec, rank) - epoch) >= 0) return true;
    ops->progress(transport);
  }
  return knows;
}

/* Returns true if the rank's published words show the disagreement: it is in the same run, or remembers one that
 * differed. Other ranks may have continued. */
static bool explains(bny_exec *exec, int32_t rank) {
  if (rank < 0 || rank == exec->transport->rank) return false;
  return epoch_begun(exec, rank) == (uint32_t)exec->epoch ||
         bny_notice_runs_differ(exec->transport, rank, exec->transport->rank);
}

/* If ranks disagree, each reports what differs from its own call, whichever rank noticed it. */
static banyan_status record_mismatch(bny_exec *exec, const bny_notice *notice, int32_t culprit, int32_t reporter) {
  char difference[160], text[sizeof exec->failure.text];
  bool swaps = !explains(exec, culprit) && explains(exec, reporter);
  int32_t candidates[2] = {swaps ? reporter : culprit, swaps ? culprit : reporter};
  for (int i = 0; i < 2; i++) {
    if (!notice || candidates[i] < 0 || candidates[i] == exec->transport->rank) continue;
    if (!learn_call(exec, candidates[i], (uint32_t)exec->epoch)) continue;
    if (!bny_notice_difference(exec->transport, candidates[i], notice, exec->transport->rank, difference,
                               sizeof difference))
      continue;
    size_t length = 0;
    bny_append(text, sizeof text, &length, "rank %d is in another call: %s", candidates[i], difference);
    return record(exec, BANYAN_ERR_MISMATCH, candidates[i], text);
  }
  size_t length = 0;
  bool known =
      learn_call(exec, reporter, (uint32_t)exec->epoch) && learn_call(exec, culprit, epoch_begun(exec, reporter));
  bny_notice reported = bny_notice_read(exec->transport, reporter);
  bool differs =
      known && bny_notice_difference(exec->transport, culprit, &reported, reporter, difference, sizeof difference);
  bny_append(text, sizeof text, &length, "rank %d is in another call than rank %d%s%s", culprit, reporter,
             differs ? ": " : "", differs ? difference : "");
  return record(exec, BANYAN_ERR_MISMATCH, culprit, text);
}

static void describe_rejection(const bny_rejection *rejection, char *text, size_t bytes) {
  snprintf(text, bytes, "rank %d rejected its call (%s): %s", rejection->rank,
           banyan_status_string((banyan_status)rejection->status), rejection->text);
}

/* Returns true if that rank rejected the current run, or one of those before, and writes the text about the last. */
static bool is_rejected_by(const bny_exec *exec, int32_t rank, char *text, size_t bytes) {
  bny_rejection rejection;
  for (uint64_t epoch = exec->epoch; epoch > 0 && epoch + BNY_REJECTIONS > exec->epoch; epoch--) {
    if (!bny_rejection_find(exec->transport, epoch, &rejection) || rejection.rank != rank) continue;
    describe_rejection(&rejection, text, bytes);
    return true;
  }
  return false;
}

static banyan_status take_fault(bny_exec *exec, const bny_notice *notice) {
  if (exec->failure.status != BANYAN_OK) return bny_fail(exec->failure.status, "%s", exec->failure.text);
  uint64_t fault = atomic_load_explicit(exec->fault, memory_order_acquire);
  banyan_status status = bny_fault_status(fault);
  int32_t culprit = bny_fault_culprit(fault), reporter = bny_fault_reporter(fault);
  if (status == BANYAN_ERR_MISMATCH) return record_mismatch(exec, notice, culprit, reporter);
  char rejected[sizeof exec->failure.text];
  if (status == BANYAN_ERR_PEER && is_rejected_by(exec, culprit, rejected, sizeof rejected))
    return record(exec, status, culprit, rejected);
  if (is_explained_by(exec, culprit, status, rejected, sizeof rejected)) return record(exec, status, culprit, rejected);
  char text[sizeof exec->failure.text];
  size_t length = 0;
  const char *what = status == BANYAN_ERR_PEER      ? "died, left or is broken"
                     : status == BANYAN_ERR_TIMEOUT ? "did not arrive in time"
                     : status == BANYAN_ERR_DATA    ? BNY_EXEC_NO_ROW
                     : status == BANYAN_ERR_ABORTED ? "called banyan_comm_abort()"
                                                    : "failed";
  bny_append(text, sizeof text, &length, "rank %d ", culprit);
  if (bny_fault_is_of_result(fault))
    bny_append(text, sizeof text, &length, no_room, "a row");
  else
    bny_append(text, sizeof text, &length, "%s", what);
  if (reporter != culprit) bny_append(text, sizeof text, &length, " (noticed by rank %d)", reporter);
  if (status == BANYAN_ERR_ABORTED && culprit == exec->transport->rank &&
      atomic_load_explicit(&exec->reason_state, memory_order_acquire) == 2)
    bny_append(text, sizeof text, &length, ": %s", exec->reason);
  return record(exec, status, culprit, text);
}

banyan_status bny_exec_check(bny_exec *exec, const bny_notice *notice) {
  if (bny_exec_check_process(exec) != BANYAN_OK) return bny_exec_failure_of_child.status;
  if (exec->failure.status != BANYAN_OK) return bny_fail(exec->failure.status, "%s", exec->failure.text);
  uint64_t fault = atomic_load_explicit(exec->fault, memory_order_acquire);
  if (!fault) return BANYAN_OK;
  if (!spares_run(exec, fault)) return take_fault(exec, notice);
  if (exec->progress) exec->progress(exec->transport); /* polls stop at a fault */
  return BANYAN_OK;
}

/* ---- rejections ----------------------------------------------------------------------------------------------- */

/* All rejected calls are equal in the history of calls, because ranks may have meant different ones. */
static void pass_over(bny_exec *exec) {
  exec->history = (uint32_t)bny_hash_add(exec->history, 0x5ef05edu);
  atomic_store_explicit(&exec->line->done, exec->epoch, memory_order_release);
}

void bny_exec_reject(bny_exec *exec, banyan_status status, const char *why) {
  if (exec->process != bny_process()) return;
  bny_rejection rejection = {
      .first = exec->epoch + 1, .last = exec->epoch + 1, .rank = exec->transport->rank, .status = (int32_t)status};
  snprintf(rejection.text, sizeof rejection.text, "%s", why);
  bny_rejection_add(exec->transport, &rejection); /* A rank that sees this rank past the call finds the reason. */
  exec->epoch++;
  pass_over(exec);
  atomic_store_explicit(&exec->line->started, exec->epoch << 32 | exec->history, memory_order_release);
}

/* Only signals were sent. All ranks drop the same run, because no rank completes it without the one that rejected
 * it. */
static banyan_status give_up(bny_exec *exec, const bny_rejection *rejection) {
  const bny_run *run = exec->run;
  exec->owed.count = run->nsenders; /* the next run informs them that this one is over */
  for (int32_t i = 0; i < run->nsenders; i++) exec->owed.ranks[i] = run->senders[i];
  exec->history = exec->history_before;
  pass_over(exec);
  exec->run = NULL;
  return bny_fail(BANYAN_ERR_PEER,
                  "rank %d rejected its call (%s)%s: %s; nothing was sent, and the communicator remains usable",
                  rejection->rank, banyan_status_string((banyan_status)rejection->status),
                  exec->epoch > rejection->first ? ", as one before it" : "", rejection->text);
}

static banyan_status fail_rejected(bny_exec *exec, const bny_rejection *rejection) {
  char text[BNY_ERROR_TEXT_BYTES];
  describe_rejection(rejection, text, sizeof text);
  uint64_t fault = bny_fault_pack(BANYAN_ERR_PEER, rejection->rank, exec->transport->rank);
  return fail(exec, bny_fault_of_rejection(fault), text);
}

banyan_status bny_exec_look_for_rejections(bny_exec *exec, const bny_notice *notice) {
  bny_rejection rejection;
  if (!bny_rejection_find(exec->transport, exec->epoch, &rejection)) return BANYAN_OK;
  if (notice && bny_notice_is_comparison(notice)) return give_up(exec, &rejection);
  return fail_rejected(exec, &rejection);
}

banyan_status bny_exec_blame_rejection(bny_exec *exec, int32_t peer) {
  bny_rejection rejection;
  for (uint64_t epoch = exec->agreed[peer] + 1; epoch <= exec->epoch; epoch++) {
    if (epoch + BNY_REJECTIONS <= exec->epoch) continue; /* forgotten */
    if (!bny_rejection_find(exec->transport, epoch, &rejection)) continue;
    if (rejection.rank == peer || rejection.rank == exec->transport->rank) return fail_rejected(exec, &rejection);
  }
  return BANYAN_OK;
}
