/* SPDX-License-Identifier: Apache-2.0
 * Translates a plan into a program for the interpreter kernel, or into the parameters of a oneshot kernel. */
#include "device/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cuda/selection.h"

_Static_assert((int)BNY_DIRECT_RANKS_MAX == (int)BNY_ONESHOT_RANKS_MAX, "the planner and the kernels have one limit");

/* A receiver that stands for all ranks of other nodes. */
enum { OTHER_NODES = -1 };

/* The location of a message in its receiver's inbox, or of a rank's own slot in its own inbox. For messages to other
 * nodes, the location of their signals. */
typedef struct inbox_endpoint {
  int32_t sender, receiver, slot;
  uint64_t offset;
  uint32_t signal;
} inbox_endpoint;

/* The part of all inboxes that concerns one rank. */
typedef struct draft {
  const bny_request *request;
  int32_t rank;
  int32_t protocol;
  bny_unit_shape shape;
  bny_plan *plan;            /* owned: the rank's plan */
  inbox_endpoint *endpoints; /* owned: the endpoints of its messages */
  size_t nendpoints, endpoints_room;
  uint64_t inbox_bytes, signals, proxy_words; /* maximum over ranks */
  const size_t *piece_offsets;                /* as in bny_device_settings */
  const bny_device_nodes *nodes;              /* likewise */
  bny_program_step *steps;                    /* owned */
  bny_program_endpoint *used;                 /* endpoints of the program; owned */
  int32_t nsteps, steps_room, nused;
} draft;

/* Returns a slice in units. A barrier has one unit without bytes, and only its arrival matters. */
static bny_unit_box box_of(const draft *draft, const bny_slice *slice) {
  if (draft->request->call.collective == BNY_BARRIER) return (bny_unit_box){0, 1, 0, 1};
  return bny_unit_box_of(&draft->shape, slice);
}

static bool is_same_node(const bny_device_nodes *nodes, int32_t rank, int32_t peer) {
  return !nodes || nodes->node_of[rank] == nodes->node_of[peer];
}

/* Returns the number of a rank of this node in the engine's group. */
static int32_t number_in_group(const bny_device_nodes *nodes, int32_t rank) {
  int32_t number = 0;
  for (int32_t i = 0; nodes && i < rank; i++) number += nodes->node_of[i] == nodes->node_of[rank];
  return nodes ? number : rank;
}

/* ---- inboxes ----------------------------------------------------------------------------------------------------- */

static bool reads_slot(const bny_plan *plan, int32_t slot) {
  for (int32_t i = 0; i < plan->nsources; i++)
    if (plan->sources[i].message < 0 && plan->sources[i].slot == slot) return true;
  return false;
}

static banyan_status keep_endpoint(draft *draft, const inbox_endpoint *endpoint) {
  if (endpoint->sender != draft->rank && endpoint->receiver != draft->rank) return BANYAN_OK;
  if (draft->nendpoints == draft->endpoints_room) {
    size_t room = 2 * draft->endpoints_room + 64;
    inbox_endpoint *grown = realloc(draft->endpoints, room * sizeof *grown);
    if (!grown) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a device program");
    draft->endpoints = grown;
    draft->endpoints_room = room;
  }
  draft->endpoints[draft->nendpoints++] = *endpoint;
  return BANYAN_OK;
}

static bool leaves_node(const bny_plan *plan, int32_t slot, const bny_device_nodes *nodes) {
  for (int32_t i = 0; nodes && i < plan->nsteps; i++) {
    const bny_step *send = &plan->steps[i];
    if (send->kind != BNY_STEP_SEND || send->slot != slot) continue;
    for (int32_t p = send->first; p < send->first + send->count; p++)
      if (!is_same_node(nodes, plan->rank, plan->peers[p])) return true;
  }
  return false;
}

/* Assigns signals to the slots that go to other nodes, one after another. Returns the number of words. */
static uint64_t assign_signals(const bny_plan *plan, const bny_unit_shape *shape, const bny_device_nodes *nodes,
                               bny_device_units *units) {
  uint64_t words = 0;
  for (int32_t slot = 0; slot < plan->nslots; slot++) {
    bny_unit_box box = bny_unit_box_of(shape, &plan->slots[slot].slice);
    uint64_t count = leaves_node(plan, slot, nodes) ? bny_unit_box_units(shape, &box) : 0;
    if (units) units[slot] = (bny_device_units){(uint32_t)words, (uint32_t)count};
    words += count;
  }
  return words > (uint64_t)plan->nmessages ? words : (uint64_t)plan->nmessages;
}

static banyan_status layout_remote(draft *draft, const bny_plan *plan) {
  bny_device_units *units = calloc((size_t)plan->nslots + 1, sizeof *units);
  if (!units) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a device program");
  uint64_t words = assign_signals(plan, &draft->shape, draft->nodes, units);
  if (words > draft->proxy_words) draft->proxy_words = words;
  banyan_status status = BANYAN_OK;
  for (int32_t slot = 0; slot < plan->nslots && status == BANYAN_OK; slot++) {
    inbox_endpoint endpoint = {
        .sender = plan->rank, .receiver = OTHER_NODES, .slot = slot, .signal = units[slot].first};
    if (units[slot].count) status = keep_endpoint(draft, &endpoint);
  }
  free(units);
  return status;
}

/* Divides the inbox of one rank. Messages of its node come first, in the order of its plan. Its own slots that it reads
 * again follow. */
static banyan_status layout_inbox(draft *draft, const bny_plan *plan) {
  uint64_t offset = 0, units = 0;
  int32_t nendpoints = plan->nmessages + plan->nslots;
  for (int32_t i = 0; i < nendpoints; i++) {
    int32_t own = i - plan->nmessages;
    bool is_message = own < 0;
    if (is_message ? !is_same_node(draft->nodes, plan->rank, plan->messages[i].peer) : !reads_slot(plan, own)) continue;
    const bny_slice *slice = is_message ? &plan->messages[i].what.slice : &plan->slots[own].slice;
    inbox_endpoint endpoint = {.sender = is_message ? plan->messages[i].peer : plan->rank,
                               .receiver = plan->rank,
                               .slot = is_message ? plan->messages[i].slot : own,
                               .offset = offset,
                               .signal = (uint32_t)units};
    banyan_status status = keep_endpoint(draft, &endpoint);
    if (status != BANYAN_OK) return status;
    bny_unit_box box = box_of(draft, slice);
    units += bny_unit_box_units(&draft->shape, &box);
    offset = units * draft->shape.unit_bytes;
  }
  if (units > UINT32_MAX)
    return bny_fail(BANYAN_ERR_MEMORY, "a message for a device is too large: %llu units", (unsigned long long)units);
  if (offset > draft->inbox_bytes) draft->inbox_bytes = offset;
  if (units > draft->signals) draft->signals = units;
  return BANYAN_OK;
}

/* Divides the inboxes of all ranks. Every rank must know the size of the largest inbox, so that all ranks split a call
 * alike. */
static banyan_status layout_inboxes(draft *draft) {
  banyan_status status = bny_plan_make(draft->request, draft->rank, &draft->plan);
  for (int32_t rank = 0; rank < draft->request->nranks && status == BANYAN_OK; rank++) {
    bny_plan *plan = draft->plan;
    if (rank != draft->rank) status = bny_plan_make_like(draft->request, draft->plan, rank, &plan);
    if (status != BANYAN_OK) break;
    status = layout_inbox(draft, plan);
    if (status == BANYAN_OK && draft->nodes) status = layout_remote(draft, plan);
    if (plan != draft->plan) bny_plan_free(plan);
  }
  return status;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Sets the endpoint of a message in host memory: the half of its sender, and the message's offset there. */
static void set_message(const draft *draft, int32_t sender, const bny_slot *what, bny_program_endpoint *endpoint) {
  const bny_device_nodes *nodes = draft->nodes;
  for (int half = 0; half < 2; half++)
    endpoint->message[half] = nodes->messages[sender][half] + nodes->shift + what->offset;
  endpoint->peer = number_in_group(nodes, draft->rank);
  if (draft->shape.columns) {
    endpoint->column0 = (uint32_t)(what->slice.head0 * draft->shape.row_columns);
    endpoint->columns = (uint32_t)(what->slice.heads * draft->shape.row_columns);
    return;
  }
  bny_wire_layout layout =
      bny_wire_layout_make(draft->request->call.wire, bny_slice_rows(&what->slice), draft->request->call.value_dim);
  endpoint->d = (uint32_t)layout.d;
  endpoint->n = (uint32_t)layout.n;
}

static void add_arrival(draft *draft, int32_t index) {
  const bny_message *message = &draft->plan->messages[index];
  bny_unit_box box = box_of(draft, &message->what.slice);
  bny_program_endpoint endpoint = {.slot = message->slot, .token0 = box.token0, .head0 = box.head0, .heads = box.heads};
  set_message(draft, message->peer, &message->what, &endpoint);
  for (int half = 0; half < 2; half++)
    endpoint.signals[half] = draft->nodes->arrivals[half] + (uint64_t)index * sizeof(uint64_t);
  draft->used[draft->nused++] = endpoint;
}

static banyan_status use_endpoint(draft *draft, int32_t sender, int32_t receiver, int32_t slot, int32_t peer,
                                  const bny_slice *slice) {
  for (size_t i = 0; i < draft->nendpoints; i++) {
    const inbox_endpoint *endpoint = &draft->endpoints[i];
    if (endpoint->sender != sender || endpoint->receiver != receiver || endpoint->slot != slot) continue;
    bny_unit_box box = box_of(draft, slice);
    draft->used[draft->nused++] = (bny_program_endpoint){.offset = endpoint->offset,
                                                         .signal = endpoint->signal,
                                                         .peer = number_in_group(draft->nodes, peer),
                                                         .slot = slot,
                                                         .token0 = box.token0,
                                                         .head0 = box.head0,
                                                         .heads = box.heads};
    return BANYAN_OK;
  }
  return bny_fail(BANYAN_ERR_STATE, "plans of ranks %d and %d disagree on slot %d: this is a bug of banyan", sender,
                  receiver, slot);
}

static banyan_status add_message(draft *draft, int32_t index) {
  const bny_message *message = &draft->plan->messages[index];
  if (!is_same_node(draft->nodes, draft->rank, message->peer)) {
    add_arrival(draft, index);
    return BANYAN_OK;
  }
  return use_endpoint(draft, message->peer, draft->rank, message->slot, message->peer, &message->what.slice);
}

static banyan_status add_sources(draft *draft, const bny_step *step, bny_program_step *made) {
  const bny_plan *plan = draft->plan;
  banyan_status status = BANYAN_OK;
  made->sources = draft->nused;
  if (step->kind == BNY_STEP_WAIT) status = add_message(draft, step->message);
  for (int32_t i = step->first; i < step->first + step->count && status == BANYAN_OK; i++) {
    const bny_source *source = &plan->sources[i];
    if (source->message >= 0)
      status = add_message(draft, source->message);
    else
      status =
          use_endpoint(draft, draft->rank, draft->rank, source->slot, draft->rank, &plan->slots[source->slot].slice);
  }
  made->nsources = draft->nused - made->sources;
  return status;
}

/* Adds the endpoint of a slot that goes to other nodes. One endpoint serves all their ranks. */
static banyan_status add_departure(draft *draft, int32_t slot, bny_program_step *made) {
  const bny_slot *what = &draft->plan->slots[slot];
  banyan_status status = use_endpoint(draft, draft->rank, OTHER_NODES, slot, draft->rank, &what->slice);
  if (status != BANYAN_OK) return status;
  bny_program_endpoint *endpoint = &draft->used[draft->nused - 1];
  set_message(draft, draft->rank, what, endpoint);
  for (int half = 0; half < 2; half++)
    endpoint->signals[half] = draft->nodes->signals[half] + endpoint->signal * sizeof(uint64_t);
  made->nremote = 1;
  return BANYAN_OK;
}

/* Adds a destination for each rank that receives the slot, and for this rank if it reads the slot again. Sending early
 * is safe, because the destination is reserved. */
static banyan_status add_destinations(draft *draft, int32_t slot, bny_program_step *made) {
  const bny_plan *plan = draft->plan;
  const bny_slice *slice = &plan->slots[slot].slice;
  banyan_status status = BANYAN_OK;
  made->destinations = draft->nused;
  for (int32_t i = 0; i < plan->nsteps && status == BANYAN_OK; i++) {
    const bny_step *send = &plan->steps[i];
    if (send->kind != BNY_STEP_SEND || send->slot != slot) continue;
    for (int32_t p = send->first; p < send->first + send->count && status == BANYAN_OK; p++)
      if (is_same_node(draft->nodes, draft->rank, plan->peers[p]))
        status = use_endpoint(draft, draft->rank, plan->peers[p], slot, plan->peers[p], slice);
  }
  if (status == BANYAN_OK && reads_slot(plan, slot))
    status = use_endpoint(draft, draft->rank, draft->rank, slot, draft->rank, slice);
  if (status == BANYAN_OK && leaves_node(plan, slot, draft->nodes)) status = add_departure(draft, slot, made);
  made->ndestinations = draft->nused - made->destinations;
  return status;
}

static banyan_status keep_step(draft *draft, const bny_program_step *step) {
  if (draft->nsteps == draft->steps_room) {
    int32_t room = 2 * draft->steps_room + 16;
    bny_program_step *grown = realloc(draft->steps, (size_t)room * sizeof *grown);
    if (!grown) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a device program");
    draft->steps = grown;
    draft->steps_room = room;
  }
  draft->steps[draft->nsteps++] = *step;
  return BANYAN_OK;
}

/* Delivers bytes by one step per piece, because the pieces are not contiguous in the caller's memory. */
static banyan_status keep_pieces(draft *draft, const bny_program_step *step) {
  const bny_request *request = draft->request;
  banyan_status status = BANYAN_OK;
  size_t begin = 0;
  for (int32_t rank = 0; rank < request->nranks && status == BANYAN_OK; begin += request->call.counts[rank], rank++) {
    size_t first = begin > step->byte0 ? begin : step->byte0, end = begin + request->call.counts[rank];
    if (end > step->byte0 + step->bytes) end = step->byte0 + step->bytes;
    if (first >= end) continue;
    bny_program_step piece = *step;
    bny_unit_box box = box_of(draft, &(bny_slice){.byte0 = first, .bytes = end - first});
    piece.head0 = box.head0;
    piece.heads = box.heads;
    piece.byte0 = first;
    piece.bytes = end - first;
    piece.shift = (int64_t)(draft->piece_offsets[rank] - begin);
    status = keep_step(draft, &piece);
  }
  return status;
}

/* Translates a step of the plan. SEND needs no step, because data is sent when it is made. WAIT needs none, because the
 * step that reads the data waits. A barrier differs. */
static banyan_status add_step(draft *draft, const bny_step *step) {
  bool signals = draft->request->call.collective == BNY_BARRIER;
  bny_unit_box box = box_of(draft, &step->slice);
  bny_program_step made = {.token0 = box.token0,
                           .tokens = box.tokens,
                           .head0 = box.head0,
                           .heads = box.heads,
                           .byte0 = step->slice.byte0,
                           .bytes = step->slice.bytes};
  banyan_status status = BANYAN_OK;
  if (draft->shape.columns) {
    made.byte0 = (uint64_t)(step->slice.head0 * draft->shape.row_columns);
    made.bytes = (uint64_t)(step->slice.heads * draft->shape.row_columns);
  }
  bool sends = step->kind == BNY_STEP_SEND, waits = step->kind == BNY_STEP_WAIT;
  if (((sends || waits) && !signals) || box.tokens == 0 || box.heads == 0) return BANYAN_OK;
  made.kind = sends || step->kind == BNY_STEP_COPY ? BNY_PROGRAM_COPY
              : step->kind == BNY_STEP_MERGE       ? BNY_PROGRAM_MERGE
                                                   : BNY_PROGRAM_DELIVER;
  if (made.kind != BNY_PROGRAM_COPY) status = add_sources(draft, step, &made);
  if (status == BANYAN_OK && made.kind != BNY_PROGRAM_DELIVER) status = add_destinations(draft, step->slot, &made);
  if (status != BANYAN_OK) return status;
  bool in_pieces = made.kind == BNY_PROGRAM_DELIVER && draft->piece_offsets;
  return in_pieces ? keep_pieces(draft, &made) : keep_step(draft, &made);
}

static banyan_status add_steps(draft *draft) {
  const bny_plan *plan = draft->plan;
  /* Only one step writes a slot. Every peer is therefore a destination once, and every slot is read again at most
   * once. */
  size_t endpoints = (size_t)plan->nsources + (size_t)plan->nmessages + (size_t)plan->npeers + (size_t)plan->nslots;
  draft->used = calloc(endpoints + 1, sizeof *draft->used);
  if (!draft->used) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a device program");
  for (int32_t i = 0; i < plan->nsteps; i++) {
    banyan_status status = add_step(draft, &plan->steps[i]);
    if (status != BANYAN_OK) return status;
  }
  return BANYAN_OK;
}

static banyan_status write_down(const draft *draft, bny_program **program) {
  size_t steps = (size_t)draft->nsteps * sizeof *draft->steps, endpoints = (size_t)draft->nused * sizeof *draft->used;
  bny_program *made = calloc(1, sizeof *made + steps + endpoints);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a device program");
  *made = (bny_program){.bytes = sizeof *made + steps + endpoints,
                        .label = draft->nodes ? draft->nodes->label : 0,
                        .inbox_bytes = draft->inbox_bytes,
                        .proxy_words = draft->proxy_words,
                        .signals = draft->protocol == BNY_PROTOCOL_SIMPLE ? draft->signals : 0,
                        .protocol = draft->protocol,
                        .round_nodes = draft->plan->round_nodes,
                        .exact = draft->request->call.order == BANYAN_ORDER_EXACT,
                        .nsteps = draft->nsteps,
                        .nendpoints = draft->nused,
                        .shape = draft->shape};
  char *at = (char *)(made + 1);
  if (steps) memcpy(at, draft->steps, steps);
  if (endpoints) memcpy(at + steps, draft->used, endpoints);
  *program = made;
  return BANYAN_OK;
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

banyan_status bny_device_program_make(const bny_request *request, int32_t rank, const bny_device_settings *settings,
                                      bny_program **program) {
  if (request->nranks > BNY_DEVICE_RANKS_MAX && !settings->nodes)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "%d ranks share device memory, at most %d can", request->nranks,
                    BNY_DEVICE_RANKS_MAX);
  draft draft = {.request = request, .rank = rank, .nodes = settings->nodes};
  draft.protocol = bny_unit_protocol(request, settings);
  if (bny_call_gathers(&request->call)) draft.piece_offsets = settings->piece_offsets;
  banyan_status status = bny_unit_shape_make(request, draft.protocol, settings, &draft.shape);
  if (status == BANYAN_OK) status = layout_inboxes(&draft);
  if (status == BANYAN_OK) status = add_steps(&draft);
  if (status == BANYAN_OK) status = write_down(&draft, program);
  bny_plan_free(draft.plan);
  free(draft.endpoints);
  free(draft.steps);
  free(draft.used);
  return status;
}

banyan_status bny_device_program_units(const bny_request *request, const bny_plan *plan,
                                       const bny_device_settings *settings, bny_device_units *units) {
  bny_unit_shape shape;
  banyan_status status = bny_unit_shape_make(request, bny_unit_protocol(request, settings), settings, &shape);
  if (status == BANYAN_OK) assign_signals(plan, &shape, settings->nodes, units);
  return status;
}

bny_arena_sizes bny_device_program_needs(const bny_program *program) {
  bny_arena_sizes needs = {.signals = program->signals, .proxy_words = program->proxy_words};
  needs.inbox_bytes[program->protocol] = program->inbox_bytes;
  return needs;
}

/* Computes the part of the box that each rank owns along the scattered dimension. Columns of sums are counted in
 * units. */
static void own_parts(const bny_request *request, bny_oneshot *what) {
  bool tokens = request->call.scatter == BANYAN_SCATTER_TOKENS;
  int32_t first = tokens ? request->token0 : request->head0, last = first + (tokens ? request->tokens : request->heads);
  for (int32_t rank = 0; rank <= request->nranks; rank++) {
    int32_t begin = tokens ? request->call.all_tokens : request->call.all_heads, number;
    if (rank < request->nranks) bny_slice_split(begin, request->nranks, rank, &begin, &number);
    what->first[rank] = begin < first ? first : begin > last ? last : begin;
    if (tokens || !what->shape.columns) continue;
    int32_t each = what->shape.value_dim / what->shape.row_columns;
    what->first[rank] = what->first[rank] / each + (what->first[rank] == last && last % each > 0);
  }
}

banyan_status bny_device_oneshot_make(const bny_request *request, const bny_device_settings *settings,
                                      bny_oneshot *what, bny_protocol *protocol, bny_arena_sizes *needs) {
  if (!bny_request_may_be_direct(request))
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "the oneshot kernels serve combines of at most %d ranks, not canonical order on a lossy wire",
                    BNY_ONESHOT_RANKS_MAX);
  int32_t chosen = bny_unit_protocol(request, settings);
  bny_oneshot made = {.scatter = (int32_t)request->call.scatter, .root = request->call.root};
  banyan_status status = bny_unit_shape_make(request, chosen, settings, &made.shape);
  if (status != BANYAN_OK) return status;
  own_parts(request, &made);
  bool scattered = request->call.scatter == BANYAN_SCATTER_HEADS || request->call.scatter == BANYAN_SCATTER_TOKENS;
  int64_t rows = (int64_t)made.shape.tokens * made.shape.heads, most = scattered ? 0 : rows;
  for (int32_t rank = 0; scattered && rank < request->nranks; rank++) {
    int64_t owned = made.first[rank + 1] - made.first[rank];
    owned *= request->call.scatter == BANYAN_SCATTER_TOKENS ? made.shape.heads : made.shape.tokens;
    if (owned > most) most = owned;
  }
  uint64_t units = (uint64_t)most * (uint64_t)made.shape.chunks * (uint64_t)request->nranks;
  if (units > INT32_MAX) return bny_fail(BANYAN_ERR_MEMORY, "a combine is too large for the oneshot kernels");
  made.units_max = (int32_t)(units / (uint64_t)request->nranks);
  *needs = (bny_arena_sizes){.signals = chosen == BNY_PROTOCOL_SIMPLE ? units : 0};
  needs->inbox_bytes[chosen] = units * made.shape.unit_bytes;
  if (made.shape.wire == BNY_UNIT_LISTS)
    needs->inbox_bytes[chosen] += BNY_SELECTION_ROOMS * (uint64_t)most * made.shape.unit_bytes;
  *protocol = (bny_protocol)chosen;
  *what = made;
  return BANYAN_OK;
}

const bny_device_settings bny_device_within_settings = {.protocol = BNY_PROTOCOL_LL16, .whole_rows = true};

banyan_status bny_device_combine_make(const bny_request *request, int32_t rank, const banyan_partial *in,
                                      const banyan_partial *out, int32_t mergers, bny_device_combine *combine,
                                      bny_arena_sizes *needs) {
  if (request->call.order == BANYAN_ORDER_EXACT)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "a combine within a kernel has no BANYAN_ORDER_EXACT");
  bny_slice owned = bny_slice_owned(request, rank);
  bny_protocol protocol;
  if (request->call.wire == BNY_WIRE_E4M3)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "desc.wire is BANYAN_E4M3, which a combine within a kernel does not have; use BANYAN_F16 or "
                    "BANYAN_BF16, or a combine of its own");
  bny_device_combine made = {.mergers = (uint32_t)(mergers > 0 ? mergers : 1)};
  banyan_status status = bny_device_oneshot_make(request, &bny_device_within_settings, &made.what, &protocol, needs);
  if (status != BANYAN_OK) return status;
  made.call.in = *in;
  if (out) made.call.out = *out;
  made.call.out_token0 = owned.token0;
  made.call.out_head0 = owned.head0;
  *combine = made;
  return BANYAN_OK;
}
