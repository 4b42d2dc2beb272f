/* SPDX-License-Identifier: Apache-2.0
 * The ranks of this host among themselves: the window that they would have without the others. */
#ifdef HAVE_UCX
#include <stdlib.h>
#include <string.h>

#include "status.h"
#include "transport/ucx.h"

/* Connects of windows gather among the ranks of their host, by way of all ranks: in blocks of one size, as often on each
 * host, since other hosts do other things at the same time. */
enum { BLOCK_BYTES = 128, ROUNDS = 2 };

typedef struct local_gather {
  const bny_exchange *exchange; /* of all ranks */
  const bny_net *net;
  int32_t nlocals;
  int rounds;
  bool failed;
  char *blocks; /* [nranks][BLOCK_BYTES] */
} local_gather;

static int gather_local(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  local_gather *gather = context;
  char block[BLOCK_BYTES] = {0};
  (void)timeout_ns; /* the exchange has its own */
  if (bytes > sizeof block) return (int)bny_fail(BANYAN_ERR_STATE, "a window gathers blocks of %zu bytes", bytes);
  if (bytes) memcpy(block, mine, bytes);
  gather->rounds++;
  banyan_status status = bny_exchange_all(gather->exchange, block, gather->blocks, sizeof block);
  gather->failed = status != BANYAN_OK;
  for (int32_t i = 0; i < gather->nlocals && status == BANYAN_OK && bytes; i++)
    memcpy((char *)all + (size_t)i * bytes, gather->blocks + (size_t)gather->net->locals[i] * sizeof block, bytes);
  return (int)status;
}

/* Keeps step with the hosts whose windows need more rounds, or did not fail early. */
static void gather_rest(local_gather *gather) {
  while (gather->rounds < ROUNDS && !gather->failed) gather_local(gather, NULL, NULL, 0, 0);
}

static int32_t place_locals(bny_net *net, const int32_t *host_of) {
  int32_t nlocals = 0;
  for (int32_t i = 0; i < net->transport.nranks; i++) {
    net->place[i] = -1;
    if (host_of[i] != host_of[net->transport.rank]) continue;
    net->place[i] = nlocals;
    net->locals[nlocals++] = i;
  }
  return nlocals;
}

banyan_status bny_net_connect_local(bny_net *net, const bny_exchange *exchange, const bny_net_config *config) {
  local_gather gather = {.exchange = exchange, .net = net, .nlocals = place_locals(net, config->host_of)};
  gather.blocks = malloc((size_t)net->transport.nranks * BLOCK_BYTES);
  if (!gather.blocks) /* nobody is left waiting for long: the others' exchange ends at its deadline */
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory to connect %d ranks", net->transport.nranks);
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
  return bny_fail(status, "among the %d ranks of this host, of which rank 0 is rank %d: %s", gather.nlocals,
                  net->locals[0], why);
}
#else
typedef int bny_net_local_is_absent; /* a file must not be empty */
#endif
