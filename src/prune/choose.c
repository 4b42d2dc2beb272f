/* SPDX-License-Identifier: Apache-2.0
 * Chooses the pages that a row block reads, and certifies the bound of the others. */
#include "prune/prune.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "prune/block.h"
#include "merge_math.h"
#include "select.h"

enum {
  ROWS = BNY_ATTENTION_HEADS_MAX,
  BINS = 2048,      /* scores by exponent and three bits of a float */
  LEAST_KEYS = 128, /* keys that are read at a time, at least */
  ZERO_BITS = 1002  /* epsilon 0: bny_attention_rescale() makes 0 of sums that are this far below */
};

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* mass * 2^(from - to), which does not vanish. Whole numbers, from <= to. */
static float weight_of(float mass, float from, float to) {
  float exponent = from - to;
  if (!(exponent > -126)) return FLT_MIN;
  float weight = mass * bny_float_of_bits((uint32_t)((int32_t)exponent + 127) << 23);
  return weight > FLT_MIN ? weight : FLT_MIN;
}

/* The largest weight of each page for any row. The list takes their memory. */
static float *scores_of(const bny_prune_block *b) { return (float *)(void *)b->list; }

/* Finds the top of each row: the largest of its pages. */
static void find_tops(bny_prune_block *b) {
  int32_t heads = b->task->heads;
  float top[ROWS];
  for (int32_t h = 0; h < heads; h++) top[h] = -INFINITY;
  for (int32_t i = 0, h = 0; i < b->pages * heads; i++, h = h + 1 == heads ? 0 : h + 1)
    if (b->tops[i] > top[h] && b->masses[i] < INFINITY) top[h] = b->tops[i];
  for (int32_t h = 0; h < heads; h++) b->top[h] = (double)top[h];
}

/* Converts masses to weights relative to the row's top. `total`: the sum of weights for each row, without pages that
 * must be read. */
static void make_weights(bny_prune_block *b, double *total) {
  int32_t heads = b->task->heads;
  float top[ROWS], *scores = scores_of(b);
  for (int32_t h = 0; h < heads; h++) top[h] = (float)b->top[h], total[h] = 0;
  for (int32_t page = 0; page < b->pages; page++) {
    float *masses = b->masses + (int64_t)page * heads, *tops = b->tops + (int64_t)page * heads, score = 0;
    for (int32_t h = 0; h < heads; h++) {
      if (masses[h] > 0 && masses[h] < INFINITY) {
        masses[h] = weight_of(masses[h], tops[h], top[h]);
        total[h] += (double)masses[h];
      }
      score = masses[h] > score ? masses[h] : score;
    }
    scores[page] = score;
  }
}

/* Sorts pages by their scores, in steps of an eighth. Pages of the same step are in the order of the table. */
static void sort_pages(bny_prune_block *b) {
  int32_t start[BINS + 1] = {0};
  const float *scores = scores_of(b);
  for (int32_t page = 0; page < b->pages; page++) {
    b->forced += scores[page] == INFINITY;
    start[BINS - (bny_bits_of_float(scores[page]) >> 20)]++;
  }
  for (int32_t i = 0; i < BINS; i++) start[i + 1] += start[i];
  for (int32_t page = 0; page < b->pages; page++)
    b->order[start[BINS - 1 - (bny_bits_of_float(scores[page]) >> 20)]++] = page;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Returns how many keys of the `count` pages of the list are below `key`. */
static int32_t listed_below(const bny_prune_block *b, int32_t count, int32_t key) {
  int32_t page = key / b->page_keys, low = 0, high = count;
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (b->list[middle] < page)
      low = middle + 1;
    else
      high = middle;
  }
  return low * b->page_keys + (low < count && b->list[low] == page ? key % b->page_keys : 0);
}

/* Lists the next `count` pages of the order to be read next, as a sequence of their own. */
static void list_pages(bny_prune_block *b, int32_t count) {
  const bny_attention_task *task = b->task;
  bny_attention_task *some = &b->some;
  int32_t listed = 0;
  b->stage = BNY_PRUNE_READ;
  b->count = count;
  memset(b->chosen, 0, (size_t)b->pages);
  for (int32_t i = b->done; i < b->done + count; i++) b->chosen[b->order[i]] = 1;
  for (int32_t page = 0; page < b->pages; page++) {
    b->list[listed] = page;
    listed += b->chosen[page];
  }
  *some = *task;
  some->keys = listed_below(b, listed, task->keys);
  for (int32_t h = 0; task->sights && h < task->heads; h++) {
    const bny_attention_sight *sight = &task->sights[h];
    bny_attention_sight *to = &b->sights[h];
    *to = (bny_attention_sight){.first = listed_below(b, listed, sight->first),
                                .end = smaller(listed_below(b, listed, sight->end), some->keys),
                                .tree_bits = b->done == 0 ? sight->tree_bits : 0};
    to->first = smaller(to->first, to->end);
    to->tree_first = larger(smaller(listed_below(b, listed, sight->tree_first), some->keys), to->end);
  }
  if (task->sights) some->sights = b->sights;
  for (int32_t i = 0; task->key_mask && i < listed; i++) {
    int32_t first = b->list[i] * b->page_keys;
    memcpy(b->mask + (int64_t)i * b->page_keys, task->key_mask + first,
           (size_t)smaller(b->page_keys, task->keys - first));
  }
  if (task->key_mask) some->key_mask = b->mask;
  some->pages = b->list;
  some->page_keys = b->page_keys;
  if (!task->pages) {
    some->k_page_stride = b->page_keys * task->k_token_stride;
    some->v_page_stride = b->page_keys * task->v_token_stride;
    some->scale_page_stride = b->page_keys * task->scale_token_stride;
  }
  for (int32_t i = 0; task->pages && i < listed; i++) b->list[i] = task->pages[b->list[i]];
}

/* The mass that a row has read, its sink included, log2. */
static double mass_of(const bny_prune_block *b, int32_t h) {
  const bny_attention_sums *sums = b->sums;
  double mass = sums->d[h] > 0 ? sums->m[h] + log2(sums->d[h]) : -INFINITY, sink = b->sinks[h], top = fmax(mass, sink);
  return isinf(top) ? top : top + log2(exp2(mass - top) + exp2(sink - top)) - 0x1p-40;
}

/* Moves *end down over pages that may be left out. `rest` has the weight of the pages after it, for each row. */
static void leave_out(const bny_prune_block *b, const double *budget, double *rest, int32_t *end) {
  int32_t heads = b->task->heads;
  for (; *end > larger(b->done, b->forced); --*end) {
    const float *weights = b->masses + (int64_t)b->order[*end - 1] * heads;
    for (int32_t h = 0; h < heads; h++)
      if (!(rest[h] + (double)weights[h] <= budget[h])) return;
    for (int32_t h = 0; h < heads; h++) rest[h] += (double)weights[h];
  }
}

/* Returns how many pages are needed if masses are as large as codes predict. Real masses are only a few percent
 * less. */
static int32_t guess(const bny_prune_block *b, const double *total) {
  double epsilon = (double)b->bounds->prune->epsilon, budget[ROWS], rest[ROWS] = {0};
  int32_t end = b->pages;
  for (int32_t h = 0; h < b->task->heads; h++)
    budget[h] = b->top[h] == -INFINITY ? 0 : epsilon / (1 + epsilon) * (total[h] + exp2(b->sinks[h] - b->top[h]));
  leave_out(b, budget, rest, &end);
  return end;
}

/* ---- what was left out ------------------------------------------------------------------------------------------- */

static void note_rest(bny_prune_block *b) {
  bny_pruned *pruned = &b->pruned;
  double mass[ROWS] = {0}, moment[ROWS] = {0};
  int32_t heads = b->task->heads;
  for (int32_t i = 0; i < b->done; i++) b->chosen[b->order[i]] = 1;
  for (int32_t i = b->done; i < b->pages; i++) {
    b->chosen[b->order[i]] = 0;
    const float *weights = b->masses + (int64_t)b->order[i] * heads;
    double length = (double)b->values[b->order[i]];
    for (int32_t h = 0; h < heads; h++) mass[h] += (double)weights[h], moment[h] += (double)weights[h] * length;
  }
  for (int32_t h = 0; h < heads; h++) {
    pruned->mass[h] = mass[h] > 0 ? log2(mass[h]) + b->top[h] + 0x1p-30 : -INFINITY;
    pruned->moment[h] = moment[h] > 0 ? log2(moment[h]) + b->top[h] + 0x1p-30 : -INFINITY;
  }
  b->stage = BNY_PRUNE_DONE;
}

/* Lists more pages to read, until the rest cannot hold more than epsilon. `guessed`: the least number of pages. */
static void read_more(bny_prune_block *b, int32_t guessed) {
  double budget[ROWS], epsilon = (double)b->bounds->prune->epsilon * (1 - 0x1p-20);
  for (int32_t h = 0; h < b->task->heads; h++)
    budget[h] = b->top[h] == -INFINITY ? 0 : epsilon * exp2(mass_of(b, h) - b->pruned.error[h] - b->top[h]);
  leave_out(b, budget, b->rest, &b->end);
  /* Each page that is read only adds to the mass, so no more pages than are needed now will ever be needed. */
  int32_t left = b->end - b->done, least = larger(LEAST_KEYS / b->page_keys, 1);
  int32_t count = b->done == 0 ? larger(b->forced, guessed) : larger(left / 2, b->done / 8);
  if (left > 0)
    list_pages(b, smaller(larger(least, count), left));
  else
    note_rest(b);
}

/* ---- epsilon 0 --------------------------------------------------------------------------------------------------- */

/* Returns a bound of log2 of a page's mass for a row, which is too large by less than 1. */
static double bound_of(const bny_prune_block *b, int64_t at) {
  float mass = b->masses[at];
  if (mass == 0 || mass == INFINITY) return mass == 0 ? -(double)INFINITY : (double)INFINITY;
  return (double)b->tops[at] + (int32_t)(bny_bits_of_float(mass) >> 23) - 126;
}

/* Lists the page with the largest bound of each row to be read first, so that a large logit is known. */
static void read_best(bny_prune_block *b) {
  int32_t best[ROWS] = {0}, heads = b->task->heads, count = 0;
  for (int32_t page = 1; page < b->pages; page++)
    for (int32_t h = 0; h < heads; h++)
      if (bound_of(b, (int64_t)page * heads + h) > bound_of(b, (int64_t)best[h] * heads + h)) best[h] = page;
  memset(b->chosen, 0, (size_t)b->pages);
  for (int32_t h = 0; h < heads; h++)
    if (!b->chosen[best[h]]) b->chosen[best[h]] = 1, b->order[count++] = best[h];
  list_pages(b, count);
}

/* Finds segments that are so far below a key of the row that their sums become 0 when they are merged with it. */
static void find_zeros(bny_prune_block *b, int32_t segment_keys) {
  const bny_attention_task *task = b->task;
  int32_t heads = task->heads, segments = (task->keys - 1) / segment_keys + 1;
  uint64_t needed = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int32_t page = 0; page < b->pages; page++) {
      int32_t first = page * b->page_keys, last = smaller(task->keys - first, b->page_keys) + first - 1;
      uint64_t own = UINT64_MAX >> (63 - (last / segment_keys - first / segment_keys)) << first / segment_keys;
      bool counts = false;
      for (int32_t h = 0; pass == 0 && h < heads; h++)
        counts = counts || !(bound_of(b, (int64_t)page * heads + h) < b->sums->m[h] - ZERO_BITS);
      if (counts) needed |= own;
      b->chosen[page] = (needed & own) != 0;
    }
  b->pruned.segments = ~needed & (segments < 64 ? (UINT64_C(1) << segments) - 1 : UINT64_MAX);
  b->stage = BNY_PRUNE_SEGMENTS;
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

void bny_prune_choose(bny_prune_block *b) {
  double total[ROWS];
  int32_t heads = b->task->heads;
  for (int32_t h = 0; h < heads; h++) b->pruned.error[h] = (double)bny_float_of_bits(b->errors[h]);
  if (!bny_prune_is_lossy(b->bounds->prune)) {
    read_best(b);
    return;
  }
  find_tops(b);
  b->end = b->pages;
  b->stage = BNY_PRUNE_CHOOSE;
  if (b->bounds->prune->top_pages > 0) return;
  make_weights(b, total);
  sort_pages(b);
  read_more(b, guess(b, total));
}

int32_t bny_prune_offer(bny_prune_block *blocks, int32_t count, const bny_kernels *kernels, float *scores,
                        int32_t *pages) {
  float *all = scores_of(blocks);
  double total[ROWS];
  int32_t k = smaller(blocks->bounds->prune->top_pages, blocks->pages), offers = 0;
  for (int32_t i = 0; i < count; i++) make_weights(&blocks[i], total);
  for (int32_t i = 1; i < count; i++)
    for (int32_t page = 0; page < blocks->pages; page++) all[page] = fmaxf(all[page], scores_of(&blocks[i])[page]);
  bny_select_top(kernels, all, blocks->pages, k, scores, pages);
  while (offers < k && scores[offers] > 0) offers++;
  return offers;
}

/* The order has the pages that are read, and then the others. */
static void put_in_order(bny_prune_block *b) {
  int32_t rest = b->count, read = 0;
  for (int32_t page = 0; page < b->pages; page++) b->order[b->chosen[page] ? read++ : rest++] = page;
}

void bny_prune_choose_top(bny_prune_block *blocks, int32_t count, const int32_t *pages, int32_t number) {
  const float *scores = scores_of(blocks);
  uint8_t *chosen = blocks->chosen;
  for (int32_t page = 0; page < blocks->pages; page++) chosen[page] = scores[page] == INFINITY;
  for (int32_t i = 0; i < number; i++) chosen[pages[i]] = 1;
  for (int32_t page = blocks->count = 0; page < blocks->pages; page++) blocks->count += chosen[page];
  put_in_order(blocks);
  for (int32_t i = 0; i < count; i++) {
    if (i > 0) memcpy(blocks[i].order, blocks->order, (size_t)blocks->pages * sizeof *blocks->order);
    list_pages(&blocks[i], blocks->count);
  }
}

int32_t bny_prune_listed(const bny_prune_block *b, int32_t key, bny_listed *at) {
  int32_t end = smaller(key / b->page_keys, b->pages);
  for (; at->page < end; at->page++) at->count += b->chosen[at->page];
  int32_t keys = at->count * b->page_keys + (end < b->pages && b->chosen[end] ? key % b->page_keys : 0);
  return smaller(keys, b->some.keys);
}

void bny_prune_go_on(bny_prune_block *b, int32_t segment_keys) {
  if (!bny_prune_is_lossy(b->bounds->prune)) {
    find_zeros(b, segment_keys);
    return;
  }
  b->done += b->count;
  if (b->bounds->prune->top_pages > 0)
    note_rest(b);
  else
    read_more(b, 0);
}

/* ---- the certificate --------------------------------------------------------------------------------------------- */

/* Let K be the mass that was read, S and M the bounds of mass and moment of the rest. With the true rest, of mass s and
 * numerator r, |o - o_exact| = |o s - r| / (K + s) <= (|o| S + M) / K, because |r| is at most the moment. */
double bny_prune_error(const bny_pruned *pruned, int32_t index, float m, float d, const float *n, int32_t value_dim) {
  double kept = (double)m + log2((double)d) - pruned->error[index], sum = 0;
  if (pruned->mass[index] == -INFINITY) return 0;
  if (!(d > 0)) return INFINITY;
  for (int32_t i = 0; i < value_dim; i++) sum += (double)n[i] * (double)n[i];
  double error = exp2(pruned->mass[index] - kept) * (sqrt(sum) / (double)d) + exp2(pruned->moment[index] - kept);
  return error >= 0 ? error * (1 + 0x1p-20) : (double)INFINITY; /* NaN: a mass of infinity next to a row of 0 */
}

void bny_prune_certify(const bny_pruned *pruned, int32_t index, float m, float d, const float *n, int32_t value_dim,
                       const bny_certificate *to, int64_t row) {
  double sum = 0, kept = d > 0 ? (double)m + log2((double)d) - pruned->error[index] : -INFINITY;
  for (int32_t i = 0; i < value_dim; i++) sum += (double)n[i] * (double)n[i];
  /* A row of a weight far below that of another rank counts as 0 in a combine, so the weight is that of all mass. */
  double logs[BNY_CERTIFICATE_VALUES] = {kept, pruned->mass[index], sum > 0 ? (double)m + log2(sum) / 2 : -INFINITY,
                                         pruned->moment[index]};
  double top = (double)(float)ceil(fmax(logs[0], logs[1]));
  bool is_empty = !isfinite(top);
  to->m[row] = is_empty ? -INFINITY : (float)top;
  to->d[row] = is_empty ? 0 : 1;
  for (int32_t i = 0; i < BNY_CERTIFICATE_VALUES; i++) {
    double value = is_empty ? 0 : exp2(logs[i] - top);
    if (i == 0)
      value *= 1 - 0x1p-20;
    else if (logs[i] > -INFINITY)
      value = value * (1 + 0x1p-20) + (double)FLT_MIN;
    to->values[row * BNY_CERTIFICATE_VALUES + i] = (float)value;
  }
}

float bny_prune_error_of(const float *values) {
  double kept = (double)values[0], rest = (double)values[1], n = (double)values[2], moment = (double)values[3];
  if (rest == 0) return 0;
  double error = (rest / kept * (n / kept) + moment / kept) * (1 + 0x1p-16);
  return error < 0x1p90 ? (float)error : INFINITY;
}
