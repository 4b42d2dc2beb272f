/* SPDX-License-Identifier: Apache-2.0
 * Makes a run of a plan: resolves every address that a step needs, once for each half of the arena. Also reports facts
 * of a run, and connects ranks before the first one. */
#include <stdlib.h>
#include <string.h>

#include "exec/payload.h"
#include "base/status.h"

static bny_wire_view view_of(const bny_run *run, const bny_slot *slot, const char *outbox, const bny_slice *slice) {
  const bny_plan *plan = run->plan;
  bny_slice held = bny_slice_valid(&run->valid, &slot->slice);
  int32_t token0 = bny_slice_valid_token(&run->valid, slice->token0);
  int64_t row = (int64_t)(token0 - held.token0) * held.heads + slice->head0 - held.head0;
  char *at = (char *)(uintptr_t)outbox + slot->offset;
  bny_wire_layout layout = bny_rows_layout(plan->payload->has_statistics, bny_slice_rows(&held), plan->row_bytes);
  return (bny_wire_view){
      .m = (float *)(void *)(at + layout.m) + row,
      .d = (float *)(void *)(at + layout.d) + row,
      .n = at + layout.n + (size_t)row * plan->row_bytes,
      .token_stride = held.heads,
  };
}

static void resolve_source(const bny_run *run, const bny_source *source, int half, const bny_slot **slot,
                           const char **outbox) {
  bny_transport *transport = run->exec->transport;
  if (source->message < 0) {
    *slot = &run->plan->slots[source->slot];
    *outbox = transport->halves[half];
  } else {
    const bny_message *message = &run->plan->messages[source->message];
    *slot = &message->what;
    *outbox = transport->ops->peer_outbox(transport, message->peer, half);
  }
}

static void bind_step(bny_run *run, int32_t index, int half) {
  const bny_plan *plan = run->plan;
  const bny_step *step = &plan->steps[index];
  bny_bound_step *bound = &run->steps[half][index];
  bny_transport *transport = run->exec->transport;
  bool rows = plan->payload->has_rows;
  if (step->kind == BNY_STEP_COPY || step->kind == BNY_STEP_MERGE) {
    const bny_slot *slot = &plan->slots[step->slot];
    char *outbox = transport->halves[half];
    if (rows)
      bound->to = view_of(run, slot, outbox, &step->slice);
    else
      bound->to_bytes = outbox + slot->offset + (step->slice.byte0 - slot->slice.byte0);
  }
  bool reads_sources = step->kind == BNY_STEP_MERGE || step->kind == BNY_STEP_DELIVER;
  for (int32_t i = 0; reads_sources && i < step->count; i++) {
    const bny_slot *slot;
    const char *outbox;
    resolve_source(run, &plan->sources[step->first + i], half, &slot, &outbox);
    if (rows)
      run->views[half][step->first + i] = view_of(run, slot, outbox, &step->slice);
    else
      bound->from_bytes = outbox + slot->offset + (step->slice.byte0 - slot->slice.byte0);
  }
  if (step->kind == BNY_STEP_WAIT) {
    const bny_message *message = &plan->messages[step->message];
    bound->is_same_node = bny_transport_is_same_node(transport, message->peer);
    bound->landing =
        bound->is_same_node ? NULL : transport->ops->landing(transport, message->peer, message->slot, half);
    bound->arrived = transport->ops->signal(transport, message->peer, message->slot, half);
    bound->from_bytes = transport->ops->peer_outbox(transport, message->peer, half) + message->what.offset;
  }
}

/* Finds the pieces of the caller's memory that a delivery of bytes covers. If pieces is NULL, only counts them. */
static int32_t cut_pieces(const bny_binding *binding, int32_t nranks, const bny_slice *slice, bny_piece *pieces) {
  if (!binding->piece_counts) {
    if (pieces) *pieces = (bny_piece){0, slice->byte0 - binding->out_byte0, slice->bytes};
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
      pieces[count] = (bny_piece){first - slice->byte0, binding->piece_offsets[r] + (first - begin), end - first};
    count++;
  }
  return count;
}

static banyan_status fail_memory(const bny_plan *plan) {
  return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to bind a plan of %d steps", plan->rank, plan->nsteps);
}

static banyan_status bind_pieces(bny_run *run) {
  const bny_plan *plan = run->plan;
  run->piece_first = calloc((size_t)plan->nsteps + 1, sizeof *run->piece_first);
  if (!run->piece_first) return fail_memory(plan);
  bool rows = plan->payload->has_rows;
  for (int32_t i = 0; i < plan->nsteps; i++) {
    bool cuts = !rows && plan->steps[i].kind == BNY_STEP_DELIVER;
    int32_t count = cuts ? cut_pieces(run->binding, plan->nranks, &plan->steps[i].slice, NULL) : 0;
    run->piece_first[i + 1] = run->piece_first[i] + count;
  }
  run->pieces = calloc((size_t)run->piece_first[plan->nsteps] + 1, sizeof *run->pieces);
  if (!run->pieces) return fail_memory(plan);
  for (int32_t i = 0; i < plan->nsteps; i++)
    if (run->piece_first[i + 1] > run->piece_first[i])
      cut_pieces(run->binding, plan->nranks, &plan->steps[i].slice, &run->pieces[run->piece_first[i]]);
  return BANYAN_OK;
}

/* Small messages are faster in lines that are still in a cache. */
enum { ROUND_STRIDE_MIN = 2048, PLACE_ALIGNMENT = 1024 };

/* Messages to a socket begin at an offset within a page. The kernel copies them into its own page, after a short
 * header. On AMD's Zen 4 `rep movsb` takes 28 times as long if the target has a slightly larger offset in its page than
 * the source (16.6 KB: 4.7 us instead of 0.17). */
enum { NETWORK_PAGE_OFFSET = 2048 };

/* The result is the same on every rank, because it depends only on a bound that no rank's plan exceeds. */
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

/* Lists each peer once that receives something from this rank, or sends something to it from another node. */
static void list_peers(bny_run *run) {
  const bny_plan *plan = run->plan;
  bny_transport *transport = run->exec->transport;
  const bny_transport_ops *ops = transport->ops;
  run->nreaders = run->nsenders = 0;
  memset(run->seen, 0, (size_t)plan->nranks * sizeof *run->seen);
  for (int32_t i = 0; i < plan->nsteps; i++) {
    const bny_step *step = &plan->steps[i];
    if (step->kind != BNY_STEP_SEND || bny_run_is_empty(run, run->slot_bytes[step->slot])) continue;
    for (int32_t k = step->first; k < step->first + step->count; k++) {
      if (!run->seen[plan->peers[k]]) run->readers[run->nreaders++] = plan->peers[k];
      run->seen[plan->peers[k]] = true;
    }
  }
  memset(run->seen, 0, (size_t)plan->nranks * sizeof *run->seen);
  for (int32_t i = 0; ops->prepare_receive && i < plan->nmessages; i++) {
    int32_t peer = plan->messages[i].peer;
    if (bny_run_is_empty(run, run->message_bytes[i])) continue;
    if (!run->seen[peer] && !bny_transport_is_same_node(transport, peer)) run->senders[run->nsenders++] = peer;
    run->seen[peer] = true;
  }
}

static size_t valid_bytes(const bny_run *run, const bny_slot *slot) {
  const bny_plan *plan = run->plan;
  if (!plan->payload->has_rows || run->valid.count == run->valid.most) return slot->bytes;
  bny_slice held = bny_slice_valid(&run->valid, &slot->slice);
  return bny_payload_bytes(plan->payload, bny_slice_rows(&held), plan->row_bytes);
}

/* Resolves everything that depends on the number of tokens. */
static void bind_steps(bny_run *run) {
  const bny_plan *plan = run->plan;
  bool rows = plan->payload->has_rows;
  uint64_t input_bytes = 0;
  for (int32_t i = 0; i < plan->nslots; i++) run->slot_bytes[i] = valid_bytes(run, &plan->slots[i]);
  for (int32_t i = 0; i < plan->nmessages; i++) run->message_bytes[i] = valid_bytes(run, &plan->messages[i].what);
  for (int32_t i = 0; i < plan->nsteps; i++) {
    const bny_step *step = &plan->steps[i];
    bny_slice slice = rows ? bny_slice_valid(&run->valid, &step->slice) : step->slice;
    run->boxes[i] = (bny_box){slice.tokens, slice.heads, plan->value_dim};
    run->token0[i] = slice.token0;
    if (step->kind == BNY_STEP_COPY) input_bytes += run->slot_bytes[step->slot];
    bind_step(run, i, 0);
    bind_step(run, i, 1);
  }
  run->record.note.bytes = input_bytes;
  list_peers(run);
}

/* Returns the first token of the part, and whether all of its tokens exist. */
static int32_t first_token(const bny_run *run, const bny_valid_tokens *valid, bool *full) {
  int32_t token0 = run->binding->token0, first = bny_slice_valid_token(valid, token0);
  *full = bny_slice_valid_token(valid, token0 + run->binding->tokens_planned) - first == run->binding->tokens_planned;
  return first;
}

void bny_run_set_part(bny_run *run, int32_t tokens, int32_t token_shift, int32_t head_shift) {
  bny_valid_tokens valid = run->valid;
  bool full, was_full;
  valid.shift = token_shift;
  valid.count = tokens;
  if (tokens != run->call_tokens) bny_notice_set_tokens(&run->notice, tokens);
  run->call_tokens = tokens;
  run->head_move = head_shift;
  run->token_move = first_token(run, &valid, &full) - first_token(run, &run->valid, &was_full);
  if (full && was_full) return;
  run->token_move = 0;
  if (valid.count == run->valid.count && valid.shift == run->valid.shift) return;
  run->valid = valid;
  bind_steps(run);
}

banyan_status bny_run_make(bny_exec *exec, const bny_plan *plan, const bny_notice *notice, const bny_binding *binding,
                           bny_run **run) {
  bny_run *made = calloc(1, sizeof *made);
  if (!made) return fail_memory(plan);
  *made = (bny_run){.exec = exec,
                    .plan = plan,
                    .payload = &bny_payload_table[plan->collective],
                    .notice = *notice,
                    .binding = binding,
                    .next = plan->nsteps};
  size_t steps = (size_t)plan->nsteps + 1, sources = (size_t)plan->nsources + 1;
  made->valid = (bny_valid_tokens){binding->tokens_most, binding->tokens_most, binding->token_owners, 0};
  made->call_tokens = binding->tokens_most;
  made->boxes = calloc(steps, sizeof *made->boxes);
  made->token0 = calloc(steps, sizeof *made->token0);
  made->slot_bytes = calloc((size_t)plan->nslots + 1, sizeof *made->slot_bytes);
  made->message_bytes = calloc((size_t)plan->nmessages + 1, sizeof *made->message_bytes);
  made->readers = calloc((size_t)plan->nranks, sizeof *made->readers);
  made->senders = calloc((size_t)plan->nranks, sizeof *made->senders);
  made->seen = calloc((size_t)plan->nranks, sizeof *made->seen);
  made->moved = calloc(BNY_MERGE_SOURCES_MAX, sizeof *made->moved);
  set_places(made);
  banyan_status status = bind_pieces(made);
  bny_transport *transport = exec->transport;
  for (int32_t i = 0; transport->ops->prepare_receive && status == BANYAN_OK && i < plan->nmessages; i++)
    status = transport->ops->prepare_receive(transport, plan->messages[i].peer);
  if (status == BANYAN_OK) status = bny_record_bind(&exec->record, plan, notice, &made->record);
  for (int half = 0; half < 2; half++) {
    made->steps[half] = calloc(steps, sizeof *made->steps[half]);
    made->views[half] = calloc(sources, sizeof *made->views[half]);
    if (!made->steps[half] || !made->views[half]) status = fail_memory(plan);
  }
  if (!made->boxes || !made->token0 || !made->moved || !made->slot_bytes || !made->message_bytes || !made->readers ||
      !made->senders || !made->seen)
    status = fail_memory(plan);
  if (status != BANYAN_OK) {
    bny_run_free(made);
    return status;
  }
  bind_steps(made);
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
  free(run->token0);
  free(run->slot_bytes);
  free(run->message_bytes);
  free(run->seen);
  free(run->moved);
  free(run->pieces);
  free(run->piece_first);
  free(run->readers);
  free(run->senders);
  bny_record_release(&run->record);
  if (run->exec->run == run) run->exec->run = NULL;
  free(run);
}

/* -- facts of a run ------------------------------------------------------------------------------------------------ */

void bny_run_relabel(bny_run *run, const bny_notice *notice) {
  run->notice = *notice;
  bny_record_relabel(&run->record, notice);
}

uint64_t bny_run_arena_bytes(const bny_run *run) {
  return 2 * (run->places > 1 ? run->places * run->stride : run->plan->outbox_bytes);
}

size_t bny_run_shift(const bny_run *run) { return run->first_place; }

/* - connecting ----------------------------------------------------------------------------------------------------- */

static banyan_status reach_peer(bny_run *run, bny_transport *transport, int32_t peer) {
  bny_exec *exec = run->exec;
  uint64_t since = bny_record_wait_begin(&exec->record);
  for (uint32_t spins = 0; !transport->ops->connect(transport, peer); spins++) {
    transport->ops->progress(transport);
    if (transport != exec->transport) exec->progress(exec->transport);
    if (spins < exec->spins && !atomic_load_explicit(exec->fault, memory_order_relaxed)) continue;
    banyan_status status = bny_wait_round(exec, &run->notice, &run->patience, peer, BNY_WAIT_REACH);
    if (status != BANYAN_OK) return status;
  }
  banyan_status status = bny_wait_end(exec, &run->patience);
  if (status == BANYAN_OK) bny_record_wait_end(&exec->record, since, exec->epoch, "wait to reach rank", peer, 0);
  return status;
}

banyan_status bny_run_reach(bny_run *run, const bny_run *of) {
  bny_transport *transport = of->exec->transport;
  const bny_plan *plan = of->plan;
  if (!transport->ops->connect) return BANYAN_OK;
  /* All connections begin together, and are then waited for one by one. */
  for (int32_t i = 0; i < of->nreaders; i++) transport->ops->connect(transport, of->readers[i]);
  for (int32_t i = 0; i < plan->nmessages; i++) transport->ops->connect(transport, plan->messages[i].peer);
  banyan_status status = BANYAN_OK;
  for (int32_t i = 0; i < of->nreaders && status == BANYAN_OK; i++) status = reach_peer(run, transport, of->readers[i]);
  for (int32_t i = 0; i < plan->nmessages && status == BANYAN_OK; i++)
    status = reach_peer(run, transport, plan->messages[i].peer);
  return status;
}
