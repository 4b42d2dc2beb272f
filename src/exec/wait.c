/* SPDX-License-Identifier: Apache-2.0
 * Waits for a peer: polls, yields, sleeps, and determines why nothing arrives. */
#include "exec/wait.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/deadline.h"

enum { SLEEP_FIRST_NS = 50000, LOOK_EVERY_NS = 5000000 };

int64_t bny_wait_gap(int64_t seen_ns, int64_t now_ns, int64_t timeout_ns) {
  int64_t gap_ns = now_ns - seen_ns - timeout_ns / 8;
  return gap_ns > 0 ? gap_ns : 0;
}

static uint32_t epoch_of(uint64_t tag) { return (uint32_t)(tag >> 32); }

static bny_rank_line *line_of(bny_exec *exec, int32_t rank) {
  return exec->transport->ops->line(exec->transport, rank);
}

static bool has_begun(bny_exec *exec, int32_t rank) {
  uint64_t started = atomic_load_explicit(&line_of(exec, rank)->started, memory_order_acquire);
  return (int32_t)(epoch_of(started) - (uint32_t)exec->epoch) >= 0;
}

static bool has_finished(bny_exec *exec, int32_t rank) {
  return atomic_load_explicit(&line_of(exec, rank)->done, memory_order_acquire) >= exec->epoch;
}

/* Returns true if the message from `next` for which `rank` waits has arrived. */
static bool is_met(bny_exec *exec, int32_t rank, int32_t next, int32_t slot) {
  bny_transport *transport = exec->transport;
  uint32_t epoch = epoch_of(atomic_load_explicit(&line_of(exec, rank)->started, memory_order_acquire));
  if (slot < 0) { /* waits for `next` to finish the run before last */
    uint64_t done = atomic_load_explicit(&line_of(exec, next)->done, memory_order_acquire);
    return (int32_t)((uint32_t)done - (epoch - 2)) >= 0;
  }
  uint64_t tag =
      atomic_load_explicit(transport->ops->signal(transport, next, slot, (int)(epoch & 1)), memory_order_acquire);
  return epoch_of(tag) == epoch;
}

/* Between nodes each rank reports its suspect to the ranks that it is connected with; it may have learned the suspect
 * from another rank. So a waiting rank need not be connected with the culprit. */
static int32_t ask_for_culprit(bny_exec *exec, int32_t suspect) {
  if (!exec->transport->ops->probe(exec->transport, suspect)) return suspect;
  int32_t named = (int32_t)atomic_load_explicit(&line_of(exec, suspect)->suspect, memory_order_acquire) - 1;
  return named >= 0 && named < exec->transport->nranks && named != exec->transport->rank ? named : suspect;
}

/* Follows the chain of waits to the rank that waits for nobody: it delays all others. Ranks may be in different runs. A
 * wait that is already met does not count, because its rank was stopped before it noticed. */
static int32_t find_culprit(bny_exec *exec, int32_t suspect) {
  bny_transport *transport = exec->transport;
  if (transport->ops->probe) return ask_for_culprit(exec, suspect);
  for (int32_t hops = 0; hops < transport->nranks; hops++) {
    uint64_t waiting = atomic_load_explicit(&line_of(exec, suspect)->waiting, memory_order_acquire);
    int32_t next = (int32_t)(waiting >> 32) - 1, slot = (int32_t)(uint32_t)waiting;
    if (next < 0 || next >= transport->nranks || slot >= transport->slots_max) return suspect;
    if (is_met(exec, suspect, next, slot)) return suspect;
    suspect = next;
  }
  return suspect;
}

static banyan_status fail_deadline(bny_exec *exec, const bny_patience *patience, int32_t peer) {
  const bny_transport_ops *ops = exec->transport->ops;
  int32_t culprit = find_culprit(exec, peer);
  if (culprit == exec->transport->rank) culprit = peer;
  bool is_ours;
  const char *why = ops->connect_error ? ops->connect_error(exec->transport, culprit, &is_ours) : NULL;
  char pauses[80] = "";
  if (patience->begun_ns > patience->first_ns)
    snprintf(pauses, sizeof pauses, ", %.3f s with pauses that count only in part",
             (double)(patience->seen_ns - patience->first_ns) * 1e-9);
  return bny_exec_fail(
      exec, BANYAN_ERR_TIMEOUT, culprit, "rank %d %s within %.3f s%s (operation %llu of this communicator)%s%s",
      culprit,
      has_begun(exec, culprit) ? "began the collective but did not continue it" : "did not reach the collective",
      (double)exec->timeout_ns * 1e-9, pauses, (unsigned long long)exec->epoch, why ? "; " : "", why ? why : "");
}

/* Returns true if the peer is in another call, or has finished this run without the message that this rank's call
 * expects of it. A rank that begins a run has sent everything of the one before. */
static bool disagrees(bny_exec *exec, int32_t peer, int32_t slot) {
  uint64_t own = atomic_load_explicit(&exec->line->started, memory_order_relaxed);
  uint64_t started = atomic_load_explicit(&line_of(exec, peer)->started, memory_order_acquire);
  if (epoch_of(started) == epoch_of(own)) return started != own;
  if (slot < 0 || !has_finished(exec, peer)) return false;
  bny_transport *transport = exec->transport;
  const bny_signal *signal = transport->ops->signal(transport, peer, slot, (int)(exec->epoch & 1));
  return atomic_load_explicit(signal, memory_order_acquire) != own;
}

static banyan_status fail_mismatch(bny_exec *exec, const bny_notice *notice, int32_t peer) {
  char difference[160];
  if (bny_notice_difference(exec->transport, peer, notice, exec->transport->rank, difference, sizeof difference))
    return bny_exec_fail(exec, BANYAN_ERR_MISMATCH, peer, "rank %d is in another call: %s", peer, difference);
  banyan_status status = bny_exec_blame_rejection(exec, peer);
  if (status != BANYAN_OK) return status;
  return bny_exec_fail(exec, BANYAN_ERR_MISMATCH, peer, "rank %d made other calls than this rank before operation %llu",
                       peer, (unsigned long long)exec->epoch);
}

/* Returns whether a dead rank delays others. A rank that finished this run before it died delays none, but another dead
 * rank may. A rank of another node may have finished and not reported it, so its death matters only to the ranks that
 * wait for it. Before ranks are connected none can have finished, so any death matters: otherwise the ranks that notice
 * it first would leave and be blamed. */
static bool holds_up(bny_exec *exec, int32_t dead, int32_t peer, int32_t slot) {
  bny_transport *transport = exec->transport;
  bool is_same_node = bny_transport_is_same_node(transport, dead);
  return transport->ops->is_dead(transport, dead) && !has_finished(exec, dead) &&
         (is_same_node || dead == peer || slot == BNY_WAIT_REACH);
}

static banyan_status look_for_deaths(bny_exec *exec, int32_t peer, int32_t slot, int32_t dead) {
  int32_t nranks = exec->transport->nranks;
  while (dead >= 0 && !holds_up(exec, dead, peer, slot)) dead = dead + 1 < nranks ? dead + 1 : -1;
  const bny_transport_ops *ops = exec->transport->ops;
  bool is_ours = false; /* the fault is on this side */
  const char *why = dead >= 0 && ops->connect_error ? ops->connect_error(exec->transport, dead, &is_ours) : NULL;
  int32_t rank = exec->transport->rank;
  if (why && is_ours)
    return bny_exec_fail(exec, BANYAN_ERR_SYSTEM, rank, "rank %d has no connection to rank %d (%s)", rank, dead, why);
  if (why)
    return bny_exec_fail(exec, BANYAN_ERR_PEER, dead, "rank %d cannot be reached from rank %d, or has died (%s)", dead,
                         rank, why);
  if (dead >= 0)
    return bny_exec_fail(exec, BANYAN_ERR_PEER, dead, "rank %d died in the middle of operation %llu", dead,
                         (unsigned long long)exec->epoch);
  if (atomic_load_explicit(&line_of(exec, peer)->left, memory_order_acquire) && !has_finished(exec, peer))
    return bny_exec_fail(exec, BANYAN_ERR_PEER, peer, "rank %d destroyed its communicator without operation %llu", peer,
                         (unsigned long long)exec->epoch);
  return BANYAN_OK;
}

/* `timeout_ns`: the deadline from which the share of a pause follows. */
static banyan_status look(bny_exec *exec, const bny_notice *notice, bny_patience *patience, int32_t peer, int32_t slot,
                          int64_t timeout_ns) {
  banyan_status status = bny_exec_check(exec, notice);
  if (status == BANYAN_OK && atomic_load_explicit(exec->rejected, memory_order_acquire))
    status = bny_exec_look_for_rejections(exec, notice);
  if (status != BANYAN_OK) return status;
  int64_t now_ns = bny_clock_ns();
  if (!patience->since_ns) {
    if (!patience->first_ns) patience->first_ns = patience->begun_ns = patience->looked_ns = patience->seen_ns = now_ns;
    patience->since_ns = now_ns;
    patience->sleep_ns = SLEEP_FIRST_NS;
    uint64_t waiting = (uint64_t)(uint32_t)(peer + 1) << 32 | (uint32_t)slot;
    atomic_store_explicit(&exec->line->waiting, waiting, memory_order_release);
    bny_record_long_wait(&exec->record, exec->epoch, waiting, now_ns);
  }
  patience->begun_ns += bny_wait_gap(patience->seen_ns, now_ns, timeout_ns);
  patience->seen_ns = now_ns;
  atomic_store_explicit(&exec->line->looks, atomic_load_explicit(&exec->line->looks, memory_order_relaxed) + 1,
                        memory_order_relaxed);
  const bny_transport_ops *ops = exec->transport->ops;
  if (disagrees(exec, peer, slot) && (!ops->probe || ops->probe(exec->transport, peer))) {
    status = bny_exec_look_for_rejections(exec, notice); /* made since the look above */
    return status == BANYAN_OK ? fail_mismatch(exec, notice, peer) : status;
  }
  if (now_ns - patience->looked_ns >= LOOK_EVERY_NS) {
    patience->looked_ns = now_ns;
    if (exec->record.metrics) bny_metrics_look(exec->record.metrics, exec->record.flight);
    status = look_for_deaths(exec, peer, slot, ops->sleep(exec->transport, 0));
    if (status != BANYAN_OK) return status;
    if (ops->probe)
      atomic_store_explicit(&exec->line->suspect, (uint64_t)find_culprit(exec, peer) + 1, memory_order_release);
  }
  if (now_ns - patience->begun_ns >= exec->timeout_ns) return fail_deadline(exec, patience, peer);
  return BANYAN_OK;
}

banyan_status bny_wait_look(bny_exec *exec, const bny_notice *notice, bny_patience *patience, int32_t peer,
                            int32_t slot) {
  int64_t timeout_ns =
      exec->timeout_ns < INT64_MAX / 4 ? 4 * exec->timeout_ns : INT64_MAX; /* half instead of an eighth */
  return look(exec, notice, patience, peer, slot, timeout_ns);
}

banyan_status bny_wait_round(bny_exec *exec, const bny_notice *notice, bny_patience *patience, int32_t peer,
                             int32_t slot) {
  banyan_status status = look(exec, notice, patience, peer, slot, exec->timeout_ns);
  if (status != BANYAN_OK) return status;
  if (bny_clock_ns() - patience->since_ns < exec->yield_ns) {
    sched_yield();
    return BANYAN_OK;
  }
  if (bny_interrupted()) {
    bny_exec_abort(exec, "interrupted");
    return bny_exec_check(exec, NULL);
  }
  int64_t left_ns = patience->begun_ns + exec->timeout_ns - bny_clock_ns();
  int64_t sleep_ns = patience->sleep_ns < left_ns ? patience->sleep_ns : left_ns;
  int32_t dead = exec->transport->ops->sleep(exec->transport, sleep_ns > 0 ? sleep_ns : 0);
  patience->sleep_ns = 2 * patience->sleep_ns < exec->sleep_ns ? 2 * patience->sleep_ns : exec->sleep_ns;
  if (dead < 0) return BANYAN_OK;
  status = look_for_deaths(exec, peer, slot, dead);
  /* The kernel reports an excused death again and again, so this rank sleeps by itself. */
  if (status == BANYAN_OK) nanosleep(&(struct timespec){0, SLEEP_FIRST_NS}, NULL);
  return status;
}

banyan_status bny_wait_end(bny_exec *exec, bny_patience *patience) {
  banyan_status status = patience->since_ns ? bny_exec_check_process(exec) : BANYAN_OK;
  if (!patience->since_ns || status != BANYAN_OK) return status;
  uint64_t waiting = atomic_load_explicit(&exec->line->waiting, memory_order_relaxed);
  bny_record_long_wait_end(&exec->record, exec->epoch, waiting);
  atomic_store_explicit(&exec->line->waiting, 0, memory_order_relaxed);
  atomic_store_explicit(&exec->line->suspect, 0, memory_order_relaxed);
  patience->since_ns = 0;
  return BANYAN_OK;
}
