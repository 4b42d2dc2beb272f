/* SPDX-License-Identifier: Apache-2.0
 * Explores all schedules of a shrink of two to four ranks, with the library's own decisions (comm/membership.h). At any
 * step a rank may stop or die, and a post may be late or lost for any of its receivers. A state is explored once. In no
 * state may two live ranks have different communicators. A rank that comes when others have theirs learns it. */
#include <stdlib.h>
#include <string.h>

#include "comm/membership.h"
#include "tests/support/suite.h"

enum { RANKS_MAX = 4, ROUNDS_MAX = 20 };

typedef enum phase { LATE, READING, WAITING, HAS, FAILED } phase;

typedef struct model {
  int32_t nranks;
  int deaths;    /* at most */
  int silences;  /* posts that a receiver misses although their sender is alive, at most */
  bool shared;   /* shared memory: only a post that is not there yet is missed */
  bool majority; /* the library's rule; else no majority is needed */
  int32_t late;  /* 1 + a rank that comes when another has its communicator, and may miss any post; 0: none */
  bool answers;  /* it hears from a rank with a communicator before its time is up */
  size_t states, outcomes[RANKS_MAX + 1]; /* outcomes: final states by the number of live ranks with a communicator */
  size_t splits, unequal; /* states in which two live ranks differ; final states in which a live rank has an error */
  size_t told, untold;    /* final states in which the late rank knows that it is left out, or does not */
  uint64_t *seen;
  size_t capacity;
} model;

typedef struct posted {
  uint8_t kind, attempt, standings[RANKS_MAX];
} posted;

/* A rank between two steps. */
typedef struct rank_state {
  uint8_t phase, dead, next;                                    /* next: the peer whose post it reads next */
  uint8_t round, kind, attempt, voted, ever_voted, flags, last; /* last: its last post; it posts on after `round` */
  uint8_t standings[RANKS_MAX], own[RANKS_MAX], members[RANKS_MAX];
} rank_state;

typedef struct state {
  rank_state ranks[RANKS_MAX];
  posted posts[RANKS_MAX][ROUNDS_MAX];
  uint8_t deaths, silences;
} state;

/* TEST_FAULTS=all explores more, which takes minutes. */
static bool is_thorough(void) {
  const char *form = getenv("TEST_FAULTS");
  return form && strcmp(form, "all") == 0;
}

/* ---- the library's struct from a compact state, and back --------------------------------------------------------- */

static bny_membership unpack(const model *model, rank_state *rank, int32_t number) {
  int flags = rank->flags;
  return (bny_membership){.rank = number,
                          .nranks = model->nranks,
                          .one_node = model->shared || !model->majority,
                          .round = rank->round,
                          .kind = (bny_post_kind)rank->kind,
                          .attempt = rank->attempt,
                          .voted = rank->voted,
                          .lost = flags & 1,
                          .differs = flags & 2,
                          .votes_differ = flags & 4,
                          .taken = flags & 8,
                          .evicted = flags & 16,
                          .standings = rank->standings,
                          .posted = rank->own,
                          .members = rank->members};
}

static void pack(rank_state *rank, const bny_membership *self) {
  rank->round = (uint8_t)self->round;
  rank->kind = (uint8_t)self->kind;
  rank->attempt = (uint8_t)self->attempt;
  rank->voted = self->voted;
  rank->ever_voted |= self->voted;
  rank->flags =
      (uint8_t)(self->lost | self->differs << 1 | self->votes_differ << 2 | self->taken << 3 | self->evicted << 4);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void put(state *state, int32_t r, const bny_post *post) {
  posted *to = &state->posts[r][post->round];
  ck_assert_msg(post->round < ROUNDS_MAX, "a shrink does not end");
  *to = (posted){.kind = (uint8_t)post->kind, .attempt = (uint8_t)post->attempt};
  if (post->standings) memcpy(to->standings, post->standings, RANKS_MAX);
  state->ranks[r].last = (uint8_t)post->round;
}

static bny_post get(const state *state, int32_t r, int round) {
  const posted *from = &state->posts[r][round];
  return (bny_post){.round = (uint64_t)round,
                    .kind = (bny_post_kind)from->kind,
                    .attempt = from->attempt,
                    .standings = from->standings};
}

static void begin(const model *model, state *state, int32_t r, bny_post_kind kind) {
  rank_state *rank = &state->ranks[r];
  bny_membership self = unpack(model, rank, r);
  bny_post post = bny_membership_post(&self, kind);
  put(state, r, &post);
  pack(rank, &self);
  rank->phase = READING;
  rank->next = 0;
}

static void give_up(const model *model, state *state, int32_t r) {
  rank_state *rank = &state->ranks[r];
  bny_membership self = unpack(model, rank, r);
  bny_post post = bny_membership_withdraw(&self, rank->ever_voted);
  put(state, r, &post);
  pack(rank, &self);
  rank->phase = FAILED;
}

static void end_round(const model *model, state *state, int32_t r) {
  rank_state *rank = &state->ranks[r];
  bny_membership self = unpack(model, rank, r);
  if (self.evicted && !self.taken) {
    give_up(model, state, r);
    return;
  }
  if (rank->kind == BNY_POST_DATA && !self.taken) { /* all data has arrived, or a rank was lost */
    if (!self.lost) bny_membership_vote(&self);
    pack(rank, &self);
    begin(model, state, r, BNY_POST_VIEW);
    return;
  }
  bny_decision decision = bny_membership_decide(&self);
  pack(rank, &self);
  switch (decision) {
  case BNY_DECIDE_AGAIN: begin(model, state, r, BNY_POST_VIEW); break;
  case BNY_DECIDE_MAKE: begin(model, state, r, BNY_POST_DATA); break;
  case BNY_DECIDE_TAKE:
    begin(model, state, r, BNY_POST_DONE);
    rank->phase = HAS;
    break;
  case BNY_DECIDE_WAIT: rank->phase = WAITING; break;
  case BNY_DECIDE_FAIL:
  case BNY_DECIDE_EVICTED: give_up(model, state, r); break;
  }
}

/* The rank has dealt with one peer. */
static void proceed(const model *model, state *state, int32_t r) {
  if (++state->ranks[r].next == model->nranks) end_round(model, state, r);
}

static bool is_late(const model *model, int32_t r) { return r == model->late - 1; }

static bool is_had(const model *model, const state *state) {
  for (int32_t r = 0; r < model->nranks; r++)
    if (!state->ranks[r].dead && state->ranks[r].phase == HAS) return true;
  return false;
}

static bny_standing of_dead(const state *state, int32_t r) {
  return state->ranks[r].ever_voted ? BNY_GONE : BNY_ABSENT;
}

static void explore(model *model, const state *from);
static void explore_reading(model *model, const state *from, int32_t r);

/* The rank has dealt with a peer. What it finds at the others does not depend on what happens in between, except in
 * shared memory. */
static void explore_next(model *model, state *to, int32_t r) {
  const rank_state *rank = &to->ranks[r];
  bool goes_on = rank->next + 1 < model->nranks && !model->shared;
  proceed(model, to, r);
  if (goes_on)
    explore_reading(model, to, r);
  else
    explore(model, to);
}

static void explore_read(model *model, const state *from, int32_t r, int32_t peer, int round) {
  state to = *from;
  bny_membership self = unpack(model, &to.ranks[r], r);
  bny_post post = get(&to, peer, round);
  bny_membership_read(&self, peer, &post);
  pack(&to.ranks[r], &self);
  explore_next(model, &to, r);
}

static void explore_miss(model *model, const state *from, int32_t r, int32_t peer, bny_standing standing) {
  state to = *from;
  bny_membership self = unpack(model, &to.ranks[r], r);
  bny_membership_miss(&self, peer, standing);
  if (standing == BNY_SILENT && !is_late(model, peer) && !is_late(model, r)) to.silences++;
  pack(&to.ranks[r], &self);
  explore_next(model, &to, r);
}

/* The rank learns of a rank that it has left out, and then does what it does without that. */
static void explore_hear(model *model, const state *from, int32_t r, int32_t peer) {
  const rank_state *other = &from->ranks[peer];
  for (int known_dead = 0; known_dead < 2; known_dead++) {
    if (known_dead ? !other->dead : !other->last) continue;
    state to = *from;
    bny_membership self = unpack(model, &to.ranks[r], r);
    bny_post post = get(&to, peer, other->last);
    bool news =
        known_dead ? bny_membership_raise(&self, peer, of_dead(&to, peer)) : bny_membership_hear(&self, peer, &post);
    if (!news) continue;
    if (from->ranks[r].phase == READING) self.differs = true;
    pack(&to.ranks[r], &self);
    if (from->ranks[r].phase == READING) {
      explore_next(model, &to, r);
      continue;
    }
    if (self.taken || self.evicted)
      end_round(model, &to, r);
    else
      begin(model, &to, r, BNY_POST_VIEW);
    explore(model, &to);
  }
}

static void explore_reading(model *model, const state *from, int32_t r) {
  const rank_state *rank = &from->ranks[r];
  int32_t peer = rank->next;
  const rank_state *other = &from->ranks[peer];
  if (peer == r || rank->own[peer] != BNY_MEMBER) {
    if (peer != r && rank->own[peer] == BNY_SILENT) explore_hear(model, from, r, peer);
    state to = *from;
    explore_next(model, &to, r);
    return;
  }
  bool there = other->last >= rank->round, is_done = other->phase == HAS;
  if (there) explore_read(model, from, r, peer, rank->round);
  /* Two rounds later, the post of this round is overwritten. */
  for (int round = rank->round + 2; round <= other->last; round += 2) explore_read(model, from, r, peer, round);
  if (is_done && other->last > rank->round && (other->last - rank->round) % 2)
    explore_read(model, from, r, peer, other->last);
  if (other->dead && !(model->shared && there)) explore_miss(model, from, r, peer, of_dead(from, peer));
  if (other->phase == FAILED && !there) explore_miss(model, from, r, peer, of_dead(from, peer));
  bool may_miss = is_late(model, peer) || is_late(model, r) || from->silences < model->silences;
  if (may_miss && !(model->shared && there)) explore_miss(model, from, r, peer, BNY_SILENT);
}

static void explore_waiting(model *model, const state *from, int32_t r) {
  const rank_state *rank = &from->ranks[r];
  bool hears = false; /* from a rank with a communicator */
  for (int32_t peer = 0; peer < model->nranks; peer++) {
    const rank_state *other = &from->ranks[peer];
    bool has_news =
        rank->standings[peer] == BNY_SILENT || (rank->standings[peer] == BNY_MEMBER && other->last > rank->round);
    hears |= has_news && !other->dead && other->phase == HAS;
    if (rank->standings[peer] == BNY_SILENT) explore_hear(model, from, r, peer);
    if (rank->standings[peer] != BNY_MEMBER || peer == r || other->last <= rank->round) continue;
    state to = *from;
    begin(model, &to, r, BNY_POST_VIEW);
    explore(model, &to);
  }
  if (is_late(model, r) && model->answers && hears) return;
  state to = *from;
  give_up(model, &to, r); /* its time is up */
  explore(model, &to);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static bool is_new(model *model, const state *state) {
  const uint64_t *words = (const void *)state;
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < sizeof *state / 8; i++) {
    hash = (hash ^ words[i]) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  hash |= 1;
  size_t at = hash >> 8 & (model->capacity - 1);
  for (; model->seen[at]; at = (at + 1) & (model->capacity - 1))
    if (model->seen[at] == hash) return false;
  model->seen[at] = hash;
  ck_assert_msg(++model->states < model->capacity / 4 * 3, "more than %zu states", model->states);
  return true;
}

/* No rank reads the posts of rounds that all have ended. */
static void forget(const model *model, state *state) {
  int least = ROUNDS_MAX;
  for (int32_t r = 0; r < model->nranks; r++) {
    const rank_state *rank = &state->ranks[r];
    bool reads = !rank->dead && rank->phase < HAS;
    int round = rank->round ? rank->round : 1;
    if (reads && round < least) least = round;
  }
  for (int32_t r = 0; r < model->nranks; r++)
    for (int round = 0; round < least && round < state->ranks[r].last; round++) state->posts[r][round] = (posted){0};
}

static bool differ(const model *model, const state *state) {
  for (int32_t a = 0; a < model->nranks; a++)
    for (int32_t b = 0; b < a; b++) {
      const rank_state *one = &state->ranks[a], *other = &state->ranks[b];
      if (one->dead || other->dead || one->phase != HAS || other->phase != HAS) continue;
      /* Two attempts by the same members have made two communicators. */
      if (one->attempt != other->attempt || memcmp(one->members, other->members, RANKS_MAX) != 0) return true;
    }
  return false;
}

static void note_end(model *model, const state *state) {
  int live = 0, having = 0;
  for (int32_t r = 0; r < model->nranks; r++) {
    live += !state->ranks[r].dead;
    having += !state->ranks[r].dead && state->ranks[r].phase == HAS;
  }
  model->outcomes[having]++;
  model->unequal += having != live;
  const rank_state *late = model->late ? &state->ranks[model->late - 1] : NULL;
  if (!late || late->dead || late->phase == LATE) return;
  bool is_told = late->phase == FAILED && late->flags & 16;
  model->told += is_told;
  model->untold += !is_told;
}

static void explore(model *model, const state *from) {
  state now = *from;
  forget(model, &now);
  if (!is_new(model, &now)) return;
  if (differ(model, &now)) {
    model->splits++;
    return;
  }
  bool ended = true;
  for (int32_t r = 0; r < model->nranks; r++) {
    const rank_state *rank = &now.ranks[r];
    if (rank->dead) continue;
    if (now.deaths < model->deaths && !model->late) {
      state to = now;
      to.ranks[r].dead = 1;
      to.deaths++;
      explore(model, &to);
    }
    if (rank->phase >= HAS || (rank->phase == LATE && is_late(model, r) && !is_had(model, &now))) continue;
    ended = false;
    if (rank->phase == LATE) {
      state to = now;
      begin(model, &to, r, BNY_POST_VIEW);
      explore(model, &to);
    }
    if (rank->phase == READING) explore_reading(model, &now, r);
    if (rank->phase == WAITING) explore_waiting(model, &now, r);
  }
  if (ended) note_end(model, &now);
}

/* A rank that dies before it calls has never voted. In shared memory, ranks also begin at any time. Elsewhere a late
 * rank is one whose posts all are late, or `late`. */
static void explore_all(model *model) {
  for (int dead = 0; dead < 1 << model->nranks; dead++) {
    state first = {.deaths = (uint8_t)__builtin_popcount((unsigned)dead)};
    if (first.deaths > model->deaths) continue;
    for (int32_t r = 0; r < model->nranks; r++) {
      first.ranks[r].dead = dead >> r & 1;
      if (!first.ranks[r].dead && !model->shared && !is_late(model, r)) begin(model, &first, r, BNY_POST_VIEW);
    }
    explore(model, &first);
  }
}

static model run(model model) {
  model.capacity = (size_t)1 << (is_thorough() ? 26 : 23);
  model.seen = calloc(model.capacity, sizeof *model.seen);
  ck_assert(model.seen);
  explore_all(&model);
  free(model.seen);
  printf("%d ranks, %d deaths, %d silences%s%s: %zu states, %zu with two communicators; ends by ranks with one:",
         model.nranks, model.deaths, model.silences, model.shared ? ", shared memory" : "",
         model.majority ? "" : ", no majority", model.states, model.splits);
  for (int i = 0; i <= model.nranks; i++) printf(" %zu", model.outcomes[i]);
  printf("\n");
  return model;
}

/* Without lateness, all survivors get the communicator. */
TEST_RANGE(all_survivors_get_it, 2, RANKS_MAX + 1) {
  for (int deaths = 0; deaths < 2; deaths++) {
    model done = run((model){.nranks = _i, .deaths = deaths, .majority = true});
    ck_assert_msg(!done.splits && !done.unequal, "%zu and %zu states are wrong", done.splits, done.unequal);
    ck_assert(done.outcomes[_i] > 0);
  }
}

/* Three ranks have six pairs, so six silences are all. Four ranks with a death and two silences have 17,114,289 states,
 * which take half a minute. */
static const model lossy[] = {{.nranks = 2, .deaths = 1, .silences = 2, .majority = true},
                              {.nranks = 3, .deaths = 1, .silences = 2, .majority = true},
                              {.nranks = 4, .silences = 1, .majority = true},
                              {.nranks = 3, .silences = 6, .majority = true},
                              {.nranks = 4, .deaths = 1, .silences = 1, .majority = true},
                              {.nranks = 3, .deaths = 2, .silences = 6, .majority = true},
                              {.nranks = 4, .silences = 3, .majority = true},
                              {.nranks = 4, .deaths = 1, .silences = 2, .majority = true}};
enum { LOSSY = sizeof lossy / sizeof lossy[0], BRIEF = 5, SANITIZED = 3 };

TEST_LOOP(no_two_communicators, LOSSY) {
  if (_i >= (IS_SANITIZED ? SANITIZED : BRIEF) && !is_thorough()) return;
  model done = run(lossy[_i]);
  ck_assert_msg(done.splits == 0, "two communicators in %zu states", done.splits);
  ck_assert(done.outcomes[done.nranks] > 0);
}

/* Each rank in turn comes after the others. One of these may be dead, and one may not hear another. */
static model run_late(int32_t nranks, bool majority, bool answers) {
  model sum = {0};
  for (int32_t late = 1; late <= nranks; late++) {
    int silences = nranks < RANKS_MAX || is_thorough() ? 1 : 0;
    model done = run((model){
        .nranks = nranks, .deaths = 1, .silences = silences, .majority = majority, .late = late, .answers = answers});
    sum.splits += done.splits;
    sum.told += done.told;
    sum.untold += done.untold;
  }
  return sum;
}

TEST_RANGE(a_late_rank_is_told, 2, RANKS_MAX + 1) {
  model done = run_late(_i, true, true);
  ck_assert_msg(!done.splits && !done.untold && done.told, "%zu, %zu, %zu", done.splits, done.untold, done.told);
}

TEST(a_late_rank_needs_answers_and_a_majority) {
  ck_assert(run_late(3, true, false).untold > 0);
  ck_assert(run_late(3, false, true).splits > 0);
}

/* A message is visible to all or to none, and no majority is needed. */
TEST(no_two_in_shared_memory) {
  model done = run((model){.nranks = 3, .silences = 2, .shared = true, .majority = true});
  ck_assert_msg(done.splits == 0, "two communicators in %zu states", done.splits);
}

/* The model finds what the majority prevents. */
TEST(without_a_majority_there_are_two) {
  model done = run((model){.nranks = 3, .silences = 3});
  ck_assert(done.splits > 0);
}

int main(void) { return suite_main(suite_of("shrink_model", is_thorough() ? 3600 : 120)); }
