/* SPDX-License-Identifier: Apache-2.0
 * Helpers of all bootstraps: deadlines on the clock of clock.h, and names of ranks in error texts. */
#ifndef BNY_BOOT_COMMON_H
#define BNY_BOOT_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The meaning of a timeout of 0. */
#define BNY_BOOT_DEFAULT_TIMEOUT_NS ((int64_t)30 * 1000 * 1000 * 1000)

/* Returns the moment timeout_ns from now; 0 or less means the default. It never overflows. */
int64_t bny_boot_deadline_ns(int64_t timeout_ns);

/* Returns true after the moment, or if the caller has ended this thread's waits. */
bool bny_boot_is_late(int64_t moment_ns);

/* Returns the milliseconds until `moment_ns`: rounded up, never negative. */
int bny_boot_left_ms(int64_t moment_ns);

/* The same for poll() in a loop: at most the time until the next check for interrupts. */
int bny_boot_poll_ms(int64_t moment_ns);

/* Appends "rank 3" or "ranks 2, 3 and 5" for the ranks whose flag equals `wanted`. Long lists end in "and 9 more". */
void bny_boot_append_ranks(char *text, size_t bytes, size_t *length, const bool *flags, int32_t nranks, bool wanted);

#endif
