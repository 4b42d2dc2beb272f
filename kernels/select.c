/* SPDX-License-Identifier: Apache-2.0
 * Selections: sorted lists of pairs are made, merged and written, and the best of many scores are found. */
#include "select.h"

#include <math.h>
#include <string.h>

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static void insert(bny_pair *list, int32_t count) {
  for (int32_t i = 1; i < count; i++) {
    bny_pair pair = list[i];
    int32_t at = i;
    for (; at > 0 && bny_pair_before(pair, list[at - 1]); at--) list[at] = list[at - 1];
    list[at] = pair;
  }
}

/* Sorts by insertion in short runs, which are then merged. */
static void sort(bny_pair *list, int32_t count) {
  enum { RUN = 16 };
  bny_pair room[BNY_SELECT_MOST], *from = list, *to = room;
  for (int32_t i = 0; i < count; i += RUN) insert(list + i, count - i < RUN ? count - i : RUN);
  for (int32_t run = RUN; run < count; run *= 2) {
    for (int32_t i = 0; i < count; i += 2 * run) {
      int32_t middle = i + run < count ? i + run : count, end = middle + run < count ? middle + run : count;
      for (int32_t a = i, b = middle, at = i; at < end; at++) {
        bool first = b == end || (a < middle && bny_pair_before(from[a], from[b]));
        to[at] = first ? from[a++] : from[b++];
      }
    }
    bny_pair *swap = from;
    from = to;
    to = swap;
  }
  if (from != list) memcpy(list, from, (size_t)count * sizeof *list);
}

bool bny_pairs_plain_make(const float *scores, const int64_t *indices, int32_t count, int32_t rank, bny_pair *to) {
  int64_t signs = 0;
  bool sorted = true;
  bny_pair before = {0, 0}; /* it comes before all pairs */
  for (int32_t i = 0; i < count; i++) {
    const bny_pair pair = bny_pair_make(scores[i], indices[i], rank, i);
    signs |= indices[i];
    sorted &= bny_pair_before(before, pair);
    to[i] = before = pair;
  }
  return sorted && signs >= 0;
}

void bny_select_encode(const bny_kernels *kernels, const bny_lists *from, int64_t row, int32_t k, int32_t rank,
                       bny_pair *to) {
  const int64_t at = row * from->in_stride, *indices = from->indices + at;
  int32_t count = from->offers;
  if (!kernels->pairs_make(from->scores + at, indices, count, rank, to)) {
    bool sorted = true;
    count = 0;
    for (int32_t i = 0; i < from->offers; i++) {
      if (indices[i] < 0) continue;
      to[count] = to[i];
      sorted &= count == 0 || bny_pair_before(to[count - 1], to[count]);
      count++;
    }
    if (!sorted) sort(to, count);
  }
  while (count < k) to[count++] = bny_pair_absent();
}

enum { AHEAD = 24 }; /* pairs that are fetched ahead, because a list may be in the cache of another core */

/* Writes pair `at` of the result, before which `of_a` are of the first list. Returns whether it is of that list too. */
static inline bool next_of(const bny_pair *a, const bny_pair *b, int64_t of_a, int64_t at, bny_pair *to) {
  const bny_pair *x = a + of_a, *y = b + (at - of_a);
  __builtin_prefetch(x + AHEAD);
  __builtin_prefetch(y + AHEAD);
  const bool first = bny_pair_before(*x, *y);
  to[at] = *(first ? x : y);
  return first;
}

/* Merges parts of the result at once, because each step waits for the one before it. A step has no branch: before `at`
 * pairs are found, at most `at` of each list are used, so both lists have a next one. */
static void merge_two(const bny_pair *a, const bny_pair *b, int32_t k, bny_pair *to) {
  enum { PARTS = 4 };
  const int64_t each = k / PARTS;
  int64_t of_a[PARTS];
  for (int part = 0; part < PARTS; part++) of_a[part] = bny_pairs_split(a, b, (int32_t)(part * each));
  for (int64_t i = 0; i < each; i++) {
    of_a[0] += next_of(a, b, of_a[0], i, to);
    of_a[1] += next_of(a, b, of_a[1], each + i, to);
    of_a[2] += next_of(a, b, of_a[2], 2 * each + i, to);
    of_a[3] += next_of(a, b, of_a[3], 3 * each + i, to);
  }
  for (int64_t i = PARTS * each; i < k; i++) of_a[PARTS - 1] += next_of(a, b, of_a[PARTS - 1], i, to);
}

void bny_select_merge(int count, const bny_pair *const *lists, int32_t k, bny_pair *to) {
  bny_pair room[BNY_SELECT_MOST], *places[] = {to, room};
  if (count == 1) memcpy(to, lists[0], (size_t)k * sizeof *to);
  const bny_pair *best = lists[0];
  for (int i = 1; i < count; i++) {
    bny_pair *next = places[(count - 1 - i) % 2];
    merge_two(best, lists[i], k, next);
    best = next;
  }
}

/* A table of positions by the hash of their index. */
static bny_doubled find_doubled(const bny_pair *list, int32_t count) {
  uint16_t table[4 * BNY_SELECT_MOST];
  int bits = 4;
  while ((1 << bits) < 4 * count) bits++;
  uint32_t mask = (1u << bits) - 1;
  memset(table, 0, (mask + 1) * sizeof *table);
  for (int32_t i = 0; i < count; i++) {
    int64_t index = bny_pair_index(list[i]);
    uint32_t at = (uint32_t)((uint64_t)index * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits));
    for (; table[at]; at = (at + 1) & mask)
      if (bny_pair_index(list[table[at] - 1]) == index)
        return (bny_doubled){index, {bny_pair_rank(list[table[at] - 1]), bny_pair_rank(list[i])}};
    table[at] = (uint16_t)(i + 1);
  }
  return (bny_doubled){-1, {0, 0}};
}

/* Returns whether an index may be there twice. If they are as close together as the keys of a context are, it is known
 * by a bit for each. */
static bool may_be_doubled(const bny_pair *list, int32_t count, int64_t least, int64_t most) {
  enum { BITS = 1 << 18 };
  uint64_t bits[BITS / 64], seen = 0;
  if (count < 2 || most - least >= BITS) return count > 1;
  memset(bits, 0, (size_t)((most - least) / 64 + 1) * sizeof *bits);
  for (int32_t i = 0; i < count; i++) {
    const uint64_t place = (uint64_t)(bny_pair_index(list[i]) - least), bit = UINT64_C(1) << place % 64;
    seen |= bits[place / 64] & bit;
    bits[place / 64] |= bit;
  }
  return seen != 0;
}

void bny_pairs_plain_read(const bny_pair *list, int32_t count, int32_t rank, bny_pairs_read *to) {
  int64_t least = INT64_MAX, most = 0;
  int32_t own = 0;
  for (int32_t i = 0; i < count; i++) {
    const bny_pair pair = list[i];
    const int64_t index = bny_pair_index(pair);
    if (to->scores) to->scores[i] = bny_pair_score(pair);
    if (to->indices) to->indices[i] = index;
    if (to->own) to->own[own] = bny_pair_position(pair); /* a branch on its rank would be mispredicted */
    own += bny_pair_rank(pair) == rank;
    least = index < least ? index : least;
    most = index > most ? index : most;
  }
  to->own_count = own;
  to->least = least, to->most = most;
}

bny_doubled bny_select_finish(const bny_kernels *kernels, const bny_pair *list, int32_t k, int32_t rank,
                              const bny_lists *to, int64_t row) {
  const int64_t at = row * to->out_stride;
  bny_pairs_read read = {.scores = to->best_scores ? to->best_scores + at : NULL,
                         .indices = to->best_indices ? to->best_indices + at : NULL,
                         .own = to->own ? to->own + at : NULL};
  int32_t count = k;
  while (count > 0 && bny_pair_is_absent(list[count - 1])) count--;
  kernels->pairs_read(list, count, rank, &read);
  for (int32_t i = count; i < k && read.scores; i++) read.scores[i] = -INFINITY;
  for (int32_t i = count; i < k && read.indices; i++) read.indices[i] = -1;
  for (int32_t i = 0; i < read.own_count && read.own && to->rows; i++)
    read.own[i] = to->rows[row * to->in_stride + read.own[i]];
  if (to->counts) to->counts[row] = count;
  if (to->own_counts) to->own_counts[row] = read.own_count;
  for (int32_t i = read.own_count; i < k && read.own; i++) read.own[i] = -1;
  const bool may = may_be_doubled(list, count, read.least, read.most);
  return may ? find_doubled(list, count) : (bny_doubled){-1, {0, 0}};
}

/* ---- the best of many scores ------------------------------------------------------------------------------------- */

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, SAMPLES = 2048, SAMPLED_MIN = 1 << 14, AMONG_MOST = 1 << 15 };

/* Scores by their positions; without `among` these are all positions. */
typedef struct candidates {
  const float *scores;
  const int32_t *among;
  int32_t count;
} candidates;

static inline int32_t place_of(const candidates *of, int32_t i) { return of->among ? of->among[i] : i; }

/* Returns the k-th smallest key, digit by digit, and how many of the keys that equal it are among the first k. */
static uint32_t find_bound(const candidates *of, int32_t k, int32_t *ties) {
  uint32_t prefix = 0;
  for (int shift = 32 - DIGIT_BITS, bits = DIGIT_BITS;;) {
    int32_t counts[DIGITS] = {0};
    for (int32_t i = 0; i < of->count; i++) {
      uint32_t key = bny_score_key(of->scores[place_of(of, i)]);
      bool fits = (uint64_t)key >> (shift + bits) == prefix;
      counts[key >> shift & ((1u << bits) - 1)] += fits;
    }
    uint32_t digit = 0;
    for (; counts[digit] < k; digit++) k -= counts[digit];
    prefix = prefix << bits | digit;
    if (shift == 0) break;
    bits = shift < DIGIT_BITS ? shift : DIGIT_BITS;
    shift -= bits;
  }
  *ties = k;
  return prefix;
}

/* Keeps the first k in the order of positions, as numbers of a key and a position. */
static void keep(const candidates *of, int32_t k, uint64_t *kept) {
  int32_t ties, count = 0;
  uint32_t bound = find_bound(of, k, &ties);
  for (int32_t i = 0; count < k; i++) {
    int32_t place = place_of(of, i);
    uint32_t key = bny_score_key(of->scores[place]);
    if (key > bound || (key == bound && ties-- <= 0)) continue;
    kept[count++] = (uint64_t)key << 32 | (uint32_t)place;
  }
}

/* Sorts by key. Equal keys keep their order. */
static uint64_t *sort_kept(uint64_t *from, uint64_t *to, int32_t count) {
  for (int shift = 32; shift < 64; shift += DIGIT_BITS) {
    int32_t starts[DIGITS] = {0}, sum = 0;
    for (int32_t i = 0; i < count; i++) starts[from[i] >> shift & (DIGITS - 1)]++;
    for (int32_t digit = 0; digit < DIGITS; digit++) {
      int32_t number = starts[digit];
      starts[digit] = sum;
      sum += number;
    }
    for (int32_t i = 0; i < count; i++) to[starts[from[i] >> shift & (DIGITS - 1)]++] = from[i];
    uint64_t *swap = from;
    from = to;
    to = swap;
  }
  return from;
}

/* Finds scores that include the k best, and are few, by a bound from a sample. Returns how many; 0: the sample
 * misleads, or the order needs more than a comparison of numbers. */
static int32_t find_few(const bny_kernels *kernels, const float *scores, int32_t n, int32_t k, int32_t *among) {
  float sample[SAMPLES];
  double expected = (double)k * SAMPLES / n;
  int32_t wanted = (int32_t)(expected + 4 * sqrt(expected) + 4), ties;
  if (n < SAMPLED_MIN || wanted > SAMPLES / 8) return 0;
  for (int64_t i = 0; i < SAMPLES; i++) sample[i] = scores[i * n / SAMPLES];
  float bound = bny_score_of_key(find_bound(&(candidates){sample, NULL, SAMPLES}, wanted, &ties));
  if (!(bound > -INFINITY)) return 0;
  int32_t found = kernels->at_least(scores, n, bound, among, AMONG_MOST);
  if (found <= AMONG_MOST) return found >= k ? found : 0;
  /* Many scores may equal the bound, such as the zeros of a ReLU. If fewer than k are above it, the first 2 k that were
   * found have enough of them, and those above it that come later are added. */
  int32_t above[BNY_SELECT_MOST + BNY_AT_LEAST_MORE];
  int32_t number = kernels->at_least(scores, n, nextafterf(bound, INFINITY), above, k - 1);
  if (number >= k) return 0;
  found = 2 * k;
  for (int32_t i = 0, last = among[found - 1]; i < number; i++)
    if (above[i] > last) among[found++] = above[i];
  return found;
}

void bny_select_top(const bny_kernels *kernels, const float *scores, int32_t n, int32_t k, float *best,
                    int32_t *positions) {
  uint64_t rooms[2][BNY_SELECT_MOST];
  int32_t among[AMONG_MOST + BNY_AT_LEAST_MORE], number = n < k ? n : k;
  int32_t few = number ? find_few(kernels, scores, n, number, among) : 0;
  candidates of = {scores, few ? among : NULL, few ? few : n};
  if (number) keep(&of, number, rooms[0]);
  const uint64_t *kept = sort_kept(rooms[0], rooms[1], number);
  for (int32_t i = 0; i < k; i++) {
    best[i] = i < number ? bny_score_of_key((uint32_t)(kept[i] >> 32)) : -INFINITY;
    positions[i] = i < number ? (int32_t)(uint32_t)kept[i] : -1;
  }
}
