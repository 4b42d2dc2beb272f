/* SPDX-License-Identifier: Apache-2.0
 *
 * Tree shapes: who is whose parent. A strategy is a row of the table in tree_shape.c: which shapes it offers for a
 * request, and parent and children of any rank of one, found without building the tree.
 *
 * A rank merges its children in stages, in order: what it has by then with some children before and some after it. */
#ifndef BNY_PLAN_TREE_SHAPE_H
#define BNY_PLAN_TREE_SHAPE_H

#include "plan/builder.h"

enum { BNY_TREE_STAGES_MAX = 40, BNY_TREE_ROUNDS_MAX = 40, BNY_TREE_PIECES_MAX = 64 };

typedef struct bny_tree_shape {
  const struct bny_tree_strategy *strategy;
  const bny_levels *levels; /* NULL: all ranks are alike */
  int32_t nranks, root;
  int32_t radix[BNY_LEVELS_MAX]; /* by levels: of the tree within the groups of each; else the first, if any */
} bny_tree_shape;

typedef struct bny_tree_stage {
  int32_t first, count; /* range of children */
  int32_t before;       /* as many of them come before what the rank has */
} bny_tree_stage;

typedef struct bny_tree_node {
  int32_t parent; /* -1: the root */
  int32_t nstages, nchildren;
  bny_tree_stage stages[BNY_TREE_STAGES_MAX];
  int32_t *children; /* the caller's room for them; NULL: they are counted alone */
} bny_tree_node;

/* A round on the longest way to the root. */
typedef struct bny_tree_round {
  double times;                 /* how often it is taken */
  int32_t children;             /* that a rank merges in it, at most */
  int32_t over[BNY_LEVELS_MAX]; /* of them, over links of each level, at most */
} bny_tree_round;

typedef struct bny_tree_strategy {
  const char *name;
  bool piles; /* the root merges children in every round; else each rank does in one */
  const char *(*refuse)(const bny_request *request); /* NULL: it serves; else why not */
  /* Sets the radices of the shape number `option`; false: there are fewer. `bytes` are to be carried. */
  bool (*offer)(bny_tree_shape *shape, const bny_request *request, double bytes, int32_t option);
  int32_t (*rounds)(const bny_tree_shape *shape, bny_tree_round rounds[BNY_TREE_ROUNDS_MAX]);
  void (*node)(const bny_tree_shape *shape, int32_t rank, bny_tree_node *node);
} bny_tree_strategy;

extern const bny_tree_strategy bny_tree_knomial, bny_tree_balanced, bny_tree_chain, bny_tree_levels;

/* Shape number `option` of a strategy, rooted at the request's root, or at rank 0 where it has none. */
bool bny_tree_offer(const bny_tree_strategy *strategy, const bny_request *request, double bytes, int32_t option,
                    bny_tree_shape *shape);

/* node->children is set by the caller. */
void bny_tree_node_of(const bny_tree_shape *shape, int32_t rank, bny_tree_node *node);

/* What merging (up) or passing on takes once over a round, as a line over the bytes of a message. */
typedef struct bny_tree_time {
  double fixed_ns, ns_per_byte;
} bny_tree_time;

bny_tree_time bny_tree_round_time(const bny_levels *levels, const bny_tree_round *round, bool up);

/* Of a strategy's shapes the fastest that fits the outbox, or the fastest. Returns the number of pieces in which the
 * box is best sent. */
int32_t bny_tree_choose(const bny_request *request, const bny_tree_strategy *strategy, bny_tree_shape *shape,
                        bny_estimate *estimate);

static inline int32_t bny_tree_root(const bny_request *request) {
  bool rooted = request->collective == BNY_BROADCAST || request->scatter == BANYAN_SCATTER_ROOT;
  return rooted ? request->root : 0;
}

/* All ranks get all; each owner gets its slice from the root. Else the root gets all. */
static inline bool bny_tree_goes_down(const bny_request *request) {
  return request->collective == BNY_BROADCAST || request->scatter == BANYAN_SCATTER_NONE;
}

static inline bool bny_tree_goes_to_owners(const bny_request *request) {
  return !bny_tree_goes_down(request) && request->scatter != BANYAN_SCATTER_ROOT;
}

#endif
