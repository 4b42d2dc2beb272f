/* SPDX-License-Identifier: Apache-2.0 An exchange among the ranks of each group, which uses all ranks. Ranks of another
 * group may have other data, or have ended. Every round therefore begins with each rank's size, and a round in which
 * all sizes are 0 is the last. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "base/status.h"

static banyan_status make_room(bny_group_exchange *group, size_t bytes) {
  size_t blocks = (size_t)group->all->bootstrap->nranks + 1; /* the last is this rank's own */
  if (bytes <= group->room) return BANYAN_OK;
  char *grown = realloc(group->blocks, blocks * bytes);
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

static int gather(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  bny_group_exchange *group = context;
  (void)timeout_ns; /* the exchange has its own */
  banyan_status status = take_turn(group, mine, bytes);
  if (status != BANYAN_OK) return (int)status;
  uint64_t most = 0;
  for (int32_t i = 0; i < group->all->bootstrap->nranks; i++) most = group->sizes[i] > most ? group->sizes[i] : most;
  for (int32_t i = 0; i < group->bootstrap.nranks; i++) {
    int32_t rank = group->ranks[i];
    if (group->sizes[rank] != bytes)
      return (int)bny_fail(BANYAN_ERR_STATE, "rank %d has not gone on with the exchange of its group", rank);
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
  group->bootstrap = (banyan_bootstrap){.size = sizeof group->bootstrap, .context = group, .allgather = gather};
  for (int32_t i = 0; i < bootstrap->nranks; i++) {
    if (group_of[i] != group_of[bootstrap->rank]) continue;
    if (i == bootstrap->rank) group->bootstrap.rank = group->bootstrap.nranks;
    group->ranks[group->bootstrap.nranks++] = i;
  }
  group->exchange = (bny_exchange){&group->bootstrap, all->deadline_ns};
  return BANYAN_OK;
}

banyan_status bny_group_exchange_end(bny_group_exchange *group) {
  while (!group->ended) take_turn(group, NULL, 0);
  free(group->ranks);
  free(group->sizes);
  free(group->blocks);
  return group->status;
}
