/* SPDX-License-Identifier: Apache-2.0
 * Rings and trees along the links that join a group of GPUs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "topo/derive/derive.h"

enum { EXACT_MAX = 16, MATRIX_MAX = 1024 };

/* Sums the links of one end to switches that the other end is also on. */
static double to_shared_switches(const bny_topo *topo, int32_t from, int32_t to) {
  double sum = 0;
  bool assumed;
  for (int32_t l = bny_topo_first_link(topo, from); l >= 0; l = bny_topo_next_link(topo, from, l)) {
    int32_t middle = bny_topo_other_end(topo, from, l);
    double speed = bny_topo_gpu_link(topo, &topo->links[l], &assumed);
    bool shared = false;
    if (speed <= 0 || topo->nodes[middle].kind != BNY_TOPO_SWITCH) continue;
    for (int32_t m = bny_topo_first_link(topo, to); m >= 0 && !shared; m = bny_topo_next_link(topo, to, m))
      shared = bny_topo_other_end(topo, to, m) == middle && bny_topo_gpu_link(topo, &topo->links[m], &assumed) > 0;
    sum += shared ? speed : 0;
  }
  return sum;
}

/* Returns the bandwidth between two ranks over direct NVLinks or a switch, in GB/s; 0: none. Both ranks must be in one
 * host or domain. */
static double pair_gbytes_per_s(const bny_topo *topo, const bny_topo_levels *levels, int32_t a, int32_t b) {
  int32_t from = levels->ranks[a].node, to = levels->ranks[b].node;
  double direct = 0;
  bool assumed;
  for (int32_t l = bny_topo_first_link(topo, from); l >= 0; l = bny_topo_next_link(topo, from, l)) {
    if (bny_topo_other_end(topo, from, l) == to) direct += bny_topo_gpu_link(topo, &topo->links[l], &assumed);
  }
  return direct + fmin(to_shared_switches(topo, from, to), to_shared_switches(topo, to, from));
}

/* ---- the speeds of a group --------------------------------------------------------------------------------------- */

static double speed_between(const bny_topo_speeds *s, int32_t a, int32_t b) {
  return s->matrix ? s->matrix[(size_t)a * (size_t)s->count + (size_t)b] : s->alike;
}

static bool speeds_read(const bny_topo *topo, const bny_topo_levels *levels, const bny_topo_level *level,
                        const bny_topo_group *group, bny_topo_speeds *s) {
  *s = (bny_topo_speeds){.count = group->count, .alike = group->gbytes_per_s};
  bool switched = group->node >= 0 && topo->nodes[group->node].kind == BNY_TOPO_SWITCH;
  if (group->count > MATRIX_MAX) {
    s->alike = switched ? s->alike : 0;
    return true;
  }
  size_t count = (size_t)group->count;
  s->matrix = calloc(count * count, sizeof *s->matrix);
  if (!s->matrix) return false;
  for (int32_t a = 0; a < group->count; a++) {
    for (int32_t b = 0; b < a; b++) {
      double speed =
          pair_gbytes_per_s(topo, levels, level->members[group->first + a], level->members[group->first + b]);
      s->matrix[(size_t)a * count + (size_t)b] = s->matrix[(size_t)b * count + (size_t)a] = speed;
    }
  }
  return true;
}

/* Returns whether all pairs are equally fast, so that any order will do. */
static bool are_alike(const bny_topo_speeds *s) {
  double first = s->count > 1 ? speed_between(s, 0, 1) : 0;
  for (int32_t a = 0; a < s->count && s->matrix; a++) {
    for (int32_t b = 0; b < a; b++) {
      if (fabs(speed_between(s, a, b) - first) > 1e-9 * first) return false;
    }
  }
  return true;
}

static int speed_order(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* Returns the distinct speeds above 0, ascending; NULL without memory. Needs a matrix. */
static double *thresholds_of(const bny_topo_speeds *s, int32_t *count) {
  size_t pairs = (size_t)s->count * (size_t)s->count;
  double *sorted = malloc((pairs + 1) * sizeof *sorted);
  if (!sorted) return NULL;
  memcpy(sorted, s->matrix, pairs * sizeof *sorted);
  qsort(sorted, pairs, sizeof *sorted, speed_order);
  *count = 0;
  for (size_t i = 0; i < pairs; i++) {
    if (sorted[i] > 0 && (*count == 0 || sorted[i] > sorted[*count - 1])) sorted[(*count)++] = sorted[i];
  }
  return sorted;
}

/* ---- rings of few members: dynamic programming over sets of visited members -------------------------------------- */

static unsigned neighbours_of(const bny_topo_speeds *s, int32_t place, double least) {
  unsigned set = 0;
  for (int32_t other = 0; other < s->count; other++) {
    if (other != place && speed_between(s, place, other) >= least) set |= 1u << other;
  }
  return set;
}

/* Returns whether links of at least this speed hold a ring. ends[set]: members where a path from 0 through `set` may
 * end. */
static bool ring_exists(const bny_topo_speeds *s, double least, uint16_t *ends) {
  unsigned neighbours[EXACT_MAX], all = (1u << s->count) - 1;
  for (int32_t i = 0; i < s->count; i++) neighbours[i] = neighbours_of(s, i, least);
  memset(ends, 0, ((size_t)all + 1) * sizeof *ends);
  ends[1] = 1;
  for (unsigned set = 1; set < all; set += 2) {
    for (unsigned left = ends[set]; left; left &= left - 1) {
      for (unsigned next = neighbours[__builtin_ctz(left)] & ~set; next; next &= next - 1)
        ends[set | (next & -next)] |= (uint16_t)(next & -next);
    }
  }
  return (ends[all] & neighbours[0]) != 0;
}

/* Finds the ring with the greatest sum among those over links of at least this speed. best[set][end] is the sum of the
 * best path. */
static void ring_of_most(const bny_topo_speeds *s, double least, float *best, int32_t *ring) {
  unsigned all = (1u << s->count) - 1;
  for (size_t i = 0; i < ((size_t)all + 1) * EXACT_MAX; i++) best[i] = -1;
  best[1 * EXACT_MAX] = 0;
  for (unsigned set = 1; set < all; set += 2) {
    for (int32_t end = 0; end < s->count; end++) {
      float sum = best[(size_t)set * EXACT_MAX + (size_t)end];
      for (int32_t next = 1; next < s->count && sum >= 0; next++) {
        double speed = speed_between(s, end, next);
        if ((set >> next & 1) || speed < least) continue;
        float *better = &best[(size_t)(set | 1u << next) * EXACT_MAX + (size_t)next];
        *better = fmaxf(*better, sum + (float)speed);
      }
    }
  }
  /* The ring is read backwards from its end. Of several members that give the best sum the last is taken, so that
   * equivalent members stay in order. */
  unsigned set = all;
  int32_t next = 0;
  for (int32_t place = s->count - 1; place > 0; place--) {
    int32_t chosen = -1;
    float most = -1;
    for (int32_t end = 1; end < s->count; end++) {
      float sum = best[(size_t)set * EXACT_MAX + (size_t)end];
      double speed = speed_between(s, end, next);
      if ((set >> end & 1) && sum >= 0 && speed >= least && sum + (float)speed >= most)
        most = sum + (float)speed, chosen = end;
    }
    ring[place] = chosen;
    set &= ~(1u << chosen);
    next = chosen;
  }
  ring[0] = 0;
}

static bool ring_exact(const bny_topo_speeds *s, const double *thresholds, int32_t nthresholds, int32_t *ring,
                       double *slowest) {
  size_t sets = (size_t)1 << s->count;
  uint16_t *ends = malloc(sets * sizeof *ends);
  float *best = malloc(sets * EXACT_MAX * sizeof *best);
  bool good = ends && best;
  int32_t low = -1, high = nthresholds; /* low: highest threshold with a ring, or -1 */
  while (good && high - low > 1) {
    int32_t middle = low + (high - low) / 2;
    if (ring_exists(s, thresholds[middle], ends))
      low = middle;
    else
      high = middle;
  }
  *slowest = low >= 0 ? thresholds[low] : 0;
  if (good && low >= 0) ring_of_most(s, *slowest, best, ring);
  free(ends);
  free(best);
  return good;
}

/* ---- rings of many members: a path is extended, and rotated where it cannot be ----------------------------------- */

typedef struct path_search {
  const bny_topo_speeds *s;
  double least;
  int32_t *path, *place; /* place[member]: position in the path, or -1 */
  int32_t length;
  uint32_t state;
} path_search;

static uint32_t draw(path_search *search, uint32_t below) { /* the same in every run */
  search->state = search->state * 1664525 + 1013904223;
  return (search->state >> 8) % below;
}

static int32_t free_neighbours(const path_search *search, int32_t member) {
  int32_t count = 0;
  for (int32_t other = 0; other < search->s->count; other++)
    count += other != member && search->place[other] < 0 && speed_between(search->s, member, other) >= search->least;
  return count;
}

/* Extends the path by the neighbour of its end that has the fewest free neighbours. Returns false if there is none. */
static bool path_extend(path_search *search) {
  int32_t end = search->path[search->length - 1], chosen = -1, fewest = 0;
  for (int32_t other = 0; other < search->s->count; other++) {
    if (search->place[other] >= 0 || speed_between(search->s, end, other) < search->least) continue;
    int32_t ways = free_neighbours(search, other);
    if (chosen < 0 || ways < fewest) chosen = other, fewest = ways;
  }
  if (chosen < 0) return false;
  search->place[chosen] = search->length;
  search->path[search->length++] = chosen;
  return true;
}

/* Reverses the path behind a neighbour of its end, so that another member becomes the end. */
static bool path_turn(path_search *search) {
  int32_t end = search->path[search->length - 1], count = 0, chosen = -1;
  for (int32_t i = 0; i + 2 < search->length; i++) {
    if (speed_between(search->s, end, search->path[i]) >= search->least && draw(search, (uint32_t)++count) == 0)
      chosen = i;
  }
  for (int32_t low = chosen + 1, high = search->length - 1; chosen >= 0 && low < high; low++, high--) {
    int32_t member = search->path[low];
    search->path[low] = search->path[high];
    search->path[high] = member;
  }
  for (int32_t i = chosen + 1; chosen >= 0 && i < search->length; i++) search->place[search->path[i]] = i;
  return chosen >= 0;
}

static bool ring_search(path_search *search) {
  enum { STARTS = 64, TURNS_PER_MEMBER = 40 };
  int32_t count = search->s->count;
  for (int32_t start = 0; start < STARTS; start++) {
    for (int32_t i = 0; i < count; i++) search->place[i] = -1;
    search->path[0] = (int32_t)draw(search, (uint32_t)count);
    search->place[search->path[0]] = 0;
    search->length = 1;
    for (int32_t turns = 0; turns < TURNS_PER_MEMBER * count;) {
      if (search->length == count &&
          speed_between(search->s, search->path[count - 1], search->path[0]) >= search->least)
        return true;
      if (search->length < count && path_extend(search)) continue;
      turns++;
      if (!path_turn(search)) break;
    }
  }
  return false;
}

static bool ring_of_many(const bny_topo_speeds *s, const double *thresholds, int32_t nthresholds, int32_t *ring,
                         double *slowest) {
  path_search search = {.s = s,
                        .path = malloc((size_t)s->count * sizeof *search.path),
                        .place = malloc((size_t)s->count * sizeof *search.place),
                        .state = 1};
  bool good = search.path && search.place;
  *slowest = 0;
  int32_t low = -1, high = nthresholds;
  while (good && high - low > 1) {
    int32_t middle = low + (high - low) / 2;
    search.least = thresholds[middle];
    if (ring_search(&search)) {
      low = middle;
      *slowest = search.least;
      for (int32_t i = 0; i < s->count; i++) ring[i] = search.path[(search.place[0] + i) % s->count];
    } else {
      high = middle;
    }
  }
  free(search.path);
  free(search.place);
  return good;
}

bool bny_topo_ring_best(const bny_topo_speeds *s, int32_t *ring, double *slowest) {
  int32_t nthresholds = 0;
  double *thresholds = thresholds_of(s, &nthresholds);
  bool good =
      thresholds && (s->count <= EXACT_MAX ? ring_exact : ring_of_many)(s, thresholds, nthresholds, ring, slowest);
  free(thresholds);
  return good;
}

bool bny_topo_ring_any(const bny_topo_speeds *s, double least, uint32_t seed, int32_t *ring, bool *found) {
  path_search search = {.s = s, .least = least, .path = ring, .state = seed};
  search.place = malloc((size_t)s->count * sizeof *search.place);
  if (!search.place) return false;
  *found = ring_search(&search);
  free(search.place);
  return true;
}

double bny_topo_ring(const bny_topo *topo, const bny_topo_levels *levels, const bny_topo_level *level,
                     const bny_topo_group *group, int32_t *ring) {
  bny_topo_speeds s;
  double slowest = 0;
  for (int32_t i = 0; i < group->count; i++) ring[i] = i;
  if (!speeds_read(topo, levels, level, group, &s)) return -1;
  bool switched = group->node >= 0 && topo->nodes[group->node].kind == BNY_TOPO_SWITCH && group->count > EXACT_MAX;
  bool good = true;
  if (group->count < 2 || switched || are_alike(&s)) {
    for (int32_t i = 0; i < group->count && group->count > 1; i++) {
      double speed = speed_between(&s, i, (i + 1) % group->count);
      slowest = i == 0 || speed < slowest ? speed : slowest;
    }
  } else {
    good = bny_topo_ring_best(&s, ring, &slowest);
  }
  free(s.matrix);
  for (int32_t i = 0; i < group->count; i++) ring[i] = level->members[group->first + ring[i]];
  return good ? slowest : -1;
}

/* ---- trees ------------------------------------------------------------------------------------------------------- */

/* Finds the slowest link of the best tree: members join one by one over the fastest link to those already joined. */
static bool tree_slowest(const bny_topo_speeds *s, double *slowest) {
  double *nearest = malloc((size_t)s->count * sizeof *nearest);
  bool *joined = calloc((size_t)s->count, sizeof *joined);
  bool good = nearest && joined;
  *slowest = INFINITY;
  for (int32_t i = 0; i < s->count && good; i++) nearest[i] = i == 0 ? INFINITY : -1;
  for (int32_t step = 0; step < s->count && good; step++) {
    int32_t next = -1;
    for (int32_t i = 0; i < s->count; i++) {
      if (!joined[i] && (next < 0 || nearest[i] > nearest[next])) next = i;
    }
    joined[next] = true;
    *slowest = nearest[next] < *slowest ? nearest[next] : *slowest;
    for (int32_t i = 0; i < s->count; i++) {
      if (!joined[i]) nearest[i] = fmax(nearest[i], speed_between(s, next, i));
    }
  }
  free(nearest);
  free(joined);
  return good;
}

/* Grows a tree breadth first over links of at least `least`. Returns the number of members reached, -1 without
 * memory. */
static int32_t tree_grow(const bny_topo_speeds *s, double least, int32_t root, int32_t children_max, int32_t *parents) {
  enum { UNREACHED = -2 };
  int32_t *queue = malloc((size_t)s->count * sizeof *queue), head = 0, tail = 0, first_free = 0;
  if (!queue) return -1;
  for (int32_t i = 0; i < s->count; i++) parents[i] = UNREACHED;
  parents[root] = -1;
  queue[tail++] = root;
  while (head < tail) {
    int32_t node = queue[head++], children = 0;
    while (first_free < s->count && parents[first_free] != UNREACHED) first_free++;
    for (int32_t i = first_free; i < s->count && (children_max <= 0 || children < children_max); i++) {
      if (parents[i] != UNREACHED || speed_between(s, node, i) < least) continue;
      parents[i] = node;
      queue[tail++] = i;
      children++;
    }
  }
  free(queue);
  return tail;
}

double bny_topo_tree(const bny_topo *topo, const bny_topo_levels *levels, const bny_topo_level *level,
                     const bny_topo_group *group, int32_t root, int32_t children_max, int32_t *parents) {
  bny_topo_speeds s;
  for (int32_t i = 0; i < group->count; i++) parents[i] = -1;
  if (group->count < 2) return 0;
  if (!speeds_read(topo, levels, level, group, &s)) return -1;
  double slowest = s.alike;
  bool good = !s.matrix || tree_slowest(&s, &slowest);
  int32_t reached = good && slowest > 0 ? tree_grow(&s, slowest, root, children_max, parents) : 0;
  free(s.matrix);
  if (!good || reached < 0) return -1;
  return reached == group->count ? slowest : 0;
}
