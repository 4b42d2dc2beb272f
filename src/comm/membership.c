/* SPDX-License-Identifier: Apache-2.0
 * The rules of a shrink; see membership.h.
 *
 * Why no two communicators differ. Suppose that two sets have voted for different communicators, and a rank of each is
 * alive. If the sets share no rank, then each counted the other's ranks, which have voted and so are not absent. Each
 * set is then at least half of the same ranks, and only one of them has the lowest. If they share a rank, it voted
 * twice. It left the first attempt in an agreed view with a rank that had not voted for it and never will. */
#include "comm/membership.h"

#include <string.h>

void bny_membership_init(bny_membership *self, int32_t rank, int32_t nranks, bool one_node, void *memory) {
  uint8_t *bytes = memory;
  size_t n = (size_t)nranks;
  memset(bytes, 0, bny_membership_bytes(nranks));
  *self = (bny_membership){.rank = rank,
                           .nranks = nranks,
                           .one_node = one_node,
                           .standings = bytes,
                           .posted = bytes + n,
                           .members = bytes + 2 * n};
}

bool bny_membership_raise(bny_membership *self, int32_t rank, bny_standing standing) {
  if (self->standings[rank] >= standing) return false;
  self->standings[rank] = (uint8_t)standing;
  return true;
}

bny_post bny_membership_post(bny_membership *self, bny_post_kind kind) {
  self->round++;
  self->kind = kind;
  self->lost = self->differs = self->votes_differ = self->failed = false;
  memcpy(self->posted, self->standings, (size_t)self->nranks);
  bool names_attempt = kind != BNY_POST_VIEW || self->voted;
  return (bny_post){.round = self->round,
                    .kind = kind,
                    .attempt = names_attempt ? self->attempt : 0,
                    .standings = kind == BNY_POST_VIEW ? self->posted : NULL};
}

bny_post bny_membership_withdraw(bny_membership *self, bool ever_voted) {
  self->standings[self->rank] = ever_voted ? BNY_GONE : BNY_ABSENT;
  return bny_membership_post(self, BNY_POST_VIEW);
}

static void read_view(bny_membership *self, int32_t rank, const bny_post *post) {
  if (post->standings[self->rank] != BNY_MEMBER) {
    self->evicted = true;
    return;
  }
  if (post->failed && !self->failed) {
    self->failed = true;
    self->failed_rank = rank;
  }
  if (self->kind == BNY_POST_DATA) self->lost = true;
  if (post->attempt != (self->voted ? self->attempt : 0)) self->votes_differ = true;
  for (int32_t r = 0; r < self->nranks; r++) {
    if (post->standings[r] != self->posted[r]) self->differs = true;
    bny_membership_raise(self, r, (bny_standing)post->standings[r]);
  }
}

void bny_membership_read(bny_membership *self, int32_t rank, const bny_post *post) {
  if (post->kind == BNY_POST_DONE) {
    if (self->voted && post->attempt == self->attempt)
      self->taken = true;
    else
      self->evicted = true;
  } else if (post->round > self->round) {
    self->evicted = true; /* it reads no more posts of the rounds before */
  } else if (post->kind == BNY_POST_VIEW) {
    read_view(self, rank, post);
  } else if (self->kind == BNY_POST_VIEW) { /* it still makes the communicator, and will see this view */
    self->differs = true;
  } else if (post->attempt != self->attempt) {
    self->lost = true;
  }
}

bool bny_membership_hear(bny_membership *self, int32_t rank, const bny_post *post) {
  if (post->kind == BNY_POST_DONE) {
    bny_membership_read(self, rank, post);
    return true;
  }
  return post->kind == BNY_POST_VIEW && post->standings[rank] > BNY_SILENT &&
         bny_membership_raise(self, rank, (bny_standing)post->standings[rank]);
}

void bny_membership_miss(bny_membership *self, int32_t rank, bny_standing standing) {
  bny_membership_raise(self, rank, standing);
  self->lost = self->differs = true;
}

bool bny_membership_suffices(const bny_membership *self) {
  int32_t members = 0, silent = 0, gone = 0, lowest = -1;
  for (int32_t r = 0; r < self->nranks; r++) {
    if (self->standings[r] == BNY_ABSENT) continue;
    if (lowest < 0) lowest = r;
    members += self->standings[r] == BNY_MEMBER;
    silent += self->standings[r] == BNY_SILENT;
    gone += self->standings[r] == BNY_GONE;
  }
  if (members == 0) return false;
  if (self->one_node || silent == 0 || members > silent + gone) return true;
  return members == silent + gone && bny_is_member(self, lowest);
}

/* Sets without a common rank may begin attempts in one round, which the lowest rank tells apart. */
static void begin_attempt(bny_membership *self) {
  int32_t lowest = self->nranks;
  for (int32_t r = self->nranks - 1; r >= 0; r--) {
    self->members[r] = bny_is_member(self, r);
    if (self->members[r]) lowest = r;
  }
  self->attempt = self->round * (uint64_t)self->nranks + (uint64_t)lowest;
  self->voted = false;
}

bny_decision bny_membership_decide(bny_membership *self) {
  if (self->taken) return BNY_DECIDE_TAKE;
  if (self->evicted || !bny_is_member(self, self->rank)) return BNY_DECIDE_EVICTED;
  if (self->failed) return BNY_DECIDE_FAIL;
  if (self->differs) return BNY_DECIDE_AGAIN;
  if (!bny_membership_suffices(self)) return BNY_DECIDE_WAIT;
  if (self->voted && !self->votes_differ) return BNY_DECIDE_TAKE;
  begin_attempt(self);
  return BNY_DECIDE_MAKE;
}

void bny_membership_vote(bny_membership *self) { self->voted = true; }
