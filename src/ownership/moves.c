/* SPDX-License-Identifier: Apache-2.0
 * Names layouts, and lists moves between two layouts and between tiers of memory.
 *
 * Rules that give each token the same owner have one normal form. BLOCKS: weights without a common divisor, and the
 * length of a block. This length is the greatest common divisor of the distances at which owners change, because a
 * larger one would divide all weights. With one owner it is 1. RANGES: the ends of all ranges. */
#include <inttypes.h>
#include <stdbool.h>

#include "base/hash.h"
#include "base/status.h"
#include "ownership/ownership.h"

/* ---- names ------------------------------------------------------------------------------------------------------- */

static int64_t end_of(const bny_shares *s, int64_t blocks) {
  int64_t end = blocks * s->rule.block;
  return end < s->rule.tokens ? end : s->rule.tokens;
}

/* Returns number `rank` of the normal form: a weight, or the end of a range. For a range it adds up the weights before
 * it. */
static int64_t number_of(const bny_shares *s, int32_t rank, int64_t *before) {
  int64_t weight = bny_turns_weight(&s->turns, rank);
  if (s->rule.kind == BANYAN_OWNERSHIP_BLOCKS) return weight;
  *before += weight;
  return end_of(s, s->blocks * *before / s->turns.total);
}

/* Returns the length of a block of the form, or of all ranges. */
static int64_t length_of(const bny_shares *s) {
  if (s->rule.kind == BANYAN_OWNERSHIP_RANGES) return s->rule.tokens;
  return s->turns.total > 1 ? s->rule.block : 1;
}

/* Returns true if both give each token the same owner. */
static bool is_same(const bny_shares *a, const bny_shares *b) {
  if (a->rule.kind != b->rule.kind || a->rule.nranks != b->rule.nranks || length_of(a) != length_of(b)) return false;
  int64_t before_a = 0, before_b = 0;
  for (int32_t r = 0; r < a->rule.nranks; r++)
    if (number_of(a, r, &before_a) != number_of(b, r, &before_b)) return false;
  return true;
}

/* Returns true if all ranks are alike, so that their numbers need not be listed. */
static bool is_even(const bny_shares *s) {
  int64_t before = 0;
  for (int32_t r = 0; r < s->rule.nranks; r++) {
    int64_t number = number_of(s, r, &before);
    bool blocks = s->rule.kind == BANYAN_OWNERSHIP_BLOCKS;
    if (number != (blocks ? 1 : s->rule.tokens * (r + 1) / s->rule.nranks)) return false;
  }
  return true;
}

static void list(const bny_shares *s, char *name, size_t bytes, size_t *length, uint64_t *hash) {
  int64_t before = 0;
  for (int32_t r = 0; r < s->rule.nranks; r++) {
    int64_t number = number_of(s, r, &before);
    bny_append(name, bytes, length, "%s%" PRId64, r > 0 ? "," : "", number);
    *hash = bny_hash_add(*hash, (uint64_t)number);
  }
}

/* Returns the hash, and adds the name's length. */
static uint64_t write_name(const bny_shares *s, char *to, size_t bytes, size_t *length) {
  bool blocks = s->rule.kind == BANYAN_OWNERSHIP_BLOCKS, even = is_even(s);
  int64_t first = length_of(s);
  uint64_t sum = bny_hash_add(bny_hash_add(BNY_HASH_START, s->rule.kind), (uint64_t)s->rule.nranks);
  sum = bny_hash_add(sum, (uint64_t)first);
  bny_append(to, bytes, length, blocks ? "blocks:" : "ranges:");
  if (blocks || even) bny_append(to, bytes, length, "%" PRId64, first);
  if (!blocks && !even) list(s, to, bytes, length, &sum);
  bny_append(to, bytes, length, "/%dranks", s->rule.nranks);
  if (blocks && !even) {
    bny_append(to, bytes, length, ":");
    list(s, to, bytes, length, &sum);
  }
  return sum;
}

banyan_status banyan_ownership_name(const banyan_ownership *ownership, char *name, size_t bytes, uint64_t *hash) {
  static const char where[] = "banyan_ownership_name";
  bny_shares s;
  banyan_status status = bny_ownership_read(where, ownership, &s);
  if (status != BANYAN_OK) return status;
  char none[1];
  size_t length = 0, again = 0;
  uint64_t sum = write_name(&s, none, 0, &length);
  if (name && length >= bytes)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: bytes is %zu, and the name needs %zu", where, bytes, length + 1);
  if (name) write_name(&s, name, bytes, &again);
  if (hash) *hash = sum;
  return BANYAN_OK;
}

/* ---- moves ------------------------------------------------------------------------------------------------------- */

/* Writes the owner of a token, and the first later token that may have another owner. */
static banyan_status run_of(const bny_shares *s, int64_t token, int32_t *rank, int64_t *end) {
  int64_t block = token / s->rule.block, place;
  banyan_status status = bny_ownership_owner(s, block, rank, &place);
  if (status != BANYAN_OK) return status;
  *end = (block + 1) * s->rule.block;
  if (s->rule.kind == BANYAN_OWNERSHIP_RANGES) *end = end_of(s, bny_ownership_span(s, *rank).end);
  return BANYAN_OK;
}

banyan_status banyan_ownership_moves(const banyan_ownership *from, const banyan_ownership *to, int64_t length,
                                     int64_t *next, banyan_token_move *moves, int32_t *count) {
  static const char where[] = "banyan_ownership_moves";
  bny_shares a, b;
  banyan_status status = bny_ownership_read(where, from, &a);
  if (status == BANYAN_OK) status = bny_ownership_read(where, to, &b);
  if (status == BANYAN_OK) status = bny_ownership_check_length(where, "length", &a, length, a.rule.tokens);
  if (status == BANYAN_OK) status = bny_ownership_check_length(where, "length", &b, length, b.rule.tokens);
  if (status != BANYAN_OK) return status;
  if (!next || !moves || !count)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: next, moves and count must not be NULL", where);
  if (*next < 0 || *next > length)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: next is %" PRId64 ", must be 0 to length, which is %" PRId64, where,
                    *next, length);
  if (*count < 1) return bny_fail(BANYAN_ERR_ARGUMENT, "%s: count is %d, must be at least 1", where, *count);
  int32_t room = *count, made = 0, owner_a = 0, owner_b = 0;
  int64_t end_a = 0, end_b = 0;
  if (is_same(&a, &b)) *next = length; /* otherwise a search for the first move has no end */
  while (*next < length) {
    if (end_a <= *next) status = run_of(&a, *next, &owner_a, &end_a);
    if (status == BANYAN_OK && end_b <= *next) status = run_of(&b, *next, &owner_b, &end_b);
    if (status != BANYAN_OK) return status;
    int64_t end = end_a < end_b ? end_a : end_b;
    if (end > length) end = length;
    banyan_token_move *last = made > 0 ? &moves[made - 1] : NULL;
    if (owner_a != owner_b && last && last->end == *next && last->from == owner_a && last->to == owner_b) {
      last->end = end;
    } else if (owner_a != owner_b) {
      if (made == room) break;
      moves[made++] = (banyan_token_move){.first = *next, .end = end, .from = owner_a, .to = owner_b};
    }
    *next = end;
  }
  *count = made;
  return BANYAN_OK;
}

/* ---- tiers ------------------------------------------------------------------------------------------------------- */

banyan_status banyan_tier_next(int64_t pages, const uint64_t *reads, int64_t keep, int64_t *page) {
  static const char where[] = "banyan_tier_next";
  if (pages < 0 || keep < 0 || !page)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s: %s", where,
                    !page      ? "page is NULL"
                    : keep < 0 ? "keep is negative"
                               : "pages is negative");
  *page = pages > keep ? 0 : -1;
  for (int64_t i = 1; reads && i < pages - keep; i++)
    if (reads[i] < reads[*page]) *page = i;
  return BANYAN_OK;
}
