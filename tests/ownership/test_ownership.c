/* SPDX-License-Identifier: Apache-2.0
 * Ownership of keys: rules against a table built token by token, and moves against the minimum that balanced shares
 * need. */
#include "banyan.h"
#include "tests/support/random.h"

enum { RANKS = 9, TOKENS = 3000, WEIGHT_MOST = 5 };

static void good(banyan_status status) {
  ck_assert_msg(status == BANYAN_OK, "%s: %s", banyan_status_string(status), banyan_last_error());
}

static void rejected(banyan_status status, const char *text) {
  ck_assert_msg(status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), text), "%s, not %s", banyan_last_error(),
                text);
}

/* Writes random weights, some of them 0, and returns their sum. */
static int64_t random_weights(int32_t nranks, int32_t most, int32_t *weights) {
  int64_t total = 0;
  for (int32_t r = 0; r < nranks; r++) total += weights[r] = random_int(0, 3) ? random_int(1, most) : 0;
  if (total > 0) return total;
  return weights[nranks - 1] = 1;
}

/* The owner of each token, listed one by one. */
static void list_owners(const banyan_ownership *rule, const int32_t *weights, int32_t *owners) {
  int64_t total = 0, block = rule->block ? rule->block : 1, divisor = 1;
  for (int32_t r = 0; r < rule->nranks; r++) total += weights[r];
  for (int64_t d = 1; d <= total; d++) {
    bool divides = true;
    for (int32_t r = 0; r < rule->nranks; r++) divides = divides && weights[r] % d == 0;
    if (divides) divisor = d;
  }
  for (int64_t t = 0; t < TOKENS && rule->kind == BANYAN_OWNERSHIP_BLOCKS; t++) {
    int64_t step = t / block % (total / divisor);
    for (owners[t] = 0; step >= weights[owners[t]] / divisor; owners[t]++) step -= weights[owners[t]] / divisor;
  }
  if (rule->kind == BANYAN_OWNERSHIP_BLOCKS) return;
  int64_t blocks = (rule->tokens + block - 1) / block;
  for (int64_t t = 0; t < TOKENS; t++) {
    int64_t before = 0;
    for (owners[t] = 0; owners[t] < rule->nranks; owners[t]++) {
      before += weights[owners[t]];
      if (t / block < blocks * before / total) break;
    }
  }
}

static void check_rule(const banyan_ownership *rule, const int32_t *weights, int64_t length) {
  static int32_t owners[TOKENS];
  int64_t have[RANKS] = {0}, keys;
  list_owners(rule, weights, owners);
  for (int64_t t = 0; t < length; t++) {
    int32_t rank;
    int64_t place, token;
    good(banyan_ownership_of_token(rule, t, &rank, &place));
    ck_assert_msg(rank == owners[t] && place == have[rank], "token %ld: rank %d place %ld, expected %d, %ld", (long)t,
                  rank, (long)place, owners[t], (long)have[owners[t]]);
    have[rank]++;
    good(banyan_ownership_token(rule, rank, place, &token));
    ck_assert(token == t);
  }
  int64_t tokens[RANKS], places[RANKS], place;
  int32_t ranks[RANKS], rank; /* in any order */
  for (int32_t i = 0; i < RANKS && length > 0; i++) tokens[i] = (i * INT64_C(7919) + length / 2) % length;
  good(banyan_ownership_of_tokens(rule, length > 0 ? RANKS : 0, tokens, ranks, places));
  for (int32_t i = 0; i < RANKS && length > 0; i++) {
    good(banyan_ownership_of_token(rule, tokens[i], &rank, &place));
    ck_assert(ranks[i] == rank && places[i] == place);
  }
  for (int32_t r = 0; r < rule->nranks; r++) {
    good(banyan_ownership_keys(rule, r, length, &keys));
    ck_assert_msg(keys == have[r], "rank %d has %ld keys of %ld, expected %ld", r, (long)keys, (long)length,
                  (long)have[r]);
  }
}

TEST_LOOP(rules_agree_with_a_list_of_all_tokens, 60) {
  state += (uint64_t)_i;
  int32_t weights[RANKS];
  banyan_ownership rule = BANYAN_OWNERSHIP_INIT;
  rule.kind = _i % 2 ? BANYAN_OWNERSHIP_RANGES : BANYAN_OWNERSHIP_BLOCKS;
  rule.nranks = random_int(1, RANKS);
  rule.block = random_int(0, 70);
  rule.tokens = _i % 2 ? random_int(0, TOKENS) : 0;
  bool alike = _i % 3 == 0;
  if (alike)
    for (int32_t r = 0; r < rule.nranks; r++) weights[r] = 1;
  else
    random_weights(rule.nranks, 9, weights);
  rule.weights = alike ? NULL : weights;
  for (int i = 0; i < 4; i++) check_rule(&rule, weights, random_int(0, _i % 2 ? (int)rule.tokens : TOKENS));
}

/* The positions that attention derives from a rank's queries are the tokens of the ownership rule. */
TEST_LOOP(queries_have_the_positions_of_the_rule, 40) {
  state += (uint64_t)_i;
  int32_t weights[RANKS], start;
  banyan_ownership rule = BANYAN_OWNERSHIP_INIT;
  rule.kind = _i % 2 ? BANYAN_OWNERSHIP_RANGES : BANYAN_OWNERSHIP_BLOCKS;
  rule.nranks = random_int(1, RANKS);
  rule.block = random_int(1, 20);
  rule.tokens = _i % 2 ? TOKENS : 0;
  rule.weights = weights;
  random_weights(rule.nranks, WEIGHT_MOST, weights);
  for (int32_t r = 0; r < rule.nranks; r++) {
    banyan_queries queries = BANYAN_QUERIES_INIT;
    int64_t keys, token;
    good(banyan_ownership_queries(&rule, r, &queries, &start));
    good(banyan_ownership_keys(&rule, r, TOKENS, &keys));
    for (int64_t t = 0; t < keys; t++) {
      good(banyan_ownership_token(&rule, r, t, &token));
      int64_t block = queries.key_block;
      int64_t position = block ? start + t / block * queries.key_stride + t % block : start + t;
      ck_assert_msg(position == token, "key %ld of rank %d: position %ld, token %ld", (long)t, r, (long)position,
                    (long)token);
    }
  }
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

TEST_LOOP(moves_are_of_tokens_whose_owner_changes, 200) {
  state += (uint64_t)_i;
  int32_t weights[2][RANKS], lengths = 0;
  banyan_ownership rules[2];
  for (int i = 0; i < 2; i++) {
    bool ranges = random_int(0, 1);
    rules[i] = (banyan_ownership){sizeof rules[i],      ranges ? BANYAN_OWNERSHIP_RANGES : BANYAN_OWNERSHIP_BLOCKS,
                                  random_int(1, RANKS), random_int(0, 40),
                                  ranges ? TOKENS : 0,  weights[i]};
    random_weights(rules[i].nranks, WEIGHT_MOST, weights[i]);
  }
  int64_t length = random_int(0, TOKENS), next = 0, token = 0;
  banyan_token_move moves[7], last = {-1, -1, -1, -1};
  for (bool done = false; !done; lengths++) {
    int32_t count = random_int(1, 7), had = count;
    good(banyan_ownership_moves(&rules[0], &rules[1], length, &next, moves, &count));
    done = next == length;
    ck_assert(count <= had && (done || count == had));
    for (int32_t i = 0; i <= count; i++) {
      int64_t first = i < count ? moves[i].first : next, end = i < count ? moves[i].end : next;
      ck_assert(first >= token && end <= length && (i == count || end > first));
      for (; token < end; token++) {
        int32_t ranks[2];
        int64_t place;
        for (int k = 0; k < 2; k++) good(banyan_ownership_of_token(&rules[k], token, &ranks[k], &place));
        if (token < first)
          ck_assert_msg(ranks[0] == ranks[1], "token %ld stays where it is", (long)token);
        else
          ck_assert_msg(ranks[0] == moves[i].from && ranks[1] == moves[i].to && ranks[0] != ranks[1],
                        "token %ld moves from %d to %d", (long)token, ranks[0], ranks[1]);
      }
      if (i == count) break;
      ck_assert_msg(i == 0 || last.end < first || last.from != moves[i].from || last.to != moves[i].to,
                    "moves %d and %d are one", i - 1, i);
      last = moves[i];
    }
  }
  rejected(banyan_ownership_moves(&rules[0], &rules[1], length, &(int64_t){-1}, moves, &lengths), "next is -1");
}

/* Returns at once, although the layouts have very many tokens. */
TEST(equal_layouts_have_no_moves) {
  const int64_t length = (int64_t)1 << 40;
  int32_t weights[] = {2, 4}, count = 1;
  int64_t next = 0;
  banyan_token_move move;
  banyan_ownership rules[] = {{sizeof rules[0], BANYAN_OWNERSHIP_BLOCKS, 2, 2, 0, weights},
                              {sizeof rules[0], BANYAN_OWNERSHIP_BLOCKS, 2, 2, 0, (int32_t[]){1, 2}}};
  good(banyan_ownership_moves(&rules[0], &rules[1], length, &next, &move, &count));
  ck_assert(count == 0 && next == length);
  rules[0].weights = (int32_t[]){0, 3}, rules[1].weights = (int32_t[]){0, 1}, rules[1].block = 5, next = 0, count = 1;
  good(banyan_ownership_moves(&rules[0], &rules[1], length, &next, &move, &count));
  ck_assert(count == 0 && next == length);
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static void expect_within(const int64_t *pages, const int32_t *weights, int32_t nranks, double most, const char *what) {
  int64_t count = 0, total = 0;
  for (int32_t r = 0; r < nranks; r++) count += pages[r], total += weights[r];
  for (int32_t r = 0; r < nranks; r++) {
    double share = (double)count * weights[r] / (double)total;
    ck_assert_msg((double)pages[r] - share < most && share - (double)pages[r] < most,
                  "%s: rank %d of weight %d has %ld of %ld pages, its share is %.3f", what, r, weights[r],
                  (long)pages[r], (long)count, share);
  }
}

/* ---- moves ------------------------------------------------------------------------------------------------------- */

/* The minimum number of moved pages over all ways to round shares. A rank with too many pages keeps its share rounded
 * up, as long as there are enough pages. */
static int64_t least_moved(const int64_t *pages, const int32_t *weights, int32_t nranks, int64_t total) {
  int64_t count = 0, best = INT64_MAX;
  for (int32_t r = 0; r < nranks; r++) count += pages[r];
  for (uint32_t up = 0; up < 1u << nranks; up++) {
    int64_t sum = 0, moved = 0;
    bool allowed = true;
    for (int32_t r = 0; r < nranks; r++) {
      int64_t target = count * weights[r] / total;
      if (up >> r & 1) {
        allowed &= count * weights[r] % total != 0;
        target++;
      }
      sum += target;
      if (pages[r] > target) moved += pages[r] - target;
    }
    if (allowed && sum == count && moved < best) best = moved;
  }
  return best;
}

TEST_LOOP(moves_make_shares_even_and_are_the_fewest, 200) {
  state += (uint64_t)_i;
  int32_t nranks = random_int(1, RANKS), weights[RANKS], count = -1;
  int64_t pages[RANKS], total = random_weights(nranks, _i % 2 ? 1 : 6, weights), moved = 0;
  for (int32_t r = 0; r < nranks; r++) pages[r] = random_int(0, 3) ? random_int(0, 40) : 0;
  int64_t least = least_moved(pages, weights, nranks, total);
  banyan_page_move moves[RANKS];
  good(banyan_page_moves(nranks, weights, pages, NULL, moves, &count));
  ck_assert(count >= 0 && count < nranks);
  for (int32_t i = 0; i < count; i++) {
    ck_assert(moves[i].pages > 0 && moves[i].from != moves[i].to);
    pages[moves[i].from] -= moves[i].pages;
    pages[moves[i].to] += moves[i].pages;
    moved += moves[i].pages;
    ck_assert(pages[moves[i].from] >= 0);
  }
  expect_within(pages, weights, nranks, 1, "after the moves");
  ck_assert_msg(moved == least, "%ld pages are moved, %ld are enough", (long)moved, (long)least);
}

static void move_pages(const int32_t *weights, int64_t *of, const int64_t *of_moved) {
  banyan_page_move moves[3];
  int32_t count = -1;
  good(banyan_page_moves(3, weights, of, of_moved, moves, &count));
  for (int32_t i = 0; i < count; i++) {
    of[moves[i].from] -= moves[i].pages;
    of[moves[i].to] += moves[i].pages;
  }
  expect_within(of, weights, 3, 1, "a sequence that was moved");
}

/* Each sequence is moved separately, and all sequences together come close to their shares. */
TEST_LOOP(sequences_that_move_load_all_ranks, 24) {
  state += (uint64_t)_i;
  int32_t weights[3] = {random_int(0, 3), random_int(1, 3), random_int(0, 3)};
  int64_t all[3] = {0};
  for (int s = 0; s < 60; s++) {
    int64_t of[3] = {random_int(0, 9), random_int(0, 9), random_int(0, 9)};
    move_pages(weights, of, all);
    for (int32_t r = 0; r < 3; r++) all[r] += of[r];
  }
  expect_within(all, weights, 3, 6, "all that were moved");
}

/* Sequences of one page on a rank that leaves, and on two ranks that a third one joins. Without of_moved they would all
 * go to the same rank. */
TEST_LOOP(short_sequences_are_spread, 2) {
  const int32_t weights[] = {1, 1, _i};
  int64_t moved[3] = {0};
  for (int s = 0; s < 100 - _i; s++) {
    int64_t of[3] = {_i && s % 2 == 0, _i && s % 2 == 1, !_i};
    move_pages(weights, of, moved);
    for (int32_t r = 0; r < 3; r++) moved[r] += of[r];
  }
  if (_i == 0)
    ck_assert_msg(moved[0] == 50 && moved[1] == 50, "%ld and %ld pages", (long)moved[0], (long)moved[1]);
  else
    expect_within(moved, weights, 3, 2, "all");
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

TEST(wrong_rules_are_rejected_by_name) {
  int32_t rank, negative[] = {1, -1}, none[] = {0, 0}, many[] = {1 << 20, 1};
  int64_t place;
  banyan_ownership rule = BANYAN_OWNERSHIP_INIT;
  rule.nranks = 2;
  rejected(banyan_ownership_of_token(&rule, 0, &rank, &place), "kind is 0");
  rule.kind = BANYAN_OWNERSHIP_RANGES;
  rule.tokens = 10;
  rejected(banyan_ownership_of_token(&rule, 10, &rank, &place), "token is 10, and ownership.tokens is 10");
  rejected(banyan_ownership_of_token(&rule, -1, &rank, &place), "token is -1");
  rejected(banyan_ownership_of_tokens(&rule, 2, (int64_t[]){9, 10}, (int32_t[2]){0}, (int64_t[2]){0}), "token is 10");
  rejected(banyan_ownership_keys(&rule, 2, 3, &place), "rank is 2");
  rejected(banyan_ownership_keys(&rule, 0, 11, &place), "length is 11");
  rejected(banyan_ownership_token(&rule, 1, 5, &place), "position is 5");
  rule.weights = negative;
  rejected(banyan_ownership_keys(&rule, 0, 1, &place), "weights[1] is -1");
  rule.weights = none;
  rejected(banyan_ownership_keys(&rule, 0, 1, &place), "add up to 0");
  rule.weights = many;
  rejected(banyan_ownership_keys(&rule, 0, 1, &place), "add up to 1048577");
  rule.weights = NULL;
  rule.kind = BANYAN_OWNERSHIP_BLOCKS;
  rejected(banyan_ownership_keys(&rule, 0, 1, &place), "tokens is 10");
  rule.tokens = 0;
  rule.block = -4;
  rejected(banyan_ownership_keys(&rule, 0, 1, &place), "block is -4");
  rule.block = 0;
  rule.nranks = 0;
  rejected(banyan_ownership_keys(&rule, 0, 1, &place), "nranks is 0");
}

TEST(wrong_pages_are_rejected_by_name) {
  int64_t pages[] = {1, -5}, moved[] = {1, 5}, many[] = {(int64_t)1 << 39, (int64_t)1 << 39};
  int32_t out;
  banyan_page_move moves[2];
  rejected(banyan_page_moves(2, NULL, pages, NULL, moves, &out), "pages[1] is -5");
  rejected(banyan_page_moves(2, NULL, moved, many, moves, &out), "of_moved add up to 2^40");
  rejected(banyan_page_moves(0, NULL, pages, NULL, moves, &out), "nranks is 0");
}

int main(void) {
  random_begin();
  return suite_main(suite_of("ownership", 60));
}
