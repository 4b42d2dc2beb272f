/* SPDX-License-Identifier: Apache-2.0 Devices of several nodes: all ranks agree how to combine them, and make a proxy
 * if they need one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "base/status.h"

/* ---- the way ----------------------------------------------------------------------------------------------------- */

/* BANYAN_DEVICE_NODES. */
static const char *const way_names[] = {[BNY_WAY_ANY] = "",
                                        [BNY_WAY_FABRIC] = "fabric",
                                        [BNY_WAY_STAGED] = "staged",
                                        [BNY_WAY_DIRECT] = "direct",
                                        [BNY_WAY_EMULATED] = "emulated"};

static banyan_status read_way(const char *text, bny_way *way) {
  *way = BNY_WAY_ANY;
  if (!text) return BANYAN_OK;
  for (int i = BNY_WAY_FABRIC; i <= BNY_WAY_EMULATED; i++)
    if (strcmp(text, way_names[i]) == 0) *way = (bny_way)i;
  if (*way != BNY_WAY_ANY) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_DEVICE_NODES is \"%.40s\"; it takes staged, direct, fabric or emulated",
                  text);
}

/* The facts that each rank reports to the others. */
typedef struct announcement {
  int32_t way;
  int32_t has_fabric;
} announcement;

static banyan_status choose_way(const announcement *announcements, int32_t nranks, bny_way *way) {
  bool has_fabric = true;
  for (int32_t i = 0; i < nranks; i++) {
    if (announcements[i].way != announcements[0].way)
      return bny_fail(BANYAN_ERR_MISMATCH, "BANYAN_DEVICE_NODES is \"%s\" on rank %d and \"%s\" on rank 0",
                      way_names[announcements[i].way], i, way_names[announcements[0].way]);
    has_fabric = has_fabric && announcements[i].has_fabric;
  }
  *way = (bny_way)announcements[0].way;
  if (*way == BNY_WAY_ANY) *way = has_fabric ? BNY_WAY_FABRIC : BNY_WAY_STAGED;
  return BANYAN_OK;
}

banyan_status bny_comm_agree_way(const banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                 bny_way *way) {
  announcement own = {.has_fabric = comm->device.engine->device->facts.memory_kinds >> BNY_MEMORY_FABRIC & 1};
  bny_way wanted = BNY_WAY_ANY;
  banyan_status status = bny_comm_confirm(exchange, read_way(settings->options.device_nodes, &wanted));
  if (status != BANYAN_OK) return status;
  own.way = (int32_t)wanted;
  announcement *all = calloc((size_t)comm->nranks, sizeof *all);
  if (!all)
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for the devices of %d ranks", comm->rank, comm->nranks);
  status = bny_exchange_all(exchange, &own, all, sizeof own);
  if (status == BANYAN_OK) status = choose_way(all, comm->nranks, way);
  free(all);
  return status;
}

/* ---- the proxy --------------------------------------------------------------------------------------------------- */

/* Makes the executor of the proxy, which is connected in the same way as the communicator's. */
static banyan_status make_exec(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                               const bny_node_map *map, bny_exec **exec) {
  bny_transport *transport = NULL;
  banyan_status status = bny_comm_connect(comm, settings, exchange, map, &transport);
  if (status != BANYAN_OK) return status;
  bny_exec_config config = bny_comm_exec_config(comm, settings, map);
  config.kernels = comm->exec->kernels;
  /* A rank has one trace, that of its communicator. */
  config.record.trace_file = NULL;
  status = bny_exec_make(transport, &config, exec);
  if (status != BANYAN_OK) transport->ops->close(transport);
  return status;
}

/* Returns a longer time than the proxy's. The proxy has the communicator's deadline, and knows which rank to name. */
static int64_t timeout_of_kernels(int64_t timeout_ns) {
  enum { LEAST_NS = 50000000 };
  return timeout_ns + (timeout_ns / 16 > LEAST_NS ? timeout_ns / 16 : LEAST_NS);
}

/* Connects arenas that the devices of this node share. */
static banyan_status connect_node(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                  const bny_node_map *map, bool strict) {
  bny_group_exchange group;
  banyan_status status = bny_group_exchange_begin(exchange, map->node_of, &group);
  if (status != BANYAN_OK) return status;
  size_t count = (size_t)group.bootstrap.nranks;
  int32_t *maps = calloc(2 * count, sizeof *maps);
  for (size_t i = 0; maps && i < count; i++) maps[count + i] = map->process_of[group.ranks[i]];
  bny_arenas_config config = {.bytes = comm->arena_bytes, .nodes = maps, .processes = maps + count, .strict = strict};
  bny_engine *engine = comm->device.engine;
  if (maps)
    status = bny_engine_connect(engine, &group.exchange, &config, timeout_of_kernels(settings->timeout_ns));
  else
    status = bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for the devices of %zu ranks", comm->rank, count);
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  bny_group_exchange_end(&group);
  free(maps);
  if (status != BANYAN_OK) return bny_fail(status, "among the ranks of the node of rank %d: %s", comm->rank, why);
  return bny_device_exec_make(engine, true, &comm->device);
}

banyan_status bny_comm_join_proxy(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                  const bny_node_map *map, bny_way way, bool strict) {
  bny_exec *exec = NULL;
  banyan_status status = bny_comm_confirm(exchange, connect_node(comm, exchange, settings, map, strict));
  if (status != BANYAN_OK) return status;
  status = make_exec(comm, exchange, settings, map, &exec);
  if (status == BANYAN_OK && way == BNY_WAY_DIRECT && !exec->transport->takes_cuda)
    status = bny_fail(
        BANYAN_ERR_UNSUPPORTED,
        "BANYAN_DEVICE_NODES is direct, but UCX does not take memory of CUDA devices on every rank: it was built "
        "without CUDA, or its UCX_TLS has no cuda; see banyan-info");
  if (status == BANYAN_OK) exec->transport->sends_cuda = way == BNY_WAY_DIRECT;
  status = bny_comm_confirm(exchange, status);
  bny_proxy_config config = {.engine = comm->device.engine,
                             .exec = exec,
                             .node_of = map->node_of,
                             .words = comm->device.sizes.proxy_words,
                             .direct = way != BNY_WAY_STAGED};
  if (status == BANYAN_OK) {
    status = bny_proxy_make(&config, &comm->device.proxy);
  } else if (exec) {
    bny_transport *transport = exec->transport;
    bny_exec_free(exec);
    transport->ops->close(transport);
  }
  return bny_comm_confirm(exchange, status);
}
