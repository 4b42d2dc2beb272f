/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"
#include "exec/store.h"
#include "exec/wait.h"
#include "status.h"

/* A piece of bytes to copy: from an offset within a source slot to one within the caller's memory. */
typedef struct piece {
  size_t from, to, bytes;
} piece;

/* A step with its addresses resolved, for one half. */
typedef struct bound_step {
  bny_wire_view to;          /* COPY, MERGE: destination of rows */
  char *to_bytes;            /* the same for bytes */
  const char *from_bytes;    /* MERGE, DELIVER of bytes; WAIT: the message */
  const bny_signal *arrived; /* WAIT */
  const bny_landing *landing; /* WAIT, from another host: what came of the message */
  bool is_near;              /* WAIT: the sender shares memory with this rank */
} bound_step;

struct bny_run {
  bny_exec *exec;
  const bny_plan *plan;
  bny_call call;
  const bny_binding *binding;
  bny_box *boxes;          /* [nsteps] */
  bound_step *steps[2];    /* [nsteps] of each half */
  bny_wire_view *views[2]; /* [nsources] of each half */
  piece *pieces;           /* of deliveries of bytes, in the order of steps */
  int32_t *piece_first;    /* [nsteps + 1] */
  int32_t *readers;        /* every rank that is sent slots */
  int32_t nreaders;
  int32_t *senders;        /* ranks of other hosts that send slots to this one */
  int32_t nsenders;
  size_t places, stride;   /* within a half: how many, and bytes from one to the next */
  size_t first_place;      /* bytes from the half's begin */
  size_t shift;            /* of the place of this run */
  bny_wire_view *moved;    /* scratch: views of one merge, shifted */
  uint64_t tag;
  int32_t next;            /* step */
  bool ready;              /* the half may be written */
  bny_patience patience;
  uint64_t bytes_sent, messages_sent;
  uint64_t bytes_between_hosts; /* while it runs: of the transport when it began */
  bny_run_record record;
};

/* ---- binding ------------------------------------------------------------------------------------------------------- */

static bny_wire_view view_of(const bny_plan *plan, const bny_slot *slot, const char *outbox, const bny_slice *slice) {
  bny_wire_layout layout = bny_wire_layout_make(plan->wire, bny_slice_rows(&slot->slice), plan->value_dim);
  int64_t row = (int64_t)(slice->token0 - slot->slice.token0) * slot->slice.heads + slice->head0 - slot->slice.head0;
  char *at = (char *)(uintptr_t)outbox + slot->offset;
  size_t element_bytes = bny_wire_formats[plan->wire].element_bytes;
  return (bny_wire_view){
    .m = (float *)(void *)(at + layout.m) + row,
    .d = (float *)(void *)(at + layout.d) + row,
    .n = at + layout.n + (size_t)row * (size_t)plan->value_dim * element_bytes,
    .token_stride = slot->slice.heads,
  };
}

static void resolve_source(const bny_run *run, const bny_source *source, int half, const bny_slot **slot,
                           const char **outbox) {
  bny_transport *transport = run->exec->transport;
  if (source->message < 0) {
    *slot = &run->plan->slots[source->slot];
    *outbox = transport->ops->outbox(transport, half);
  } else {
    const bny_message *message = &run->plan->messages[source->message];
    *slot = &message->what;
    *outbox = transport->ops->peer_outbox(transport, message->peer, half);
  }
}

static bool reads_sources(const bny_step *step) {
  return step->kind == BNY_STEP_MERGE || step->kind == BNY_STEP_DELIVER;
}

static void bind_step(bny_run *run, int32_t index, int half) {
  const bny_plan *plan = run->plan;
  const bny_step *step = &plan->steps[index];
  bound_step *bound = &run->steps[half][index];
  bny_transport *transport = run->exec->transport;
  bool rows = plan->collective == BNY_COMBINE;
  if (step->kind == BNY_STEP_COPY || step->kind == BNY_STEP_MERGE) {
    const bny_slot *slot = &plan->slots[step->slot];
    char *outbox = transport->ops->outbox(transport, half);
    if (rows) bound->to = view_of(plan, slot, outbox, &step->slice);
    else bound->to_bytes = outbox + slot->offset + (step->slice.byte0 - slot->slice.byte0);
  }
  for (int32_t i = 0; reads_sources(step) && i < step->count; i++) {
    const bny_slot *slot;
    const char *outbox;
    resolve_source(run, &plan->sources[step->first + i], half, &slot, &outbox);
    if (rows) run->views[half][step->first + i] = view_of(plan, slot, outbox, &step->slice);
    else bound->from_bytes = outbox + slot->offset + (step->slice.byte0 - slot->slice.byte0);
  }
  if (step->kind == BNY_STEP_WAIT) {
    const bny_message *message = &plan->messages[step->message];
    bound->is_near = !transport->ops->is_near || transport->ops->is_near(transport, message->peer);
    bound->landing = bound->is_near ? NULL : transport->ops->landing(transport, message->peer, message->slot, half);
    bound->arrived = transport->ops->signal(transport, message->peer, message->slot, half);
    bound->from_bytes = transport->ops->peer_outbox(transport, message->peer, half) + message->what.offset;
  }
}

/* Pieces of the caller's memory that a delivery of bytes falls into; counts only if pieces is NULL. */
static int32_t cut_pieces(const bny_binding *binding, int32_t nranks, const bny_slice *slice, piece *pieces) {
  if (!binding->piece_counts) {
    if (pieces) *pieces = (piece){0, slice->byte0 - binding->out_byte0, slice->bytes};
    return slice->bytes ? 1 : 0;
  }
  int32_t count = 0;
  size_t begin = 0;
  for (int32_t r = 0; r < nranks; begin += binding->piece_counts[r], r++) {
    size_t first = begin > slice->byte0 ? begin : slice->byte0;
    size_t end = begin + binding->piece_counts[r], slice_end = slice->byte0 + slice->bytes;
    if (end > slice_end) end = slice_end;
    if (first >= end) continue;
    if (pieces)
      pieces[count] = (piece){first - slice->byte0, binding->piece_offsets[r] + (first - begin), end - first};
    count++;
  }
  return count;
}

static banyan_status bind_pieces(bny_run *run) {
  const bny_plan *plan = run->plan;
  run->piece_first = calloc((size_t)plan->nsteps + 1, sizeof *run->piece_first);
  if (!run->piece_first) return bny_fail(BANYAN_ERR_MEMORY, "out of memory to bind a plan");
  bool rows = plan->collective == BNY_COMBINE;
  for (int32_t i = 0; i < plan->nsteps; i++) {
    bool cuts = !rows && plan->steps[i].kind == BNY_STEP_DELIVER;
    int32_t count = cuts ? cut_pieces(run->binding, plan->nranks, &plan->steps[i].slice, NULL) : 0;
    run->piece_first[i + 1] = run->piece_first[i] + count;
  }
  run->pieces = calloc((size_t)run->piece_first[plan->nsteps] + 1, sizeof *run->pieces);
  if (!run->pieces) return bny_fail(BANYAN_ERR_MEMORY, "out of memory to bind a plan");
  for (int32_t i = 0; i < plan->nsteps; i++)
    if (run->piece_first[i + 1] > run->piece_first[i])
      cut_pieces(run->binding, plan->nranks, &plan->steps[i].slice, &run->pieces[run->piece_first[i]]);
  return BANYAN_OK;
}

/* Messages of a few lines are better off in lines that are near. */
enum { ROUND_STRIDE_MIN = 2048, PLACE_ALIGNMENT = 1024, PREFETCH_BYTES = 1024 };

/* Messages to a socket do not begin at a page: the kernel copies them, behind a header of few bytes, into a page of its own,
 * and on AMD's Zen 4 `rep movsb` takes 28 times as long if the target is a few bytes further into its page than the source is
 * into its own (16.6 KB: 4.7 us instead of 0.17). */
enum { NETWORK_PAGE_OFFSET = 2048 };

/* The same on every rank: made of the bound that no rank's plan exceeds. */
static void set_places(bny_run *run) {
  size_t half_bytes = run->exec->transport->half_bytes;
  size_t round_bytes = run->exec->round_bytes / 2;
  if (round_bytes > half_bytes) round_bytes = half_bytes;
  run->stride = (run->plan->outbox_bound + PLACE_ALIGNMENT - 1) / PLACE_ALIGNMENT * PLACE_ALIGNMENT;
  bool goes_round = run->stride >= ROUND_STRIDE_MIN && run->stride <= round_bytes;
  run->places = goes_round ? round_bytes / run->stride : 1;
  bool has_room = run->plan->outbox_bound + NETWORK_PAGE_OFFSET <= half_bytes;
  run->first_place = run->exec->progress && has_room ? NETWORK_PAGE_OFFSET : 0;
}

/* Every peer once. */
static banyan_status bind_peers(bny_run *run) {
  const bny_plan *plan = run->plan;
  bny_transport *transport = run->exec->transport;
  const bny_transport_ops *ops = transport->ops;
  run->readers = calloc((size_t)plan->npeers + 1, sizeof *run->readers);
  run->senders = calloc((size_t)plan->nmessages + 1, sizeof *run->senders);
  bool *seen = calloc((size_t)plan->nranks, sizeof *seen);
  banyan_status status = BANYAN_OK;
  if (!run->readers || !run->senders || !seen) status = bny_fail(BANYAN_ERR_MEMORY, "out of memory to bind a plan");
  for (int32_t i = 0; status == BANYAN_OK && i < plan->npeers; i++) {
    if (!seen[plan->peers[i]]) run->readers[run->nreaders++] = plan->peers[i];
    seen[plan->peers[i]] = true;
  }
  if (seen) memset(seen, 0, (size_t)plan->nranks * sizeof *seen);
  for (int32_t i = 0; ops->admit && status == BANYAN_OK && i < plan->nmessages; i++) {
    int32_t peer = plan->messages[i].peer;
    status = ops->admit(transport, peer);
    if (!seen[peer] && !ops->is_near(transport, peer)) run->senders[run->nsenders++] = peer;
    seen[peer] = true;
  }
  free(seen);
  return status;
}

banyan_status bny_run_make(bny_exec *exec, const bny_plan *plan, const bny_call *call, const bny_binding *binding,
                           bny_run **run) {
  bny_run *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory to bind a plan");
  *made = (bny_run){.exec = exec, .plan = plan, .call = *call, .binding = binding, .next = plan->nsteps};
  size_t steps = (size_t)plan->nsteps + 1, sources = (size_t)plan->nsources + 1;
  made->boxes = calloc(steps, sizeof *made->boxes);
  made->moved = calloc(BNY_MERGE_SOURCES_MAX, sizeof *made->moved);
  set_places(made);
  banyan_status status = bind_pieces(made);
  if (status == BANYAN_OK) status = bind_peers(made);
  if (status == BANYAN_OK) status = bny_record_bind(&exec->record, plan, call, &made->record);
  for (int half = 0; half < 2; half++) {
    made->steps[half] = calloc(steps, sizeof *made->steps[half]);
    made->views[half] = calloc(sources, sizeof *made->views[half]);
    if (!made->boxes || !made->moved || !made->steps[half] || !made->views[half])
      status = bny_fail(BANYAN_ERR_MEMORY, "out of memory to bind a plan of %d steps", plan->nsteps);
  }
  if (status != BANYAN_OK) {
    bny_run_free(made);
    return status;
  }
  for (int32_t i = 0; i < plan->nsteps; i++) {
    const bny_slice *slice = &plan->steps[i].slice;
    made->boxes[i] = (bny_box){slice->tokens, slice->heads, plan->value_dim};
    bind_step(made, i, 0);
    bind_step(made, i, 1);
  }
  *run = made;
  return BANYAN_OK;
}

void bny_run_free(bny_run *run) {
  if (!run) return;
  for (int half = 0; half < 2; half++) {
    free(run->steps[half]);
    free(run->views[half]);
  }
  free(run->boxes);
  free(run->moved);
  free(run->pieces);
  free(run->piece_first);
  free(run->readers);
  free(run->senders);
  bny_record_release(&run->record);
  if (run->exec->run == run) run->exec->run = NULL;
  free(run);
}

void bny_run_relabel(bny_run *run, const bny_call *call) {
  run->call = *call;
  run->record.note.collective = bny_call_name(call);
}

size_t bny_run_place(const bny_run *run, char *text, size_t bytes) {
  const bny_plan *plan = run->plan;
  size_t length = 0;
  bny_append(text, bytes, &length, "operation %llu: %s, %llu bytes by %s", (unsigned long long)run->exec->epoch,
             run->record.note.collective, (unsigned long long)run->record.note.bytes, run->record.note.algorithm);
  if (run->next >= plan->nsteps) return length;
  bny_append(text, bytes, &length, ", step %d of %d", run->next + 1, plan->nsteps);
  const bny_step *step = &plan->steps[run->next];
  if (!run->ready) bny_append(text, bytes, &length, ", at its beginning");
  else if (step->kind == BNY_STEP_WAIT)
    bny_append(text, bytes, &length, ", waiting for rank %d", plan->messages[step->message].peer);
  return length;
}

uint64_t bny_run_bytes_sent(const bny_run *run) { return run->bytes_sent; }
uint64_t bny_run_messages_sent(const bny_run *run) { return run->messages_sent; }
uint64_t bny_run_bytes_between_hosts(const bny_run *run) { return run->bytes_between_hosts; }

uint64_t bny_run_arena_bytes(const bny_run *run) {
  return 2 * (run->places > 1 ? run->places * run->stride : run->plan->outbox_bytes);
}

/* ---- running ------------------------------------------------------------------------------------------------------- */

/* Whoever sent to this rank in the last run must know that it was read. Those that this run sends to learn it from that. */
static void acknowledge(const bny_run *run) {
  bny_exec *exec = run->exec;
  bny_readers *owed = &exec->owed;
  int32_t count = 0;
  for (int32_t i = 0; i < run->nreaders; i++) exec->told[run->readers[i]] = exec->epoch;
  for (int32_t i = 0; i < owed->count; i++)
    if (exec->told[owed->ranks[i]] != exec->epoch) owed->ranks[count++] = owed->ranks[i];
  if (count) exec->transport->ops->acknowledge(exec->transport, owed->ranks, count);
  owed->count = 0;
}

void bny_run_begin(bny_run *run) {
  bny_exec *exec = run->exec;
  exec->epoch++;
  /* Of all calls so far, so that a difference shows in every later run too, if it did not in its own. */
  exec->history = (exec->history ^ run->call.tag) * 0x9e3779b1u;
  exec->history ^= exec->history >> 15;
  run->tag = exec->epoch << 32 | exec->history;
  run->shift = run->first_place + (exec->epoch >> 1) % run->places * run->stride;
  run->next = 0;
  run->ready = false;
  run->patience = (bny_patience){0};
  run->bytes_sent = run->messages_sent = 0;
  run->bytes_between_hosts = exec->transport->bytes_between_hosts;
  exec->run = run;
  bny_record_begin(&exec->record, &run->record, exec->epoch);
  bny_call_publish(exec->transport, &run->call);
  atomic_store_explicit(&exec->line->started, run->tag, memory_order_release);
  if (exec->owed.count) acknowledge(run);
}

/* True once every peer that was sent slots by the run before last has finished it. */
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

static void note_readers(const bny_run *run) {
  bny_readers *readers = &run->exec->readers[run->exec->epoch & 1];
  readers->epoch = run->exec->epoch;
  readers->count = run->nreaders;
  for (int32_t i = 0; i < run->nreaders; i++) readers->ranks[i] = run->readers[i];
}

static bool has_arrived(const bny_run *run, const bound_step *bound) {
  return atomic_load_explicit(bound->arrived, memory_order_acquire) == run->tag;
}

/* The same where messages come in by progress, which enters the kernel and takes as long as many polls. Memory of this host
 * is looked at in between. */
static bool poll_network(const bny_run *run, const bound_step *bound, uint32_t spins) {
  enum { PROGRESS_SPINS = 16 };
  bny_exec *exec = run->exec;
  for (uint32_t i = 0;; i++) {
    if (has_arrived(run, bound)) return true;
    if (i > spins || atomic_load_explicit(exec->fault, memory_order_relaxed)) return false;
    if (bound->is_near && i % PROGRESS_SPINS) {
      bny_wait_pause();
      continue;
    }
    exec->progress(exec->transport);
    if (!bound->is_near) i += PROGRESS_SPINS - 1;
  }
}

/* Polls for a while. */
static bool poll_arrival(const bny_run *run, const bound_step *bound, uint32_t spins) {
  if (run->exec->progress) return poll_network(run, bound, spins);
  for (uint32_t i = 0; i < spins; i++) {
    if (has_arrived(run, bound)) return true;
    if (atomic_load_explicit(run->exec->fault, memory_order_relaxed)) return false;
    bny_wait_pause();
  }
  return has_arrived(run, bound);
}

static banyan_status wait_half(bny_run *run, bool block, bool *ready) {
  bny_exec *exec = run->exec;
  int32_t busy = -1;
  uint32_t spins = 0;
  uint64_t since = bny_record_wait_begin(&exec->record);
  while (!half_is_free(exec, &busy)) {
    if (exec->progress) exec->progress(exec->transport);
    if (block && spins++ < exec->spins) {
      bny_wait_pause();
      continue;
    }
    banyan_status status = block ? bny_wait_round(exec, &run->call, &run->patience, busy, BNY_WAIT_DONE)
                                 : bny_wait_look(exec, &run->call, &run->patience, busy, BNY_WAIT_DONE);
    if (status != BANYAN_OK || !block) return status;
  }
  bny_wait_end(exec, &run->patience);
  if (busy >= 0) bny_record_wait_end(&exec->record, since, exec->epoch, "wait for memory read by rank", busy, 0);
  note_readers(run);
  *ready = true;
  return BANYAN_OK;
}

/* What is read here must be what was sent: a message of another length or place is none of this plan. */
static banyan_status check_landing(const bny_run *run, const bny_message *message, const bny_landing *landing) {
  uint64_t offset = message->what.offset + run->shift;
  if (landing->bytes == message->what.bytes && (landing->offset == offset || !landing->bytes)) return BANYAN_OK;
  return bny_exec_fail(run->exec, BANYAN_ERR_PEER, message->peer,
                       "rank %d sent %llu bytes at %llu where %zu bytes at %llu were to come: it is broken", message->peer,
                       (unsigned long long)landing->bytes, (unsigned long long)landing->offset, message->what.bytes,
                       (unsigned long long)offset);
}

static banyan_status wait_message(bny_run *run, const bny_step *step, const bound_step *bound, bool block, bool *arrived) {
  bny_exec *exec = run->exec;
  const bny_message *message = &run->plan->messages[step->message];
  uint64_t since = has_arrived(run, bound) ? 0 : bny_record_wait_begin(&exec->record);
  while (!poll_arrival(run, bound, block ? exec->spins : 0)) {
    banyan_status status = block ? bny_wait_round(exec, &run->call, &run->patience, message->peer, message->slot)
                                 : bny_wait_look(exec, &run->call, &run->patience, message->peer, message->slot);
    if (status != BANYAN_OK || !block) return status;
  }
  bny_wait_end(exec, &run->patience);
  bny_record_wait_end(&exec->record, since, exec->epoch, "wait for rank", message->peer, message->what.bytes);
  /* It has begun this run, so it has finished the one before. */
  if (exec->known_done[message->peer] < exec->epoch - 1) exec->known_done[message->peer] = exec->epoch - 1;
  /* Its first lines come together, not one after what was computed from the other. */
  size_t ahead = message->what.bytes < PREFETCH_BYTES ? message->what.bytes : PREFETCH_BYTES;
  for (size_t i = 0; i < ahead; i += BNY_LINE_BYTES) __builtin_prefetch(bound->from_bytes + run->shift + i);
  *arrived = true;
  return bound->landing ? check_landing(run, message, bound->landing) : BANYAN_OK;
}

static bny_wire_view moved_view(const bny_wire_view *view, size_t shift) {
  return (bny_wire_view){
    .m = (float *)(void *)((char *)view->m + shift),
    .d = (float *)(void *)((char *)view->d + shift),
    .n = (char *)view->n + shift,
    .token_stride = view->token_stride,
  };
}

static const bny_wire_view *moved_sources(bny_run *run, const bny_step *step, int half) {
  const bny_wire_view *views = &run->views[half][step->first];
  for (int32_t i = 0; i < step->count; i++) run->moved[i] = moved_view(&views[i], run->shift);
  return run->moved;
}

static banyan_status copy_input(bny_run *run, const bny_step *step, const bound_step *bound, const bny_box *box) {
  const bny_plan *plan = run->plan;
  if (plan->collective != BNY_COMBINE) {
    const bny_binding *binding = run->binding;
    if (step->slice.bytes)
      memcpy(bound->to_bytes + run->shift, binding->in_bytes + (step->slice.byte0 - binding->in_byte0), step->slice.bytes);
    return BANYAN_OK;
  }
  bny_wire_view to = moved_view(&bound->to, run->shift);
  bny_store_timer timer = {0};
  if (!run->exec->progress) timer = bny_store_begin(&run->exec->store, plan->slots[step->slot].bytes); /* else plain */
  to.stream = timer.stream;
  int64_t bad = run->exec->kernels->encode(box, run->binding->in, step->slice.token0 - run->binding->in_token0,
                                           step->slice.head0 - run->binding->in_head0, plan->wire, &to);
  bny_store_end(&run->exec->store, &timer);
  if (bad < 0) return BANYAN_OK;
  return bny_exec_fail(run->exec, BANYAN_ERR_DATA, plan->rank,
                       "rank %d: statistics of token %d, head %d are NaN or +inf, which the descriptor does not declare "
                       "to mean an empty row",
                       plan->rank, step->slice.token0 + (int32_t)(bad / box->heads),
                       step->slice.head0 + (int32_t)(bad % box->heads));
}

static void merge_sources(bny_run *run, int32_t index, int half) {
  const bny_plan *plan = run->plan;
  const bny_step *step = &plan->steps[index];
  const bound_step *bound = &run->steps[half][index];
  if (plan->collective == BNY_COMBINE) {
    bny_wire_view to = moved_view(&bound->to, run->shift);
    run->exec->kernels->merge(&run->boxes[index], plan->wire, step->count, moved_sources(run, step, half),
                              plan->round_nodes, &to);
  } else if (step->slice.bytes) {
    memcpy(bound->to_bytes + run->shift, bound->from_bytes + run->shift, step->slice.bytes);
  }
}

static void deliver(bny_run *run, int32_t index, int half) {
  const bny_plan *plan = run->plan;
  const bny_step *step = &plan->steps[index];
  if (plan->collective == BNY_COMBINE) {
    run->exec->kernels->merge_finish(&run->boxes[index], plan->wire, step->count, moved_sources(run, step, half),
                                     plan->round_nodes, run->binding->out, step->slice.token0 - run->binding->out_token0,
                                     step->slice.head0 - run->binding->out_head0);
    return;
  }
  for (int32_t i = run->piece_first[index]; i < run->piece_first[index + 1]; i++)
    memcpy(run->binding->out_bytes + run->pieces[i].to, run->steps[half][index].from_bytes + run->shift + run->pieces[i].from,
           run->pieces[i].bytes);
}

static void send_slot(bny_run *run, const bny_step *step) {
  bny_transport *transport = run->exec->transport;
  const bny_slot *slot = &run->plan->slots[step->slot];
  transport->ops->send(transport, run->tag, step->slot, slot->offset + run->shift, slot->bytes,
                       &run->plan->peers[step->first], step->count);
  run->bytes_sent += slot->bytes * (uint64_t)step->count;
  run->messages_sent += (uint64_t)step->count;
}

/* Where a message is sent from this rank's memory after send() has returned: until that is over. */
static banyan_status settle(bny_run *run, bool block, bool *settled) {
  bny_exec *exec = run->exec;
  const bny_transport_ops *ops = exec->transport->ops;
  int32_t peer = -1;
  uint64_t since = bny_record_wait_begin(&exec->record);
  for (uint32_t spins = 0; !ops->settled(exec->transport, NULL); spins++) {
    exec->progress(exec->transport);
    if (block && spins < exec->spins && !atomic_load_explicit(exec->fault, memory_order_relaxed)) continue;
    if (ops->settled(exec->transport, &peer)) break;
    banyan_status status = block ? bny_wait_round(exec, &run->call, &run->patience, peer, BNY_WAIT_PEER)
                                 : bny_wait_look(exec, &run->call, &run->patience, peer, BNY_WAIT_PEER);
    if (status != BANYAN_OK || !block) return status;
  }
  bny_wait_end(exec, &run->patience);
  if (peer >= 0) bny_record_wait_end(&exec->record, since, exec->epoch, "wait for messages taken by rank", peer, 0);
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

static banyan_status reach_peer(bny_run *run, bny_transport *transport, int32_t peer) {
  bny_exec *exec = run->exec;
  uint64_t since = bny_record_wait_begin(&exec->record);
  for (uint32_t spins = 0; !transport->ops->reach(transport, peer); spins++) {
    transport->ops->progress(transport);
    if (transport != exec->transport) exec->progress(exec->transport);
    if (spins < exec->spins && !atomic_load_explicit(exec->fault, memory_order_relaxed)) continue;
    banyan_status status = bny_wait_round(exec, &run->call, &run->patience, peer, BNY_WAIT_PEER);
    if (status != BANYAN_OK) return status;
  }
  bny_wait_end(exec, &run->patience);
  bny_record_wait_end(&exec->record, since, exec->epoch, "wait to reach rank", peer, 0);
  return BANYAN_OK;
}

banyan_status bny_run_reach(bny_run *run, const bny_run *of) {
  bny_transport *transport = of->exec->transport;
  const bny_plan *plan = of->plan;
  if (!transport->ops->reach) return BANYAN_OK;
  /* All at the same time, then one after the other. */
  for (int32_t i = 0; i < of->nreaders; i++) transport->ops->reach(transport, of->readers[i]);
  for (int32_t i = 0; i < plan->nmessages; i++) transport->ops->reach(transport, plan->messages[i].peer);
  banyan_status status = BANYAN_OK;
  for (int32_t i = 0; i < of->nreaders && status == BANYAN_OK; i++) status = reach_peer(run, transport, of->readers[i]);
  for (int32_t i = 0; i < plan->nmessages && status == BANYAN_OK; i++)
    status = reach_peer(run, transport, plan->messages[i].peer);
  return status;
}

banyan_status bny_run_progress(bny_run *run, bool block, bool *done) {
  const bny_plan *plan = run->plan;
  bny_exec *exec = run->exec;
  int half = (int)(exec->epoch & 1);
  banyan_status status;
  if (!run->ready) {
    status = bny_exec_check(exec, &run->call);
    if (status == BANYAN_OK) status = wait_half(run, block, &run->ready);
    if (status == BANYAN_OK && !run->ready) *done = false;
    if (status != BANYAN_OK || !run->ready) return status;
  }
  for (; run->next < plan->nsteps; run->next++) {
    const bny_step *step = &plan->steps[run->next];
    const bound_step *bound = &run->steps[half][run->next];
    bool arrived = false;
    bny_record_step(&exec->record, &run->record, exec->epoch, run->next);
    switch (step->kind) {
    case BNY_STEP_COPY:
      status = copy_input(run, step, bound, &run->boxes[run->next]);
      if (status != BANYAN_OK) return status;
      break;
    case BNY_STEP_MERGE: merge_sources(run, run->next, half); break;
    case BNY_STEP_SEND: send_slot(run, step); break;
    case BNY_STEP_WAIT:
      status = wait_message(run, step, bound, block, &arrived);
      if (status == BANYAN_OK && !arrived) *done = false;
      if (status != BANYAN_OK || !arrived) return status;
      break;
    case BNY_STEP_DELIVER: deliver(run, run->next, half); break;
    }
  }
  if (exec->progress) {
    bool settled = false;
    status = finish_network(run, block, &settled);
    if (status == BANYAN_OK && !settled) *done = false;
    if (status != BANYAN_OK || !settled) return status;
  }
  atomic_store_explicit(&exec->line->done, exec->epoch, memory_order_release);
  run->bytes_between_hosts = exec->transport->bytes_between_hosts - run->bytes_between_hosts;
  bny_record_end(&exec->record, &run->record, exec->epoch);
  exec->run = NULL;
  *done = true;
  return BANYAN_OK;
}
