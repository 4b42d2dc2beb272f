/* SPDX-License-Identifier: Apache-2.0
 * The proxy: its memory, its thread, and its end. */
#include "device/proxy.h"

#include <stdlib.h>
#include <string.h>

#include "device/proxy_parts.h"
#include "base/status.h"
#include "base/thread.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static banyan_status register_half(bny_proxy *proxy, int32_t rank, int half) {
  bny_transport *transport = proxy->transport;
  bny_device *device = proxy->engine->device;
  void *host = rank == transport->rank ? transport->ops->outbox(transport, half)
                                       : (void *)(uintptr_t)transport->ops->peer_outbox(transport, rank, half);
  void *address = NULL;
  banyan_status status = device->ops->host_register(device, host, transport->half_bytes, &address);
  if (status != BANYAN_OK) return status;
  proxy->halves[rank][half].host = host;
  proxy->messages[rank][half] = (uint64_t)(uintptr_t)address;
  return BANYAN_OK;
}

/* Messages arrive in host memory all the same. A processor that sees the transport's signal knows nothing of what an
 * adapter has written into a device, unless that is flushed first. */
static banyan_status make_local_half(bny_proxy *proxy, int half) {
  bny_transport *transport = proxy->transport;
  bny_device *device = proxy->engine->device;
  void *address = NULL;
  banyan_status status = device->ops->local_make(device, transport->half_bytes, &address);
  if (status != BANYAN_OK) return status;
  proxy->halves[transport->rank][half].local = address;
  proxy->messages[transport->rank][half] = (uint64_t)(uintptr_t)address;
  transport->outboxes[half] = address;
  return BANYAN_OK;
}

/* Registers everything at once, before anything runs. Registering may wait for kernels, and the proxy uses the
 * transport's data about ranks while others add to it. */
static banyan_status register_messages(bny_proxy *proxy) {
  bny_transport *transport = proxy->transport;
  banyan_status status = BANYAN_OK;
  for (int32_t rank = 0; rank < transport->nranks && status == BANYAN_OK; rank++) {
    bool is_remote = proxy->node_of[rank] != proxy->node_of[transport->rank];
    if (transport->ops->admit) status = transport->ops->admit(transport, rank);
    for (int half = 0; half < 2 && status == BANYAN_OK; half++) {
      if (rank == transport->rank && proxy->direct)
        status = make_local_half(proxy, half);
      else if (is_remote || rank == transport->rank)
        status = register_half(proxy, rank, half);
    }
  }
  return status;
}

static banyan_status make_memory(bny_proxy *proxy, const bny_proxy_config *config) {
  size_t nranks = (size_t)proxy->transport->nranks;
  proxy->node_of = calloc(nranks, sizeof *proxy->node_of);
  proxy->ranks = calloc(nranks, sizeof *proxy->ranks);
  proxy->halves = calloc(nranks, sizeof *proxy->halves);
  proxy->messages = calloc(nranks, sizeof *proxy->messages);
  if (!proxy->node_of || !proxy->ranks || !proxy->halves || !proxy->messages)
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for devices on several nodes");
  memcpy(proxy->node_of, config->node_of, nranks * sizeof *proxy->node_of);
  int32_t count = 0;
  for (int32_t i = 0; i < proxy->transport->nranks; i++)
    if (proxy->node_of[i] == proxy->node_of[proxy->transport->rank]) proxy->ranks[count++] = i;
  bny_device *device = proxy->engine->device;
  proxy->room = config->words;
  proxy->direct = config->direct;
  size_t words = bny_proxy_offset(proxy, BNY_PROXY_ARRIVALS, 1) + proxy->room;
  banyan_status status = device->ops->words_make(device, words, &proxy->words);
  if (status != BANYAN_OK) return status;
  proxy->engine->group.proxy = proxy->words.device;
  return register_messages(proxy);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static banyan_status start_thread(bny_proxy *proxy) {
  int error = bny_thread_start(&proxy->thread, bny_proxy_thread, proxy);
  if (error)
    return bny_fail_errno(BANYAN_ERR_SYSTEM, error, "cannot start the proxy thread of devices on several nodes");
  proxy->has_thread = true;
  return BANYAN_OK;
}

banyan_status bny_proxy_make(const bny_proxy_config *config, bny_proxy **proxy) {
  bny_proxy *made = calloc(1, sizeof *made);
  if (!made) {
    bny_transport *transport = config->exec->transport;
    bny_exec_free(config->exec);
    transport->ops->close(transport);
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for devices on several nodes");
  }
  made->engine = config->engine;
  made->exec = config->exec;
  made->transport = config->exec->transport;
  banyan_status status = make_memory(made, config);
  if (status == BANYAN_OK) status = start_thread(made);
  if (status != BANYAN_OK) {
    bny_proxy_free(made);
    return status;
  }
  *proxy = made;
  return BANYAN_OK;
}

bool bny_proxy_is_direct(const bny_proxy *proxy) { return proxy->direct; }

void bny_proxy_free(bny_proxy *proxy) {
  if (!proxy) return;
  bny_device *device = proxy->engine->device;
  bny_transport *transport = proxy->transport;
  atomic_store_explicit(&proxy->quits, true, memory_order_release);
  if (proxy->has_thread) pthread_join(proxy->thread, NULL);
  atomic_store_explicit(&transport->ops->line(transport, transport->rank)->left, 1, memory_order_release);
  /* Kernels that were aborted may not have noticed yet, and poll memory that is unmapped here. */
  bny_engine_clear(proxy->engine);
  for (bny_proxy_segment *segment = atomic_load(&proxy->segments), *next; segment; segment = next) {
    next = segment->next;
    bny_proxy_segment_free(segment);
  }
  for (int32_t i = 0; proxy->halves && i < 2 * transport->nranks; i++) {
    void *host = proxy->halves[i / 2][i % 2].host;
    if (host) device->ops->host_unregister(device, host, transport->half_bytes);
  }
  int32_t rank = transport->rank;
  bny_exec_free(proxy->exec);
  transport->ops->close(transport);
  for (int half = 0; proxy->halves && half < 2; half++)
    device->ops->local_free(device, proxy->halves[rank][half].local);
  proxy->engine->group.proxy = NULL;
  device->ops->words_free(device, &proxy->words);
  free(proxy->node_of), free(proxy->ranks), free(proxy->halves), free(proxy->messages);
  free(proxy);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

int32_t bny_proxy_rank(const bny_proxy *proxy, int32_t number) {
  return number >= 0 && number < proxy->engine->group.nranks ? proxy->ranks[number] : -1;
}

/* Kernels have no numbers for ranks of other nodes, so they blame none for these. The host code knows the culprit from
 * the transport, which was told before. So does every other rank, which ends kernels of its own. */
void bny_proxy_end_kernels(bny_proxy *proxy, banyan_status status, int32_t culprit) {
  const bny_engine *engine = proxy->engine;
  int32_t number = engine->group.nranks - 1;
  while (number >= 0 && proxy->ranks[number] != culprit) number--;
  uint64_t none = 0, fault = bny_device_fault_pack((int32_t)status, number, engine->group.rank, 0);
  atomic_compare_exchange_strong(&engine->words.host[BNY_DEVICE_WORD_ABORT], &none, fault);
}

const bny_failure *bny_proxy_failure(const bny_proxy *proxy) {
  return atomic_load_explicit(&proxy->failed, memory_order_acquire) ? &proxy->exec->failure : NULL;
}

void bny_proxy_stop(bny_proxy *proxy, banyan_status status, int32_t culprit) {
  bny_exec_stop(proxy->exec, status, culprit);
  bny_proxy_end_kernels(proxy, status, culprit);
}

void bny_proxy_abort(bny_proxy *proxy, const char *reason) {
  bny_exec_abort(proxy->exec, reason);
  bny_proxy_end_kernels(proxy, BANYAN_ERR_ABORTED, proxy->transport->rank);
}
