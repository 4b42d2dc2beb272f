/* SPDX-License-Identifier: Apache-2.0
 * Plans of every algorithm: proofs for 1 to 64 ranks and random shapes, bytes sent against the formulae of
 * docs/algorithms.md, memory bounds, text and hash. */
#include "tests/plan/plan_util.h"

static const char *const variants[] = {"oneshot",      "twoshot",       "recursive_doubling", "recursive_halving",
                                       "tree_knomial", "tree_balanced", "tree_chain",         "ring"};
enum { VARIANTS = sizeof variants / sizeof variants[0], RANKS_MAX = 64 };

/* The table row of a variant, whose name has an underscore. */
static const bny_algorithm *algorithm_named(const char *name) {
  for (int i = 0; bny_algorithms[i]; i++) {
    char text[64];
    size_t length = 0;
    bny_algorithm_print(bny_algorithms[i], text, sizeof text, &length);
    if (strcmp(text, name) == 0) return bny_algorithms[i];
  }
  return NULL;
}

/* A plan derived from another rank's plan equals the rank's own plan. */
static bool like_is_alike(const bny_request *request, bny_plan **plans) {
  int32_t last = request->nranks - 1;
  const bny_plan *own = plans[last];
  bny_plan *like = NULL;
  if (bny_plan_make_like(request, plans[0], last, &like) != BANYAN_OK) return false;
  bool alike = like->rank == last && like->hash == own->hash && like->outbox_bytes == own->outbox_bytes &&
               like->nslots == own->nslots && like->nmessages == own->nmessages && like->nsources == own->nsources &&
               like->npeers == own->npeers && like->nsteps == own->nsteps && strcmp(like->reason, own->reason) == 0;
  for (int32_t i = 0; alike && i < own->nsteps; i++)
    alike = like->steps[i].kind == own->steps[i].kind && like->steps[i].slot == own->steps[i].slot &&
            bny_slice_equal(&like->steps[i].slice, &own->steps[i].slice);
  bny_plan_free(like);
  return alike;
}

/* If ranks share a core, the steps of the plans hide waits that the estimate counts in full. */
static void check_request(const bny_request *request) {
  const bny_algorithm *algorithm = request->algorithm ? algorithm_named(request->algorithm) : NULL;
  bny_plan **plans = plans_make_checked(request, algorithm, request->cost.ranks_per_core > 1 ? 0 : 4);
  ck_assert_msg(like_is_alike(request, plans), "%s: a plan from another rank's differs", request_text(request));
  plans_free(request, plans);
}

/* Every algorithm x scatter x order, in all wire formats for up to 17 ranks, else in one. */
TEST_RANGE(test_combine_proved, 1, RANKS_MAX + 1) {
  if (is_left_out(_i)) return;
  int32_t nranks = _i;
  uint64_t random = UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)nranks;
  for (int variant = 0; variant < VARIANTS; variant++)
    for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++)
      for (int order = BANYAN_ORDER_PLAN; order <= BANYAN_ORDER_CANONICAL; order++)
        for (int wire = 0; wire < (nranks <= 17 ? BNY_WIRE_COUNT : 1); wire++) {
          bny_request request = combine_of(nranks, variants[variant], (banyan_scatter)scatter, 0, 0, 0);
          request.call.order = (banyan_order)order;
          request.call.wire = (bny_wire)(nranks <= 17 ? wire : random_below(&random, BNY_WIRE_COUNT));
          random_shape(&random, &request);
          if (algorithm_named(variants[variant])->reject(&request) == NULL) check_request(&request);
        }
}

/* A plan states the number of roundings of its rows, and the prover rejects one less. */
TEST_RANGE(test_roundings, 1, 18) {
  for (int variant = 0; variant < VARIANTS; variant++)
    for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++)
      for (int order = BANYAN_ORDER_PLAN; order <= BANYAN_ORDER_CANONICAL; order++) {
        bny_request request = combine_of(_i, variants[variant], (banyan_scatter)scatter, 64, 64, 4);
        request.call.order = (banyan_order)order;
        request.call.wire = BNY_WIRE_BF16;
        if (algorithm_named(variants[variant])->reject(&request) != NULL) continue;
        bny_plan **plans = plans_make_checked(&request, NULL, 0);
        ck_assert_int_ge(plans[0]->roundings, 1);
        if (order == BANYAN_ORDER_CANONICAL) ck_assert_int_eq(plans[0]->roundings, 1 + bny_log2_ceil(_i));
        for (int32_t rank = 0; rank < _i && plans[0]->roundings > 1; rank++)
          plans[rank]->roundings = rank > 0 ? plans[0]->roundings : plans[0]->roundings - 1;
        ck_assert_msg(plans[0]->roundings == 1 || plans_prove(&request, plans) == BANYAN_ERR_STATE,
                      "%s: fewer than %d roundings are enough", request_text(&request), plans[0]->roundings + 1);
        plans_free(&request, plans);
      }
}

TEST_LOOP(test_many_ranks_proved, 4) {
  static const int32_t counts[] = {65, 96, 129, 200};
  uint64_t random = 7;
  for (int variant = 0; variant < VARIANTS; variant++) {
    bny_request request = combine_of(counts[_i], variants[variant], BANYAN_SCATTER_NONE, 2, 300, 4);
    request.call.order = (banyan_order)random_below(&random, 2);
    request.call.wire = BNY_WIRE_BF16;
    if (algorithm_named(variants[variant])->reject(&request) == NULL) check_request(&request);
  }
}

TEST_RANGE(test_bytes_proved, 1, RANKS_MAX + 1) {
  if (is_left_out(_i)) return;
  static const char *const broadcasts[] = {"oneshot", "tree_knomial", "tree_balanced", "tree_chain"};
  static const char *const gathers[] = {"oneshot", "recursive_doubling", "ring"};
  int32_t nranks = _i;
  uint64_t random = UINT64_C(0xff51afd7ed558ccd) ^ (uint64_t)nranks;
  size_t counts[RANKS_MAX];
  for (int round = 0; round < 6; round++) {
    bny_request request = request_of(BNY_ALLGATHER, nranks, gathers[round % 3]);
    for (int32_t rank = 0; rank < nranks; rank++)
      counts[rank] = random_below(&random, 3) ? (size_t)random_below(&random, 300) : 0;
    request.call.counts = counts;
    check_request(&request);
    request = request_of(BNY_BROADCAST, nranks, broadcasts[round % 4]);
    request.call.bytes = (size_t)random_below(&random, 3) * (size_t)random_below(&random, 100000);
    request.call.root = random_below(&random, nranks);
    check_request(&request);
    request = request_of(BNY_SHIFT, nranks, NULL);
    request.call.bytes = (size_t)random_below(&random, 500);
    request.call.distance = random_below(&random, nranks);
    check_request(&request);
  }
  bny_request barrier = request_of(BNY_BARRIER, nranks, NULL);
  check_request(&barrier);
}

/* A sum has every algorithm of a combine. */
TEST_RANGE(test_sums_proved, 1, RANKS_MAX + 1) {
  if (is_left_out(_i)) return;
  uint64_t random = UINT64_C(0xc4ceb9fe1a85ec53) ^ (uint64_t)_i;
  for (int variant = 0; variant < VARIANTS; variant++) {
    bny_request request = combine_of(_i, variants[variant], (banyan_scatter)random_below(&random, 4),
                                     random_below(&random, 9), random_below(&random, 500), 1);
    bny_request combine = request;
    request.call.collective = BNY_ALLREDUCE;
    request.call.order = combine.call.order = (banyan_order)random_below(&random, 2);
    request.call.wire = combine.call.wire = random_below(&random, 2) ? BNY_WIRE_BF16 : BNY_WIRE_F32;
    const bny_algorithm *algorithm = algorithm_named(variants[variant]);
    ck_assert_int_eq(algorithm->reject(&request) == NULL, algorithm->reject(&combine) == NULL);
    if (algorithm->reject(&request) == NULL) check_request(&request);
  }
}

/* A selection has those of a combine that are not scattered. */
TEST_RANGE(test_selections_proved, 1, RANKS_MAX + 1) {
  if (is_left_out(_i)) return;
  uint64_t random = UINT64_C(0xa0761d6478bd642f) ^ (uint64_t)_i;
  for (int variant = 0; variant < VARIANTS; variant++) {
    bny_request request =
        combine_of(_i, variants[variant], BANYAN_SCATTER_NONE, random_below(&random, 9), random_below(&random, 5), 0);
    request.call.collective = BNY_SELECT;
    request.call.dim = 1 + random_below(&random, 2048);
    if (algorithm_named(variants[variant])->reject(&request) == NULL) check_request(&request);
  }
}

/* Boxes of heads with uneven counts, and parts of such calls. */
TEST_RANGE(test_heads_proved, 1, RANKS_MAX + 1) {
  if (is_left_out(_i)) return;
  static const char *const gathers[] = {"oneshot", "recursive_doubling", "ring", NULL};
  uint64_t random = UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)_i;
  size_t counts[RANKS_MAX];
  for (int round = 0; round < 8; round++) {
    bny_request request = request_of(BNY_ALLGATHER_HEADS, _i, gathers[round % 4]);
    for (int32_t rank = 0; rank < _i; rank++) {
      counts[rank] = random_below(&random, 3) ? (size_t)random_below(&random, 9) : 0;
      request.call.all_heads += (int32_t)counts[rank];
    }
    request.call.counts = counts;
    request.call.dim = 1 + random_below(&random, 200);
    request.call.dtype = random_below(&random, 2) ? BANYAN_BF16 : BANYAN_I8;
    request.call.all_tokens = random_below(&random, 20);
    request.token0 = round % 2 ? random_below(&random, request.call.all_tokens + 1) : 0;
    request.tokens = request.call.all_tokens - request.token0;
    request.head0 = round % 2 ? random_below(&random, request.call.all_heads + 1) : 0;
    request.heads =
        round % 2 ? random_below(&random, request.call.all_heads - request.head0 + 1) : request.call.all_heads;
    check_request(&request);
  }
}

/* The chosen plans are proved, for small and large shapes. */
TEST(test_chosen_proved) {
  uint64_t random = 99;
  for (int round = 0; round < 100; round++) {
    bny_request request =
        combine_of(1 + random_below(&random, 33), NULL, (banyan_scatter)random_below(&random, 4), 0, 0, 0);
    request.call.order = (banyan_order)random_below(&random, 2);
    request.call.wire = (bny_wire)random_below(&random, BNY_WIRE_COUNT);
    request.cost.ranks_per_core = 1 + random_below(&random, 4);
    random_shape(&random, &request);
    check_request(&request);
  }
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* p ranks share 16 p rows in pieces of 16 rows without padding, so S is p pieces, and all sizes are counted in pieces.
 * Ranks share cores, so that oneshot does not split the box further. */
static void check_bytes(const char *name, banyan_scatter scatter, int32_t p, uint64_t pieces_of_most,
                        uint64_t pieces_of_all) {
  bool by_tokens = scatter == BANYAN_SCATTER_TOKENS;
  bny_request request = combine_of(p, name, scatter, by_tokens ? 16 * p : 1, by_tokens ? 1 : 16 * p, 64);
  request.cost.ranks_per_core = 2;
  uint64_t piece = 16 * (8 + 4 * 64), most = 0, all = 0;
  bny_plan **plans = plans_make(&request);
  for (int32_t rank = 0; rank < p; rank++) {
    uint64_t sent = plan_bytes_sent(plans[rank]);
    all += sent;
    most = sent > most ? sent : most;
  }
  plans_free(&request, plans);
  ck_assert_msg(most == pieces_of_most * piece && all == pieces_of_all * piece,
                "%s: the most sent by a rank is %g pieces, not %g; all send %g, not %g", request_text(&request),
                (double)most / (double)piece, (double)pieces_of_most, (double)all / (double)piece,
                (double)pieces_of_all);
  bny_estimate estimate = {0};
  algorithm_named(name)->estimate(&request, &estimate);
  ck_assert_msg(estimate.bytes_sent == (double)most, "%s: the estimate is %g bytes, the plan sends %g",
                request_text(&request), estimate.bytes_sent, (double)most);
}

TEST_LOOP(test_bytes_sent, 5) {
  static const int32_t counts[] = {2, 4, 8, 16, 32};
  uint64_t p = (uint64_t)counts[_i], levels = (uint64_t)_i + 1;
  int32_t n = counts[_i];
  for (int scatter = BANYAN_SCATTER_HEADS; scatter <= BANYAN_SCATTER_TOKENS; scatter++) {
    banyan_scatter owners = (banyan_scatter)scatter;
    check_bytes("oneshot", owners, n, p - 1, p * (p - 1));
    check_bytes("twoshot", owners, n, p - 1, p * (p - 1));
    check_bytes("recursive_halving", owners, n, p - 1, p * (p - 1));
    check_bytes("ring", owners, n, p - 1, p * (p - 1));
  }
  check_bytes("oneshot", BANYAN_SCATTER_NONE, n, (p - 1) * p, p * (p - 1) * p);
  check_bytes("twoshot", BANYAN_SCATTER_NONE, n, 2 * (p - 1), p * 2 * (p - 1));
  check_bytes("recursive_doubling", BANYAN_SCATTER_NONE, n, levels * p, p * levels * p);
  check_bytes("recursive_halving", BANYAN_SCATTER_NONE, n, 2 * (p - 1), p * 2 * (p - 1));
  check_bytes("ring", BANYAN_SCATTER_NONE, n, 2 * (p - 1), p * 2 * (p - 1));
  /* Every other rank sends its result to the root. */
  check_bytes("oneshot", BANYAN_SCATTER_ROOT, n, p, (p - 1) * p);
  check_bytes("twoshot", BANYAN_SCATTER_ROOT, n, p, p * (p - 1) + p - 1);
  check_bytes("recursive_halving", BANYAN_SCATTER_ROOT, n, p, p * (p - 1) + p - 1);
  check_bytes("ring", BANYAN_SCATTER_ROOT, n, p, p * (p - 1) + p - 1);
  check_bytes("tree_knomial", BANYAN_SCATTER_ROOT, n, p, (p - 1) * p);
  check_bytes("tree_balanced", BANYAN_SCATTER_ROOT, n, p, (p - 1) * p);
  check_bytes("tree_chain", BANYAN_SCATTER_ROOT, n, p, (p - 1) * p);
}

/* In a tree all ranks but one send the payload once on the way up, and get it once on the way down. With owners, the
 * root sends (p-1)/p S down. Ranks share cores, so that the box is not split. */
TEST(test_bytes_sent_tree) {
  static const char *const trees[] = {"tree_knomial", "tree_balanced", "tree_chain"};
  for (int32_t p = 2; p <= 33; p++)
    for (int i = 0; i < 12; i++) {
      int scatter = i % 4;
      bny_request request = combine_of(p, trees[i / 4], (banyan_scatter)scatter, 16 * p, p, 16);
      request.cost.ranks_per_core = 2;
      uint64_t row = 8 + 4 * 16, payload = (uint64_t)(16 * p * p) * row, all = 0;
      uint64_t down[] = {payload * (uint64_t)(p - 1), 0, payload / (uint64_t)p * (uint64_t)(p - 1),
                         payload / (uint64_t)p * (uint64_t)(p - 1)};
      bny_plan **plans = plans_make(&request);
      for (int32_t rank = 0; rank < p; rank++) all += plan_bytes_sent(plans[rank]);
      plans_free(&request, plans);
      ck_assert_msg(all == payload * (uint64_t)(p - 1) + down[scatter], "%s: all send %llu", request_text(&request),
                    (unsigned long long)all);
    }
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static bool ranges_overlap(int32_t a, int32_t of_a, int32_t b, int32_t of_b) {
  return of_a > 0 && of_b > 0 && a < b + of_b && b < a + of_a;
}

static bool overlap(const bny_slice *a, const bny_slice *b) {
  return ranges_overlap(a->token0, a->tokens, b->token0, b->tokens) &&
         ranges_overlap(a->head0, a->heads, b->head0, b->heads);
}

TEST(test_pieces) {
  uint64_t random = 5;
  for (int round = 0; round < 300; round++) {
    int32_t p = 1 + random_below(&random, 40);
    bny_request request = combine_of(p, NULL, (banyan_scatter)random_below(&random, 4), 0, 0, 1);
    random_shape(&random, &request);
    if (request.call.scatter == BANYAN_SCATTER_ROOT) request.call.scatter = BANYAN_SCATTER_NONE;
    bny_slice whole = bny_slice_whole(&request), largest = bny_slice_piece_largest(&request, p);
    int64_t rows = 0;
    for (int32_t i = 0; i < p; i++) {
      bny_slice piece = bny_slice_piece(&request, p, i);
      rows += bny_slice_rows(&piece);
      ck_assert(bny_slice_within(&piece, &whole) && bny_slice_rows(&piece) <= bny_slice_rows(&largest));
      for (int32_t k = 0; k < i; k++) {
        bny_slice other = bny_slice_piece(&request, p, k);
        ck_assert(!overlap(&piece, &other));
      }
    }
    ck_assert_int_eq(rows, bny_slice_rows(&whole));
    rows = 0;
    for (int32_t position = 0; position < 16; position++) {
      bny_slice box = bny_slice_halved(&request, 4, position, position + 1);
      bny_slice half = bny_slice_halved(&request, 4, position / 8 * 8, position / 8 * 8 + 8);
      ck_assert(bny_slice_within(&box, &half));
      rows += bny_slice_rows(&box);
    }
    ck_assert_int_eq(rows, bny_slice_rows(&whole));
  }
  int32_t next = 0;
  for (int32_t i = 0; i < 7; i++) {
    int32_t first, number;
    bny_slice_split(17, 7, i, &first, &number);
    ck_assert_int_eq(first, next);
    ck_assert_int_eq(number, i < 3 ? 3 : 2);
    next = first + number;
  }
}

/* ---- text, hash, rejections -------------------------------------------------------------------------------------- */

TEST(test_print) {
  static const char expected[] = "combine of rank 1 of 3 by oneshot, f32 wire: 1 slots, 576 bytes of outbox\n"
                                 "  0 copy    tokens 0+2 heads 0+4 to slot 0 (576 bytes at 0)\n"
                                 "  1 send    slot 0 to ranks 2, 0\n"
                                 "  2 wait    rank 0 slot 0 (tokens 0+2 heads 0+4, 576 bytes at 0)\n"
                                 "  3 wait    rank 2 slot 0 (tokens 0+2 heads 0+4, 576 bytes at 0)\n"
                                 "  4 deliver tokens 0+2 heads 0+4 from rank 0 slot 0, slot 0, rank 2 slot 0\n";
  bny_request request = combine_of(3, "oneshot", BANYAN_SCATTER_NONE, 2, 4, 16);
  bny_plan *plan = NULL;
  char text[1024], brief[20];
  ck_assert_int_eq(bny_plan_make(&request, 1, &plan), BANYAN_OK);
  ck_assert_uint_eq(bny_plan_print(plan, text, sizeof text), strlen(expected));
  ck_assert_str_eq(text, expected);
  ck_assert_uint_eq(bny_plan_print(plan, brief, sizeof brief), strlen(expected));
  ck_assert_uint_eq(strlen(brief), sizeof brief - 1);
  ck_assert_uint_eq(bny_plan_print(plan, NULL, 0), strlen(expected));
  bny_plan_free(plan);
}

TEST(test_rejected) {
  bny_plan *plan = NULL;
  bny_request good = combine_of(3, NULL, BANYAN_SCATTER_ROOT, 8, 8, 16), request = good;
#define REJECTED(statement)                                                 \
  request = good;                                                           \
  statement;                                                                \
  ck_assert_int_eq(bny_plan_make(&request, 0, &plan), BANYAN_ERR_ARGUMENT); \
  ck_assert_ptr_null(plan);
  REJECTED(request.nranks = 0)
  REJECTED(request.call.root = 3)
  REJECTED(request.call.root = -1)
  REJECTED(request.tokens = -1)
  REJECTED(request.token0 = 1)
  REJECTED(request.head0 = -1)
  REJECTED(request.heads = 9)
  REJECTED(request.call.value_dim = -1)
  REJECTED(request.call.wire = BNY_WIRE_COUNT)
  REJECTED(request.call.scatter = (banyan_scatter)9)
  REJECTED(request.call.collective = (bny_collective)9)
  REJECTED(request.call.collective = BNY_ALLGATHER)
  REJECTED(request.call.collective = BNY_ALLGATHER_HEADS)
  REJECTED(request.call.collective = BNY_BROADCAST; request.call.root = 5)
  REJECTED(request.call.collective = BNY_SHIFT; request.call.distance = 3)
#undef REJECTED
  ck_assert_int_eq(bny_plan_make(&good, 3, &plan), BANYAN_ERR_ARGUMENT);
  ck_assert_int_eq(bny_plan_make(&good, -1, &plan), BANYAN_ERR_ARGUMENT);
  request = combine_of(2, NULL, BANYAN_SCATTER_NONE, INT32_MAX, INT32_MAX, INT32_MAX);
  ck_assert_int_eq(bny_plan_make(&request, 0, &plan), BANYAN_ERR_MEMORY);
  ck_assert_ptr_null(plan);
}

/* A rank's plan does not depend on the rank that computes it, nor on the time. */
TEST(test_same_again) {
  static char first[1 << 18], second[1 << 18];
  for (int variant = 0; variant < VARIANTS; variant++) {
    bny_request request = combine_of(13, variants[variant], BANYAN_SCATTER_NONE, 3, 20, 8);
    request.call.order = BANYAN_ORDER_CANONICAL;
    if (algorithm_named(variants[variant])->reject(&request)) request.call.order = BANYAN_ORDER_PLAN;
    for (int32_t rank = 0; rank < 13; rank += 4) {
      bny_plan *one = NULL, *two = NULL;
      ck_assert_int_eq(bny_plan_make(&request, rank, &one), BANYAN_OK);
      ck_assert_int_eq(bny_plan_make(&request, rank, &two), BANYAN_OK);
      bny_plan_print(one, first, sizeof first);
      bny_plan_print(two, second, sizeof second);
      ck_assert_str_eq(first, second);
      ck_assert_uint_eq(one->hash, two->hash);
      bny_plan_free(one);
      bny_plan_free(two);
    }
  }
  bny_plan_free(NULL);
}

int main(void) { return suite_main(suite_of("plan", 120)); }
