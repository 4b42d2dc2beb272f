/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BNY_BOOT_THREADS_H
#define BNY_BOOT_THREADS_H

#include <stdbool.h>

#include "banyan.h"

/* Whether the ranks of this bootstrap are threads of one process, so that pointers mean the same on all of them. */
bool bny_bootstrap_is_threads(const banyan_bootstrap *bootstrap);

#endif
