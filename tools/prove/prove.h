/* SPDX-License-Identifier: Apache-2.0
 *
 * The proof of plans and their cost, for tests and tools. Plans of all ranks are looked at together. */
#ifndef BNY_PROVE_H
#define BNY_PROVE_H

#include "plan/plan.h"

/* Proves the plans of all ranks together, symbolically:
 * - Every contribution is merged exactly once into everything that is delivered.
 * - Exactly the owned rows are delivered, once.
 * - All ranks that deliver a row deliver the same expression, so the same bits; with canonical order it is the
 * canonical one.
 * - Every wait is met by a send that happens, so there is no deadlock.
 * - Nothing is read before it has arrived, and no slot is written twice or while it can still be read.
 * - Slots lie within the outbox and do not overlap.
 * Returns BANYAN_OK, or BANYAN_ERR_STATE with a text that names rank, step and reason. */
banyan_status bny_plan_prove(const bny_request *request, const bny_plan *const *plans);

/* Predicts the time of one run from the plans' own steps, all ranks starting together: critical path in alpha, beta,
 * gamma. */
double bny_plan_cost_ns(const bny_request *request, const bny_plan *const *plans);

#endif
