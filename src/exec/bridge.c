/* SPDX-License-Identifier: Apache-2.0
 * A bridge: its arenas, its thread, and its end. */
#include "exec/bridge.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "exec/bridge_parts.h"
#include "exec/device_program.h"
#include "status.h"

/* ---- arenas ---------------------------------------------------------------------------------------------------------- */

/* A unit has at least 128 bytes, and one signal. */
static bny_arena_sizes deal(size_t bytes) {
  enum { UNIT_BYTES_LEAST = 128, ALIGNMENT = 256 };
  bny_arena_sizes sizes = {.signals = 0};
  size_t head = bny_arena_shape_make(&sizes).bytes;
  size_t half = bytes > head ? (bytes - head) / 2 : 0;
  size_t units = half / (UNIT_BYTES_LEAST + sizeof(uint64_t)) / ALIGNMENT * ALIGNMENT;
  sizes.signals = units;
  sizes.inbox_bytes[BNY_PROTOCOL_SIMPLE] = units * UNIT_BYTES_LEAST;
  return sizes;
}

/* A wait for the proxy is longer than any of its own, which has the deadline of the communicator and knows whom to name. */
static int64_t timeout_of_kernels(int64_t timeout_ns) {
  enum { LEAST_NS = 50000000 };
  return timeout_ns + (timeout_ns / 16 > LEAST_NS ? timeout_ns / 16 : LEAST_NS);
}

static banyan_status make_arenas(bny_bridge *bridge, size_t bytes, int32_t crowd) {
  bny_engine *engine = bridge->engine;
  bny_device *device = engine->device;
  bridge->sizes = deal(bytes);
  bridge->shape = bny_arena_shape_make(&bridge->sizes);
  if (bridge->sizes.signals == 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "arenas of %zu bytes are too small for runs on devices; raise arena_bytes", bytes);
  bny_device_group group = {.rank = BNY_BRIDGE_DEVICE, .nranks = BNY_BRIDGE_RANKS, .shape = bridge->shape,
                            .shares_device = crowd > 1};
  for (int32_t i = 0; i < BNY_BRIDGE_RANKS; i++) {
    size_t words = bridge->shape.bytes / sizeof(uint64_t);
    banyan_status status = device->ops->words_make(device, words, &bridge->arenas[i]);
    if (status != BANYAN_OK) return status;
    group.arenas[i] = bridge->arenas[i].device;
  }
  bny_arena_head head = {.timeout_ns = (uint64_t)timeout_of_kernels(bridge->exec->timeout_ns),
                         .words = engine->words.device};
  memcpy(bny_bridge_address(bridge, BNY_BRIDGE_DEVICE, 0), &head, offsetof(bny_arena_head, waiting));
  engine->group = group;
  bny_engine_crowd(engine, crowd);
  return BANYAN_OK;
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
  banyan_status status = make_arenas(made, config->bytes, config->crowd);
  /* The proxy uses what its transport knows of ranks while others add to it: so all are known before it begins. */
  for (int32_t i = 0; i < made->transport->nranks && made->transport->ops->admit && status == BANYAN_OK; i++)
    status = made->transport->ops->admit(made->transport, i);
  if (status == BANYAN_OK) status = start_proxy(made);
  if (status != BANYAN_OK) {
    bny_bridge_free(made);
    return status;
  }
  *bridge = made;
  return BANYAN_OK;
}

void bny_bridge_free(bny_bridge *bridge) {
  if (!bridge) return;
  bny_device *device = bridge->engine->device;
  bny_transport *transport = bridge->transport;
  atomic_store_explicit(&bridge->quits, true, memory_order_release);
  if (bridge->has_proxy) pthread_join(bridge->proxy, NULL);
  atomic_store_explicit(&transport->ops->line(transport, transport->rank)->left, 1, memory_order_release);
  for (bny_bridge_work *work = atomic_load(&bridge->works), *next; work; work = next) {
    next = work->next;
    bny_bridge_free_work(work);
  }
  bny_exec_free(bridge->exec);
  transport->ops->close(transport);
  for (int32_t i = 0; i < BNY_BRIDGE_RANKS; i++) device->ops->words_free(device, &bridge->arenas[i]);
  free(bridge);
}

/* ---- failures -------------------------------------------------------------------------------------------------------- */

void bny_bridge_end_kernels(bny_bridge *bridge, banyan_status status, int32_t culprit) {
  uint64_t fault = bny_device_fault_pack((int32_t)status, culprit, bridge->transport->rank, 0), none = 0;
  atomic_compare_exchange_strong(&bridge->engine->words.host[BNY_DEVICE_WORD_ABORT], &none, fault);
  none = 0;
  atomic_compare_exchange_strong(bny_bridge_word(bridge, BNY_BRIDGE_DEVICE, offsetof(bny_arena_head, abort)), &none, fault);
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
