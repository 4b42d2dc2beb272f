/* SPDX-License-Identifier: Apache-2.0
 * Lists of scored keys, and the total order of selections: the higher score first, then the lower index. Scores of NaN
 * come last, and -0 equals 0. A list in a message is sorted and has k pairs, with absent ones at its end. */
#pragma once

#include "op.h"

enum { BNY_SELECT_MOST = 8192, BNY_SELECT_POSITION_BITS = 13 };

/* A pair and who offers it, as one number of 128 bits, so that pairs are compared at once. From the top it has 32 bits
 * of the score's image, 63 of the index, 20 of the rank, and 13 of the position among the rank's offers. Both words of
 * an absent pair are all ones. */
typedef struct bny_pair {
  uint64_t high, low;
} bny_pair;

/* The caller's memory of a selection: for each row at most k pairs, and what was chosen. Pointers are at the first row,
 * and strides are from one row to the next. */
typedef struct bny_lists {
  const float *scores;
  const int64_t *indices; /* negative: no pair */
  const int32_t *rows;    /* `own` gets this for a pair; NULL: it gets the position */
  int32_t offers;
  int64_t in_stride, out_stride;
  float *best_scores; /* this and all below: NULL if not wanted */
  int64_t *best_indices;
  int32_t *counts, *own, *own_counts;
} bny_lists;

/* An index that is offered twice, or -1. */
typedef struct bny_doubled {
  int64_t index;
  int32_t ranks[2];
} bny_doubled;

/* Makes the list of a row's offers. It uses 128 KiB of the stack if they are not sorted. */
void bny_select_encode(const bny_lists *from, int64_t row, int32_t k, int32_t rank, bny_pair *to);

/* Writes the first k pairs of all lists. 1 <= count <= BNY_MERGE_SOURCES_MAX. */
void bny_select_merge(int count, const bny_pair *const *lists, int32_t k, bny_pair *to);

/* Writes a row of the result from its list. Returns the first index that the list has twice. */
bny_doubled bny_select_finish(const bny_pair *list, int32_t k, int32_t rank, const bny_lists *to, int64_t row);

/* Writes the k best of n scores with their positions, best first. If there are fewer, the rest have a score of -inf and
 * position -1. It uses 320 KiB of the stack. */
void bny_select_top(const bny_kernels *kernels, const float *scores, int32_t n, int32_t k, float *best,
                    int32_t *positions);
