/* SPDX-License-Identifier: Apache-2.0
 * Makes and frees executors. */
#include "exec/exec.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/process.h"
#include "base/status.h"

/* Measured on nodes with two to a hundred cores: a poll with its pause takes 15 to 40 ns, a switch between ranks that
 * share a core about 1000 ns. */
enum {
  SPINS_ALONE = 4000,
  SPINS_SHARED = 40,
  YIELD_ALONE_NS = 1000000,
  YIELD_SHARED_NS = 3000000,
  YIELD_QUOTA_NS = 100000
};
enum { SLEEP_NS = 1000000 };

/* Touches this rank's own pages now, so that the first runs take no page faults. */
static void touch_outbox(const bny_exec *exec) {
  enum { PAGE = 4096 };
  bny_transport *transport = exec->transport;
  for (int half = 0; half < 2; half++) {
    volatile char *outbox = transport->halves[half];
    for (size_t i = 0; i < exec->round_bytes / 2 && i < transport->half_bytes; i += PAGE) outbox[i] = 0;
  }
}

banyan_status bny_exec_make(bny_transport *transport, const bny_exec_config *config, bny_exec **exec) {
  size_t nranks = (size_t)transport->nranks;
  bny_exec *made = calloc(1, sizeof *made);
  uint64_t *known_done = calloc(3 * nranks, sizeof *known_done);
  int32_t *readers = calloc(3 * nranks, sizeof *readers);
  if (!made || !known_done || !readers) {
    free(made), free(known_done), free(readers);
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for an executor of %zu ranks", transport->rank, nranks);
  }
  bny_record record;
  banyan_status status = bny_record_open(&config->record, transport->rank, transport->nranks, &record);
  if (status != BANYAN_OK) {
    free(made), free(known_done), free(readers);
    return status;
  }
  *made = (bny_exec){
      .process = bny_process(),
      .transport = transport,
      .kernels = config->kernels,
      .fault = transport->fault,
      .line = transport->ops->line(transport, transport->rank),
      .call = transport->ops->call(transport, transport->rank),
      .known_done = known_done,
      .sent_to = known_done + nranks,
      .agreed = known_done + 2 * nranks,
      .readers = {{.ranks = readers}, {.ranks = readers + nranks}},
      .owed = {.ranks = readers + 2 * nranks},
      .progress = transport->ops->progress,
      .spins = config->oversubscribed || config->on_quota ? SPINS_SHARED : SPINS_ALONE,
      .yield_ns = config->on_quota         ? YIELD_QUOTA_NS
                  : config->oversubscribed ? YIELD_SHARED_NS
                                           : YIELD_ALONE_NS,
      .sleep_ns = SLEEP_NS,
      .timeout_ns = config->timeout_ns,
      .round_bytes = transport->ops->progress ? 0 : config->cache_bytes + config->cache_bytes / 4,
      .rejected = transport->rejected,
      .failure = {.culprit = -1},
      .record = record,
  };
  transport->recent_ns = config->timeout_ns / 4; /* on a busy machine a healthy rank may be silent for some time */
  touch_outbox(made);
  *exec = made;
  return BANYAN_OK;
}

void bny_exec_free(bny_exec *exec) {
  if (!exec) return;
  bny_record_close(&exec->record);
  free(exec->readers[0].ranks);
  free(exec->known_done);
  free(exec);
}
