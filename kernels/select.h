/* SPDX-License-Identifier: Apache-2.0
 * Lists of scored keys, and the total order of selections: the higher score first, then the lower index. Scores of NaN
 * come last, and -0 equals 0. A list in a message is sorted and has k pairs, with absent ones at its end. */
#pragma once

#include "merge_math.h"
#include "op.h"

enum { BNY_SELECT_MOST = 8192, BNY_SELECT_POSITION_BITS = 13 };

/* A pair and who offers it, as one number of 128 bits, so that pairs are compared at once. From the top it has 32 bits
 * of the score's image, 63 of the index, 20 of the rank, and 13 of the position among the rank's offers. Both words of
 * an absent pair are all ones. */
struct bny_pair {
  uint64_t high, low;
};

/* Results of reading a list. Arrays may be NULL. */
struct bny_pairs_read {
  float *scores;
  int64_t *indices;
  int32_t *own; /* positions of this rank's pairs; those behind own_count are not written */
  int32_t own_count;
  int64_t least, most; /* indices; INT64_MAX and 0 without pairs */
};

/* Makes the pairs of a rank. Returns true if they are sorted and no index is negative. */
bool bny_pairs_plain_make(const float *scores, const int64_t *indices, int32_t count, int32_t rank, bny_pair *to);
void bny_pairs_plain_read(const bny_pair *list, int32_t count, int32_t rank, bny_pairs_read *to);

__extension__ typedef unsigned __int128 bny_wide;

#define BNY_KEY_OF_NAN 0xfffffffeu

/* The image of a score: the best has the smallest. */
BNY_HD static inline uint32_t bny_score_key(float score) {
  uint32_t bits = bny_bits_of_float(score), magnitude = bits & 0x7fffffffu;
  uint32_t key = bits >> 31 ? 0x80000000u + magnitude : 0x7fffffffu - magnitude;
  if (magnitude == 0) key = 0x7fffffffu;
  return magnitude > 0x7f800000u ? BNY_KEY_OF_NAN : key;
}

/* The image of NaN gives a NaN. */
BNY_HD static inline float bny_score_of_key(uint32_t key) {
  return bny_float_of_bits(key > 0x7fffffffu ? key : 0x7fffffffu - key);
}

BNY_HD static inline bool bny_pair_before(bny_pair a, bny_pair b) {
  return ((bny_wide)a.high << 64 | a.low) < ((bny_wide)b.high << 64 | b.low);
}

BNY_HD static inline bny_pair bny_pair_of(uint64_t high, uint64_t low) {
  bny_pair made;
  made.high = high;
  made.low = low;
  return made;
}

BNY_HD static inline bny_pair bny_pair_absent(void) { return bny_pair_of(UINT64_MAX, UINT64_MAX); }

BNY_HD static inline bool bny_pair_is_absent(bny_pair pair) { return pair.high == UINT64_MAX; }

BNY_HD static inline bny_pair bny_pair_make(float score, int64_t index, int32_t rank, int32_t position) {
  uint64_t who = (uint64_t)(uint32_t)rank << BNY_SELECT_POSITION_BITS | (uint32_t)position;
  return bny_pair_of((uint64_t)bny_score_key(score) << 32 | (uint64_t)index >> 31,
                     ((uint64_t)index & 0x7fffffff) << 33 | who);
}

BNY_HD static inline float bny_pair_score(bny_pair pair) { return bny_score_of_key((uint32_t)(pair.high >> 32)); }

BNY_HD static inline int64_t bny_pair_index(bny_pair pair) {
  return (int64_t)((pair.high & 0xffffffffu) << 31 | pair.low >> 33);
}

BNY_HD static inline int32_t bny_pair_rank(bny_pair pair) {
  return (int32_t)(pair.low >> BNY_SELECT_POSITION_BITS & 0xfffff);
}

BNY_HD static inline int32_t bny_pair_position(bny_pair pair) { return (int32_t)(pair.low & (BNY_SELECT_MOST - 1)); }

/* Returns how many of the first `count` pairs of two lists, which have as many, are of the first one. */
BNY_HD static inline int32_t bny_pairs_split(const bny_pair *a, const bny_pair *b, int32_t count) {
  int32_t low = 0, high = count;
  while (low < high) {
    int32_t middle = (low + high) / 2;
    if (bny_pair_before(a[middle], b[count - 1 - middle]))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

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
void bny_select_encode(const bny_kernels *kernels, const bny_lists *from, int64_t row, int32_t k, int32_t rank,
                       bny_pair *to);

/* Writes the first k pairs of all lists. 1 <= count <= BNY_MERGE_SOURCES_MAX. */
void bny_select_merge(int count, const bny_pair *const *lists, int32_t k, bny_pair *to);

/* Writes a row of the result from its list. Returns the first index that the list has twice. */
bny_doubled bny_select_finish(const bny_kernels *kernels, const bny_pair *list, int32_t k, int32_t rank,
                              const bny_lists *to, int64_t row);

/* Writes the k best of n scores with their positions, best first. If there are fewer, the rest have a score of -inf and
 * position -1. It uses 320 KiB of the stack. */
void bny_select_top(const bny_kernels *kernels, const float *scores, int32_t n, int32_t k, float *best,
                    int32_t *positions);
