/* SPDX-License-Identifier: Apache-2.0
 * Plans recursive halving (docs/algorithms.md). If there are 2^q + e ranks, the odd ranks among the first 2 e send
 * their partial to the even rank before them. This leaves 2^q *virtual* ranks: virtual v represents ranks [real(v),
 * real(v + 1)), real(v) = v + min(v, e), and its first does the work.
 *
 * Partners differ in one bit of v. Near: the nearest partner comes first. Contributions are then always an aligned
 * block of v, as the canonical order needs, but position pos of the halved box ends at the virtual rank with pos's bits
 * reversed. Far: the furthest partner comes first. Position v then ends at virtual rank v, its owner under HEADS and
 * TOKENS, so these use far in plan order. */
#include "plan/forest.h"
#include "plan/spread.h"

typedef struct fold_shape {
  int32_t levels; /* q */
  int32_t extras; /* e */
  bool near;
  bool owned; /* positions are ranges of owners */
} fold_shape;

static fold_shape shape_of(const bny_request *request) {
  fold_shape shape = {.levels = bny_log2_floor(request->nranks)};
  shape.extras = request->nranks - (int32_t)((int64_t)1 << shape.levels);
  shape.owned = bny_request_has_owners(request);
  shape.near = !shape.owned || request->call.order == BANYAN_ORDER_CANONICAL;
  return shape;
}

static int32_t real_of(const fold_shape *shape, int32_t virtual) {
  return virtual + (virtual < shape->extras ? virtual : shape->extras);
}

static int32_t virtual_of(const fold_shape *shape, int32_t rank) {
  return rank < 2 * shape->extras ? rank / 2 : rank - shape->extras;
}

static bool is_extra(const fold_shape *shape, int32_t rank) { return rank < 2 * shape->extras && rank % 2 == 1; }

/* Converts a virtual rank to its position, and a position to its virtual rank. */
static int32_t position_of(const fold_shape *shape, int32_t virtual) {
  if (!shape->near) return virtual;
  int32_t reversed = 0;
  for (int32_t bit = 0; bit < shape->levels; bit++) reversed |= ((virtual >> bit) & 1) << (shape->levels - 1 - bit);
  return reversed;
}

static int32_t holder_rank(const fold_shape *shape, int32_t position) {
  return real_of(shape, position_of(shape, position));
}

/* The box of positions [low, high). */
static bny_slice box_of(const bny_request *request, const fold_shape *shape, int32_t low, int32_t high) {
  if (shape->owned) return bny_slice_owned_range(request, real_of(shape, low), real_of(shape, high));
  return bny_slice_halved(request, shape->levels, low, high);
}

static bny_slice piece_of(const bny_request *request, int32_t rank) {
  fold_shape shape = shape_of(request);
  if (is_extra(&shape, rank)) return (bny_slice){.tokens = 0};
  int32_t position = position_of(&shape, virtual_of(&shape, rank));
  return box_of(request, &shape, position, position + 1);
}

/* The ranks whose contributions virtual rank v has merged before round k. In the far form this is only a label, because
 * the order is the plan's. */
static bny_rank_set contributions(const fold_shape *shape, int32_t virtual, int32_t round) {
  int32_t first = shape->near ? virtual >> round << round : virtual;
  int32_t low = real_of(shape, first);
  if (!shape->near) return (bny_rank_set){.first = low, .count = 1};
  return (bny_rank_set){.first = low, .count = real_of(shape, first + (int32_t)((int64_t)1 << round)) - low};
}

typedef struct halving {
  bny_builder *builder;
  fold_shape shape;
  int32_t virtual;
  int32_t low, high; /* current positions */
  bny_forest forest;
} halving;

static void add_own(halving *run, const bny_slice *box) {
  bny_builder *builder = run->builder;
  int32_t slot = bny_builder_slot_private(builder, box);
  bny_builder_copy(builder, slot);
  bny_forest_add(builder, &run->forest, builder->rank, builder->rank + 1, bny_source_slot(slot));
}

/* Adds the whole input, if a virtual rank represents two ranks or is alone, and the extra rank's partial. */
static void begin(halving *run) {
  bny_builder *builder = run->builder;
  bny_slice whole = bny_slice_whole(builder->request);
  bool folded = run->virtual < run->shape.extras;
  if (folded || run->shape.levels == 0) add_own(run, &whole);
  if (!folded) return;
  int32_t extra = builder->rank + 1;
  bny_forest_add(builder, &run->forest, extra, extra + 1,
                 bny_builder_receive_key(builder, extra, (bny_key){.phase = BNY_PHASE_OWN}));
}

static void halve(halving *run, int32_t round) {
  bny_builder *builder = run->builder;
  const bny_request *request = builder->request;
  const fold_shape *shape = &run->shape;
  int32_t bit = shape->near ? round : shape->levels - 1 - round;
  int32_t partner = run->virtual ^ (1 << bit), peer = real_of(shape, partner);
  int32_t middle = run->low + (run->high - run->low) / 2;
  bool upper = (run->virtual >> bit) & 1;
  bny_slice sent = box_of(request, shape, upper ? run->low : middle, upper ? middle : run->high);
  bny_rank_set set = contributions(shape, run->virtual, round);
  if (upper)
    run->low = middle;
  else
    run->high = middle;
  bny_slice kept = box_of(request, shape, run->low, run->high);
  /* Nothing has been copied yet, so each half is copied to its destination. */
  bool first = round == 0 && run->virtual >= shape->extras;
  if (bny_slice_rows(&sent) > 0 && first) {
    bny_node node;
    bny_forest_cover(request, set, &node);
    int32_t slot = bny_builder_copy_made(builder, &sent, bny_node_key(BNY_PHASE_REDUCE, round, &node));
    bny_builder_send(builder, slot, peer);
  } else if (bny_slice_rows(&sent) > 0) {
    bny_forest_send(builder, &run->forest, &sent, peer, BNY_PHASE_REDUCE, round, set);
  }
  if (bny_slice_rows(&kept) == 0) return;
  if (first) add_own(run, &kept);
  bny_forest_receive(builder, &run->forest, peer, BNY_PHASE_REDUCE, round, contributions(shape, partner, round));
}

/* HEADS, TOKENS: sends the parts of the current position to their owners. */
static void give_to_owners(halving *run) {
  bny_builder *builder = run->builder;
  int32_t last = real_of(&run->shape, run->high);
  bool is_owner = false;
  for (int32_t owner = real_of(&run->shape, run->low); owner < last; owner++) {
    bny_slice owned = bny_slice_owned(builder->request, owner);
    int64_t count = 0;
    if (owner == builder->rank) is_owner = true;
    if (owner == builder->rank || bny_slice_rows(&owned) == 0) continue;
    const bny_source *sources = bny_forest_complete(builder, &run->forest, &owned, &count);
    int32_t slot = bny_builder_slot(builder, &owned, (bny_key){.phase = BNY_PHASE_RESULT, .piece = owner});
    bny_builder_merge(builder, slot, sources, count);
    bny_builder_send(builder, slot, owner);
  }
  bny_slice own = bny_slice_owned(builder->request, builder->rank);
  if (is_owner && bny_slice_rows(&own) > 0) {
    int64_t count = 0;
    const bny_source *sources = bny_forest_complete(builder, &run->forest, &own, &count);
    bny_result_merge(builder, &own, -1, sources, count);
  }
}

static void take_from_holder(bny_builder *builder, const fold_shape *shape) {
  bny_slice own = bny_slice_owned(builder->request, builder->rank);
  int32_t holder = holder_rank(shape, virtual_of(shape, builder->rank));
  if (holder == builder->rank || bny_slice_rows(&own) == 0) return;
  bny_key key = {.phase = BNY_PHASE_RESULT, .piece = builder->rank};
  bny_builder_deliver_one(builder, &own, bny_builder_receive_key(builder, holder, key));
}

/* Slot 0 of a holder is its result, so that a root knows the entries of all ranks. */
static void reduce(bny_builder *builder, const fold_shape *shape, int32_t *result) {
  halving run = {.builder = builder, .shape = *shape, .virtual = virtual_of(shape, builder->rank)};
  run.high = (int32_t)((int64_t)1 << shape->levels);
  bny_slice piece = piece_of(builder->request, builder->rank);
  *result = shape->owned ? -1 : bny_result_reserve(builder, &piece);
  begin(&run);
  for (int32_t round = 0; round < shape->levels; round++) halve(&run, round);
  if (bny_slice_rows(&piece) == 0) return;
  if (shape->owned) {
    give_to_owners(&run);
    return;
  }
  int64_t count = 0;
  const bny_source *sources = bny_forest_complete(builder, &run.forest, &piece, &count);
  bny_result_merge(builder, &piece, *result, sources, count);
}

static void build(bny_builder *builder) {
  const bny_request *request = builder->request;
  fold_shape shape = shape_of(request);
  bny_slice whole = bny_slice_whole(request);
  int32_t result = -1;
  if (bny_slice_rows(&whole) == 0) return;
  if (is_extra(&shape, builder->rank)) {
    int32_t slot = bny_builder_copy_made(builder, &whole, (bny_key){.phase = BNY_PHASE_OWN});
    bny_builder_send(builder, slot, builder->rank - 1);
  } else {
    reduce(builder, &shape, &result);
  }
  if (shape.owned) {
    take_from_holder(builder, &shape);
  } else if (request->call.scatter == BANYAN_SCATTER_NONE && request->nranks > 1) {
    bny_spread_bruck(builder, piece_of, result);
  } else if (request->call.scatter == BANYAN_SCATTER_ROOT) {
    bny_spread_to_root(builder, piece_of, result, bny_builder_first_slot(builder), bny_builder_first_offset(builder));
  }
}

static const char *reject(const bny_request *request) {
  return bny_call_merges(&request->call) ? NULL : "there is nothing to merge";
}

/* Boxes after some halvings: each dimension has at most two extents for each number of times that it was halved. */
enum { EXTENTS_MAX = 4 * 32 };

typedef struct halved_boxes {
  int32_t count;
  bny_slice boxes[EXTENTS_MAX]; /* distinct extents; positions do not matter */
} halved_boxes;

static void add_extent(halved_boxes *all, const bny_slice *box) {
  for (int32_t i = 0; i < all->count; i++)
    if (all->boxes[i].tokens == box->tokens && all->boxes[i].heads == box->heads) return;
  if (all->count < EXTENTS_MAX) all->boxes[all->count++] = *box;
}

static void halve_all(const bny_request *request, halved_boxes *all) {
  halved_boxes before = *all;
  bny_request one = *request;
  all->count = 0;
  for (int32_t i = 0; i < before.count; i++) {
    one.tokens = before.boxes[i].tokens;
    one.heads = before.boxes[i].heads;
    for (int32_t half = 0; half < 2; half++) {
      bny_slice box = bny_slice_halved(&one, 1, half, half + 1);
      add_extent(all, &box);
    }
  }
}

/* HEADS and TOKENS: the first virtual ranks represent two ranks, and the first owners own more. Boxes therefore shrink,
 * except for the first, which the request's box may clip. */
static bny_slice largest_owned(const bny_request *request, const fold_shape *shape, int32_t positions) {
  bny_slice whole = bny_slice_whole(request), largest = {.tokens = 0};
  bool by_heads = request->call.scatter == BANYAN_SCATTER_HEADS;
  int64_t low = 0, end = (int64_t)1 << shape->levels;
  if (bny_slice_rows(&whole) == 0) return largest;
  if (!request->pieces) {
    int32_t first = bny_levels_part_of(by_heads ? request->call.all_heads : request->call.all_tokens, request->nranks,
                                       by_heads ? request->head0 : request->token0);
    low = virtual_of(shape, first) / positions * positions;
    if (low + 2 * (int64_t)positions < end) end = low + 2 * (int64_t)positions;
  }
  for (; low < end; low += positions) {
    bny_slice box = box_of(request, shape, (int32_t)low, (int32_t)low + positions);
    if (bny_slice_rows(&box) > bny_slice_rows(&largest)) largest = box;
  }
  return largest;
}

/* The largest box of 2^(levels - times) positions; `all` are those of one halving less. */
static bny_slice largest_box(const bny_request *request, const fold_shape *shape, int32_t times, halved_boxes *all) {
  if (shape->owned) return largest_owned(request, shape, (int32_t)((int64_t)1 << (shape->levels - times)));
  if (times > 0) halve_all(request, all);
  bny_slice largest = all->boxes[0];
  for (int32_t i = 1; i < all->count; i++)
    if (bny_slice_rows(&all->boxes[i]) > bny_slice_rows(&largest)) largest = all->boxes[i];
  return largest;
}

/* Returns the largest number of nodes in which contributions travel in a round. A block of folded ranks is one node.
 * Blocks without folded ranks are equal, except that the last may be short. One block may be mixed. */
static int32_t most_nodes(const bny_request *request, const fold_shape *shape, int32_t round) {
  bny_node nodes[BNY_FOREST_COVER_MAX];
  int32_t most = 1, size = (int32_t)((int64_t)1 << round), mixed = shape->extras / size * size;
  for (int64_t v = mixed; shape->near && v <= (int64_t)mixed + size && v < (int64_t)1 << shape->levels; v += size) {
    int32_t count = bny_forest_cover(request, contributions(shape, (int32_t)v, round), nodes);
    most = count > most ? count : most;
  }
  return most;
}

static void estimate(const bny_request *request, bny_estimate *estimate) {
  fold_shape shape = shape_of(request);
  int32_t p = request->nranks, fold = shape.extras > 0 ? 1 : 0;
  bool canonical = request->call.order == BANYAN_ORDER_CANONICAL, to_all = request->call.scatter == BANYAN_SCATTER_NONE;
  bny_slice whole = bny_slice_whole(request), piece = whole;
  halved_boxes boxes = {.count = 1, .boxes = {whole}};
  double all = (double)bny_slice_wire_bytes(request, &whole);
  int64_t at_hand = 1 + fold; /* nodes of the forest: merging n of them takes at most n - 1 private slots */
  bool hands_over = shape.owned && (fold || (shape.near && shape.levels > 1));
  double spread = p == 1 || shape.owned ? 0 : p - 1;
  *estimate = (bny_estimate){.pattern = BNY_PATTERN_HALVING,
                             .rounds = shape.levels + fold,
                             .messages = fold,
                             .bytes = fold * all,
                             .slots = 1,
                             .work_bytes = all,
                             .outbox_bytes = bny_slice_outbox_bytes(request, &whole)};
  for (int32_t round = 0; round < shape.levels; round++) {
    bny_slice box = piece = largest_box(request, &shape, round + 1, &boxes);
    int32_t nodes = most_nodes(request, &shape, round);
    double bytes = (double)bny_slice_wire_bytes(request, &box);
    int64_t made = nodes + (canonical ? at_hand - 1 : 0);
    estimate->messages += nodes;
    estimate->bytes += nodes * bytes;
    estimate->bytes_sent += nodes * bytes;
    estimate->work_bytes += bytes * (double)at_hand;
    estimate->slots += made;
    estimate->outbox_bytes += bny_slice_outbox_bytes(request, &box) * (size_t)made;
    at_hand += nodes;
  }
  /* Owners are far apart: an extra's rows pass all rounds only if extras outnumber half of the virtual ranks. */
  int32_t folded = shape.owned && 2 * (int64_t)shape.extras <= (int64_t)1 << shape.levels ? 0 : fold;
  estimate->roundings = shape.levels + folded + (hands_over || spread > 0 ? 1 : 0);
  estimate->roundings = estimate->roundings > 1 ? estimate->roundings : 1;
  double one = (double)bny_slice_wire_bytes(request, &piece);
  size_t room = bny_slice_outbox_bytes(request, &piece);
  int64_t results = shape.owned ? 2 : 1; /* merged at the end: the own and an extra rank's, or one */
  int64_t made = results * (canonical ? at_hand : 1) + (to_all ? bny_spread_bruck_forwards(p) : 0);
  estimate->slots += made;
  estimate->outbox_bytes += room * (size_t)made;
  estimate->rounds += hands_over ? 1 : spread == 0 ? 0 : to_all ? bny_log2_ceil(p) : 1;
  estimate->messages += hands_over ? 1 : spread;
  estimate->bytes += hands_over ? one : spread > 0 ? all - one : 0;
  estimate->bytes_sent += hands_over ? one : to_all ? all - one : spread > 0 ? one : 0;
  estimate->work_bytes += one * (double)at_hand +
                          (spread > 0 ? all * bny_payload_of(&request->call)->delivery + (to_all ? all / 2 : 0) : 0);
}

const bny_algorithm bny_algorithm_recursive_halving = {
    .name = "recursive", .variant = "halving", .reject = reject, .estimate = estimate, .build = build};
