/* SPDX-License-Identifier: Apache-2.0
 * Rings and trees along NVLinks: against every order for few members, against what is known for many. */
#include <check.h>

#include "topo/derive/levels.h"
#include "tests/topo/topo_util.h"
#include "tests/support/suite.h"

static bny_topo *load(const char *description) {
  bny_topo_error error = {0};
  bny_topo *topo = bny_topo_import(description, strlen(description), NULL, &error);
  ck_assert_msg(topo != NULL, "%s: line %d: %s", description, error.line, error.text);
  return topo;
}

static bny_topo_levels *derive(const bny_topo *topo) {
  bny_topo_levels *levels = bny_topo_derive(topo);
  ck_assert_ptr_nonnull(levels);
  return levels;
}

/* An island of `count` GPUs with links[a][b] NVLinks of 1 GB/s each. */
static bny_topo *island_of(int32_t count, const int32_t *links) {
  bny_topo *topo = bny_topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "a", NULL), first = topo->nnodes;
  for (int32_t i = 0; i < count; i++) {
    char name[16];
    snprintf(name, sizeof name, "GPU%d", i);
    put(topo, BNY_TOPO_GPU, host, name, NULL);
  }
  for (int32_t i = 0; i < count; i++) {
    for (int32_t j = 0; j < i; j++) {
      if (links[i * count + j]) {
        int32_t link = join(topo, BNY_TOPO_LINK_NVLINK, first + i, first + j, links[i * count + j]);
        topo->links[link].count = links[i * count + j];
      }
    }
  }
  return topo;
}

typedef struct best_ring {
  int32_t slowest, sum;
} best_ring;

/* By every order: the reference. */
static void every_order(int32_t count, const int32_t *links, int32_t *order, int32_t placed, best_ring *best) {
  if (placed == count) {
    int32_t slowest = INT32_MAX, sum = 0;
    for (int32_t i = 0; i < count; i++) {
      int32_t link = links[order[i] * count + order[(i + 1) % count]];
      slowest = link < slowest ? link : slowest;
      sum += link;
    }
    if (slowest > best->slowest || (slowest == best->slowest && slowest > 0 && sum > best->sum))
      *best = (best_ring){slowest, sum};
    return;
  }
  for (int32_t i = placed; i < count; i++) {
    int32_t member = order[i];
    order[i] = order[placed];
    order[placed] = member;
    every_order(count, links, order, placed + 1, best);
    order[placed] = order[i];
    order[i] = member;
  }
}

/* The ring is an order of all members; returns the sum of its links and in *slowest the least. */
static int32_t ring_sum(const int32_t *links, int32_t count, const int32_t *ring, int32_t *slowest) {
  bool seen[64] = {false};
  int32_t sum = 0;
  *slowest = INT32_MAX;
  for (int32_t i = 0; i < count; i++) {
    ck_assert(!seen[ring[i]]);
    seen[ring[i]] = true;
    int32_t link = links[ring[i] * count + ring[(i + 1) % count]];
    sum += link;
    *slowest = link < *slowest ? link : *slowest;
  }
  return sum;
}

START_TEST(rings_are_the_best) {
  uint64_t state = 88172645463325252;
  for (int32_t trial = 0; trial < 60; trial++) {
    int32_t count = 3 + (int32_t)(random_word(&state) % 5), links[64] = {0}, order[8], ring[8], slowest;
    for (int32_t i = 0; i < count; i++) {
      order[i] = i;
      for (int32_t j = 0; j < i; j++) {
        int32_t link = (int32_t)(random_word(&state) % 4);
        links[i * count + j] = links[j * count + i] = j == i - 1 && link == 0 ? 1 : link; /* joined at least in a row */
      }
    }
    best_ring best = {0, 0};
    every_order(count, links, order, 1, &best);
    bny_topo *topo = island_of(count, links);
    bny_topo_levels *levels = derive(topo);
    const bny_topo_level *island = bny_topo_level_of(levels, BNY_TOPO_LEVEL_ISLAND);
    ck_assert_int_eq(island->ngroups, 1);
    double speed = bny_topo_ring(topo, levels, island, &island->groups[0], ring);
    ck_assert_double_eq_tol(speed, best.slowest, 1e-9);
    if (best.slowest > 0) {
      ck_assert_int_eq(ring_sum(links, count, ring, &slowest), best.sum);
      ck_assert_int_eq(slowest, best.slowest);
      ck_assert_int_eq(ring[0], 0);
    }
    bny_topo_levels_free(levels);
    bny_topo_free(topo);
  }
}
END_TEST

/* Grids that close on themselves, of 16 (exact) and 24, 32 and 48 (searched), in which a ring is a ring of the fast
 * links. */
START_TEST(rings_of_many) {
  static const int32_t shapes[][2] = {{4, 4}, {4, 6}, {4, 8}, {6, 8}};
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
    int32_t rows = shapes[s][0], columns = shapes[s][1], count = rows * columns, ring[64], slowest;
    int32_t *links = calloc((size_t)count * (size_t)count, sizeof *links);
    for (int32_t i = 0; i < count; i++) {
      int32_t right = i / columns * columns + (i + 1) % columns, down = (i + columns) % count;
      links[i * count + right] = links[right * count + i] = 2;
      links[i * count + down] = links[down * count + i] = 2;
      int32_t far = (i + count / 2) % count; /* a slow link to tempt */
      if (links[i * count + far] == 0) links[i * count + far] = links[far * count + i] = 1;
    }
    bny_topo *topo = island_of(count, links);
    bny_topo_levels *levels = derive(topo);
    const bny_topo_level *island = bny_topo_level_of(levels, BNY_TOPO_LEVEL_ISLAND);
    ck_assert_double_eq_tol(bny_topo_ring(topo, levels, island, &island->groups[0], ring), 2, 1e-9);
    ring_sum(links, count, ring, &slowest);
    ck_assert_int_eq(slowest, 2);
    bny_topo_levels_free(levels);
    bny_topo_free(topo);
    free(links);
  }
}
END_TEST

START_TEST(no_ring) {
  static const int32_t star[16] = {0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0};
  bny_topo *topo = island_of(4, star);
  bny_topo_levels *levels = derive(topo);
  const bny_topo_level *island = bny_topo_level_of(levels, BNY_TOPO_LEVEL_ISLAND);
  int32_t ring[4], parents[4];
  ck_assert(bny_topo_ring(topo, levels, island, &island->groups[0], ring) == 0);
  ck_assert_double_eq_tol(bny_topo_tree(topo, levels, island, &island->groups[0], 1, 0, parents), 1, 1e-9);
  ck_assert_int_eq(parents[1], -1);
  ck_assert_int_eq(parents[0], 1);
  ck_assert_int_eq(parents[2], 0);
  ck_assert_int_eq(parents[3], 0);
  ck_assert(bny_topo_tree(topo, levels, island, &island->groups[0], 0, 2, parents) == 0); /* three have to hang there */
  bny_topo_levels_free(levels);
  bny_topo_free(topo);
}
END_TEST

/* Each node but the root has a parent that leads to it; returns the depth. */
static int32_t tree_depth(const int32_t *parents, int32_t count, int32_t root, int32_t children_max) {
  int32_t deepest = 0, children[80] = {0};
  for (int32_t i = 0; i < count; i++) {
    int32_t depth = 0;
    for (int32_t at = i; at != root; at = parents[at]) {
      ck_assert(parents[at] >= 0 && parents[at] < count);
      ck_assert_int_lt(depth++, count);
    }
    deepest = depth > deepest ? depth : deepest;
    if (i != root) ck_assert(++children[parents[i]] <= children_max || children_max == 0);
  }
  return deepest;
}

START_TEST(trees_in_a_domain) {
  bny_topo *topo = load("nvswitch host:18 gpu:4@sm100 nic:4@400g");
  bny_topo_levels *levels = derive(topo);
  const bny_topo_level *domain = bny_topo_level_of(levels, BNY_TOPO_LEVEL_DOMAIN);
  int32_t order[72];
  ck_assert_int_eq(domain->groups[0].count, 72);
  ck_assert_double_eq_tol(bny_topo_ring(topo, levels, domain, &domain->groups[0], order), 18 * 40.1, 1e-9);
  ck_assert_double_eq_tol(bny_topo_tree(topo, levels, domain, &domain->groups[0], 7, 0, order), 18 * 40.1, 1e-9);
  ck_assert_int_eq(tree_depth(order, 72, 7, 0), 1);
  bny_topo_tree(topo, levels, domain, &domain->groups[0], 71, 4, order);
  ck_assert_int_eq(tree_depth(order, 72, 71, 4), 3); /* 1 + 4 + 16 + 51 */
  bny_topo_levels_free(levels);
  bny_topo_free(topo);
}
END_TEST

/* ---- sets of rings ----------------------------------------------------------------------------------------------- */

/* Finds rings of the island, checks that each is a ring and that they share no link, and returns how many. */
static int32_t rings_found(int32_t count, const int32_t *links, int32_t rings_max, double speed) {
  bny_topo *topo = island_of(count, links);
  bny_topo_levels *levels = derive(topo);
  const bny_topo_level *island = bny_topo_level_of(levels, BNY_TOPO_LEVEL_ISLAND);
  ck_assert_int_eq(island->ngroups, 1);
  int32_t *rings = malloc((size_t)rings_max * (size_t)count * sizeof *rings), found = -1;
  int32_t *left = malloc((size_t)count * (size_t)count * sizeof *left);
  memcpy(left, links, (size_t)count * (size_t)count * sizeof *left);
  double slowest = bny_topo_rings(topo, levels, island, &island->groups[0], rings_max, rings, &found);
  ck_assert_int_le(found, rings_max);
  ck_assert_double_eq_tol(slowest, found > 0 ? speed : 0, 1e-9);
  for (int32_t r = 0; r < found; r++) {
    int32_t *ring = &rings[r * count], least;
    ck_assert_int_eq(ring[0], 0);
    ring_sum(links, count, ring, &least);
    for (int32_t i = 0; i < count; i++) {
      int32_t a = ring[i], b = ring[(i + 1) % count];
      left[a * count + b]--;
      if (count > 2) left[b * count + a]--;
    }
  }
  for (int32_t i = 0; i < count * count; i++) ck_assert_msg(left[i] >= 0, "a link is in two rings");
  free(left);
  free(rings);
  bny_topo_levels_free(levels);
  bny_topo_free(topo);
  return found;
}

/* All to all: (n - 1) / 2 rings of an odd number, (n - 2) / 2 of an even one, and where there are several links nothing
 * is left over but at most one link of each member. */
START_TEST(rings_of_meshes) {
  for (int32_t count = 3; count <= 17; count++) {
    for (int32_t each = 1; each <= 4; each++) {
      int32_t links[17 * 17] = {0};
      for (int32_t i = 0; i < count * count; i++) links[i] = i / count == i % count ? 0 : each;
      ck_assert_int_eq(rings_found(count, links, 64, 1), each * (count - 1) / 2);
    }
  }
  int32_t pair[4] = {0, 4, 4, 0};
  ck_assert_int_eq(rings_found(2, pair, 64, 1), 4);
  ck_assert_int_eq(rings_found(2, pair, 3, 1), 3);
}
END_TEST

static void link_pair(int32_t *links, int32_t count, int32_t a, int32_t b, int32_t added) {
  links[a * count + b] += added;
  links[b * count + a] += added;
}

START_TEST(rings_of_machines) {
  int32_t ring[64] = {0}, cube[64] = {0}, v100[64] = {0};
  for (int32_t i = 0; i < 8; i++) link_pair(ring, 8, i, (i + 1) % 8, 1);
  ck_assert_int_eq(rings_found(8, ring, 64, 1), 1);
  for (int32_t i = 0; i < 8; i++) link_pair(ring, 8, i, (i + 1) % 8, 2);
  ck_assert_int_eq(rings_found(8, ring, 64, 1), 3);
  ck_assert_int_eq(rings_found(8, ring, 2, 1), 2);
  for (int32_t i = 0; i < 8; i++) {
    for (int32_t bit = 1; bit < 8; bit *= 2) link_pair(cube, 8, i, i ^ bit, i < (i ^ bit));
  }
  ck_assert_int_eq(rings_found(8, cube, 64, 1), 1); /* of 3 links each can use 2 */
  /* The hybrid cube mesh of 8 V100: 6 links each, and 3 rings, which is 6 with both directions. */
  static const int8_t pairs[][3] = {{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1},
                                    {1, 5, 2}, {2, 3, 2}, {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1},
                                    {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}};
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) link_pair(v100, 8, pairs[i][0], pairs[i][1], pairs[i][2]);
  ck_assert_int_eq(rings_found(8, v100, 64, 1), 3);
}
END_TEST

/* Every set of rings there is, one ring after another in the order of their first difference: the reference. */
typedef struct every_set {
  int32_t count, most, left[64];
} every_set;

static void every_set_search(every_set *e, int32_t *ring, int32_t placed, int32_t found) {
  int32_t count = e->count;
  e->most = found > e->most ? found : e->most;
  if (placed == count) {
    if (ring[1] > ring[count - 1] || e->left[ring[count - 1] * count] == 0) return;
    for (int32_t i = 0; i < count; i++) link_pair(e->left, count, ring[i], ring[(i + 1) % count], -1);
    int32_t next[8] = {0};
    every_set_search(e, next, 1, found + 1);
    for (int32_t i = 0; i < count; i++) link_pair(e->left, count, ring[i], ring[(i + 1) % count], 1);
    return;
  }
  for (int32_t member = 1; member < count; member++) {
    bool seen = e->left[ring[placed - 1] * count + member] == 0;
    for (int32_t i = 1; i < placed; i++) seen = seen || ring[i] == member;
    if (seen) continue;
    ring[placed] = member;
    every_set_search(e, ring, placed + 1, found);
  }
}

START_TEST(sets_are_the_largest) {
  uint64_t state = 88172645463325252;
  for (int32_t trial = 0; trial < 150; trial++) {
    int32_t count = 4 + (int32_t)(random_word(&state) % 3), links[64] = {0}, ring[8] = {0};
    for (int32_t i = 0; i < count; i++) {
      for (int32_t j = 0; j < i; j++) {
        int32_t link = (int32_t)(random_word(&state) % (count < 6 ? 3 : 2));
        link_pair(links, count, i, j, j == i - 1 && link == 0 ? 1 : link);
      }
    }
    every_set e = {.count = count};
    memcpy(e.left, links, sizeof links);
    every_set_search(&e, ring, 1, 0);
    ck_assert_msg(rings_found(count, links, 64, 1) == e.most, "trial %d: not %d", trial, e.most);
  }
}
END_TEST

/* Rings laid on top of one another at random: nearly as many are found again, of 8 all, whatever lies beside them. */
START_TEST(rings_laid_down) {
  uint64_t state = 2463534242;
  for (int32_t trial = 0; trial < 24; trial++) {
    int32_t count = trial % 2 ? 8 : 16, laid = 2 + trial % 5, links[256] = {0}, ring[16];
    for (int32_t r = 0; r < laid; r++) {
      for (int32_t i = 0; i < count; i++) ring[i] = i;
      for (int32_t i = count - 1; i > 0; i--) {
        int32_t other = (int32_t)(random_word(&state) % (uint64_t)(i + 1)), member = ring[i];
        ring[i] = ring[other];
        ring[other] = member;
      }
      for (int32_t i = 0; i < count; i++) link_pair(links, count, ring[i], ring[(i + 1) % count], 1);
    }
    int32_t found = rings_found(count, links, 64, 1);
    ck_assert_msg(found >= laid - (count == 16), "trial %d: %d of %d of %d members", trial, found, laid, count);
  }
}
END_TEST

/* Through switches, of which several make up what each GPU has: half of the links, in the group's order. */
START_TEST(rings_through_switches) {
  static const struct {
    const char *text;
    int32_t rings_max, rings;
  } cases[] = {{"host nvswitch@18 gpu:8@sm90", 64, 9},
               {"host nvswitch@18 gpu:8@sm90", 4, 4},
               {"host nvswitch@12 gpu:2@sm80", 64, 12},
               {"nvswitch@18 host:18 gpu:4@sm100", 64, 9},
               {"host gpu:2 nic", 64, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int32_t rings[64 * 72], found = -1;
    bny_topo *topo = load(cases[i].text);
    bny_topo_levels *levels = derive(topo);
    const bny_topo_level *level = &levels->levels[levels->nlevels - 1];
    double speed = bny_topo_rings(topo, levels, level, &level->groups[0], cases[i].rings_max, rings, &found);
    ck_assert_msg(found == cases[i].rings, "%s: %d", cases[i].text, found);
    ck_assert((speed > 15) == (found > 0));
    for (int32_t place = 0; place < found * level->groups[0].count; place++)
      ck_assert_int_eq(rings[place], place % level->groups[0].count);
    bny_topo_levels_free(levels);
    bny_topo_free(topo);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("topo_rings");
  TCase *tests = tcase_create("rings");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, rings_are_the_best);
  tcase_add_test(tests, rings_of_many);
  tcase_add_test(tests, no_ring);
  tcase_add_test(tests, trees_in_a_domain);
  tcase_add_test(tests, rings_of_meshes);
  tcase_add_test(tests, rings_of_machines);
  tcase_add_test(tests, sets_are_the_largest);
  tcase_add_test(tests, rings_laid_down);
  tcase_add_test(tests, rings_through_switches);
  suite_add_tcase(suite, tests);
  return suite_main(suite);
}
