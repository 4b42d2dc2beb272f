/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BNY_CORES_H
#define BNY_CORES_H

#include "comm/facts.h"

/* Divides the cores of this rank's machine among its ranks, each of which gets cores of its binding alone. No core is
 * in two shares, none that a rank may use is left over, and no other division gives the rank with the fewest cores more
 * of them. A rank for which no core is left gets one that others have too. */
banyan_status bny_cores_divide(const bny_facts *all, int32_t nranks, int32_t rank, bny_pool_cpus *own);

#endif
