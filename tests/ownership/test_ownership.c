/* SPDX-License-Identifier: Apache-2.0
 * Ownership of keys: rules against a table built token by token, pages over traces of sequences that grow, end and are
 * preempted, and moves against the minimum that balanced shares need. */
#include "banyan.h"
#include "tests/support/random.h"

enum { RANKS = 9, TOKENS = 3000, WEIGHT_MOST = 5 };

static void good(banyan_status status) {
  EXPECT_MSG(status == BANYAN_OK, "%s: %s", banyan_status_string(status), banyan_last_error());
}

static void rejected(banyan_status status, const char *text) {
  EXPECT_MSG(status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), text), "%s, not %s", banyan_last_error(),
             text);
}

/* Writes random weights, some of them 0, and returns their sum. */
static int64_t random_weights(int32_t nranks, int32_t most, int32_t *weights) {
  int64_t total = 0;
  for (int32_t r = 0; r < nranks; r++) total += weights[r] = random_int(0, 3) ? random_int(1, most) : 0;
  if (total > 0) return total;
  return weights[nranks - 1] = 1;
}

/* The owner of each token of RANGES, listed one by one. */
static void list_owners(const banyan_ownership *rule, const int32_t *weights, int32_t *owners) {
  int64_t total = 0, block = rule->block ? rule->block : 1;
  for (int32_t r = 0; r < rule->nranks; r++) total += weights[r];
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
  bool ranges = rule->kind == BANYAN_OWNERSHIP_RANGES;
  if (ranges) list_owners(rule, weights, owners);
  for (int64_t t = 0; t < length; t++) {
    int32_t rank;
    int64_t place, token;
    good(banyan_ownership_of_token(rule, t, &rank, &place));
    if (!ranges) owners[t] = rank;
    EXPECT_MSG(rank == owners[t] && place == have[rank], "token %ld: rank %d place %ld, expected %d, %ld", (long)t,
               rank, (long)place, owners[t], (long)have[owners[t]]);
    have[rank]++;
    good(banyan_ownership_token(rule, rank, place, &token));
    EXPECT(token == t);
  }
  int64_t tokens[RANKS], places[RANKS], place;
  int32_t ranks[RANKS], rank; /* in any order */
  for (int32_t i = 0; i < RANKS && length > 0; i++) tokens[i] = (i * INT64_C(7919) + length / 2) % length;
  good(banyan_ownership_of_tokens(rule, length > 0 ? RANKS : 0, tokens, ranks, places));
  for (int32_t i = 0; i < RANKS && length > 0; i++) {
    good(banyan_ownership_of_token(rule, tokens[i], &rank, &place));
    EXPECT(ranks[i] == rank && places[i] == place);
  }
  for (int32_t r = 0; r < rule->nranks; r++) {
    good(banyan_ownership_keys(rule, r, length, &keys));
    EXPECT_MSG(keys == have[r], "rank %d has %ld keys of %ld, expected %ld", r, (long)keys, (long)length,
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
    int32_t pattern[WEIGHT_MOST + 1];
    banyan_queries queries = BANYAN_QUERIES_INIT, none = BANYAN_QUERIES_INIT, less;
    int64_t keys, token;
    pattern[weights[r]] = -7;
    queries.key_pattern = pattern, queries.key_pattern_len = weights[r];
    good(banyan_ownership_queries(&rule, r, &queries, &start));
    EXPECT(pattern[weights[r]] == -7);
    banyan_status status = banyan_ownership_queries(&rule, r, &none, &start);
    int64_t blocks = queries.key_pattern_len;
    EXPECT(blocks == 0 ? status == BANYAN_OK : status == BANYAN_ERR_UNSUPPORTED && none.key_stride == 0);
    less = queries, less.key_pattern_len--;
    if (blocks > 1) rejected(banyan_ownership_queries(&rule, r, &less, &start), "queries.key_pattern_len is");
    good(banyan_ownership_keys(&rule, r, TOKENS, &keys));
    for (int64_t t = 0; t < keys; t++) {
      good(banyan_ownership_token(&rule, r, t, &token));
      int64_t block = queries.key_block;
      int64_t position = block ? start + t / block * queries.key_stride + t % block : start + t;
      if (blocks > 0)
        position = start + t / block / blocks * queries.key_stride + pattern[t / block % blocks] * block + t % block;
      EXPECT_MSG(position == token, "key %ld of rank %d: position %ld, token %ld", (long)t, r, (long)position,
                 (long)token);
    }
  }
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

/* Draws from few small rules, so that different rules often give the same owners. */
static banyan_ownership random_rule(int32_t *weights) {
  banyan_ownership rule = BANYAN_OWNERSHIP_INIT;
  rule.kind = random_int(0, 1) ? BANYAN_OWNERSHIP_RANGES : BANYAN_OWNERSHIP_BLOCKS;
  rule.nranks = random_int(1, 3);
  rule.block = random_int(0, 3);
  rule.tokens = rule.kind == BANYAN_OWNERSHIP_RANGES ? random_int(6, 9) : 0;
  random_weights(rule.nranks, 3, weights);
  if (random_int(0, 2)) rule.weights = weights;
  return rule;
}

/* Two rules with periods up to 27 tokens that agree on this many tokens agree on all. */
enum { NAME_BYTES = 64, AGREE_TOKENS = 200 };

static bool same_owners(const banyan_ownership *a, const banyan_ownership *b) {
  if (a->kind != b->kind || a->nranks != b->nranks || a->tokens != b->tokens) return false;
  for (int64_t t = 0; t < (a->tokens ? a->tokens : AGREE_TOKENS); t++) {
    int32_t rank_a, rank_b;
    int64_t place;
    good(banyan_ownership_of_token(a, t, &rank_a, &place));
    good(banyan_ownership_of_token(b, t, &rank_b, &place));
    if (rank_a != rank_b) return false;
  }
  return true;
}

TEST(rules_with_the_same_owners_have_the_same_name) {
  int equal = 0;
  for (int i = 0; i < 40000; i++) {
    int32_t weights_a[3], weights_b[3];
    char a[NAME_BYTES], b[NAME_BYTES], little[4];
    uint64_t hash_a, hash_b;
    banyan_ownership rule_a = random_rule(weights_a), rule_b = random_rule(weights_b);
    good(banyan_ownership_name(&rule_a, a, sizeof a, &hash_a));
    good(banyan_ownership_name(&rule_b, b, sizeof b, &hash_b));
    bool same = same_owners(&rule_a, &rule_b);
    equal += same;
    EXPECT_MSG((strcmp(a, b) == 0) == same && (hash_a == hash_b) == same, "%s, %s: %s owners", a, b,
               same ? "the same" : "other");
    little[0] = '-';
    rejected(banyan_ownership_name(&rule_a, little, sizeof little, NULL), "the name needs");
    ck_assert_int_eq(little[0], '-');
  }
  EXPECT_MSG(equal > 500, "%d pairs are equal", equal);
}

TEST(names_are_as_documented) {
  int32_t twos[3] = {4, 2, 2}, odd[2] = {1, 5};
  char name[NAME_BYTES];
  banyan_ownership rule = {sizeof rule, BANYAN_OWNERSHIP_BLOCKS, 8, 16, 0, NULL};
  good(banyan_ownership_name(&rule, name, sizeof name, NULL));
  EXPECT_MSG(strcmp(name, "blocks:16/8ranks") == 0, "%s", name);
  rule.nranks = 3, rule.weights = twos;
  good(banyan_ownership_name(&rule, name, sizeof name, NULL));
  EXPECT_MSG(strcmp(name, "blocks:16/3ranks:2,1,1") == 0, "%s", name);
  rule = (banyan_ownership){sizeof rule, BANYAN_OWNERSHIP_RANGES, 8, 512, 4096, NULL};
  good(banyan_ownership_name(&rule, name, sizeof name, NULL));
  EXPECT_MSG(strcmp(name, "ranges:4096/8ranks") == 0, "%s", name);
  rule.nranks = 2, rule.block = 96, rule.weights = odd;
  good(banyan_ownership_name(&rule, name, sizeof name, NULL));
  EXPECT_MSG(strcmp(name, "ranges:672,4096/2ranks") == 0, "%s", name);
}

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
    EXPECT(count <= had && (done || count == had));
    for (int32_t i = 0; i <= count; i++) {
      int64_t first = i < count ? moves[i].first : next, end = i < count ? moves[i].end : next;
      EXPECT(first >= token && end <= length && (i == count || end > first));
      for (; token < end; token++) {
        int32_t ranks[2];
        int64_t place;
        for (int k = 0; k < 2; k++) good(banyan_ownership_of_token(&rules[k], token, &ranks[k], &place));
        if (token < first)
          EXPECT_MSG(ranks[0] == ranks[1], "token %ld stays where it is", (long)token);
        else
          EXPECT_MSG(ranks[0] == moves[i].from && ranks[1] == moves[i].to && ranks[0] != ranks[1],
                     "token %ld moves from %d to %d", (long)token, ranks[0], ranks[1]);
      }
      if (i == count) break;
      EXPECT_MSG(i == 0 || last.end < first || last.from != moves[i].from || last.to != moves[i].to,
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
  EXPECT(count == 0 && next == length);
}

TEST_LOOP(the_least_read_page_goes_down, 200) {
  state += (uint64_t)_i;
  uint64_t reads[60];
  int64_t pages = random_int(0, 60), keep = random_int(0, 20), page;
  for (int64_t i = 0; i < pages; i++) reads[i] = (uint64_t)random_int(0, 5);
  good(banyan_tier_next(pages, reads, keep, &page));
  EXPECT((page == -1) == (pages <= keep) && page < (pages > keep ? pages - keep : 0));
  for (int64_t i = 0; i < pages - keep; i++) EXPECT(i < page ? reads[i] > reads[page] : reads[i] >= reads[page]);
  good(banyan_tier_next(pages, NULL, keep, &page));
  EXPECT(page == (pages > keep ? 0 : -1));
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

enum { SEQUENCES = 24, STEPS = 3000 };

/* A sequence placed page by page lies within one page of its shares. All sequences of a trace together lie within 6, a
 * quarter of the sum of their bounds. */
enum { ALL_WITHIN = 6 };

static void expect_within(const int64_t *pages, const int32_t *weights, int32_t nranks, double most, const char *what) {
  int64_t count = 0, total = 0;
  for (int32_t r = 0; r < nranks; r++) count += pages[r], total += weights[r];
  for (int32_t r = 0; r < nranks; r++) {
    double share = (double)count * weights[r] / (double)total;
    EXPECT_MSG((double)pages[r] - share < most && share - (double)pages[r] < most,
               "%s: rank %d of weight %d has %ld of %ld pages, its share is %.3f", what, r, weights[r], (long)pages[r],
               (long)count, share);
  }
}

static void expect_even(const int64_t *pages, const int32_t *weights, int32_t nranks, const char *what) {
  expect_within(pages, weights, nranks, 1, what);
}

/* After any number of blocks, each rank is within one block of its share, and a block has one owner. */
TEST_LOOP(blocks_lie_within_one_of_their_shares, 60) {
  static const int32_t fixed[][3] = {{141, 80, 0}, {3, 2, 0}, {200, 100, 1}, {5, 5, 1}, {7, 0, 7}, {60, 61, 59}};
  state += (uint64_t)_i;
  bool is_fixed = _i < (int)(sizeof fixed / sizeof fixed[0]);
  int32_t weights[RANKS], nranks = is_fixed ? 3 : random_int(1, RANKS);
  if (is_fixed)
    memcpy(weights, fixed[_i], sizeof fixed[_i]);
  else
    random_weights(nranks, _i % 2 ? 6 : 90, weights);
  banyan_ownership rule = BANYAN_OWNERSHIP_INIT;
  rule.kind = BANYAN_OWNERSHIP_BLOCKS;
  rule.nranks = nranks;
  rule.weights = weights;
  int64_t have[RANKS] = {0}, first = random_int(0, 1) ? INT64_C(1) << 31 : 0;
  for (int32_t r = 0; r < nranks; r++) good(banyan_ownership_keys(&rule, r, first, &have[r]));
  for (int64_t t = first; t < first + 500; t++) {
    int32_t rank;
    int64_t place;
    good(banyan_ownership_of_token(&rule, t, &rank, &place));
    EXPECT(place == have[rank]);
    have[rank]++;
    expect_even(have, weights, nranks, "blocks");
  }
}

/* Weights with long rounds. */
TEST(long_rounds) {
  static const int32_t cases[][3] = {{80000, 40001, 0}, {400001, 300007, 200003}};
  for (int i = 0; i < 2; i++) {
    banyan_ownership rule = BANYAN_OWNERSHIP_INIT;
    rule.kind = BANYAN_OWNERSHIP_BLOCKS;
    rule.nranks = 3;
    rule.weights = cases[i];
    for (int64_t length = 1; length < INT64_C(1) << 40; length = length * 7 + 3) {
      int64_t have[3], place, token;
      int32_t rank;
      for (int32_t r = 0; r < 3; r++) good(banyan_ownership_keys(&rule, r, length, &have[r]));
      expect_even(have, cases[i], 3, "a long round");
      good(banyan_ownership_of_token(&rule, length, &rank, &place));
      EXPECT(place == have[rank]);
      good(banyan_ownership_token(&rule, rank, place, &token));
      EXPECT(token == length);
    }
  }
}

/* Sequences that grow page by page. Some end, and some are preempted and return with all their pages. */
typedef struct trace {
  int32_t nranks, weights[RANKS];
  int64_t all[RANKS], of[SEQUENCES][RANKS], parked[SEQUENCES];
} trace;

static void end_sequence(trace *t, int s, bool comes_back) {
  for (int32_t r = 0; r < t->nranks; r++) {
    if (comes_back) t->parked[s] += t->of[s][r];
    t->all[r] -= t->of[s][r];
    t->of[s][r] = 0;
  }
  if (!comes_back) t->parked[s] = 0;
}

/* `most` bounds the distance of a sequence from its shares, in pages. */
static void run_trace(trace *t, int steps, double most) {
  for (int step = 0; step < steps; step++) {
    int s = random_int(0, SEQUENCES - 1), event = random_int(0, 99);
    if (event < 8) {
      end_sequence(t, s, event < 4);
      continue;
    }
    int64_t wanted = t->parked[s] > 0 ? t->parked[s] : 1;
    for (t->parked[s] = 0; wanted > 0; wanted--) {
      int32_t rank = -1;
      good(banyan_next_page(t->nranks, t->weights, t->of[s], t->all, &rank));
      EXPECT(rank >= 0 && rank < t->nranks && t->weights[rank] > 0);
      t->of[s][rank]++;
      t->all[rank]++;
      expect_within(t->of[s], t->weights, t->nranks, most, "a sequence");
      expect_within(t->all, t->weights, t->nranks, ALL_WITHIN, "all");
    }
  }
}

static int weight_most(int trial) { return trial % 4 == 0 ? 1 : trial % 4 == 1 ? 3 : 1000; }

TEST_LOOP(every_sequence_stays_even_over_a_trace, 24) {
  state += (uint64_t)_i;
  trace t = {.nranks = random_int(1, RANKS)};
  random_weights(t.nranks, weight_most(_i), t.weights);
  run_trace(&t, STEPS, 1);
}

/* Short sequences would all begin on the first or heaviest rank if the total load were ignored. */
TEST_LOOP(short_sequences_load_all_ranks, 12) {
  state += (uint64_t)_i;
  int32_t nranks = random_int(2, RANKS), weights[RANKS];
  int64_t all[RANKS] = {0}, total = random_weights(nranks, 4, weights), count = 0;
  for (int s = 0; s < 400; s++) {
    int64_t of[RANKS] = {0};
    for (int page = random_int(1, 2); page > 0; page--, count++) {
      int32_t rank = -1;
      good(banyan_next_page(nranks, weights, of, all, &rank));
      of[rank]++;
      all[rank]++;
    }
  }
  for (int32_t r = 0; r < nranks; r++) {
    double share = (double)count * weights[r] / (double)total;
    EXPECT_MSG((double)all[r] - share < 2.5 && share - (double)all[r] < 2.5, "rank %d has %ld pages, share %.2f", r,
               (long)all[r], share);
  }
}

TEST_LOOP(all_pages_stay_even_without_sequences, 12) {
  state += (uint64_t)_i;
  int32_t nranks = random_int(1, RANKS), weights[RANKS];
  int64_t all[RANKS] = {0};
  random_weights(nranks, 50, weights);
  for (int page = 0; page < 1000; page++) {
    int32_t rank = -1;
    good(banyan_next_page(nranks, weights, NULL, all, &rank));
    all[rank]++;
    expect_even(all, weights, nranks, "all");
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
  EXPECT(count >= 0 && count < nranks);
  for (int32_t i = 0; i < count; i++) {
    EXPECT(moves[i].pages > 0 && moves[i].from != moves[i].to);
    pages[moves[i].from] -= moves[i].pages;
    pages[moves[i].to] += moves[i].pages;
    moved += moves[i].pages;
    EXPECT(pages[moves[i].from] >= 0);
  }
  expect_even(pages, weights, nranks, "after the moves");
  EXPECT_MSG(moved == least, "%ld pages are moved, %ld are enough", (long)moved, (long)least);
}

static void move_pages(const trace *t, int64_t *of, const int64_t *of_moved) {
  banyan_page_move moves[RANKS];
  int32_t count = -1;
  good(banyan_page_moves(t->nranks, t->weights, of, of_moved, moves, &count));
  for (int32_t i = 0; i < count; i++) {
    of[moves[i].from] -= moves[i].pages;
    of[moves[i].to] += moves[i].pages;
  }
  expect_even(of, t->weights, t->nranks, "a sequence that was moved");
}

static void move_all(trace *t) {
  memset(t->all, 0, sizeof t->all);
  for (int s = 0; s < SEQUENCES; s++) {
    move_pages(t, t->of[s], t->all);
    for (int32_t r = 0; r < t->nranks; r++) t->all[r] += t->of[s][r];
  }
  expect_within(t->all, t->weights, t->nranks, ALL_WITHIN, "all that were moved");
}

/* Each sequence is moved separately, and all sequences together come close to their shares. */
TEST_LOOP(a_rank_joins_and_another_leaves_a_trace, 24) {
  state += (uint64_t)_i;
  trace t = {.nranks = random_int(3, RANKS)};
  for (int32_t r = 0; r < t.nranks; r++) t.weights[r] = random_int(1, weight_most(_i));
  int32_t joins = random_int(0, t.nranks - 1), leaves = (joins + random_int(1, t.nranks - 1)) % t.nranks;
  int32_t weight = t.weights[joins];
  t.weights[joins] = 0;
  run_trace(&t, STEPS / 3, 1);
  t.weights[joins] = weight;
  move_all(&t);
  run_trace(&t, STEPS / 3, 2);
  t.weights[leaves] = 0;
  move_all(&t);
  EXPECT(t.all[leaves] == 0);
  run_trace(&t, STEPS / 3, 2);
}

/* Sequences of one page on a rank that leaves. Without of_moved they would all go to the same rank. */
TEST(short_sequences_of_a_rank_that_leaves_go_to_all_others) {
  trace t = {.nranks = 3, .weights = {1, 1, 0}};
  int64_t moved[RANKS] = {0};
  for (int s = 0; s < 100; s++) {
    int64_t of[RANKS] = {0, 0, 1};
    move_pages(&t, of, moved);
    for (int32_t r = 0; r < t.nranks; r++) moved[r] += of[r];
  }
  EXPECT_MSG(moved[0] == 50 && moved[1] == 50, "%ld and %ld pages", (long)moved[0], (long)moved[1]);
}

/* A joining rank gets its share of sequences with one page each. */
TEST(short_sequences_go_to_a_rank_that_joins) {
  trace t = {.nranks = 3, .weights = {1, 1, 1}};
  int64_t moved[RANKS] = {0};
  for (int s = 0; s < 99; s++) {
    int64_t of[RANKS] = {s % 2 == 0, s % 2 == 1, 0};
    move_pages(&t, of, moved);
    for (int32_t r = 0; r < t.nranks; r++) moved[r] += of[r];
  }
  expect_within(moved, t.weights, t.nranks, 2, "all");
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
  rejected(banyan_next_page(2, NULL, pages, NULL, &out), "of_sequence[1] is -5");
  rejected(banyan_next_page(2, NULL, NULL, many, &out), "of_all add up to 2^40");
  rejected(banyan_page_moves(2, NULL, pages, NULL, moves, &out), "pages[1] is -5");
  rejected(banyan_page_moves(2, NULL, moved, many, moves, &out), "of_moved add up to 2^40");
  rejected(banyan_page_moves(0, NULL, pages, NULL, moves, &out), "nranks is 0");
}

int main(void) {
  random_begin();
  return suite_main(suite_of("ownership", 60));
}
