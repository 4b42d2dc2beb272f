/* SPDX-License-Identifier: Apache-2.0
 * Runs a bound plan: takes its steps, waits for peers, and resumes where an earlier call stopped. */
#include <stdbool.h>
#include <string.h>

#include "exec/exec.h"
#include "exec/payload.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/thread.h"

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* One wait iteration after spinning has failed. */
static banyan_status wait_round(bny_run *run, bool block, int32_t peer, int32_t slot) {
  const bny_binding *binding = run->binding;
  banyan_status status = binding->proxy ? binding->proxy->look(binding->proxy_context) : BANYAN_OK;
  if (status != BANYAN_OK) return status;
  return block ? bny_wait_round(run->exec, &run->notice, &run->patience, peer, slot)
               : bny_wait_look(run->exec, &run->notice, &run->patience, peer, slot);
}

/* Waits until kernels have made a slot, or ended the run. */
static banyan_status wait_kernels(bny_run *run, int32_t slot, bool block, bool *made) {
  enum { PROGRESS_SPINS = 16 };
  bny_exec *exec = run->exec;
  const bny_proxy_ops *proxy = run->binding->proxy;
  void *context = run->binding->proxy_context;
  int32_t rank = exec->transport->rank;
  if (proxy->is_made(context, slot)) {
    *made = true;
    return BANYAN_OK;
  }
  uint64_t since = bny_record_wait_begin(&exec->record);
  for (uint32_t spins = 0; !proxy->is_made(context, slot); spins++) {
    /* Answers peers during any wait. */
    if (spins % PROGRESS_SPINS == 0) exec->progress(exec->transport);
    bny_thread_pause();
    if (block && spins < exec->spins && !atomic_load_explicit(exec->fault, memory_order_relaxed)) continue;
    banyan_status status = wait_round(run, block, proxy->suspect(context), BNY_WAIT_PEER);
    if (status != BANYAN_OK || !block) return status;
  }
  banyan_status status = bny_wait_end(exec, &run->patience);
  if (status != BANYAN_OK) return status;
  if (since) bny_record_wait_end(&exec->record, since, exec->epoch, "wait for kernels of rank", rank, 0);
  *made = true;
  return BANYAN_OK;
}

void bny_run_rest(bny_run *run) {
  bny_wait_end(run->exec, &run->patience);
  run->patience = (bny_patience){0};
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* A rank that sent to this rank in the last run must learn that its messages were read. Ranks that receive from this
 * rank learn it from that. */
static void acknowledge(const bny_run *run) {
  bny_exec *exec = run->exec;
  bny_readers *owed = &exec->owed;
  int32_t count = 0;
  for (int32_t i = 0; i < run->nreaders; i++) exec->sent_to[run->readers[i]] = exec->epoch;
  for (int32_t i = 0; i < owed->count; i++)
    if (exec->sent_to[owed->ranks[i]] != exec->epoch) owed->ranks[count++] = owed->ranks[i];
  if (count) exec->transport->ops->acknowledge(exec->transport, owed->ranks, count);
  owed->count = 0;
}

void bny_run_begin(bny_run *run) {
  bny_exec *exec = run->exec;
  exec->epoch++;
  /* The history covers all calls so far. A difference that its own run does not show therefore shows in every later
   * run. */
  uint64_t identity = (uint64_t)run->notice.tag << 32 ^ (uint64_t)exec->record.tag;
  exec->history = (uint32_t)bny_hash_add(exec->history, identity);
  run->tag = exec->epoch << 32 | exec->history;
  run->shift = run->first_place + (exec->epoch >> 1) % run->places * run->stride;
  run->next = 0;
  run->ready = false;
  run->patience = (bny_patience){0};
  run->report = (bny_run_report){.bytes_between_nodes = exec->transport->bytes_between_nodes};
  exec->run = run;
  bny_record_begin(&exec->record, &run->record, exec->epoch);
  bny_notice_publish(exec->call, &run->notice, exec->epoch, exec->record.tag);
  atomic_store_explicit(&exec->line->started, run->tag, memory_order_release);
  if (exec->owed.count) acknowledge(run);
}

/* Returns true once every peer that was sent slots by the run before last has finished it. */
static bool half_is_free(bny_exec *exec, int32_t *busy) {
  const bny_readers *readers = &exec->readers[exec->epoch & 1];
  for (int32_t i = 0; i < readers->count; i++) {
    int32_t rank = readers->ranks[i];
    if (exec->known_done[rank] >= readers->epoch) continue;
    bny_rank_line *line = exec->transport->ops->line(exec->transport, rank);
    uint64_t done = atomic_load_explicit(&line->done, memory_order_acquire);
    exec->known_done[rank] = done;
    if (done < readers->epoch) {
      *busy = rank;
      return false;
    }
  }
  return true;
}

static bool has_arrived(const bny_run *run, const bny_bound_step *bound) {
  return atomic_load_explicit(bound->arrived, memory_order_acquire) == run->tag;
}

/* Does the same for messages that arrive by progress. Progress enters the kernel and takes as long as many polls, so
 * memory of this node is polled in between. */
static bool poll_network(const bny_run *run, const bny_bound_step *bound, uint32_t spins) {
  enum { PROGRESS_SPINS = 16 };
  bny_exec *exec = run->exec;
  for (uint32_t i = 0;; i++) {
    if (has_arrived(run, bound)) return true;
    if (i > spins || atomic_load_explicit(exec->fault, memory_order_relaxed)) return false;
    if (bound->is_same_node && i % PROGRESS_SPINS) {
      bny_thread_pause();
      continue;
    }
    exec->progress(exec->transport);
    if (!bound->is_same_node) i += PROGRESS_SPINS - 1;
  }
}

static bool poll_arrival(const bny_run *run, const bny_bound_step *bound, uint32_t spins) {
  if (run->exec->progress) return poll_network(run, bound, spins);
  for (uint32_t i = 0; i < spins; i++) {
    if (has_arrived(run, bound)) return true;
    if (atomic_load_explicit(run->exec->fault, memory_order_relaxed)) return false;
    bny_thread_pause();
  }
  return has_arrived(run, bound);
}

/* A rank that comes so late that others may have given up reads what the network has brought. Otherwise their messages
 * could complete a run that has failed on all other ranks. */
static void catch_up(bny_exec *exec) {
  enum { CATCH_UP_NS = 2000000 };
  int64_t now_ns = bny_clock_ns(), until_ns = now_ns + CATCH_UP_NS;
  if (!exec->ended_ns || now_ns - exec->ended_ns < exec->timeout_ns / 2) return;
  while (bny_clock_ns() < until_ns && !atomic_load_explicit(exec->fault, memory_order_relaxed))
    exec->progress(exec->transport);
}

/* Waits until this half of the arena may be written, and records who will read it. */
static banyan_status wait_half(bny_run *run, bool block) {
  bny_exec *exec = run->exec;
  int32_t busy = -1;
  uint32_t spins = 0;
  uint64_t since = 0;
  if (run->ready) return BANYAN_OK;
  if (exec->progress && !run->patience.first_ns) catch_up(exec);
  banyan_status status = BANYAN_OK;
  if (atomic_load_explicit(exec->fault, memory_order_acquire)) status = bny_exec_check(exec, &run->notice);
  if (status != BANYAN_OK) return status;
  while (!half_is_free(exec, &busy)) {
    if (!since) since = bny_record_wait_begin(&exec->record);
    if (exec->progress) exec->progress(exec->transport);
    if (block && spins++ < exec->spins) {
      bny_thread_pause();
      continue;
    }
    status = wait_round(run, block, busy, BNY_WAIT_DONE);
    if (status != BANYAN_OK || !block) return status;
  }
  if (run->patience.since_ns) status = bny_wait_end(exec, &run->patience);
  if (status != BANYAN_OK) return status;
  if (since) bny_record_wait_end(&exec->record, since, exec->epoch, "wait for memory read by rank", busy, 0);
  bny_readers *readers = &exec->readers[exec->epoch & 1];
  readers->epoch = exec->epoch;
  readers->count = run->nreaders;
  for (int32_t i = 0; i < run->nreaders; i++) readers->ranks[i] = run->readers[i];
  run->ready = true;
  return BANYAN_OK;
}

/* The message must be what this plan expects. One with another length or offset belongs to another plan. */
static banyan_status check_landing(const bny_run *run, const bny_message *message, const bny_landing *landing) {
  uint64_t offset = message->what.offset + run->shift;
  size_t bytes = run->message_bytes[message - run->plan->messages];
  if (landing->bytes == bytes && (landing->offset == offset || !landing->bytes)) return BANYAN_OK;
  return bny_exec_fail(run->exec, BANYAN_ERR_PEER, message->peer,
                       "rank %d sent %llu bytes at %llu where %zu bytes at %llu were to come: it is broken",
                       message->peer, (unsigned long long)landing->bytes, (unsigned long long)landing->offset, bytes,
                       (unsigned long long)offset);
}

static banyan_status wait_message(bny_run *run, const bny_step *step, const bny_bound_step *bound, bool block,
                                  bool *arrived) {
  bny_exec *exec = run->exec;
  const bny_message *message = &run->plan->messages[step->message];
  size_t bytes = run->message_bytes[step->message];
  if (bytes == 0 && bny_run_is_empty(run, bytes)) {
    *arrived = true;
    return BANYAN_OK;
  }
  uint64_t since = has_arrived(run, bound) ? 0 : bny_record_wait_begin(&exec->record);
  while (!poll_arrival(run, bound, block ? exec->spins : 0)) {
    banyan_status status = wait_round(run, block, message->peer, message->slot);
    if (status != BANYAN_OK || !block) return status;
  }
  banyan_status ended = run->patience.since_ns ? bny_wait_end(exec, &run->patience) : BANYAN_OK;
  if (ended != BANYAN_OK) return ended;
  if (since) bny_record_wait_end(&exec->record, since, exec->epoch, "wait for rank", message->peer, bytes);
  /* The peer has begun this run, so it has finished the one before. */
  if (exec->known_done[message->peer] < exec->epoch - 1) exec->known_done[message->peer] = exec->epoch - 1;
  exec->agreed[message->peer] = exec->epoch;
  enum { PREFETCH_BYTES = 1024 };
  /* Prefetches the first lines together, so that they do not arrive one by one. */
  size_t ahead = bytes < PREFETCH_BYTES ? bytes : PREFETCH_BYTES;
  for (size_t i = 0; i < ahead; i += BNY_LINE_BYTES) __builtin_prefetch(bound->from_bytes + run->shift + i);
  *arrived = true;
  return bound->landing ? check_landing(run, message, bound->landing) : BANYAN_OK;
}

static void send_slot(bny_run *run, const bny_step *step) {
  bny_transport *transport = run->exec->transport;
  size_t bytes = run->slot_bytes[step->slot];
  if (bytes == 0 && bny_run_is_empty(run, bytes)) return;
  transport->ops->send(transport, run->tag, step->slot, run->plan->slots[step->slot].offset + run->shift, bytes,
                       &run->plan->peers[step->first], step->count);
  run->report.bytes_sent += bytes * (uint64_t)step->count;
  run->report.messages_sent += (uint64_t)step->count;
}

/* Waits until messages that the network still sends from this rank's memory are complete. */
static banyan_status settle(bny_run *run, bool block, bool *settled) {
  bny_exec *exec = run->exec;
  const bny_transport_ops *ops = exec->transport->ops;
  int32_t peer = -1;
  uint64_t since = 0;
  for (uint32_t spins = 0; !ops->flushed(exec->transport, NULL); spins++) {
    if (!since) since = bny_record_wait_begin(&exec->record);
    exec->progress(exec->transport);
    if (block && spins < exec->spins && !atomic_load_explicit(exec->fault, memory_order_relaxed)) continue;
    if (ops->flushed(exec->transport, &peer)) break;
    banyan_status status = wait_round(run, block, peer, BNY_WAIT_PEER);
    if (status != BANYAN_OK || !block) return status;
  }
  banyan_status ended = bny_wait_end(exec, &run->patience);
  if (ended != BANYAN_OK) return ended;
  if (since && peer >= 0)
    bny_record_wait_end(&exec->record, since, exec->epoch, "wait for messages taken by rank", peer, 0);
  *settled = true;
  return BANYAN_OK;
}

static banyan_status finish_network(bny_run *run, bool block, bool *settled) {
  banyan_status status = settle(run, block, settled);
  if (status != BANYAN_OK || !*settled) return status;
  bny_readers *owed = &run->exec->owed;
  owed->count = run->nsenders;
  for (int32_t i = 0; i < run->nsenders; i++) owed->ranks[i] = run->senders[i];
  return BANYAN_OK;
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

/* Functions that take steps return BANYAN_OK with *done false if a message is missing, and continue from there in the
 * next call. */

static banyan_status take_steps(bny_run *run, bool block, bool *done) {
  const bny_plan *plan = run->plan;
  bny_exec *exec = run->exec;
  int half = (int)(exec->epoch & 1);
  banyan_status status;
  for (; run->next < plan->nsteps; run->next++) {
    const bny_step *step = &plan->steps[run->next];
    const bny_bound_step *bound = &run->steps[half][run->next];
    bool arrived = false;
    if (run->record.levels) bny_record_step(&exec->record, &run->record, exec->epoch, run->next);
    switch (step->kind) {
    case BNY_STEP_COPY:
      status = run->payload->copy(run, run->next, bound);
      if (status != BANYAN_OK) return status;
      break;
    case BNY_STEP_MERGE: run->payload->merge(run, run->next, half); break;
    case BNY_STEP_SEND: send_slot(run, step); break;
    case BNY_STEP_WAIT:
      status = wait_message(run, step, bound, block, &arrived);
      if (status != BANYAN_OK || !arrived) return status;
      break;
    case BNY_STEP_DELIVER: run->payload->deliver(run, run->next, half); break;
    }
  }
  *done = true;
  return BANYAN_OK;
}

/* Runs the exchange between nodes for devices. Kernels make the slots that are sent and read the messages that have
 * arrived, so the plan has only SEND and WAIT steps. */
static banyan_status take_proxy_steps(bny_run *run, bool block, bool *done) {
  const bny_plan *plan = run->plan;
  bny_exec *exec = run->exec;
  banyan_status status;
  for (; run->next < plan->nsteps; run->next++) {
    const bny_step *step = &plan->steps[run->next];
    bool met = false;
    if (run->record.levels) bny_record_step(&exec->record, &run->record, exec->epoch, run->next);
    if (step->kind == BNY_STEP_SEND) {
      status = wait_kernels(run, step->slot, block, &met);
      if (status != BANYAN_OK || !met) return status;
      send_slot(run, step);
    } else {
      status = wait_message(run, step, &run->steps[exec->epoch & 1][run->next], block, &met);
      if (status != BANYAN_OK || !met) return status;
      run->binding->proxy->notify(run->binding->proxy_context, step->message);
    }
  }
  *done = true;
  return BANYAN_OK;
}

banyan_status bny_run_progress(bny_run *run, bool block, const bny_run_report **report) {
  bny_exec *exec = run->exec;
  bool is_proxy = run->binding->proxy != NULL, taken = false, settled = !exec->progress, read = !is_proxy;
  *report = NULL;
  banyan_status status = wait_half(run, block);
  if (status != BANYAN_OK || !run->ready) return status;
  status = is_proxy ? take_proxy_steps(run, block, &taken) : take_steps(run, block, &taken);
  if (status != BANYAN_OK || !taken) return status;
  /* Within a node a message is sent when its signal is stored. */
  if (!settled) status = finish_network(run, block, &settled);
  if (status != BANYAN_OK || !settled) return status;
  if (!read) status = wait_kernels(run, -1, block, &read); /* kernels read messages of peers until then */
  if (status != BANYAN_OK || !read) return status;
  atomic_store_explicit(&exec->line->done, exec->epoch, memory_order_release);
  run->report.bytes_between_nodes = exec->transport->bytes_between_nodes - run->report.bytes_between_nodes;
  bny_record_end(&exec->record, &run->record, exec->epoch);
  if (exec->progress) exec->ended_ns = bny_clock_ns();
  exec->run = NULL;
  *report = &run->report;
  return BANYAN_OK;
}
