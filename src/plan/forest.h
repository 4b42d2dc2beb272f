/* SPDX-License-Identifier: Apache-2.0
 * A forest holds a rank's contributions to one slice, from a set of ranks, as nodes of the tree in which they are
 * merged.
 *
 * Canonical order merges ranks 0 .. n-1 as a tree of neighbour pairs. Its nodes are the aligned blocks [i 2^k,
 * min((i+1) 2^k, n)). A set of ranks travels as the fewest such nodes that cover it. A node is merged when all of it
 * has arrived, and nothing else is merged. Each algorithm therefore delivers the same expression, and the same bits. In
 * plan order all available contributions are merged into one node, and [low, high) is only a label.
 *
 * Merging is lazy: a forest keeps its nodes as they arrived, and merges over a slice when that slice is sent or
 * delivered. Each received row is then read once, and nothing is stored in between. */
#pragma once

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
  bny_node *nodes; /* sorted by `low` */
  int32_t count, capacity;
} bny_forest;

/* A cover of any set of up to 2^31 ranks has at most this many nodes. */
enum { BNY_FOREST_COVER_MAX = 128 };

/* Fills in the nodes in which a set travels, without sources. */
int32_t bny_forest_cover(const bny_request *request, bny_rank_set set, bny_node *nodes);

void bny_forest_add(bny_builder *builder, bny_forest *forest, int32_t low, int32_t high, bny_source source);

/* Receives the nodes of `set` that `peer` sends as (phase, piece), waits for them and adds them. */
void bny_forest_receive(bny_builder *builder, bny_forest *forest, int32_t peer, int32_t phase, int32_t piece,
                        bny_rank_set set);

/* Sends the forest, whose contributions must be exactly `set`, over `slice` as (phase, piece) to `peer`: one slot for
 * each node of the cover. An own slot that is such a node already is sent unchanged. */
void bny_forest_send(bny_builder *builder, const bny_forest *forest, const bny_slice *slice, int32_t peer,
                     int32_t phase, int32_t piece, bny_rank_set set);

/* Returns sources whose merge over `slice` is the expression over all ranks, and their number in *count; NULL on
 * failure. */
const bny_source *bny_forest_complete(bny_builder *builder, const bny_forest *forest, const bny_slice *slice,
                                      int64_t *count);
