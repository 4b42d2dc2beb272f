/* SPDX-License-Identifier: Apache-2.0
 * A plan is plain data: the steps of one rank in one run of one collective. It is a pure function of a request, which
 * holds only facts that are equal on every rank. It contains no user pointer.
 *
 * Memory model. Each rank owns an outbox. A *slot* is a message: a range of the owner's outbox that holds one slice (a
 * box of rows) in wire form, or a range of bytes. A run writes each slot exactly once and completely, by COPY or MERGE.
 * SEND makes a slot visible to peers, and a peer WAITs for it before it reads it. Several steps may send a slot. A slot
 * that is never sent is private scratch memory. The slots of a barrier hold nothing.
 *
 * Every value that is merged or delivered is read from a slot, never from the input directly. It has then been through
 * the wire format, and all ranks see the same bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "base/names.h"
#include "op.h"
#include "plan/levels.h"
#include "plan/payload.h"

/* The box of a request cut into `count` parts along one dimension; rank r owns parts [first[r], first[r + 1]). */
typedef struct bny_pieces {
  int32_t count;
  const int32_t *first; /* nranks + 1 */
} bny_pieces;

/* The input of planning: facts that are identical on every rank. */
typedef struct bny_request {
  bny_call call; /* its `tokens` and `algorithm` do not count here. The caller owns `counts` during planning */
  /* The box [token0, token0 + tokens) x [head0, head0 + heads) of the call's rows. It is the whole call unless that was
   * too large for the arena. Ownership refers to the whole call. */
  int32_t token0, tokens, head0, heads;
  int32_t nranks;
  int32_t slots_max;     /* the most slots that a rank may use */
  size_t outbox_bytes;   /* the part of an outbox that a plan may use */
  const char *algorithm; /* name, or NULL: by predicted cost */
  bny_link_cost cost;
  const bny_levels *levels; /* NULL: all ranks are alike, with links of `cost`. Else for nranks ranks; not owned */
  const bny_pieces *pieces; /* NULL: HEADS and TOKENS divide the whole call. Else they divide the box as given here */
} bny_request;

/* A box of rows in coordinates of the whole call. For bytes, `head0` and `heads` stay 0 and 1, and byte0 and bytes give
 * the range. */
typedef struct bny_slice {
  int32_t token0, tokens, head0, heads;
  size_t byte0, bytes;
} bny_slice;

typedef struct bny_slot {
  bny_slice slice; /* its content */
  size_t offset;   /* in the outbox, a multiple of 64 */
  size_t bytes;
} bny_slot;

/* A message of a peer: its slot, and where the slot lies in the peer's outbox. */
typedef struct bny_message {
  int32_t peer;
  int32_t slot;
  bny_slot what; /* a copy of the peer's own entry */
} bny_message;

/* The origin of a value: an own slot (message < 0) or a message. */
typedef struct bny_source {
  int32_t slot;    /* index into plan->slots, if message < 0 */
  int32_t message; /* index into plan->messages, or -1 */
} bny_source;

typedef enum bny_step_kind {
  BNY_STEP_COPY,   /* input slice -> slot */
  BNY_STEP_MERGE,  /* sources merged over slice -> slot. One source: forwarded (also for bytes) */
  BNY_STEP_SEND,   /* slot becomes visible to peers */
  BNY_STEP_WAIT,   /* blocks until message has arrived */
  BNY_STEP_DELIVER /* sources merged over slice -> the caller's result; complete rows. Bytes and heads: one source,
                    * copied */
} bny_step_kind;

typedef struct bny_step {
  bny_step_kind kind;
  int32_t slot;         /* COPY, MERGE: destination. SEND: the slot sent */
  int32_t message;      /* WAIT */
  int32_t first, count; /* MERGE, DELIVER: range of plan->sources, in merge order. SEND: range of plan->peers */
  bny_slice slice;      /* COPY, MERGE, DELIVER: within the slice of every source */
} bny_step;

typedef enum bny_plan_form {
  BNY_FORM_STEPS, /* step by step, as a program */
  BNY_FORM_DIRECT /* without steps: each rank's rows go straight to their owners, who merge them in the order of
                   * ranks */
} bny_plan_form;

/* With more ranks than this a plan has steps, because the kernels of the direct form address at most this many
 * arenas. */
enum { BNY_DIRECT_RANKS_MAX = 72 };

typedef struct bny_plan {
  bny_collective collective;
  const bny_payload *payload; /* facts of the collective */
  bny_plan_form form;
  int32_t rank, nranks;
  int32_t value_dim;
  bny_wire wire;
  size_t row_bytes;      /* bytes of a row's values in a message */
  int32_t roundings;     /* most roundings of a value to a lossy wire's type, from a rank to a delivery */
  bool round_nodes;      /* merged values are rounded to the wire format: canonical order on a lossy wire */
  const char *algorithm; /* static */
  const struct bny_algorithm *made_by;
  char *reason; /* why it was chosen; owned */
  double predicted_ns;
  uint64_t hash;       /* covers everything that decides the steps: request, algorithm, form. Identical on every rank */
  size_t outbox_bound; /* an upper bound for every rank, the same on all */
  int64_t slots_bound; /* likewise */
  size_t outbox_bytes; /* used by this rank. The rank's builder makes this field and those below */
  bny_slot *slots;
  bny_message *messages;
  bny_source *sources;
  int32_t *peers;
  bny_step *steps;
  int32_t nslots, nmessages, nsources, npeers, nsteps;
} bny_plan;

/* A checksum of the sources that decide on plans. Ranks of one communicator have the same. */
extern const uint32_t bny_plan_id;

/* Makes the plan of `rank`. On failure the thread's error text gives the reason (see status.h) and *plan is
 * untouched. */
banyan_status bny_plan_make(const bny_request *request, int32_t rank, bny_plan **plan);

/* Does the same from another rank's plan of this request, whose algorithm it takes, because choosing one takes longer
 * than planning. NULL: no other plan. */
banyan_status bny_plan_make_like(const bny_request *request, const bny_plan *like, int32_t rank, bny_plan **plan);
void bny_plan_free(bny_plan *plan); /* NULL is allowed */

/* The smallest outbox in which every algorithm for this many ranks can combine a row of BNY_LEAST_ROW_VALUES f32 values
 * over links of this cost. Algorithms that need more than slots_max slots are not considered. */
enum { BNY_LEAST_ROW_VALUES = 128 };
size_t bny_algorithm_least_outbox(int32_t nranks, int32_t slots_max, const bny_link_cost *cost);

/* Checks that a combine may name this algorithm, on some machine. If not, the error names `where` and lists the valid
 * names. */
banyan_status bny_algorithm_check_name(const char *where, const char *name);

/* Rows of a slice; and the part of the whole call that `rank` owns under request->scatter, intersected with the
 * request's box (all of the box for NONE and, on the root, ROOT; may be empty). */
int64_t bny_slice_rows(const bny_slice *slice);
bny_slice bny_slice_owned(const bny_request *request, int32_t rank);

/* Part `index` of `count` items divided among `parts` owners, as banyan_split() does. */
void bny_slice_split(int32_t count, int32_t parts, int32_t index, int32_t *first, int32_t *number);

/* Returns true if values are merged and the wire rounds them. */
bool bny_request_is_lossy(const bny_request *request);

/* Returns true if the kernels of BNY_FORM_DIRECT serve a request. */
bool bny_request_may_be_direct(const bny_request *request);

/* The first line of bny_plan_print(). */
size_t bny_plan_print_head(const bny_plan *plan, char *text, size_t bytes);

uint64_t bny_request_hash(const bny_request *request, const char *algorithm);

/* Like snprintf: one line per step. */
size_t bny_plan_print(const bny_plan *plan, char *text, size_t bytes);
