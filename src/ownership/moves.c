/* SPDX-License-Identifier: Apache-2.0
 * Lists the tokens that move between two layouts. */
#include <inttypes.h>
#include <stdbool.h>

#include "base/status.h"
#include "ownership/ownership.h"

static int64_t end_of(const bny_shares *s, int64_t blocks) {
  int64_t end = blocks * s->rule.block;
  return end < s->rule.tokens ? end : s->rule.tokens;
}

/* Returns true if both rules give each token the same owner: they have the same shares of the same blocks, or a single
 * owner. */
static bool is_same(const bny_shares *a, const bny_shares *b) {
  bool same = a->rule.kind == b->rule.kind && a->rule.nranks == b->rule.nranks && a->total == b->total &&
              a->rule.tokens == b->rule.tokens && (a->rule.block == b->rule.block || a->total == 1);
  for (int32_t r = 0; same && r < a->rule.nranks; r++) same = bny_ownership_weight(a, r) == bny_ownership_weight(b, r);
  return same;
}

/* Writes the owner of a token, and the first later token that may have another owner. */
static void run_of(const bny_shares *s, int64_t token, int32_t *rank, int64_t *end) {
  int64_t block = token / s->rule.block, position;
  *rank = bny_ownership_owner(s, block, &position);
  *end = (block + 1) * s->rule.block;
  if (s->rule.kind == BANYAN_OWNERSHIP_RANGES) *end = end_of(s, bny_ownership_span(s, *rank).end);
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
    if (end_a <= *next) run_of(&a, *next, &owner_a, &end_a);
    if (end_b <= *next) run_of(&b, *next, &owner_b, &end_b);
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
