/* SPDX-License-Identifier: Apache-2.0
 * Plans over levels: proofs for random levels (uneven, scattered over nodes, without NICs), memory bounds, and bytes
 * between islands against the formula. */
#include "tests/plan/plan_util.h"

enum { RANKS_MAX = 48 };

static const bny_link_cost inner = {.alpha_ns = 200, .beta_ns_per_byte = 0.02, .gamma_ns_per_byte = 0.01};
static const bny_link_cost outer = {.alpha_ns = 3000, .beta_ns_per_byte = 0.08, .gamma_ns_per_byte = 0.01};

static bny_levels *levels_of(int32_t nranks, const char *sizes) {
  bny_levels *levels = NULL;
  ck_assert_msg(bny_levels_parse(nranks, sizes, &inner, &levels) == BANYAN_OK, "%s", banyan_last_error());
  return levels;
}

static void check_request(const bny_request *request) {
  const bny_algorithm *algorithm = NULL;
  double ns;
  char *reason = NULL;
  ck_assert_msg(bny_algorithm_select(request, &algorithm, &ns, &reason) == BANYAN_OK, "%s", banyan_last_error());
  free(reason);
  bny_request named = *request; /* it is chosen once */
  char name[64] = "";
  size_t length = 0;
  bny_algorithm_print(algorithm, name, sizeof name, &length);
  named.algorithm = name;
  plans_free(&named, plans_make_checked(&named, algorithm, 0));
}

/* "levels_whole" sends from every rank with a NIC, "levels_leaders" from leaders only. "levels" is the cheaper one, and
 * the only one for owners. */
static const char *random_form(uint64_t *random, const bny_request *request) {
  if (request->levels->nlevels < 2) return NULL;
  if (request->call.scatter == BANYAN_SCATTER_HEADS || request->call.scatter == BANYAN_SCATTER_TOKENS) return "levels";
  return request->levels->leaders && random_below(random, 2) ? "levels_leaders" : "levels_whole";
}

TEST_RANGE(test_random_levels_proved, 1, RANKS_MAX) {
  if (is_left_out(_i)) return;
  int32_t nranks = _i;
  uint64_t random = UINT64_C(0xd1342543de82ef95) ^ (uint64_t)nranks;
  for (int repeat = 0; repeat < (IS_SANITIZED ? 4 : 12); repeat++) {
    bny_levels *levels = random_levels(&random, nranks, random_below(&random, 2));
    for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++) {
      bny_request request = combine_of(nranks, "levels", (banyan_scatter)scatter, 1, 1, 1);
      request.levels = levels;
      request.call.wire = (bny_wire)random_below(&random, BNY_WIRE_COUNT);
      random_shape(&random, &request);
      request.algorithm = random_form(&random, &request);
      check_request(&request);
      request.call.order = BANYAN_ORDER_CANONICAL;
      if (!levels->aligned) request.algorithm = NULL;
      check_request(&request);
    }
    bny_levels_free(levels);
  }
}

/* Random counts, some of them zero. */
TEST_RANGE(test_gather_proved, 1, RANKS_MAX) {
  if (is_left_out(_i)) return;
  int32_t nranks = _i;
  size_t counts[RANKS_MAX];
  uint64_t random = UINT64_C(0xa0761d6478bd642f) ^ (uint64_t)nranks;
  for (int repeat = 0; repeat < (IS_SANITIZED ? 4 : 10); repeat++) {
    bny_levels *levels = random_levels(&random, nranks, random_below(&random, 2));
    bny_request request = request_of(BNY_ALLGATHER, nranks, levels->nlevels > 1 ? "levels" : NULL);
    for (int32_t rank = 0; rank < nranks; rank++)
      counts[rank] = random_below(&random, 3) ? (size_t)random_below(&random, 300) : 0;
    request.call.counts = counts;
    request.levels = levels;
    check_request(&request);
    bny_levels_free(levels);
  }
}

/* Sizes for which every algorithm is chosen at the last level at least once. */
TEST(test_every_size_proved) {
  static const char *const shapes[] = {"2", "3", "4", "8", "4,8", "2,6", "3,9", "2,4,8", "16"};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    for (int32_t nranks = 2; nranks <= 40; nranks += 1 + nranks / 5) {
      if (is_left_out(nranks)) continue;
      bny_levels *levels = levels_of(nranks, shapes[i]);
      for (int32_t tokens = 1; tokens <= 256 && levels->nlevels > 1; tokens *= IS_SANITIZED ? 16 : 4) {
        for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++) {
          bny_request request = combine_of(nranks, "levels", (banyan_scatter)scatter, tokens, 32, 128);
          request.levels = levels;
          request.call.root = scatter == BANYAN_SCATTER_ROOT ? nranks - 1 : 0;
          check_request(&request);
        }
      }
      bny_levels_free(levels);
    }
  }
}

/* Bytes that a rank sends to other islands of 8 ranks. */
static double bytes_outside(const bny_plan *plan) {
  double bytes = 0;
  for (int32_t step = 0; step < plan->nsteps; step++) {
    if (plan->steps[step].kind != BNY_STEP_SEND) continue;
    for (int32_t i = 0; i < plan->steps[step].count; i++)
      if (plan->peers[plan->steps[step].first + i] / 8 != plan->rank / 8)
        bytes += (double)plan->slots[plan->steps[step].slot].bytes;
  }
  return bytes;
}

/* With S bytes per rank and islands of 8, each rank sends S (g-1) / (8 g) to other islands for HEADS and TOKENS. For
 * NONE it sends from 2 (g-1) / g S / 8 (reduced and spread) to (g-1) S / 8 (direct), or log2 g S / 8 (doubling). */
TEST(test_bytes_between_islands) {
  for (int32_t islands = 2; islands <= 16; islands *= 2) {
    bny_levels *levels = levels_of(8 * islands, "8");
    for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++) {
      bny_request request = combine_of(8 * islands, scatter == BANYAN_SCATTER_NONE ? "levels_whole" : "levels",
                                       (banyan_scatter)scatter, 128, 128, 126);
      if (scatter == BANYAN_SCATTER_ROOT) continue;
      request.levels = levels;
      bny_plan **plans = plans_make(&request);
      double piece = 128.0 * 128 * 128 * 4 / 8, g = islands, direct = (g - 1) * piece, least = (g - 1) / g * piece;
      for (int32_t rank = 0; rank < request.nranks; rank++) {
        double bytes = bytes_outside(plans[rank]);
        if (scatter != BANYAN_SCATTER_NONE)
          ck_assert_msg(bytes >= least * 0.99 && bytes <= least * 1.05, "rank %d of %d: %g", rank, request.nranks,
                        bytes);
        else
          ck_assert_msg(bytes >= (islands == 2 ? 1 : 2) * least * 0.99 && bytes <= direct * 1.05, "rank %d of %d: %g",
                        rank, request.nranks, bytes);
      }
      plans_free(&request, plans);
    }
    bny_levels_free(levels);
  }
}

/* Only the leader of an island sends: at most (g - 1) S with g islands. With ROOT it sends S, or nothing from the
 * root's island. */
TEST(test_leaders_alone_send) {
  for (int32_t islands = 2; islands <= 16; islands *= 2) {
    bny_levels *levels = levels_of(8 * islands, "8");
    for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_ROOT; scatter++) {
      bny_request request = combine_of(8 * islands, "levels_leaders", (banyan_scatter)scatter, 1, 32, 126);
      request.levels = levels;
      request.call.root = scatter == BANYAN_SCATTER_ROOT ? 3 : 0;
      bny_plan **plans = plans_make(&request);
      double all = 32.0 * 128 * 4, g = islands, most = scatter == BANYAN_SCATTER_ROOT ? all : (g - 1) * all;
      for (int32_t rank = 0; rank < request.nranks; rank++) {
        double bytes = bytes_outside(plans[rank]);
        bool leads = rank % 8 == 0, sends = leads && (scatter == BANYAN_SCATTER_NONE || rank > 0);
        ck_assert_msg(sends ? bytes > 0 && bytes <= most * 1.05 : bytes == 0, "rank %d of %d sends %g", rank,
                      request.nranks, bytes);
      }
      plans_free(&request, plans);
    }
    bny_levels_free(levels);
  }
}

/* Islands with a single NIC have no separate leader plan. */
TEST(test_leaders_rejected) {
  static const bool nics[8] = {false, true, false, false, true, false, false, false};
  static const int32_t groups[8] = {0, 0, 0, 0, 1, 1, 1, 1};
  bny_level_facts island = {.name = "island", .link = inner, .group_of = groups}, all = {.name = "all", .link = outer};
  bny_levels *levels = NULL;
  bny_plan *plan = NULL;
  ck_assert_int_eq(bny_levels_make(8, &island, 1, &all, nics, &levels), BANYAN_OK);
  ck_assert_ptr_null(levels->leaders);
  bny_request request = combine_of(8, "levels_leaders", BANYAN_SCATTER_NONE, 1, 32, 128);
  request.levels = levels;
  ASSERT_FAILS(bny_plan_make(&request, 0, &plan), BANYAN_ERR_ARGUMENT, "more than one rank that carries");
  bny_levels_free(levels);
}

/* Between nodes with many ranks on one link, a small box goes through leaders and a large one through all ranks. */
TEST(test_leaders_chosen) {
  bny_link_cost memory = {
      .alpha_ns = 250, .beta_ns_per_byte = 0.03, .gamma_ns_per_byte = 0.03, .ranks_per_core = 4, .switch_ns = 1500};
  bny_link_cost network = memory;
  network.alpha_ns = 20000;
  network.beta_ns_per_byte = network.shared_ns_per_byte = 0.8;
  static const int32_t groups[8] = {0, 0, 0, 0, 1, 1, 1, 1};
  bny_level_facts host = {.name = "host", .link = memory, .group_of = groups},
                  all = {.name = "network", .link = network};
  bny_levels *levels = NULL;
  ck_assert_int_eq(bny_levels_make(8, &host, 1, &all, NULL, &levels), BANYAN_OK);
  for (int32_t heads = 32; heads <= 2048; heads *= 64) {
    bny_request request = combine_of(8, NULL, BANYAN_SCATTER_NONE, 1, heads, 128);
    request.levels = levels;
    bny_plan **plans = plans_make(&request);
    int32_t senders = 0;
    for (int32_t rank = 0; rank < 8; rank++)
      for (int32_t i = 0, sends = 0; i < plans[rank]->npeers && !sends; i++)
        senders += sends = plans[rank]->peers[i] / 4 != rank / 4;
    ck_assert_msg(senders == (heads == 32 ? 2 : 8), "%d heads: %d ranks send: %s", heads, senders, plans[0]->reason);
    plans_free(&request, plans);
  }
  bny_levels_free(levels);
}

/* Links between nodes are expensive, so the composed plan is chosen and reports why the others lost. */
TEST(test_chosen) {
  bny_levels *levels = levels_of(16, "8");
  bny_request request = combine_of(16, NULL, BANYAN_SCATTER_NONE, 8, 32, 128);
  bny_plan *plan = NULL;
  request.levels = levels;
  ck_assert_msg(bny_plan_make(&request, 3, &plan) == BANYAN_OK, "%s", banyan_last_error());
  ck_assert_str_eq(plan->algorithm, "levels");
  ck_assert_msg(strstr(plan->reason, "recursive") != NULL, "%s", plan->reason);
  bny_plan_free(plan);
  request.levels = NULL;
  request.algorithm = "levels";
  ASSERT_FAILS(bny_plan_make(&request, 3, &plan), BANYAN_ERR_ARGUMENT, "one level");
  bny_levels_free(levels);
}

TEST(test_bad_levels) {
  static const char *const bad[] = {"x", "4,", "4,,8", "0", "-1", "1,2,3,4,5,6,7,8,9", "4,6"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    bny_levels *levels = NULL;
    ck_assert_msg(bny_levels_parse(16, bad[i], &inner, &levels) == BANYAN_ERR_ARGUMENT, "\"%s\"", bad[i]);
    ck_assert_ptr_null(levels);
  }
}

int main(void) {
  suite_deal(2); /* these proofs take longer than any other test of plans */
  return suite_main(suite_of("plan_compose", 120));
}
