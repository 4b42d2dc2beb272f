/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>

/* The stack size of a thread, for any RLIMIT_STACK. banyan_attention.h promises that attention takes at most 768 KiB.
 * The rest is for thread-local memory of the program and for sanitizers. */
enum { BNY_THREAD_STACK_BYTES = 2 << 20 };

/* Starts a thread that blocks all signals except those that faults raise, so that other handlers run in the program's
 * threads. Returns 0 or an errno. */
int bny_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument);

/* Hints to the processor that this thread polls, so that the other thread of its core gets more of it. */
static inline void bny_thread_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}
