/* SPDX-License-Identifier: Apache-2.0
 * Plans levels for an all-gather: the bytes of a rank cross every link between groups once. The rank sends them to the
 * ranks that represent it in the other groups of the outermost level, over the rail of its lane. These forward them in
 * their groups, level by level, and in the island to all ranks. For a rank without a NIC, a carrier of its island
 * sends. */
#include "plan/compose.h"
#include "plan/spread.h"

/* Returns the holder of the bytes in the level-`level` group of `rank`; for a carrier, itself. */
static int32_t holder(const bny_levels *levels, int32_t level, int32_t rank, const int32_t *lanes) {
  return bny_compose_stand_in(levels, level, bny_levels_group(levels, level, rank), lanes);
}

/* The rank that sends this rank the bytes of `owner`. */
static int32_t source_of(const bny_levels *levels, int32_t rank, int32_t owner, const int32_t *lanes) {
  int32_t giver = owner;
  for (;;) {
    int32_t level = bny_levels_between(levels, rank, giver);
    if (level == 0) return giver;
    int32_t here = holder(levels, level - 1, rank, lanes);
    if (here == rank) return holder(levels, level - 1, giver, lanes);
    giver = here;
  }
}

/* Fills in the ranks that get the bytes of `owner` from this rank. These are the ranks of its island, and at each level
 * that the bytes did not enter from a sibling group, one rank of each sibling group. `peers` has room for all. */
static int32_t receivers_of(const bny_levels *levels, int32_t rank, int32_t owner, const int32_t *lanes,
                            int32_t *peers) {
  const bny_level *islands = &levels->levels[0];
  int32_t island = islands->group_of[rank], count = 0;
  bool stands = holder(levels, 0, rank, lanes) == rank, home = islands->group_of[owner] == island;
  if (rank == owner || (stands && !home))
    for (int32_t i = islands->first[island]; i < islands->first[island + 1]; i++)
      if (islands->members[i] != rank) peers[count++] = islands->members[i];
  for (int32_t level = 1; level < levels->nlevels && holder(levels, level - 1, rank, lanes) == rank; level++) {
    int32_t mine = bny_levels_group(levels, level - 1, rank), group = bny_levels_group(levels, level, rank);
    bool inside = bny_levels_group(levels, level, owner) == group;
    bool enters =
        inside ? bny_levels_group(levels, level - 1, owner) == mine : holder(levels, level, rank, lanes) == rank;
    if (!enters) break; /* the bytes came from a sibling group */
    const bny_level *at = &levels->levels[level];
    for (int32_t i = at->first[group]; i < at->first[group + 1]; i++)
      if (at->members[i] != mine) peers[count++] = bny_compose_stand_in(levels, level - 1, at->members[i], lanes);
  }
  return count;
}

/* Returns the number of hops from the owner to this rank. */
static int32_t depth_of(const bny_levels *levels, int32_t rank, int32_t owner, const int32_t *lanes) {
  int32_t depth = 0;
  for (; rank != owner; depth++) rank = source_of(levels, rank, owner, lanes);
  return depth;
}

/* Receives, forwards and delivers the bytes of one owner. */
static void pass_on(bny_builder *builder, int32_t owner, const int32_t *lanes, int32_t *peers) {
  const bny_levels *levels = builder->request->levels;
  int32_t rank = builder->rank, receivers = receivers_of(levels, rank, owner, lanes, peers);
  bny_slice bytes = bny_slice_input(builder->request, owner);
  bny_source source = bny_source_slot(0);
  if (owner != rank)
    source = bny_builder_receive_key(builder, source_of(levels, rank, owner, lanes), bny_spread_key(owner));
  if (owner == rank || receivers > 0) {
    int32_t slot = bny_builder_slot(builder, &bytes, bny_spread_key(owner));
    bny_builder_merge_or_copy(builder, slot, &source, owner != rank);
    bny_builder_send_list(builder, slot, peers, receivers);
    source = bny_source_slot(slot);
  }
  bny_builder_deliver_one(builder, &bytes, source);
}

/* Proceeds by hops: the data that a rank waits for was sent in the round before, so waits form no cycle. */
static void build(bny_builder *builder) {
  const bny_request *request = builder->request;
  int32_t nranks = request->nranks, rank = builder->rank, deepest = 0, lanes[BNY_LEVELS_MAX];
  int32_t *peers = bny_builder_allocate(builder, nranks, sizeof *peers);
  int32_t *depths = bny_builder_allocate(builder, nranks, sizeof *depths);
  if (!peers || !depths) return;
  for (int32_t owner = 0; owner < nranks; owner++) {
    bny_compose_lanes_of(request->levels, owner, lanes);
    bny_slice input = bny_slice_input(request, owner);
    depths[owner] = !bny_slice_is_empty(request, &input) ? depth_of(request->levels, rank, owner, lanes) : -1;
    deepest = depths[owner] > deepest ? depths[owner] : deepest;
  }
  for (int32_t depth = 0; depth <= deepest; depth++) {
    for (int32_t i = 0; i < nranks; i++) {
      int32_t owner = bny_modulo((int64_t)rank - i, nranks);
      if (depths[owner] != depth) continue;
      bny_compose_lanes_of(request->levels, owner, lanes);
      pass_on(builder, owner, lanes, peers);
    }
  }
}

static void estimate(const bny_request *request, bny_estimate *estimate) {
  const bny_levels *levels = request->levels;
  double p = request->nranks, inner = 1, left = p - 1;
  bny_slice whole = bny_slice_whole(request);
  double all = (double)bny_slice_wire_bytes(request, &whole), mean = all / p;
  size_t largest = bny_slice_inputs(request).largest;
  *estimate = (bny_estimate){.slots = 1 + bny_compose_units_most(levels, request->nranks)};
  estimate->outbox_bytes = (largest + 63) / 64 * 64 * (size_t)estimate->slots;
  for (int32_t level = levels->nlevels - 1; level >= 0; level--) {
    inner = 1;
    for (int32_t k = 0; k < level; k++) inner *= levels->levels[k].most;
    double outer = inner * levels->levels[level].most;
    double received = level == 0 ? left : (outer < p ? outer : p) / inner - 1;
    bny_request part = *request;
    part.levels = NULL;
    part.cost = levels->levels[level].link;
    bny_estimate cost = {.rounds = 1,
                         .messages = received,
                         .bytes = received * mean,
                         .work_bytes = level == 0 ? all + 2 * mean : received * mean,
                         .bytes_sent = level == 0 ? left * mean : received * mean};
    cost.ns = bny_estimate_ns(&part, &cost);
    cost.level_bytes[level] = cost.bytes_sent;
    bny_compose_add(estimate, &cost, 1);
    left -= received;
  }
}

static const char *reject(const bny_request *request) {
  if (!request->levels || request->levels->nlevels < 2) return "all ranks are alike: there is one level";
  return bny_call_gathers(&request->call) ? NULL : "it serves allgather and allgather-heads";
}

const bny_algorithm bny_algorithm_levels_allgather = {
    .name = "levels", .variant = "allgather", .reject = reject, .estimate = estimate, .build = build};
