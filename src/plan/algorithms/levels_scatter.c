/* SPDX-License-Identifier: Apache-2.0
 * Plans levels for HEADS and TOKENS (docs/algorithms.md#levels): an owner's partials are merged on their way to it.
 * Where a level has many groups, they reduce to the owner's group in rounds of blocks of k, k^2, .. groups. A block's
 * leader is the group of the owner if the block holds it, else its first group. k is a power of two, chosen by cost. A
 * carrier of its island represents an owner without a NIC up to the last level, and then sends it the rows. */
#include "plan/compose.h"

enum { HANDED_OVER = BNY_LEVELS_MAX };

/* The data of one owner, as merged so far on this rank. */
typedef struct unit {
  int32_t owner;
  int32_t lanes[BNY_LEVELS_MAX];
  bny_slice owned;
  bny_source *sources; /* in the order of ranks */
  int64_t count;
  bool here; /* this rank represents the owner at the current level */
} unit;

static bny_key unit_key(int32_t owner, int32_t level, int32_t round) {
  return (bny_key){.phase = BNY_PHASE_REDUCE, .piece = owner, .low = level, .high = round};
}

/* ---- rounds of a level ------------------------------------------------------------------------------------------- */

typedef struct radix {
  int32_t log2, rounds;
} radix;

/* Chooses the cheapest radix for `bytes` from the largest group of the level, for all its groups. Islands use one
 * direct round, because with more a rank would also represent owners of other lanes. For any radix, each group except
 * the owner's sends its data once, and each group has an owner. So every rank moves one unit for each other group. */
static radix radix_choose(const bny_request *request, int32_t level, double bytes) {
  const bny_level *at = &request->levels->levels[level];
  int32_t most = bny_log2_ceil(at->most);
  radix chosen = {.log2 = most < 1 ? 1 : most, .rounds = at->most > 1};
  double least = -1;
  for (int32_t log2 = chosen.log2; log2 >= 1 && level > 0; log2--) {
    radix one = {.log2 = log2, .rounds = 0};
    while ((int64_t)1 << (one.rounds * log2) < at->most) one.rounds++;
    double messages = one.rounds * (double)((1 << log2) - 1);
    if (one.rounds == 1) messages = at->most - 1;
    bny_estimate cost = {.rounds = one.rounds,
                         .messages = messages,
                         .bytes = (at->most - 1) * bytes,
                         .work_bytes = (at->most - 1 + one.rounds) * bytes};
    bny_request part = {.cost = at->link};
    double ns = bny_estimate_ns(&part, &cost);
    if (least >= 0 && ns >= least) continue;
    least = ns;
    chosen = one;
  }
  return chosen;
}

/* Blocks of one round: members [low, high) in sub-blocks of `size`. */
typedef struct block {
  int32_t low, high, size;
} block;

static block block_of(const radix *radix, int32_t members, int32_t index, int32_t round) {
  int64_t size = (int64_t)1 << (round * radix->log2), outer = size << radix->log2;
  int64_t low = index / outer * outer, high = low + outer;
  return (block){.low = (int32_t)low, .high = (int32_t)(high < members ? high : members), .size = (int32_t)size};
}

static int32_t leader_of(int32_t low, int32_t high, int32_t owners) {
  return owners >= low && owners < high ? owners : low;
}

/* Returns the owners with rows, this rank's successor first. */
static unit *units_find(bny_builder *builder, int32_t *count) {
  const bny_request *request = builder->request;
  bny_lane_range range = bny_compose_owners(request);
  int32_t owners = range.last - range.first;
  unit *units = bny_builder_allocate(builder, owners, sizeof *units);
  *count = 0;
  for (int32_t i = 0; units && i < owners; i++) {
    unit *one = &units[*count];
    one->owner = range.first + bny_modulo((int64_t)builder->rank + 1 + i, owners);
    one->owned = bny_slice_owned(request, one->owner);
    if (bny_slice_rows(&one->owned) == 0) continue;
    bny_compose_lanes_of(request->levels, one->owner, one->lanes);
    (*count)++;
  }
  return units;
}

static void unit_send(bny_builder *builder, unit *one, int32_t level, int32_t round, int32_t peer) {
  int32_t slot = bny_builder_slot(builder, &one->owned, unit_key(one->owner, level, round));
  bny_builder_merge_or_copy(builder, slot, one->sources, one->count);
  bny_builder_send(builder, slot, peer);
}

/* A level as seen by this rank. */
typedef struct view {
  int32_t level, group, members, index; /* index: this rank's member */
  radix radix;
} view;

static view view_of(const bny_builder *builder, int32_t level, double bytes) {
  const bny_levels *levels = builder->request->levels;
  const bny_level *at = &levels->levels[level];
  int32_t member = level == 0 ? builder->rank : bny_levels_group(levels, level - 1, builder->rank);
  view made = {.level = level, .group = at->group_of[member], .index = at->index[member]};
  made.members = at->first[made.group + 1] - at->first[made.group];
  made.radix = radix_choose(builder->request, level, bytes);
  return made;
}

static int32_t goal_of(const bny_levels *levels, const view *view, const unit *one) {
  if (view->level > 0)
    return bny_levels_part_of(levels->levels[view->level].most, view->members, one->lanes[view->level]);
  return levels->levels[0].index[bny_levels_carrier(levels, view->group, one->lanes[0])];
}

/* Returns the rank that represents the owner in the member at `index`. */
static int32_t rank_at(const bny_levels *levels, const view *view, const unit *one, int32_t index) {
  const bny_level *at = &levels->levels[view->level];
  int32_t member = at->members[at->first[view->group] + index];
  return view->level == 0 ? member : bny_compose_stand_in(levels, view->level - 1, member, one->lanes);
}

/* Receives from the leaders of the other sub-blocks. Own sources keep their index in the order. */
static void unit_receive(bny_builder *builder, unit *one, const view *view, int32_t round) {
  const bny_levels *levels = builder->request->levels;
  block all = block_of(&view->radix, view->members, view->index, round);
  int32_t goal = goal_of(levels, view, one), parts = (all.high - all.low + all.size - 1) / all.size;
  bool one_node = one->count == 0 || builder->request->call.order == BANYAN_ORDER_CANONICAL;
  bny_source stored, *own = one->sources;
  int64_t nown = one->count, count = 0;
  if (one_node && one->count != 1) {
    int32_t slot = bny_builder_slot_private(builder, &one->owned);
    bny_builder_merge_or_copy(builder, slot, one->sources, one->count);
    stored = bny_source_slot(slot);
    own = &stored;
    nown = 1;
  }
  bny_source *sources = bny_builder_allocate(builder, parts - 1 + nown, sizeof *sources);
  for (int32_t low = all.low; sources && low < all.high; low += all.size) {
    int32_t high = low + all.size < all.high ? low + all.size : all.high;
    if (view->index >= low && view->index < high) {
      for (int64_t k = 0; k < nown; k++) sources[count++] = own[k];
      continue;
    }
    int32_t peer = rank_at(levels, view, one, leader_of(low, high, goal));
    sources[count++] = bny_builder_receive_key(builder, peer, unit_key(one->owner, view->level, round));
  }
  one->sources = sources;
  one->count = count;
}

/* Runs one round for all units of this rank: it first sends everything, then waits. */
static void round_run(bny_builder *builder, unit *units, int32_t count, const view *view, int32_t round) {
  const bny_levels *levels = builder->request->levels;
  block all = block_of(&view->radix, view->members, view->index, round);
  for (int32_t i = 0; i < count; i++) {
    if (!units[i].here) continue;
    int32_t leader = leader_of(all.low, all.high, goal_of(levels, view, &units[i]));
    units[i].here = leader == view->index;
    if (!units[i].here) unit_send(builder, &units[i], view->level, round, rank_at(levels, view, &units[i], leader));
  }
  for (int32_t i = 0; i < count; i++)
    if (units[i].here) unit_receive(builder, &units[i], view, round);
}

static void take_over(bny_builder *builder) {
  const bny_request *request = builder->request;
  const bny_levels *levels = request->levels;
  unit one = {.owner = builder->rank, .owned = bny_slice_owned(request, builder->rank)};
  if (levels->carrier[builder->rank] || bny_slice_rows(&one.owned) == 0) return;
  bny_compose_lanes_of(levels, one.owner, one.lanes);
  int32_t carrier = bny_levels_carrier(levels, levels->levels[0].group_of[builder->rank], one.lanes[0]);
  bny_source source = bny_builder_receive_key(builder, carrier, unit_key(builder->rank, HANDED_OVER, 0));
  bny_builder_deliver_one(builder, &one.owned, source);
}

static void build(bny_builder *builder) {
  int32_t count;
  unit *units = units_find(builder, &count);
  bny_slice largest = bny_slice_piece_largest(builder->request, builder->request->nranks);
  double unit_bytes = (double)bny_slice_wire_bytes(builder->request, &largest);
  for (int32_t i = 0; i < count; i++) units[i].here = true;
  for (int32_t level = 0; level < builder->request->levels->nlevels; level++) {
    view view = view_of(builder, level, unit_bytes);
    for (int32_t round = 0; round < view.radix.rounds && builder->status == BANYAN_OK; round++)
      round_run(builder, units, count, &view, round);
  }
  for (int32_t i = 0; i < count; i++) {
    unit *one = &units[i];
    if (one->here && one->owner == builder->rank)
      bny_builder_deliver(builder, &one->owned, one->sources, one->count);
    else if (one->here)
      unit_send(builder, one, HANDED_OVER, 0, one->owner);
  }
  take_over(builder);
}

/* The number of owners in the lane of the first owner. No lane has more if the ranks of each island are consecutive. */
static double units_of_lane(const bny_levels *levels, bny_lane_range range) {
  const int32_t *index = levels->levels[0].index;
  int32_t units = 0;
  for (int32_t owner = range.first; owner < range.last; owner++)
    units += index[owner] % levels->lanes == index[range.first] % levels->lanes;
  return units;
}

static void estimate(const bny_request *request, bny_estimate *estimate) {
  const bny_levels *levels = request->levels;
  bny_lane_range range = bny_compose_owners(request);
  int64_t owners = range.last - range.first, most = bny_compose_units_most(levels, owners), members = 0, groups = 0,
          rounds = 0;
  bny_slice whole = bny_slice_whole(request), largest = bny_slice_piece_largest(request, request->nranks);
  double one = (double)bny_slice_wire_bytes(request, &largest), units = (double)owners;
  *estimate = (bny_estimate){.work_bytes = (double)bny_slice_wire_bytes(request, &whole)};
  for (int32_t level = 0; level < levels->nlevels; level++) {
    const bny_level *at = &levels->levels[level];
    bny_request part = bny_compose_request(request, level, at->most, &whole, request->call.scatter);
    radix radix = radix_choose(request, level, one);
    int64_t leads = ((int64_t)1 << radix.log2) - 1, from = radix.rounds == 1 ? at->most - 1 : radix.rounds * leads;
    double kept = level == 0 ? units_of_lane(levels, range) : units / at->most;
    kept = kept < 1 ? 1 : kept;
    bny_estimate cost = {.rounds = radix.rounds,
                         .messages = kept * (double)from,
                         .bytes = kept * (at->most - 1) * one,
                         .work_bytes = units * one + kept * (at->most - 1 + radix.rounds) * one,
                         .sends = units > kept ? units - kept : 1,
                         .bytes_sent = (units - kept > 0 ? units - kept : 0) * one};
    cost.ns = bny_estimate_ns(&part, &cost);
    cost.level_bytes[level] = cost.bytes_sent;
    bny_compose_add(estimate, &cost, 1);
    members += from + 1;
    groups += radix.rounds * bny_builder_group_slots(leads + 1);
    rounds += radix.rounds;
    units = kept;
  }
  /* One slot for each owner. Each unit that this rank represents is stored and merged at most once per round. */
  int64_t further = 2 * rounds + 2 + groups + bny_builder_group_slots(members);
  estimate->roundings = 1 + (int32_t)rounds;
  estimate->slots = owners + most * further;
  estimate->outbox_bytes = bny_slice_outbox_bytes(request, &largest) * (size_t)estimate->slots;
}

static const char *reject(const bny_request *request) { return bny_compose_reject(request, true); }

const bny_algorithm bny_algorithm_levels_scatter = {
    .name = "levels", .variant = "scatter", .reject = reject, .estimate = estimate, .build = build};
