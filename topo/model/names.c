/* SPDX-License-Identifier: Apache-2.0
 * Growing arrays, and a sorted map from (scope, text) to a number. */
#include "topo/model/names.h"

#include <stdlib.h>
#include <string.h>

bool bny_topo_grow(void *array, int32_t count, int32_t *capacity, size_t item_bytes) {
  if (count < *capacity) return true;
  int32_t wanted = *capacity < 16 ? 16 : 2 * *capacity;
  void *items;
  memcpy(&items, array, sizeof items);
  items = count >= BNY_TOPO_MOST ? NULL : realloc(items, (size_t)wanted * item_bytes);
  if (items == NULL) return false;
  memcpy(array, &items, sizeof items);
  *capacity = wanted;
  return true;
}

int bny_topo_order(const void *a, const void *b, int count) {
  const int32_t *left = a, *right = b;
  for (int i = 0; i < count; i++)
    if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
  return 0;
}

void bny_topo_names_add(bny_topo_names *names, int32_t scope, const char *key, int32_t value) {
  if (bny_topo_grow(&names->entries, names->count, &names->capacity, sizeof *names->entries))
    names->entries[names->count++] = (bny_topo_name){.key = key, .scope = scope, .value = value};
  else
    names->out_of_memory = true;
}

static int compare_keys(const bny_topo_name *a, const bny_topo_name *b) {
  return a->scope != b->scope ? (a->scope < b->scope ? -1 : 1) : strcmp(a->key, b->key);
}

static int compare_entries(const void *a_void, const void *b_void) {
  const bny_topo_name *a = a_void, *b = b_void;
  int keys = compare_keys(a, b);
  return keys != 0 ? keys : a->value < b->value ? -1 : a->value > b->value;
}

const bny_topo_name *bny_topo_names_sort(bny_topo_names *names) {
  if (names->count == 0) return NULL;
  qsort(names->entries, (size_t)names->count, sizeof *names->entries, compare_entries);
  for (int32_t i = 1; i < names->count; i++)
    if (compare_keys(&names->entries[i - 1], &names->entries[i]) == 0) return &names->entries[i];
  return NULL;
}

int32_t bny_topo_names_find(const bny_topo_names *names, int32_t scope, const char *key) {
  bny_topo_name wanted = {.key = key, .scope = scope};
  int32_t low = 0, high = names->count;
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (compare_keys(&names->entries[middle], &wanted) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  bool found = low < names->count && compare_keys(&names->entries[low], &wanted) == 0;
  return found ? names->entries[low].value : -1;
}

void bny_topo_names_free(bny_topo_names *names) {
  free(names->entries);
  *names = (bny_topo_names){0};
}

const char *bny_topo_vendor_name(int64_t vendor) {
  static const struct {
    int64_t number;
    const char *name;
  } known[] = {{0x10de, "NVIDIA"}, {0x1002, "AMD"},      {0x1022, "AMD"},      {0x15b3, "Mellanox"},
               {0x8086, "Intel"},  {0x1000, "Broadcom"}, {0x14e4, "Broadcom"}, {0x1d0f, "Amazon"},
               {0x17db, "HPE"},    {0x10b5, "PLX"},      {0x1af4, "virtio"},   {0x1414, "Microsoft"}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (known[i].number == vendor) return known[i].name;
  return NULL;
}
