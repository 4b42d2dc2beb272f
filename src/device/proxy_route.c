/* SPDX-License-Identifier: Apache-2.0
 * Routes: of a plan what lies between hosts, run by the proxy beside the kernels that run the rest. */
#include <stdlib.h>

#include "device/proxy_parts.h"
#include "base/status.h"

/* ---- what a run asks, and tells -------------------------------------------------------------------------------------- */

static bool is_made(void *context, int32_t slot) {
  bny_bridge_route *route = context;
  const bny_bridge *bridge = route->bridge;
  uint64_t epoch = bridge->exec->epoch;
  if (slot != route->slot) route->made = 0;
  route->slot = slot;
  if (slot < 0)
    return atomic_load_explicit(bny_bridge_word(bridge, offsetof(bny_relay, ended)), memory_order_acquire) >= epoch;
  const bny_device_units *units = &route->units[slot];
  const _Atomic uint64_t *signals =
      bridge->words.host + bny_bridge_offset(bridge, BNY_BRIDGE_UNITS, (int)(epoch & 1)) + units->first;
  while (route->made < units->count && atomic_load_explicit(&signals[route->made], memory_order_acquire) == epoch) route->made++;
  return route->made == units->count;
}

static void tell(void *context, int32_t message) {
  const bny_bridge *bridge = ((bny_bridge_route *)context)->bridge;
  uint64_t epoch = bridge->exec->epoch;
  size_t first = bny_bridge_offset(bridge, BNY_BRIDGE_ARRIVALS, (int)(epoch & 1));
  atomic_store_explicit(&bridge->words.host[first + (size_t)message], epoch, memory_order_release);
}

static banyan_status look(void *context) { return bny_bridge_look(((bny_bridge_route *)context)->bridge); }

static bool has_begun(const bny_bridge *bridge, int32_t rank) {
  const bny_rank_line *line = bridge->transport->ops->line(bridge->transport, rank);
  uint64_t started = atomic_load_explicit(&line->started, memory_order_acquire);
  return (int32_t)((uint32_t)(started >> 32) - (uint32_t)bridge->exec->epoch) >= 0;
}

/* A rank of this host that has not come; or one that kernels say they wait for. */
static int32_t suspect(void *context) {
  const bny_bridge *bridge = ((bny_bridge_route *)context)->bridge;
  const bny_device_group *group = &bridge->engine->group;
  for (int32_t i = 0; i < group->nranks; i++)
    if (!has_begun(bridge, bridge->ranks[i])) return bridge->ranks[i];
  const _Atomic uint64_t *waiting = bny_bridge_word(bridge, offsetof(bny_relay, waiting));
  for (int32_t i = 0; i < group->nranks; i++)
    if (i != group->rank && atomic_load_explicit(&waiting[i / 64], memory_order_relaxed) >> i % 64 & 1)
      return bridge->ranks[i];
  return bridge->transport->rank;
}

static const bny_relay_ops relay_ops = {.is_made = is_made, .tell = tell, .look = look, .suspect = suspect};

/* ---- making ---------------------------------------------------------------------------------------------------------- */

/* Of the plan's steps those that other hosts take part in, with these ranks alone. What the others say of slots stays. */
static void keep_far(const bny_bridge *bridge, bny_plan *plan, uint64_t *bytes) {
  const int32_t *host_of = bridge->host_of;
  int32_t nsteps = 0, npeers = 0;
  for (int32_t i = 0; i < plan->nsteps; i++) {
    bny_step step = plan->steps[i];
    int32_t first = npeers;
    bool waits = step.kind == BNY_STEP_WAIT && host_of[plan->messages[step.message].peer] != host_of[plan->rank];
    for (int32_t p = step.first; step.kind == BNY_STEP_SEND && p < step.first + step.count; p++)
      if (host_of[plan->peers[p]] != host_of[plan->rank]) plan->peers[npeers++] = plan->peers[p];
    step.first = first;
    step.count = npeers - first;
    if (step.count) *bytes += plan->slots[step.slot].bytes * (uint64_t)step.count;
    if (waits || step.count) plan->steps[nsteps++] = step;
  }
  plan->nsteps = nsteps;
  plan->npeers = npeers;
}

static banyan_status set_units(bny_bridge_route *route, const bny_request *request, const bny_device_settings *settings) {
  bny_device_settings whole = *settings;
  whole.hosts = &route->hosts;
  route->units = calloc((size_t)route->plan->nslots + 1, sizeof *route->units);
  if (!route->units) return bny_fail(BANYAN_ERR_SYSTEM, "out of memory to bind a plan");
  return bny_device_program_units(request, route->plan, &whole, route->units);
}

static void set_hosts(bny_bridge_route *route) {
  const bny_bridge *bridge = route->bridge;
  const char *words = bridge->words.device;
  route->hosts.shift = bny_run_shift(route->run);
  for (int half = 0; half < 2; half++) {
    const char *units = words + bny_bridge_offset(bridge, BNY_BRIDGE_UNITS, half) * sizeof(uint64_t);
    const char *arrivals = words + bny_bridge_offset(bridge, BNY_BRIDGE_ARRIVALS, half) * sizeof(uint64_t);
    route->hosts.signals[half] = (uint64_t)(uintptr_t)units;
    route->hosts.arrivals[half] = (uint64_t)(uintptr_t)arrivals;
  }
}

static banyan_status fill_route(bny_bridge_route *route, const bny_request *request, const bny_call *call,
                                const bny_device_settings *settings) {
  bny_bridge *bridge = route->bridge;
  banyan_status status = bny_plan_make(request, bridge->transport->rank, &route->plan);
  if (status != BANYAN_OK) return status;
  route->hosts = (bny_device_hosts){.host_of = bridge->host_of, .messages = (const uint64_t(*)[2])bridge->messages,
                                    .label = (uint64_t)(uintptr_t)route};
  route->binding = (bny_binding){.relay = &relay_ops, .relay_context = route};
  status = set_units(route, request, settings);
  if (status != BANYAN_OK) return status;
  keep_far(bridge, route->plan, &route->bytes);
  status = bny_run_make(bridge->exec, route->plan, call, &route->binding, &route->run);
  if (status == BANYAN_OK) set_hosts(route);
  return status;
}

banyan_status bny_bridge_plan(bny_bridge *bridge, const bny_request *request, const bny_call *call,
                              const bny_device_settings *settings, bny_bridge_route **route) {
  uint64_t key = bny_request_hash(request, request->algorithm);
  bny_bridge_route *latest = atomic_load_explicit(&bridge->routes, memory_order_relaxed);
  for (bny_bridge_route *at = latest; at; at = at->next) {
    if (at->key != key) continue;
    *route = at;
    return BANYAN_OK;
  }
  bny_bridge_route *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_SYSTEM, "out of memory to bind a plan");
  *made = (bny_bridge_route){.bridge = bridge, .key = key, .slot = -1, .next = latest};
  banyan_status status = fill_route(made, request, call, settings);
  if (status != BANYAN_OK) {
    bny_bridge_free_route(made);
    return status;
  }
  atomic_store_explicit(&bridge->routes, made, memory_order_release);
  *route = made;
  return BANYAN_OK;
}

void bny_bridge_free_route(bny_bridge_route *route) {
  bny_run_free(route->run);
  bny_plan_free(route->plan);
  free(route->units);
  free(route);
}

const bny_device_hosts *bny_bridge_hosts(const bny_bridge_route *route) { return &route->hosts; }

const bny_run *bny_bridge_run(const bny_bridge_route *route) { return route->run; }

uint64_t bny_bridge_bytes(const bny_bridge_route *route) { return route->bytes; }
