/* SPDX-License-Identifier: Apache-2.0
 * Rings that share no link: as many as a group of GPUs holds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "topo/derive/derive.h"

enum { EXACT_MAX = 8, PAIRS_MAX = EXACT_MAX * (EXACT_MAX - 1) / 2, CYCLES_MAX = 2520 /* 7! / 2 */ };
enum { SETS_MAX = 64, MEMBERS_MAX = 1024 };

/* The number of links between each two members. */
typedef struct links {
  int32_t count;    /* members */
  int32_t *between; /* count by count */
  double slowest;   /* speed of the slowest single link */
} links;

static int32_t *pair_at(const links *g, int32_t a, int32_t b) {
  return &g->between[(size_t)a * (size_t)g->count + (size_t)b];
}

static void pair_add(links *g, int32_t a, int32_t b, int32_t added) {
  *pair_at(g, a, b) += added;
  *pair_at(g, b, a) += added;
}

static void ring_take(links *g, const int32_t *ring, int32_t sign) {
  for (int32_t i = 0; i < g->count; i++) pair_add(g, ring[i], ring[(i + 1) % g->count], sign);
}

static int32_t fewest_links(const links *g) { /* the least over members */
  int32_t fewest = INT32_MAX;
  for (int32_t a = 0; a < g->count; a++) {
    int32_t sum = 0;
    for (int32_t b = 0; b < g->count; b++) sum += *pair_at(g, a, b);
    fewest = sum < fewest ? sum : fewest;
  }
  return fewest;
}

/* ---- all members linked alike: known constructions --------------------------------------------------------------- */

/* Walecki's zigzag of the numbers modulo `many`: start, start + 1, start - 1, start + 2 .. */
static int32_t zigzag(int32_t start, int32_t step, int32_t many) {
  int32_t offset = (step + 1) / 2;
  return ((step % 2 ? start + offset : start - offset) % many + many) % many;
}

/* Rings of a mesh with one link per pair. An odd number of members gives (count - 1) / 2 rings, which use all links. An
 * even number gives (count - 2) / 2: the rings of one member fewer, with the last member inserted in each between two
 * opposite members. Their difference, half the modulus, occurs once in each zigzag, so that rotating it meets each
 * member once. */
static void mesh_single(int32_t count, int32_t which, int32_t *ring) {
  int32_t odd = count - (count % 2 == 0), many = odd - 1, half = many / 2, at = 0;
  ring[at++] = many;
  for (int32_t step = 0; step < many; step++) {
    ring[at++] = zigzag(which, step, many);
    if (count % 2 == 0 && step + 1 == half) ring[at++] = odd;
  }
}

/* Rings of a mesh with two links per pair and an even number of members: count - 1, which use all links. The zigzag of
 * an odd modulus has each difference twice. */
static void mesh_double(int32_t count, int32_t which, int32_t *ring) {
  ring[0] = count - 1;
  for (int32_t step = 0; step + 1 < count; step++) ring[step + 1] = zigzag(which, step, count - 1);
}

static int32_t mesh_rings(int32_t count, int32_t each, int32_t rings_max, int32_t *rings) {
  int32_t found = 0;
  for (; each > 0; each--) {
    bool twice = count % 2 == 0 && each > 1;
    int32_t made = twice ? count - 1 : (count - 1) / 2;
    for (int32_t which = 0; which < made && found < rings_max; which++, found++)
      (twice ? mesh_double : mesh_single)(count, which, &rings[(size_t)found * (size_t)count]);
    each -= twice;
  }
  return found;
}

/* Returns the number of links per pair if all pairs have the same; otherwise 0. */
static int32_t mesh_links(const links *g) {
  for (int32_t a = 0; a < g->count; a++) {
    for (int32_t b = 0; b < a; b++) {
      if (*pair_at(g, a, b) != *pair_at(g, 1, 0)) return 0;
    }
  }
  return *pair_at(g, 1, 0);
}

/* ---- few members: a set is chosen from the list of all rings ----------------------------------------------------- */

typedef struct cycle {
  uint8_t members[EXACT_MAX];
  uint8_t pairs[EXACT_MAX];
} cycle;

typedef struct packing {
  int32_t count;           /* members */
  int32_t left[PAIRS_MAX]; /* free links of each pair */
  uint8_t ends[PAIRS_MAX][2];
  int32_t npairs, ncycles;
  cycle cycles[CYCLES_MAX];
  uint16_t chosen[SETS_MAX];
  uint16_t lists[SETS_MAX + PAIRS_MAX + 1][CYCLES_MAX]; /* by depth: rings that may still be chosen */
  int64_t effort;
} packing;

/* Lists all rings from member 0 on, each in one of its two directions. */
static void cycles_list(packing *p, const links *g, uint8_t *members, int32_t placed) {
  for (int32_t next = 1; placed < EXACT_MAX && placed < p->count && next < p->count; next++) {
    if (memchr(members, next, (size_t)placed) || *pair_at(g, members[placed - 1], next) == 0) continue;
    members[placed] = (uint8_t)next;
    cycles_list(p, g, members, placed + 1);
  }
  bool closes = placed == p->count && members[1] < members[placed - 1] && *pair_at(g, members[placed - 1], 0) > 0;
  if (!closes) return;
  cycle *added = &p->cycles[p->ncycles++];
  memcpy(added->members, members, (size_t)placed);
  for (int32_t i = 0; i < placed; i++) {
    int32_t a = members[i], b = members[(i + 1) % placed], low = a < b ? a : b, high = a < b ? b : a;
    added->pairs[i] = (uint8_t)(high * (high - 1) / 2 + low);
  }
}

static void packing_init(packing *p, const links *g) {
  uint8_t members[EXACT_MAX] = {0};
  p->count = g->count;
  p->npairs = p->ncycles = 0;
  for (int32_t high = 1; high < g->count; high++) {
    for (int32_t low = 0; low < high; low++) {
      p->ends[p->npairs][0] = (uint8_t)low;
      p->ends[p->npairs][1] = (uint8_t)high;
      p->left[p->npairs++] = *pair_at(g, low, high);
    }
  }
  cycles_list(p, g, members, 1);
}

/* Bounds the number of rings: each crosses every cut at least twice, so there are at most half as many as links. */
static int32_t cuts_bound(const links *g) {
  int32_t bound = INT32_MAX;
  for (unsigned set = 1; set + 1 < 1u << (g->count - 1); set++) { /* the set never holds the last member */
    int32_t across = 0;
    for (int32_t a = 0; a < g->count; a++) {
      for (int32_t b = 0; b < g->count && (set >> a & 1); b++) across += set >> b & 1 ? 0 : *pair_at(g, a, b);
    }
    bound = across / 2 < bound ? across / 2 : bound;
  }
  return bound;
}

static bool cycle_has(const cycle *c, int32_t count, int32_t pair) {
  return memchr(c->pairs, pair, (size_t)count) != NULL;
}

/* Chooses the pair to decide on, and whether one of the `wanted` rings must use it. It must if a member would otherwise
 * have too few links. Otherwise the pair in the fewest rings is chosen. Returns -1 if a member already has too few
 * links. */
static int32_t pair_choose(const packing *p, const uint16_t *list, int32_t nlist, int32_t wanted, bool *must) {
  int32_t in[PAIRS_MAX] = {0}, links_of[EXACT_MAX] = {0}, best = -1;
  for (int32_t i = 0; i < nlist; i++) {
    for (int32_t e = 0; e < p->count; e++) in[p->cycles[list[i]].pairs[e]]++;
  }
  for (int32_t e = 0; e < p->npairs; e++) {
    links_of[p->ends[e][0]] += in[e] ? p->left[e] : 0;
    links_of[p->ends[e][1]] += in[e] ? p->left[e] : 0;
  }
  for (int32_t a = 0; a < p->count; a++) {
    if (links_of[a] < 2 * wanted) return -1;
  }
  *must = false;
  for (int32_t e = 0; e < p->npairs; e++) {
    if (in[e] == 0) continue;
    bool needed =
        links_of[p->ends[e][0]] - p->left[e] < 2 * wanted || links_of[p->ends[e][1]] - p->left[e] < 2 * wanted;
    if (best < 0 || (needed && !*must) || (needed == *must && in[e] < in[best])) best = e, *must = needed;
  }
  return best;
}

/* Returns whether `wanted` more rings from the list of this depth fit into the free links. Writes them to p->chosen
 * from `have` on. */
static bool pack(packing *p, int32_t depth, int32_t nlist, int32_t have, int32_t wanted) {
  bool must = false;
  if (wanted == 0) return true;
  if (--p->effort < 0) return false;
  uint16_t *list = p->lists[depth];
  int32_t pair = pair_choose(p, list, nlist, wanted, &must);
  for (int32_t i = 0; pair >= 0 && i < nlist && p->effort >= 0;) {
    const cycle *c = &p->cycles[list[i]];
    if (!cycle_has(c, p->count, pair)) {
      i++;
      continue;
    }
    for (int32_t e = 0; e < p->count; e++) p->left[c->pairs[e]]--;
    int32_t fit = 0;
    for (int32_t j = 0; j < nlist; j++) {
      const cycle *other = &p->cycles[list[j]];
      bool fits = true;
      for (int32_t e = 0; e < p->count && fits; e++) fits = p->left[other->pairs[e]] > 0;
      if (fits) p->lists[depth + 1][fit++] = list[j];
    }
    p->chosen[have] = list[i];
    if (pack(p, depth + 1, fit, have + 1, wanted - 1)) return true;
    for (int32_t e = 0; e < p->count; e++) p->left[c->pairs[e]]++;
    list[i] = list[--nlist]; /* every set with this ring has been tried */
  }
  if (pair < 0 || must || p->effort < 0) return false;
  memcpy(p->lists[depth + 1], list, (size_t)nlist * sizeof *list); /* none of these has the pair */
  return pack(p, depth + 1, nlist, have, wanted);
}

/* Fills `rings`. Returns their number, -1 without memory. */
static int32_t few_rings(links *g, int32_t rings_max, int32_t *rings) {
  static const int64_t effort = 3000; /* for each number of rings */
  int32_t wanted = cuts_bound(g), found = 0;
  packing *p = malloc(sizeof *p);
  if (!p) return -1;
  packing_init(p, g);
  wanted = wanted < rings_max ? wanted : rings_max;
  wanted = wanted < SETS_MAX ? wanted : SETS_MAX;
  for (; wanted > 0 && found == 0; wanted--) {
    for (int32_t e = 0; e < p->npairs; e++) p->left[e] = *pair_at(g, p->ends[e][0], p->ends[e][1]);
    for (int32_t i = 0; i < p->ncycles; i++) p->lists[0][i] = (uint16_t)i;
    p->effort = effort;
    if (pack(p, 0, p->ncycles, 0, wanted)) found = wanted;
  }
  for (int32_t r = 0; r < found; r++) {
    for (int32_t i = 0; i < g->count; i++) rings[r * g->count + i] = p->cycles[p->chosen[r]].members[i];
  }
  free(p);
  return found;
}

/* ---- many members: one ring after another ------------------------------------------------------------------------ */

/* Finds a ring in the remaining links. The first attempt (seed 0) uses the most plentiful links, the others are
 * random. */
static bool next_ring(const links *g, double *matrix, uint32_t seed, int32_t *ring, bool *found) {
  bny_topo_speeds s = {.count = g->count, .matrix = matrix};
  double most = 0;
  for (size_t i = 0; i < (size_t)g->count * (size_t)g->count; i++) matrix[i] = g->between[i];
  if (fewest_links(g) < 2) {
    *found = false;
    return true;
  }
  if (seed > 0) return bny_topo_ring_any(&s, 1, seed, ring, found);
  bool good = bny_topo_ring_best(&s, ring, &most);
  *found = good && most > 0;
  return good;
}

/* Takes rings until none is left; the best of several attempts. Returns their number, -1 without memory. */
static int32_t many_rings(links *g, int32_t rings_max, int32_t *rings) {
  enum { ATTEMPTS = 12 };
  size_t members = (size_t)g->count;
  int32_t bound = fewest_links(g) / 2, best = 0;
  bound = bound < rings_max ? bound : rings_max;
  double *matrix = malloc(members * members * sizeof *matrix);
  int32_t *tried = malloc((size_t)(bound + 1) * members * sizeof *tried);
  bool good = matrix && tried;
  for (uint32_t attempt = 0; attempt < ATTEMPTS && good && best < bound; attempt++) {
    int32_t count = 0;
    bool found = true;
    while (count < bound && good && found) {
      int32_t *ring = &tried[(size_t)count * members];
      good = next_ring(g, matrix, attempt, ring, &found);
      if (good && found) ring_take(g, ring, -1), count++;
    }
    for (int32_t r = 0; r < count; r++) ring_take(g, &tried[(size_t)r * members], 1);
    if (count > best) {
      best = count;
      memcpy(rings, tried, (size_t)count * members * sizeof *tried);
    }
  }
  free(matrix);
  free(tried);
  return good ? best : -1;
}

/* ---- rings of a group -------------------------------------------------------------------------------------------- */

static double one_alone(const bny_topo *topo,
                        const bny_topo_link *link) { /* speed of one of several parallel links; 0: unusable */
  bool assumed;
  return bny_topo_gpu_link(topo, link, &assumed) / (link->count > 0 ? link->count : 1);
}

/* Counts links to `to`, a switch or member, and lowers *slowest to their speed. */
static int32_t links_to(const bny_topo *topo, int32_t node, int32_t to, double *slowest) {
  int32_t sum = 0;
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    double speed = one_alone(topo, &topo->links[l]);
    if (bny_topo_other_end(topo, node, l) != to || speed <= 0) continue;
    sum += topo->links[l].count > 0 ? topo->links[l].count : 1;
    *slowest = speed < *slowest ? speed : *slowest;
  }
  return sum;
}

/* Counts the links to common switches of the member with the fewest. */
static int32_t switched_links(const bny_topo *topo, const bny_topo_levels *levels, const int32_t *members,
                              int32_t count, double *slowest) {
  int32_t first = levels->ranks[members[0]].node, sum = 0;
  for (int32_t l = bny_topo_first_link(topo, first); l >= 0; l = bny_topo_next_link(topo, first, l)) {
    int32_t to = bny_topo_other_end(topo, first, l), fewest = INT32_MAX, same = bny_topo_first_link(topo, first);
    while (bny_topo_other_end(topo, first, same) != to) same = bny_topo_next_link(topo, first, same);
    if (topo->nodes[to].kind != BNY_TOPO_SWITCH || same != l) continue; /* each switch once */
    double speed = *slowest;
    for (int32_t i = 0; i < count && fewest > 0; i++) {
      int32_t own = links_to(topo, levels->ranks[members[i]].node, to, &speed);
      fewest = own < fewest ? own : fewest;
    }
    sum += fewest;
    *slowest = fewest > 0 ? speed : *slowest;
  }
  return sum;
}

static bool links_read(const bny_topo *topo, const bny_topo_levels *levels, const int32_t *members, int32_t count,
                       links *g) {
  *g = (links){.count = count, .slowest = INFINITY};
  g->between = calloc((size_t)count * (size_t)count, sizeof *g->between);
  for (int32_t a = 0; g->between && a < count; a++) {
    for (int32_t b = 0; b < a; b++)
      pair_add(g, a, b, links_to(topo, levels->ranks[members[a]].node, levels->ranks[members[b]].node, &g->slowest));
  }
  return g->between != NULL;
}

/* Fills every ring in the order of the group, because any order through a switch is equally good. */
static int32_t switched_rings(int32_t count, int32_t each, int32_t rings_max, int32_t *rings) {
  int32_t found = count > 2 ? each / 2 : each;
  found = found < rings_max ? found : rings_max;
  for (int32_t r = 0; r < found; r++) {
    for (int32_t i = 0; i < count; i++) rings[(size_t)r * (size_t)count + (size_t)i] = i;
  }
  return found;
}

static int32_t linked_rings(links *g, int32_t rings_max, int32_t *rings) {
  int32_t each = mesh_links(g);
  if (g->count == 2) return switched_rings(2, each, rings_max, rings);
  if (each > 0) return mesh_rings(g->count, each, rings_max, rings);
  return (g->count <= EXACT_MAX ? few_rings : many_rings)(g, rings_max, rings);
}

/* Converts places to ranks, with the first member first. */
static void ring_name(const int32_t *members, int32_t count, int32_t *ring, int32_t *room) {
  int32_t start = 0;
  while (ring[start] != 0) start++;
  for (int32_t i = 0; i < count; i++) room[i] = members[ring[(start + i) % count]];
  memcpy(ring, room, (size_t)count * sizeof *ring);
}

double bny_topo_rings(const bny_topo *topo, const bny_topo_levels *levels, const bny_topo_level *level,
                      const bny_topo_group *group, int32_t rings_max, int32_t *rings, int32_t *count) {
  const int32_t *members = &level->members[group->first];
  links g = {0};
  double slowest = INFINITY;
  int32_t found = 0;
  *count = 0;
  if (group->count < 2 || rings_max < 1) return 0;
  int32_t *room = malloc((size_t)group->count * sizeof *room);
  if (!room) return -1;
  int32_t each = switched_links(topo, levels, members, group->count, &slowest);
  if (each > 0) {
    found = switched_rings(group->count, each, rings_max, rings);
  } else if (group->count <= MEMBERS_MAX) {
    found = links_read(topo, levels, members, group->count, &g) ? linked_rings(&g, rings_max, rings) : -1;
    slowest = g.slowest;
  }
  for (int32_t r = 0; r < found; r++) ring_name(members, group->count, &rings[(size_t)r * (size_t)group->count], room);
  free(room);
  free(g.between);
  if (found < 0) return -1;
  *count = found;
  return found > 0 ? slowest : 0;
}
