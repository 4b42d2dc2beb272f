/* SPDX-License-Identifier: Apache-2.0
 * Proofs of plans: the interface for callers, and what the files of this folder share. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "plan/plan.h"
#include "tools/common/util.h"

/* The proof of plans and their cost, for tests and tools. The plans of all ranks are examined together. Memory is from
 * tool_new() (util.h), and both calls release theirs. */

/* Proves symbolically that the plans of all ranks have these properties:
 * - Every contribution is merged exactly once into everything that is delivered.
 * - Exactly the owned rows are delivered, once.
 * - All ranks that deliver a row deliver the same expression, and hence the same bits. With canonical order it is the
 * canonical expression.
 * - Every wait has a send that is executed, so there is no deadlock.
 * - Nothing is read before it has arrived, and no slot is written twice or while it can still be read.
 * - Slots lie within the outbox and do not overlap.
 * Returns BANYAN_OK, or BANYAN_ERR_STATE with a text that names rank, step and reason. */
banyan_status bny_plan_prove(const bny_request *request, const bny_plan *const *plans);

/* Expressions of a symbolic run. A leaf is what a rank copied from its input, and an inner node is the merge of two
 * expressions. Equal expressions have equal numbers, so comparing bits is comparing integers. */

typedef struct bny_expression {
  int32_t left, right; /* -1: a leaf */
  bool rounded;        /* rounded to the wire format; always true for a leaf */
  int32_t roundings;   /* largest number of roundings of a leaf */
  int32_t leaves;
  int32_t low, high; /* all contributions in it come from ranks [low, high) */
  uint64_t *set;     /* bit r % 64 of word r / 64 - low / 64 is set if rank r is in it; NULL: all of [low, high) */
} bny_expression;

/* Expression number r < nranks is the leaf of rank r. Merged ranks are mostly consecutive, so most sets are stored as
 * their two ends. */
typedef struct bny_expressions {
  int32_t nranks;
  bny_expression *nodes;
  int32_t count;
  int32_t *table; /* number + 1, by hash */
  int32_t table_size;
} bny_expressions;

enum { BNY_EXPRESSION_NONE = -1, BNY_EXPRESSION_TWICE = -2 };

bny_expressions bny_expressions_make(int32_t nranks);

/* Returns the number of the merge of two expressions. If both contain the same contribution, it returns
 * BNY_EXPRESSION_TWICE and sets *rank to the rank of that contribution. */
int32_t bny_expressions_merge(bny_expressions *all, int32_t left, int32_t right, bool rounded, int32_t *rank);

/* Returns the expression of the same value, rounded to the wire format. */
int32_t bny_expressions_round(bny_expressions *all, int32_t number);

/* Returns a rank whose contribution is missing; -1 if there is none. */
int32_t bny_expressions_missing(const bny_expressions *all, int32_t number);

/* The state of a symbolic run of plans. A map from (sender, slot, receiver) records when a message
 * was sent, and whether the receiver has waited for it. A queue holds the ranks that can proceed. A waiting rank enters
 * the queue again only when its message has been sent. */

typedef struct bny_arrival {
  int32_t sender, slot, receiver; /* sender < 0: free */
  bool taken;
} bny_arrival;

typedef struct bny_arrivals {
  bny_arrival *entries;
  uint64_t mask;
} bny_arrivals;

bny_arrivals bny_arrivals_make(int64_t most);
bny_arrival *bny_arrivals_find(const bny_arrivals *arrivals, int32_t sender, int32_t slot, int32_t receiver);
/* Returns NULL if the entry exists already. At most `most` entries may be added. */
bny_arrival *bny_arrivals_add(bny_arrivals *arrivals, int32_t sender, int32_t slot, int32_t receiver);

typedef struct bny_ready {
  int32_t *queue; /* a ring of nranks entries that begins at `first` */
  int32_t nranks, first, count;
  int32_t *next; /* by rank: its next step */
  bool *waits;   /* by rank: it waits for a message that has not been sent */
} bny_ready;

bny_ready bny_ready_make(int32_t nranks); /* all ranks are ready */
int32_t bny_ready_take(bny_ready *ready); /* a rank, or -1 */
/* Records that slot `slot` of `sender` was sent to the rank of `receiver`, and wakes that rank if it waits for the
 * slot. */
void bny_ready_wake(bny_ready *ready, const bny_plan *receiver, int32_t sender, int32_t slot);

/* Checks what the ranks deliver in a symbolic run: no row twice, and the same expression of a row on all ranks. */

typedef struct bny_delivery {
  int32_t rank, step;
  int32_t value; /* expression */
} bny_delivery;

/* `deliveries` has those of all ranks, rank by rank. Each is within the rows that its rank owns, and not empty. */
banyan_status bny_deliveries_check(const bny_request *request, const bny_plan *const *plans,
                                   const bny_delivery *deliveries, int64_t count);

/* Checks the part of the proof that needs no run: every plan is well formed, and its messages agree with the plans of
 * their senders. Afterwards every index in a plan is valid. */

banyan_status bny_plan_check(const bny_request *request, const bny_plan *const *plans);

/* Sets the thread's error to "rank 3, step 5 (merge): " and the text. */
banyan_status bny_plan_fail(const bny_plan *plan, int32_t step, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
