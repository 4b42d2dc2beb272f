/* SPDX-License-Identifier: Apache-2.0
 * The proxy: its memory, segments, thread and shutdown. A segment is the part of a plan between nodes. The proxy runs
 * it while kernels run the rest of the plan. The thread waits until kernels begin a run, sends the messages that they
 * make to other nodes, and receives the messages that they read. */
#include "device/proxy.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "device/run.h"
#include "exec/wait.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"

/* The arrays of words that follow a bny_proxy_words. */
typedef enum word_use { UNITS, ARRIVALS } word_use;

static size_t words_offset(const bny_proxy *proxy, word_use use, int half) {
  return sizeof(bny_proxy_words) / sizeof(uint64_t) + ((size_t)use * 2 + (size_t)half) * proxy->room;
}

static _Atomic uint64_t *word_at(const bny_proxy *proxy, size_t offset) {
  return &proxy->words.host[offset / sizeof(uint64_t)];
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* Ends current and later kernels. Any thread may call it.
 *
 * Kernels have no numbers for ranks of other nodes, so their fault word cannot name such a culprit. Host code takes the
 * culprit from the transport, where it was recorded before. Other ranks do the same and end their own kernels. */
static void end_kernels(bny_proxy *proxy, banyan_status status, int32_t culprit) {
  const bny_engine *engine = proxy->engine;
  int32_t number = engine->group.nranks - 1;
  while (number >= 0 && proxy->ranks[number] != culprit) number--;
  uint64_t none = 0, fault = bny_device_fault_pack((int32_t)status, number, engine->group.rank, 0);
  atomic_compare_exchange_strong(&engine->words.host[BNY_DEVICE_WORD_ABORT], &none, fault);
}

/* Turns a fault of this node's kernels into the failure of the proxy. */
static banyan_status fail_by_device(bny_proxy *proxy, const bny_device_fault *fault) {
  int32_t rank = bny_proxy_rank(proxy, fault->culprit);
  banyan_status status = (banyan_status)fault->status;
  if (rank < 0) rank = proxy->transport->rank;
  if (status == BANYAN_ERR_DATA) return bny_engine_fail_data(proxy->exec, proxy->engine, fault, rank);
  return bny_exec_fail(proxy->exec, status, rank, "a run on the device of rank %d failed (%s)", rank,
                       banyan_status_string(status));
}

/* Returns the first failure of this rank's kernels or of the transport. */
static banyan_status find_fault(bny_proxy *proxy) {
  banyan_status status = bny_exec_check(proxy->exec, NULL);
  if (status != BANYAN_OK) return status;
  bny_device_fault fault = bny_engine_fault(proxy->engine);
  return fault.status == BANYAN_OK ? BANYAN_OK : fail_by_device(proxy, &fault);
}

/* ---- what a run asks, and reports -------------------------------------------------------------------------------- */

static bool is_made(void *context, int32_t slot) {
  bny_proxy_segment *segment = context;
  const bny_proxy *proxy = segment->proxy;
  uint64_t epoch = proxy->exec->epoch;
  if (slot != segment->slot) segment->made = 0;
  segment->slot = slot;
  if (slot < 0)
    return atomic_load_explicit(word_at(proxy, offsetof(bny_proxy_words, ended)), memory_order_acquire) >= epoch;
  const bny_device_units *units = &segment->units[slot];
  const _Atomic uint64_t *signals = proxy->words.host + words_offset(proxy, UNITS, (int)(epoch & 1)) + units->first;
  while (segment->made < units->count && atomic_load_explicit(&signals[segment->made], memory_order_acquire) == epoch)
    segment->made++;
  return segment->made == units->count;
}

static void notify(void *context, int32_t message) {
  const bny_proxy *proxy = ((bny_proxy_segment *)context)->proxy;
  uint64_t epoch = proxy->exec->epoch;
  size_t first = words_offset(proxy, ARRIVALS, (int)(epoch & 1));
  atomic_store_explicit(&proxy->words.host[first + (size_t)message], epoch, memory_order_release);
}

static banyan_status look(void *context) { return find_fault(((bny_proxy_segment *)context)->proxy); }

static bool has_begun(const bny_proxy *proxy, int32_t rank) {
  const bny_rank_line *line = proxy->transport->ops->line(proxy->transport, rank);
  uint64_t started = atomic_load_explicit(&line->started, memory_order_acquire);
  return (int32_t)((uint32_t)(started >> 32) - (uint32_t)proxy->exec->epoch) >= 0;
}

/* Returns a rank of this node that has not arrived, or one that kernels report they wait for. */
static int32_t suspect(void *context) {
  const bny_proxy *proxy = ((bny_proxy_segment *)context)->proxy;
  const bny_device_group *group = &proxy->engine->group;
  for (int32_t i = 0; i < group->nranks; i++)
    if (!has_begun(proxy, proxy->ranks[i])) return proxy->ranks[i];
  const _Atomic uint64_t *waiting = word_at(proxy, offsetof(bny_proxy_words, waiting));
  for (int32_t i = 0; i < group->nranks; i++)
    if (i != group->rank && atomic_load_explicit(&waiting[i / 64], memory_order_relaxed) >> i % 64 & 1)
      return proxy->ranks[i];
  return proxy->transport->rank;
}

static const bny_proxy_ops proxy_ops = {.is_made = is_made, .notify = notify, .look = look, .suspect = suspect};

/* ---- segments ---------------------------------------------------------------------------------------------------- */

/* Keeps only steps that involve other nodes, and only ranks of other nodes in them. The facts of all slots stay. */
static void keep_remote(const bny_proxy *proxy, bny_plan *plan, uint64_t *bytes) {
  const int32_t *node_of = proxy->node_of;
  int32_t nsteps = 0, npeers = 0;
  for (int32_t i = 0; i < plan->nsteps; i++) {
    bny_step step = plan->steps[i];
    int32_t first = npeers;
    bool waits = step.kind == BNY_STEP_WAIT && node_of[plan->messages[step.message].peer] != node_of[plan->rank];
    for (int32_t p = step.first; step.kind == BNY_STEP_SEND && p < step.first + step.count; p++)
      if (node_of[plan->peers[p]] != node_of[plan->rank]) plan->peers[npeers++] = plan->peers[p];
    step.first = first;
    step.count = npeers - first;
    if (step.count) *bytes += plan->slots[step.slot].bytes * (uint64_t)step.count;
    if (waits || step.count) plan->steps[nsteps++] = step;
  }
  plan->nsteps = nsteps;
  plan->npeers = npeers;
}

static banyan_status set_units(bny_proxy_segment *segment, const bny_request *request,
                               const bny_device_settings *settings) {
  bny_device_settings whole = *settings;
  whole.nodes = &segment->nodes;
  segment->units = calloc((size_t)segment->plan->nslots + 1, sizeof *segment->units);
  if (!segment->units) return bny_fail(BANYAN_ERR_SYSTEM, "out of memory to bind a plan");
  return bny_device_program_units(request, segment->plan, &whole, segment->units);
}

static void set_nodes(bny_proxy_segment *segment) {
  const bny_proxy *proxy = segment->proxy;
  const char *words = proxy->words.device;
  segment->nodes.shift = bny_run_shift(segment->run);
  for (int half = 0; half < 2; half++) {
    const char *units = words + words_offset(proxy, UNITS, half) * sizeof(uint64_t);
    const char *arrivals = words + words_offset(proxy, ARRIVALS, half) * sizeof(uint64_t);
    segment->nodes.signals[half] = (uint64_t)(uintptr_t)units;
    segment->nodes.arrivals[half] = (uint64_t)(uintptr_t)arrivals;
  }
}

static banyan_status fill_segment(bny_proxy_segment *segment, const bny_request *request, const bny_notice *call,
                                  const bny_device_settings *settings) {
  bny_proxy *proxy = segment->proxy;
  banyan_status status = bny_plan_make(request, proxy->transport->rank, &segment->plan);
  if (status != BANYAN_OK) return status;
  segment->nodes = (bny_device_nodes){.node_of = proxy->node_of,
                                      .messages = (const uint64_t(*)[2])proxy->messages,
                                      .label = (uint64_t)(uintptr_t)segment};
  segment->binding = (bny_binding){.proxy = &proxy_ops, .proxy_context = segment};
  status = set_units(segment, request, settings);
  if (status != BANYAN_OK) return status;
  keep_remote(proxy, segment->plan, &segment->bytes);
  status = bny_run_make(proxy->exec, segment->plan, call, &segment->binding, &segment->run);
  if (status == BANYAN_OK) set_nodes(segment);
  return status;
}

static void free_segment(bny_proxy_segment *segment) {
  bny_run_free(segment->run);
  bny_plan_free(segment->plan);
  free(segment->units);
  free(segment);
}

banyan_status bny_proxy_segment_get(bny_proxy *proxy, const bny_request *request, const bny_notice *call,
                                    const bny_device_settings *settings, bny_proxy_segment **segment) {
  uint64_t key = bny_request_hash(request, request->algorithm);
  bny_proxy_segment *latest = atomic_load_explicit(&proxy->segments, memory_order_relaxed);
  for (bny_proxy_segment *at = latest; at; at = at->next) {
    if (at->key != key) continue;
    *segment = at;
    return BANYAN_OK;
  }
  bny_proxy_segment *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_SYSTEM, "out of memory to bind a plan");
  *made = (bny_proxy_segment){.proxy = proxy, .key = key, .slot = -1, .next = latest};
  banyan_status status = fill_segment(made, request, call, settings);
  if (status != BANYAN_OK) {
    free_segment(made);
    return status;
  }
  atomic_store_explicit(&proxy->segments, made, memory_order_release);
  *segment = made;
  return BANYAN_OK;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

enum { SLEEP_FIRST_NS = 50000, SLEEP_LONGEST_NS = 1000000, POLLS_PER_LOOK = 32 };

/* How long the proxy has polled without success. */
typedef struct idleness {
  uint32_t polls;
  int64_t since_ns, sleep_ns;
} idleness;

/* One wait iteration. Peers on other nodes need answers while this rank waits. */
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

/* Waits until the device begins run `epoch`, or until the proxy must end. Sets *begun in the first case. */
static banyan_status await_run(bny_proxy *proxy, uint64_t epoch, bool *begun) {
  const _Atomic uint64_t *word = word_at(proxy, offsetof(bny_proxy_words, begun));
  idleness idleness = {0};
  for (;;) {
    /* `quits` is read first, so that a run that has begun is completed. Its kernel may have ended, and its communicator
     * may be destroyed. */
    bool quits = atomic_load_explicit(&proxy->quits, memory_order_acquire);
    *begun = atomic_load_explicit(word, memory_order_acquire) >= epoch;
    if (*begun || quits) return BANYAN_OK;
    banyan_status status = find_fault(proxy);
    if (status != BANYAN_OK) return status;
    idle(proxy, &idleness);
  }
}

static banyan_status carry(bny_proxy *proxy, uint64_t epoch) {
  uint64_t label = atomic_load_explicit(word_at(proxy, offsetof(bny_proxy_words, label)), memory_order_relaxed);
  bny_proxy_segment *segment = (bny_proxy_segment *)(uintptr_t)label;
  atomic_load_explicit(&proxy->segments, memory_order_acquire); /* makes the writes of the planning thread visible */
  /* After this store, the kernel of the next run may overwrite the messages of the previous run, and the label. */
  atomic_store_explicit(word_at(proxy, offsetof(bny_proxy_words, taken)), epoch, memory_order_release);
  const bny_run_report *report;
  bny_run_begin(segment->run);
  return bny_run_progress(segment->run, true, &report);
}

/* Reports the fault to peers repeatedly until the proxy is freed. */
static void linger(bny_proxy *proxy) {
  static const struct timespec pause = {.tv_nsec = SLEEP_LONGEST_NS};
  while (!atomic_load_explicit(&proxy->quits, memory_order_acquire)) {
    if (proxy->exec->progress) proxy->exec->progress(proxy->transport);
    nanosleep(&pause, NULL);
  }
}

static void *run_thread(void *argument) {
  bny_proxy *proxy = argument;
  bool begun = true;
  pthread_setname_np(pthread_self(), "banyan-proxy");
  bny_log_read();
  bny_log_rank(proxy->transport->rank);
  banyan_status status = BANYAN_OK;
  for (uint64_t epoch = 1; begun && status == BANYAN_OK; epoch++) {
    status = await_run(proxy, epoch, &begun);
    if (status == BANYAN_OK && begun) status = carry(proxy, epoch);
  }
  if (status == BANYAN_OK) return NULL;
  atomic_store_explicit(&proxy->failed, true, memory_order_release);
  end_kernels(proxy, proxy->exec->failure.status, proxy->exec->failure.culprit);
  linger(proxy);
  return NULL;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static banyan_status register_half(bny_proxy *proxy, int32_t rank, int half) {
  bny_transport *transport = proxy->transport;
  bny_device *device = proxy->engine->device;
  void *host = rank == transport->rank ? transport->halves[half]
                                       : (void *)(uintptr_t)transport->ops->peer_outbox(transport, rank, half);
  void *address = NULL;
  banyan_status status = device->ops->host_register(device, host, transport->half_bytes, &address);
  if (status != BANYAN_OK) return status;
  proxy->halves[rank][half] = host;
  proxy->messages[rank][half] = (uint64_t)(uintptr_t)address;
  return BANYAN_OK;
}

/* Registers all memory before the first run. Registration may wait for kernels, and later it would race with threads
 * that add to the transport's data about ranks. */
static banyan_status register_messages(bny_proxy *proxy) {
  bny_transport *transport = proxy->transport;
  banyan_status status = BANYAN_OK;
  for (int32_t rank = 0; rank < transport->nranks && status == BANYAN_OK; rank++) {
    bool is_remote = proxy->node_of[rank] != proxy->node_of[transport->rank];
    if (transport->ops->prepare_receive) status = transport->ops->prepare_receive(transport, rank);
    for (int half = 0; half < 2 && status == BANYAN_OK; half++) {
      if (is_remote || rank == transport->rank) status = register_half(proxy, rank, half);
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
  size_t words = words_offset(proxy, ARRIVALS, 1) + proxy->room;
  banyan_status status = device->ops->words_make(device, words, &proxy->words);
  if (status != BANYAN_OK) return status;
  proxy->engine->group.proxy = proxy->words.device;
  return register_messages(proxy);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static banyan_status start_thread(bny_proxy *proxy) {
  int error = bny_thread_start(&proxy->thread, run_thread, proxy);
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

void bny_proxy_free(bny_proxy *proxy) {
  if (!proxy) return;
  bny_device *device = proxy->engine->device;
  bny_transport *transport = proxy->transport;
  atomic_store_explicit(&proxy->quits, true, memory_order_release);
  if (proxy->has_thread) pthread_join(proxy->thread, NULL);
  atomic_store_explicit(&transport->ops->line(transport, transport->rank)->left, 1, memory_order_release);
  /* Aborted kernels may still poll memory that is unmapped below. */
  bny_engine_clear(proxy->engine);
  for (bny_proxy_segment *segment = atomic_load(&proxy->segments), *next; segment; segment = next) {
    next = segment->next;
    free_segment(segment);
  }
  for (int32_t i = 0; proxy->halves && i < 2 * transport->nranks; i++) {
    void *host = proxy->halves[i / 2][i % 2];
    if (host) device->ops->host_unregister(device, host, transport->half_bytes);
  }
  bny_exec_free(proxy->exec);
  transport->ops->close(transport);
  proxy->engine->group.proxy = NULL;
  device->ops->words_free(device, &proxy->words);
  free(proxy->node_of), free(proxy->ranks), free(proxy->halves), free(proxy->messages);
  free(proxy);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

int32_t bny_proxy_rank(const bny_proxy *proxy, int32_t number) {
  return number >= 0 && number < proxy->engine->group.nranks ? proxy->ranks[number] : -1;
}

const bny_failure *bny_proxy_failure(const bny_proxy *proxy) {
  return atomic_load_explicit(&proxy->failed, memory_order_acquire) ? &proxy->exec->failure : NULL;
}

void bny_proxy_stop(bny_proxy *proxy, banyan_status status, int32_t culprit) {
  bny_exec_stop(proxy->exec, status, culprit);
  end_kernels(proxy, status, culprit);
}

void bny_proxy_abort(bny_proxy *proxy, const char *reason) {
  bny_exec_abort(proxy->exec, reason);
  end_kernels(proxy, BANYAN_ERR_ABORTED, proxy->transport->rank);
}
