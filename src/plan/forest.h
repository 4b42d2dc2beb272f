/* SPDX-License-Identifier: Apache-2.0
 *
 * A forest: what a rank has of one slice, contributions of a set of ranks, as nodes of the tree in which they are
 * merged.
 *
 * Canonical order merges ranks 0 .. n-1 as a tree of neighbour pairs. Its nodes are the aligned blocks
 * [i 2^k, min((i+1) 2^k, n)); a set of ranks is carried as the fewest such nodes that cover it, and a node is merged
 * when all of it is there, never anything else. So each algorithm delivers the same expression, hence the same bits. In
 * plan order everything at hand is merged into one node, and [low, high) is a label alone.
 *
 * Merging is lazy: a forest keeps what has arrived as it is, and merges over a slice when that slice is sent or
 * delivered. Each received row is then read once, and nothing is stored in between. */
#ifndef BNY_PLAN_FOREST_H
#define BNY_PLAN_FOREST_H

#include "plan/builder.h"

/* Ranks first, first + 1, ... modulo the number of ranks. */
typedef struct bny_rank_set {
  int32_t first, count;
} bny_rank_set;

typedef struct bny_node {
  int32_t low, high; /* ranks [low, high) */
  bny_source source;
} bny_node;

static inline bny_key bny_node_key(int32_t phase, int32_t piece, const bny_node *node) {
  return (bny_key){.phase = phase, .piece = piece, .low = node->low, .high = node->high};
}

typedef struct bny_forest {
  bny_node *nodes; /* by low */
  int32_t count, capacity;
} bny_forest;

/* A cover of any set of up to 2^31 ranks has at most this many nodes. */
enum { BNY_FOREST_COVER_MAX = 128 };

/* The nodes in which a set travels; sources are not set. */
int32_t bny_forest_cover(const bny_request *request, bny_rank_set set, bny_node *nodes);

void bny_forest_clear(bny_forest *forest);
void bny_forest_add(bny_builder *builder, bny_forest *forest, int32_t low, int32_t high, bny_source source);

/* Receives and waits for the nodes of `set` that `peer` sends as (phase, piece), and adds them. */
void bny_forest_receive(bny_builder *builder, bny_forest *forest, int32_t peer, int32_t phase, int32_t piece,
                        bny_rank_set set);

/* Sends the forest, whose contributions are exactly `set`, over `slice` as (phase, piece) to `peer`: one slot for each
 * node of the cover. An own slot that is such a node already is sent as it is. */
void bny_forest_send(bny_builder *builder, const bny_forest *forest, const bny_slice *slice, int32_t peer,
                     int32_t phase, int32_t piece, bny_rank_set set);

/* Sources whose merge over `slice` is the whole expression over all ranks; their number in *count. NULL on failure. */
const bny_source *bny_forest_complete(bny_builder *builder, const bny_forest *forest, const bny_slice *slice,
                                      int64_t *count);

#endif
