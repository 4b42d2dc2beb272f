/* SPDX-License-Identifier: Apache-2.0
 * Makes the shapes of trees: one row for each strategy of docs/algorithms.md. In knomial and levels k is a power of
 * two, so blocks are nodes of the canonical tree. balanced and chain number ranks from the root on; with levels, each
 * group has consecutive numbers. */
#include "plan/algorithms/tree_shape.h"

static int32_t between(const bny_tree_shape *shape, int32_t a, int32_t b) {
  return shape->levels ? bny_levels_between(shape->levels, a, b) : 0;
}

static int32_t smaller_of(int64_t a, int64_t b) { return (int32_t)(a < b ? a : b); }

/* Links are sampled on the paths to some ranks, the same on all ranks. If there are many ranks, the sample takes first
 * ranks of groups, level by level, because the paths to these cross into the groups. */
enum { WAYS_MAX = 16, CHILDREN_LOOKED_AT = 8 };

static int32_t ways_of(const bny_tree_shape *shape) { return shape->levels ? smaller_of(shape->nranks, WAYS_MAX) : 0; }

static int32_t way_to(const bny_tree_shape *shape, int32_t way) {
  const bny_levels *levels = shape->levels;
  if (shape->nranks <= WAYS_MAX) return way;
  int32_t level = way % levels->nlevels;
  int32_t count = level == 0 ? shape->nranks : levels->levels[level - 1].ngroups;
  uint64_t x = ((uint64_t)(uint32_t)way + 1) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 29) * UINT64_C(0xff51afd7ed558ccd);
  int32_t member = (int32_t)((x >> 24) % (uint64_t)count);
  for (; level > 0; level--) member = levels->levels[level - 1].members[levels->levels[level - 1].first[member]];
  return member;
}

static const char *reject_nothing(const bny_request *request) {
  (void)request;
  return NULL;
}

static bool merges_in_canonical_order(const bny_request *request) {
  return bny_call_merges(&request->call) && request->call.order == BANYAN_ORDER_CANONICAL;
}

/* ---- k-nomial, of n members ------------------------------------------------------------------------------------- */

typedef struct knomial {
  int32_t count, root, radix;
} knomial;

typedef struct member_block {
  int64_t low, high;
} member_block;

static member_block block_of(const knomial *tree, int64_t member, int64_t size) {
  int64_t low = member / size * size;
  return (member_block){.low = low, .high = smaller_of(low + size, tree->count)};
}

static int32_t leader_of(const knomial *tree, int64_t member, int64_t size) {
  member_block block = block_of(tree, member, size);
  return tree->root >= block.low && tree->root < block.high ? tree->root : (int32_t)block.low;
}

/* The rounds of a tree of `count` members, all over links of `level`. */
static int32_t knomial_rounds(int32_t count, int32_t radix, int32_t level, bny_tree_round *rounds) {
  int32_t number = 0;
  for (int64_t size = 1; size < count; size *= radix) {
    int32_t children = smaller_of(radix, (count + size - 1) / size) - 1;
    rounds[number] = (bny_tree_round){.times = 1, .children = children};
    rounds[number++].over[level] = children;
  }
  return number;
}

/* ---- by levels; flat for a k-nomial tree of all ranks ------------------------------------------------------------ */

/* A k-nomial tree of all ranks has one level. */
static bool is_flat(const bny_tree_shape *shape) { return shape->strategy == &bny_tree_knomial; }

/* Returns the rank that represents `member` of a level: a rank at level 0, else a group of the level below. */
static int32_t stand_in(const bny_tree_shape *shape, const int32_t *roots, int32_t level, int32_t member) {
  for (; level > 0; level--) {
    if (member == roots[level]) return shape->root;
    const bny_level *below = &shape->levels->levels[level - 1];
    member = below->members[below->first[member]];
  }
  return member;
}

typedef struct level_group {
  const int32_t *members; /* NULL: member i is i */
  int32_t count, index;   /* number of members; index of the current one */
  int32_t root;           /* index of the group's leader */
  int32_t number;
} level_group;

static level_group group_of(const bny_tree_shape *shape, const int32_t *roots, int32_t level, int32_t member) {
  if (is_flat(shape)) return (level_group){.count = shape->nranks, .index = member, .root = shape->root};
  const bny_level *at = &shape->levels->levels[level];
  level_group group = {.number = at->group_of[member]};
  group.members = at->members + at->first[group.number];
  group.count = at->first[group.number + 1] - at->first[group.number];
  group.index = at->index[member];
  group.root = at->group_of[roots[level]] == group.number ? at->index[roots[level]] : 0;
  return group;
}

static int32_t rank_at(const bny_tree_shape *shape, const int32_t *roots, int32_t level, const level_group *group,
                       int32_t index) {
  return stand_in(shape, roots, level, group->members ? group->members[index] : index);
}

/* Adds the stages of a group's member and returns whether it leads the group. If not, it sets the parent. */
static bool climb(const bny_tree_shape *shape, const int32_t *roots, int32_t level, const level_group *group,
                  bny_tree_node *node) {
  knomial tree = {.count = group->count, .root = group->root, .radix = shape->radix[level]};
  for (int64_t size = 1; size < tree.count; size *= tree.radix) {
    int32_t leader = leader_of(&tree, group->index, size * tree.radix);
    if (leader != group->index) {
      node->parent = rank_at(shape, roots, level, group, leader);
      return false;
    }
    bny_tree_stage stage = {.first = node->nchildren};
    member_block whole = block_of(&tree, group->index, size * tree.radix);
    for (int64_t low = whole.low; low < whole.high; low += size) {
      int32_t part = leader_of(&tree, low, size);
      if (part == group->index)
        stage.before = stage.count;
      else {
        if (node->children) node->children[node->nchildren] = rank_at(shape, roots, level, group, part);
        node->nchildren++;
        stage.count++;
      }
    }
    if (stage.count > 0) node->stages[node->nstages++] = stage;
  }
  return true;
}

static void node_by_levels(const bny_tree_shape *shape, int32_t rank, bny_tree_node *node) {
  int32_t roots[BNY_LEVELS_MAX + 1] = {shape->root};
  for (int32_t level = 0; !is_flat(shape) && level < shape->levels->nlevels; level++)
    roots[level + 1] = shape->levels->levels[level].group_of[roots[level]];
  int32_t member = rank, nlevels = is_flat(shape) ? 1 : shape->levels->nlevels;
  for (int32_t level = 0; level < nlevels; level++) {
    level_group group = group_of(shape, roots, level, member);
    if (!climb(shape, roots, level, &group, node)) return;
    member = group.number;
  }
}

static bool offer_knomial(bny_tree_shape *shape, const bny_request *request, double bytes, int32_t option) {
  (void)request;
  (void)bytes;
  shape->radix[0] = 2 << option;
  return option < 3;
}

/* Children of the current rank, by the level of the link to them. */
typedef struct round_look {
  int32_t over[BNY_LEVELS_MAX];
} round_look;

static void look_end(const round_look *look, bny_tree_round *round) {
  for (int32_t level = 0; level < BNY_LEVELS_MAX; level++)
    if (look->over[level] > round->over[level]) round->over[level] = look->over[level];
}

static int32_t rounds_knomial(const bny_tree_shape *shape, bny_tree_round *rounds) {
  knomial tree = {.count = shape->nranks, .root = shape->root, .radix = shape->radix[0]};
  int32_t count = knomial_rounds(tree.count, tree.radix, 0, rounds);
  for (int32_t i = 0; shape->levels && i < count; i++) rounds[i].over[0] = 0;
  for (int32_t way = 0; way < ways_of(shape); way++) {
    int32_t rank = way_to(shape, way);
    int64_t size = 1;
    for (int32_t i = 0; i < count; i++, size *= tree.radix) {
      member_block whole = block_of(&tree, rank, size * tree.radix);
      int32_t leader = leader_of(&tree, rank, size * tree.radix);
      round_look look = {.over = {0}};
      for (int64_t low = whole.low; low < whole.high; low += size) {
        int32_t part = leader_of(&tree, low, size);
        if (part != leader) look.over[between(shape, leader, part)]++;
      }
      look_end(&look, &rounds[i]);
    }
  }
  return count;
}

static const char *reject_levels(const bny_request *request) {
  if (!request->levels) return "nothing is known of levels";
  return merges_in_canonical_order(request) && !request->levels->aligned
             ? "canonical order needs levels that are aligned blocks of a power of two of ranks"
             : NULL;
}

bny_tree_links bny_tree_links_of(const bny_levels *levels, const bny_tree_round *round) {
  bny_tree_links links = {.first_ns = 0};
  for (int32_t level = 0; level < levels->nlevels; level++) {
    const bny_link_cost *link = &levels->levels[level].link;
    bool turns = link->ranks_per_core > 1;
    double first = link->alpha_ns + (turns ? link->switch_ns * link->ranks_per_core : 0);
    double carried = round->over[level] * link->beta_ns_per_byte * (turns ? link->ranks_per_core : 1);
    if (round->over[level] == 0) continue;
    if (first > links.first_ns) links.first_ns = first;
    double *message = link->posted > 0 ? &links.posted_ns : &links.seen_ns;
    if (bny_link_message_ns(link) > *message) *message = bny_link_message_ns(link);
    if (carried > links.ns_per_byte) links.ns_per_byte = carried;
  }
  return links;
}

bny_tree_time bny_tree_round_time(const bny_levels *levels, const bny_tree_round *round, bool up) {
  const bny_link_cost *work = &levels->levels[0].link;
  bny_tree_links links = bny_tree_links_of(levels, round);
  double gamma = work->gamma_ns_per_byte * (work->ranks_per_core > 1 ? work->ranks_per_core : 1);
  double later = (round->children - 1) * (up ? links.seen_ns : links.posted_ns), handled = up ? round->children + 1 : 1;
  return (bny_tree_time){.fixed_ns = round->times * (links.first_ns + later),
                         .ns_per_byte = round->times * (links.ns_per_byte + handled * gamma)};
}

/* Levels run one after another, so each level takes the radix that is best for it. */
static bool offer_levels(bny_tree_shape *shape, const bny_request *request, double bytes, int32_t option) {
  (void)request;
  for (int32_t level = 0; level < shape->levels->nlevels; level++) {
    const bny_level *at = &shape->levels->levels[level];
    double least = 0;
    for (int32_t radix = 2; radix <= BNY_MERGE_SOURCES_MAX; radix *= 2) {
      bny_tree_round rounds[BNY_TREE_ROUNDS_MAX];
      double ns = 0;
      int32_t count = knomial_rounds(at->most, radix, level, rounds);
      for (int32_t i = 0; i < count; i++) {
        bny_tree_time up = bny_tree_round_time(shape->levels, &rounds[i], true);
        bny_tree_time down = bny_tree_round_time(shape->levels, &rounds[i], false);
        ns += up.fixed_ns + down.fixed_ns + bytes * (up.ns_per_byte + down.ns_per_byte);
      }
      if (radix == 2 || ns < least) {
        least = ns;
        shape->radix[level] = radix;
      }
    }
  }
  return option == 0;
}

static int32_t rounds_levels(const bny_tree_shape *shape, bny_tree_round *rounds) {
  int32_t count = 0;
  for (int32_t level = 0; level < shape->levels->nlevels; level++)
    count += knomial_rounds(shape->levels->levels[level].most, shape->radix[level], level, rounds + count);
  return count;
}

/* ---- subtrees of consecutive ranks ------------------------------------------------------------------------------- */

/* Ranks in the order of a shape: the root has number 0, and groups of every level are contiguous. */
static int32_t position_of(const bny_tree_shape *shape, int32_t rank) {
  return shape->levels ? shape->levels->number[rank] : rank;
}

static int32_t number_of(const bny_tree_shape *shape, int32_t rank) {
  int32_t number = position_of(shape, rank) - position_of(shape, shape->root);
  return number < 0 ? number + shape->nranks : number;
}

static int32_t numbered(const bny_tree_shape *shape, int32_t number) {
  int32_t before_end = shape->nranks - position_of(shape, shape->root);
  int32_t index = number < before_end ? shape->nranks - before_end + number : number - before_end;
  return shape->levels ? shape->levels->nested[index] : index;
}

static const char *reject_canonical(const bny_request *request) {
  return merges_in_canonical_order(request) ? "canonical order needs merges of aligned blocks of ranks" : NULL;
}

static int32_t depth_of(int32_t nranks, int32_t radix) {
  int32_t depth = 0;
  for (int32_t count = nranks; count > 1; count = (count - 1 + radix - 1) / radix) depth++;
  return depth;
}

static bool offer_balanced(bny_tree_shape *shape, const bny_request *request, double bytes, int32_t option) {
  static const int32_t radices[] = {BNY_MERGE_SOURCES_MAX - 1, 32, 16, 8, 5, 4, 3, 2};
  (void)request;
  (void)bytes;
  if (option >= (int32_t)(sizeof radices / sizeof radices[0])) return false;
  int32_t radix = radices[option], depth = depth_of(shape->nranks, radix);
  while (radix > 2 && depth_of(shape->nranks, radix - 1) == depth) radix--;
  shape->radix[0] = radix;
  return true;
}

typedef struct subtree {
  int32_t low, high; /* numbers; low is its root */
} subtree;

static subtree subtree_part(const bny_tree_shape *shape, subtree of, int32_t part) {
  int32_t first, number;
  bny_slice_split(of.high - of.low - 1, shape->radix[0], part, &first, &number);
  return (subtree){.low = of.low + 1 + first, .high = of.low + 1 + first + number};
}

/* Returns the part of a subtree that holds `number`. */
static int32_t subtree_index(const bny_tree_shape *shape, subtree of, int32_t number) {
  return bny_levels_part_of(of.high - of.low - 1, shape->radix[0], number - of.low - 1);
}

static void node_balanced(const bny_tree_shape *shape, int32_t rank, bny_tree_node *node) {
  int32_t number = number_of(shape, rank), radix = shape->radix[0];
  subtree at = {.low = 0, .high = shape->nranks};
  while (at.low != number) {
    node->parent = numbered(shape, at.low);
    at = subtree_part(shape, at, subtree_index(shape, at, number));
  }
  node->nchildren = smaller_of(at.high - at.low - 1, radix);
  for (int32_t i = 0; node->children && i < node->nchildren; i++)
    node->children[i] = numbered(shape, subtree_part(shape, at, i).low);
  if (node->nchildren > 0) node->stages[node->nstages++] = (bny_tree_stage){.count = node->nchildren};
}

/* Adds the links to the children of a subtree's root; of many, every n-th counts n times. */
static void look_at_children(const bny_tree_shape *shape, subtree of, bny_tree_round *round) {
  round_look look = {.over = {0}};
  int32_t children = smaller_of(of.high - of.low - 1, shape->radix[0]), parent = numbered(shape, of.low);
  int32_t each = (children + CHILDREN_LOOKED_AT - 1) / CHILDREN_LOOKED_AT;
  for (int32_t part = 0; part < children; part += each)
    look.over[between(shape, parent, numbered(shape, subtree_part(shape, of, part).low))] +=
        smaller_of(each, children - part);
  look_end(&look, round);
}

/* Rounds go from the root outwards. */
static int32_t rounds_balanced(const bny_tree_shape *shape, bny_tree_round *rounds) {
  int32_t count = 0, radix = shape->radix[0];
  for (int32_t most = shape->nranks; most > 1; most = (most - 1 + radix - 1) / radix)
    rounds[count++] = (bny_tree_round){.times = 1, .children = smaller_of(radix, most - 1)};
  for (int32_t way = 0; way < ways_of(shape); way++) {
    int32_t number = number_of(shape, way_to(shape, way)), round = 0;
    subtree at = {.low = 0, .high = shape->nranks};
    while (at.low != number) {
      look_at_children(shape, at, &rounds[round++]);
      at = subtree_part(shape, at, subtree_index(shape, at, number));
    }
  }
  return count;
}

static bool offer_chain(bny_tree_shape *shape, const bny_request *request, double bytes, int32_t option) {
  (void)shape;
  (void)request;
  (void)bytes;
  return option == 0;
}

static void node_chain(const bny_tree_shape *shape, int32_t rank, bny_tree_node *node) {
  int32_t number = number_of(shape, rank);
  if (number > 0) node->parent = numbered(shape, number - 1);
  if (number == shape->nranks - 1) return;
  if (node->children) node->children[0] = numbered(shape, number + 1);
  node->nchildren = 1;
  node->stages[node->nstages++] = (bny_tree_stage){.count = 1};
}

/* One round per level: the number of neighbours that its links join. */
static int32_t rounds_chain(const bny_tree_shape *shape, bny_tree_round *rounds) {
  int32_t count = 0, members = shape->nranks;
  for (int32_t level = 0; level == 0 || (shape->levels && level < shape->levels->nlevels); level++) {
    int32_t groups = shape->levels ? shape->levels->levels[level].ngroups : 1;
    if (members > groups) {
      rounds[count] = (bny_tree_round){.times = members - groups, .children = 1};
      rounds[count++].over[level] = 1;
    }
    members = groups;
  }
  return count;
}

const bny_tree_strategy bny_tree_knomial = {.name = "knomial",
                                            .piles = true,
                                            .reject = reject_nothing,
                                            .offer = offer_knomial,
                                            .rounds = rounds_knomial,
                                            .node = node_by_levels};
const bny_tree_strategy bny_tree_balanced = {.name = "balanced",
                                             .reject = reject_canonical,
                                             .offer = offer_balanced,
                                             .rounds = rounds_balanced,
                                             .node = node_balanced};
const bny_tree_strategy bny_tree_chain = {
    .name = "chain", .reject = reject_canonical, .offer = offer_chain, .rounds = rounds_chain, .node = node_chain};
const bny_tree_strategy bny_tree_levels = {.name = "levels",
                                           .piles = true,
                                           .reject = reject_levels,
                                           .offer = offer_levels,
                                           .rounds = rounds_levels,
                                           .node = node_by_levels};

bool bny_tree_offer(const bny_tree_strategy *strategy, const bny_request *request, double bytes, int32_t option,
                    bny_tree_shape *shape) {
  *shape = (bny_tree_shape){
      .strategy = strategy, .levels = request->levels, .nranks = request->nranks, .root = bny_tree_root(request)};
  return strategy->offer(shape, request, bytes, option);
}

void bny_tree_node_of(const bny_tree_shape *shape, int32_t rank, bny_tree_node *node) {
  node->parent = -1;
  node->nstages = node->nchildren = 0;
  shape->strategy->node(shape, rank, node);
}
