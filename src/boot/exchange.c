/* SPDX-License-Identifier: Apache-2.0
 * Implements deadlines and error texts of bootstraps, the all-gather with a deadline, reports of a rank's failure to
 * all ranks, and exchanges of groups. */
#include "boot/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadline.h"
#include "base/float_control.h"
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

banyan_status bny_exchange_all(const bny_exchange *exchange, const void *mine, void *all, size_t bytes) {
  int64_t left_ns = exchange->deadline_ns - bny_deadline_now();
  if (left_ns <= 0)
    return bny_fail(BANYAN_ERR_TIMEOUT,
                    "the deadline passed before ranks had exchanged their settings (timeout_ns is in ns; 0: 30 s)");
  const banyan_bootstrap *bootstrap = exchange->bootstrap;
  banyan_status status = bny_boot_check_process(exchange->process);
  if (status != BANYAN_OK) return status;
  bny_fail(BANYAN_OK, "%s", "");
  bny_float_lend();
  int result = bootstrap->allgather(bootstrap->context, mine, all, bytes, left_ns);
  bny_float_take_back();
  status = bny_boot_check_process(exchange->process); /* a callback may have forked, and this may be the child */
  if (result == 0 || status != BANYAN_OK) return status;
  /* The bootstraps of this library set an error text and return a status. */
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

/* A failed rank waits for only a part of its time, because the rank at fault may never arrive. */
static bny_exchange shortened(const bny_exchange *exchange, bool has_failed) {
  int64_t now_ns = bny_deadline_now(), left_ns = exchange->deadline_ns - now_ns;
  return (bny_exchange){exchange->bootstrap, has_failed ? now_ns + left_ns / 4 : exchange->deadline_ns,
                        exchange->process};
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

/* ---- groups ------------------------------------------------------------------------------------------------------
 * Ranks of another group may have other data, or have ended. So every round begins with the size that each rank has,
 * and a round in which all sizes are 0 is the last. */

static banyan_status make_room(bny_group_exchange *group, size_t bytes) {
  size_t blocks = (size_t)group->all->bootstrap->nranks + 1; /* the last is this rank's own */
  if (bytes <= group->room) return BANYAN_OK;
  char *grown = bytes <= SIZE_MAX / blocks ? realloc(group->blocks, blocks * bytes) : NULL;
  if (!grown)
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for an exchange of a group's ranks",
                    group->all->bootstrap->rank);
  group->blocks = grown;
  group->room = bytes;
  return BANYAN_OK;
}

/* With 0 bytes this rank has ended. */
static banyan_status take_turn(bny_group_exchange *group, const void *mine, size_t bytes) {
  int32_t nranks = group->all->bootstrap->nranks;
  uint64_t own = bytes, most = 0;
  banyan_status status = bny_exchange_all(group->all, &own, group->sizes, sizeof own);
  for (int32_t i = 0; i < nranks && status == BANYAN_OK; i++) most = group->sizes[i] > most ? group->sizes[i] : most;
  group->status = status;
  group->ended = status != BANYAN_OK || most == 0;
  if (group->ended) return status;
  status = make_room(group, most);
  char *block = group->blocks + (size_t)nranks * most;
  if (status == BANYAN_OK) memset(block, 0, most);
  if (status == BANYAN_OK && bytes) memcpy(block, mine, bytes);
  if (status == BANYAN_OK) status = bny_exchange_all(group->all, block, group->blocks, most);
  group->status = status;
  group->ended = status != BANYAN_OK;
  return status;
}

static int gather_group(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  bny_group_exchange *group = context;
  (void)timeout_ns; /* the exchange has its own */
  banyan_status status = take_turn(group, mine, bytes);
  if (status != BANYAN_OK) return (int)status;
  uint64_t most = 0;
  for (int32_t i = 0; i < group->all->bootstrap->nranks; i++) most = group->sizes[i] > most ? group->sizes[i] : most;
  for (int32_t i = 0; i < group->bootstrap.nranks; i++) {
    int32_t rank = group->ranks[i];
    if (group->sizes[rank] != bytes)
      return (int)bny_fail(BANYAN_ERR_STATE, "rank %d did not continue the exchange of its group", rank);
    memcpy((char *)all + (size_t)i * bytes, group->blocks + (size_t)rank * most, bytes);
  }
  return BANYAN_OK;
}

banyan_status bny_group_exchange_begin(const bny_exchange *all, const int32_t *group_of, bny_group_exchange *group) {
  const banyan_bootstrap *bootstrap = all->bootstrap;
  size_t nranks = (size_t)bootstrap->nranks;
  *group = (bny_group_exchange){.all = all};
  group->ranks = calloc(nranks, sizeof *group->ranks);
  group->sizes = calloc(nranks, sizeof *group->sizes);
  if (!group->ranks || !group->sizes) {
    free(group->ranks), free(group->sizes);
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for a communicator of %zu ranks", bootstrap->rank,
                    nranks);
  }
  group->bootstrap = (banyan_bootstrap){.size = sizeof group->bootstrap, .context = group, .allgather = gather_group};
  for (int32_t i = 0; i < bootstrap->nranks; i++) {
    if (group_of[i] != group_of[bootstrap->rank]) continue;
    if (i == bootstrap->rank) group->bootstrap.rank = group->bootstrap.nranks;
    group->ranks[group->bootstrap.nranks++] = i;
  }
  group->exchange = (bny_exchange){&group->bootstrap, all->deadline_ns, all->process};
  return BANYAN_OK;
}

banyan_status bny_group_exchange_end(bny_group_exchange *group) {
  while (!group->ended) take_turn(group, NULL, 0);
  free(group->ranks);
  free(group->sizes);
  free(group->blocks);
  return group->status;
}
