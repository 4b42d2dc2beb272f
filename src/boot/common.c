/* SPDX-License-Identifier: Apache-2.0
 * Deadlines of the bootstraps and lists of ranks in their error texts. */
#include "boot/common.h"

#include <limits.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/status.h"

enum { RANKS_NAMED_AT_MOST = 16 };

int64_t bny_boot_deadline_ns(int64_t timeout_ns) {
  int64_t now = bny_clock_ns();
  if (timeout_ns <= 0) timeout_ns = BNY_BOOT_DEFAULT_TIMEOUT_NS;
  return timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}

bool bny_boot_is_late(int64_t moment_ns) { return bny_interrupted() || bny_clock_ns() >= moment_ns; }

int bny_boot_left_ms(int64_t moment_ns) {
  int64_t left_ns = moment_ns - bny_clock_ns();
  if (left_ns <= 0) return 0;
  int64_t left_ms = (left_ns - 1) / 1000000 + 1;
  return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

int bny_boot_poll_ms(int64_t moment_ns) {
  if (bny_interrupted()) return 0;
  int left_ms = bny_boot_left_ms(moment_ns);
  return bny_interruptible() && left_ms > BNY_INTERRUPT_MS ? BNY_INTERRUPT_MS : left_ms;
}

void bny_boot_append_ranks(char *text, size_t bytes, size_t *length, const bool *flags, int32_t nranks, bool wanted) {
  int32_t total = 0;
  for (int32_t rank = 0; rank < nranks; rank++) total += flags[rank] == wanted;
  int32_t named = total > RANKS_NAMED_AT_MOST ? RANKS_NAMED_AT_MOST : total;
  bny_append(text, bytes, length, total == 1 ? "rank " : "ranks ");
  int32_t done = 0;
  for (int32_t rank = 0; rank < nranks && done < named; rank++) {
    if (flags[rank] != wanted) continue;
    const char *before = done == 0 ? "" : done + 1 == total ? " and " : ", ";
    bny_append(text, bytes, length, "%s%d", before, rank);
    done++;
  }
  if (total > named) bny_append(text, bytes, length, " and %d more", total - named);
}
