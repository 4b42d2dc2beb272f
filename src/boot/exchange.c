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
  if (result == 0 && status == BANYAN_OK && bytes > 0 &&
      memcmp((const char *)all + (size_t)bootstrap->rank * bytes, mine, bytes) != 0)
    return bny_fail(BANYAN_ERR_BOOTSTRAP,
                    "the bootstrap's allgather gave rank %d other bytes at its own place than it passed: it must write "
                    "the bytes of all ranks in rank order",
                    bootstrap->rank);
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
 * Ranks of another group may have other data, or have ended. So each rank sends blocks until the one with the most data
 * has sent all of it. Every block begins with the size that its rank has, and if all sizes are 0, that was the last. */

enum { DATA_BYTES = BNY_GROUP_BLOCK_BYTES - sizeof(uint64_t) };

/* Copies the data of this group's blocks to their places in `every`, which has `bytes` bytes of each rank. */
static void take_blocks(const bny_group_exchange *group, char *every, size_t bytes, size_t done) {
  size_t part = done < bytes ? bytes - done : 0;
  if (part > DATA_BYTES) part = DATA_BYTES;
  for (int32_t i = 0; part && i < group->bootstrap.nranks; i++) {
    const char *block = group->blocks + (size_t)group->ranks[i] * BNY_GROUP_BLOCK_BYTES;
    memcpy(every + (size_t)i * bytes + done, block + sizeof(uint64_t), part);
  }
}

/* With 0 bytes this rank has ended. */
static banyan_status take_turn(bny_group_exchange *group, const char *mine, char *every, size_t bytes) {
  int32_t nranks = group->all->bootstrap->nranks;
  char *own = group->blocks + (size_t)nranks * BNY_GROUP_BLOCK_BYTES;
  uint64_t size = bytes, most = 0;
  size_t done = 0;
  do {
    size_t part = done < bytes ? bytes - done : 0;
    if (part > DATA_BYTES) part = DATA_BYTES;
    memset(own, 0, BNY_GROUP_BLOCK_BYTES);
    memcpy(own, &size, sizeof size);
    if (part) memcpy(own + sizeof size, mine + done, part);
    group->status = bny_exchange_all(group->all, own, group->blocks, BNY_GROUP_BLOCK_BYTES);
    for (int32_t i = 0; i < nranks && done == 0 && group->status == BANYAN_OK; i++) {
      memcpy(&group->sizes[i], group->blocks + (size_t)i * BNY_GROUP_BLOCK_BYTES, sizeof *group->sizes);
      most = group->sizes[i] > most ? group->sizes[i] : most;
    }
    if (group->status == BANYAN_OK) take_blocks(group, every, bytes, done);
    done += DATA_BYTES;
  } while (group->status == BANYAN_OK && done < most);
  group->ended = group->status != BANYAN_OK || most == 0;
  return group->status;
}

static int gather_group(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  bny_group_exchange *group = context;
  (void)timeout_ns; /* the exchange has its own */
  banyan_status status = take_turn(group, mine, all, bytes);
  for (int32_t i = 0; i < group->bootstrap.nranks && status == BANYAN_OK; i++)
    if (group->sizes[group->ranks[i]] != bytes)
      status = bny_fail(BANYAN_ERR_STATE, "rank %d did not continue the exchange of its group", group->ranks[i]);
  return (int)status;
}

static void free_memory(bny_group_exchange *group) {
  free(group->ranks);
  free(group->sizes);
  free(group->blocks);
  group->ranks = NULL, group->sizes = NULL, group->blocks = NULL;
}

banyan_status bny_group_exchange_reserve(const bny_exchange *all, bny_group_exchange *group) {
  size_t nranks = (size_t)all->bootstrap->nranks;
  *group = (bny_group_exchange){.all = all, .ended = true};
  group->ranks = calloc(nranks, sizeof *group->ranks);
  group->sizes = calloc(nranks, sizeof *group->sizes);
  group->blocks = malloc((nranks + 1) * BNY_GROUP_BLOCK_BYTES);
  if (group->ranks && group->sizes && group->blocks) return BANYAN_OK;
  free_memory(group);
  return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for an exchange of %zu ranks", all->bootstrap->rank,
                  nranks);
}

void bny_group_exchange_divide(bny_group_exchange *group, const int32_t *group_of) {
  const banyan_bootstrap *bootstrap = group->all->bootstrap;
  group->ended = false;
  group->bootstrap = (banyan_bootstrap){.size = sizeof group->bootstrap, .context = group, .allgather = gather_group};
  for (int32_t i = 0; i < bootstrap->nranks; i++) {
    if (group_of[i] != group_of[bootstrap->rank]) continue;
    if (i == bootstrap->rank) group->bootstrap.rank = group->bootstrap.nranks;
    group->ranks[group->bootstrap.nranks++] = i;
  }
  group->exchange = (bny_exchange){&group->bootstrap, group->all->deadline_ns, group->all->process};
}

banyan_status bny_group_exchange_begin(const bny_exchange *all, const int32_t *group_of, bny_group_exchange *group) {
  banyan_status status = bny_group_exchange_reserve(all, group);
  if (status == BANYAN_OK) bny_group_exchange_divide(group, group_of);
  return status;
}

banyan_status bny_group_exchange_end(bny_group_exchange *group) {
  while (!group->ended) take_turn(group, NULL, NULL, 0);
  free_memory(group);
  return group->status;
}
