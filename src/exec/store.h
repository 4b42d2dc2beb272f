/* SPDX-License-Identifier: Apache-2.0
 * Chooses how to write a message that a peer will read: with plain stores, or with stores that bypass the caches.
 * Between cores that share a cache, plain stores win (4 to 7 ns a line). Between other cores, streaming wins by more
 * than twice (25 ns a line). In a virtual machine this changes at run time, so both ways are timed from time to time on
 * the writer's side. Each rank chooses for itself; the bits are the same. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bny_store {
  float ticks_per_line[2]; /* moving means: plain, streaming */
  uint32_t count;
  bool stream;
} bny_store;

typedef struct bny_store_timer {
  uint64_t begin;
  size_t lines;
  bool stream;
} bny_store_timer;

/* Shorter messages fit the store buffer, and use plain stores. */
enum { BNY_STORE_BYTES_MIN = 4096, BNY_STORE_TRY_EVERY = 256, BNY_STORE_TRIES_FIRST = 64 };

/* Returns ticks of the time stamp counter, 2 to 4 per nanosecond. 0: reading a counter is too slow, and stores are
 * plain. */
static inline uint64_t bny_store_ticks(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return 0;
#endif
}

static inline bny_store_timer bny_store_begin(bny_store *store, size_t bytes) {
  uint32_t count = store->count++;
  bool other = count < BNY_STORE_TRIES_FIRST ? count % 2 == 0 : count % BNY_STORE_TRY_EVERY == 0;
  return (bny_store_timer){bny_store_ticks(), bytes / 64, store->stream != other};
}

static inline void bny_store_end(bny_store *store, const bny_store_timer *timer) {
  enum { DEARER_TICKS = 24 };
  float *mean = &store->ticks_per_line[timer->stream];
  float ticks = (float)(bny_store_ticks() - timer->begin) / (float)timer->lines;
  /* Preemption and page faults only add time. So the mean falls faster than it rises, and rises by bounded steps. */
  if (*mean > 0 && ticks > 4 * *mean) ticks = 4 * *mean;
  *mean = *mean > 0 ? *mean + (ticks - *mean) / (ticks < *mean ? 4 : 16) : ticks;
  store->stream = store->ticks_per_line[1] > 0 && store->ticks_per_line[0] > store->ticks_per_line[1] + DEARER_TICKS;
}
