/* SPDX-License-Identifier: Apache-2.0
 * Finds the locality of this process by probes of this machine or in a topology file. */
#include "locality/locality.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/status.h"
#include "locality/price.h"
#include "topo/model/load.h"
#include "topo/probe/binding.h"
#include "topo/probe/probe.h"

static void say(bny_locality *locality, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(bny_locality *locality, const char *format, ...) {
  size_t used = strlen(locality->source);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(locality->source + used, sizeof locality->source - used, format, arguments);
  va_end(arguments);
}

/* A model and the data derived from it. */
typedef struct machine {
  bny_topo *topo;
  bny_topo_levels *derived;
} machine;

static void machine_free(machine *m) {
  bny_topo_levels_free(m->derived);
  bny_topo_free(m->topo);
}

static int32_t rank_at(const machine *m, int32_t node) {
  for (int32_t r = 0; r < m->derived->nranks; r++)
    if (m->derived->ranks[r].node == node) return r;
  return -1;
}

/* ---- this machine ------------------------------------------------------------------------------------------------ */

static uint64_t key_of(bny_locality_kind kind, int32_t number) {
  return number < 0 ? 0 : bny_hash_add(bny_hash_of((uint64_t)kind), (uint64_t)number);
}

static void place_bound(const bny_prices *prices, const bny_topo_binding *binding, bny_locality *locality) {
  bny_locality_unknown(prices, locality);
  locality->levels[BNY_LOCALITY_CACHE].key = key_of(BNY_LOCALITY_CACHE, binding->cache);
  locality->levels[BNY_LOCALITY_NUMA].key = key_of(BNY_LOCALITY_NUMA, binding->numa);
  locality->levels[BNY_LOCALITY_PACKAGE].key = key_of(BNY_LOCALITY_PACKAGE, binding->package);
  if (binding->npackages > 1) locality->levels[BNY_LOCALITY_HOST].link = bny_locality_link_of(prices, BNY_LINK_SOCKETS);
  say(locality, "%s", binding->source);
  if (binding->package < 0 && binding->npackages > 1) say(locality, "; bound to several packages");
}

static bool probe(machine *m) {
  bny_topo_error why = {.text = ""};
  m->topo = bny_topo_probe_machine(NULL, NULL, &why);
  m->derived = m->topo ? bny_topo_derive(m->topo) : NULL;
  return m->derived != NULL;
}

/* If no probe knows the device, the rank stays at the locality of its processors. */
static bool place_device(const bny_prices *prices, const char *bus_id, bny_locality *locality) {
  machine m = {.topo = NULL};
  int32_t node = probe(&m) ? bny_topo_find_bus(m.topo, bus_id) : -1;
  int32_t rank = node >= 0 ? rank_at(&m, node) : -1;
  if (rank >= 0) {
    bny_locality_of(m.topo, m.derived, rank, prices, locality);
    locality->node = 0;
    say(locality, "probes, %s at %s", m.topo->nodes[node].name, bus_id);
  }
  machine_free(&m);
  return rank >= 0;
}

void bny_locality_find_nic(bny_locality *locality) {
  machine m = {.topo = NULL};
  bny_topo_binding binding;
  bny_topo_binding_find(NULL, &binding);
  bool found = probe(&m) && m.derived->rank_kind == BNY_TOPO_NUMA;
  for (int32_t r = 0; found && r < m.derived->nranks && !locality->nic; r++) {
    bny_locality there;
    if (m.topo->nodes[m.derived->ranks[r].node].index != binding.numa && m.derived->nranks > 1) continue;
    bny_locality_of(m.topo, m.derived, r, &bny_prices_default, &there);
    locality->nic = there.nic;
    locality->nic_gbytes_per_s = there.nic_gbytes_per_s;
    locality->nic_source = there.nic_source;
    locality->rail = there.rail;
    memcpy(locality->nic_name, there.nic_name, sizeof locality->nic_name);
  }
  if (!locality->nic) say(locality, "; no NIC is known");
  machine_free(&m);
}

/* ---- a file ------------------------------------------------------------------------------------------------------ */

/* Reads this rank's number from a text such as "3" or "0,8,1". */
static banyan_status explicit_rank(const bny_locality_query *query, const machine *m, int32_t *rank) {
  const char *text = query->topo_rank;
  bool is_list = strchr(text, ',') != NULL;
  for (int32_t skip = is_list ? query->rank : 0; skip > 0 && text; skip--) {
    text = strchr(text, ',');
    if (text) text++;
  }
  if (!text) return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_TOPO_RANK is a list of fewer numbers than there are ranks");
  char *end;
  long number = strtol(text, &end, 10);
  if (end == text || (*end && *end != ','))
    return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_TOPO_RANK \"%.40s\" is neither a number nor a list such as 0,1,8,9",
                    query->topo_rank);
  if (number < 0 || number >= m->derived->nranks)
    return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_TOPO_RANK is %ld for rank %d, and %.100s has ranks 0 to %d", number,
                    query->rank, query->topo, m->derived->nranks - 1);
  *rank = (int32_t)number;
  return BANYAN_OK;
}

/* The only host of the model, or that of this machine's name. */
static banyan_status find_host(const bny_locality_query *query, const machine *m, int32_t *host) {
  char name[256] = "";
  int32_t count = bny_topo_count(m->topo, BNY_TOPO_HOST);
  if (gethostname(name, sizeof name - 1) != 0) name[0] = 0;
  *host = -1;
  for (int32_t n = 0; n < m->topo->nnodes && *host < 0; n++) {
    const bny_topo_node *node = &m->topo->nodes[n];
    if (node->kind == BNY_TOPO_HOST && (count == 1 || strcmp(node->name, name) == 0)) *host = n;
  }
  if (*host >= 0) return BANYAN_OK;
  return bny_fail(
      BANYAN_ERR_ARGUMENT,
      "BANYAN_TOPO: %.100s has %d hosts, and none has the name of this one, %.60s; set BANYAN_TOPO_RANK to the "
      "number of this rank in it",
      query->topo, count, name);
}

/* The NUMA node or package of the binding within the host; the host itself if it has neither. */
static int32_t find_bound(const machine *m, int32_t host, const bny_topo_binding *binding) {
  int32_t package = host;
  for (int32_t n = 0; n < m->topo->nnodes; n++) {
    const bny_topo_node *node = &m->topo->nodes[n];
    if (bny_topo_ancestor(m->topo, n, BNY_TOPO_HOST) != host || node->index < 0) continue;
    if (node->kind == BNY_TOPO_NUMA && node->index == binding->numa) return n;
    if (node->kind == BNY_TOPO_PACKAGE && node->index == binding->package) package = n;
  }
  return package;
}

static banyan_status place_by_bus(const bny_locality_query *query, const machine *m, const char *bus_id,
                                  int32_t *rank) {
  int32_t node = bny_topo_find_bus(m->topo, bus_id);
  *rank = node >= 0 ? rank_at(m, node) : -1;
  if (*rank >= 0) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT,
                  "BANYAN_TOPO: the device of rank %d is %s, and %.100s has no device there; give the file of this "
                  "machine, or BANYAN_TOPO_RANK",
                  query->rank, bus_id, query->topo);
}

/* `rank` is a number among the file's devices. -1: the rank is at the locality of its processors. */
static banyan_status place_in(const bny_locality_query *query, const machine *m, const bny_prices *prices, int32_t rank,
                              bny_locality *locality) {
  if (rank < 0) {
    bny_topo_binding binding;
    int32_t host;
    banyan_status status = find_host(query, m, &host);
    if (status != BANYAN_OK) return status;
    bny_topo_binding_find(NULL, &binding);
    int32_t node = find_bound(m, host, &binding);
    rank = rank_at(m, node);
    if (rank < 0) bny_locality_at(m->topo, m->derived, node, prices, locality);
    if (rank < 0)
      say(locality, "%.100s, %s by its binding (%.30s)", query->topo, m->topo->nodes[node].name, binding.source);
  }
  if (rank < 0) return BANYAN_OK;
  bny_locality_of(m->topo, m->derived, rank, prices, locality);
  const bny_topo_rank *r = &m->derived->ranks[rank];
  say(locality, "%.100s, %s", query->topo, m->topo->nodes[r->node].name);
  if (r->host >= 0 && r->host != r->node) say(locality, " of %s", m->topo->nodes[r->host].name);
  return BANYAN_OK;
}

static banyan_status place_from_file(const bny_locality_query *query, const bny_prices *prices,
                                     bny_locality *locality) {
  machine m = {.topo = NULL};
  bny_topo_error why = {.text = ""};
  char bus_id[BNY_TOPO_BUS_BYTES], unknown[128] = "";
  m.topo = bny_topo_read(query->topo, &why);
  bool no_memory = !m.topo && strstr(why.text, "memory");
  if (!m.topo && !no_memory) return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_TOPO: %s", why.text);
  m.derived = m.topo ? bny_topo_derive(m.topo) : NULL;
  banyan_status status =
      m.derived ? BANYAN_OK
                : bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for BANYAN_TOPO %.100s", query->rank, query->topo);
  int32_t rank = -1;
  if (status == BANYAN_OK && query->topo_rank)
    status = explicit_rank(query, &m, &rank);
  else if (status == BANYAN_OK && query->device &&
           bny_locality_device_bus(query->device, query->cuda_library, bus_id, unknown, sizeof unknown))
    status = place_by_bus(query, &m, bus_id, &rank);
  if (status == BANYAN_OK) status = place_in(query, &m, prices, rank, locality);
  if (status == BANYAN_OK && query->topo_rank) locality->topo_rank = rank;
  if (status == BANYAN_OK && !query->topo_rank) locality->node = 0;
  if (status == BANYAN_OK && unknown[0]) say(locality, "; %s", unknown);
  machine_free(&m);
  return status;
}

/* ---- this process ------------------------------------------------------------------------------------------------ */

static banyan_status find_with(const bny_locality_query *query, const bny_prices *prices, bny_locality *locality) {
  bny_locality_unknown(prices, locality);
  if (query->topo) return place_from_file(query, prices, locality);
  if (query->topo_rank)
    return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_TOPO_RANK is set, and BANYAN_TOPO, which names the file, is not");
  char bus_id[BNY_TOPO_BUS_BYTES], unknown[128] = "";
  if (query->device) {
    bool known = bny_locality_device_bus(query->device, query->cuda_library, bus_id, unknown, sizeof unknown);
    if (known && place_device(prices, bus_id, locality)) return BANYAN_OK;
    if (known) snprintf(unknown, sizeof unknown, "no probe finds its device at %s", bus_id);
  }
  bny_topo_binding binding;
  bny_topo_binding_find(NULL, &binding);
  place_bound(prices, &binding, locality);
  if (unknown[0]) say(locality, "; %s", unknown);
  return BANYAN_OK;
}

banyan_status bny_locality_find(const bny_locality_query *query, bny_locality *locality) {
  bny_prices prices = bny_prices_default;
  banyan_status status = query->costs ? bny_costs_read(query->costs, &prices) : BANYAN_OK;
  if (status == BANYAN_OK) status = find_with(query, &prices, locality);
  if (status == BANYAN_OK && query->costs) say(locality, "; costs of %s", prices.source);
  return status;
}
