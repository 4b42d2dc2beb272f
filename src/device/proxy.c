/* SPDX-License-Identifier: Apache-2.0
 * A bridge: its memory, its thread, and its end. */
#include "device/proxy.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "device/proxy_parts.h"
#include "base/status.h"

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

static banyan_status register_half(bny_bridge *bridge, int32_t rank, int half) {
  bny_transport *transport = bridge->transport;
  bny_device *device = bridge->engine->device;
  void *host = rank == transport->rank ? transport->ops->outbox(transport, half)
                                       : (void *)(uintptr_t)transport->ops->peer_outbox(transport, rank, half);
  void *address = NULL;
  banyan_status status = device->ops->host_register(device, host, transport->half_bytes, &address);
  if (status != BANYAN_OK) return status;
  bridge->halves[rank][half].host = host;
  bridge->messages[rank][half] = (uint64_t)(uintptr_t)address;
  return BANYAN_OK;
}

/* What comes in lands in memory of the host all the same: a processor that sees the transport's signal knows nothing of what an
 * adapter has written into a device, unless that is flushed first. */
static banyan_status make_local_half(bny_bridge *bridge, int half) {
  bny_transport *transport = bridge->transport;
  bny_device *device = bridge->engine->device;
  void *address = NULL;
  banyan_status status = device->ops->local_make(device, transport->half_bytes, &address);
  if (status != BANYAN_OK) return status;
  bridge->halves[transport->rank][half].local = address;
  bridge->messages[transport->rank][half] = (uint64_t)(uintptr_t)address;
  transport->outboxes[half] = address;
  return BANYAN_OK;
}

/* All at once, before anything runs: registering may wait for kernels, and the proxy uses what its transport knows of ranks
 * while others add to it. */
static banyan_status register_messages(bny_bridge *bridge) {
  bny_transport *transport = bridge->transport;
  banyan_status status = BANYAN_OK;
  for (int32_t rank = 0; rank < transport->nranks && status == BANYAN_OK; rank++) {
    bool is_far = bridge->host_of[rank] != bridge->host_of[transport->rank];
    if (transport->ops->admit) status = transport->ops->admit(transport, rank);
    for (int half = 0; half < 2 && status == BANYAN_OK; half++) {
      if (rank == transport->rank && bridge->direct) status = make_local_half(bridge, half);
      else if (is_far || rank == transport->rank) status = register_half(bridge, rank, half);
    }
  }
  return status;
}

static banyan_status make_memory(bny_bridge *bridge, const bny_bridge_config *config) {
  size_t nranks = (size_t)bridge->transport->nranks;
  bridge->host_of = calloc(nranks, sizeof *bridge->host_of);
  bridge->ranks = calloc(nranks, sizeof *bridge->ranks);
  bridge->halves = calloc(nranks, sizeof *bridge->halves);
  bridge->messages = calloc(nranks, sizeof *bridge->messages);
  if (!bridge->host_of || !bridge->ranks || !bridge->halves || !bridge->messages)
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for devices on several hosts");
  memcpy(bridge->host_of, config->host_of, nranks * sizeof *bridge->host_of);
  int32_t count = 0;
  for (int32_t i = 0; i < bridge->transport->nranks; i++)
    if (bridge->host_of[i] == bridge->host_of[bridge->transport->rank]) bridge->ranks[count++] = i;
  bny_device *device = bridge->engine->device;
  bridge->room = config->words;
  bridge->direct = config->direct;
  size_t words = bny_bridge_offset(bridge, BNY_BRIDGE_ARRIVALS, 1) + bridge->room;
  banyan_status status = device->ops->words_make(device, words, &bridge->words);
  if (status != BANYAN_OK) return status;
  bridge->engine->group.relay = bridge->words.device;
  return register_messages(bridge);
}

/* ---- life ------------------------------------------------------------------------------------------------------------ */

/* The caller's signals are not for it. */
static banyan_status start_proxy(bny_bridge *bridge) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&bridge->proxy, NULL, bny_bridge_proxy_live, bridge);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error) return bny_fail_errno(BANYAN_ERR_SYSTEM, error, "no thread for combines of devices on several hosts");
  bridge->has_proxy = true;
  return BANYAN_OK;
}

banyan_status bny_bridge_make(const bny_bridge_config *config, bny_bridge **bridge) {
  bny_bridge *made = calloc(1, sizeof *made);
  if (!made) {
    bny_transport *transport = config->exec->transport;
    bny_exec_free(config->exec);
    transport->ops->close(transport);
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for devices on several hosts");
  }
  made->engine = config->engine;
  made->exec = config->exec;
  made->transport = config->exec->transport;
  banyan_status status = make_memory(made, config);
  if (status == BANYAN_OK) status = start_proxy(made);
  if (status != BANYAN_OK) {
    bny_bridge_free(made);
    return status;
  }
  *bridge = made;
  return BANYAN_OK;
}

bool bny_bridge_is_direct(const bny_bridge *bridge) { return bridge->direct; }

void bny_bridge_free(bny_bridge *bridge) {
  if (!bridge) return;
  bny_device *device = bridge->engine->device;
  bny_transport *transport = bridge->transport;
  atomic_store_explicit(&bridge->quits, true, memory_order_release);
  if (bridge->has_proxy) pthread_join(bridge->proxy, NULL);
  atomic_store_explicit(&transport->ops->line(transport, transport->rank)->left, 1, memory_order_release);
  /* Kernels that were aborted may not have noticed yet, and poll what is unmapped here. */
  bny_engine_clear(bridge->engine);
  for (bny_bridge_route *route = atomic_load(&bridge->routes), *next; route; route = next) {
    next = route->next;
    bny_bridge_free_route(route);
  }
  for (int32_t i = 0; bridge->halves && i < 2 * transport->nranks; i++) {
    void *host = bridge->halves[i / 2][i % 2].host;
    if (host) device->ops->host_unregister(device, host, transport->half_bytes);
  }
  int32_t rank = transport->rank;
  bny_exec_free(bridge->exec);
  transport->ops->close(transport);
  for (int half = 0; bridge->halves && half < 2; half++) device->ops->local_free(device, bridge->halves[rank][half].local);
  bridge->engine->group.relay = NULL;
  device->ops->words_free(device, &bridge->words);
  free(bridge->host_of), free(bridge->ranks), free(bridge->halves), free(bridge->messages);
  free(bridge);
}

/* ---- failures -------------------------------------------------------------------------------------------------------- */

int32_t bny_bridge_rank(const bny_bridge *bridge, int32_t number) {
  return number >= 0 && number < bridge->engine->group.nranks ? bridge->ranks[number] : -1;
}

/* Kernels know ranks of other hosts by no number: for them nobody is to blame. Their host hears who is by the transport,
 * where it was told before; and so does every other rank, which ends kernels of its own. */
void bny_bridge_end_kernels(bny_bridge *bridge, banyan_status status, int32_t culprit) {
  const bny_engine *engine = bridge->engine;
  int32_t number = engine->group.nranks - 1;
  while (number >= 0 && bridge->ranks[number] != culprit) number--;
  uint64_t none = 0, fault = bny_device_fault_pack((int32_t)status, number, engine->group.rank, 0);
  atomic_compare_exchange_strong(&engine->words.host[BNY_DEVICE_WORD_ABORT], &none, fault);
}

const bny_failure *bny_bridge_failure(const bny_bridge *bridge) {
  return atomic_load_explicit(&bridge->failed, memory_order_acquire) ? &bridge->exec->failure : NULL;
}

void bny_bridge_stop(bny_bridge *bridge, banyan_status status, int32_t culprit) {
  bny_exec_stop(bridge->exec, status, culprit);
  bny_bridge_end_kernels(bridge, status, culprit);
}

void bny_bridge_abort(bny_bridge *bridge, const char *reason) {
  bny_exec_abort(bridge->exec, reason);
  bny_bridge_end_kernels(bridge, BANYAN_ERR_ABORTED, bridge->transport->rank);
}
