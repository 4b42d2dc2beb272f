/* SPDX-License-Identifier: Apache-2.0
 * The part of the proof that needs no run. Every plan is well formed by itself, and its messages agree with the plans
 * of their senders. After this check, every index in a plan may be followed. */
#ifndef BNY_TOOLS_PROVE_CHECK_H
#define BNY_TOOLS_PROVE_CHECK_H

#include "plan/plan.h"

banyan_status bny_plan_check(const bny_request *request, const bny_plan *const *plans);

/* Sets the thread's error to "rank 3, step 5 (merge): " and the text. */
banyan_status bny_plan_fail(const bny_plan *plan, int32_t step, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
