/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BNY_CORES_H
#define BNY_CORES_H

#include "comm/facts.h"

/* Divides the cores of this rank's machine among its ranks. Each gets cores of its own binding. No core is in two
 * shares, every core that a rank may use is in one, and no other division gives more cores to the rank with the fewest.
 * A rank for which no core is left shares one. */
banyan_status bny_cores_divide(const bny_facts *all, int32_t nranks, int32_t rank, bny_pool_cpus *own);

#endif
