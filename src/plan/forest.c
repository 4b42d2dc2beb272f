/* SPDX-License-Identifier: Apache-2.0
 * Collects contributions to a slice as nodes of the merge tree, and merges them when they are sent or delivered. */
#include "plan/forest.h"

static bool is_canonical(const bny_request *request) { return request->call.order == BANYAN_ORDER_CANONICAL; }

/* Fills in the fewest aligned blocks that make up [low, high): greedily the largest that begins at low and fits. */
static int32_t cover_range(int32_t nranks, int32_t low, int32_t high, bny_node *nodes) {
  int32_t count = 0;
  while (low < high) {
    int64_t size = low == 0 ? (int64_t)1 << bny_log2_ceil(nranks) : low & -low;
    while ((low + size < nranks ? low + size : nranks) > high) size /= 2;
    int32_t end = (int32_t)(low + size < nranks ? low + size : nranks);
    nodes[count++] = (bny_node){.low = low, .high = end};
    low = end;
  }
  return count;
}

int32_t bny_forest_cover(const bny_request *request, bny_rank_set set, bny_node *nodes) {
  int32_t nranks = request->nranks;
  int64_t end = (int64_t)set.first + set.count;
  if (!is_canonical(request)) {
    nodes[0] = (bny_node){.low = set.first, .high = (int32_t)(end % nranks)};
    return 1;
  }
  if (end <= nranks) return cover_range(nranks, set.first, (int32_t)end, nodes);
  int32_t count = cover_range(nranks, set.first, nranks, nodes);
  return count + cover_range(nranks, 0, (int32_t)(end - nranks), nodes + count);
}

void bny_forest_add(bny_builder *builder, bny_forest *forest, int32_t low, int32_t high, bny_source source) {
  if (!bny_builder_grow(builder, &forest->nodes, &forest->capacity, forest->count, sizeof *forest->nodes)) return;
  int32_t at = forest->count++;
  for (; at > 0 && forest->nodes[at - 1].low > low; at--) forest->nodes[at] = forest->nodes[at - 1];
  forest->nodes[at] = (bny_node){.low = low, .high = high, .source = source};
}

void bny_forest_receive(bny_builder *builder, bny_forest *forest, int32_t peer, int32_t phase, int32_t piece,
                        bny_rank_set set) {
  bny_node nodes[BNY_FOREST_COVER_MAX];
  int32_t count = bny_forest_cover(builder->request, set, nodes);
  for (int32_t i = 0; i < count; i++) {
    bny_key key = bny_node_key(phase, piece, &nodes[i]);
    bny_forest_add(builder, forest, nodes[i].low, nodes[i].high, bny_builder_receive_key(builder, peer, key));
  }
}

static bny_source merged(bny_builder *builder, const bny_slice *slice, const bny_source *sources, int32_t count) {
  int32_t slot = bny_builder_slot_private(builder, slice);
  bny_builder_merge(builder, slot, sources, count);
  return bny_source_slot(slot);
}

/* Puts sources whose tree of neighbour pairs is node [low, high) into `sources` and returns their number. Lists A of
 * the left child and B of the right one may be joined if their common tree splits between them: if |A| is a power of
 * two and |B| <= |A|. A list that prevents this is merged into one. */
static int32_t node_sources(bny_builder *builder, const bny_forest *forest, const bny_slice *slice, int32_t low,
                            int32_t high, bny_source *sources) {
  for (int32_t i = 0; i < forest->count; i++)
    if (forest->nodes[i].low == low && forest->nodes[i].high == high) {
      sources[0] = forest->nodes[i].source;
      return 1;
    }
  if (high - low <= 1) /* unreachable: the forest would not cover it, and the prover would report it */
    return 0;
  int32_t middle = low + (int32_t)((int64_t)1 << (bny_log2_ceil(high - low) - 1));
  int32_t left = node_sources(builder, forest, slice, low, middle, sources);
  if (left > 1 && (left & (left - 1)) != 0) {
    sources[0] = merged(builder, slice, sources, left);
    left = 1;
  }
  int32_t right = node_sources(builder, forest, slice, middle, high, sources + left);
  if (right > left) {
    sources[left] = merged(builder, slice, sources + left, right);
    right = 1;
  }
  return left + right;
}

/* Like node_sources(), in either order; needs room for all nodes. */
static int32_t any_sources(bny_builder *builder, const bny_forest *forest, const bny_slice *slice, int32_t low,
                           int32_t high, bny_source *sources) {
  if (is_canonical(builder->request)) return node_sources(builder, forest, slice, low, high, sources);
  for (int32_t i = 0; i < forest->count; i++) sources[i] = forest->nodes[i].source;
  return forest->count;
}

static bool is_own_slot_of(const bny_builder *builder, bny_source source, const bny_slice *slice, bny_key key) {
  if (source.message >= 0 || source.slot >= builder->plan->nslots) return false;
  key.frame = builder->keys[source.slot].frame;
  return bny_slice_equal(&builder->plan->slots[source.slot].slice, slice) &&
         bny_key_equal(builder->keys[source.slot], key);
}

void bny_forest_send(bny_builder *builder, const bny_forest *forest, const bny_slice *slice, int32_t peer,
                     int32_t phase, int32_t piece, bny_rank_set set) {
  bny_node nodes[BNY_FOREST_COVER_MAX];
  int32_t count = bny_forest_cover(builder->request, set, nodes);
  bny_source *sources = bny_builder_allocate(builder, forest->count, sizeof *sources);
  for (int32_t i = 0; sources && i < count; i++) {
    bny_key key = bny_node_key(phase, piece, &nodes[i]);
    int32_t number = any_sources(builder, forest, slice, nodes[i].low, nodes[i].high, sources);
    if (number == 1 && is_own_slot_of(builder, sources[0], slice, key)) {
      bny_builder_send(builder, sources[0].slot, peer);
      continue;
    }
    int32_t slot = bny_builder_slot(builder, slice, key);
    bny_builder_merge(builder, slot, sources, number);
    bny_builder_send(builder, slot, peer);
  }
}

const bny_source *bny_forest_complete(bny_builder *builder, const bny_forest *forest, const bny_slice *slice,
                                      int64_t *count) {
  bny_source *sources = bny_builder_allocate(builder, forest->count, sizeof *sources);
  if (!sources) return NULL;
  *count = any_sources(builder, forest, slice, 0, builder->request->nranks, sources);
  return sources;
}
