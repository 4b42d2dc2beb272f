/* SPDX-License-Identifier: Apache-2.0
 * The bootstrap's all-gather with a deadline, and the report of one rank's failure to all ranks. */
#include "boot/exchange.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/deadline.h"
#include "base/status.h"

banyan_status bny_exchange_all(const bny_exchange *exchange, const void *mine, void *all, size_t bytes) {
  int64_t left_ns = exchange->deadline_ns - bny_deadline_now();
  if (left_ns <= 0)
    return bny_fail(BANYAN_ERR_TIMEOUT, "the deadline passed while ranks were getting to know each other");
  const banyan_bootstrap *bootstrap = exchange->bootstrap;
  bny_fail(BANYAN_OK, "%s", "");
  int result = bootstrap->allgather(bootstrap->context, mine, all, bytes, left_ns);
  if (result == 0) return BANYAN_OK;
  /* The bootstraps of this library leave a text and return a status. */
  const char *why = banyan_last_error();
  if (*why && result > BANYAN_OK && result <= BANYAN_ERR_ABORTED) return bny_fail((banyan_status)result, "%s", why);
  return bny_fail(BANYAN_ERR_BOOTSTRAP, "the bootstrap's allgather failed on rank %d: it returned %d", bootstrap->rank,
                  result);
}

typedef struct report {
  int32_t status, waits;
  char why[BNY_REPORT_BYTES - 2 * sizeof(int32_t)];
} report;

_Static_assert(sizeof(report) == BNY_REPORT_BYTES, "no padding");

/* A failed rank waits for only a part of its time, because the rank at fault may never come. */
static bny_exchange shortened(const bny_exchange *exchange, bool has_failed) {
  int64_t now_ns = bny_deadline_now(), left_ns = exchange->deadline_ns - now_ns;
  return (bny_exchange){exchange->bootstrap, has_failed ? now_ns + left_ns / 4 : exchange->deadline_ns};
}

banyan_status bny_exchange_settle_round(const bny_exchange *exchange, banyan_status own, const char *what,
                                        bool *waits) {
  int32_t nranks = exchange->bootstrap->nranks;
  report mine = {.status = (int32_t)own, .waits = *waits}, *all = calloc((size_t)nranks, sizeof *all);
  if (own != BANYAN_OK) snprintf(mine.why, sizeof mine.why, "%s", banyan_last_error());
  if (!all)
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to meet %d ranks", exchange->bootstrap->rank, nranks);
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error()); /* the exchange sets texts of its own */
  bny_exchange bounded = shortened(exchange, own != BANYAN_OK);
  banyan_status status = bny_exchange_all(&bounded, &mine, all, sizeof mine);
  if (own != BANYAN_OK) status = bny_fail(own, "%s", why);
  *waits = false;
  for (int32_t i = 0; i < nranks && status == BANYAN_OK; i++) {
    *waits = *waits || all[i].waits;
    if (all[i].status != BANYAN_OK)
      status =
          bny_fail((banyan_status)all[i].status, "rank %d %s: %.*s", i, what, (int)sizeof all[i].why - 1, all[i].why);
  }
  free(all);
  return status;
}

banyan_status bny_exchange_settle(const bny_exchange *exchange, banyan_status own, const char *what) {
  bool waits = false;
  return bny_exchange_settle_round(exchange, own, what, &waits);
}
