/* SPDX-License-Identifier: Apache-2.0
 * Tree shapes: parents and children agree, and all ranks are reached. Plans of every strategy are proved and checked
 * against their estimates over random levels (uneven, scattered, deep). Also tests pieces and the choice. */
#include "plan/algorithms/tree_shape.h"
#include "tests/plan/plan_util.h"

enum { RANKS_MAX = 96, STRATEGIES = 4 };

static const bny_tree_strategy *const strategies[STRATEGIES] = {&bny_tree_knomial, &bny_tree_balanced, &bny_tree_chain,
                                                                &bny_tree_levels};

static bny_levels *some_levels(uint64_t *random, int32_t nranks) {
  return random_below(random, 3) ? random_levels(random, nranks, false) : NULL;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* Counts the ranks below `rank`, including itself, and checks the parent of every child. */
static int32_t count_below(const bny_tree_shape *shape, int32_t rank, int32_t depth) {
  int32_t children[RANKS_MAX], staged = 0, count = 1;
  bny_tree_node node = {.children = children}, counted = {.children = NULL};
  ck_assert_int_lt(depth, shape->nranks);
  bny_tree_node_of(shape, rank, &node);
  bny_tree_node_of(shape, rank, &counted);
  ck_assert(counted.nchildren == node.nchildren && counted.nstages == node.nstages && counted.parent == node.parent);
  for (int32_t i = 0; i < node.nstages; i++) {
    const bny_tree_stage *stage = &node.stages[i];
    ck_assert(stage->first == staged && stage->count > 0 && stage->count < BNY_MERGE_SOURCES_MAX &&
              stage->before >= 0 && stage->before <= stage->count);
    staged += stage->count;
  }
  ck_assert_int_eq(staged, node.nchildren);
  for (int32_t i = 0; i < node.nchildren; i++) {
    bny_tree_node child = {.children = NULL};
    bny_tree_node_of(shape, children[i], &child);
    ck_assert_int_eq(child.parent, rank);
    count += count_below(shape, children[i], depth + 1);
  }
  return count;
}

TEST_RANGE(test_shapes, 1, 70) {
  int32_t nranks = _i;
  uint64_t random = UINT64_C(0x2545f4914f6cdd1d) ^ (uint64_t)nranks;
  for (int repeat = 0; repeat < 4; repeat++)
    for (int i = 0; i < STRATEGIES; i++) {
      bny_levels *levels =
          strategies[i] == &bny_tree_levels ? random_levels(&random, nranks, false) : some_levels(&random, nranks);
      bny_request request = combine_of(nranks, "tree", BANYAN_SCATTER_ROOT, 1, 1, 1);
      request.levels = levels;
      request.call.root = random_below(&random, nranks);
      bny_tree_shape shape;
      int32_t option = 0;
      for (; bny_tree_offer(strategies[i], &request, 1024, option, &shape); option++) {
        bny_tree_node root = {.children = NULL};
        bny_tree_node_of(&shape, request.call.root, &root);
        ck_assert_int_eq(root.parent, -1);
        ck_assert_int_eq(count_below(&shape, request.call.root, 0), nranks);
        bny_tree_round rounds[BNY_TREE_ROUNDS_MAX];
        int32_t count = shape.strategy->rounds(&shape, rounds);
        ck_assert(count <= BNY_TREE_ROUNDS_MAX && (count > 0) == (nranks > 1));
      }
      ck_assert_int_gt(option, 0);
      bny_levels_free(levels);
    }
}

/* If groups consist of neighbours, one message crosses into each group. */
TEST(test_levels_are_crossed_once) {
  bny_link_cost link = {.alpha_ns = 200, .beta_ns_per_byte = 0.1, .gamma_ns_per_byte = 0.05};
  static const char *const sizes[] = {"4", "8", "4,8", "3,12", "5,15"};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    bny_levels *levels;
    ck_assert_int_eq(bny_levels_parse(72, sizes[i], &link, &levels), BANYAN_OK);
    bny_request request = combine_of(72, "tree_levels", BANYAN_SCATTER_ROOT, 1, 1, 1);
    request.levels = levels;
    request.call.root = 41;
    bny_tree_shape shape;
    ck_assert(bny_tree_offer(&bny_tree_levels, &request, 1024, 0, &shape));
    int32_t crossings[BNY_LEVELS_MAX] = {0};
    for (int32_t rank = 0; rank < 72; rank++) {
      bny_tree_node node = {.children = NULL};
      bny_tree_node_of(&shape, rank, &node);
      if (node.parent >= 0) crossings[bny_levels_between(levels, rank, node.parent)]++;
    }
    for (int32_t level = 0; level < levels->nlevels; level++) {
      int32_t below = level == 0 ? 72 : levels->levels[level - 1].ngroups;
      ck_assert_int_eq(crossings[level], below - levels->levels[level].ngroups);
    }
    bny_levels_free(levels);
  }
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static const bny_algorithm *algorithm_of(const bny_tree_strategy *strategy) {
  for (int i = 0; bny_algorithms[i]; i++)
    if (strcmp(bny_algorithms[i]->name, "tree") == 0 && strcmp(bny_algorithms[i]->variant, strategy->name) == 0)
      return bny_algorithms[i];
  ck_abort_msg("no tree %s", strategy->name);
  return NULL;
}

static void check_request(const bny_tree_strategy *strategy, bny_request *request) {
  char name[64];
  snprintf(name, sizeof name, "tree_%s", strategy->name);
  request->algorithm = name;
  const bny_algorithm *algorithm = algorithm_of(strategy);
  if (algorithm->reject(request)) return;
  plans_free(request, plans_make_checked(request, algorithm, 3));
}

TEST_RANGE(test_trees_proved, 1, 41) {
  if (is_left_out(_i)) return;
  int32_t nranks = _i;
  uint64_t random = UINT64_C(0xda942042e4dd58b5) ^ (uint64_t)nranks;
  for (int repeat = 0; repeat < (IS_SANITIZED ? 2 : 4); repeat++) {
    bny_levels *levels = random_levels(&random, nranks, false);
    for (int i = 0; i < 8 * STRATEGIES; i++) {
      bny_request request = combine_of(nranks, NULL, (banyan_scatter)(i % 4), 1 + random_below(&random, 40),
                                       1 + random_below(&random, 40), 1 + random_below(&random, 70));
      if (random_below(&random, 3) == 0) request.call.all_tokens = request.tokens = 1 + random_below(&random, 1000);
      request.call.order = (banyan_order)(i / 4 % 2);
      request.call.wire = (bny_wire)random_below(&random, BNY_WIRE_COUNT);
      if (request.call.scatter == BANYAN_SCATTER_ROOT) request.call.root = random_below(&random, nranks);
      request.levels = levels;
      check_request(strategies[i / 8], &request);
    }
    for (int i = 0; i < STRATEGIES; i++) {
      bny_request request = request_of(BNY_BROADCAST, nranks, NULL);
      request.levels = levels;
      request.call.root = random_below(&random, nranks);
      request.call.bytes = (size_t)random_below(&random, 3) * (size_t)random_below(&random, 1000000);
      check_request(strategies[i], &request);
    }
    bny_levels_free(levels);
  }
}

/* A chain splits a large box into pieces, so it takes much less than p times as long as two ranks. */
TEST(test_pieces_follow_each_other) {
  bny_request request = combine_of(32, "tree_chain", BANYAN_SCATTER_NONE, 64, 64, 128);
  bny_plan **plans = plans_make(&request);
  ck_assert_int_eq(plans_prove(&request, plans), BANYAN_OK);
  double many = bny_plans_ns(&request, plans);
  plans_free(&request, plans);
  request.nranks = 2;
  plans = plans_make(&request);
  double two = bny_plans_ns(&request, plans);
  plans_free(&request, plans);
  ck_assert_msg(many < 3 * two, "32 ranks take %g ns, 2 take %g", many, two);
}

/* ---- choice ------------------------------------------------------------------------------------------------------ */

static void reason_begins(const bny_request *request, const char *text) {
  bny_plan *plan = NULL;
  ck_assert_msg(bny_plan_make(request, 0, &plan) == BANYAN_OK, "%s", banyan_last_error());
  ck_assert_str_eq(plan->algorithm, "tree");
  ck_assert_msg(strstr(plan->reason, text) == plan->reason, "\"%s\" does not begin with \"%s\"", plan->reason, text);
  bny_plan_free(plan);
}

TEST(test_choice) {
  bny_request request = combine_of(64, "tree", BANYAN_SCATTER_ROOT, 4096, 64, 128);
  bny_link_cost link = request.cost;
  bny_levels *levels;
  reason_begins(&request, "tree_balanced");
  request.cost.alpha_ns = request.cost.gamma_ns_per_byte = 0; /* only link time counts for 128 MiB */
  reason_begins(&request, "tree_chain");
  request.cost = link;
  request.tokens = request.call.all_tokens = 1;
  request.cost.alpha_ns *= 100; /* only signals count for 32 KiB */
  reason_begins(&request, "tree_knomial");
  request.call.order = BANYAN_ORDER_CANONICAL;
  reason_begins(&request, "tree_knomial");
  request.algorithm = "tree_chain";
  bny_plan *plan = NULL;
  ASSERT_FAILS(bny_plan_make(&request, 0, &plan), BANYAN_ERR_ARGUMENT,
               "canonical order needs merges of aligned blocks");
  request.algorithm = "tree_levels";
  ASSERT_FAILS(bny_plan_make(&request, 0, &plan), BANYAN_ERR_ARGUMENT, "nothing is known of levels");
  /* Ranks of a node are not neighbours, so a k-nomial tree crosses nodes in every round. Others go by node. */
  int32_t nodes[64];
  for (int32_t rank = 0; rank < 64; rank++) nodes[rank] = rank * 37 % 64 / 8;
  bny_level_facts host = {.name = "host", .link = link, .group_of = nodes}, fabric = {.name = "fabric", .link = link};
  fabric.link.alpha_ns *= 50;
  ck_assert_int_eq(bny_levels_make(64, &host, 1, &fabric, NULL, &levels), BANYAN_OK);
  request.algorithm = "tree";
  request.call.order = BANYAN_ORDER_PLAN;
  request.levels = levels;
  reason_begins(&request, "tree_balanced");
  request.call.order = BANYAN_ORDER_CANONICAL;
  reason_begins(&request, "tree_knomial");
  bny_levels_free(levels);
}

/* Over levels, a sender's link carries a broadcast only once for each of its receivers. The root does not send to all
 * ranks. */
TEST(test_broadcast_over_levels) {
  bny_request request = request_of(BNY_BROADCAST, 64, NULL);
  bny_levels *levels;
  ck_assert_int_eq(bny_levels_parse(64, "8", &request.cost, &levels), BANYAN_OK);
  request.levels = levels;
  request.call.bytes = 1 << 20;
  reason_begins(&request, "tree_");
  bny_levels_free(levels);
}

/* The reason of the choice names the form of the tree. */
TEST(test_form_is_told) {
  bny_request request = combine_of(64, "tree_balanced", BANYAN_SCATTER_ROOT, 256, 64, 128);
  bny_plan *plan = NULL;
  ck_assert_int_eq(bny_plan_make(&request, 0, &plan), BANYAN_OK);
  ck_assert_msg(strstr(plan->reason, ", radix ") && strstr(plan->reason, " pieces)"), "%s", plan->reason);
  bny_plan_free(plan);
}

int main(void) { return suite_main(suite_of("plan_tree", 120)); }
