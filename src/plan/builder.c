/* SPDX-License-Identifier: Apache-2.0
 * Adds slots, messages and steps to the plan of a rank. */
#include "plan/builder.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* A peer's slots, from a run of the algorithm in slots-only mode. */
struct bny_peer_list {
  struct bny_peer_list *next;
  int32_t peer;
  int32_t nslots;
  int32_t cursor; /* keys are mostly looked up in the order of the slots */
  bny_slot *slots;
  bny_key *keys;
  bny_frame_start *starts;
  bny_alias *aliases;
  int32_t nstarts, naliases;
};

struct bny_temporary {
  struct bny_temporary *next;
  max_align_t memory[];
};

void bny_builder_init(bny_builder *builder, const bny_request *request, const bny_algorithm *algorithm, int32_t rank,
                      bool slots_only, bny_plan *plan) {
  *builder = (bny_builder){.request = request,
                           .whole = request,
                           .algorithm = algorithm,
                           .rank = rank,
                           .slots_only = slots_only,
                           .plan = plan};
}

void bny_builder_fini(bny_builder *builder) {
  while (builder->lists) {
    struct bny_peer_list *list = builder->lists;
    builder->lists = list->next;
    free(list->slots);
    free(list->keys);
    free(list->starts);
    free(list->aliases);
    free(list);
  }
  while (builder->temporaries) {
    struct bny_temporary *temporary = builder->temporaries;
    builder->temporaries = temporary->next;
    free(temporary);
  }
  free(builder->keys);
  free(builder->starts);
  free(builder->aliases);
  builder->keys = NULL;
  builder->starts = NULL;
  builder->aliases = NULL;
}

static void fail(bny_builder *builder, const char *what) {
  if (builder->status == BANYAN_OK)
    builder->status = bny_fail(BANYAN_ERR_MEMORY, "plan of rank %d: no memory for %s", builder->rank, what);
}

void *bny_builder_allocate(bny_builder *builder, int64_t count, size_t item_bytes) {
  if (builder->status != BANYAN_OK) return NULL;
  size_t bytes = (size_t)(count > 0 ? count : 1) * item_bytes;
  struct bny_temporary *temporary = calloc(1, sizeof *temporary + bytes);
  if (!temporary) {
    fail(builder, "its making");
    return NULL;
  }
  temporary->next = builder->temporaries;
  builder->temporaries = temporary;
  return temporary->memory;
}

bool bny_builder_grow(bny_builder *builder, void *array, int32_t *capacity, int32_t count, size_t item_bytes) {
  if (count < *capacity) return true;
  int32_t larger = *capacity ? 2 * *capacity : 16;
  void *items, *grown = bny_builder_allocate(builder, larger, item_bytes);
  if (!grown) return false;
  memcpy(&items, array, sizeof items); /* a pointer of any type */
  if (count > 0) memcpy(grown, items, (size_t)count * item_bytes);
  memcpy(array, &grown, sizeof grown);
  *capacity = larger;
  return true;
}

/* Returns the array with room for `more` items after `count`; if it grows, it at least doubles. On failure it returns
 * the unchanged array, and the builder has failed. */
static void *reserve(bny_builder *builder, void *array, int32_t *capacity, int32_t count, int64_t more,
                     size_t item_bytes) {
  int64_t needed = count + more;
  if (builder->status != BANYAN_OK || needed <= *capacity) return array;
  int64_t larger = needed > 2 * (int64_t)*capacity ? needed : 2 * (int64_t)*capacity;
  if (larger < 16) larger = 16;
  void *grown = larger <= INT32_MAX ? realloc(array, (size_t)larger * item_bytes) : NULL;
  if (!grown) {
    fail(builder, "its steps");
    return array;
  }
  *capacity = (int32_t)larger;
  return grown;
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

static int64_t frame_id(const bny_builder *builder) { return builder->frame ? builder->frame->id : 0; }

static int32_t rank_outside(const bny_builder *builder, int32_t rank) {
  const bny_frame *frame = builder->frame;
  return frame ? frame->rank_outside(builder, frame->context, rank) : rank;
}

int32_t bny_builder_first_slot(const bny_builder *builder) { return builder->frame ? builder->frame->first_slot : 0; }

size_t bny_builder_first_offset(const bny_builder *builder) {
  return builder->frame ? builder->frame->first_offset : 0;
}

void bny_builder_run(bny_builder *builder, bny_frame *frame, const bny_algorithm *algorithm) {
  builder->starts =
      reserve(builder, builder->starts, &builder->starts_capacity, builder->nstarts, 1, sizeof *builder->starts);
  if (builder->status != BANYAN_OK) return;
  const bny_request *request = builder->request;
  int32_t rank = builder->rank;
  frame->first_slot = builder->plan->nslots;
  frame->first_offset = builder->plan->outbox_bytes;
  builder->starts[builder->nstarts++] =
      (bny_frame_start){.id = frame->id, .slot = frame->first_slot, .offset = frame->first_offset};
  builder->frame = frame;
  builder->request = frame->request;
  builder->rank = frame->rank;
  algorithm->build(builder);
  builder->frame = NULL;
  builder->request = request;
  builder->rank = rank;
}

/* Passes a delivery of the current frame to its function. */
static void deliver_outside(bny_builder *builder, const bny_slice *slice, const bny_source *sources, int64_t count) {
  const bny_frame *frame = builder->frame;
  builder->frame = NULL;
  builder->request = builder->whole;
  builder->rank = builder->plan->rank;
  frame->deliver(builder, frame->context, slice, sources, count);
  builder->frame = frame;
  builder->request = frame->request;
  builder->rank = frame->rank;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

int32_t bny_builder_slot(bny_builder *builder, const bny_slice *slice, bny_key key) {
  bny_plan *plan = builder->plan;
  plan->slots = reserve(builder, plan->slots, &builder->slots_capacity, plan->nslots, 1, sizeof *plan->slots);
  builder->keys = reserve(builder, builder->keys, &builder->keys_capacity, plan->nslots, 1, sizeof *builder->keys);
  if (builder->status != BANYAN_OK) return 0;
  bny_slot *slot = &plan->slots[plan->nslots];
  *slot =
      (bny_slot){.slice = *slice, .offset = plan->outbox_bytes, .bytes = bny_slice_wire_bytes(builder->request, slice)};
  plan->outbox_bytes += bny_slice_outbox_bytes(builder->request, slice);
  if (key.frame == 0) key.frame = frame_id(builder);
  builder->keys[plan->nslots] = key;
  return plan->nslots++;
}

void bny_builder_alias(bny_builder *builder, int32_t slot, bny_key key) {
  builder->aliases =
      reserve(builder, builder->aliases, &builder->aliases_capacity, builder->naliases, 1, sizeof *builder->aliases);
  if (builder->status == BANYAN_OK) builder->aliases[builder->naliases++] = (bny_alias){.key = key, .slot = slot};
}

int32_t bny_builder_slot_private(bny_builder *builder, const bny_slice *slice) {
  return bny_builder_slot(builder, slice, (bny_key){.phase = BNY_PHASE_PRIVATE});
}

bny_slot bny_builder_slot_entry(const bny_builder *builder, int32_t slot) {
  return slot < builder->plan->nslots ? builder->plan->slots[slot] : (bny_slot){.offset = 0};
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void step_add(bny_builder *builder, const bny_step *step) {
  bny_plan *plan = builder->plan;
  if (builder->slots_only) return;
  plan->steps = reserve(builder, plan->steps, &builder->steps_capacity, plan->nsteps, 1, sizeof *plan->steps);
  if (builder->status == BANYAN_OK) plan->steps[plan->nsteps++] = *step;
}

void bny_builder_copy(bny_builder *builder, int32_t slot) {
  if (builder->frame && builder->frame->input) {
    bny_builder_merge(builder, slot, builder->frame->input, builder->frame->ninput);
    return;
  }
  bny_slot entry = bny_builder_slot_entry(builder, slot);
  step_add(builder, &(bny_step){.kind = BNY_STEP_COPY, .slot = slot, .message = -1, .slice = entry.slice});
}

int32_t bny_builder_copy_made(bny_builder *builder, const bny_slice *slice, bny_key key) {
  if (bny_slice_is_empty(builder->request, slice)) return -1;
  int32_t slot = bny_builder_slot(builder, slice, key);
  bny_builder_copy(builder, slot);
  return slot;
}

void bny_builder_send_list(bny_builder *builder, int32_t slot, const int32_t *peers, int32_t count) {
  bny_plan *plan = builder->plan;
  if (builder->slots_only || count == 0 || builder->status != BANYAN_OK) return;
  plan->peers = reserve(builder, plan->peers, &builder->peers_capacity, plan->npeers, count, sizeof *plan->peers);
  if (builder->status != BANYAN_OK) return;
  for (int32_t i = 0; i < count; i++) plan->peers[plan->npeers + i] = rank_outside(builder, peers[i]);
  step_add(builder,
           &(bny_step){.kind = BNY_STEP_SEND, .slot = slot, .message = -1, .first = plan->npeers, .count = count});
  plan->npeers += count;
}

void bny_builder_send(bny_builder *builder, int32_t slot, int32_t peer) {
  bny_builder_send_list(builder, slot, &peer, 1);
}

static const bny_source no_source = {.slot = -1};

/* `peer` and `slot` are those of the plan. */
static bny_source message_add(bny_builder *builder, int32_t peer, int32_t slot, const bny_slot *what) {
  bny_plan *plan = builder->plan;
  plan->messages =
      reserve(builder, plan->messages, &builder->messages_capacity, plan->nmessages, 1, sizeof *plan->messages);
  if (builder->status != BANYAN_OK) return no_source;
  plan->messages[plan->nmessages] = (bny_message){.peer = peer, .slot = slot, .what = *what};
  step_add(builder, &(bny_step){.kind = BNY_STEP_WAIT, .slot = -1, .message = plan->nmessages});
  return (bny_source){.slot = -1, .message = plan->nmessages++};
}

static struct bny_peer_list *peer_list(bny_builder *builder, int32_t peer);

bny_source bny_builder_receive(bny_builder *builder, int32_t peer, int32_t slot, const bny_slot *what) {
  if (builder->slots_only || builder->status != BANYAN_OK) return no_source;
  if (!builder->frame) return message_add(builder, peer, slot, what);
  struct bny_peer_list *list = peer_list(builder, rank_outside(builder, peer));
  for (int32_t i = 0; list && i < list->nstarts; i++) {
    if (list->starts[i].id != builder->frame->id) continue;
    bny_slot there = *what;
    there.offset = list->starts[i].offset + (what->offset - builder->frame->first_offset);
    return message_add(builder, list->peer, list->starts[i].slot + (slot - builder->frame->first_slot), &there);
  }
  if (builder->status == BANYAN_OK)
    builder->status = bny_fail(BANYAN_ERR_STATE, "%s: rank %d expects a part of rank %d that it does not take",
                               builder->algorithm->name, builder->plan->rank, rank_outside(builder, peer));
  return no_source;
}

const bny_source *bny_builder_receive_all(bny_builder *builder, int32_t own) {
  int32_t nranks = builder->request->nranks;
  bny_slot what = bny_builder_slot_entry(builder, own);
  bny_source *sources = bny_builder_allocate(builder, nranks, sizeof *sources);
  if (!sources) return NULL;
  sources[builder->rank] = bny_source_slot(own);
  for (int32_t i = 1; i < nranks; i++) { /* the rank before this one sends to it first */
    int32_t peer = bny_modulo((int64_t)builder->rank - i, nranks);
    sources[peer] = bny_builder_receive(builder, peer, own, &what);
  }
  return sources;
}

static void step_add_sources(bny_builder *builder, bny_step *step, const bny_source *sources, int64_t count) {
  bny_plan *plan = builder->plan;
  if (builder->slots_only || builder->status != BANYAN_OK) return;
  plan->sources =
      reserve(builder, plan->sources, &builder->sources_capacity, plan->nsources, count, sizeof *plan->sources);
  if (builder->status != BANYAN_OK) return;
  memcpy(plan->sources + plan->nsources, sources, (size_t)count * sizeof *sources);
  step->first = plan->nsources;
  step->count = (int32_t)count;
  step->message = -1;
  plan->nsources += (int32_t)count;
  step_add(builder, step);
}

/* Merges groups over `slice` until at most BNY_MERGE_SOURCES_MAX sources are left. Returns these, and their number in
 * *count. */
static const bny_source *group(bny_builder *builder, const bny_slice *slice, const bny_source *sources,
                               int64_t *count) {
  while (*count > BNY_MERGE_SOURCES_MAX && builder->status == BANYAN_OK) {
    int64_t groups = (*count + BNY_MERGE_SOURCES_MAX - 1) / BNY_MERGE_SOURCES_MAX;
    bny_source *merged = bny_builder_allocate(builder, groups, sizeof *merged);
    if (!merged) break;
    for (int64_t g = 0; g < groups; g++) {
      int64_t first = g * BNY_MERGE_SOURCES_MAX;
      int64_t members = *count - first < BNY_MERGE_SOURCES_MAX ? *count - first : BNY_MERGE_SOURCES_MAX;
      if (members == 1) {
        merged[g] = sources[first];
        continue;
      }
      int32_t slot = bny_builder_slot_private(builder, slice);
      bny_builder_merge(builder, slot, sources + first, members);
      merged[g] = bny_source_slot(slot);
    }
    sources = merged;
    *count = groups;
  }
  return sources;
}

int64_t bny_builder_group_slots(int64_t count) {
  int64_t slots = 0;
  while (count > BNY_MERGE_SOURCES_MAX) {
    count = (count + BNY_MERGE_SOURCES_MAX - 1) / BNY_MERGE_SOURCES_MAX;
    slots += count;
  }
  return slots;
}

int32_t bny_builder_group_roundings(int64_t count) {
  int32_t roundings = 0;
  for (; count > BNY_MERGE_SOURCES_MAX; roundings++)
    count = (count + BNY_MERGE_SOURCES_MAX - 1) / BNY_MERGE_SOURCES_MAX;
  return roundings;
}

void bny_builder_merge(bny_builder *builder, int32_t slot, const bny_source *sources, int64_t count) {
  bny_slice slice = bny_builder_slot_entry(builder, slot).slice;
  sources = group(builder, &slice, sources, &count);
  bny_step step = {.kind = BNY_STEP_MERGE, .slot = slot, .slice = slice};
  step_add_sources(builder, &step, sources, count);
}

void bny_builder_merge_or_copy(bny_builder *builder, int32_t slot, const bny_source *sources, int64_t count) {
  if (count == 0)
    bny_builder_copy(builder, slot);
  else
    bny_builder_merge(builder, slot, sources, count);
}

void bny_builder_deliver(bny_builder *builder, const bny_slice *slice, const bny_source *sources, int64_t count) {
  sources = group(builder, slice, sources, &count);
  if (builder->frame) {
    deliver_outside(builder, slice, sources, count);
    return;
  }
  bny_step step = {.kind = BNY_STEP_DELIVER, .slot = -1, .slice = *slice};
  step_add_sources(builder, &step, sources, count);
}

void bny_builder_deliver_one(bny_builder *builder, const bny_slice *slice, bny_source source) {
  bny_builder_deliver(builder, slice, &source, 1);
}

int32_t *bny_builder_others(bny_builder *builder) {
  int32_t nranks = builder->request->nranks;
  int32_t *others = bny_builder_allocate(builder, nranks, sizeof *others);
  for (int32_t i = 1; others && i < nranks; i++) others[i - 1] = bny_modulo((int64_t)builder->rank + i, nranks);
  return others;
}

/* ---- messages by key --------------------------------------------------------------------------------------------- */

static struct bny_peer_list *peer_list(bny_builder *builder, int32_t peer) {
  for (struct bny_peer_list *list = builder->lists; list; list = list->next)
    if (list->peer == peer) return list;
  struct bny_peer_list *list = calloc(1, sizeof *list);
  if (!list) {
    fail(builder, "the slots of a peer");
    return NULL;
  }
  bny_plan plan = {.rank = peer};
  bny_builder lister;
  bny_builder_init(&lister, builder->whole, builder->algorithm, peer, true, &plan);
  lister.choices = builder->choices;
  builder->algorithm->build(&lister);
  if (lister.status != BANYAN_OK) builder->status = lister.status;
  *list = (struct bny_peer_list){.next = builder->lists,
                                 .peer = peer,
                                 .nslots = plan.nslots,
                                 .slots = plan.slots,
                                 .keys = lister.keys,
                                 .starts = lister.starts,
                                 .aliases = lister.aliases,
                                 .nstarts = lister.nstarts,
                                 .naliases = lister.naliases};
  lister.keys = NULL; /* the list owns them now */
  lister.starts = NULL;
  lister.aliases = NULL;
  bny_builder_fini(&lister);
  builder->lists = list;
  return list;
}

bool bny_key_equal(bny_key a, bny_key b) {
  return a.frame == b.frame && a.phase == b.phase && a.piece == b.piece && a.low == b.low && a.high == b.high;
}

/* Returns the slot with that key, or -1. */
static int32_t list_find(struct bny_peer_list *list, bny_key key) {
  for (int32_t tried = 0; tried < list->nslots; tried++) {
    int32_t slot = (list->cursor + tried) % list->nslots;
    if (!bny_key_equal(list->keys[slot], key)) continue;
    list->cursor = (slot + 1) % list->nslots;
    return slot;
  }
  for (int32_t i = 0; i < list->naliases; i++)
    if (bny_key_equal(list->aliases[i].key, key)) return list->aliases[i].slot;
  return -1;
}

bny_source bny_builder_receive_key(bny_builder *builder, int32_t peer, bny_key key) {
  if (builder->slots_only || builder->status != BANYAN_OK) return no_source;
  if (key.frame == 0) key.frame = frame_id(builder);
  struct bny_peer_list *list = peer_list(builder, rank_outside(builder, peer));
  if (!list || builder->status != BANYAN_OK) return no_source;
  int32_t slot = list_find(list, key);
  if (slot >= 0) return message_add(builder, list->peer, slot, &list->slots[slot]);
  builder->status =
      bny_fail(BANYAN_ERR_STATE,
               "%s: rank %d expects of rank %d a slot that it does not make (phase %d, piece %d, ranks %d to %d)",
               builder->algorithm->name, builder->plan->rank, list->peer, key.phase, key.piece, key.low, key.high - 1);
  return no_source;
}
