/* SPDX-License-Identifier: Apache-2.0
 *
 * tree: k-nomial. Aligned blocks of k, k^2, k^3 ... ranks; a block's leader is the root if the block holds it, else its
 * first rank. A leader merges what the leaders of its block's k parts have (up), and the root's result takes the same
 * way back (down), or the root gives each owner its slice (HEADS, TOKENS). 2 log_k p rounds, about 2 S bytes sent by
 * most ranks. k is a power of two, so blocks are nodes of the canonical tree and both orders are the same; of 2, 4 and
 * 8 the one is taken that is predicted to be fastest. */
#include "plan/builder.h"

static const int32_t radices[] = {2, 4, 8};

typedef struct radix_tree {
  int32_t nranks, root;
  int32_t radix_log2;
  int32_t levels; /* smallest with k^levels >= nranks */
} radix_tree;

typedef struct rank_block {
  int32_t low, high;
} rank_block;

static radix_tree tree_of(const bny_request *request, int32_t radix) {
  radix_tree tree = {.nranks = request->nranks, .radix_log2 = bny_log2_floor(radix)};
  if (request->collective == BNY_BROADCAST || request->scatter == BANYAN_SCATTER_ROOT) tree.root = request->root;
  tree.levels = (bny_log2_ceil(request->nranks) + tree.radix_log2 - 1) / tree.radix_log2;
  return tree;
}

static rank_block block_of(const radix_tree *tree, int32_t rank, int32_t level) {
  int64_t size = (int64_t)1 << (level * tree->radix_log2), low = rank / size * size;
  return (rank_block){.low = (int32_t)low, .high = (int32_t)(low + size < tree->nranks ? low + size : tree->nranks)};
}

static int32_t leader_of(const radix_tree *tree, int32_t rank, int32_t level) {
  rank_block block = block_of(tree, rank, level);
  return tree->root >= block.low && tree->root < block.high ? tree->root : block.low;
}

/* The highest level of whose block `rank` is the leader: at the next it has a parent (the root has none). */
static int32_t top_level(const radix_tree *tree, int32_t rank) {
  int32_t level = 0;
  while (level < tree->levels && leader_of(tree, rank, level + 1) == rank) level++;
  return level;
}

/* Leaders of the parts of `rank`'s block at `level`, in rank order, this one included. At most 8. */
static int32_t part_leaders(const radix_tree *tree, int32_t rank, int32_t level, int32_t *leaders) {
  rank_block whole = block_of(tree, rank, level);
  int32_t count = 0;
  for (int32_t low = whole.low; low < whole.high; low = block_of(tree, low, level - 1).high)
    leaders[count++] = leader_of(tree, low, level - 1);
  return count;
}

static bny_key key_up(rank_block block) {
  return (bny_key){.phase = BNY_PHASE_REDUCE, .low = block.low, .high = block.high};
}

/* ---- down -------------------------------------------------------------------------------------------------------- */

static const bny_key key_down = {.phase = BNY_PHASE_SPREAD};

/* Sends the slot to this rank's children, those of the largest blocks first. */
static void send_down(bny_builder *builder, const radix_tree *tree, int32_t slot) {
  int32_t *peers = bny_builder_allocate(builder, (int64_t)(tree->levels + 1) * 8, sizeof *peers), count = 0;
  int32_t leaders[8];
  for (int32_t level = top_level(tree, builder->rank); peers && level > 0; level--) {
    int32_t parts = part_leaders(tree, builder->rank, level, leaders);
    for (int32_t i = 0; i < parts; i++)
      if (leaders[i] != builder->rank) peers[count++] = leaders[i];
  }
  if (peers) bny_builder_send_list(builder, slot, peers, count);
}

static void receive_down(bny_builder *builder, const radix_tree *tree, const bny_slice *slice) {
  int32_t level = top_level(tree, builder->rank), leaders[8];
  int32_t message = bny_builder_receive_key(builder, leader_of(tree, builder->rank, level + 1), key_down);
  bool has_children = level > 0 && part_leaders(tree, builder->rank, 1, leaders) > 0;
  bny_source source = bny_source_message(message);
  bny_builder_wait(builder, message);
  rank_block below = block_of(tree, builder->rank, level);
  if (has_children && below.high - below.low > 1) {
    int32_t slot = bny_builder_slot(builder, slice, key_down);
    bny_builder_merge(builder, slot, &source, 1);
    send_down(builder, tree, slot);
    source = bny_source_slot(slot);
  }
  bny_builder_deliver_one(builder, slice, source);
}

/* ---- up ---------------------------------------------------------------------------------------------------------- */

/* The root's merge of `count` sources goes where the scatter says. */
static void finish(bny_builder *builder, const radix_tree *tree, const bny_source *sources, int32_t count) {
  const bny_request *request = builder->request;
  bny_slice whole = bny_slice_whole(request), own = bny_slice_owned(request, builder->rank);
  if (request->scatter == BANYAN_SCATTER_NONE && tree->nranks > 1) {
    int32_t slot = bny_builder_slot(builder, &whole, key_down);
    bny_builder_merge(builder, slot, sources, count);
    send_down(builder, tree, slot);
    bny_builder_deliver_one(builder, &whole, bny_source_slot(slot));
    return;
  }
  for (int32_t i = 1; request->scatter != BANYAN_SCATTER_ROOT && i < tree->nranks; i++) {
    int32_t owner = bny_modulo((int64_t)builder->rank + i, tree->nranks);
    bny_slice owned = bny_slice_owned(request, owner);
    if (bny_slice_rows(&owned) == 0) continue;
    int32_t slot = bny_builder_slot(builder, &owned, (bny_key){.phase = BNY_PHASE_RESULT, .piece = owner});
    bny_builder_merge(builder, slot, sources, count);
    bny_builder_send(builder, slot, owner);
  }
  if (bny_slice_rows(&own) > 0) bny_builder_deliver(builder, &own, sources, count);
}

static void reduce(bny_builder *builder, const radix_tree *tree) {
  bny_slice whole = bny_slice_whole(builder->request);
  int32_t top = top_level(tree, builder->rank), leaders[8];
  int32_t current = bny_builder_slot(builder, &whole, key_up(block_of(tree, builder->rank, 0)));
  bny_source sources[8] = {bny_source_slot(current)};
  bny_builder_copy(builder, current);
  for (int32_t level = 1; level <= top; level++) {
    int32_t parts = part_leaders(tree, builder->rank, level, leaders);
    for (int32_t i = 0; i < parts; i++) {
      sources[i] = bny_source_slot(current);
      if (leaders[i] == builder->rank) continue;
      bny_key key = key_up(block_of(tree, leaders[i], level - 1));
      int32_t message = bny_builder_receive_key(builder, leaders[i], key);
      bny_builder_wait(builder, message);
      sources[i] = bny_source_message(message);
    }
    if (level == tree->levels) {
      finish(builder, tree, sources, parts);
      return;
    }
    if (parts > 1) { /* alone in a short block: nothing to merge */
      current = bny_builder_slot(builder, &whole, key_up(block_of(tree, builder->rank, level)));
      bny_builder_merge(builder, current, sources, parts);
    }
  }
  if (builder->rank == tree->root)
    finish(builder, tree, sources, 1); /* the only rank */
  else
    bny_builder_send(builder, current, leader_of(tree, builder->rank, top + 1));
}

/* ---- estimate, and the radix by it ------------------------------------------------------------------------------- */

static void estimate_radix(const bny_request *request, int32_t radix, bny_estimate *estimate) {
  radix_tree tree = tree_of(request, radix);
  bny_slice whole = bny_slice_whole(request);
  double all = (double)bny_slice_wire_bytes(request, &whole), levels = tree.levels;
  /* Children that a rank merges: exactly p - 1 of them if one level holds all. */
  double children = radix < request->nranks ? levels * (radix - 1) : request->nranks - 1;
  size_t room = bny_slice_outbox_bytes(request, &whole);
  *estimate = (bny_estimate){
      .rounds = levels, .slots = 1, .outbox_bytes = room, .pattern = BNY_PATTERN_DOUBLING};
  if (request->collective == BNY_BROADCAST) {
    estimate->messages = levels;
    estimate->bytes = levels * all;
    estimate->work_bytes = (levels + 1) * all;
    estimate->bytes_sent = children * all;
    return;
  }
  estimate->messages = children;
  estimate->bytes = children * all;
  estimate->work_bytes = all + (levels > 0 ? children + 2 * levels : 1) * all;
  estimate->bytes_sent = tree.nranks > 1 ? all : 0;
  estimate->slots += tree.levels > 1 ? tree.levels - 1 : 0;
  estimate->outbox_bytes *= (size_t)estimate->slots;
  if (request->scatter == BANYAN_SCATTER_ROOT || tree.nranks == 1) return;
  if (request->scatter == BANYAN_SCATTER_NONE) {
    estimate->rounds += levels;
    estimate->messages += levels;
    estimate->bytes += levels * all;
    estimate->work_bytes += levels * all + all;
    estimate->bytes_sent = children * all;
    estimate->slots += 1;
    estimate->outbox_bytes += room;
    return;
  }
  estimate->rounds += 1;
  estimate->messages += 1;
  estimate->work_bytes += all;
  estimate->slots += tree.nranks;
  for (int32_t owner = 0; owner < tree.nranks; owner++) {
    bny_slice owned = bny_slice_owned(request, owner);
    estimate->outbox_bytes += bny_slice_outbox_bytes(request, &owned);
  }
}

static int32_t choose_radix(const bny_request *request, bny_estimate *estimate) {
  int32_t chosen = 0;
  for (size_t i = 0; i < sizeof radices / sizeof radices[0]; i++) {
    bny_estimate one;
    estimate_radix(request, radices[i], &one);
    if (chosen == 0 || bny_estimate_ns(request, &one) < bny_estimate_ns(request, estimate)) {
      chosen = radices[i];
      *estimate = one;
    }
  }
  return chosen;
}

static const char *refuse(const bny_request *request) {
  return request->collective == BNY_COMBINE || request->collective == BNY_BROADCAST ? NULL
                                                                                    : "it serves combine and broadcast";
}

static void estimate(const bny_request *request, bny_estimate *estimate) { choose_radix(request, estimate); }

static void broadcast(bny_builder *builder, const radix_tree *tree) {
  bny_slice whole = bny_slice_whole(builder->request);
  if (builder->rank != tree->root) {
    receive_down(builder, tree, &whole);
    return;
  }
  int32_t slot = bny_builder_slot(builder, &whole, key_down);
  bny_builder_copy(builder, slot);
  send_down(builder, tree, slot);
  bny_builder_deliver_one(builder, &whole, bny_source_slot(slot));
}

static void build(bny_builder *builder) {
  const bny_request *request = builder->request;
  bny_estimate unused;
  radix_tree tree = tree_of(request, choose_radix(request, &unused));
  bny_slice whole = bny_slice_whole(request), own = bny_slice_owned(request, builder->rank);
  if (bny_slice_is_empty(request, &whole)) return;
  if (request->collective == BNY_BROADCAST) {
    broadcast(builder, &tree);
    return;
  }
  reduce(builder, &tree);
  if (builder->rank == tree.root || request->scatter == BANYAN_SCATTER_ROOT || bny_slice_rows(&own) == 0) return;
  if (request->scatter == BANYAN_SCATTER_NONE) {
    receive_down(builder, &tree, &own);
    return;
  }
  bny_key key = {.phase = BNY_PHASE_RESULT, .piece = builder->rank};
  int32_t message = bny_builder_receive_key(builder, tree.root, key);
  bny_builder_wait(builder, message);
  bny_builder_deliver_one(builder, &own, bny_source_message(message));
}

const bny_algorithm bny_algorithm_tree = {.name = "tree", .refuse = refuse, .estimate = estimate, .build = build};
