/* SPDX-License-Identifier: Apache-2.0
 * The proxy: waits for kernels to begin a run, does the host's part of it, and answers. */
#include <sched.h>

#include "clock.h"
#include "exec/bridge_parts.h"
#include "exec/wait.h"
#include "log.h"
#include "status.h"

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

/* Kernels of this rank have failed, for a reason of their own. */
static banyan_status fail_by_device(bny_bridge *bridge, const bny_device_fault *fault) {
  int32_t rank = bridge->transport->rank;
  banyan_status status = (banyan_status)fault->status;
  if (status == BANYAN_ERR_DATA)
    return bny_exec_fail(bridge->exec, status, rank,
                         "rank %d gave statistics that are NaN or infinite without being declared empty, in row %u", rank,
                         fault->detail);
  return bny_exec_fail(bridge->exec, status, rank, "a run on the device of rank %d failed (%s)", rank,
                       banyan_status_string(status));
}

static banyan_status look(bny_bridge *bridge) {
  banyan_status status = bny_exec_check(bridge->exec, NULL);
  if (status != BANYAN_OK) return status;
  bny_device_fault fault = bny_engine_fault(bridge->engine);
  return fault.status == BANYAN_OK ? BANYAN_OK : fail_by_device(bridge, &fault);
}

/* ---- waiting for the device ------------------------------------------------------------------------------------------ */

/* *begun: the device has begun run `epoch`; else the proxy is to end. */
static banyan_status await_run(bny_bridge *bridge, uint64_t epoch, bool *begun) {
  size_t offset = offsetof(bny_arena_head, begun) + BNY_BRIDGE_DEVICE * sizeof(uint64_t);
  const _Atomic uint64_t *word = bny_bridge_word(bridge, BNY_BRIDGE_PROXY, offset);
  idleness idleness = {0};
  while (atomic_load_explicit(word, memory_order_acquire) < epoch) {
    if (atomic_load_explicit(&bridge->quits, memory_order_acquire)) {
      *begun = false;
      return BANYAN_OK;
    }
    banyan_status status = look(bridge);
    if (status != BANYAN_OK) return status;
    idle(bridge, &idleness);
  }
  *begun = true;
  return BANYAN_OK;
}

static banyan_status await_units(bny_bridge *bridge, const bny_bridge_units *units, uint64_t epoch) {
  const _Atomic uint64_t *signals =
      bny_bridge_word(bridge, BNY_BRIDGE_PROXY, bridge->shape.signals[epoch & 1]) + units->first;
  idleness idleness = {0};
  int64_t deadline_ns = 0;
  for (uint64_t i = 0; i < units->count;) {
    if (atomic_load_explicit(&signals[i], memory_order_acquire) == epoch) {
      i++;
      continue;
    }
    banyan_status status = look(bridge);
    if (status != BANYAN_OK) return status;
    if (!deadline_ns) deadline_ns = bny_clock_ns() + bridge->exec->timeout_ns;
    if (bny_clock_ns() > deadline_ns)
      return bny_exec_fail(bridge->exec, BANYAN_ERR_TIMEOUT, bridge->transport->rank,
                           "the device of rank %d has begun a run but not gone on with it within %.3f s",
                           bridge->transport->rank, (double)bridge->exec->timeout_ns * 1e-9);
    idle(bridge, &idleness);
  }
  return BANYAN_OK;
}

/* ---- runs ------------------------------------------------------------------------------------------------------------ */

static banyan_status run_slice(bny_bridge *bridge, bny_bridge_slice *slice, uint64_t epoch) {
  int half = (int)(epoch & 1);
  banyan_status status = await_units(bridge, &slice->in, epoch);
  if (status != BANYAN_OK) return status;
  slice->binding.in = &slice->in.partial[half];
  slice->binding.out = slice->out.count ? &slice->out.partial[half] : NULL;
  bool done = false;
  bny_run_begin(slice->run);
  status = bny_run_progress(slice->run, true, &done);
  if (status != BANYAN_OK) return status;
  _Atomic uint64_t *signals =
      bny_bridge_word(bridge, BNY_BRIDGE_DEVICE, bridge->shape.signals[half]) + slice->out.first;
  for (uint64_t i = 0; i < slice->out.count; i++) atomic_store_explicit(&signals[i], epoch, memory_order_release);
  return BANYAN_OK;
}

static banyan_status run_launch(bny_bridge *bridge, uint64_t epoch) {
  uint64_t label = atomic_load_explicit(bny_bridge_word(bridge, BNY_BRIDGE_PROXY, offsetof(bny_arena_head, label)),
                                        memory_order_relaxed);
  const bny_bridge_launch *launch = (const bny_bridge_launch *)(uintptr_t)label;
  atomic_load_explicit(&bridge->works, memory_order_acquire); /* what the thread that planned it has written is seen here */
  /* With this the kernel of the next run may push, where this proxy read in the run before; and may overwrite the label. */
  size_t begun = offsetof(bny_arena_head, begun) + BNY_BRIDGE_PROXY * sizeof(uint64_t);
  atomic_store_explicit(bny_bridge_word(bridge, BNY_BRIDGE_DEVICE, begun), epoch, memory_order_release);
  banyan_status status = BANYAN_OK;
  for (int32_t i = 0; i < launch->count && status == BANYAN_OK; i++)
    status = run_slice(bridge, &launch->work->slices[launch->first + i], epoch);
  return status;
}

/* Until the bridge is freed: peers are still told of the fault. */
static void linger(bny_bridge *bridge) {
  static const struct timespec pause = {.tv_nsec = SLEEP_LONGEST_NS};
  while (!atomic_load_explicit(&bridge->quits, memory_order_acquire)) {
    if (bridge->exec->progress) bridge->exec->progress(bridge->transport);
    nanosleep(&pause, NULL);
  }
}

void *bny_bridge_proxy_live(void *argument) {
  bny_bridge *bridge = argument;
  banyan_status status = BANYAN_OK;
  bool begun = true;
  pthread_setname_np(pthread_self(), "banyan-proxy");
  bny_log_rank(bridge->transport->rank);
  for (uint64_t epoch = 1; begun && status == BANYAN_OK; epoch++) {
    status = await_run(bridge, epoch, &begun);
    if (status == BANYAN_OK && begun) status = run_launch(bridge, epoch);
  }
  if (status == BANYAN_OK) return NULL;
  atomic_store_explicit(&bridge->failed, true, memory_order_release);
  bny_bridge_end_kernels(bridge, bridge->exec->failure.status, bridge->exec->failure.culprit);
  linger(bridge);
  return NULL;
}
