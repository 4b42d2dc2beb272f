/* SPDX-License-Identifier: Apache-2.0
 * Runs the check of banyan_on_wait(), which can end the waits of a thread early. */
#include "base/interrupt.h"

#include <stddef.h>

#include "banyan.h"
#include "base/clock.h"

static _Thread_local struct {
  int (*check)(void *context);
  void *context;
  int64_t next_ns;
  bool ended;
} of_thread;

void banyan_on_wait(int (*check)(void *context), void *context) {
  of_thread.check = check;
  of_thread.context = context;
  of_thread.next_ns = 0;
  of_thread.ended = false;
}

bool bny_interruptible(void) { return of_thread.check != NULL; }

bool bny_interrupted(void) {
  if (!of_thread.check || of_thread.ended) return of_thread.ended;
  int64_t now_ns = bny_clock_ns();
  if (now_ns < of_thread.next_ns) return false;
  of_thread.ended = of_thread.check(of_thread.context) != 0;
  of_thread.next_ns = bny_clock_ns() + BNY_INTERRUPT_MS * INT64_C(1000000);
  return of_thread.ended;
}
