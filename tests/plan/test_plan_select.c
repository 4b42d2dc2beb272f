/* SPDX-License-Identifier: Apache-2.0
 * The choice of an algorithm, its reason, and rejections. */
#include "tests/plan/plan_util.h"

/* Returns the algorithm chosen for a request; all ranks must agree on it, on its reason and on the hash. */
static const char *chosen(const bny_request *request) {
  bny_plan **plans = plans_make(request);
  const char *algorithm = plans[0]->algorithm;
  for (int32_t rank = 1; rank < request->nranks; rank++) {
    ck_assert_ptr_eq(plans[rank]->algorithm, algorithm);
    ck_assert_str_eq(plans[rank]->reason, plans[0]->reason);
    ck_assert_uint_eq(plans[rank]->hash, plans[0]->hash);
  }
  plans_free(request, plans);
  return algorithm;
}

static void rejected(const bny_request *request, banyan_status status, const char *text) {
  for (int32_t rank = 0; rank < request->nranks; rank++) {
    bny_plan *plan = NULL;
    ck_assert_int_eq(bny_plan_make(request, rank, &plan), status);
    ck_assert_ptr_null(plan);
    ck_assert_msg(strstr(banyan_last_error(), text) != NULL, "\"%s\" lacks \"%s\"", banyan_last_error(), text);
  }
}

TEST(test_small_is_oneshot) {
  for (int32_t p = 1; p <= 16; p++) {
    bny_request request = combine_of(p, NULL, BANYAN_SCATTER_NONE, 1, 1, 16);
    if (p <= 4) ck_assert_str_eq(chosen(&request), "oneshot");
    request.call.scatter = BANYAN_SCATTER_HEADS;
    request.call.all_heads = request.heads = p;
    if (p <= 8) ck_assert_str_eq(chosen(&request), "oneshot");
  }
}

TEST(test_large_is_scattered_first) {
  for (int32_t p = 4; p <= 64; p *= 2) {
    bny_request request = combine_of(p, NULL, BANYAN_SCATTER_NONE, 64, 64, 128);
    const char *name = chosen(&request);
    ck_assert_msg(strcmp(name, "oneshot") != 0 && strcmp(name, "tree") != 0, "%d ranks, 2 MB: %s", p, name);
  }
}

/* A complete sum is delivered as a copy, so two ranks gain from adding each value once. */
TEST(two_ranks_scatter_large_sums) {
  bny_request request = combine_of(2, NULL, BANYAN_SCATTER_NONE, 64, 16384, 1);
  request.call.collective = BNY_ALLREDUCE;
  ck_assert_str_ne(chosen(&request), "oneshot");
}

/* If a payload is too large for oneshot, so is every larger one. */
TEST(test_monotone) {
  for (int32_t p = 2; p <= 32; p += 5) {
    bool left = false;
    for (int32_t heads = 1; heads <= 4096; heads *= 2) {
      bny_request request = combine_of(p, NULL, BANYAN_SCATTER_NONE, 1, heads, 128);
      bool oneshot = strcmp(chosen(&request), "oneshot") == 0;
      ck_assert_msg(!oneshot || !left, "%d ranks: oneshot again for %d heads", p, heads);
      left = left || !oneshot;
    }
  }
}

/* If ranks share a core, each round costs context switches, so the fewest rounds win for larger sizes. */
TEST(test_turns) {
  bny_request request = combine_of(8, NULL, BANYAN_SCATTER_NONE, 1, 8, 128);
  request.cost.ranks_per_core = 4;
  request.cost.switch_ns = 20000;
  ck_assert_str_eq(chosen(&request), "oneshot");
}

/* If the sender posts messages, an owner's many incoming messages cost it nothing, and each rank sends only few. */
TEST(test_posted) {
  bny_request request = combine_of(32, "oneshot", BANYAN_SCATTER_HEADS, 1, 2, 16);
  double ns[2];
  for (int posted = 0; posted < 2; posted++) {
    request.cost.message_ns = 100;
    request.cost.posted = posted;
    bny_plan *plan = NULL;
    ck_assert_int_eq(bny_plan_make(&request, 0, &plan), BANYAN_OK);
    ns[posted] = plan->predicted_ns;
    bny_plan_free(plan);
  }
  ck_assert_double_eq_tol(ns[0] - ns[1], (30 - 1) * 100, 1e-6);
}

TEST(test_reason) {
  static const char *const names[] = {"oneshot", "twoshot", "recursive_doubling", "recursive_halving", "tree", "ring"};
  bny_request request = combine_of(8, NULL, BANYAN_SCATTER_NONE, 1, 32, 128);
  bny_plan *plan = NULL;
  ck_assert_int_eq(bny_plan_make(&request, 0, &plan), BANYAN_OK);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    ck_assert_msg(strstr(plan->reason, names[i]) != NULL, "\"%s\" lacks %s", plan->reason, names[i]);
  ck_assert_ptr_eq(strstr(plan->reason, plan->algorithm), plan->reason);
  ck_assert_ptr_nonnull(strstr(plan->reason, "least predicted"));
  bny_plan_free(plan);
  request.algorithm = "ring";
  ck_assert_int_eq(bny_plan_make(&request, 0, &plan), BANYAN_OK);
  ck_assert_ptr_nonnull(strstr(plan->reason, "ring"));
  ck_assert_ptr_nonnull(strstr(plan->reason, "named by the caller"));
  ck_assert_ptr_null(strstr(plan->reason, "oneshot"));
  bny_plan_free(plan);
}

/* "recursive" selects the cheaper of two variants. A variant may be named, and both are reported as recursive. */
TEST(test_variants) {
  bny_request request = combine_of(16, "recursive", BANYAN_SCATTER_NONE, 1, 1, 16), other;
  bny_plan *plan = NULL;
  ck_assert_int_eq(bny_plan_make(&request, 0, &plan), BANYAN_OK);
  ck_assert_str_eq(plan->algorithm, "recursive");
  ck_assert_ptr_eq(strstr(plan->reason, "recursive_doubling"), plan->reason);
  uint64_t hash = plan->hash;
  bny_plan_free(plan);
  other = request;
  other.algorithm = "recursive_halving";
  ck_assert_int_eq(bny_plan_make(&other, 0, &plan), BANYAN_OK);
  ck_assert_str_eq(plan->algorithm, "recursive");
  ck_assert_uint_ne(plan->hash, hash);
  bny_plan_free(plan);
  request.call.all_tokens = request.tokens = 4096;
  ck_assert_int_eq(bny_plan_make(&request, 0, &plan), BANYAN_OK);
  ck_assert_ptr_eq(strstr(plan->reason, "recursive_halving"), plan->reason);
  bny_plan_free(plan);
  for (int scatter = BANYAN_SCATTER_ROOT; scatter <= BANYAN_SCATTER_TOKENS; scatter++) {
    request.call.scatter = (banyan_scatter)scatter;
    ck_assert_str_eq(chosen(&request), "recursive");
  }
}

TEST(test_names_rejected) {
  size_t counts[2] = {1, 1};
  bny_request request = combine_of(2, "threeshot", BANYAN_SCATTER_NONE, 1, 1, 1);
  rejected(&request, BANYAN_ERR_ARGUMENT, "unknown algorithm \"threeshot\"");
  rejected(&request, BANYAN_ERR_ARGUMENT, "oneshot, twoshot, recursive, tree, ring");
  request.algorithm = "";
  rejected(&request, BANYAN_ERR_ARGUMENT, "unknown algorithm");
  request.algorithm = "recursive_doubling";
  request.call.scatter = BANYAN_SCATTER_HEADS;
  rejected(&request, BANYAN_ERR_ARGUMENT, "for scatter none");
  request = request_of(BNY_ALLGATHER, 2, "tree");
  request.call.counts = counts;
  rejected(&request, BANYAN_ERR_ARGUMENT, "cannot serve this allgather");
  rejected(&request, BANYAN_ERR_ARGUMENT, "oneshot, recursive, ring");
  request = request_of(BNY_BARRIER, 2, "oneshot");
  rejected(&request, BANYAN_ERR_ARGUMENT, "cannot serve this barrier");
}

/* An outbox too small for one algorithm may fit another. If it fits none, the error states the size needed. */
TEST(test_memory) {
  bny_request request = combine_of(8, "oneshot", BANYAN_SCATTER_NONE, 1, 32, 128);
  request.cost.ranks_per_core = 2; /* oneshot then uses one slot */
  size_t payload = bny_wire_layout_make(BNY_WIRE_F32, 32, 128).bytes;
  request.outbox_bytes = payload;
  request.slots_max = 1;
  ck_assert_str_eq(chosen(&request), "oneshot");
  request.outbox_bytes = payload - 64;
  rejected(&request, BANYAN_ERR_MEMORY,
           "combine by oneshot among 8 ranks needs 16640 bytes of a rank's outbox, which has 16576");
  request.algorithm = NULL;
  rejected(&request, BANYAN_ERR_MEMORY, "split the call");
  request.outbox_bytes = payload;
  request.slots_max = 0;
  rejected(&request, BANYAN_ERR_MEMORY, "slots");
  /* Twoshot would be chosen, but it does not fit. */
  request = combine_of(8, NULL, BANYAN_SCATTER_NONE, 64, 32, 128);
  request.cost.ranks_per_core = 2;
  payload = bny_wire_layout_make(BNY_WIRE_F32, 64 * 32, 128).bytes;
  ck_assert_str_ne(chosen(&request), "oneshot");
  request.outbox_bytes = payload;
  ck_assert_str_eq(chosen(&request), "oneshot");
}

/* With unknown link costs there is still a choice, the same on all ranks. */
TEST(test_no_costs) {
  bny_request request = combine_of(8, NULL, BANYAN_SCATTER_NONE, 64, 32, 128);
  request.cost = (bny_link_cost){0};
  ck_assert_str_eq(chosen(&request), "oneshot");
}

TEST(test_other_collectives) {
  size_t counts[8] = {64, 64, 64, 64, 64, 64, 64, 64};
  bny_request request = request_of(BNY_BARRIER, 8, NULL);
  ck_assert_str_eq(chosen(&request), "dissemination");
  request = request_of(BNY_SHIFT, 8, NULL);
  request.call.bytes = 64;
  ck_assert_str_eq(chosen(&request), "oneshot");
  request = request_of(BNY_ALLGATHER, 4, NULL);
  request.call.counts = counts;
  ck_assert_str_eq(chosen(&request), "oneshot");
  request = request_of(BNY_BROADCAST, 8, NULL);
  request.call.bytes = 64;
  ck_assert_str_eq(chosen(&request), "oneshot");
}

int main(void) { return suite_main(suite_of("plan_select", 60)); }
