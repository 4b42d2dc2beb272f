/* SPDX-License-Identifier: Apache-2.0
 * Connects the processes of one node. The window is an unnamed memory file (memory_file.h), so there is no name to
 * guess or to leave behind. Deaths are noticed through pidfds, or through sockets that each rank holds. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "transport/fd_passing.h"
#include "transport/memory_file.h"
#include "transport/window.h"

/* The descriptors that each rank passes to all others. Only rank 0 has memory to pass. */
enum { MEMORY, DEATH, PASSED };

typedef struct shm {
  bny_window window;     /* first */
  struct pollfd *deaths; /* by rank; fd -1: this rank, and ranks that have left */
  int held;              /* without pidfds, peers take the close of this descriptor for this rank's end; -1: none */
} shm;

static int32_t shm_sleep(bny_transport *transport, int64_t sleep_ns) {
  shm *self = (shm *)transport;
  struct timespec timeout = {sleep_ns / 1000000000, sleep_ns % 1000000000};
  if (ppoll(self->deaths, (nfds_t)transport->nranks, &timeout, NULL) <= 0) return -1;
  for (int32_t i = 0; i < transport->nranks; i++) {
    if (self->deaths[i].fd < 0 || !self->deaths[i].revents) continue;
    if (!atomic_load_explicit(&bny_window_line(transport, i)->left, memory_order_acquire)) return i;
    close(self->deaths[i].fd); /* the rank left before it ended, so there is nothing to report */
    self->deaths[i].fd = -1;
  }
  return -1;
}

static bool shm_is_dead(bny_transport *transport, int32_t rank) {
  struct pollfd death = {.fd = ((shm *)transport)->deaths[rank].fd, .events = POLLIN};
  if (death.fd < 0 || poll(&death, 1, 0) <= 0) return false;
  return !atomic_load_explicit(&bny_window_line(transport, rank)->left, memory_order_acquire);
}

static void shm_close(bny_transport *transport) {
  shm *self = (shm *)transport;
  if (self->deaths)
    for (int32_t i = 0; i < self->window.transport.nranks; i++)
      if (self->deaths[i].fd >= 0) close(self->deaths[i].fd);
  if (self->held >= 0) close(self->held);
  if (self->window.base) munmap(self->window.base, self->window.bytes);
  free(self->deaths);
  free(self);
}

static const bny_transport_ops shm_ops = {
    .name = "shm",
    BNY_WINDOW_OPS,
    .sleep = shm_sleep,
    .is_dead = shm_is_dead,
    .has_ended = shm_is_dead,
    .close = shm_close,
};

/* Makes a descriptor that becomes readable when this process ends: a pidfd or, if the system rejects those, the end of
 * a socket whose other end only this process holds. Calls the kernel, as glibc has the function only since 2.36. */
static banyan_status make_death(int32_t rank, int *death, int *held) {
  int pair[2];
  *death = bny_file_above_stderr((int)syscall(SYS_pidfd_open, getpid(), 0));
  if (*death >= 0) return BANYAN_OK;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "rank %d cannot make a pair of sockets", rank);
  *death = bny_file_above_stderr(pair[0]);
  *held = bny_file_above_stderr(pair[1]);
  if (*death < 0 || *held < 0)
    return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "rank %d can open no more descriptors (raise ulimit -n)", rank);
  return BANYAN_OK;
}

/* All ranks connect to rank 0 and pass what reports their deaths, and rank 0 also its memory. Then all map it. */
static banyan_status connect_steps(shm *self, const bny_exchange *exchange, const bny_arena_config *config, int *fds) {
  int own[PASSED] = {-1, -1};
  void *base = NULL;
  bny_fd_passing passing;
  banyan_status status = bny_fd_passing_meet(exchange, &passing);
  if (status != BANYAN_OK) return status;
  size_t bytes = bny_window_bytes(passing.nranks, config);
  if (passing.rank == 0) status = bny_memory_file_make(bytes, &own[MEMORY]);
  if (status == BANYAN_OK) status = make_death(passing.rank, &own[DEATH], &self->held);
  status = bny_fd_passing_exchange(&passing, status, own, PASSED, fds);
  bny_fd_passing_close(&passing);
  int memory = passing.rank == 0 ? own[MEMORY] : fds[MEMORY];
  if (status == BANYAN_OK) status = bny_memory_file_map(memory, bytes, &base);
  if (status == BANYAN_OK) bny_window_init(&self->window, &shm_ops, base, passing.rank, passing.nranks, config);
  if (memory >= 0) close(memory);
  if (own[DEATH] >= 0) close(own[DEATH]);
  return bny_exchange_settle(exchange, status, "could not set up shared memory");
}

banyan_status bny_shm_connect(const bny_exchange *exchange, const bny_arena_config *config, bny_transport **transport) {
  int32_t nranks = exchange->bootstrap->nranks;
  shm *self = calloc(1, sizeof *self);
  int *fds = malloc((size_t)nranks * PASSED * sizeof *fds);
  struct pollfd *deaths = malloc((size_t)nranks * sizeof *deaths);
  if (!self || !fds || !deaths) {
    free(self), free(fds), free(deaths);
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for the transport of %d ranks", exchange->bootstrap->rank,
                    nranks);
  }
  self->held = -1;
  for (int32_t i = 0; i < nranks * PASSED; i++) fds[i] = -1;
  banyan_status status = connect_steps(self, exchange, config, fds);
  for (int32_t i = 0; i < nranks; i++) deaths[i] = (struct pollfd){.fd = fds[i * PASSED + DEATH], .events = POLLIN};
  free(fds);
  self->deaths = deaths;
  self->window.transport.nranks = nranks;
  if (status != BANYAN_OK) {
    shm_close(&self->window.transport);
    return status;
  }
  *transport = &self->window.transport;
  return BANYAN_OK;
}
