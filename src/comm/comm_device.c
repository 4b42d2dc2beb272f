/* SPDX-License-Identifier: Apache-2.0
 * Opens the device of a communicator, shares its memory with other ranks, and reports failures of its kernels. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/device.h"
#include "base/status.h"
#include "base/deadline.h"
#include "base/log.h"

/* ---- fabric handles ---------------------------------------------------------------------------------------------- */

/* Sets *has_fabric if all ranks' devices share memory by fabric handles, because their nodes are one NVLink domain. */
static banyan_status comm_find_fabric(const banyan_comm *comm, const bny_exchange *exchange, bool *has_fabric) {
  int32_t own = comm->device.engine->device->facts.memory_kinds >> BNY_MEMORY_FABRIC & 1;
  int32_t *all = calloc((size_t)comm->nranks, sizeof *all);
  if (!all)
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for the devices of %d ranks", comm->rank, comm->nranks);
  banyan_status status = bny_exchange_all(exchange, &own, all, sizeof own);
  *has_fabric = true;
  for (int32_t i = 0; i < comm->nranks; i++) *has_fabric = *has_fabric && all[i];
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

static banyan_status comm_join_proxy(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                     const bny_node_map *map, bool strict) {
  bny_exec *exec = NULL;
  banyan_status status = bny_comm_confirm(exchange, connect_node(comm, exchange, settings, map, strict));
  if (status != BANYAN_OK) return status;
  status = make_exec(comm, exchange, settings, map, &exec);
  status = bny_comm_confirm(exchange, status);
  bny_proxy_config config = {
      .engine = comm->device.engine, .exec = exec, .node_of = map->node_of, .words = comm->device.sizes.proxy_words};
  if (status == BANYAN_OK) {
    status = bny_proxy_make(&config, &comm->device.proxy);
  } else if (exec) {
    bny_transport *transport = exec->transport;
    bny_exec_free(exec);
    transport->ops->close(transport);
  }
  return bny_comm_confirm(exchange, status);
}

/* Options have only the words that options.def lists. */
static bool is(const char *option, const char *word) { return option && strcmp(option, word) == 0; }

/* Local. */
static banyan_status open_engine(const bny_settings *settings, bny_engine **engine) {
  const bny_options *options = &settings->options;
  bny_device *device = NULL;
  banyan_status status = bny_device_open_named(settings->device, options->cuda_library, &device);
  if (status != BANYAN_OK) return status;
  bny_engine_config config = {.image = options->cuda_image,
                              .sm_limit = (int32_t)options->device_sms,
                              .blocks_max = (int32_t)options->device_blocks};
  return bny_engine_make(device, &config, engine);
}

/* Connects arenas that the devices of all ranks share. */
static banyan_status join_arenas(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                 const bny_arenas_config *config) {
  bny_engine *engine = comm->device.engine;
  banyan_status status = bny_engine_connect(engine, exchange, config, settings->timeout_ns);
  if (status == BANYAN_OK) status = bny_device_exec_make(engine, false, &comm->device);
  return bny_comm_confirm(exchange, status);
}

static banyan_status join_nodes(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                const bny_node_map *map, const bny_arenas_config *config) {
  bool has_fabric = false;
  banyan_status status = comm_find_fabric(comm, exchange, &has_fabric);
  if (status != BANYAN_OK) return status;
  if (has_fabric) {
    status = join_arenas(comm, exchange, settings, config);
    if (status == BANYAN_OK || config->strict) return status;
    bny_log(BNY_LOG_WARN, "rank %d: %s; devices of several nodes are combined through host memory", comm->rank,
            banyan_last_error());
    bny_engine_disconnect(comm->device.engine);
  }
  return comm_join_proxy(comm, exchange, settings, map, config->strict);
}

banyan_status bny_comm_join_device(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                   const bny_node_map *map) {
  bny_arenas_config arenas = {.bytes = map->device_arena_bytes,
                              .nodes = map->node_of,
                              .processes = map->process_of,
                              .strict = is(settings->options.device_fallback, "error")};
  bny_engine *engine = NULL;
  banyan_status status = open_engine(settings, &engine);
  comm->device.engine = engine;
  status = bny_comm_confirm(exchange, status);
  if (status != BANYAN_OK) return status;
  if (map->nnodes > 1) return join_nodes(comm, exchange, settings, map, &arenas);
  return join_arenas(comm, exchange, settings, &arenas);
}

void bny_comm_leave_device(banyan_comm *comm) {
  bny_proxy_free(comm->device.proxy);
  bny_engine_free(comm->device.engine);
  comm->device.proxy = NULL;
  comm->device.engine = NULL;
}

/* The rank whose kernel ran knows the wrong entry of the page table. */
static banyan_status take_wrong_page(banyan_comm *comm, const bny_device_fault *fault) {
  uint32_t sequence = (fault->detail & ~(uint32_t)BNY_DEVICE_DETAIL_PAGE) - 1, position;
  int32_t id;
  char at[64] = "";
  if (fault->culprit == comm->rank && bny_engine_fault_position(comm->device.engine, &position, &id))
    snprintf(at, sizeof at, "[%u] is %d", position, id);
  return bny_exec_fail(
      comm->exec, BANYAN_ERR_ARGUMENT, fault->culprit,
      "rank %d gave attention on its device a page that is negative or not below pages: page_table[%u]%s",
      fault->culprit, sequence, at);
}

/* The rank whose kernel ran knows the wrong start, and the bound that it passes. */
static banyan_status take_wrong_start(banyan_comm *comm, const bny_device_fault *fault) {
  uint32_t sequence = fault->detail & ~(uint32_t)BNY_DEVICE_DETAIL_START, bound;
  int32_t start;
  char at[64] = "";
  if (fault->culprit == comm->rank && bny_engine_fault_position(comm->device.engine, &bound, &start))
    snprintf(at, sizeof at, start < (int32_t)bound ? " is %d, less than %u" : " is %d of %u", start, bound);
  return bny_exec_fail(comm->exec, BANYAN_ERR_ARGUMENT, fault->culprit,
                       "rank %d passed its device a start that is negative, less than the one before it, or past the "
                       "tokens of the run: query_start_loc[%u]%s",
                       fault->culprit, sequence, at);
}

/* The rank that noticed the difference knows both numbers; the others know their own. */
static banyan_status take_other_tokens(banyan_comm *comm, const bny_device_fault *fault) {
  uint32_t theirs;
  int32_t own;
  char counts[64] = "";
  if (fault->reporter == comm->rank && bny_engine_fault_position(comm->device.engine, &theirs, &own))
    snprintf(counts, sizeof counts, "tokens %u there, %d here", theirs, own);
  else
    snprintf(counts, sizeof counts, "not the tokens %u of rank %d", fault->detail, fault->reporter);
  return bny_exec_fail(comm->exec, BANYAN_ERR_MISMATCH, fault->culprit,
                       "rank %d runs a combine on its device with another number: %s", fault->culprit, counts);
}

/* Turns a failure of kernels into one of the communicator. The text adds facts that kernels do not know. */
static banyan_status take_fault(banyan_comm *comm, const bny_device_fault *fault) {
  bny_exec *exec = comm->exec;
  banyan_status status = (banyan_status)fault->status;
  int32_t culprit = fault->culprit;
  switch (status) {
  case BANYAN_ERR_TIMEOUT:
    return bny_exec_fail(exec, status, culprit,
                         "rank %d did not arrive in time to a run on devices (noticed by rank %d)", culprit,
                         fault->reporter);
  case BANYAN_ERR_DATA: return bny_engine_fail_data(exec, comm->device.engine, fault, culprit);
  case BANYAN_ERR_ARGUMENT:
    if (fault->detail == 0) break;
    if (fault->detail & BNY_DEVICE_DETAIL_PAGE) return take_wrong_page(comm, fault);
    if (fault->detail & BNY_DEVICE_DETAIL_START) return take_wrong_start(comm, fault);
    return bny_exec_fail(
        exec, status, culprit,
        "rank %d gave attention on its device a length that is negative or above keys_max: seq_lens[%u]", culprit,
        fault->detail - 1);
  case BANYAN_ERR_MISMATCH: return take_other_tokens(comm, fault);
  case BANYAN_ERR_ABORTED: return bny_exec_fail(exec, status, culprit, "rank %d called banyan_comm_abort()", culprit);
  default: break;
  }
  return bny_exec_fail(exec, status, culprit, "a run on devices failed on rank %d (%s)", culprit,
                       banyan_status_string(status));
}

/* Kernels know only the ranks of this node. A kernel that waits for its own rank waits for its proxy, a thread of its
 * process. */
static banyan_status take_proxy_fault(banyan_comm *comm, const bny_device_fault *fault) {
  bny_device_fault own = *fault;
  own.culprit = bny_proxy_rank(comm->device.proxy, fault->culprit);
  own.reporter = bny_proxy_rank(comm->device.proxy, fault->reporter);
  if (own.status != BANYAN_ERR_TIMEOUT || own.culprit != own.reporter) return take_fault(comm, &own);
  return bny_exec_fail(comm->exec, BANYAN_ERR_TIMEOUT, own.culprit,
                       "the proxy of rank %d, which exchanges data between nodes, did not answer its device in time",
                       own.culprit);
}

static banyan_status check_proxy(banyan_comm *comm, banyan_status status) {
  const bny_failure *failure = bny_proxy_failure(comm->device.proxy);
  if (status == BANYAN_OK && failure) {
    status = bny_exec_adopt(comm->exec, failure);
  } else if (status == BANYAN_OK) {
    bny_device_fault fault = bny_engine_fault(comm->device.engine);
    /* If the kernels do not know the culprit, the proxy names it soon. */
    if (fault.status == BANYAN_OK || fault.culprit < 0) return BANYAN_OK;
    status = take_proxy_fault(comm, &fault);
  }
  bny_proxy_stop(comm->device.proxy, status, comm->exec->failure.culprit);
  return status;
}

/* Kernels know more than the host of another rank: the numbers of tokens, the wrong sequence, the bad row of this rank,
 * and an index that is offered twice, which the kernels of all ranks find. */
static bool kernels_know_more(const banyan_comm *comm, const bny_device_fault *fault, int32_t culprit) {
  return fault->status == BANYAN_ERR_MISMATCH || fault->status == BANYAN_ERR_ARGUMENT ||
         (fault->status == BANYAN_ERR_DATA && (culprit == comm->rank || fault->detail & BNY_DEVICE_DETAIL_DOUBLED));
}

/* Returns the fault of the device. If another rank's host has reported one, waits a moment for the kernels, which know
 * more. */
static bny_device_fault await_fault(const banyan_comm *comm, uint64_t of_hosts) {
  enum { PATIENCE_NS = 50000000, LOOK_NS = 100000 };
  bny_device_fault fault = bny_engine_fault(comm->device.engine);
  banyan_status status = bny_fault_status(of_hosts);
  bool waits = status == BANYAN_ERR_MISMATCH || status == BANYAN_ERR_ARGUMENT || status == BANYAN_ERR_DATA;
  int64_t deadline_ns = bny_deadline_now() + PATIENCE_NS;
  while (fault.status == BANYAN_OK && waits && bny_deadline_now() < deadline_ns) {
    nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    fault = bny_engine_fault(comm->device.engine);
  }
  return fault;
}

/* A fault that kernels found takes precedence over reports of other hosts. */
static void check_kernels(banyan_comm *comm, uint64_t of_hosts) {
  bny_device_fault fault = await_fault(comm, of_hosts);
  int32_t culprit =
      comm->device.proxy && fault.culprit >= 0 ? bny_proxy_rank(comm->device.proxy, fault.culprit) : fault.culprit;
  if (!kernels_know_more(comm, &fault, culprit)) return;
  if (comm->device.proxy)
    take_proxy_fault(comm, &fault);
  else
    take_fault(comm, &fault);
}

/* Hosts that have reported nothing count as healthy until the next look, which comes after a look at kernels. */
static banyan_status check_hosts(banyan_comm *comm) {
  bny_exec *exec = comm->exec;
  if (comm->device.engine && exec->failure.status == BANYAN_OK) {
    uint64_t of_hosts = atomic_load_explicit(exec->fault, memory_order_acquire);
    check_kernels(comm, of_hosts);
    if (!of_hosts && exec->failure.status == BANYAN_OK) return BANYAN_OK;
  }
  return bny_exec_check(exec, NULL);
}

banyan_status bny_comm_check(banyan_comm *comm) {
  if (bny_comm_is_inherited(comm)) return bny_comm_reject_child(comm);
  bny_engine *engine = comm->device.engine;
  banyan_status status = check_hosts(comm);
  if (!engine) return status;
  if (comm->device.proxy) return check_proxy(comm, status);
  if (status == BANYAN_OK) {
    bny_device_fault fault = bny_engine_fault(engine);
    if (fault.status == BANYAN_OK) return BANYAN_OK;
    status = take_fault(comm, &fault);
  }
  /* This ends kernels that wait. */
  bny_engine_abort(engine, status, comm->exec->failure.culprit);
  return status;
}

void bny_comm_abort_device(banyan_comm *comm, const char *reason) {
  if (comm->device.proxy)
    bny_proxy_abort(comm->device.proxy, reason);
  else
    bny_engine_abort(comm->device.engine, BANYAN_ERR_ABORTED, comm->rank);
}
