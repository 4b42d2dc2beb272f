/* SPDX-License-Identifier: Apache-2.0
 * Tree shapes: the parent and children of each rank. A strategy is a row of the table in tree_shape.c. It offers shapes
 * for a request, and finds parent and children of any rank without building the tree.
 *
 * A rank merges its children in stages, in order. Each merges its value so far with some children before it and some
 * after it. */
#pragma once

#include "plan/builder.h"

enum { BNY_TREE_STAGES_MAX = 40, BNY_TREE_ROUNDS_MAX = 40, BNY_TREE_PIECES_MAX = 64 };

typedef struct bny_tree_shape {
  const struct bny_tree_strategy *strategy;
  const bny_levels *levels; /* NULL: all ranks are alike */
  int32_t nranks, root;
  int32_t radix[BNY_LEVELS_MAX]; /* by level: radix of the tree within its groups; without levels the first, if any */
} bny_tree_shape;

typedef struct bny_tree_stage {
  int32_t first, count; /* range of children */
  int32_t before;       /* number of them that come before the rank's own value */
} bny_tree_stage;

typedef struct bny_tree_node {
  int32_t parent; /* -1: the root */
  int32_t nstages, nchildren;
  bny_tree_stage stages[BNY_TREE_STAGES_MAX];
  int32_t *children; /* room from the caller; NULL: only count them */
} bny_tree_node;

/* A round on the longest path to the root. */
typedef struct bny_tree_round {
  double times;                 /* how often it occurs */
  int32_t children;             /* most children that one rank merges in it */
  int32_t over[BNY_LEVELS_MAX]; /* at most this many over links of each level */
} bny_tree_round;

typedef struct bny_tree_strategy {
  const char *name;
  bool piles; /* the root merges children in every round; else each rank does in one round */
  const char *(*reject)(const bny_request *request); /* NULL: it serves the request; otherwise the reason */
  /* Sets the radices of shape number `option`; false: there are fewer. `bytes` are carried. */
  bool (*offer)(bny_tree_shape *shape, const bny_request *request, double bytes, int32_t option);
  int32_t (*rounds)(const bny_tree_shape *shape, bny_tree_round rounds[BNY_TREE_ROUNDS_MAX]);
  void (*node)(const bny_tree_shape *shape, int32_t rank, bny_tree_node *node);
} bny_tree_strategy;

extern const bny_tree_strategy bny_tree_knomial, bny_tree_balanced, bny_tree_chain, bny_tree_levels;

/* Makes shape number `option` of a strategy, rooted at the request's root, or at rank 0 without a root. */
bool bny_tree_offer(const bny_tree_strategy *strategy, const bny_request *request, double bytes, int32_t option,
                    bny_tree_shape *shape);

/* The caller sets node->children first. */
void bny_tree_node_of(const bny_tree_shape *shape, int32_t rank, bny_tree_node *node);

/* The time that a round takes once, for merging (up) or passing on, as a line over the bytes of a message. */
typedef struct bny_tree_time {
  double fixed_ns, ns_per_byte;
} bny_tree_time;

/* The links of a rank in a round: the first message, seeing and posting a further one, and a byte. A link carries
 * messages one after another; links of different levels work at once. */
typedef struct bny_tree_links {
  double first_ns, seen_ns, posted_ns, ns_per_byte;
} bny_tree_links;

bny_tree_links bny_tree_links_of(const bny_levels *levels, const bny_tree_round *round);
bny_tree_time bny_tree_round_time(const bny_levels *levels, const bny_tree_round *round, bool up);

/* Chooses the fastest of a strategy's shapes that fits the outbox, or else the fastest. Returns the best number of
 * pieces for the box. */
int32_t bny_tree_choose(const bny_request *request, const bny_tree_strategy *strategy, bny_tree_shape *shape,
                        bny_estimate *estimate);

static inline int32_t bny_tree_root(const bny_request *request) {
  bool rooted = request->call.collective == BNY_BROADCAST || request->call.scatter == BANYAN_SCATTER_ROOT;
  return rooted ? request->call.root : 0;
}

/* True if all ranks get all. Otherwise the owners get their slices from the root, or the root gets all. */
static inline bool bny_tree_goes_down(const bny_request *request) {
  return request->call.collective == BNY_BROADCAST || request->call.scatter == BANYAN_SCATTER_NONE;
}
