/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BNY_INTERRUPT_H
#define BNY_INTERRUPT_H

#include <stdbool.h>

/* The longest time that a wait may last between two calls of bny_interrupted(). */
enum { BNY_INTERRUPT_MS = 50 };

/* Returns true if the check of banyan_on_wait() has ended the waits of this thread. It calls the check at most every
 * BNY_INTERRUPT_MS. */
bool bny_interrupted(void);

/* Returns true if this thread has such a check. */
bool bny_interruptible(void);

#endif
