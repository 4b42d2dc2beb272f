/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tree costs, and which shape and number of pieces cost least. While the first piece goes all the way, the
 * others follow it at the pace of the rank that merges most. */
#include "plan/owners.h"
#include "plan/tree_shape.h"

enum {
  PIECE_BYTES = 8192, /* a piece pays for its signals from about here on */
  OWNERS_LOOKED_AT = 64
};

typedef struct tree_weight {
  int32_t count;
  bny_tree_round rounds[BNY_TREE_ROUNDS_MAX];
  double hops;     /* rounds to the root */
  double children; /* merged on the longest way there */
  double most;     /* merged by the rank that merges most */
  int32_t stages;  /* of merging, on one rank at most */
  int32_t level;   /* the farthest of links */
} tree_weight;

static tree_weight weigh(const bny_tree_shape *shape) {
  tree_weight weight = {.hops = 0};
  weight.count = weight.stages = shape->strategy->rounds(shape, weight.rounds);
  for (int32_t i = 0; i < weight.count; i++) {
    const bny_tree_round *round = &weight.rounds[i];
    double children = round->children;
    weight.hops += round->times;
    weight.children += round->times * children;
    weight.most = shape->strategy->piles ? weight.most + children : children > weight.most ? children : weight.most;
    for (int32_t level = 0; level < BNY_LEVELS_MAX; level++)
      if (round->over[level] > 0 && level > weight.level) weight.level = level;
  }
  if (!shape->strategy->piles && weight.stages > 0) weight.stages = weight.hops > 1 ? 2 : 1;
  return weight;
}

/* The largest of so many pieces. */
static double piece_bytes(const bny_request *request, int32_t pieces) {
  bny_slice whole = bny_slice_whole(request);
  if (pieces == 1) return (double)bny_slice_wire_bytes(request, &whole);
  if (request->collective == BNY_BROADCAST) return (double)whole.bytes / pieces;
  bny_slice piece = bny_slice_piece_largest(request, pieces);
  return (double)bny_slice_wire_bytes(request, &piece);
}

/* Ranks reach one another alike: rounds, messages, bytes and work of the rank that is last. */
static void estimate_flat(const bny_request *request, const tree_weight *weight, int32_t pieces,
                          bny_estimate *estimate) {
  double bytes = piece_bytes(request, pieces), later = pieces - 1;
  double received = 0, handled = 1; /* in pieces */
  if (request->collective == BNY_COMBINE) {
    estimate->rounds += weight->hops;
    estimate->messages += weight->children + later * weight->most;
    received += weight->children + later * weight->most;
    handled += (weight->hops > 0 ? weight->children + weight->hops : 1) + later * (weight->most + weight->stages + 1);
  }
  if (bny_tree_goes_down(request) && weight->hops > 0) {
    estimate->rounds += weight->hops;
    estimate->messages += weight->hops + later;
    received += weight->hops + later;
    handled += weight->hops + 2 * later;
  }
  estimate->bytes = received * bytes;
  estimate->work_bytes = handled * bytes;
}

/* Over levels: as bny_plan_cost_ns() has it. The pace is that of the busiest link, or of the work. */
static double estimate_levels_ns(const bny_request *request, const bny_tree_shape *shape, const tree_weight *weight,
                                 int32_t pieces) {
  const bny_levels *levels = request->levels;
  const bny_link_cost *work = &levels->levels[0].link;
  double bytes = piece_bytes(request, pieces), gamma = work->gamma_ns_per_byte;
  if (work->ranks_per_core > 1) gamma *= work->ranks_per_core;
  double ns = bytes * gamma, pace = 0, alpha = 0;
  bny_tree_round busiest = {.times = 1}; /* all that one rank's links carry */
  for (int32_t i = 0; i < weight->count; i++) {
    const bny_tree_round *round = &weight->rounds[i];
    double seen;
    if (request->collective == BNY_COMBINE) ns += bny_tree_round_ns(levels, round, bytes, true);
    if (bny_tree_goes_down(request)) ns += bny_tree_round_ns(levels, round, bytes, false);
    for (int32_t level = 0; level < levels->nlevels; level++) {
      int32_t *over = &busiest.over[level], more = round->over[level];
      *over = shape->strategy->piles ? *over + more : more > *over ? more : *over;
    }
    pace = bny_tree_links_ns(levels, &busiest, bytes, &seen);
    alpha = seen / 4 > alpha ? seen / 4 : alpha;
  }
  double up = weight->most * alpha + (weight->most + weight->stages + 1) * bytes * gamma;
  double down = alpha + 2 * bytes * gamma;
  if (request->collective == BNY_COMBINE) ns += (pieces - 1) * (up > pace ? up : pace);
  if (bny_tree_goes_down(request)) ns += (pieces - 1) * (down > pace ? down : pace) + bytes * gamma;
  return ns;
}

/* How long the root's links carry the owners' slices: some owners are looked at where they are many. */
static double owners_ns(const bny_request *request, const bny_tree_shape *shape, const bny_owners *owners) {
  const bny_levels *levels = request->levels;
  int32_t looks = owners->nonempty < OWNERS_LOOKED_AT ? owners->nonempty : OWNERS_LOOKED_AT;
  double bytes[BNY_LEVELS_MAX] = {0}, alpha = 0, longest = 0;
  for (int32_t i = 0; i < looks; i++) {
    int32_t owner = owners->first + (int32_t)((int64_t)i * owners->nonempty / looks);
    if (owner == shape->root) continue;
    bny_slice owned = bny_slice_owned(request, owner);
    int32_t level = bny_levels_between(levels, shape->root, owner);
    const bny_link_cost *link = &levels->levels[level].link;
    bytes[level] += (double)bny_slice_wire_bytes(request, &owned) * owners->nonempty / looks;
    double ns = bytes[level] * link->beta_ns_per_byte;
    alpha = link->alpha_ns > alpha ? link->alpha_ns : alpha;
    longest = ns > longest ? ns : longest;
  }
  return alpha + longest;
}

/* The root's slices to the owners. */
static void estimate_owners(const bny_request *request, const bny_tree_shape *shape, bny_estimate *estimate) {
  bny_slice largest = bny_slice_piece_largest(request, request->nranks);
  double one = (double)bny_slice_wire_bytes(request, &largest);
  bny_owners owners = bny_owners_of(request, 0, request->nranks);
  bny_owners self = bny_owners_of(request, shape->root, shape->root + 1);
  estimate->slots += owners.nonempty;
  estimate->outbox_bytes += owners.bytes;
  if (owners.nonempty == self.nonempty) return;
  estimate->rounds += 1;
  estimate->messages += 1;
  estimate->bytes += one;
  estimate->work_bytes += (double)owners.bytes + one;
  if (request->levels)
    estimate->ns += owners_ns(request, shape, &owners) +
                    ((double)owners.bytes + one) * request->levels->levels[0].link.gamma_ns_per_byte;
}

static void estimate_levels(const bny_request *request, const bny_tree_shape *shape, const tree_weight *weight,
                            int32_t pieces, bny_estimate *estimate) {
  bny_slice whole = bny_slice_whole(request);
  double all = (double)bny_slice_wire_bytes(request, &whole);
  bool spread = bny_tree_goes_down(request) && shape->strategy->piles;
  estimate->ns = estimate_levels_ns(request, shape, weight, pieces);
  for (int32_t i = 0; spread && i < weight->count; i++)
    for (int32_t level = 0; level < request->levels->nlevels; level++)
      estimate->level_bytes[level] += weight->rounds[i].over[level] * all;
  if (!spread) estimate->level_bytes[weight->level] = estimate->bytes_sent;
}

static void estimate_shape(const bny_request *request, const bny_tree_shape *shape, const tree_weight *weight,
                           int32_t pieces, bny_estimate *estimate) {
  bny_slice whole = bny_slice_whole(request);
  double all = (double)bny_slice_wire_bytes(request, &whole);
  bool up = request->collective == BNY_COMBINE, down = bny_tree_goes_down(request) && request->nranks > 1;
  size_t room = bny_slice_outbox_bytes(request, &whole);
  *estimate = (bny_estimate){.pattern = BNY_PATTERN_DOUBLING};
  estimate_flat(request, weight, pieces, estimate);
  if (request->nranks > 1) estimate->bytes_sent = up ? all : 0;
  /* Below the root a rank of a balanced tree sends up as well; one of the others has a child less than the root. */
  if (down) estimate->bytes_sent = (weight->most + (up && !shape->strategy->piles && weight->hops > 1 ? 1 : 0)) * all;
  if (request->levels) estimate_levels(request, shape, weight, pieces, estimate);
  int32_t slots = (up ? weight->stages > 1 ? weight->stages : 1 : 0) + (down || !up ? 1 : 0);
  estimate->slots = (int64_t)slots * pieces;
  if (pieces > 1 && up) room = bny_owners_pieces_bytes(request, pieces);
  estimate->outbox_bytes = (size_t)slots * room;
  if (up && bny_tree_goes_to_owners(request) && request->nranks > 1) estimate_owners(request, shape, estimate);
}

/* Pieces cost signals; where ranks take turns on a core they cost switches as well. */
static int32_t pieces_most(const bny_request *request) {
  bny_slice whole = bny_slice_whole(request);
  if (bny_tree_goes_to_owners(request) || request->nranks == 1 || request->cost.ranks_per_core > 1) return 1;
  int64_t most = (int64_t)(bny_slice_wire_bytes(request, &whole) / PIECE_BYTES), rows = bny_slice_rows(&whole);
  if (request->collective == BNY_COMBINE && rows < most) most = rows;
  return most > BNY_TREE_PIECES_MAX ? BNY_TREE_PIECES_MAX : most < 1 ? 1 : (int32_t)most;
}

static bool fits(const bny_request *request, const bny_estimate *estimate) {
  return estimate->outbox_bytes <= request->outbox_bytes && estimate->slots <= request->slots_max;
}

int32_t bny_tree_choose(const bny_request *request, const bny_tree_strategy *strategy, bny_tree_shape *shape,
                        bny_estimate *estimate) {
  bny_tree_shape offered;
  int32_t chosen = 0, most = pieces_most(request);
  double all = piece_bytes(request, 1), least = 0;
  for (int32_t option = 0; bny_tree_offer(strategy, request, all, option, &offered); option++) {
    tree_weight weight = weigh(&offered);
    for (int32_t pieces = 1; pieces <= most; pieces *= 2) {
      bny_estimate one;
      estimate_shape(request, &offered, &weight, pieces, &one);
      double ns = bny_estimate_ns(request, &one);
      bool has_fit = chosen > 0 && fits(request, estimate), one_fits = fits(request, &one);
      if (chosen > 0 && (one_fits == has_fit ? ns >= least : has_fit)) continue;
      chosen = pieces;
      least = ns;
      *shape = offered;
      *estimate = one;
    }
  }
  return chosen;
}
