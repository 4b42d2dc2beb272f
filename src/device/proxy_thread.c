/* SPDX-License-Identifier: Apache-2.0
 * The proxy: waits for kernels to begin a run, and carries between hosts what they make and read. */
#include <sched.h>

#include "base/clock.h"
#include "device/proxy_parts.h"
#include "device/run.h"
#include "exec/wait.h"
#include "base/log.h"
#include "base/status.h"

enum { SLEEP_FIRST_NS = 50000, SLEEP_LONGEST_NS = 1000000, POLLS_PER_LOOK = 32 };

/* How long the proxy has looked for something in vain. */
typedef struct idleness {
  uint32_t polls;
  int64_t since_ns, sleep_ns;
} idleness;

/* Peers of other hosts want answers, whatever this rank waits for. */
static void idle(bny_bridge *bridge, idleness *idleness) {
  const bny_exec *exec = bridge->exec;
  bool spins = idleness->polls < exec->spins;
  if (spins && ++idleness->polls % POLLS_PER_LOOK) {
    bny_wait_pause();
    return;
  }
  if (exec->progress) exec->progress(bridge->transport);
  if (spins) return;
  int64_t now_ns = bny_clock_ns();
  if (!idleness->since_ns) *idleness = (struct idleness){exec->spins, now_ns, SLEEP_FIRST_NS};
  if (now_ns - idleness->since_ns < exec->yield_ns) {
    sched_yield();
    return;
  }
  bridge->transport->ops->sleep(bridge->transport, idleness->sleep_ns);
  if (idleness->sleep_ns < SLEEP_LONGEST_NS) idleness->sleep_ns *= 2;
}

/* ---- faults ---------------------------------------------------------------------------------------------------------- */

/* Kernels of this host have failed, for a reason of their own. */
static banyan_status fail_by_device(bny_bridge *bridge, const bny_device_fault *fault) {
  int32_t rank = bny_bridge_rank(bridge, fault->culprit);
  banyan_status status = (banyan_status)fault->status;
  if (rank < 0) rank = bridge->transport->rank;
  if (status == BANYAN_ERR_DATA)
    return bny_device_run_fail_data(bridge->exec, bridge->engine, fault, rank);
  return bny_exec_fail(bridge->exec, status, rank, "a run on the device of rank %d failed (%s)", rank,
                       banyan_status_string(status));
}

banyan_status bny_bridge_look(bny_bridge *bridge) {
  banyan_status status = bny_exec_check(bridge->exec, NULL);
  if (status != BANYAN_OK) return status;
  bny_device_fault fault = bny_engine_fault(bridge->engine);
  return fault.status == BANYAN_OK ? BANYAN_OK : fail_by_device(bridge, &fault);
}

/* ---- runs ------------------------------------------------------------------------------------------------------------ */

/* *begun: the device has begun run `epoch`; else the proxy is to end. */
static banyan_status await_run(bny_bridge *bridge, uint64_t epoch, bool *begun) {
  const _Atomic uint64_t *word = bny_bridge_word(bridge, offsetof(bny_relay, begun));
  idleness idleness = {0};
  for (;;) {
    /* Asked first: a run that has begun is carried, though its kernel has ended and its communicator is destroyed. */
    bool quits = atomic_load_explicit(&bridge->quits, memory_order_acquire);
    *begun = atomic_load_explicit(word, memory_order_acquire) >= epoch;
    if (*begun || quits) return BANYAN_OK;
    banyan_status status = bny_bridge_look(bridge);
    if (status != BANYAN_OK) return status;
    idle(bridge, &idleness);
  }
}

static banyan_status carry(bny_bridge *bridge, uint64_t epoch) {
  uint64_t label = atomic_load_explicit(bny_bridge_word(bridge, offsetof(bny_relay, label)), memory_order_relaxed);
  bny_bridge_route *route = (bny_bridge_route *)(uintptr_t)label;
  atomic_load_explicit(&bridge->routes, memory_order_acquire); /* what the thread that planned it has written is seen here */
  /* With this the kernel of the next run may write what was sent in the run before, and the label. */
  atomic_store_explicit(bny_bridge_word(bridge, offsetof(bny_relay, taken)), epoch, memory_order_release);
  bool done = false;
  bny_run_begin(route->run);
  return bny_run_progress(route->run, true, &done);
}

/* Until the bridge is freed: peers are still told of the fault. */
static void linger(bny_bridge *bridge) {
  static const struct timespec pause = {.tv_nsec = SLEEP_LONGEST_NS};
  while (!atomic_load_explicit(&bridge->quits, memory_order_acquire)) {
    if (bridge->exec->progress) bridge->exec->progress(bridge->transport);
    nanosleep(&pause, NULL);
  }
}

/* UCX moves memory of devices by calls of the driver, where no adapter does. */
static banyan_status attach(bny_bridge *bridge) {
  bny_device *device = bridge->engine->device;
  if (!bridge->direct || device->ops->attach(device) == BANYAN_OK) return BANYAN_OK;
  int32_t rank = bridge->transport->rank;
  return bny_exec_fail(bridge->exec, BANYAN_ERR_SYSTEM, rank, "the proxy of rank %d has no device: %s", rank,
                       banyan_last_error());
}

void *bny_bridge_proxy_live(void *argument) {
  bny_bridge *bridge = argument;
  bool begun = true;
  pthread_setname_np(pthread_self(), "banyan-proxy");
  bny_log_read();
  bny_log_rank(bridge->transport->rank);
  banyan_status status = attach(bridge);
  for (uint64_t epoch = 1; begun && status == BANYAN_OK; epoch++) {
    status = await_run(bridge, epoch, &begun);
    if (status == BANYAN_OK && begun) status = carry(bridge, epoch);
  }
  if (status == BANYAN_OK) return NULL;
  atomic_store_explicit(&bridge->failed, true, memory_order_release);
  bny_bridge_end_kernels(bridge, bridge->exec->failure.status, bridge->exec->failure.culprit);
  linger(bridge);
  return NULL;
}
