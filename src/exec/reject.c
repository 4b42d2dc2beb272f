/* SPDX-License-Identifier: Apache-2.0
 * Calls that a rank rejected for itself, and what they mean for its peers. */
#include <stdio.h>
#include <string.h>

#include "exec/run.h"
#include "base/hash.h"
#include "base/status.h"
#include "transport/rejection.h"

/* All rejected calls are alike in the history of calls, because ranks may have meant different ones. */
static void pass_over(bny_exec *exec) {
  exec->history = (uint32_t)bny_hash_add(exec->history, 0x5ef05edu);
  atomic_store_explicit(&exec->line->done, exec->epoch, memory_order_release);
}

void bny_exec_reject(bny_exec *exec, banyan_status status, const char *why) {
  bny_rejection rejection = {
      .first = exec->epoch + 1, .last = exec->epoch + 1, .rank = exec->transport->rank, .status = (int32_t)status};
  snprintf(rejection.text, sizeof rejection.text, "%s", why);
  bny_rejection_add(exec->transport,
                    &rejection); /* published first, so that a rank that sees this rank past the call finds
                                               * the reason */
  exec->epoch++;
  pass_over(exec);
  atomic_store_explicit(&exec->line->started, exec->epoch << 32 | exec->history, memory_order_release);
}

/* Only signals were sent. All ranks give up the same run, because no rank completes it without the one that rejected.
 * */
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

static void describe(const bny_rejection *rejection, char *text, size_t bytes) {
  snprintf(text, bytes, "rank %d rejected its call (%s): %s", rejection->rank,
           banyan_status_string((banyan_status)rejection->status), rejection->text);
}

bool bny_exec_rejected_by(bny_exec *exec, int32_t rank, char *text, size_t bytes) {
  bny_rejection rejection;
  for (uint64_t epoch = exec->epoch; epoch > 0 && epoch + 1 >= exec->epoch; epoch--) {
    if (!bny_rejection_find(exec->transport, epoch, &rejection) || rejection.rank != rank) continue;
    describe(&rejection, text, bytes);
    return true;
  }
  return false;
}

banyan_status bny_exec_look_for_rejections(bny_exec *exec, const bny_notice *call) {
  bny_rejection rejection;
  char text[BNY_ERROR_TEXT_BYTES];
  if (!bny_rejection_find(exec->transport, exec->epoch, &rejection)) return BANYAN_OK;
  if (call && bny_notice_is_comparison(call)) return give_up(exec, &rejection);
  describe(&rejection, text, sizeof text);
  return bny_exec_fail_rejected(exec, rejection.rank, text);
}
