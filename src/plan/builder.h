/* SPDX-License-Identifier: Apache-2.0
 * The builder: how an algorithm writes down the plan of one rank.
 *
 * Errors are sticky: builder->status keeps the first failure and everything added after it is dropped. An algorithm
 * thus reads as a list of steps. Indices returned after a failure are 0 and must only be given back to the builder.
 *
 * How a rank knows the slots of its peers: a message names the peer's slot by index and carries a copy of the peer's
 * entry. There are two ways to get both.
 *
 * bny_builder_receive(): the algorithm computes index and entry by a formula. This costs nothing where all ranks number
 * their slots alike (oneshot, twoshot).
 *
 * bny_builder_receive_key(): slots carry a key (phase, piece, and the ranks [low, high) merged in it). The builder runs
 * the same algorithm for the peer in slots-only mode, which drops everything except slots. It keeps the peer's list and
 * finds the key in it. The list costs one run per peer received from, so this way suits algorithms with few peers.
 */
#pragma once

#include "plan/plan.h"
#include "plan/slice.h"

typedef struct bny_builder bny_builder;

/* How the messages of an algorithm spread over levels. */
typedef enum bny_pattern {
  BNY_PATTERN_ALL,      /* every rank exchanges with every other alike */
  BNY_PATTERN_DOUBLING, /* the distance to the peer doubles in each round; rounds are of one size */
  BNY_PATTERN_HALVING,  /* likewise, with half the bytes in each round; the spread doubles both in each round */
  BNY_PATTERN_RING      /* every rank exchanges with its two neighbours */
} bny_pattern;

/* The cost of an algorithm, the same on every rank: an estimate for the rank that finishes last, and bounds of memory
 * that no rank exceeds. */
typedef struct bny_estimate {
  double rounds;       /* times that a rank waits for data that another rank makes after the start */
  double messages;     /* received by one rank */
  double bytes;        /* received by one rank */
  double work_bytes;   /* encoded, merged, copied or delivered by one rank; every source counts */
  double sends;        /* messages of the rank that sends most; 0: as many as one rank receives */
  double bytes_sent;   /* by the rank that sends most */
  size_t outbox_bytes; /* with slots: bounds on any rank */
  int64_t slots;
  int32_t roundings;   /* most roundings of a combine's value up to a delivery, in plan order and on a lossy wire */
  bny_pattern pattern; /* the peers of these rounds and bytes, where the request has levels */
  double ns;           /* 0: bny_estimate_ns() computes it from the above */
  double level_bytes[BNY_LEVELS_MAX]; /* bytes_sent by level; filled by bny_algorithm_candidates() where ns is 0 */
  int32_t radix[BNY_LEVELS_MAX];      /* radix of a tree by level, or one for all levels; 0 ends the list */
  int32_t pieces;                     /* pieces in which a tree sends the box */
} bny_estimate;

typedef struct bny_algorithm {
  const char *name;    /* name that callers use */
  bool direct;         /* its combines have BNY_FORM_DIRECT if kernels support that */
  const char *variant; /* rows may share a name: the cheaper one is taken. NULL: no variants */
  const char *(*reject)(const bny_request *request); /* NULL: it serves this request; else the reason, static text */
  void (*estimate)(const bny_request *request, bny_estimate *estimate);
  void (*build)(bny_builder *builder);
} bny_algorithm;

extern const bny_algorithm *const bny_algorithms[]; /* ends with NULL */

/* Returns whether every rank has room for it. */
static inline bool bny_estimate_fits(const bny_request *request, const bny_estimate *estimate) {
  return estimate->outbox_bytes <= request->outbox_bytes && estimate->slots <= request->slots_max;
}

/* Predicted time in nanoseconds, from the request's link costs. */
double bny_estimate_ns(const bny_request *request, const bny_estimate *estimate);

/* Divides the bytes that a rank sends among the levels of links. */
void bny_estimate_spread(const bny_request *request, bny_estimate *estimate);

/* One algorithm in a selection. */
typedef struct bny_candidate {
  const bny_algorithm *algorithm;
  const char *rejection; /* static; NULL: it serves, and the fields below are set */
  bool named;            /* the request names it, or names none */
  bool fits;             /* into the outbox */
  bool chosen;           /* true for at most one */
  bny_estimate estimate;
  double ns; /* predicted */
} bny_candidate;

enum { BNY_CANDIDATES_MAX = 16 };

/* Sets the price of one algorithm to the time of the plans of all ranks if they have at most *messages messages, else
 * to infinity if some have no way. Otherwise it stays. Subtracts the messages of the plans that it has made. */
banyan_status bny_algorithm_price(const bny_request *request, const bny_algorithm *algorithm, int64_t *messages,
                                  double *ns);

/* Fills in all rows of the table in its order; returns their number, and 0 with an error if there is no memory. */
int32_t bny_algorithm_candidates(const bny_request *request, bny_candidate candidates[BNY_CANDIDATES_MAX]);

/* Chooses by name or by predicted cost. It is a pure function of the request, so every rank gets the same answer. The
 * caller owns *reason. */
banyan_status bny_algorithm_select(const bny_request *request, const bny_algorithm **algorithm, double *predicted_ns,
                                   char **reason);

/* Prints "oneshot", or "recursive_halving" where there is a variant. */
void bny_algorithm_print(const bny_algorithm *algorithm, char *text, size_t bytes, size_t *length);

/* Prints ", radix 4, 8 pieces" for an algorithm with several forms; nothing for others. */
void bny_estimate_print_form(const bny_estimate *estimate, char *text, size_t bytes, size_t *length);

/* ---- the builder itself ------------------------------------------------------------------------------------------ */

typedef struct bny_key {
  int32_t phase, piece;
  int32_t low, high; /* ranks merged in it */
  int64_t frame;     /* 0: the current frame */
} bny_key;

/* A frame: an algorithm that runs as a part of another one, on some of the ranks. It has its own request and rank
 * numbers. Its input is a merge of sources, and a function receives what it delivers. Its slots lie in the one
 * outbox. */
typedef struct bny_frame {
  int64_t id;                 /* > 0, the same on all of its ranks, and unique among the frames of each */
  const bny_request *request; /* describes `nranks` ranks */
  int32_t rank;               /* this rank's number in it */
  const bny_source *input;    /* NULL: the input of the call */
  int64_t ninput;
  void (*deliver)(bny_builder *builder, void *context, const bny_slice *slice, const bny_source *sources,
                  int64_t count); /* runs outside of the frame */
  int32_t (*rank_outside)(const bny_builder *builder, const void *context, int32_t rank);
  void *context;      /* argument of both functions */
  int32_t first_slot; /* set by the builder */
  size_t first_offset;
} bny_frame;

/* Where a frame's slots begin. */
typedef struct bny_frame_start {
  int64_t id;
  int32_t slot;
  size_t offset;
} bny_frame_start;

/* An additional key of a slot. */
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
  struct bny_choices *choices; /* choices made for parts of the plan, see compose.h; NULL: none */
  const bny_request *whole;    /* the plan's request; `request` and `rank` are those of the frame */
  const bny_frame *frame;      /* NULL: none */
  bny_key *keys;               /* one per slot */
  bny_frame_start *starts;
  bny_alias *aliases;
  int32_t nstarts, naliases, starts_capacity, aliases_capacity;
  int32_t keys_capacity, slots_capacity, messages_capacity, sources_capacity, peers_capacity, steps_capacity;
  struct bny_peer_list *lists;
  struct bny_temporary *temporaries;
};

void bny_builder_init(bny_builder *builder, const bny_request *request, const bny_algorithm *algorithm, int32_t rank,
                      bool slots_only, bny_plan *plan);
void bny_builder_fini(bny_builder *builder); /* does not free the plan */

bool bny_key_equal(bny_key a, bny_key b);

/* Returns zeroed memory that lives until bny_builder_fini(), or NULL with a sticky error if there is no memory. */
void *bny_builder_allocate(bny_builder *builder, int64_t count, size_t item_bytes);

/* Makes room for one more item in an array of such memory. False: there is no memory. */
bool bny_builder_grow(bny_builder *builder, void *array, int32_t *capacity, int32_t count, size_t item_bytes);

static inline bny_source bny_source_slot(int32_t slot) { return (bny_source){.slot = slot, .message = -1}; }

int32_t bny_builder_slot(bny_builder *builder, const bny_slice *slice, bny_key key);
int32_t bny_builder_slot_private(bny_builder *builder, const bny_slice *slice);
bny_slot bny_builder_slot_entry(const bny_builder *builder, int32_t slot);

void bny_builder_alias(bny_builder *builder, int32_t slot, bny_key key);

/* An algorithm's first slot and its offset in the frame, the same on its peers. */
int32_t bny_builder_first_slot(const bny_builder *builder);
size_t bny_builder_first_offset(const bny_builder *builder);

/* Builds `algorithm` in a frame. */
void bny_builder_run(bny_builder *builder, bny_frame *frame, const bny_algorithm *algorithm);

/* COPY: the input over the slot's slice. `made` also makes the slot, or returns -1 for an empty slice. */
void bny_builder_copy(bny_builder *builder, int32_t slot);
int32_t bny_builder_copy_made(bny_builder *builder, const bny_slice *slice, bny_key key);

/* SEND to one peer, or to several. */
void bny_builder_send(bny_builder *builder, int32_t slot, int32_t peer);
void bny_builder_send_list(bny_builder *builder, int32_t slot, const int32_t *peers, int32_t count);

/* WAIT for a message of a peer, which the source then names. */
bny_source bny_builder_receive(bny_builder *builder, int32_t peer, int32_t slot, const bny_slot *what);
bny_source bny_builder_receive_key(bny_builder *builder, int32_t peer, bny_key key);

/* Receives from all peers the slot whose entry equals that of own slot `own`, the rank before this one first. Returns
 * the sources by rank, with the own one; NULL on failure. */
const bny_source *bny_builder_receive_all(bny_builder *builder, int32_t own);

/* MERGE over the slot's slice, DELIVER over a slice. More than BNY_MERGE_SOURCES_MAX sources are first merged into
 * private slots, in aligned groups of that many. This is a power of two, so the tree of neighbour pairs stays the
 * same. */
void bny_builder_merge(bny_builder *builder, int32_t slot, const bny_source *sources, int64_t count);
void bny_builder_merge_or_copy(bny_builder *builder, int32_t slot, const bny_source *sources, int64_t count); /* 0 */
void bny_builder_deliver(bny_builder *builder, const bny_slice *slice, const bny_source *sources, int64_t count);
void bny_builder_deliver_one(bny_builder *builder, const bny_slice *slice, bny_source source);

/* Private slots that grouping needs for `count` sources. */
int64_t bny_builder_group_slots(int64_t count);

/* The number of times that grouping rounds a value. */
int32_t bny_builder_group_roundings(int64_t count);

/* Returns the other ranks, rank + 1 first: bny_builder_allocate() memory of nranks - 1 entries. */
int32_t *bny_builder_others(bny_builder *builder);

/* ---- whole numbers ----------------------------------------------------------------------------------------------- */

static inline int32_t bny_modulo(int64_t value, int32_t n) {
  int64_t rest = value % n;
  return (int32_t)(rest < 0 ? rest + n : rest);
}

/* The smallest k with 2^k >= n, and the largest k with 2^k <= n (n >= 1). */
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
