/* SPDX-License-Identifier: Apache-2.0
 * Implements the clock of deadlines. Long gaps between two readings by a thread do not advance it. */
#include "base/deadline.h"

#include <limits.h>

#include "banyan.h"
#include "base/clock.h"
#include "base/float_control.h"
#include "base/process.h"

static _Thread_local struct {
  int (*check)(void *context);
  void *context;
  int64_t next_ns;
  bool ended;
  bool (*also)(void *context);
  void *also_context;
} of_thread;

void banyan_on_wait(int (*check)(void *context), void *context) {
  of_thread.check = check;
  of_thread.context = context;
  of_thread.next_ns = 0;
  of_thread.ended = false;
}

void bny_interrupt_by(bool (*check)(void *context), void *context) {
  of_thread.also = check;
  of_thread.also_context = context;
}

bool bny_interrupted(void) {
  if (of_thread.also && of_thread.also(of_thread.also_context)) return true;
  if (!of_thread.check || of_thread.ended) return of_thread.ended;
  int64_t now_ns = bny_clock_ns();
  if (now_ns < of_thread.next_ns) return false;
  uint64_t process = bny_process();
  bny_float_lend();
  of_thread.ended = of_thread.check(of_thread.context) != 0 || process != bny_process();
  bny_float_take_back();
  of_thread.next_ns = bny_clock_ns() + BNY_INTERRUPT_MS * INT64_C(1000000);
  return of_thread.ended;
}

int64_t bny_deadline_now(void) {
  static _Thread_local int64_t seen_ns, lost_ns;
  int64_t now_ns = bny_clock_ns(), gap_ns = now_ns - seen_ns - BNY_DEADLINE_GAP_MS * INT64_C(1000000);
  if (seen_ns && gap_ns > 0) lost_ns += gap_ns;
  seen_ns = now_ns;
  return now_ns - lost_ns;
}

bool bny_deadline_is_late(int64_t moment_ns) { return bny_interrupted() || bny_deadline_now() >= moment_ns; }

int bny_deadline_left_ms(int64_t moment_ns) {
  int64_t left_ns = moment_ns - bny_deadline_now();
  if (left_ns <= 0) return 0;
  int64_t left_ms = (left_ns - 1) / 1000000 + 1;
  return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

int bny_deadline_poll_ms(int64_t moment_ns) {
  int left_ms = bny_deadline_left_ms(moment_ns);
  return bny_interrupted() ? 0 : left_ms > BNY_INTERRUPT_MS ? BNY_INTERRUPT_MS : left_ms;
}
