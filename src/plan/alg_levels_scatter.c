/* SPDX-License-Identifier: Apache-2.0
 *
 * levels, for HEADS and TOKENS: what an owner gets is merged on its way to it, island by island, group by group. In
 * every group one rank stands for the owner, the carrier of the owner's lane: partials go over that rail alone, and the
 * last hop ends at the owner. There is no gather: S (g-1) / (g w) leave a rank of g islands of w carriers each.
 *
 * An owner without a NIC has a carrier of its island stand for it to the last, which then hands the rows over. */
#include "plan/compose.h"

enum { HANDED_OVER = BNY_LEVELS_MAX };

/* What one owner gets, as far as it has come on this rank. */
typedef struct unit {
  int32_t owner;
  int32_t lanes[BNY_LEVELS_MAX];
  bny_slice owned;
  bny_source *sources; /* in the order of ranks */
  int64_t count;
  bool here; /* this rank stands for the owner at the level at hand */
} unit;

static bny_key unit_key(int32_t owner, int32_t level) {
  return (bny_key){.phase = BNY_PHASE_REDUCE, .piece = owner, .low = level};
}

/* The owners with rows, this rank's neighbour first. */
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

static void unit_send(bny_builder *builder, unit *one, int32_t level, int32_t peer) {
  int32_t slot = bny_builder_slot(builder, &one->owned, unit_key(one->owner, level));
  if (one->count == 0)
    bny_builder_copy(builder, slot);
  else
    bny_builder_merge(builder, slot, one->sources, one->count);
  bny_builder_send(builder, slot, peer);
}

/* What this rank has becomes one source: in canonical order, and where it is only the input yet. */
static bny_source unit_store(bny_builder *builder, const unit *one) {
  int32_t slot = bny_builder_slot_private(builder, &one->owned);
  if (one->count == 0)
    bny_builder_copy(builder, slot);
  else
    bny_builder_merge(builder, slot, one->sources, one->count);
  return bny_source_slot(slot);
}

/* The ranks that stand for the owner in the members of the group send what they have; own sources keep their place. */
static void unit_receive(bny_builder *builder, unit *one, int32_t level) {
  const bny_levels *levels = builder->request->levels;
  const bny_level *at = &levels->levels[level];
  int32_t group = bny_levels_group(levels, level, builder->rank);
  int32_t mine = level == 0 ? builder->rank : bny_levels_group(levels, level - 1, builder->rank);
  bool one_node = one->count == 0 || builder->request->order == BANYAN_ORDER_CANONICAL;
  bny_source stored, *own = one->sources;
  int64_t nown = one->count;
  if (one_node && one->count != 1) {
    stored = unit_store(builder, one);
    own = &stored;
    nown = 1;
  }
  int32_t members = at->first[group + 1] - at->first[group];
  bny_source *sources = bny_builder_allocate(builder, members - 1 + nown, sizeof *sources);
  int64_t count = 0;
  for (int32_t i = 0; sources && i < members; i++) {
    int32_t member = at->members[at->first[group] + i];
    if (member == mine) {
      for (int64_t k = 0; k < nown; k++) sources[count++] = own[k];
      continue;
    }
    int32_t peer = level == 0 ? member : bny_compose_stand_in(levels, level - 1, member, one->lanes);
    int32_t message = bny_builder_receive_key(builder, peer, unit_key(one->owner, level));
    bny_builder_wait(builder, message);
    sources[count++] = bny_source_message(message);
  }
  one->sources = sources;
  one->count = count;
}

static void unit_finish(bny_builder *builder, unit *one) {
  if (one->owner == builder->rank)
    bny_builder_deliver(builder, &one->owned, one->sources, one->count);
  else
    unit_send(builder, one, HANDED_OVER, one->owner);
}

static void take_over(bny_builder *builder) {
  const bny_request *request = builder->request;
  const bny_levels *levels = request->levels;
  unit one = {.owner = builder->rank, .owned = bny_slice_owned(request, builder->rank)};
  if (levels->carrier[builder->rank] || bny_slice_rows(&one.owned) == 0) return;
  bny_compose_lanes_of(levels, one.owner, one.lanes);
  int32_t carrier = bny_levels_carrier(levels, levels->levels[0].group_of[builder->rank], one.lanes[0]);
  int32_t message = bny_builder_receive_key(builder, carrier, unit_key(builder->rank, HANDED_OVER));
  bny_builder_wait(builder, message);
  bny_builder_deliver_one(builder, &one.owned, bny_source_message(message));
}

static void build(bny_builder *builder) {
  const bny_levels *levels = builder->request->levels;
  int32_t count;
  unit *units = units_find(builder, &count);
  for (int32_t i = 0; i < count; i++) units[i].here = true;
  for (int32_t level = 0; level < levels->nlevels && builder->status == BANYAN_OK; level++) {
    int32_t group = bny_levels_group(levels, level, builder->rank);
    for (int32_t i = 0; i < count; i++) {
      if (!units[i].here) continue;
      int32_t peer = bny_compose_stand_in(levels, level, group, units[i].lanes);
      units[i].here = peer == builder->rank;
      if (!units[i].here) unit_send(builder, &units[i], level, peer);
    }
    for (int32_t i = 0; i < count; i++)
      if (units[i].here) unit_receive(builder, &units[i], level);
  }
  for (int32_t i = 0; i < count; i++)
    if (units[i].here) unit_finish(builder, &units[i]);
  take_over(builder);
}

/* ---- estimate ---------------------------------------------------------------------------------------------------- */

static void estimate(const bny_request *request, bny_estimate *estimate) {
  const bny_levels *levels = request->levels;
  bny_lane_range range = bny_compose_owners(request);
  int64_t owners = range.last - range.first, most = bny_compose_units_most(levels, owners), members = 0, groups = 0;
  bny_slice whole = bny_slice_whole(request), largest = bny_slice_piece_largest(request, request->nranks);
  double one = (double)bny_slice_wire_bytes(request, &largest), units = (double)owners;
  *estimate = (bny_estimate){.work_bytes = (double)bny_slice_wire_bytes(request, &whole)};
  for (int32_t level = 0; level < levels->nlevels; level++) {
    const bny_level *at = &levels->levels[level];
    bny_request part = bny_compose_request(request, level, at->most, &whole, request->scatter);
    double kept = level == 0 ? (double)most : units / at->most;
    kept = kept < 1 ? 1 : kept;
    bny_estimate cost = {.rounds = at->most > 1 ? 1 : 0,
                         .messages = kept * (at->most - 1),
                         .bytes = kept * (at->most - 1) * one,
                         .work_bytes = units * one + kept * at->most * one,
                         .bytes_sent = (units - kept > 0 ? units - kept : 0) * one};
    estimate->ns += bny_estimate_ns(&part, &cost);
    estimate->rounds += cost.rounds;
    estimate->messages += cost.messages;
    estimate->bytes += cost.bytes;
    estimate->work_bytes += cost.work_bytes;
    estimate->bytes_sent += cost.bytes_sent;
    estimate->level_bytes[level] = cost.bytes_sent;
    members += at->most;
    groups += bny_builder_group_slots(at->most);
    units = kept;
  }
  /* One slot for each owner; each of those that this rank stands for is stored, merged and sent on once per level. */
  int64_t further = 2 * levels->nlevels + 1 + groups + bny_builder_group_slots(members);
  estimate->slots = owners + most * further;
  estimate->outbox_bytes = bny_slice_outbox_bytes(request, &largest) * (size_t)estimate->slots;
}

static const char *refuse(const bny_request *request) {
  if (!request->levels || request->levels->nlevels < 2) return "all ranks are alike: there is one level";
  if (request->collective != BNY_COMBINE) return "it serves combine";
  if (request->scatter != BANYAN_SCATTER_HEADS && request->scatter != BANYAN_SCATTER_TOKENS)
    return "it serves scatter heads and tokens";
  if (request->order == BANYAN_ORDER_CANONICAL && !request->levels->aligned)
    return "canonical order needs groups that are consecutive, equal powers of two of ranks";
  return NULL;
}

const bny_algorithm bny_algorithm_levels_scatter = {
    .name = "levels", .variant = "scatter", .refuse = refuse, .estimate = estimate, .build = build};
