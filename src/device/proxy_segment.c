/* SPDX-License-Identifier: Apache-2.0
 * Segments: the part of a plan between nodes, which the proxy runs beside the kernels that run the rest. */
#include <stdlib.h>

#include "device/proxy_parts.h"
#include "base/status.h"

/* ---- what a run asks, and tells ---------------------------------------------------------------------------------- */

static bool is_made(void *context, int32_t slot) {
  bny_proxy_segment *segment = context;
  const bny_proxy *proxy = segment->proxy;
  uint64_t epoch = proxy->exec->epoch;
  if (slot != segment->slot) segment->made = 0;
  segment->slot = slot;
  if (slot < 0)
    return atomic_load_explicit(bny_proxy_word(proxy, offsetof(bny_proxy_words, ended)), memory_order_acquire) >= epoch;
  const bny_device_units *units = &segment->units[slot];
  const _Atomic uint64_t *signals =
      proxy->words.host + bny_proxy_offset(proxy, BNY_PROXY_UNITS, (int)(epoch & 1)) + units->first;
  while (segment->made < units->count && atomic_load_explicit(&signals[segment->made], memory_order_acquire) == epoch)
    segment->made++;
  return segment->made == units->count;
}

static void tell(void *context, int32_t message) {
  const bny_proxy *proxy = ((bny_proxy_segment *)context)->proxy;
  uint64_t epoch = proxy->exec->epoch;
  size_t first = bny_proxy_offset(proxy, BNY_PROXY_ARRIVALS, (int)(epoch & 1));
  atomic_store_explicit(&proxy->words.host[first + (size_t)message], epoch, memory_order_release);
}

static banyan_status look(void *context) { return bny_proxy_look(((bny_proxy_segment *)context)->proxy); }

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
  const _Atomic uint64_t *waiting = bny_proxy_word(proxy, offsetof(bny_proxy_words, waiting));
  for (int32_t i = 0; i < group->nranks; i++)
    if (i != group->rank && atomic_load_explicit(&waiting[i / 64], memory_order_relaxed) >> i % 64 & 1)
      return proxy->ranks[i];
  return proxy->transport->rank;
}

static const bny_proxy_ops proxy_ops = {.is_made = is_made, .tell = tell, .look = look, .suspect = suspect};

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Keeps the steps of the plan that involve other nodes, with these ranks alone. What other steps say about slots
 * stays. */
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
    const char *units = words + bny_proxy_offset(proxy, BNY_PROXY_UNITS, half) * sizeof(uint64_t);
    const char *arrivals = words + bny_proxy_offset(proxy, BNY_PROXY_ARRIVALS, half) * sizeof(uint64_t);
    segment->nodes.signals[half] = (uint64_t)(uintptr_t)units;
    segment->nodes.arrivals[half] = (uint64_t)(uintptr_t)arrivals;
  }
}

static banyan_status fill_segment(bny_proxy_segment *segment, const bny_request *request, const bny_call *call,
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

banyan_status bny_proxy_segment_get(bny_proxy *proxy, const bny_request *request, const bny_call *call,
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
    bny_proxy_segment_free(made);
    return status;
  }
  atomic_store_explicit(&proxy->segments, made, memory_order_release);
  *segment = made;
  return BANYAN_OK;
}

void bny_proxy_segment_free(bny_proxy_segment *segment) {
  bny_run_free(segment->run);
  bny_plan_free(segment->plan);
  free(segment->units);
  free(segment);
}

const bny_device_nodes *bny_proxy_segment_nodes(const bny_proxy_segment *segment) { return &segment->nodes; }

const bny_run *bny_proxy_segment_run(const bny_proxy_segment *segment) { return segment->run; }

uint64_t bny_proxy_segment_bytes(const bny_proxy_segment *segment) { return segment->bytes; }
