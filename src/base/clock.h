/* SPDX-License-Identifier: Apache-2.0
 * The monotonic clock in nanoseconds, and the processor's own counter, which takes 10 ns to read. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline int64_t bny_clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns ticks at a constant rate, the same on all cores: from the time stamp counter, the generic timer, or in
 * nanoseconds. */
static inline uint64_t bny_clock_ticks(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return (uint64_t)bny_clock_ns();
#endif
}

/* The readings of both clocks at two moments, which convert any tick to a time. */
typedef struct bny_clock_scale {
  uint64_t tick0;
  int64_t ns0;
  double ns_per_tick;
} bny_clock_scale;

static inline bny_clock_scale bny_clock_scale_make(uint64_t tick0, int64_t ns0, uint64_t tick1, int64_t ns1) {
  return (bny_clock_scale){tick0, ns0, tick1 > tick0 ? (double)(ns1 - ns0) / (double)(tick1 - tick0) : 0};
}

static inline int64_t bny_clock_scale_ns(const bny_clock_scale *scale, uint64_t tick) {
  return scale->ns0 + (int64_t)((double)(int64_t)(tick - scale->tick0) * scale->ns_per_tick);
}
