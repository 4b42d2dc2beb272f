/* SPDX-License-Identifier: Apache-2.0
 * Connects the ranks of a communicator, which then confirm to each other that each has made it, or report why not. */
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
    transport->ops->broadcast_fault(transport, 0);
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
  if (error) transport->ops->broadcast_fault(transport, SPREAD_NS);
  own = bny_comm_confirm(exchange, own);
  atomic_store_explicit(&courier.ends, true, memory_order_release);
  if (!error) pthread_join(thread, NULL);
  return own;
}

banyan_status bny_comm_connect(const banyan_comm *comm, const bny_settings *settings, const bny_exchange *exchange,
                               const bny_node_map *map, bny_transport **transport) {
  bny_arena_config config = {
      .half_bytes = map->arena_bytes / 2,
      .slots_max = bny_comm_slots(exchange->bootstrap->nranks),
  };
  bny_net_config net = {.arena = config,
                        .node_of = map->node_of,
                        .one_process = map->one_process,
                        .put = settings->options.ucx_put,
                        .interface = settings->options.interface,
                        .devices = settings->options.net_devices,
                        .reached = map->reached,
                        .shared = map->shared,
                        .nearest = comm->locality.nic_name};
  if (map->nnodes > 1) return bny_net_connect(exchange, &net, transport);
  if (map->one_process) return bny_loop_connect(exchange, &config, transport);
  return bny_shm_connect(exchange, &config, transport);
}

static bny_record_config record_of(const banyan_comm *comm, const bny_options *options) {
  bool off = options->flight && strcmp(options->flight, "off") == 0;
  return (bny_record_config){
      .no_flight = off,
      .flight_file = off ? NULL : options->flight,
      .trace_file = options->trace,
      .trace_events = options->trace_events,
      .metrics_file = options->metrics,
      .metrics_every_ns = options->metrics_every_ms * 1000000,
      .metrics_wait_ns = options->metrics_wait_us * 1000,
      .levels = comm->levels,
  };
}

bny_exec_config bny_comm_exec_config(const banyan_comm *comm, const bny_settings *settings, const bny_node_map *map) {
  return (bny_exec_config){
      .oversubscribed = comm->ranks_per_core > 1,
      .on_quota = comm->quota_cpus > 0,
      .timeout_ns = settings->timeout_ns,
      .cache_bytes = map->cache_bytes,
      .record = record_of(comm, &settings->options),
  };
}
