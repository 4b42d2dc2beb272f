/* SPDX-License-Identifier: Apache-2.0
 * Decides which ranks get the communicator of a shrink, without any I/O: shrink.c runs these functions on messages, and
 * tests/comm/test_shrink_model.c on all schedules.
 *
 * Views. In each round a rank posts its view, the standing of every rank, and reads the posts of all members of it.
 * Views of one round are joined, and a member whose post is missing is silent. So standings only rise, and this ends.
 * If all members have posted the same view, it is agreed.
 *
 * Majority. The members of an agreed view may make a communicator only if they are a majority
 * (bny_membership_suffices). A silent rank may be alive and make one with others, which would then have to be a
 * majority as well.
 *
 * Votes. A rank that has made the communicator votes for it in its next view. It has the communicator once all members
 * have voted. If a member is lost before its vote was seen, another member may have seen it and have the communicator.
 * The others then agree on a view without the lost member. If all of these have voted, they take the communicator, in
 * which the lost rank is still a member. If one of them has not voted, nobody has the communicator, and they make
 * another. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The standing of a rank. It only rises. */
typedef enum bny_standing {
  BNY_MEMBER,
  BNY_SILENT, /* left out, but perhaps alive, and perhaps a member of another communicator */
  BNY_GONE,   /* left out: it has died, left or given up, and has no communicator */
  BNY_ABSENT  /* the same, and it has never voted */
} bny_standing;

/* A rank posts DATA while the communicator is made, and DONE as its last message when it has the communicator. */
typedef enum bny_post_kind { BNY_POST_VIEW = 1, BNY_POST_DATA, BNY_POST_DONE } bny_post_kind;

typedef struct bny_post {
  uint64_t round;
  bny_post_kind kind;
  uint64_t attempt;         /* VIEW: the attempt voted for, or 0; DATA and DONE: the current one */
  bool failed;              /* VIEW: this rank could not make its communicator, for a reason of its own */
  const uint8_t *standings; /* VIEW: [nranks] bny_standing */
} bny_post;

/* The next step of a rank after a round of views. */
typedef enum bny_decision {
  BNY_DECIDE_AGAIN,  /* another round */
  BNY_DECIDE_MAKE,   /* make a communicator of `members`, in rounds of data; then vote or return to views */
  BNY_DECIDE_TAKE,   /* take the communicator of `members` that was made; post DONE */
  BNY_DECIDE_WAIT,   /* no majority: wait until a silent rank is gone or a member posts, then another round */
  BNY_DECIDE_FAIL,   /* a member could not make its communicator */
  BNY_DECIDE_EVICTED /* the others continue without this rank */
} bny_decision;

typedef struct bny_membership {
  int32_t rank, nranks;
  bool one_node;      /* a message is visible to every rank or to none, so no majority is needed */
  uint64_t round;     /* number of this rank's last post */
  bny_post_kind kind; /* its kind */
  uint64_t attempt;   /* number of the current attempt to make a communicator; 0: none */
  bool voted;         /* for this attempt */
  bool lost;          /* a member is missing in this round, or has returned to views */
  bool differs, votes_differ, failed, taken, evicted; /* found in this round */
  int32_t failed_rank;
  uint8_t *standings; /* [nranks], owned by the caller, as are the next two */
  uint8_t *posted;    /* [nranks]: standings as posted in this round */
  uint8_t *members;   /* [nranks]: members of the attempt are 1 */
} bny_membership;

static inline bool bny_is_member(const bny_membership *self, int32_t rank) {
  return self->standings[rank] == BNY_MEMBER;
}

/* The bytes of memory for nranks, which bny_membership_init() divides; zeroed by it. */
static inline size_t bny_membership_bytes(int32_t nranks) { return 3 * (size_t)nranks; }
void bny_membership_init(bny_membership *self, int32_t rank, int32_t nranks, bool one_node, void *memory);

/* Raises a standing; no effect if it is as high already. Returns true if it rose. */
bool bny_membership_raise(bny_membership *self, int32_t rank, bny_standing standing);

/* Begins a round with a post of this kind, and returns the post. `failed` is false. */
bny_post bny_membership_post(bny_membership *self, bny_post_kind kind);

/* Gives up: raises this rank's own standing, and returns the VIEW to post, after which it reads nothing. */
bny_post bny_membership_withdraw(bny_membership *self, bool ever_voted);

/* Reads a post of a member: that of this round, or DONE, or of a later round. */
void bny_membership_read(bny_membership *self, int32_t rank, const bny_post *post);

/* Reads the last post of a rank that is no member: it may have given up. Returns true if its standing rose. */
bool bny_membership_hear(bny_membership *self, int32_t rank, const bny_post *post);

/* Notes that the post of a member is missing in this round. */
void bny_membership_miss(bny_membership *self, int32_t rank, bny_standing standing);

/* Returns true if the members may make a communicator, or take it: all ranks left out are gone; or the members are more
 * than half of the ranks that are not absent; or half of them, and among these the lowest. */
bool bny_membership_suffices(const bny_membership *self);

/* Returns what to do after a round of views, once every member was read or missed. MAKE begins an attempt. */
bny_decision bny_membership_decide(bny_membership *self);

/* The communicator was made by all members: the next view votes for it. */
void bny_membership_vote(bny_membership *self);
