/* SPDX-License-Identifier: Apache-2.0
 *
 * The builder: how an algorithm writes down the plan of one rank.
 *
 * Errors are sticky: the first failure is kept in builder->status, everything added after it is dropped, so that an
 * algorithm reads as a list of steps. Indices returned after a failure are 0 and must only be given back to the
 * builder.
 *
 * How a rank knows the slots of its peers. A message names the peer's slot by index and carries a copy of the peer's
 * entry. There are two ways to get them:
 * bny_builder_receive(): the algorithm states index and entry by a formula. Where all ranks number their slots alike
 * (oneshot, twoshot) this costs nothing.
 *
 * bny_builder_receive_key(): slots carry a key (phase, piece, and the ranks [low, high) merged in it). The builder runs
 * the same algorithm for the peer in slots-only mode, in which everything but slots is dropped, keeps the peer's list,
 * and finds the key in it. The list costs one run per peer received from, so it is for algorithms with few peers.
 */
#ifndef BNY_PLAN_BUILDER_H
#define BNY_PLAN_BUILDER_H

#include "plan/plan.h"
#include "plan/slice.h"

typedef struct bny_builder bny_builder;

/* How the messages of an algorithm lie on levels. */
typedef enum bny_pattern {
  BNY_PATTERN_ALL,      /* every rank with every other alike */
  BNY_PATTERN_DOUBLING, /* with ranks twice as far in each round, of rounds of one size */
  BNY_PATTERN_HALVING,  /* likewise, with half as much in each round; spread as DOUBLING with twice as much */
  BNY_PATTERN_RING      /* with the ranks beside it */
} bny_pattern;

/* What an algorithm costs, the same on every rank: an estimate of the rank that is last to finish, and bounds of memory
 * that no rank exceeds. */
typedef struct bny_estimate {
  double rounds;       /* times that a rank must wait for what another makes after the start */
  double messages;     /* received by one rank */
  double bytes;        /* received by one rank */
  double work_bytes;   /* encoded, merged, copied or delivered by one rank, every source counted */
  double bytes_sent;   /* by the rank that sends most */
  size_t outbox_bytes; /* bounds on any rank */
  int64_t slots;
  bny_pattern pattern;                /* which peers these rounds and bytes go to, where the request has levels */
  double ns;                          /* 0: bny_estimate_ns() computes it from the above */
  double level_bytes[BNY_LEVELS_MAX]; /* bytes_sent by level; filled by bny_algorithm_candidates() where ns is 0 */
  int32_t radix[BNY_LEVELS_MAX];      /* of a tree: by level, or the first alone; 0 from the first that it has none */
  int32_t pieces;                     /* that a tree sends the box in */
} bny_estimate;

/* One row of algorithms.def. */
typedef struct bny_algorithm {
  const char *name;    /* as callers name it */
  const char *variant; /* two rows may share a name: the cheaper one is taken. NULL: the only one */
  const char *(*refuse)(const bny_request *request); /* NULL: it serves this request; else why it cannot, static text */
  void (*estimate)(const bny_request *request, bny_estimate *estimate);
  void (*build)(bny_builder *builder);
} bny_algorithm;

extern const bny_algorithm *const bny_algorithms[]; /* ends with NULL */

/* Seconds are not the unit: nanoseconds, from the request's link costs. */
double bny_estimate_ns(const bny_request *request, const bny_estimate *estimate);

/* What selection weighs. */
typedef struct bny_candidate {
  const bny_algorithm *algorithm;
  const char *refusal; /* static; NULL: it serves, and what follows is set */
  bool named;          /* by the request, or it names none */
  bool fits;           /* the outbox */
  bool chosen;         /* at most one is */
  bny_estimate estimate;
  double ns;           /* predicted, or measured: */
  const struct bny_measurement *measured; /* NULL: predicted */
} bny_candidate;

enum { BNY_CANDIDATES_MAX = 16 };

/* All rows of the table in its order; returns their number. Where some are measured, one of these is chosen if one fits. */
int32_t bny_algorithm_candidates(const bny_request *request, bny_candidate candidates[BNY_CANDIDATES_MAX]);

/* Chooses by name or by predicted cost; a pure function of the request, the same on every rank. *reason is owned by the
 * caller. */
banyan_status bny_algorithm_select(const bny_request *request, const bny_algorithm **algorithm, double *predicted_ns,
                                   char **reason);

/* Callers name an algorithm ("recursive") or one variant of it ("recursive_halving"). */
bool bny_algorithm_is_named(const bny_algorithm *algorithm, const char *name);

/* "oneshot", or "recursive halving" where there is a variant. */
void bny_algorithm_print(const bny_algorithm *algorithm, char *text, size_t bytes, size_t *length);

/* ", radix 4, 8 pieces": what an algorithm with several forms would take; nothing for the others. */
void bny_estimate_print_form(const bny_estimate *estimate, char *text, size_t bytes, size_t *length);

/* ---- the builder itself ------------------------------------------------------------------------------------------ */

typedef struct bny_key {
  int32_t phase, piece;
  int32_t low, high; /* ranks merged in it */
  int64_t frame;     /* 0: the one at hand */
} bny_key;

/* A frame: an algorithm as a part of another one, run by some of the ranks. It sees a request and ranks of its own; its
 * input is a merge of sources, and what it delivers goes to a function. Slots lie in the one outbox. */
typedef struct bny_frame {
  int64_t id;                 /* the same on all of its ranks; no other frame of theirs has it; > 0 */
  const bny_request *request; /* of `nranks` ranks */
  int32_t rank;               /* this one's number in it */
  const bny_source *input;    /* NULL: the input of the call */
  int64_t ninput;
  void (*deliver)(bny_builder *builder, void *context, const bny_slice *slice, const bny_source *sources,
                  int64_t count); /* runs outside of the frame */
  int32_t (*rank_outside)(const bny_builder *builder, const void *context, int32_t rank);
  void *context; /* of both functions */
  int32_t first_slot; /* the builder's own */
  size_t first_offset;
} bny_frame;

/* Where a frame's slots begin. */
typedef struct bny_frame_start {
  int64_t id;
  int32_t slot;
  size_t offset;
} bny_frame_start;

/* A further key of a slot. */
typedef struct bny_alias {
  bny_key key;
  int32_t slot;
} bny_alias;

enum { BNY_PHASE_PRIVATE = 0, BNY_PHASE_OWN, BNY_PHASE_REDUCE, BNY_PHASE_RESULT, BNY_PHASE_SPREAD };

struct bny_builder {
  const bny_request *request;
  const bny_algorithm *algorithm;
  int32_t rank;
  bool slots_only;
  banyan_status status;
  bny_plan *plan;
  struct bny_choices *choices; /* that parts of plans have made, see compose.h; NULL: none */
  const bny_request *whole; /* of the plan; `request` and `rank` are those of the frame */
  const bny_frame *frame;   /* NULL: none */
  bny_key *keys;            /* one per slot */
  bny_frame_start *starts;
  bny_alias *aliases;
  int32_t nstarts, naliases, starts_capacity, aliases_capacity;
  int32_t keys_capacity, slots_capacity, messages_capacity, sources_capacity, peers_capacity, steps_capacity;
  struct bny_peer_list *lists;
  struct bny_temporary *temporaries;
};

void bny_builder_init(bny_builder *builder, const bny_request *request, const bny_algorithm *algorithm, int32_t rank,
                      bool slots_only, bny_plan *plan);
void bny_builder_fini(bny_builder *builder); /* the plan remains */

bool bny_key_equal(bny_key a, bny_key b);

/* Zeroed memory that lives until bny_builder_fini(); NULL (and a sticky error) if there is none. */
void *bny_builder_allocate(bny_builder *builder, int64_t count, size_t item_bytes);

static inline bny_source bny_source_slot(int32_t slot) { return (bny_source){.slot = slot, .message = -1}; }

static inline bny_source bny_source_message(int32_t message) { return (bny_source){.slot = -1, .message = message}; }

/* Adds a slot for a slice and returns its index. */
int32_t bny_builder_slot(bny_builder *builder, const bny_slice *slice, bny_key key);
int32_t bny_builder_slot_private(bny_builder *builder, const bny_slice *slice);
bny_slot bny_builder_slot_entry(const bny_builder *builder, int32_t slot);

/* Gives a slot a further key. */
void bny_builder_alias(bny_builder *builder, int32_t slot, bny_key key);

/* Where the slots of the frame begin: an algorithm's first slot is this one, on its peers too. */
int32_t bny_builder_first_slot(const bny_builder *builder);
size_t bny_builder_first_offset(const bny_builder *builder);

/* Builds `algorithm` in a frame. */
void bny_builder_run(bny_builder *builder, bny_frame *frame, const bny_algorithm *algorithm);

/* COPY: the input over the slot's slice. */
void bny_builder_copy(bny_builder *builder, int32_t slot);

/* SEND to one peer, or to several. */
void bny_builder_send(bny_builder *builder, int32_t slot, int32_t peer);
void bny_builder_send_list(bny_builder *builder, int32_t slot, const int32_t *peers, int32_t count);

/* A message to be received; it still has to be waited for. */
int32_t bny_builder_receive(bny_builder *builder, int32_t peer, int32_t slot, const bny_slot *what);
int32_t bny_builder_receive_key(bny_builder *builder, int32_t peer, bny_key key);
void bny_builder_wait(bny_builder *builder, int32_t message);

/* MERGE over the slot's slice, DELIVER over a slice. More than BNY_MERGE_SOURCES_MAX sources are first merged in
 * aligned groups of that many (a power of two, so that the tree of neighbour pairs is the same) into private slots. */
void bny_builder_merge(bny_builder *builder, int32_t slot, const bny_source *sources, int64_t count);
void bny_builder_deliver(bny_builder *builder, const bny_slice *slice, const bny_source *sources, int64_t count);
void bny_builder_deliver_one(bny_builder *builder, const bny_slice *slice, bny_source source);

/* Private slots that grouping costs for `count` sources. */
int64_t bny_builder_group_slots(int64_t count);

/* The other ranks, rank + 1 first; bny_builder_allocate() memory of nranks - 1 entries. */
int32_t *bny_builder_others(bny_builder *builder);

/* ---- whole numbers ----------------------------------------------------------------------------------------------- */

static inline int32_t bny_modulo(int64_t value, int32_t n) {
  int64_t rest = value % n;
  return (int32_t)(rest < 0 ? rest + n : rest);
}

/* Smallest k with 2^k >= n, largest k with 2^k <= n (n >= 1). */
static inline int32_t bny_log2_ceil(int64_t n) {
  int32_t k = 0;
  while (((int64_t)1 << k) < n) k++;
  return k;
}

static inline int32_t bny_log2_floor(int64_t n) {
  int32_t k = 0;
  while (((int64_t)2 << k) <= n) k++;
  return k;
}

#endif
