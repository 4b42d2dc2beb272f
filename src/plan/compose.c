/* SPDX-License-Identifier: Apache-2.0
 * Plans parts of a call over levels: the cheapest flat algorithm for a part, and the lanes of carriers and owners. */
#include "plan/compose.h"

#include <stdlib.h>

/* Beyond islands only carriers take turns on a core, and all of an island share the shared link. */
static bny_link_cost link_of_part(const bny_levels *levels, int32_t level) {
  bny_link_cost link = levels->levels[level].link;
  if (level == 0) return link;
  link.ranks_per_core *= (double)levels->carrier_first[levels->levels[0].ngroups] / levels->nranks;
  link.shared_ns_per_byte *= levels->lanes;
  return link;
}

bny_request bny_compose_request(const bny_request *whole, int32_t level, int32_t nranks, const bny_slice *box,
                                banyan_scatter scatter) {
  bny_request part = *whole;
  part.nranks = nranks;
  part.token0 = box->token0;
  part.tokens = box->tokens;
  part.head0 = box->head0;
  part.heads = box->heads;
  part.call.scatter = scatter;
  part.call.root = 0;
  part.algorithm = NULL;
  part.cost = link_of_part(whole->levels, level);
  part.levels = NULL;
  part.pieces = NULL;
  part.outbox_bytes = SIZE_MAX;
  part.slots_max = INT32_MAX;
  return part;
}

extern const bny_algorithm bny_algorithm_oneshot;

/* If some members own no piece, bounds must hold for any choice of these. Only oneshot's bounds do not depend on it. */
static const bny_algorithm *cheapest(const bny_request *part, bny_estimate *estimate) {
  const bny_algorithm *chosen = NULL;
  double least = 0;
  bool direct = false;
  for (int32_t rank = 0; part->pieces && rank < part->nranks; rank++)
    direct = direct || part->pieces->first[rank] == part->pieces->first[rank + 1];
  for (int i = 0; bny_algorithms[i]; i++) {
    bny_estimate one = {0};
    if (bny_algorithms[i]->reject(part) || (direct && bny_algorithms[i] != &bny_algorithm_oneshot)) continue;
    bny_algorithms[i]->estimate(part, &one);
    double ns = bny_estimate_ns(part, &one);
    if (chosen && ns >= least) continue;
    chosen = bny_algorithms[i];
    least = ns;
    *estimate = one;
  }
  return chosen;
}

const bny_choice *bny_choices_find(const bny_choices *choices, uint64_t key) {
  for (int32_t i = 0; choices && i < choices->count; i++)
    if (choices->made[i].key == key) return &choices->made[i];
  return NULL;
}

void bny_choices_add(bny_choices *choices, const bny_choice *made) {
  if (choices && choices->count < (int32_t)(sizeof choices->made / sizeof choices->made[0]))
    choices->made[choices->count++] = *made;
}

const bny_algorithm *bny_compose_choose(const bny_request *part, bny_choices *choices, bny_estimate *estimate) {
  bny_choice choice = {.key = 0};
  bny_request sized = *part; /* parts that differ in nothing else have the same estimate */
  sized.token0 = sized.head0 = sized.call.root = 0;
  if (choices) choice.key = bny_request_hash(&sized, "");
  const bny_choice *found = bny_choices_find(choices, choice.key);
  if (found) {
    choice = *found;
  } else {
    choice.algorithm = cheapest(part, &choice.estimate);
    bny_choices_add(choices, &choice);
  }
  if (estimate) *estimate = choice.estimate;
  return choice.algorithm;
}

const char *bny_compose_reject(const bny_request *request, bool by_owner) {
  if (!request->levels || request->levels->nlevels < 2) return "all ranks are alike: there is one level";
  if (!bny_call_merges(&request->call)) return "it serves combine, allreduce and select";
  if (bny_request_has_owners(request) != by_owner)
    return by_owner ? "it serves scatter heads and tokens" : "it serves scatter none and root";
  if (request->call.order == BANYAN_ORDER_CANONICAL && !request->levels->aligned)
    return "canonical order needs groups that are consecutive, equal powers of two of ranks";
  return NULL;
}

void bny_compose_add(bny_estimate *sum, const bny_estimate *more, double times) {
  sum->rounds += more->rounds * times;
  sum->messages += more->messages * times;
  sum->bytes += more->bytes * times;
  sum->work_bytes += more->work_bytes * times;
  sum->bytes_sent += more->bytes_sent * times;
  sum->ns += more->ns * times;
  for (int32_t k = 0; k < BNY_LEVELS_MAX; k++) sum->level_bytes[k] += more->level_bytes[k] * times;
}

bool bny_compose_by_heads(const bny_slice *box, int32_t count) {
  int64_t heads = ((int64_t)box->heads + count - 1) / count * box->tokens;
  int64_t tokens = ((int64_t)box->tokens + count - 1) / count * box->heads;
  return heads <= tokens;
}

int32_t bny_compose_pieces(const bny_levels *levels, int32_t level) {
  return level == 0 ? levels->lanes : levels->levels[level].most;
}

bny_lane_range bny_compose_lanes(int32_t count, int32_t carriers, int32_t carrier) {
  bny_lane_range range;
  int32_t number;
  bny_slice_split(count, carriers, carrier, &range.first, &number);
  range.last = range.first + number;
  return range;
}

bny_lane_range bny_compose_owners(const bny_request *request) {
  bool by_heads = request->call.scatter == BANYAN_SCATTER_HEADS;
  int32_t all = by_heads ? request->call.all_heads : request->call.all_tokens;
  int32_t begin = by_heads ? request->head0 : request->token0, count = by_heads ? request->heads : request->tokens;
  if (request->heads == 0 || request->tokens == 0) return (bny_lane_range){0, 0};
  return (bny_lane_range){bny_levels_part_of(all, request->nranks, begin),
                          bny_levels_part_of(all, request->nranks, begin + count - 1) + 1};
}

int32_t bny_compose_stand_in(const bny_levels *levels, int32_t level, int32_t group, const int32_t *lanes) {
  for (; level > 0; level--) {
    const bny_level *at = &levels->levels[level];
    int32_t members = at->first[group + 1] - at->first[group];
    group = at->members[at->first[group] + bny_levels_part_of(at->most, members, lanes[level])];
  }
  return bny_levels_carrier(levels, group, lanes[0]);
}

void bny_compose_lanes_of(const bny_levels *levels, int32_t owner, int32_t lanes[BNY_LEVELS_MAX]) {
  int32_t island = levels->levels[0].group_of[owner], index = levels->levels[0].index[owner];
  lanes[0] = index % levels->lanes;
  if (levels->carrier[owner]) {
    int32_t carrier = 0;
    while (levels->carriers[levels->carrier_first[island] + carrier] != owner) carrier++;
    lanes[0] = bny_compose_lanes(levels->lanes, bny_levels_carriers(levels, island), carrier).first;
  }
  int32_t group = island;
  for (int32_t k = 1; k < levels->nlevels; k++) {
    const bny_level *level = &levels->levels[k];
    int32_t at = level->index[group];
    group = level->group_of[group];
    lanes[k] = bny_compose_lanes(level->most, level->first[group + 1] - level->first[group], at).first;
  }
}

int64_t bny_compose_units_most(const bny_levels *levels, int64_t owners) {
  const bny_level *islands = &levels->levels[0];
  int64_t fewest = levels->lanes, others = 0, lanes = levels->lanes;
  for (int32_t i = 0; i < islands->nshapes; i++) {
    const bny_group_shape *shape = &islands->shapes[i];
    if (shape->carriers < fewest) fewest = shape->carriers;
    if (shape->carriers < shape->members) others = (islands->most + lanes - 1) / lanes;
  }
  int64_t most = (lanes + fewest - 1) / fewest * islands->ngroups * (1 + others);
  return most < owners ? most : owners;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

typedef struct tile_list {
  bny_builder *memory;
  bny_slice *tiles;
  int32_t count, capacity;
} tile_list;

static void tile_add(bny_builder *lister, void *context, const bny_slice *slice, const bny_source *sources,
                     int64_t count) {
  tile_list *list = context;
  (void)lister, (void)sources, (void)count;
  if (bny_builder_grow(list->memory, &list->tiles, &list->capacity, list->count, sizeof *list->tiles))
    list->tiles[list->count++] = *slice;
}

const bny_slice *bny_compose_tiles(bny_builder *builder, const bny_request *part, const bny_algorithm *algorithm,
                                   int32_t rank, int32_t *count) {
  tile_list list = {.memory = builder};
  bny_plan plan = {.rank = rank};
  bny_builder lister;
  bny_builder_init(&lister, part, algorithm, rank, true, &plan);
  bny_frame frame = {.id = 1, .request = part, .rank = rank, .deliver = tile_add, .context = &list};
  bny_builder_run(&lister, &frame, algorithm);
  if (lister.status != BANYAN_OK && builder->status == BANYAN_OK) builder->status = lister.status;
  bny_builder_fini(&lister);
  free(plan.slots);
  *count = list.count;
  return list.tiles;
}
