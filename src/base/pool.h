/* SPDX-License-Identifier: Apache-2.0
 * The threads of a rank. One caller at a time shares a task with them. A thread that comes late takes no part in the
 * task, and the caller never waits for it. */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

enum { BNY_POOL_THREADS_MAX = 1024, BNY_POOL_CPU_BYTES = 1024 };

/* The processors that the threads of a rank may use. */
typedef struct bny_pool_cpus {
  int32_t count;
  unsigned char mask[BNY_POOL_CPU_BYTES]; /* in the form of sched_getaffinity() */
} bny_pool_cpus;

typedef struct bny_pool bny_pool;

/* Starts `threads` - 1 threads, because the caller of bny_pool_run() also works. Each thread is bound to the processors
 * in `cpus` of one NUMA node; nodes are used in turn. NULL or a count of 0 binds none. */
banyan_status bny_pool_make(int32_t threads, const bny_pool_cpus *cpus, bny_pool **pool);

/* Makes a smaller pool if no more threads can be started, and logs that. */
banyan_status bny_pool_make_some(int32_t threads, const bny_pool_cpus *cpus, bny_pool **pool);

void bny_pool_free(bny_pool *pool); /* NULL is allowed */

int32_t bny_pool_threads(const bny_pool *pool); /* NULL: 1 */

/* Reserves the pool for this caller until bny_pool_give(). Returns NULL if the caller must work alone: the pool is
 * NULL, another caller has it, or this is the child of a fork, which has no threads. */
bny_pool *bny_pool_take(bny_pool *pool);
void bny_pool_give(bny_pool *pool); /* NULL is allowed */

/* Calls work(context, place) here with place 0, and in each thread that arrives in time with its own place. All of them
 * use the caller's current rounding mode and treatment of denormal numbers. Returns when all these calls have returned.
 * `work` takes parts of the whole until none is left, so any number of threads completes it. The pool must be reserved;
 * NULL: this caller works alone. */
void bny_pool_run(bny_pool *pool, void (*work)(void *context, int32_t place), void *context);

/* Returns memory of at least `bytes`, aligned to a cache line and valid until a call asks for more; NULL without
 * memory. The pool must be reserved. */
void *bny_pool_memory(bny_pool *pool, size_t bytes);
