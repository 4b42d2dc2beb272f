/* SPDX-License-Identifier: Apache-2.0
 * What has been sent so far in a symbolic run of plans (prove.c, cost.c): a map from (sender, slot, receiver) to when,
 * and to whether the receiver has waited for it. */
#ifndef BNY_PLAN_ARRIVAL_H
#define BNY_PLAN_ARRIVAL_H

#include <stdbool.h>
#include <stdint.h>

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

#endif
