/* SPDX-License-Identifier: Apache-2.0
 * Rings and trees along NVLinks: against every order for few members, against what is known for many. */
#include <check.h>

#include "topo/levels.h"
#include "topo_util.h"

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
    int32_t count = 3 + (int32_t)(next_random(&state) % 5), links[64] = {0}, order[8], ring[8], slowest;
    for (int32_t i = 0; i < count; i++) {
      order[i] = i;
      for (int32_t j = 0; j < i; j++) {
        int32_t link = (int32_t)(next_random(&state) % 4);
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

int main(void) {
  Suite *suite = suite_create("topo_rings");
  TCase *tests = tcase_create("rings");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, rings_are_the_best);
  tcase_add_test(tests, rings_of_many);
  tcase_add_test(tests, no_ring);
  tcase_add_test(tests, trees_in_a_domain);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
