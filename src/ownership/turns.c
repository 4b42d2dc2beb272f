/* SPDX-License-Identifier: Apache-2.0
 * Assigns blocks of keys to ranks in turn, in proportion to their weights. There are three ways to assign a round. If
 * the order of ranks keeps every rank within a block of its share, as with equal weights, that order is used. Between
 * two ranks, the first gets its share rounded to the nearest. Otherwise the quota method of Balinski and Young is
 * used. Among the ranks that are not ahead of their share, it gives a block to the rank whose next block is due first.
 * That method rounds every share up or down at every step, and is run from the start to the requested step. */
#include "ownership/ownership.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/status.h"

static int64_t first_of(const bny_turns *turns, int32_t rank) {
  int64_t first = 0;
  for (int32_t r = 0; turns->weights && r < rank; r++) first += bny_turns_weight(turns, r);
  return turns->weights ? first : rank;
}

/* A rank is furthest behind before its run, and furthest ahead after it. */
static bool goes_in_runs(const bny_turns *turns) {
  int64_t first = 0;
  for (int32_t r = 0; turns->weights && r < turns->nranks; r++) {
    int64_t weight = bny_turns_weight(turns, r), rest = turns->total - first - weight;
    if (weight > 0 && (first * weight >= turns->total || rest * weight >= turns->total)) return false;
    first += weight;
  }
  return true;
}

/* ---- two ranks --------------------------------------------------------------------------------------------------- */

typedef struct pair {
  int32_t ranks[2];
} pair;

static bool is_pair(const bny_turns *turns, pair *found) {
  int32_t count = 0;
  for (int32_t r = 0; r < turns->nranks; r++) {
    if (bny_turns_weight(turns, r) == 0) continue;
    if (count < 2) found->ranks[count] = r;
    count++;
  }
  return count == 2;
}

/* The first rank has floor((steps w + h) / total) blocks after that many steps, with h half of the total. The second
 * has the rest, which is the same formula with the h that this returns for it. */
static int64_t half_of(const bny_turns *turns, const pair *pair, int32_t rank) {
  return rank == pair->ranks[0] ? turns->total / 2 : turns->total - 1 - turns->total / 2;
}

static int64_t pair_before(const bny_turns *turns, const pair *pair, int32_t rank, int64_t steps) {
  if (rank != pair->ranks[0] && rank != pair->ranks[1]) return 0;
  return (steps * bny_turns_weight(turns, rank) + half_of(turns, pair, rank)) / turns->total;
}

static int64_t pair_step(const bny_turns *turns, const pair *pair, int32_t rank, int64_t index) {
  int64_t weight = bny_turns_weight(turns, rank);
  int64_t due = (index + 1) * turns->total - half_of(turns, pair, rank);
  return (due + weight - 1) / weight - 1;
}

/* ---- the quota method -------------------------------------------------------------------------------------------- */

/* A rank in a heap, by count / weight. */
typedef struct due {
  int32_t rank, count, weight;
} due;

static bool precedes(const due *a, const due *b) {
  int64_t left = (int64_t)a->count * b->weight, right = (int64_t)b->count * a->weight;
  return left < right || (left == right && a->rank < b->rank);
}

static void push(due *heap, int32_t *count, due added) {
  int32_t at = (*count)++;
  for (; at > 0 && precedes(&added, &heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
  heap[at] = added;
}

static due pop(due *heap, int32_t *count) {
  due first = heap[0], last = heap[--*count];
  int32_t at = 0;
  for (int32_t next = 1; next < *count; next = 2 * at + 1) {
    if (next + 1 < *count && precedes(&heap[next + 1], &heap[next])) next++;
    if (!precedes(&heap[next], &last)) break;
    heap[at] = heap[next];
    at = next;
  }
  if (*count > 0) heap[at] = last;
  return first;
}

/* A block of a round: its step, its rank, and the earlier blocks of that rank. `watched` counts the earlier blocks of
 * the requested rank, and `steps` receives their steps; NULL: not needed. */
typedef struct block {
  int64_t step;
  int32_t rank, before, watched, *steps;
} block;

/* Assigns blocks until step `step`, or until `rank` has its block `index`. */
static banyan_status assign_up_to(const bny_turns *turns, int64_t step, int32_t rank, int64_t index, block *at) {
  due *heaps = malloc(2 * (size_t)turns->nranks * sizeof *heaps);
  if (!heaps) return bny_fail(BANYAN_ERR_MEMORY, "out of memory to assign blocks to %d ranks", turns->nranks);
  due *waiting = heaps, *ready = heaps + turns->nranks; /* keyed by blocks, and by blocks + 1 */
  int32_t nwaiting = 0, nready = 0;
  for (int32_t r = 0; r < turns->nranks; r++) {
    int32_t weight = (int32_t)bny_turns_weight(turns, r);
    if (weight > 0) push(waiting, &nwaiting, (due){r, 0, weight});
  }
  *at = (block){.step = -1, .steps = at->steps};
  do {
    at->step++;
    if (at->step > 0 && at->rank == rank) at->watched = at->before + 1;
    while (nwaiting > 0 && waiting[0].count * turns->total < (at->step + 1) * waiting[0].weight) {
      due next = pop(waiting, &nwaiting);
      next.count++;
      push(ready, &nready, next);
    }
    due taken = pop(ready, &nready);
    at->rank = taken.rank;
    at->before = taken.count - 1;
    if (at->rank == rank && at->steps) at->steps[at->before] = (int32_t)at->step;
    push(waiting, &nwaiting, taken);
  } while (at->step < step && !(at->rank == rank && at->before == index));
  free(heaps);
  return BANYAN_OK;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

static int64_t within(int64_t value, int64_t most) { return value < 0 ? 0 : value < most ? value : most; }

banyan_status bny_turns_before(const bny_turns *turns, int32_t rank, int64_t steps, int64_t *count) {
  pair pair;
  block at = {0};
  banyan_status status = BANYAN_OK;
  if (goes_in_runs(turns))
    *count = within(steps - first_of(turns, rank), bny_turns_weight(turns, rank));
  else if (is_pair(turns, &pair))
    *count = pair_before(turns, &pair, rank, steps);
  else if ((status = steps > 0 ? assign_up_to(turns, steps - 1, rank, -1, &at) : BANYAN_OK) == BANYAN_OK)
    *count = at.watched + (steps > 0 && at.rank == rank);
  return status;
}

banyan_status bny_turns_step(const bny_turns *turns, int32_t rank, int64_t index, int64_t *step) {
  pair pair;
  block at = {0};
  if (goes_in_runs(turns)) {
    *step = first_of(turns, rank) + index;
    return BANYAN_OK;
  }
  if (is_pair(turns, &pair)) {
    *step = pair_step(turns, &pair, rank, index);
    return BANYAN_OK;
  }
  banyan_status status = assign_up_to(turns, turns->total - 1, rank, index, &at);
  if (status == BANYAN_OK) *step = at.step;
  return status;
}

banyan_status bny_turns_steps(const bny_turns *turns, int32_t rank, int32_t *steps) {
  pair pair;
  block at = {.steps = steps};
  int64_t weight = bny_turns_weight(turns, rank), first = first_of(turns, rank);
  bool in_runs = goes_in_runs(turns);
  if (!in_runs && !is_pair(turns, &pair)) return assign_up_to(turns, turns->total - 1, rank, weight - 1, &at);
  for (int64_t i = 0; i < weight; i++) steps[i] = (int32_t)(in_runs ? first + i : pair_step(turns, &pair, rank, i));
  return BANYAN_OK;
}

banyan_status bny_turns_owner(const bny_turns *turns, int64_t step, int32_t *rank, int64_t *before) {
  pair pair;
  block at = {0};
  if (goes_in_runs(turns)) {
    int64_t end = 0;
    for (*rank = turns->weights ? 0 : (int32_t)step; turns->weights; (*rank)++) {
      end += bny_turns_weight(turns, *rank);
      if (step < end) break;
    }
    *before = turns->weights ? step - end + bny_turns_weight(turns, *rank) : 0;
    return BANYAN_OK;
  }
  if (is_pair(turns, &pair)) {
    bool second = pair_before(turns, &pair, pair.ranks[1], step + 1) > pair_before(turns, &pair, pair.ranks[1], step);
    *rank = pair.ranks[second];
    *before = pair_before(turns, &pair, *rank, step);
    return BANYAN_OK;
  }
  banyan_status status = assign_up_to(turns, step, -1, -1, &at);
  *rank = at.rank;
  *before = at.before;
  return status;
}
