/* SPDX-License-Identifier: Apache-2.0 The window of the ranks of this node, which is the same as without other
 * nodes. */
#ifdef HAVE_UCX
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "transport/ucx/ucx.h"

/* A window connects by all-gathers among the ranks of its node, which all-gathers of all ranks carry. Blocks have one
 * size, because other nodes exchange other data meanwhile. Rounds continue until all ranks have ended, because nodes
 * need different numbers of them. */
typedef struct block {
  int64_t has_ended;
  char bytes[BNY_REPORT_BYTES];
} block;

typedef struct local_gather {
  const bny_exchange *exchange; /* exchange among all ranks */
  const bny_net *net;
  int32_t nlocals;
  bool failed;
  block *blocks; /* [nranks] */
} local_gather;

static banyan_status gather_blocks(local_gather *gather, const block *own) {
  banyan_status status = bny_exchange_all(gather->exchange, own, gather->blocks, sizeof *own);
  gather->failed = status != BANYAN_OK;
  return status;
}

static int gather_local(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  local_gather *gather = context;
  block own = {.has_ended = false};
  (void)timeout_ns; /* the exchange has its own deadline */
  if (bytes > sizeof own.bytes) return (int)bny_fail(BANYAN_ERR_STATE, "a window gathers blocks of %zu bytes", bytes);
  if (bytes) memcpy(own.bytes, mine, bytes);
  banyan_status status = gather_blocks(gather, &own);
  for (int32_t i = 0; i < gather->nlocals && status == BANYAN_OK; i++) {
    int32_t rank = gather->net->locals[i];
    if (gather->blocks[rank].has_ended)
      status = bny_fail(BANYAN_ERR_PEER, "rank %d does not go on with an exchange of its node's ranks", rank);
    else if (bytes)
      memcpy((char *)all + (size_t)i * bytes, gather->blocks[rank].bytes, bytes);
  }
  return (int)status;
}

static bool have_all_ended(const local_gather *gather) {
  for (int32_t i = 0; i < gather->net->transport.nranks; i++)
    if (!gather->blocks[i].has_ended) return false;
  return true;
}

/* Takes part in rounds of nodes that need more of them, or did not fail early. */
static void gather_rest(local_gather *gather) {
  const block own = {.has_ended = true};
  while (!gather->failed && gather_blocks(gather, &own) == BANYAN_OK && !have_all_ended(gather)) continue;
}

static int32_t place_locals(bny_net *net, const int32_t *node_of) {
  int32_t nlocals = 0;
  for (int32_t i = 0; i < net->transport.nranks; i++) {
    net->place[i] = -1;
    if (node_of[i] != node_of[net->transport.rank]) continue;
    net->place[i] = nlocals;
    net->locals[nlocals++] = i;
  }
  return nlocals;
}

banyan_status bny_net_connect_local(bny_net *net, const bny_exchange *exchange, const bny_net_config *config) {
  local_gather gather = {.exchange = exchange, .net = net, .nlocals = place_locals(net, config->node_of)};
  gather.blocks = calloc((size_t)net->transport.nranks, sizeof *gather.blocks);
  if (!gather.blocks) /* no rank waits long: the others' exchange ends at its deadline */
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to connect %d ranks", net->transport.rank,
                    net->transport.nranks);
  banyan_bootstrap bootstrap = {
      .size = sizeof bootstrap,
      .rank = net->place[net->transport.rank],
      .nranks = gather.nlocals,
      .context = &gather,
      .allgather = gather_local,
  };
  bny_exchange among = {&bootstrap, exchange->deadline_ns};
  banyan_status status = config->one_process ? bny_loop_connect(&among, &config->arena, &net->local)
                                             : bny_shm_connect(&among, &config->arena, &net->local);
  char why[BNY_ERROR_TEXT_BYTES] = "";
  if (status != BANYAN_OK) strncpy(why, banyan_last_error(), sizeof why - 1);
  gather_rest(&gather);
  free(gather.blocks);
  if (status == BANYAN_OK) return BANYAN_OK;
  return bny_fail(status, "among the %d ranks of this node, of which rank 0 is rank %d: %s", gather.nlocals,
                  net->locals[0], why);
}
#else
typedef int bny_net_local_is_absent; /* a file must not be empty */
#endif
