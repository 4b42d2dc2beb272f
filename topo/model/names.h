/* SPDX-License-Identifier: Apache-2.0
 * A map from (scope, text) to a number: fill it, sort it once, then query it. Look-ups and the search for duplicates
 * are logarithmic even for hostile files. Keys are not copied. */
#ifndef BNY_TOPO_NAMES_H
#define BNY_TOPO_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes room for one more item in the array that the pointer at `array` points to. False without memory, or if it has
 * BNY_TOPO_MOST items; then all is as it was. */
enum { BNY_TOPO_MOST = 4000000 };
bool bny_topo_grow(void *array, int32_t count, int32_t *capacity, size_t item_bytes);

/* Compares two items that begin with `count` numbers (int32_t), the first of these first: for functions of qsort(). */
int bny_topo_order(const void *a, const void *b, int count);

typedef struct bny_topo_name {
  const char *key;
  int32_t scope, value;
} bny_topo_name;

/* An all-zero value is empty. */
typedef struct bny_topo_names {
  bny_topo_name *entries;
  int32_t count, capacity;
  bool out_of_memory; /* sticky */
} bny_topo_names;

void bny_topo_names_add(bny_topo_names *names, int32_t scope, const char *key, int32_t value);

/* Sorts by scope, key and value. Returns the first entry with the same scope and key as the one before it, or NULL. */
const bny_topo_name *bny_topo_names_sort(bny_topo_names *names);

/* Returns the value, the least of several; -1 if there is none. Only valid after sorting. */
int32_t bny_topo_names_find(const bny_topo_names *names, int32_t scope, const char *key);

void bny_topo_names_free(bny_topo_names *names);

/* Returns the name of a vendor by its PCI number; NULL unknown. */
const char *bny_topo_vendor_name(int64_t vendor);

#endif
