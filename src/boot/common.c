/* SPDX-License-Identifier: Apache-2.0
 * Deadlines of the bootstraps and lists of ranks in their error texts. */
#include "boot/common.h"

#include "base/deadline.h"
#include "base/process.h"
#include "base/status.h"

enum { RANKS_NAMED_AT_MOST = 16 };

int64_t bny_boot_deadline_ns(int64_t timeout_ns) {
  int64_t now = bny_deadline_now();
  if (timeout_ns <= 0) timeout_ns = BNY_BOOT_DEFAULT_TIMEOUT_NS;
  return timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}

banyan_status bny_boot_check_process(uint64_t process) {
  if (process == bny_process()) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_STATE, "bootstrap: this process is the child of a fork, and the bootstrap is its "
                                    "parent's: the child may destroy its copy and make one of its own");
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
