/* SPDX-License-Identifier: Apache-2.0
 * Limits the address space, so that a thread cannot be started because its stack does not fit. */
#pragma once

#include <sys/resource.h>
#include "tests/support/suite.h"

/* Limits this process to this many further bytes, and returns the previous limit. */
static inline struct rlimit space_limit(size_t left_bytes) {
  unsigned long pages = 0;
  struct rlimit before, limit;
  FILE *file = fopen("/proc/self/statm", "re");
  ck_assert(file != NULL && fscanf(file, "%lu", &pages) == 1);
  fclose(file);
  ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
  limit = before;
  limit.rlim_cur = pages * (size_t)sysconf(_SC_PAGESIZE) + left_bytes;
  ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
  return before;
}
