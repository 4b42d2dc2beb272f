/* SPDX-License-Identifier: Apache-2.0
 * The exchanges in which ranks confirm that each has made its communicator, or report why not. */
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/status.h"
#include "base/thread.h"
#include "comm/comm.h"

banyan_status bny_comm_confirm(const bny_exchange *exchange, banyan_status own) {
  return bny_exchange_settle(exchange, own, "could not make its communicator");
}

typedef struct courier {
  bny_transport *transport;
  atomic_bool ends;
} courier;

enum { ROUND_NS = 500000, SPREAD_NS = 1000000000 };

/* Connections are made, messages are sent and faults are forwarded only while a rank makes progress. */
static void *carry(void *argument) {
  courier *courier = argument;
  bny_transport *transport = courier->transport;
  while (!atomic_load_explicit(&courier->ends, memory_order_acquire)) {
    transport->ops->progress(transport);
    transport->ops->spread(transport, 0);
    nanosleep(&(struct timespec){0, ROUND_NS}, NULL);
  }
  return NULL;
}

banyan_status bny_comm_confirm_connected(banyan_comm *comm, const bny_exchange *exchange, banyan_status own) {
  bny_transport *transport = comm->transport;
  if (!transport->ops->progress) return bny_comm_confirm(exchange, own);
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  courier courier = {.transport = transport};
  pthread_t thread;
  /* A failure outside the barrier, which peers do not know yet. */
  if (own != BANYAN_OK) bny_exec_stop(comm->exec, own, comm->rank);
  int error = bny_thread_start(&thread, carry, &courier);
  if (error && own == BANYAN_OK) {
    own = bny_fail_errno(BANYAN_ERR_SYSTEM, error, "rank %d cannot start a thread", comm->rank);
    bny_exec_stop(comm->exec, own, comm->rank);
  } else if (own != BANYAN_OK) {
    bny_fail(own, "%s", why);
  }
  if (error) transport->ops->spread(transport, SPREAD_NS);
  own = bny_comm_confirm(exchange, own);
  atomic_store_explicit(&courier.ends, true, memory_order_release);
  if (!error) pthread_join(thread, NULL);
  return own;
}
