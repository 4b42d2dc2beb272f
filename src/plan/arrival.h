/* SPDX-License-Identifier: Apache-2.0
 * A symbolic run of plans (prove.c, cost.c). What has been sent so far: a map from (sender, slot, receiver) to when,
 * and to whether the receiver has waited for it. And which ranks can go on: one that waits for a message is run again
 * when that has been sent, and not before. */
#ifndef BNY_PLAN_ARRIVAL_H
#define BNY_PLAN_ARRIVAL_H

#include "plan/plan.h"

typedef struct bny_arrival {
  int32_t sender, slot, receiver; /* sender < 0: free */
  bool taken;
  double when_ns;
} bny_arrival;

typedef struct bny_arrivals {
  bny_arrival *entries;
  uint64_t mask;
} bny_arrivals;

bool bny_arrivals_init(bny_arrivals *arrivals, int64_t most); /* false: no memory */
void bny_arrivals_fini(bny_arrivals *arrivals);
bny_arrival *bny_arrivals_find(const bny_arrivals *arrivals, int32_t sender, int32_t slot, int32_t receiver);
/* NULL if it is there already. At most `most` may be added. */
bny_arrival *bny_arrivals_add(bny_arrivals *arrivals, int32_t sender, int32_t slot, int32_t receiver);

typedef struct bny_ready {
  int32_t *queue; /* nranks of them, from `first` on, around */
  int32_t nranks, first, count;
  int32_t *next;  /* by rank: its next step */
  bool *waits;    /* by rank: that step is a WAIT for what has not been sent */
} bny_ready;

bool bny_ready_init(bny_ready *ready, int32_t nranks); /* all ranks are ready; false: no memory */
void bny_ready_fini(bny_ready *ready);
int32_t bny_ready_take(bny_ready *ready); /* a rank, or -1 */
/* Slot `slot` of `sender` has been sent to the rank of `receiver`, which may have waited for it. */
void bny_ready_wake(bny_ready *ready, const bny_plan *receiver, int32_t sender, int32_t slot);

#endif
