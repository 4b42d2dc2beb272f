/* SPDX-License-Identifier: Apache-2.0
 * The monotonic clock, in nanoseconds. */
#ifndef BNY_CLOCK_H
#define BNY_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t bny_clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
