/* SPDX-License-Identifier: Apache-2.0
 * A map from (scope, text) to a number: fill it, sort it once, then query it. Sorting takes n log n time and a look-up
 * takes log n, even for hostile files. Keys are not copied. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes room for one more item. `array` is the address of the pointer to the array. Returns false if out of memory or
 * if the array has BNY_TOPO_MOST items; the array is then unchanged. */
enum { BNY_TOPO_MOST = 4000000 };
bool bny_topo_grow(void *array, int32_t count, int32_t *capacity, size_t item_bytes);

/* Compares two items lexicographically by the `count` int32_t values that they begin with. For comparison functions of
 * qsort(). */
int bny_topo_order(const void *a, const void *b, int count);

typedef struct bny_topo_name {
  const char *key;
  int32_t scope, value;
} bny_topo_name;

/* A zero-initialised map is empty. */
typedef struct bny_topo_names {
  bny_topo_name *entries;
  int32_t count, capacity;
  bool out_of_memory; /* sticky */
} bny_topo_names;

void bny_topo_names_add(bny_topo_names *names, int32_t scope, const char *key, int32_t value);

/* Sorts by scope, key and value. Returns the first entry with the same scope and key as the one before it, or NULL. */
const bny_topo_name *bny_topo_names_sort(bny_topo_names *names);

/* Returns the value of a key, the smallest if there are several; -1 if there is none. The map must be sorted. */
int32_t bny_topo_names_find(const bny_topo_names *names, int32_t scope, const char *key);

void bny_topo_names_free(bny_topo_names *names);

/* Returns the name of a vendor by its PCI vendor id; NULL if unknown. */
const char *bny_topo_vendor_name(int64_t vendor);
