/* SPDX-License-Identifier: Apache-2.0
 * The time of the plans of all ranks together, from the load that their messages put on links. */
#pragma once

#include "plan/plan.h"

/* Returns infinity if a message has no way, and a negative number if there is no memory. */
double bny_plans_ns(const bny_request *request, bny_plan *const *plans);

/* The time of a step other than SEND and WAIT on its rank, which works on a byte for so long. */
double bny_step_ns(const bny_request *request, const bny_plan *plan, const bny_step *step, double gamma_ns_per_byte);
