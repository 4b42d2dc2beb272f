/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

/* Returns a number of the calling process that the child of a fork does not share. The maker of an object stores it, so
 * another process that has a copy sees that it is not the maker. Unlike a pid it also differs between pid namespaces.
 * Makes a system call only in the first call of a process. Hot. */
uint64_t bny_process(void);
