/* SPDX-License-Identifier: Apache-2.0
 * The state of a symbolic run of plans (prove.c, cost.c). A map from (sender, slot, receiver) records when a message
 * was sent, and whether the receiver has waited for it. A queue holds the ranks that can proceed. A waiting rank enters
 * it again only when its message has been sent. */
#ifndef BNY_TOOLS_PROVE_ARRIVAL_H
#define BNY_TOOLS_PROVE_ARRIVAL_H

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
/* NULL: it exists already. At most `most` may be added. */
bny_arrival *bny_arrivals_add(bny_arrivals *arrivals, int32_t sender, int32_t slot, int32_t receiver);

typedef struct bny_ready {
  int32_t *queue; /* a ring of nranks entries that begins at `first` */
  int32_t nranks, first, count;
  int32_t *next; /* by rank: its next step */
  bool *waits;   /* by rank: that step is a WAIT for a message that has not been sent */
} bny_ready;

bool bny_ready_init(bny_ready *ready, int32_t nranks); /* all ranks are ready; false: no memory */
void bny_ready_fini(bny_ready *ready);
int32_t bny_ready_take(bny_ready *ready); /* a rank, or -1 */
/* Slot `slot` of `sender` has been sent to the rank of `receiver`. Wakes that rank if it waits for the slot. */
void bny_ready_wake(bny_ready *ready, const bny_plan *receiver, int32_t sender, int32_t slot);

#endif
