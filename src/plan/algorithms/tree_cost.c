/* SPDX-License-Identifier: Apache-2.0
 * Computes the cost of a tree, and chooses the cheapest shape and number of pieces. While the first piece travels the
 * whole way, the others follow at the pace of the rank that merges most. */
#include <string.h>

#include "plan/slice.h"
#include "plan/algorithms/tree_shape.h"

enum {
  PIECE_BYTES = 8192, /* from about this size a piece pays for its signals */
  OWNERS_LOOKED_AT = 64
};

/* A way to cut the box. */
typedef struct tree_cut {
  int32_t pieces;
  double bytes; /* size of the largest piece */
  size_t room;  /* bytes of one slot per piece in an outbox */
} tree_cut;

enum { CUTS_MAX = 7 }; /* 1, 2, 4 .. BNY_TREE_PIECES_MAX */

/* All that a shape's cost depends on, computed once for all cuts. */
typedef struct tree_weight {
  double hops;     /* rounds to the root */
  double children; /* merged on the longest path to the root */
  double most;     /* children merged by the rank that merges most */
  int32_t stages;  /* merge stages on the rank that has most */
  int32_t level;   /* outermost level of its links */
  /* with levels only: */
  bny_tree_time up, down;
  bny_tree_round busiest;  /* messages of one piece over the busiest rank's links */
  bny_tree_links links;    /* those of that rank */
  double both_ns_per_byte; /* where pieces go up and down at once: by the busiest link, which carries one more */
} tree_weight;

static void weigh_links(const bny_tree_shape *shape, const bny_tree_round *round, tree_weight *weight) {
  bny_tree_time up = bny_tree_round_time(shape->levels, round, true);
  bny_tree_time down = bny_tree_round_time(shape->levels, round, false);
  weight->up.fixed_ns += up.fixed_ns;
  weight->up.ns_per_byte += up.ns_per_byte;
  weight->down.fixed_ns += down.fixed_ns;
  weight->down.ns_per_byte += down.ns_per_byte;
  for (int32_t level = 0; level < shape->levels->nlevels; level++) {
    int32_t *over = &weight->busiest.over[level], more = round->over[level];
    *over = shape->strategy->piles ? *over + more : more > *over ? more : *over;
    if (more > 0 && level > weight->level) weight->level = level;
  }
}

static tree_weight weigh(const bny_tree_shape *shape) {
  tree_weight weight = {.busiest = {.times = 1}};
  bny_tree_round rounds[BNY_TREE_ROUNDS_MAX];
  int32_t count = weight.stages = shape->strategy->rounds(shape, rounds);
  for (int32_t i = 0; i < count; i++) {
    double children = rounds[i].children;
    weight.hops += rounds[i].times;
    weight.children += rounds[i].times * children;
    weight.most = shape->strategy->piles ? weight.most + children : children > weight.most ? children : weight.most;
    if (shape->levels) weigh_links(shape, &rounds[i], &weight);
  }
  if (!shape->strategy->piles && weight.stages > 0) weight.stages = weight.hops > 1 ? 2 : 1;
  if (shape->levels && count > 0) {
    bny_tree_round both = weight.busiest;
    weight.links = bny_tree_links_of(shape->levels, &weight.busiest);
    if (!shape->strategy->piles && weight.hops > 1) both.over[weight.level]++;
    weight.both_ns_per_byte = bny_tree_links_of(shape->levels, &both).ns_per_byte;
  }
  return weight;
}

static double cut_bytes(const bny_request *request, int32_t pieces) {
  bny_slice whole = bny_slice_whole(request);
  if (pieces == 1) return (double)bny_slice_wire_bytes(request, &whole);
  if (request->call.collective == BNY_BROADCAST) return (double)whole.bytes / pieces;
  bny_slice piece = bny_slice_piece_largest(request, pieces);
  return (double)bny_slice_wire_bytes(request, &piece);
}

/* Fills in the cuts to try and returns their number. Pieces cost signals, and switches where ranks take turns on a
 * core. */
static int32_t cuts_make(const bny_request *request, tree_cut cuts[CUTS_MAX]) {
  bny_slice whole = bny_slice_whole(request);
  bool up = bny_call_merges(&request->call);
  size_t bytes = bny_slice_wire_bytes(request, &whole), room = bny_slice_outbox_bytes(request, &whole);
  int64_t most = (int64_t)(bytes / PIECE_BYTES), rows = bny_slice_rows(&whole);
  if (up && rows < most) most = rows;
  if (bny_request_has_owners(request) || request->nranks == 1 || request->cost.ranks_per_core > 1) most = 1;
  int32_t count = 0;
  for (int32_t pieces = 1; count == 0 || (pieces <= most && pieces <= BNY_TREE_PIECES_MAX); pieces *= 2)
    cuts[count++] = (tree_cut){.pieces = pieces,
                               .bytes = cut_bytes(request, pieces),
                               .room = pieces > 1 && up ? bny_owners_pieces_bytes(request, pieces) : room};
  return count;
}

/* Without levels: rounds, messages, bytes and work of the rank that finishes last. */
static void estimate_flat(const bny_request *request, const tree_weight *weight, const tree_cut *cut,
                          bny_estimate *estimate) {
  double later = cut->pieces - 1, received = 0, handled = 1; /* both in pieces */
  if (bny_call_merges(&request->call)) {
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
  estimate->bytes += received * cut->bytes;
  estimate->work_bytes += handled * cut->bytes;
}

/* With levels: the same model as bny_plan_cost_ns(). The pace is that of the busiest link or of the work. */
static double levels_ns(const bny_request *request, const tree_weight *weight, const tree_cut *cut) {
  const bny_link_cost *work = &request->levels->levels[0].link;
  double handled = cut->bytes * work->gamma_ns_per_byte * (work->ranks_per_core > 1 ? work->ranks_per_core : 1);
  const bny_tree_links *links = &weight->links;
  bool goes_down = bny_tree_goes_down(request);
  double pace = links->ns_per_byte * cut->bytes, ns = handled, later = cut->pieces - 1;
  double both = goes_down ? weight->both_ns_per_byte * cut->bytes : pace;
  double up = weight->most * links->seen_ns + links->posted_ns + (weight->most + weight->stages + 1) * handled;
  double down = links->seen_ns + weight->most * links->posted_ns + 2 * handled;
  if (bny_call_merges(&request->call))
    ns += weight->up.fixed_ns + weight->up.ns_per_byte * cut->bytes + later * (up > both ? up : both);
  if (goes_down)
    ns += weight->down.fixed_ns + weight->down.ns_per_byte * cut->bytes + later * (down > pace ? down : pace) + handled;
  return ns;
}

/* The time of the owners' slices on the root's links, from a sample if there are many owners. */
static double owners_ns(const bny_request *request, int32_t root, const bny_owners *owners) {
  const bny_levels *levels = request->levels;
  int32_t looks = owners->nonempty < OWNERS_LOOKED_AT ? owners->nonempty : OWNERS_LOOKED_AT;
  double bytes[BNY_LEVELS_MAX] = {0}, alpha = 0, longest = 0;
  for (int32_t i = 0; i < looks; i++) {
    int32_t owner = owners->first + (int32_t)((int64_t)i * owners->nonempty / looks);
    if (owner == root) continue;
    bny_slice owned = bny_slice_owned(request, owner);
    int32_t level = bny_levels_between(levels, root, owner);
    const bny_link_cost *link = &levels->levels[level].link;
    bytes[level] += (double)bny_slice_wire_bytes(request, &owned) * owners->nonempty / looks;
    double ns = bytes[level] * link->beta_ns_per_byte;
    alpha = link->alpha_ns > alpha ? link->alpha_ns : alpha;
    longest = ns > longest ? ns : longest;
  }
  return alpha + longest;
}

/* The root's slices to the owners cost the same in any shape. */
static bny_estimate estimate_owners(const bny_request *request) {
  bny_estimate estimate = {.pattern = BNY_PATTERN_DOUBLING};
  if (!bny_call_merges(&request->call) || !bny_request_has_owners(request) || request->nranks == 1) return estimate;
  int32_t root = bny_tree_root(request);
  bny_slice largest = bny_slice_piece_largest(request, request->nranks);
  double one = (double)bny_slice_wire_bytes(request, &largest);
  bny_owners owners = bny_owners_of(request, 0, request->nranks);
  bny_owners self = bny_owners_of(request, root, root + 1);
  estimate.slots = owners.nonempty;
  estimate.outbox_bytes = owners.bytes;
  if (owners.nonempty == self.nonempty) return estimate;
  estimate.rounds = estimate.messages = 1;
  estimate.bytes = one;
  estimate.work_bytes = (double)owners.bytes + one;
  if (request->levels)
    estimate.ns =
        owners_ns(request, root, &owners) + estimate.work_bytes * request->levels->levels[0].link.gamma_ns_per_byte;
  return estimate;
}

/* Sets the bytes of the rank that sends most, and their levels. */
static void estimate_sent(const bny_request *request, const bny_tree_shape *shape, const tree_weight *weight,
                          double all, bny_estimate *estimate) {
  bool up = bny_call_merges(&request->call), down = bny_tree_goes_down(request), piles = shape->strategy->piles;
  if (request->nranks == 1) return;
  /* Below the root a rank of a balanced tree sends up as well. Others have one child less than the root. */
  estimate->bytes_sent = down ? (weight->most + (up && !piles && weight->hops > 1 ? 1 : 0)) * all : up ? all : 0;
  if (!request->levels) return;
  if (!down || !piles) {
    estimate->level_bytes[weight->level] = estimate->bytes_sent;
    return;
  }
  for (int32_t level = 0; level < request->levels->nlevels; level++)
    estimate->level_bytes[level] = weight->busiest.over[level] * all;
}

/* Time and memory of a shape and a cut, plus the owners' slices. */
static bny_estimate estimate_cut(const bny_request *request, const tree_weight *weight, const tree_cut *cut,
                                 const bny_estimate *owners) {
  bny_estimate estimate = *owners;
  bool up = bny_call_merges(&request->call), down = bny_tree_goes_down(request) && request->nranks > 1;
  estimate_flat(request, weight, cut, &estimate);
  if (request->levels) estimate.ns += levels_ns(request, weight, cut);
  /* Each round up is a merge. The last is delivered unrounded if only the root gets it. */
  bool alone = !down && !bny_request_has_owners(request) && weight->hops > 0;
  estimate.roundings = 1 + (int32_t)weight->hops - (alone ? 1 : 0);
  int32_t slots = (up ? weight->stages > 1 ? weight->stages : 1 : 0) + (down || !up ? 1 : 0);
  estimate.slots += (int64_t)slots * cut->pieces;
  estimate.outbox_bytes += (size_t)slots * cut->room;
  return estimate;
}

int32_t bny_tree_choose(const bny_request *request, const bny_tree_strategy *strategy, bny_tree_shape *shape,
                        bny_estimate *estimate) {
  tree_cut cuts[CUTS_MAX];
  tree_weight chosen_weight = {.hops = 0};
  bny_tree_shape offered;
  int32_t ncuts = cuts_make(request, cuts), chosen = 0;
  double least = 0;
  bny_estimate owners = estimate_owners(request);
  for (int32_t option = 0; bny_tree_offer(strategy, request, cuts[0].bytes, option, &offered); option++) {
    tree_weight weight = weigh(&offered);
    for (int32_t i = 0; i < ncuts; i++) {
      bny_estimate one = estimate_cut(request, &weight, &cuts[i], &owners);
      double ns = bny_estimate_ns(request, &one);
      bool has_fit = chosen > 0 && bny_estimate_fits(request, estimate), one_fits = bny_estimate_fits(request, &one);
      if (chosen > 0 && (one_fits == has_fit ? ns >= least : has_fit)) continue;
      chosen = cuts[i].pieces;
      least = ns;
      chosen_weight = weight;
      *shape = offered;
      *estimate = one;
    }
  }
  estimate_sent(request, shape, &chosen_weight, cuts[0].bytes, estimate);
  estimate->pieces = chosen;
  memcpy(estimate->radix, shape->radix, sizeof estimate->radix);
  return chosen;
}
