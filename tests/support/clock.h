/* SPDX-License-Identifier: Apache-2.0
 * Time in seconds, for tests that wait for others. */
#pragma once

#include <errno.h>
#include <time.h>

static inline double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Sleeps for the full time, even if signals arrive. */
static inline void sleep_s(double seconds) {
  struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  while (nanosleep(&time, &time) != 0 && errno == EINTR) continue;
}
