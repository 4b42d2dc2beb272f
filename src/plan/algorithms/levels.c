/* SPDX-License-Identifier: Apache-2.0
 * Plans levels (docs/algorithms.md#levels): scatter, the same scheme over the next level, all-gather. Scatter and last
 * level are flat algorithms in frames, the cheapest for size and level. A result is forwarded as soon as it is
 * complete. A group of one forwards its input. ROOT: the last level and each all-gather send to the group, then to the
 * member, where the root is. */
#include "plan/compose.h"

extern const bny_algorithm bny_algorithm_levels;

/* The ranks that share one box at one level: the members of an island, or the carriers of a piece in all islands of a
 * group. */
typedef struct part {
  int32_t level;
  const struct part *inner;      /* the part whose piece this box is; NULL: none */
  int32_t lanes[BNY_LEVELS_MAX]; /* by level below: index of the piece that this part combines */
  int64_t path;                  /* `lanes` as one number */
  bny_slice box;
  int32_t group;  /* its number at this level */
  int32_t count;  /* ranks: one for each member of the group, see rank_at() */
  int32_t index;  /* index of this rank */
  int32_t toward; /* ROOT: index of the root or of the rank that represents it; -1: not in this part */
  bny_pieces pieces;
  int32_t *first; /* pieces.first */
  bool by_heads;
} part;

enum { FRAME_SCATTER = 1, FRAME_COMBINE, FRAME_GATHER };

static int64_t frame_id(const part *part, int kind) {
  return ((part->path + 1) * BNY_LEVELS_MAX + part->level) * 4 + kind;
}

static bool is_last(const bny_request *request, int32_t level) { return level == request->levels->nlevels - 1; }

static int32_t rank_at(const bny_builder *builder, const void *context, int32_t index) {
  const part *at = context;
  const bny_levels *levels = builder->whole->levels;
  int32_t member = levels->levels[at->level].members[levels->levels[at->level].first[at->group] + index];
  return at->level == 0 ? member : bny_compose_stand_in(levels, at->level - 1, member, at->lanes);
}

/* ---- making parts ------------------------------------------------------------------------------------------------ */

static void pieces_find(bny_builder *builder, part *part) {
  const bny_levels *levels = builder->whole->levels;
  part->pieces.count = bny_compose_pieces(levels, part->level);
  part->by_heads = bny_compose_by_heads(&part->box, part->pieces.count);
  part->first = bny_builder_allocate(builder, part->count + 1, sizeof *part->first);
  if (!part->first) return;
  int32_t carriers = part->level == 0 ? bny_levels_carriers(levels, part->group) : part->count, carrier = 0;
  for (int32_t i = 0; i < part->count; i++) {
    part->first[i + 1] = part->first[i];
    if (part->level > 0 || levels->carrier[rank_at(builder, part, i)])
      part->first[i + 1] = bny_compose_lanes(part->pieces.count, carriers, carrier++).last;
  }
  part->pieces.first = part->first;
}

static part *part_island(bny_builder *builder) {
  const bny_request *request = builder->whole;
  const bny_level *level = &request->levels->levels[0];
  int32_t rank = builder->plan->rank, island = level->group_of[rank];
  part *made = bny_builder_allocate(builder, 1, sizeof *made);
  if (!made) return NULL;
  made->box = bny_slice_whole(request);
  made->group = island;
  made->count = level->first[island + 1] - level->first[island];
  made->index = level->index[rank];
  made->toward = -1;
  if (request->call.scatter == BANYAN_SCATTER_ROOT && level->group_of[request->call.root] == island)
    made->toward = level->index[request->call.root];
  pieces_find(builder, made);
  return made;
}

/* Makes the part of the next level in which the carriers of `piece` of `inner` combine it. */
static part *part_outside(bny_builder *builder, const part *inner, int32_t piece) {
  const bny_request *request = builder->whole;
  const bny_levels *levels = request->levels;
  int32_t below = inner->level, group = bny_levels_group(levels, below + 1, builder->plan->rank);
  const bny_level *level = &levels->levels[below + 1];
  part *made = bny_builder_allocate(builder, 1, sizeof *made);
  if (!made) return NULL;
  bny_slice box = bny_slice_cut(&inner->box, inner->by_heads, inner->pieces.count, piece, piece + 1);
  *made = (part){.level = below + 1, .inner = inner, .box = box, .group = group, .toward = -1};
  for (int32_t k = 0; k < below; k++) made->lanes[k] = inner->lanes[k];
  made->lanes[below] = piece;
  made->path = inner->path * (int64_t)(inner->pieces.count + 1) + piece + 1;
  made->count = level->first[group + 1] - level->first[group];
  made->index = level->index[bny_levels_group(levels, below, builder->plan->rank)];
  if (request->call.scatter == BANYAN_SCATTER_ROOT) {
    int32_t root = bny_levels_group(levels, below, request->call.root);
    if (level->group_of[root] == group) made->toward = level->index[root];
  }
  if (!is_last(request, made->level)) pieces_find(builder, made);
  return builder->status == BANYAN_OK ? made : NULL;
}

/* ---- results on their way into the islands ----------------------------------------------------------------------- */

static bny_key tile_key(const part *part, const bny_slice *tile) {
  return (bny_key){
      .frame = frame_id(part, FRAME_GATHER), .phase = BNY_PHASE_RESULT, .piece = tile->token0, .low = tile->head0};
}

/* Returns the number of other ranks of a part that get a result from this one. */
static int32_t receivers(bny_builder *builder, const part *part, int32_t **peers) {
  int32_t count = 0;
  *peers = NULL;
  if (builder->whole->call.scatter == BANYAN_SCATTER_ROOT) {
    if (part->toward < 0 || part->toward == part->index) return 0;
    *peers = bny_builder_allocate(builder, 1, sizeof **peers);
    if (*peers) **peers = rank_at(builder, part, part->toward);
    return *peers ? 1 : 0;
  }
  int32_t *others = bny_builder_allocate(builder, part->count, sizeof *others);
  for (int32_t i = 1; others && i < part->count; i++)
    others[count++] = rank_at(builder, part, bny_modulo((int64_t)part->index + i, part->count));
  *peers = others;
  return count;
}

/* Returns a slot that holds the tile, with this key: an own slot if that is the only source. */
static int32_t tile_store(bny_builder *builder, const bny_slice *tile, const bny_source *sources, int64_t count,
                          bny_key key) {
  if (count == 1 && sources[0].message < 0) {
    bny_slot entry = bny_builder_slot_entry(builder, sources[0].slot);
    if (bny_slice_equal(&entry.slice, tile)) {
      bny_builder_alias(builder, sources[0].slot, key);
      return sources[0].slot;
    }
  }
  int32_t slot = bny_builder_slot(builder, tile, key);
  bny_builder_merge(builder, slot, sources, count);
  return slot;
}

/* Sends finished rows of a piece of `part` to its other ranks and to those of the inner parts, and delivers them. NULL:
 * delivers only. A value merged here goes through a slot even if no rank receives it, because a slot rounds and other
 * ranks deliver from one. */
static void give(bny_builder *builder, const part *part, const bny_slice *tile, const bny_source *sources,
                 int64_t count) {
  bool to_root = builder->whole->call.scatter == BANYAN_SCATTER_ROOT;
  bny_source stored;
  for (; part; part = part->inner) {
    int32_t *peers, npeers = receivers(builder, part, &peers);
    if (npeers > 0 || (count > 1 && !to_root)) {
      int32_t slot = tile_store(builder, tile, sources, count, tile_key(part, tile));
      bny_builder_send_list(builder, slot, peers, npeers);
      stored = bny_source_slot(slot);
      sources = &stored;
      count = 1;
    }
    if (to_root && part->toward != part->index) return;
  }
  bny_builder_deliver(builder, tile, sources, count);
}

/* ---- a part ------------------------------------------------------------------------------------------------------ */

typedef struct values {
  const bny_source *sources;
  int64_t count;
  const part *of;
} values;

static int32_t rank_at_values(const bny_builder *builder, const void *context, int32_t index) {
  const values *kept = context;
  return rank_at(builder, kept->of, index);
}

/* Keeps the sources of this rank's pieces, merged over the part, for the next level. All arrive in one delivery. */
static void keep_values(bny_builder *builder, void *context, const bny_slice *slice, const bny_source *sources,
                        int64_t count) {
  values *kept = context;
  bny_source *copy = bny_builder_allocate(builder, count, sizeof *copy);
  (void)slice;
  for (int64_t i = 0; copy && i < count; i++) copy[i] = sources[i];
  kept->sources = copy;
  kept->count = count;
}

static values scatter_part(bny_builder *builder, const part *part, values input) {
  if (part->count == 1) return input;
  values kept = {.of = part};
  bny_request request = bny_compose_request(builder->whole, part->level, part->count, &part->box,
                                            part->by_heads ? BANYAN_SCATTER_HEADS : BANYAN_SCATTER_TOKENS);
  request.pieces = &part->pieces;
  bny_frame frame = {.id = frame_id(part, FRAME_SCATTER),
                     .request = &request,
                     .rank = part->index,
                     .input = input.sources,
                     .ninput = input.count,
                     .deliver = keep_values,
                     .rank_outside = rank_at_values,
                     .context = &kept};
  bny_builder_run(builder, &frame, bny_compose_choose(&request, builder->choices, NULL));
  return kept;
}

static bny_request last_request(const bny_request *whole, const part *last) {
  bool to_root = whole->call.scatter == BANYAN_SCATTER_ROOT;
  bny_request request = bny_compose_request(whole, last->level, last->count, &last->box,
                                            to_root ? BANYAN_SCATTER_ROOT : BANYAN_SCATTER_NONE);
  request.call.root = to_root ? last->toward : 0;
  return request;
}

static void give_tile(bny_builder *builder, void *context, const bny_slice *slice, const bny_source *sources,
                      int64_t count) {
  const part *last = context;
  give(builder, last->inner, slice, sources, count);
}

static void combine_last(bny_builder *builder, part *last, values input) {
  bny_request request = last_request(builder->whole, last);
  bny_frame frame = {.id = frame_id(last, FRAME_COMBINE),
                     .request = &request,
                     .rank = last->index,
                     .input = input.sources,
                     .ninput = input.count,
                     .deliver = give_tile,
                     .rank_outside = rank_at,
                     .context = last};
  bny_builder_run(builder, &frame, bny_compose_choose(&request, builder->choices, NULL));
}

/* Receives, tile by tile, the results that the rank at `index` has of `outside`, a piece of `part`. */
static void take_tiles(bny_builder *builder, const part *part, int32_t index, const struct part *outside) {
  const bny_request *request = builder->whole;
  if (bny_slice_rows(&outside->box) == 0) return;
  if (!is_last(request, outside->level)) {
    for (int32_t piece = 0; piece < outside->pieces.count; piece++) {
      const struct part *further = part_outside(builder, outside, piece);
      if (further) take_tiles(builder, part, index, further);
    }
    return;
  }
  int32_t count = 0;
  bny_request last = last_request(request, outside);
  const bny_slice *tiles =
      bny_compose_tiles(builder, &last, bny_compose_choose(&last, builder->choices, NULL), last.call.root, &count);
  for (int32_t i = 0; i < count; i++) {
    bny_source source = bny_builder_receive_key(builder, rank_at(builder, part, index), tile_key(part, &tiles[i]));
    give(builder, part->inner, &tiles[i], &source, 1);
  }
}

static void gather_part(bny_builder *builder, const part *part) {
  if (builder->slots_only && !part->inner) return; /* makes no slot */
  if (builder->whole->call.scatter == BANYAN_SCATTER_ROOT && part->toward != part->index) return;
  for (int32_t i = 1; i < part->count; i++) {
    int32_t index = bny_modulo((int64_t)part->index - i, part->count);
    for (int32_t piece = part->first[index]; piece < part->first[index + 1]; piece++) {
      const struct part *outside = part_outside(builder, part, piece);
      if (outside) take_tiles(builder, part, index, outside);
    }
  }
}

static void combine_part(bny_builder *builder, part *part, values input) {
  if (builder->status != BANYAN_OK || bny_slice_rows(&part->box) == 0) return;
  if (is_last(builder->whole, part->level)) {
    combine_last(builder, part, input);
    return;
  }
  values mine = scatter_part(builder, part, input);
  for (int32_t piece = part->first[part->index]; piece < part->first[part->index + 1]; piece++) {
    struct part *outside = part_outside(builder, part, piece);
    if (outside) combine_part(builder, outside, mine);
  }
  gather_part(builder, part);
}

static void build(bny_builder *builder) {
  bny_choices choices = {.count = 0};
  if (!builder->choices) builder->choices = &choices;
  part *island = part_island(builder);
  if (island && builder->status == BANYAN_OK) combine_part(builder, island, (values){.count = 0});
  if (builder->choices == &choices) builder->choices = NULL;
}

/* ---- estimate ---------------------------------------------------------------------------------------------------- */

/* The cost of a part for one rank, and the slots that hold its results on their way into the islands. */
typedef struct outlook {
  bny_estimate cost;
  int64_t tiles;
  size_t tile_bytes;
} outlook;

static void cost_add(bny_estimate *sum, const bny_estimate *more, double times) {
  bny_compose_add(sum, more, times);
  sum->outbox_bytes += more->outbox_bytes * (size_t)times;
  sum->slots += more->slots * (int64_t)times;
  sum->roundings += more->roundings; /* a value passes through one of them */
}

static void larger(double *value, double other) { *value = other > *value ? other : *value; }

static void cost_max(bny_estimate *most, const bny_estimate *other) {
  larger(&most->rounds, other->rounds);
  larger(&most->messages, other->messages);
  larger(&most->bytes, other->bytes);
  larger(&most->work_bytes, other->work_bytes);
  larger(&most->bytes_sent, other->bytes_sent);
  larger(&most->ns, other->ns);
  if (other->outbox_bytes > most->outbox_bytes) most->outbox_bytes = other->outbox_bytes;
  if (other->slots > most->slots) most->slots = other->slots;
  if (other->roundings > most->roundings) most->roundings = other->roundings;
  for (int32_t k = 0; k < BNY_LEVELS_MAX; k++) larger(&most->level_bytes[k], other->level_bytes[k]);
}

/* The cost of a flat algorithm's part, on the level's links only. */
static bny_estimate cost_of_flat(const bny_request *part, bny_choices *choices, int32_t level) {
  bny_estimate cost = {0};
  bny_compose_choose(part, choices, &cost);
  cost.ns = bny_estimate_ns(part, &cost);
  cost.level_bytes[level] = cost.bytes_sent;
  return cost;
}

static outlook outlook_last(bny_builder *scratch, const bny_slice *box) {
  const bny_request *request = scratch->whole;
  int32_t level = request->levels->nlevels - 1, count = 0;
  part last = {.level = level, .box = *box, .count = request->levels->levels[level].most};
  bny_request flat = last_request(request, &last);
  outlook made = {.cost = cost_of_flat(&flat, scratch->choices, level)};
  const bny_algorithm *algorithm = bny_compose_choose(&flat, scratch->choices, NULL);
  const bny_slice *tiles = bny_compose_tiles(scratch, &flat, algorithm, flat.call.root, &count);
  made.tiles = count;
  for (int32_t i = 0; i < count; i++) made.tile_bytes += bny_slice_outbox_bytes(request, &tiles[i]);
  return made;
}

/* The cost of a scatter over a group of this shape. Carriers come first, because their positions do not affect
 * bounds. */
static bny_estimate cost_of_scatter(bny_builder *scratch, int32_t level, const bny_slice *box, bny_group_shape shape) {
  int32_t pieces = bny_compose_pieces(scratch->whole->levels, level);
  bool by_heads = bny_compose_by_heads(box, pieces);
  int32_t *first = bny_builder_allocate(scratch, shape.members + 1, sizeof *first);
  bny_pieces owned = {.count = pieces, .first = first};
  if (shape.members == 1 || !first) return (bny_estimate){0};
  for (int32_t i = 0; i < shape.members; i++)
    first[i + 1] = i < shape.carriers ? bny_compose_lanes(pieces, shape.carriers, i).last : pieces;
  bny_request flat = bny_compose_request(scratch->whole, level, shape.members, box,
                                         by_heads ? BANYAN_SCATTER_HEADS : BANYAN_SCATTER_TOKENS);
  flat.pieces = &owned;
  return cost_of_flat(&flat, scratch->choices, level);
}

/* The cost of an all-gather, in which every member gets the tiles of the others' pieces. */
static bny_estimate cost_of_gather(const bny_request *request, int32_t level, const bny_slice *box, int32_t members,
                                   double tiles, const bny_slice *piece) {
  bool to_root = request->call.scatter == BANYAN_SCATTER_ROOT;
  double all = (double)bny_slice_wire_bytes(request, box), share = members > 1 ? (members - 1.0) / members : 0;
  bny_request flat = bny_compose_request(request, level, members, box, BANYAN_SCATTER_NONE);
  bny_estimate cost = {.rounds = members > 1 ? 1 : 0,
                       .messages = tiles * share,
                       .bytes = all * share,
                       .work_bytes = level == 0 ? all : all * share,
                       .bytes_sent = (double)bny_slice_wire_bytes(request, piece) * (to_root ? 1 : members - 1)};
  cost.ns = bny_estimate_ns(&flat, &cost);
  cost.level_bytes[level] = cost.bytes_sent;
  return cost;
}

static outlook outlook_of(bny_builder *scratch, int32_t level, const bny_slice *box) {
  const bny_request *request = scratch->whole;
  outlook made = {.tiles = 0};
  if (bny_slice_rows(box) == 0) return made;
  if (is_last(request, level)) return outlook_last(scratch, box);
  const bny_level *at = &request->levels->levels[level];
  int32_t pieces = bny_compose_pieces(request->levels, level), fewest = pieces;
  bool by_heads = bny_compose_by_heads(box, pieces);
  int32_t extent = by_heads ? box->heads : box->tokens, filled = extent < pieces ? extent : pieces;
  bny_slice first = bny_slice_cut(box, by_heads, pieces, 0, 1),
            last = bny_slice_cut(box, by_heads, pieces, filled - 1, filled);
  outlook beyond = outlook_of(scratch, level + 1, &first);
  if (!bny_slice_equal(&first, &last) && bny_slice_rows(&first) != bny_slice_rows(&last)) {
    outlook other = outlook_of(scratch, level + 1, &last); /* a split gives parts of at most two sizes */
    cost_max(&beyond.cost, &other.cost);
    beyond.tiles = other.tiles > beyond.tiles ? other.tiles : beyond.tiles;
    beyond.tile_bytes = other.tile_bytes > beyond.tile_bytes ? other.tile_bytes : beyond.tile_bytes;
  }
  for (int32_t i = 0; i < at->nshapes; i++) {
    bny_estimate scatter = cost_of_scatter(scratch, level, box, at->shapes[i]);
    cost_max(&made.cost, &scatter);
    fewest = at->shapes[i].carriers < fewest ? at->shapes[i].carriers : fewest;
  }
  int32_t carried = (pieces + fewest - 1) / fewest;
  carried = carried < filled ? carried : filled;
  made.tiles = beyond.tiles * filled;
  made.tile_bytes = beyond.tile_bytes * (size_t)filled;
  bny_estimate gather = cost_of_gather(request, level, box, at->most, (double)made.tiles, &first);
  cost_add(&made.cost, &gather, 1);
  cost_add(&made.cost, &beyond.cost, carried);
  if (level == 0) { /* each tile is stored once, however many levels it passes */
    made.cost.roundings++;
    made.cost.slots += beyond.tiles * carried;
    made.cost.outbox_bytes += beyond.tile_bytes * (size_t)carried;
  }
  return made;
}

static void estimate(const bny_request *request, bny_estimate *estimate) {
  bny_plan none = {.rank = 0};
  bny_choices choices = {.count = 0};
  bny_builder scratch;
  bny_slice whole = bny_slice_whole(request);
  bny_builder_init(&scratch, request, &bny_algorithm_levels, 0, true, &none);
  scratch.choices = &choices;
  *estimate = outlook_of(&scratch, 0, &whole).cost;
  bny_builder_fini(&scratch);
}

static const char *reject(const bny_request *request) { return bny_compose_reject(request, false); }

const bny_algorithm bny_algorithm_levels = {
    .name = "levels", .variant = "whole", .reject = reject, .estimate = estimate, .build = build};
