/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/expression.h"

#include <stdlib.h>
#include <string.h>

static bool reserve(bny_expressions *all) {
  if (all->count < all->capacity) return true;
  int32_t larger = 2 * all->capacity;
  bny_expression *nodes = realloc(all->nodes, (size_t)larger * sizeof *nodes);
  if (nodes) all->nodes = nodes;
  uint64_t *members = realloc(all->members, (size_t)larger * (size_t)all->words * sizeof *members);
  if (members) all->members = members;
  if (!nodes || !members) return false;
  all->capacity = larger;
  return true;
}

/* The table's entry of (left, right, rounded), or the free one where it belongs. */
static int32_t *entry_of(const bny_expressions *all, int32_t left, int32_t right, bool rounded) {
  uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15) + (rounded ? 1 : 0);
  hash *= UINT64_C(0xff51afd7ed558ccd);
  for (uint64_t i = hash >> 24;; i++) {
    int32_t *entry = &all->table[i & (uint64_t)(all->table_size - 1)];
    const bny_expression *node = &all->nodes[*entry - 1];
    if (*entry == 0 || (node->left == left && node->right == right && node->rounded == rounded)) return entry;
  }
}

static bool table_grow(bny_expressions *all) {
  if (2 * all->count < all->table_size) return true;
  int32_t *table = calloc((size_t)all->table_size * 2, sizeof *table);
  if (!table) return false;
  free(all->table);
  all->table = table;
  all->table_size *= 2;
  for (int32_t number = all->nranks; number < all->count; number++)
    *entry_of(all, all->nodes[number].left, all->nodes[number].right, all->nodes[number].rounded) = number + 1;
  return true;
}

bool bny_expressions_init(bny_expressions *all, int32_t nranks) {
  *all =
      (bny_expressions){.nranks = nranks, .words = (nranks + 63) / 64, .capacity = 2 * nranks + 64, .table_size = 256};
  all->nodes = calloc((size_t)all->capacity, sizeof *all->nodes);
  all->members = calloc((size_t)all->capacity * (size_t)all->words, sizeof *all->members);
  all->table = calloc((size_t)all->table_size, sizeof *all->table);
  if (!all->nodes || !all->members || !all->table) {
    bny_expressions_fini(all);
    return false;
  }
  for (int32_t rank = 0; rank < nranks; rank++) {
    all->nodes[rank] = (bny_expression){.left = -1, .right = -1, .rounded = true, .leaves = 1};
    all->members[(size_t)rank * (size_t)all->words + (size_t)rank / 64] |= UINT64_C(1) << (rank % 64);
  }
  all->count = nranks;
  return true;
}

void bny_expressions_fini(bny_expressions *all) {
  free(all->nodes);
  free(all->members);
  free(all->table);
  all->nodes = NULL;
  all->members = NULL;
  all->table = NULL;
}

static uint64_t *members_of(const bny_expressions *all, int32_t number) {
  return all->members + (size_t)number * (size_t)all->words;
}

int32_t bny_expressions_merge(bny_expressions *all, int32_t left, int32_t right, bool rounded, int32_t *rank) {
  if (!table_grow(all) || !reserve(all)) return BNY_EXPRESSION_NO_MEMORY;
  int32_t *entry = entry_of(all, left, right, rounded);
  if (*entry) return *entry - 1;
  uint64_t *members = members_of(all, all->count);
  for (int32_t word = 0; word < all->words; word++) {
    uint64_t a = members_of(all, left)[word], b = members_of(all, right)[word];
    if (a & b) {
      *rank = 64 * word + __builtin_ctzll(a & b);
      return BNY_EXPRESSION_TWICE;
    }
    members[word] = a | b;
  }
  all->nodes[all->count] = (bny_expression){
      .left = left, .right = right, .rounded = rounded, .leaves = all->nodes[left].leaves + all->nodes[right].leaves};
  *entry = all->count + 1;
  return all->count++;
}

int32_t bny_expressions_round(bny_expressions *all, int32_t number) {
  const bny_expression *node = &all->nodes[number];
  int32_t rank;
  return node->rounded ? number : bny_expressions_merge(all, node->left, node->right, true, &rank);
}

int32_t bny_expressions_missing(const bny_expressions *all, int32_t number) {
  if (all->nodes[number].leaves == all->nranks) return -1;
  for (int32_t rank = 0; rank < all->nranks; rank++)
    if (!(members_of(all, number)[rank / 64] >> (rank % 64) & 1)) return rank;
  return -1;
}
