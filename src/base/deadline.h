/* SPDX-License-Identifier: Apache-2.0
 * The clock of deadlines. A waiting thread reads it at least every BNY_INTERRUPT_MS. A longer gap between two readings
 * does not count, because the process was stopped or busy and did not observe its peers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The part of a longer gap that still counts. It exceeds the pauses of a thread on a busy machine. */
enum { BNY_DEADLINE_GAP_MS = 250 };

/* Returns this thread's time in nanoseconds: the monotonic clock without gaps. Other threads cannot compare with it. */
int64_t bny_deadline_now(void);

/* Returns true once the moment has come, or the caller has ended this thread's waits. */
bool bny_deadline_is_late(int64_t moment_ns);

/* Milliseconds until `moment_ns`: rounded up, never negative. */
int bny_deadline_left_ms(int64_t moment_ns);

/* Does the same for poll(), and returns at most the time until the next look. */
int bny_deadline_poll_ms(int64_t moment_ns);

/* The longest time that a wait may last between two calls of bny_interrupted(). */
enum { BNY_INTERRUPT_MS = 50 };

/* Returns true if the check of banyan_on_wait() has ended the waits of this thread, or has forked and this is the
 * child. The child must write nothing that it shares with its parent, so the caller then compares its owner with
 * bny_process(). Calls the check at most every BNY_INTERRUPT_MS. */
bool bny_interrupted(void);

/* Also calls `check` in every wait of this thread, and ends the wait while it returns true; NULL: no more. It must
 * be fast and may not wait. */
void bny_interrupt_by(bool (*check)(void *context), void *context);
