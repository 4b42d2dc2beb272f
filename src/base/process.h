/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BNY_PROCESS_H
#define BNY_PROCESS_H

#include <stdint.h>

/* Returns a number of the calling process, which the child of a fork does not share: who made an object keeps it, and
 * another process that has a copy sees that it is not the maker. Unlike a pid it differs in another pid namespace as
 * well. No system call but in the first call of a process. Hot. */
uint64_t bny_process(void);

#endif
