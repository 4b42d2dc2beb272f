/* SPDX-License-Identifier: Apache-2.0
 * Processes of one host. The window is an unnamed memory file (memfd, mode 0600, its size sealed): it has no name to
 * guess or to leave behind, and does not count against /dev/shm. Deaths are noticed through pidfds. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "status.h"
#include "transport/handover.h"
#include "transport/memory_file.h"
#include "transport/window.h"

typedef struct shm {
  bny_window window; /* first */
  struct pollfd *deaths; /* of every rank; fd -1 where unknown */
} shm;

static int32_t shm_sleep(bny_transport *transport, int64_t sleep_ns) {
  shm *self = (shm *)transport;
  struct timespec timeout = {sleep_ns / 1000000000, sleep_ns % 1000000000};
  if (ppoll(self->deaths, (nfds_t)transport->nranks, &timeout, NULL) <= 0) return -1;
  for (int32_t i = 0; i < transport->nranks; i++) {
    if (self->deaths[i].fd < 0 || !self->deaths[i].revents) continue;
    if (!atomic_load_explicit(&bny_window_line(transport, i)->left, memory_order_acquire)) return i;
    close(self->deaths[i].fd); /* it left before it ended: no news, now or later */
    self->deaths[i].fd = -1;
  }
  return -1;
}

static bool shm_is_dead(bny_transport *transport, int32_t rank) {
  struct pollfd death = {.fd = ((shm *)transport)->deaths[rank].fd, .events = POLLIN};
  if (death.fd < 0 || poll(&death, 1, 0) <= 0) return false;
  return !atomic_load_explicit(&bny_window_line(transport, rank)->left, memory_order_acquire);
}

static void shm_free(shm *self) {
  if (self->deaths)
    for (int32_t i = 0; i < self->window.transport.nranks; i++)
      if (self->deaths[i].fd >= 0) close(self->deaths[i].fd);
  if (self->window.base) munmap(self->window.base, self->window.bytes);
  free(self->deaths);
  free(self);
}

static void shm_close(bny_transport *transport) { shm_free((shm *)transport); }

static const bny_transport_ops shm_ops = {
  .name = "shm",
  .outbox = bny_window_outbox,
  .peer_outbox = bny_window_peer_outbox,
  .signal = bny_window_signal,
  .send = bny_window_send,
  .line = bny_window_line,
  .call = bny_window_call,
  .fault = bny_window_fault,
  .sleep = shm_sleep,
  .is_dead = shm_is_dead,
  .mail = bny_window_mail,
  .close = shm_close,
};

/* What each rank says after each step, so that a failure of one is known to all at once. */
typedef struct progress {
  int32_t status;
  bny_handover_ticket ticket; /* of rank 0, in the first step */
} progress;

/* Tells all how this rank fared and returns the first failure among them. */
static banyan_status confirm(const bny_exchange *exchange, banyan_status mine, progress *all, const progress *said) {
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error()); /* the exchange has texts of its own */
  banyan_status status = bny_exchange_all(exchange, said, all, sizeof *said);
  if (mine != BANYAN_OK) return bny_fail(mine, "%s", why);
  if (status != BANYAN_OK) return status;
  for (int32_t i = 0; i < exchange->bootstrap->nranks; i++)
    if (all[i].status != BANYAN_OK)
      return bny_fail((banyan_status)all[i].status, "rank %d could not set up shared memory (%s)", i,
                      banyan_status_string((banyan_status)all[i].status));
  return BANYAN_OK;
}

static banyan_status map_memory(shm *self, int memory, const bny_exchange *exchange, const bny_arena_config *config) {
  int32_t nranks = exchange->bootstrap->nranks;
  size_t bytes = bny_window_bytes(nranks, config);
  void *base;
  banyan_status status = bny_memory_file_map(memory, bytes, &base);
  if (status != BANYAN_OK) return status;
  bny_window_init(&self->window, &shm_ops, base, exchange->bootstrap->rank, nranks, config);
  return BANYAN_OK;
}

/* Steps: rank 0 listens and tells where; hands the descriptors over; all map. Each step ends with a confirmation. */
static banyan_status connect_steps(shm *self, const bny_exchange *exchange, const bny_arena_config *config, progress *all,
                                   int *pidfds) {
  int32_t rank = exchange->bootstrap->rank, nranks = exchange->bootstrap->nranks;
  int listener = -1, memory = -1;
  progress said = {0};
  banyan_status status = BANYAN_OK;
  if (rank == 0) status = bny_memory_file_make(bny_window_bytes(nranks, config), &memory);
  if (rank == 0 && status == BANYAN_OK) status = bny_handover_listen(&said.ticket, &listener);
  said.status = (int32_t)status;
  status = confirm(exchange, status, all, &said);
  if (status != BANYAN_OK) goto close_files;

  bny_handover_ticket ticket = all[0].ticket;
  status = rank == 0 ? bny_handover_serve(listener, &ticket, memory, nranks, pidfds, exchange->deadline_ns)
                     : bny_handover_receive(&ticket, rank, nranks, &memory, pidfds, exchange->deadline_ns);
  /* Before the confirmation: whoever was not admitted is told so now. */
  if (listener >= 0) close(listener);
  listener = -1;
  if (status == BANYAN_OK) status = map_memory(self, memory, exchange, config);
  said = (progress){.status = (int32_t)status};
  status = confirm(exchange, status, all, &said);

close_files:
  if (listener >= 0) close(listener);
  if (memory >= 0) close(memory);
  return status;
}

banyan_status bny_shm_connect(const bny_exchange *exchange, const bny_arena_config *config, bny_transport **transport) {
  int32_t nranks = exchange->bootstrap->nranks;
  shm *self = calloc(1, sizeof *self);
  progress *all = calloc((size_t)nranks, sizeof *all);
  int *pidfds = malloc((size_t)nranks * sizeof *pidfds);
  struct pollfd *deaths = malloc((size_t)nranks * sizeof *deaths);
  if (!self || !all || !pidfds || !deaths) {
    free(self), free(all), free(pidfds), free(deaths);
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for the transport of %d ranks", nranks);
  }
  for (int32_t i = 0; i < nranks; i++) pidfds[i] = -1;
  banyan_status status = connect_steps(self, exchange, config, all, pidfds);
  for (int32_t i = 0; i < nranks; i++) deaths[i] = (struct pollfd){.fd = pidfds[i], .events = POLLIN};
  /* Our own death is not ours to notice. */
  int32_t rank = exchange->bootstrap->rank;
  if (deaths[rank].fd >= 0) close(deaths[rank].fd);
  deaths[rank].fd = -1;
  free(all);
  free(pidfds);
  self->deaths = deaths;
  self->window.transport.nranks = nranks;
  if (status != BANYAN_OK) {
    shm_free(self);
    return status;
  }
  *transport = &self->window.transport;
  return BANYAN_OK;
}
