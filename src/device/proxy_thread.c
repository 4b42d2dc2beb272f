/* SPDX-License-Identifier: Apache-2.0
 * The proxy's thread: it waits for kernels to begin a run, and exchanges between nodes what they make and read. */
#include <sched.h>

#include "base/clock.h"
#include "device/proxy_parts.h"
#include "device/run.h"
#include "exec/wait.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"

enum { SLEEP_FIRST_NS = 50000, SLEEP_LONGEST_NS = 1000000, POLLS_PER_LOOK = 32 };

/* How long the proxy has looked for something in vain. */
typedef struct idleness {
  uint32_t polls;
  int64_t since_ns, sleep_ns;
} idleness;

/* Peers on other nodes need answers, whatever this rank waits for. */
static void idle(bny_proxy *proxy, idleness *idleness) {
  const bny_exec *exec = proxy->exec;
  bool spins = idleness->polls < exec->spins;
  if (spins && ++idleness->polls % POLLS_PER_LOOK) {
    bny_thread_pause();
    return;
  }
  if (exec->progress) exec->progress(proxy->transport);
  if (spins) return;
  int64_t now_ns = bny_clock_ns();
  if (!idleness->since_ns) *idleness = (struct idleness){exec->spins, now_ns, SLEEP_FIRST_NS};
  if (now_ns - idleness->since_ns < exec->yield_ns) {
    sched_yield();
    return;
  }
  proxy->transport->ops->sleep(proxy->transport, idleness->sleep_ns);
  if (idleness->sleep_ns < SLEEP_LONGEST_NS) idleness->sleep_ns *= 2;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* Kernels of this node have failed, for a reason of their own. */
static banyan_status fail_by_device(bny_proxy *proxy, const bny_device_fault *fault) {
  int32_t rank = bny_proxy_rank(proxy, fault->culprit);
  banyan_status status = (banyan_status)fault->status;
  if (rank < 0) rank = proxy->transport->rank;
  if (status == BANYAN_ERR_DATA) return bny_device_run_fail_data(proxy->exec, proxy->engine, fault, rank);
  return bny_exec_fail(proxy->exec, status, rank, "a run on the device of rank %d failed (%s)", rank,
                       banyan_status_string(status));
}

banyan_status bny_proxy_look(bny_proxy *proxy) {
  banyan_status status = bny_exec_check(proxy->exec, NULL);
  if (status != BANYAN_OK) return status;
  bny_device_fault fault = bny_engine_fault(proxy->engine);
  return fault.status == BANYAN_OK ? BANYAN_OK : fail_by_device(proxy, &fault);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* *begun: the device has begun run `epoch`; otherwise the proxy is to end. */
static banyan_status await_run(bny_proxy *proxy, uint64_t epoch, bool *begun) {
  const _Atomic uint64_t *word = bny_proxy_word(proxy, offsetof(bny_proxy_words, begun));
  idleness idleness = {0};
  for (;;) {
    /* This is read first: a run that has begun is completed, though its kernel has ended and its communicator is
     * destroyed. */
    bool quits = atomic_load_explicit(&proxy->quits, memory_order_acquire);
    *begun = atomic_load_explicit(word, memory_order_acquire) >= epoch;
    if (*begun || quits) return BANYAN_OK;
    banyan_status status = bny_proxy_look(proxy);
    if (status != BANYAN_OK) return status;
    idle(proxy, &idleness);
  }
}

static banyan_status carry(bny_proxy *proxy, uint64_t epoch) {
  uint64_t label = atomic_load_explicit(bny_proxy_word(proxy, offsetof(bny_proxy_words, label)), memory_order_relaxed);
  bny_proxy_segment *segment = (bny_proxy_segment *)(uintptr_t)label;
  atomic_load_explicit(&proxy->segments,
                       memory_order_acquire); /* this shows what the thread that planned it has written */
  /* After this the kernel of the next run may overwrite what was sent in the run before, and the label. */
  atomic_store_explicit(bny_proxy_word(proxy, offsetof(bny_proxy_words, taken)), epoch, memory_order_release);
  bool done = false;
  bny_run_begin(segment->run);
  return bny_run_progress(segment->run, true, &done);
}

/* Until the proxy is freed, peers are still told about the fault. */
static void linger(bny_proxy *proxy) {
  static const struct timespec pause = {.tv_nsec = SLEEP_LONGEST_NS};
  while (!atomic_load_explicit(&proxy->quits, memory_order_acquire)) {
    if (proxy->exec->progress) proxy->exec->progress(proxy->transport);
    nanosleep(&pause, NULL);
  }
}

/* UCX moves device memory by calls of the driver if no adapter does. */
static banyan_status attach(bny_proxy *proxy) {
  bny_device *device = proxy->engine->device;
  if (!proxy->direct || device->ops->attach(device) == BANYAN_OK) return BANYAN_OK;
  int32_t rank = proxy->transport->rank;
  return bny_exec_fail(proxy->exec, BANYAN_ERR_SYSTEM, rank, "the proxy of rank %d has no device: %s", rank,
                       banyan_last_error());
}

void *bny_proxy_thread(void *argument) {
  bny_proxy *proxy = argument;
  bool begun = true;
  pthread_setname_np(pthread_self(), "banyan-proxy");
  bny_log_read();
  bny_log_rank(proxy->transport->rank);
  banyan_status status = attach(proxy);
  for (uint64_t epoch = 1; begun && status == BANYAN_OK; epoch++) {
    status = await_run(proxy, epoch, &begun);
    if (status == BANYAN_OK && begun) status = carry(proxy, epoch);
  }
  if (status == BANYAN_OK) return NULL;
  atomic_store_explicit(&proxy->failed, true, memory_order_release);
  bny_proxy_end_kernels(proxy, proxy->exec->failure.status, proxy->exec->failure.culprit);
  linger(proxy);
  return NULL;
}
