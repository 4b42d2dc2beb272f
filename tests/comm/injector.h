/* SPDX-License-Identifier: Apache-2.0
 * Ends or stops this process at one of its system calls. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

typedef enum injector_deed { INJECTOR_STOP = 1, INJECTOR_DIE } injector_deed;

/* Returns true if system calls can be trapped on this machine. */
bool injector_works(void);

/* Counts the calling thread's system calls from here on; a run of waiting calls counts as one. Before call number `at`
 * (0: none), sets *has_happened, and stops or ends the process. Use it once per process: the trap stays installed and
 * slows every call. */
void injector_arm(injector_deed deed, int at, atomic_int *has_happened);

/* Returns the number of counted calls. */
int injector_disarm(void);
