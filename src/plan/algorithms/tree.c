/* SPDX-License-Identifier: Apache-2.0
 * Plans tree (docs/algorithms.md): tree_shape.h has the shapes, and the one with the lowest predicted time is used. A
 * rank's slots are, in this order: for each piece its copy and the result of each merge stage, except the root's last
 * stage; for each piece the result on its way down, if this rank forwards it; and on the root, the owners' slices. The
 * number of stages of a peer therefore gives its slots. */
#include <string.h>

#include "plan/compose.h"
#include "plan/slice.h"
#include "plan/algorithms/tree_shape.h"

/* The layout of slots, the same on every rank. */
typedef struct tree_layout {
  bny_tree_shape shape;
  bool up;   /* there is something to merge */
  bool down; /* all ranks get all */
  int32_t npieces;
  bny_slice pieces[BNY_TREE_PIECES_MAX];
  size_t before[BNY_TREE_PIECES_MAX + 1]; /* outbox space for this many pieces */
} tree_layout;

/* ---- slots ------------------------------------------------------------------------------------------------------- */

/* Bytes are cut at multiples of 64. */
static bny_slice piece_of(const bny_request *request, int32_t pieces, int32_t index) {
  bny_slice piece = bny_slice_whole(request);
  if (pieces == 1) return piece;
  if (bny_call_merges(&request->call)) return bny_slice_piece(request, pieces, index);
  size_t each = (piece.bytes / (size_t)pieces + 63) / 64 * 64, first = each * (size_t)index;
  piece.byte0 = first < piece.bytes ? first : piece.bytes;
  piece.bytes = piece.bytes - piece.byte0 < each || index == pieces - 1 ? piece.bytes - piece.byte0 : each;
  return piece;
}

/* The shape is the same on all ranks, so one of them chooses it. Returns the number of pieces. */
static int32_t shape_choose(const bny_builder *builder, const bny_tree_strategy *strategy, bny_tree_shape *shape) {
  const bny_request *request = builder->request;
  bny_choice choice = {.key = builder->choices ? bny_request_hash(request, strategy->name) : 0};
  const bny_choice *found = bny_choices_find(builder->choices, choice.key);
  if (found) {
    bny_tree_offer(strategy, request, 0, 0, shape);
    memcpy(shape->radix, found->estimate.radix, sizeof shape->radix);
    return found->estimate.pieces;
  }
  bny_tree_choose(request, strategy, shape, &choice.estimate);
  bny_choices_add(builder->choices, &choice);
  return choice.estimate.pieces;
}

static void layout_make(const bny_builder *builder, const bny_tree_strategy *strategy, tree_layout *layout) {
  const bny_request *request = builder->request;
  int32_t pieces = shape_choose(builder, strategy, &layout->shape);
  layout->up = bny_call_merges(&request->call);
  layout->down = bny_tree_goes_down(request) && request->nranks > 1;
  layout->npieces = 0;
  layout->before[0] = 0;
  for (int32_t i = 0; i < pieces; i++) {
    bny_slice piece = piece_of(request, pieces, i);
    if (bny_slice_is_empty(request, &piece)) continue;
    int32_t at = layout->npieces++;
    layout->pieces[at] = piece;
    layout->before[at + 1] = layout->before[at] + bny_slice_outbox_bytes(request, &piece);
  }
}

/* The slots of a piece on its way up. */
static int32_t slots_up(const tree_layout *layout, const bny_tree_node *node) {
  if (!layout->up) return 0;
  return 1 + node->nstages - (node->parent < 0 && node->nstages > 0 ? 1 : 0);
}

static bool passes_on(const tree_layout *layout, const bny_tree_node *node) {
  return (layout->down && node->nchildren > 0) || (!layout->up && node->parent < 0);
}

/* Receives slot `number` of a piece up (of `slots` per piece on the peer), or that piece down (number < 0). */
static bny_source receive(bny_builder *builder, const tree_layout *layout, int32_t peer, int32_t slots, int32_t piece,
                          int32_t number) {
  const bny_slice *slice = &layout->pieces[piece];
  bny_slot what = {.slice = *slice, .bytes = bny_slice_wire_bytes(builder->request, slice)};
  size_t room = layout->before[piece + 1] - layout->before[piece], offset = layout->before[piece];
  int32_t slot = piece * slots + number;
  if (number < 0) {
    slot = layout->npieces * slots + piece;
    offset += layout->before[layout->npieces] * (size_t)slots;
  } else {
    offset = offset * (size_t)slots + room * (size_t)number;
  }
  what.offset = bny_builder_first_offset(builder) + offset;
  return bny_builder_receive(builder, peer, bny_builder_first_slot(builder) + slot, &what);
}

/* ---- one rank's part --------------------------------------------------------------------------------------------- */

typedef struct tree_run {
  bny_builder *builder;
  tree_layout layout;
  bny_tree_node node;
  int32_t slots;           /* up, of this rank */
  int32_t *children_slots; /* and of its children */
  int32_t first, first_down, first_owner;
} tree_run;

static void slots_make(tree_run *run) {
  const tree_layout *layout = &run->layout;
  const bny_request *request = run->builder->request;
  run->first = run->builder->plan->nslots;
  for (int32_t piece = 0; piece < layout->npieces; piece++)
    for (int32_t i = 0; i < run->slots; i++) bny_builder_slot_private(run->builder, &layout->pieces[piece]);
  run->first_down = run->builder->plan->nslots;
  for (int32_t piece = 0; passes_on(layout, &run->node) && piece < layout->npieces; piece++)
    bny_builder_slot_private(run->builder, &layout->pieces[piece]);
  run->first_owner = run->builder->plan->nslots;
  bool has_owners = layout->up && bny_request_has_owners(request) && run->node.parent < 0;
  for (int32_t owner = 0; has_owners && owner < request->nranks; owner++) {
    bny_slice owned = bny_slice_owned(request, owner);
    if (owner != run->builder->rank && bny_slice_rows(&owned) > 0) bny_builder_slot_private(run->builder, &owned);
  }
}

/* Sends to the children with the largest subtrees first. */
static void send_down(tree_run *run, int32_t slot) {
  for (int32_t i = run->node.nstages - 1; i >= 0; i--) {
    const bny_tree_stage *stage = &run->node.stages[i];
    bny_builder_send_list(run->builder, slot, run->node.children + stage->first, stage->count);
  }
}

/* Returns the index and offset of an owner's slot. Slots are in owner order, without the root's own. */
static int32_t owner_slot(tree_run *run, int32_t owner, size_t *offset) {
  const bny_request *request = run->builder->request;
  int32_t root = run->layout.shape.root;
  bny_owners before = bny_owners_of(request, 0, owner), self = bny_owners_of(request, root, root + 1);
  if (owner <= root) self = (bny_owners){.nonempty = 0};
  *offset = before.bytes - self.bytes;
  return before.nonempty - self.nonempty;
}

static void give_to_owners(tree_run *run, const bny_source *sources, int32_t count) {
  bny_builder *builder = run->builder;
  const bny_request *request = builder->request;
  int32_t nranks = request->nranks;
  for (int32_t i = 1; i < nranks; i++) {
    int32_t owner = bny_modulo((int64_t)builder->rank + i, nranks);
    bny_slice owned = bny_slice_owned(request, owner);
    size_t unused;
    if (bny_slice_rows(&owned) == 0) continue;
    int32_t slot = run->first_owner + owner_slot(run, owner, &unused);
    bny_builder_merge(builder, slot, sources, count);
    bny_builder_send(builder, slot, owner);
  }
  bny_slice own = bny_slice_owned(request, builder->rank);
  if (bny_slice_rows(&own) > 0) bny_builder_deliver(builder, &own, sources, count);
}

static void take_from_root(tree_run *run) {
  bny_builder *builder = run->builder;
  const tree_layout *layout = &run->layout;
  bny_slice own = bny_slice_owned(builder->request, builder->rank);
  if (bny_slice_rows(&own) == 0) return;
  bny_tree_node root = {.children = NULL};
  bny_tree_node_of(&layout->shape, layout->shape.root, &root);
  int32_t slots = slots_up(layout, &root);
  size_t offset;
  int32_t slot = slots * layout->npieces + owner_slot(run, builder->rank, &offset);
  offset += layout->before[layout->npieces] * (size_t)slots;
  bny_slot what = {.slice = own,
                   .offset = bny_builder_first_offset(builder) + offset,
                   .bytes = bny_slice_wire_bytes(builder->request, &own)};
  slot += bny_builder_first_slot(builder);
  bny_builder_deliver_one(builder, &own, bny_builder_receive(builder, layout->shape.root, slot, &what));
}

/* Sends the root's merge of `count` sources to the ranks that the scatter selects. */
static void finish(tree_run *run, int32_t piece, const bny_source *sources, int32_t count) {
  bny_builder *builder = run->builder;
  const bny_slice *slice = &run->layout.pieces[piece];
  if (run->layout.down) {
    int32_t slot = run->first_down + piece;
    bny_builder_merge(builder, slot, sources, count);
    send_down(run, slot);
    bny_builder_deliver_one(builder, slice, bny_source_slot(slot));
  } else if (bny_request_has_owners(builder->request)) {
    give_to_owners(run, sources, count);
  } else {
    bny_builder_deliver(builder, slice, sources, count);
  }
}

static void merge_piece(tree_run *run, int32_t piece) {
  bny_builder *builder = run->builder;
  const bny_tree_node *node = &run->node;
  int32_t current = run->first + piece * run->slots;
  bny_source sources[BNY_MERGE_SOURCES_MAX] = {bny_source_slot(current)};
  bny_builder_copy(builder, current);
  for (int32_t i = 0; i < node->nstages; i++) {
    const bny_tree_stage *stage = &node->stages[i];
    int32_t count = 0;
    for (int32_t child = 0; child <= stage->count; child++) {
      if (child == stage->before) sources[count++] = bny_source_slot(current);
      if (child == stage->count) break;
      int32_t number = stage->first + child, slots = run->children_slots[number];
      sources[count++] = receive(builder, &run->layout, node->children[number], slots, piece, slots - 1);
    }
    if (node->parent < 0 && i == node->nstages - 1) {
      finish(run, piece, sources, count);
      return;
    }
    bny_builder_merge(builder, ++current, sources, count);
  }
  if (node->parent < 0)
    finish(run, piece, sources, 1); /* the only rank */
  else
    bny_builder_send(builder, current, node->parent);
}

static void receive_down(tree_run *run) {
  bny_builder *builder = run->builder;
  bny_tree_node parent = {.children = NULL};
  bny_tree_node_of(&run->layout.shape, run->node.parent, &parent);
  int32_t slots = slots_up(&run->layout, &parent);
  for (int32_t piece = 0; piece < run->layout.npieces; piece++) {
    bny_source source = receive(builder, &run->layout, run->node.parent, slots, piece, -1);
    if (passes_on(&run->layout, &run->node)) {
      int32_t slot = run->first_down + piece;
      bny_builder_merge(builder, slot, &source, 1);
      send_down(run, slot);
      source = bny_source_slot(slot);
    }
    bny_builder_deliver_one(builder, &run->layout.pieces[piece], source);
  }
}

static void broadcast(tree_run *run) {
  for (int32_t piece = 0; piece < run->layout.npieces; piece++) {
    int32_t slot = run->first_down + piece;
    bny_builder_copy(run->builder, slot);
    send_down(run, slot);
    bny_builder_deliver_one(run->builder, &run->layout.pieces[piece], bny_source_slot(slot));
  }
}

static bool node_find(tree_run *run) {
  const bny_tree_shape *shape = &run->layout.shape;
  bny_tree_node_of(shape, run->builder->rank, &run->node);
  run->node.children = bny_builder_allocate(run->builder, run->node.nchildren, sizeof *run->node.children);
  run->children_slots = bny_builder_allocate(run->builder, run->node.nchildren, sizeof *run->children_slots);
  if (!run->node.children || !run->children_slots) return false;
  bny_tree_node_of(shape, run->builder->rank, &run->node);
  for (int32_t i = 0; i < run->node.nchildren; i++) {
    bny_tree_node child = {.children = NULL};
    bny_tree_node_of(shape, run->node.children[i], &child);
    run->children_slots[i] = slots_up(&run->layout, &child);
  }
  run->slots = slots_up(&run->layout, &run->node);
  return true;
}

static void build(bny_builder *builder, const bny_tree_strategy *strategy) {
  const bny_request *request = builder->request;
  bny_slice whole = bny_slice_whole(request);
  tree_run run = {.builder = builder};
  if (bny_slice_is_empty(request, &whole)) return;
  layout_make(builder, strategy, &run.layout);
  if (!node_find(&run)) return;
  slots_make(&run);
  for (int32_t piece = 0; run.layout.up && piece < run.layout.npieces; piece++) merge_piece(&run, piece);
  if (run.node.parent < 0) {
    if (!run.layout.up) broadcast(&run);
  } else if (run.layout.down) {
    receive_down(&run);
  } else if (bny_request_has_owners(request)) {
    take_from_root(&run);
  }
}

static const char *reject(const bny_request *request, const bny_tree_strategy *strategy) {
  if (!bny_call_merges(&request->call) && request->call.collective != BNY_BROADCAST)
    return "it serves combine, allreduce, select and broadcast";
  return strategy->reject(request);
}

static void estimate(const bny_request *request, const bny_tree_strategy *strategy, bny_estimate *estimate) {
  bny_tree_shape unused;
  bny_tree_choose(request, strategy, &unused, estimate);
}

/* Defines one row of the table of algorithms for each strategy. */
#define TREE(strategy)                                                                                               \
  static const char *reject_##strategy(const bny_request *request) { return reject(request, &bny_tree_##strategy); } \
  static void estimate_##strategy(const bny_request *request, bny_estimate *made) {                                  \
    estimate(request, &bny_tree_##strategy, made);                                                                   \
  }                                                                                                                  \
  static void build_##strategy(bny_builder *builder) { build(builder, &bny_tree_##strategy); }                       \
  const bny_algorithm bny_algorithm_tree_##strategy = {.name = "tree",                                               \
                                                       .variant = #strategy,                                         \
                                                       .reject = reject_##strategy,                                  \
                                                       .estimate = estimate_##strategy,                              \
                                                       .build = build_##strategy};

TREE(knomial)
TREE(balanced)
TREE(chain)
TREE(levels)
