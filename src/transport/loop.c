/* SPDX-License-Identifier: Apache-2.0
 * Connects ranks that are threads of one process. Rank 0 maps the window, and the others get its address. The last rank
 * to leave unmaps it. */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "base/status.h"
#include "transport/window.h"

static int32_t loop_sleep(bny_transport *transport, int64_t sleep_ns) {
  (void)transport;
  nanosleep(&(struct timespec){sleep_ns / 1000000000, sleep_ns % 1000000000}, NULL);
  return -1; /* a thread does not die without its process */
}

static bool loop_is_dead(bny_transport *transport, int32_t rank) {
  (void)transport, (void)rank;
  return false;
}

static void loop_close(bny_transport *transport) {
  bny_window *window = (bny_window *)transport;
  if (atomic_fetch_sub_explicit(bny_window_users(window), 1, memory_order_acq_rel) == 1)
    munmap(window->base, window->bytes);
  free(window);
}

static const bny_transport_ops loop_ops = {
    .name = "loop",
    BNY_WINDOW_OPS,
    .sleep = loop_sleep,
    .is_dead = loop_is_dead,
    .has_ended = loop_is_dead,
    .close = loop_close,
};

banyan_status bny_loop_connect(const bny_exchange *exchange, const bny_arena_config *config,
                               bny_transport **transport) {
  int32_t rank = exchange->bootstrap->rank, nranks = exchange->bootstrap->nranks;
  size_t bytes = bny_window_bytes(nranks, config);
  bny_window *window = calloc(1, sizeof *window);
  void **bases = calloc((size_t)nranks, sizeof *bases);
  banyan_status status;
  if (!window || !bases) {
    status = bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for the transport of %d ranks", rank, nranks);
    goto free_memory;
  }
  void *mine = NULL;
  if (rank == 0) mine = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mine == MAP_FAILED) mine = NULL;
  if (mine) {
    bny_window_init(window, &loop_ops, mine, rank, nranks, config);
    /* Every rank counts from the start, so that an early leaver cannot unmap the window. */
    atomic_store_explicit(bny_window_users(window), (uint32_t)nranks, memory_order_release);
  }
  status = bny_exchange_all(exchange, &mine, bases, sizeof mine);
  if (status == BANYAN_OK && !bases[0])
    status = bny_fail(BANYAN_ERR_MEMORY, "rank 0 cannot map %zu bytes of arenas for %d ranks; make arena_bytes smaller",
                      bytes, nranks);
  if (status != BANYAN_OK) {
    if (mine) {
      loop_close(&window->transport); /* another rank may hold the address already: only the count decides */
      window = NULL;
    }
    goto free_memory;
  }
  bny_window_init(window, &loop_ops, bases[0], rank, nranks, config);
  free(bases);
  *transport = &window->transport;
  return BANYAN_OK;

free_memory:
  free(bases);
  free(window);
  return status;
}
