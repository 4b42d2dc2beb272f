/* SPDX-License-Identifier: Apache-2.0
 * Checks what the ranks deliver in a symbolic run: no row twice, and every row the same on all ranks. */
#ifndef BNY_TOOLS_PROVE_DELIVERY_H
#define BNY_TOOLS_PROVE_DELIVERY_H

#include "plan/plan.h"

typedef struct bny_delivery {
  int32_t rank, step;
  int32_t value; /* expression */
} bny_delivery;

/* `deliveries` are those of all ranks, one after another. Each is within what its rank owns, and not empty. */
banyan_status bny_deliveries_check(const bny_request *request, const bny_plan *const *plans,
                                   const bny_delivery *deliveries, int64_t count);

#endif
