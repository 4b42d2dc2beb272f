/* SPDX-License-Identifier: Apache-2.0
 * The part of the proof that needs no run: every plan by itself is well formed, and its messages say what their
 * senders' plans say. After it, every index in a plan may be followed. */
#ifndef BNY_PLAN_CHECK_H
#define BNY_PLAN_CHECK_H

#include "plan/plan.h"

banyan_status bny_plan_check(const bny_request *request, const bny_plan *const *plans);

/* "rank 3, step 5 (merge): " and the words, as the thread's error. */
banyan_status bny_plan_fail(const bny_plan *plan, int32_t step, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
