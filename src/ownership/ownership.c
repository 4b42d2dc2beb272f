/* SPDX-License-Identifier: Apache-2.0
 * Computes the owner of each key. Tokens are assigned in blocks. Under BLOCKS the weights, divided by their common
 * divisor, are the consecutive blocks of each rank in a round. Under RANGES the blocks of the longest sequence are cut
 * in proportion to the weights. */
#include <inttypes.h>
#include <stdbool.h>

#include "base/sized.h"
#include "base/status.h"
#include "ownership/ownership.h"

static const int64_t tokens_limit = (int64_t)1 << 40;
enum { WEIGHTS_LIMIT = 1 << 20 };

static int64_t greatest_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

static int64_t weight_of(const int32_t *weights, int32_t rank) { return weights ? weights[rank] : 1; }

static banyan_status check_weights(const char *where, int32_t nranks, const int32_t *weights, int64_t *total) {
  if (nranks < 1 || nranks > WEIGHTS_LIMIT)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: nranks is %d, must be 1 to 2^20", where, nranks);
  *total = 0;
  for (int32_t r = 0; r < nranks; r++) {
    if (weight_of(weights, r) < 0)
      return bny_fail(BANYAN_ERR_ARGUMENT, "%s: weights[%d] is %d, negative", where, r, weights[r]);
    *total += weight_of(weights, r);
  }
  if (*total < 1 || *total > WEIGHTS_LIMIT)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: weights add up to %" PRId64 ", must be 1 to 2^20", where, *total);
  return BANYAN_OK;
}

banyan_status bny_ownership_read(const char *where, const banyan_ownership *given, bny_shares *out) {
  if (!given) return bny_fail(BANYAN_ERR_ARGUMENT, "%s: ownership is NULL", where);
  const banyan_ownership *rule = bny_sized_read(&bny_sized_ownership, "ownership", given, &out->rule);
  if (!rule) return BANYAN_ERR_ARGUMENT;
  out->rule = *rule;
  if (rule->kind != BANYAN_OWNERSHIP_RANGES && rule->kind != BANYAN_OWNERSHIP_BLOCKS)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: ownership.kind is %d, must be BANYAN_OWNERSHIP_RANGES or _BLOCKS", where,
                    (int)rule->kind);
  if (rule->block < 0) return bny_fail(BANYAN_ERR_ARGUMENT, "%s: ownership.block is %d, negative", where, rule->block);
  if (rule->tokens < 0 || rule->tokens > tokens_limit)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: ownership.tokens is %" PRId64 ", must be 0 to 2^40", where, rule->tokens);
  if (rule->kind == BANYAN_OWNERSHIP_BLOCKS && rule->tokens != 0)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "%s: ownership.tokens is %" PRId64 ", but BLOCKS have no longest sequence: set 0", where,
                    rule->tokens);
  banyan_status status = check_weights(where, rule->nranks, rule->weights, &out->total);
  if (status != BANYAN_OK) return status;
  if (out->rule.block == 0) out->rule.block = 1;
  int64_t divisor = 0;
  for (int32_t r = 0; r < rule->nranks; r++) divisor = greatest_divisor(divisor, weight_of(rule->weights, r));
  out->divisor = divisor, out->total /= divisor;
  out->blocks = rule->tokens / out->rule.block + (rule->tokens % out->rule.block != 0);
  return BANYAN_OK;
}

static banyan_status check_rank(const char *where, const bny_shares *s, int32_t rank) {
  if (rank >= 0 && rank < s->rule.nranks) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "%s: rank is %d, must be 0 to %d", where, rank, s->rule.nranks - 1);
}

banyan_status bny_ownership_check_length(const char *where, const char *what, const bny_shares *s, int64_t value,
                                         int64_t last) {
  if (value < 0) return bny_fail(BANYAN_ERR_ARGUMENT, "%s: %s is %" PRId64 ", negative", where, what, value);
  if (s->rule.kind == BANYAN_OWNERSHIP_RANGES && value > last)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: %s is %" PRId64 ", and ownership.tokens is %" PRId64, where, what, value,
                    s->rule.tokens);
  if (value > tokens_limit)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: %s is %" PRId64 ", must be at most 2^40", where, what, value);
  return BANYAN_OK;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Returns the sum of the weights of the ranks before this one. */
static int64_t weights_before(const bny_shares *s, int32_t rank) {
  int64_t before = 0;
  for (int32_t r = 0; s->rule.weights && r < rank; r++) before += bny_ownership_weight(s, r);
  return s->rule.weights ? before : rank;
}

/* Returns the span that begins at the weights before it. */
static bny_span span_at(const bny_shares *s, int64_t before, int64_t weight) {
  return (bny_span){s->blocks * before / s->total, s->blocks * (before + weight) / s->total};
}

bny_span bny_ownership_span(const bny_shares *s, int32_t rank) {
  return span_at(s, weights_before(s, rank), bny_ownership_weight(s, rank));
}

int32_t bny_ownership_owner(const bny_shares *s, int64_t block, int64_t *position) {
  int64_t before = 0, round = block / s->total, step = block % s->total;
  bool ranges = s->rule.kind == BANYAN_OWNERSHIP_RANGES;
  if (!ranges && !s->rule.weights) {
    *position = round * s->rule.block;
    return (int32_t)step;
  }
  for (int32_t r = 0;; r++) {
    int64_t weight = bny_ownership_weight(s, r);
    bny_span mine = ranges ? span_at(s, before, weight) : (bny_span){before, before + weight};
    before += weight;
    if ((ranges ? block : step) >= mine.end) continue;
    *position = (ranges ? block - mine.first : round * weight + step - mine.first) * s->rule.block;
    return r;
  }
}

static banyan_status owners_of(const char *where, const banyan_ownership *ownership, int64_t count,
                               const int64_t *tokens, int32_t *ranks, int64_t *positions) {
  bny_shares s;
  banyan_status status = bny_ownership_read(where, ownership, &s);
  int64_t known = -1, first = 0;
  int32_t rank = -1;
  for (int64_t i = 0; i < count && status == BANYAN_OK; i++) {
    status = bny_ownership_check_length(where, "token", &s, tokens[i], s.rule.tokens - 1);
    int64_t block = tokens[i] / s.rule.block;
    if (status != BANYAN_OK) break;
    if (block != known) rank = bny_ownership_owner(&s, block, &first);
    known = block;
    ranks[i] = rank;
    positions[i] = first + tokens[i] % s.rule.block;
  }
  return status;
}

banyan_status banyan_ownership_of_token(const banyan_ownership *ownership, int64_t token, int32_t *rank,
                                        int64_t *position) {
  static const char where[] = "banyan_ownership_of_token";
  if (ownership && (!rank || !position))
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: rank and position must not be NULL", where);
  return owners_of(where, ownership, 1, &token, rank, position);
}

banyan_status banyan_ownership_of_tokens(const banyan_ownership *ownership, int64_t count, const int64_t *tokens,
                                         int32_t *ranks, int64_t *positions) {
  static const char where[] = "banyan_ownership_of_tokens";
  if (count < 0) return bny_fail(BANYAN_ERR_ARGUMENT, "%s: count is %" PRId64 ", negative", where, count);
  if (count > 0 && (!tokens || !ranks || !positions))
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: tokens, ranks and positions must not be NULL", where);
  return owners_of(where, ownership, count, tokens, ranks, positions);
}

/* Returns the token at `position`; -1: the rank owns no such key, by its weight. */
static int64_t token_at(const bny_shares *s, int32_t rank, int64_t position) {
  int64_t block = position / s->rule.block, weight = bny_ownership_weight(s, rank), token = -1;
  if (s->rule.kind == BANYAN_OWNERSHIP_RANGES) {
    bny_span mine = bny_ownership_span(s, rank);
    if (block < mine.end - mine.first) token = mine.first * s->rule.block + position;
    return token < s->rule.tokens ? token : -1;
  }
  if (weight == 0 || block / weight > tokens_limit / s->total) return -1;
  int64_t step = weights_before(s, rank) + block % weight;
  return (block / weight * s->total + step) * s->rule.block + position % s->rule.block;
}

banyan_status banyan_ownership_token(const banyan_ownership *ownership, int32_t rank, int64_t position,
                                     int64_t *token) {
  static const char where[] = "banyan_ownership_token";
  bny_shares s;
  banyan_status status = bny_ownership_read(where, ownership, &s);
  if (status == BANYAN_OK && !token) return bny_fail(BANYAN_ERR_ARGUMENT, "%s: token is NULL", where);
  if (status == BANYAN_OK) status = check_rank(where, &s, rank);
  if (status == BANYAN_OK) status = bny_ownership_check_length(where, "position", &s, position, tokens_limit);
  if (status != BANYAN_OK) return status;
  int64_t at = token_at(&s, rank, position);
  if (at < 0 || at > tokens_limit)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: position is %" PRId64 ", but rank %d has not so many keys", where,
                    position, rank);
  *token = at;
  return BANYAN_OK;
}

banyan_status banyan_ownership_keys(const banyan_ownership *ownership, int32_t rank, int64_t length, int64_t *keys) {
  static const char where[] = "banyan_ownership_keys";
  bny_shares s;
  banyan_status status = bny_ownership_read(where, ownership, &s);
  if (status == BANYAN_OK && !keys) return bny_fail(BANYAN_ERR_ARGUMENT, "%s: keys is NULL", where);
  if (status == BANYAN_OK) status = check_rank(where, &s, rank);
  if (status == BANYAN_OK) status = bny_ownership_check_length(where, "length", &s, length, s.rule.tokens);
  if (status != BANYAN_OK) return status;
  if (s.rule.kind == BANYAN_OWNERSHIP_RANGES) {
    bny_span mine = bny_ownership_span(&s, rank);
    int64_t rest = length - mine.first * s.rule.block;
    *keys = rest > 0 ? smaller(rest, (mine.end - mine.first) * s.rule.block) : 0;
    return BANYAN_OK;
  }
  int64_t blocks = length / s.rule.block, step = blocks % s.total, weight = bny_ownership_weight(&s, rank);
  int64_t since = step - weights_before(&s, rank); /* blocks of the round since the first of the rank */
  int64_t before = since < 0 ? 0 : smaller(since, weight);
  *keys = (blocks / s.total * weight + before) * s.rule.block;
  if (since >= 0 && since < weight) *keys += length % s.rule.block;
  return BANYAN_OK;
}

banyan_status banyan_ownership_queries(const banyan_ownership *ownership, int32_t rank, banyan_queries *queries,
                                       int32_t *key_start) {
  static const char where[] = "banyan_ownership_queries";
  bny_shares s;
  banyan_status status = bny_ownership_read(where, ownership, &s);
  if (status == BANYAN_OK && (!queries || !key_start))
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: queries and key_start must not be NULL", where);
  if (status == BANYAN_OK) status = check_rank(where, &s, rank);
  if (status != BANYAN_OK) return status;
  banyan_queries room;
  if (!bny_sized_read(&bny_sized_queries, "queries", queries, &room)) return BANYAN_ERR_ARGUMENT;
  bool ranges = s.rule.kind == BANYAN_OWNERSHIP_RANGES;
  int64_t run = bny_ownership_weight(&s, rank), block = s.rule.block;
  int64_t first = ranges ? bny_ownership_span(&s, rank).first : run > 0 ? weights_before(&s, rank) : 0;
  bool blocks = !ranges && run > 0 && run < s.total;
  if (first * block > INT32_MAX || (blocks && s.total * block > INT32_MAX))
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: positions of rank %d are beyond 2^31 - 1", where, rank);
  *key_start = (int32_t)(first * block);
  queries->key_block = blocks ? (int32_t)(run * block) : 0;
  queries->key_stride = blocks ? (int32_t)(s.total * block) : 0;
  return BANYAN_OK;
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static banyan_status check_pages(const char *where, const char *what, int32_t nranks, const int64_t *pages) {
  int64_t total = 0;
  for (int32_t r = 0; pages && r < nranks; r++) {
    if (pages[r] < 0 || pages[r] >= tokens_limit)
      return bny_fail(BANYAN_ERR_ARGUMENT, "%s: %s[%d] is %" PRId64 ", must be 0 to 2^40 - 1", where, what, r,
                      pages[r]);
    total += pages[r];
    if (total >= tokens_limit) return bny_fail(BANYAN_ERR_ARGUMENT, "%s: %s add up to 2^40 or more", where, what);
  }
  return BANYAN_OK;
}

static int64_t pages_at(const int64_t *pages, int32_t rank) { return pages ? pages[rank] : 0; }

/* Returns true if rank a comes before rank b: it has the lower load by weight, or is the first of equals. */
static bool comes_before(const int32_t *weights, const int64_t *load, int32_t a, int32_t b) {
  int64_t left = (pages_at(load, a) + 1) * weight_of(weights, b);
  int64_t right = (pages_at(load, b) + 1) * weight_of(weights, a);
  return left < right || (left == right && a < b);
}

/* ---- moves ------------------------------------------------------------------------------------------------------- */

typedef struct balance {
  int32_t nranks;
  const int32_t *weights;
  const int64_t *pages; /* pages of the sequence by rank */
  const int64_t *load;  /* pages by rank of the sequences that were moved before; NULL: none */
  int64_t total, count; /* sums of weights and of pages */
  int64_t load_count;   /* sum of `load` */
  int64_t extra;        /* shares that are rounded up, so that all pages have a rank */
} balance;

static int64_t whole_share(const balance *b, int32_t rank, bool *is_whole) {
  int64_t product = b->count * weight_of(b->weights, rank);
  *is_whole = product % b->total == 0;
  return product / b->total;
}

/* Returns where to round a share up first: where it saves a move, unless the rank has more than its share of the
 * sequences moved before; then where a rank lacks at least a page of that share. */
static int rounding_class(const balance *b, int32_t rank, bool has_more) {
  int64_t excess = pages_at(b->load, rank) * b->total - b->load_count * weight_of(b->weights, rank);
  if (has_more) return excess > 0 ? 2 : 0;
  return excess <= -b->total ? 1 : 3;
}

static int64_t target_of(const balance *b, int32_t rank) {
  bool is_whole;
  int64_t share = whole_share(b, rank, &is_whole), before = 0;
  if (is_whole) return share;
  int class = rounding_class(b, rank, b->pages[rank] > share);
  for (int32_t r = 0; r < b->nranks; r++) {
    int64_t other = whole_share(b, r, &is_whole);
    if (is_whole || r == rank) continue;
    int other_class = rounding_class(b, r, b->pages[r] > other);
    before += other_class == class ? comes_before(b->weights, b->load, r, rank) : other_class < class;
  }
  return share + (before < b->extra);
}

static int32_t next_off_target(const balance *b, int32_t from, int sign, int64_t *pages) {
  for (int32_t r = from; r < b->nranks; r++) {
    *pages = sign * (b->pages[r] - target_of(b, r));
    if (*pages > 0) return r;
  }
  return b->nranks;
}

banyan_status banyan_page_moves(int32_t nranks, const int32_t *weights, const int64_t *pages, const int64_t *of_moved,
                                banyan_page_move *moves, int32_t *count) {
  static const char where[] = "banyan_page_moves";
  balance b = {.nranks = nranks, .weights = weights, .pages = pages, .load = of_moved};
  if (!pages || !moves || !count)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: pages, moves and count must not be NULL", where);
  banyan_status status = check_weights(where, nranks, weights, &b.total);
  if (status == BANYAN_OK) status = check_pages(where, "pages", nranks, pages);
  if (status == BANYAN_OK) status = check_pages(where, "of_moved", nranks, of_moved);
  if (status != BANYAN_OK) return status;
  for (int32_t r = 0; r < nranks; r++) b.count += pages[r];
  b.extra = b.count;
  for (int32_t r = 0; r < nranks; r++) {
    bool is_whole;
    b.extra -= whole_share(&b, r, &is_whole);
    b.load_count += pages_at(of_moved, r);
  }
  int64_t surplus = 0, lack = 0;
  int32_t from = next_off_target(&b, 0, 1, &surplus), to = next_off_target(&b, 0, -1, &lack);
  for (*count = 0; from < nranks; (*count)++) {
    int64_t moved = smaller(surplus, lack);
    moves[*count] = (banyan_page_move){.from = from, .to = to, .pages = moved};
    surplus -= moved;
    lack -= moved;
    if (surplus == 0) from = next_off_target(&b, from + 1, 1, &surplus);
    if (lack == 0) to = next_off_target(&b, to + 1, -1, &lack);
  }
  return BANYAN_OK;
}
