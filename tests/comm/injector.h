/* SPDX-License-Identifier: Apache-2.0
 * Ends or stops this process at one of its system calls. */
#ifndef BNY_TESTS_INJECTOR_H
#define BNY_TESTS_INJECTOR_H

#include <stdatomic.h>
#include <stdbool.h>

typedef enum injector_deed { INJECTOR_STOP = 1, INJECTOR_DIE } injector_deed;

/* Returns true if system calls can be trapped on this machine. */
bool injector_works(void);

/* From now on the calling thread's system calls are counted, a run of calls that wait as one. Before number `at` (0:
 * none) *has_happened is set and the deed done. Once in a process: the trap stays, and costs time. */
void injector_arm(injector_deed deed, int at, atomic_int *has_happened);

/* Returns how many were counted. */
int injector_disarm(void);

#endif
