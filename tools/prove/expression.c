/* SPDX-License-Identifier: Apache-2.0
 * Numbers each expression of merges once, so that equal ones have equal numbers. */
#include "tools/prove/prove.h"

#include "base/hash.h"

/* Returns the table's entry of (left, right, rounded), or the free entry where it belongs. */
static int32_t *entry_of(const bny_expressions *all, int32_t left, int32_t right, bool rounded) {
  uint64_t hash = bny_hash_add(rounded, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
  for (uint64_t i = hash >> 24;; i++) {
    int32_t *entry = &all->table[i & (uint64_t)(all->table_size - 1)];
    const bny_expression *node = &all->nodes[*entry - 1];
    if (*entry == 0 || (node->left == left && node->right == right && node->rounded == rounded)) return entry;
  }
}

static void table_grow(bny_expressions *all) {
  if (2 * all->count < all->table_size) return;
  all->table_size *= 2;
  all->table = tool_new((size_t)all->table_size, sizeof *all->table);
  for (int32_t number = all->nranks; number < all->count; number++)
    *entry_of(all, all->nodes[number].left, all->nodes[number].right, all->nodes[number].rounded) = number + 1;
}

static bny_expression *node_add(bny_expressions *all, bny_expression node) {
  all->nodes = tool_more(all->nodes, all->count, sizeof node);
  all->nodes[all->count] = node;
  return &all->nodes[all->count++];
}

bny_expressions bny_expressions_make(int32_t nranks) {
  bny_expressions all = {.nranks = nranks, .table_size = 256};
  all.table = tool_new((size_t)all.table_size, sizeof *all.table);
  for (int32_t rank = 0; rank < nranks; rank++)
    node_add(&all,
             (bny_expression){
                 .left = -1, .right = -1, .rounded = true, .roundings = 1, .leaves = 1, .low = rank, .high = rank + 1});
  return all;
}

/* Returns the bits of ranks 64 word .. 64 word + 63. */
static uint64_t word_of(const bny_expression *node, int32_t word) {
  if (word < node->low / 64 || word > (node->high - 1) / 64) return 0;
  if (node->set) return node->set[word - node->low / 64];
  uint64_t bits = ~UINT64_C(0);
  if (word == node->low / 64) bits &= ~UINT64_C(0) << (node->low % 64);
  if (word == (node->high - 1) / 64) bits &= ~UINT64_C(0) >> (63 - (node->high - 1) % 64);
  return bits;
}

/* Returns the first rank that is in both sets; -1 if there is none. */
static int32_t common_rank(const bny_expression *a, const bny_expression *b) {
  int32_t low = a->low > b->low ? a->low : b->low, high = a->high < b->high ? a->high : b->high;
  for (int32_t word = low / 64; low < high && word <= (high - 1) / 64; word++) {
    uint64_t both = word_of(a, word) & word_of(b, word);
    if (both) return 64 * word + __builtin_ctzll(both);
  }
  return -1;
}

/* Sets the contributions of the node from those of its parts. */
static void join(const bny_expressions *all, bny_expression *node) {
  const bny_expression *a = &all->nodes[node->left], *b = &all->nodes[node->right];
  node->leaves = a->leaves + b->leaves;
  node->roundings = (a->roundings > b->roundings ? a->roundings : b->roundings) + (node->rounded ? 1 : 0);
  node->low = a->low < b->low ? a->low : b->low;
  node->high = a->high > b->high ? a->high : b->high;
  if (node->leaves == node->high - node->low) return;
  int32_t first = node->low / 64, last = (node->high - 1) / 64;
  node->set = tool_new((size_t)(last - first + 1), sizeof *node->set);
  for (int32_t word = first; word <= last; word++) node->set[word - first] = word_of(a, word) | word_of(b, word);
}

int32_t bny_expressions_merge(bny_expressions *all, int32_t left, int32_t right, bool rounded, int32_t *rank) {
  table_grow(all);
  int32_t *entry = entry_of(all, left, right, rounded);
  if (*entry) return *entry - 1;
  int32_t common = common_rank(&all->nodes[left], &all->nodes[right]);
  if (common >= 0) {
    *rank = common;
    return BNY_EXPRESSION_TWICE;
  }
  bny_expression node = {.left = left, .right = right, .rounded = rounded};
  join(all, &node);
  node_add(all, node);
  *entry = all->count;
  return all->count - 1;
}

int32_t bny_expressions_round(bny_expressions *all, int32_t number) {
  const bny_expression *node = &all->nodes[number];
  int32_t rank;
  return node->rounded ? number : bny_expressions_merge(all, node->left, node->right, true, &rank);
}

int32_t bny_expressions_missing(const bny_expressions *all, int32_t number) {
  const bny_expression *node = &all->nodes[number];
  if (node->leaves == all->nranks) return -1;
  for (int32_t rank = 0; rank < all->nranks; rank++)
    if (!(word_of(node, rank / 64) >> (rank % 64) & 1)) return rank;
  return -1;
}
