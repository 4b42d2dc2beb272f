/* SPDX-License-Identifier: Apache-2.0
 * Helpers of all bootstraps: deadlines on the clock of deadline.h, and names of ranks in error texts. */
#ifndef BNY_BOOT_COMMON_H
#define BNY_BOOT_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

/* The meaning of a timeout of 0. */
#define BNY_BOOT_DEFAULT_TIMEOUT_NS ((int64_t)30 * 1000 * 1000 * 1000)

/* Returns the moment timeout_ns from now; 0 or less means the default. It never overflows. */
int64_t bny_boot_deadline_ns(int64_t timeout_ns);

/* Rejects the child of a fork, whose parent `process` (by bny_process()) made what it uses. */
banyan_status bny_boot_check_process(uint64_t process);

/* Appends "rank 3" or "ranks 2, 3 and 5" for the ranks whose flag equals `wanted`. Long lists end in "and 9 more". */
void bny_boot_append_ranks(char *text, size_t bytes, size_t *length, const bool *flags, int32_t nranks, bool wanted);

#endif
