/* SPDX-License-Identifier: Apache-2.0
 * Makes, aborts and destroys communicators, and answers questions about them. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "locality/locality.h"
#include "comm/facts.h"
#include "op.h"
#include "locality/price.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/deadline.h"
#include "base/options.h"

static banyan_status find_locality(banyan_comm *comm, const bny_settings *settings) {
  const bny_options *options = &settings->options;
  bny_locality_query query = {.topo = options->topo,
                              .topo_rank = options->topo_rank,
                              .rank = settings->origin,
                              .device = settings->device,
                              .cuda_library = options->cuda_library,
                              .costs = options->costs};
  int64_t begin = bny_clock_ns();
  banyan_status status = bny_locality_find(&query, &comm->locality);
  comm->locality_ns = bny_clock_ns() - begin;
  return status;
}

static void find_nic(banyan_comm *comm, const bny_settings *settings) {
  if (settings->options.topo || comm->locality.nic) return;
  int64_t begin = bny_clock_ns();
  bny_locality_find_nic(&comm->locality);
  comm->locality_ns += bny_clock_ns() - begin;
}

/* A single level without links that ranks share is dropped, because all ways then cost the same. So is a single level
 * of devices, which have costs of their own: its links are those of the host. With several levels, other costs are
 * those of the outermost level. */
static banyan_status set_levels(banyan_comm *comm, const bny_settings *settings, const bny_node_map *map,
                                const bny_locality *localities) {
  const char *explicit_levels = settings->options.levels;
  comm->cost = bny_price_cost(&bny_prices_default, BNY_LINK_MEMORY, map->ranks_per_core);
  if (explicit_levels) {
    banyan_status status = bny_levels_parse(comm->nranks, explicit_levels, &comm->cost, &comm->levels);
    return status == BANYAN_OK ? status : bny_fail(status, "BANYAN_LEVELS: %s", banyan_last_error());
  }
  bool is_explicit = true;
  for (int32_t r = 0; r < comm->nranks; r++) is_explicit = is_explicit && localities[r].topo_rank >= 0;
  bny_locality_world world = {.node_of = map->node_of,
                              .tcp = map->nnodes > 1 && comm->transport->network != BNY_NETWORK_RDMA,
                              .flat_nodes = settings->device && !is_explicit,
                              .ranks_per_core = is_explicit ? 1 : map->ranks_per_core};
  comm->notes = malloc(sizeof *comm->notes);
  if (!comm->notes) return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for its levels", comm->rank);
  banyan_status status = bny_locality_levels(localities, comm->nranks, &world, comm->notes, &comm->levels);
  if (status != BANYAN_OK) return bny_fail(status, "rank %d: %s", comm->rank, banyan_last_error());
  comm->cost = comm->levels->levels[comm->levels->nlevels - 1].link;
  const bool of_host = world.flat_nodes && map->nnodes == 1;
  if (comm->levels->nlevels > 1 || (bny_levels_share_links(comm->levels) && !of_host)) return BANYAN_OK;
  bny_levels_free(comm->levels);
  comm->levels = NULL;
  return BANYAN_OK;
}

static void describe_levels(const banyan_comm *comm, char *text, size_t bytes, size_t *length) {
  bny_append(text, bytes, length, ", place by %s", comm->locality.source);
  if (comm->locality.nic_name[0]) bny_append(text, bytes, length, ", NIC %s", comm->locality.nic_name);
  for (int32_t k = 0; comm->levels && k < comm->levels->nlevels; k++)
    bny_append(text, bytes, length, "%s%d", k ? " x " : ", levels of ", comm->levels->levels[k].most);
  for (int32_t k = 0; comm->levels && comm->notes && k < comm->levels->nlevels; k++) {
    const bny_level *level = &comm->levels->levels[k];
    bny_append(text, bytes, length, "%s%s %.4g us %.4g GB/s", k ? ", " : ": ", level->name, level->link.alpha_ns / 1e3,
               1 / level->link.beta_ns_per_byte);
  }
}

static void log_levels(const banyan_comm *comm) {
  if (!bny_log_wants(BNY_LOG_INFO)) return;
  bny_log(BNY_LOG_INFO, "the locality of rank %d was found in %.2f ms, by %s", comm->rank,
          (double)comm->locality_ns / 1e6, comm->locality.source);
  if (!comm->notes) {
    bny_log(BNY_LOG_INFO, "levels are those of BANYAN_LEVELS");
    return;
  }
  for (int32_t i = 0; i < comm->notes->count; i++) {
    const bny_locality_note *note = &comm->notes->notes[i];
    bny_log(BNY_LOG_INFO, "level %s: %s%s", note->name, note->kept ? "" : "left out: ", note->text);
  }
}

/* Upper bound for timeouts (73 years), so that now + timeout cannot overflow. */
static const int64_t longest_timeout_ns = INT64_MAX / 4;

/* Used if not even the options can be read. */
static const int64_t usual_timeout_ns = (int64_t)30 * 1000000000;

/* Raises a small arena to the size that every algorithm needs for one row. This size grows with the number of ranks.
 * The default is never raised. */
static void raise_arena(bny_node_map *map, int32_t nranks) {
  const size_t most = (size_t)16 << 20, page = 4096;
  if (map->arena_bytes >= most) return;
  bny_link_cost memory = bny_price_cost(&bny_prices_default, BNY_LINK_MEMORY, map->ranks_per_core);
  size_t least = 2 * bny_algorithm_least_outbox(nranks, bny_comm_slots(nranks), &memory);
  least = (least + page - 1) / page * page;
  if (least > most) least = most;
  if (map->arena_bytes < least) map->arena_bytes = least;
  if (map->device_arena_bytes < map->arena_bytes) map->device_arena_bytes = map->arena_bytes;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

void bny_comm_agree_begin(banyan_comm *comm, const bny_notice *notice) {
  bny_run_relabel(comm->agree, notice);
  comm->exec->history_before = comm->exec->history;
  comm->exec->record.tag = comm->tag;
  bny_run_begin(comm->agree);
}

banyan_status bny_comm_agree_end(banyan_comm *comm) {
  const bny_run_report *report;
  return bny_run_progress(comm->agree, true, &report);
}

/* Makes the barrier in which ranks compare their calls. Between nodes its first run connects them. */
static banyan_status make_agreement(banyan_comm *comm) {
  bny_request request = {
      .call.collective = BNY_BARRIER,
      .nranks = comm->nranks,
      .cost = comm->cost,
      .outbox_bytes = comm->transport->half_bytes,
      .slots_max = comm->transport->slots_max,
  };
  banyan_status status = bny_plan_make(&request, comm->rank, &comm->barrier);
  if (status != BANYAN_OK) return status;
  bny_notice notice = bny_notice_make(&request, comm->barrier, BNY_PHASE_CONNECT);
  return bny_run_make(comm->exec, comm->barrier, &notice, &comm->nothing, &comm->agree);
}

static banyan_status build_parts(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                 const bny_node_map *map, const bny_locality *localities) {
  const bny_options *options = &settings->options;
  comm->arena_bytes = map->arena_bytes;
  comm->cores = map->cores;
  comm->quota_cpus = map->quota_cpus;
  comm->own_cpus = map->own_cpus;
  comm->explicit_threads = settings->threads;
  comm->threads = settings->threads ? settings->threads : map->threads;
  comm->nnodes = map->nnodes;
  comm->ranks_per_core = map->ranks_per_core;
  comm->part_bytes = (size_t)options->part_kib << 10;
  comm->slices = (int32_t)options->slices;
  if (options->pass) bny_pass_form_parse(options->pass, &comm->pass);
  comm->checks = options->check && !settings->device;
  banyan_status status = bny_comm_connect(comm, settings, exchange, map, &comm->transport);
  if (status == BANYAN_OK) status = set_levels(comm, settings, map, localities);
  if (status != BANYAN_OK) return status;
  const bny_kernels *kernels = bny_kernels_find(options->kernels);
  if (!kernels)
    return bny_fail(
        BANYAN_ERR_ARGUMENT,
        "BANYAN_KERNELS is \"%.40s\", which this processor or this build does not have; banyan-info devices "
        "lists those it has",
        options->kernels);
  bny_exec_config config = bny_comm_exec_config(comm, settings, map);
  config.kernels = kernels;
  status = bny_exec_make(comm->transport, &config, &comm->exec);
  return status == BANYAN_OK ? make_agreement(comm) : status;
}

void bny_comm_keep(banyan_comm *comm, banyan_comm *heir) {
  comm->heir = heir;
  heir->ancestor = comm;
}

static void close_all(bny_transport *transport) {
  while (transport) {
    bny_transport *next = transport->next;
    transport->ops->close(transport);
    transport = next;
  }
}

/* Closes connections, or passes them to the heir. */
static void close_or_pass_on(banyan_comm *comm) {
  if (comm->ancestor) comm->ancestor->heir = comm->heir;
  if (comm->heir) comm->heir->ancestor = comm->ancestor;
  bny_transport **end = &comm->kept;
  while (*end) end = &(*end)->next;
  *end = comm->transport;
  if (!comm->heir) {
    close_all(comm->kept);
    return;
  }
  bny_transport **last = &comm->heir->kept;
  while (*last) last = &(*last)->next;
  *last = comm->kept;
}

void bny_comm_free(banyan_comm *comm) {
  /* Peers learn that this rank leaves. The child of a fork does not report that, because its parent may continue. */
  if (comm->transport && !comm->heir && !bny_comm_is_inherited(comm))
    atomic_store_explicit(&comm->transport->ops->line(comm->transport, comm->rank)->left, 1, memory_order_release);
  if (!bny_comm_is_inherited(comm)) bny_comm_leave_device(comm);
  bny_run_free(comm->agree);
  bny_plan_free(comm->barrier);
  bny_exec_free(comm->exec);
  close_or_pass_on(comm);
  bny_levels_free(comm->levels);
  free(comm->notes);
  bny_pool_free(comm->pool);
  free(comm->algorithm);
  free(comm->head_counts);
  free(comm);
}

static banyan_status build(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                           const bny_facts *all, bny_locality *localities) {
  bny_node_map map = {0};
  banyan_status status = bny_node_map_find(all, comm->rank, comm->nranks, &map);
  const banyan_comm *parent = settings->parent;
  if (status == BANYAN_OK && parent) { /* ranks outside this communicator use the machine too */
    map.own_cpus = parent->own_cpus;
    map.threads = parent->threads;
    map.quota_cpus = parent->quota_cpus;
    map.ranks_per_core = parent->ranks_per_core;
  }
  if (status == BANYAN_OK) raise_arena(&map, comm->nranks);
  if (map.nnodes > 1) find_nic(comm, settings);
  char why[BNY_ERROR_TEXT_BYTES]; /* a failed rank also takes part in the exchange, which clears the text */
  snprintf(why, sizeof why, "%s", banyan_last_error());
  banyan_status gathered = bny_exchange_all(exchange, &comm->locality, localities, sizeof comm->locality);
  status = status == BANYAN_OK ? gathered : bny_fail(status, "%s", why);
  if (status == BANYAN_OK) status = build_parts(comm, exchange, settings, &map, localities);
  status = bny_comm_confirm(exchange, status);
  if (status == BANYAN_OK && (map.nnodes > 1 || settings->device)) {
    bool connects = comm->transport->ops->connect;
    if (connects) bny_run_begin(comm->agree);
    if (connects) status = bny_run_reach(comm->agree, comm->agree);
    if (connects && status == BANYAN_OK) status = bny_comm_agree_end(comm);
    if (status == BANYAN_OK && settings->device) status = bny_comm_join_device(comm, exchange, settings, &map);
    /* Only some ranks may notice a rank that is lost here. The barrier had its own deadline. */
    bny_exchange last = {exchange->bootstrap, exchange->deadline_ns + 2 * settings->timeout_ns, exchange->process};
    status = bny_comm_confirm_connected(comm, &last, status);
  }
  bny_node_map_free(&map);
  return status;
}

static const char *source_of(const char *option, bool by_program) {
  return by_program ? "the program" : bny_option_text(option) ? "the environment" : "default";
}

static void log_settings(const banyan_comm *comm, const banyan_comm_config *config) {
  if (!bny_log_wants(BNY_LOG_INFO)) return;
  char text[768];
  banyan_comm_describe(comm, text, sizeof text);
  bny_log(BNY_LOG_INFO, "%s", text);
  bny_log(BNY_LOG_INFO,
          "timeout %g ms (%s), of first calls %g ms, arena %zu KiB (%s; the least of all ranks), part %zu KiB (%s), "
          "algorithm %s (%s)",
          (double)comm->exec->timeout_ns / 1e6, source_of("BANYAN_TIMEOUT_MS", config && config->timeout_ns),
          (double)comm->first_timeout_ns / 1e6, comm->arena_bytes >> 10,
          source_of("BANYAN_ARENA_KIB", config && config->arena_bytes), comm->part_bytes >> 10,
          source_of("BANYAN_PART_KIB", false), comm->algorithm ? comm->algorithm : "by predicted cost",
          source_of("BANYAN_ALGORITHM", !bny_option_text("BANYAN_ALGORITHM") && config && config->algorithm));
  log_levels(comm);
}

/* The default for a device: attention of 8192 rows of 512 values in f32 (128 heads of MLA at batch 64; 32 heads of 128
 * values at batch 256) is sent from within its kernel. */
static const size_t usual_device_arena_bytes = (size_t)256 << 20;

static const int64_t device_timeout_ns = (int64_t)600 * 1000000000;

/* The program's settings take precedence over the environment. The peer of a device may be compiling kernels for
 * minutes. */
static void set_timeouts(const banyan_comm_config *config, bny_settings *settings) {
  const bny_options *options = &settings->options;
  int64_t timeout_ns = config ? config->timeout_ns : 0, first_ns = config ? config->first_timeout_ns : 0;
  bool is_explicit = timeout_ns || bny_option_text("BANYAN_TIMEOUT_MS");
  if (!timeout_ns) timeout_ns = settings->device && !is_explicit ? device_timeout_ns : options->timeout_ms * 1000000;
  if (!first_ns) first_ns = options->first_timeout_ms * 1000000;
  if (!first_ns) first_ns = settings->device && timeout_ns < device_timeout_ns ? device_timeout_ns : timeout_ns;
  settings->timeout_ns = timeout_ns < longest_timeout_ns ? timeout_ns : longest_timeout_ns;
  settings->first_timeout_ns = first_ns < longest_timeout_ns ? first_ns : longest_timeout_ns;
}

/* *settings is usable even on failure: other ranks learn of the failure within the same time. */
static banyan_status read_settings(const banyan_comm_config *config, int32_t origin, bny_settings *settings) {
  bny_settings read = {.origin = origin,
                       .timeout_ns = config && config->timeout_ns ? config->timeout_ns : usual_timeout_ns};
  if (read.timeout_ns > longest_timeout_ns) read.timeout_ns = longest_timeout_ns;
  *settings = read;
  read.device = config ? config->device : NULL;
  const bny_options *options = &read.options;
  banyan_status status = bny_options_read(&read.options);
  if (status != BANYAN_OK) return status;
  if (options->levels && strlen(options->levels) >= BNY_LEVELS_TEXT_BYTES)
    return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_LEVELS \"%.40s...\" is too long: sizes of groups such as 4,8",
                    options->levels);
  set_timeouts(config, &read);
  read.threads = (int32_t)(config && config->threads ? config->threads : options->threads);
  read.arena_bytes = config && config->arena_bytes ? config->arena_bytes : (size_t)options->arena_kib << 10;
  read.arena_is_explicit = (config && config->arena_bytes) || bny_option_text("BANYAN_ARENA_KIB");
  read.device_arena_bytes = read.arena_is_explicit ? read.arena_bytes : usual_device_arena_bytes;
  read.algorithm = options->algorithm ? options->algorithm : config ? config->algorithm : NULL;
  if (read.algorithm && read.algorithm[0]) {
    status = bny_algorithm_check_name(options->algorithm ? "BANYAN_ALGORITHM" : "config.algorithm", read.algorithm);
    if (status != BANYAN_OK) return status;
  }
  *settings = read;
  return BANYAN_OK;
}

/* `own_status`: whether this rank's settings are valid. */
static banyan_status assemble(banyan_comm *comm, const banyan_bootstrap *bootstrap, const bny_settings *settings,
                              banyan_status own_status) {
  bny_facts *all = calloc((size_t)bootstrap->nranks, sizeof *all), own;
  bny_locality *localities = calloc((size_t)bootstrap->nranks, sizeof *localities);
  if (settings->algorithm) comm->algorithm = strdup(settings->algorithm);
  if (!all || !localities || (settings->algorithm && !comm->algorithm)) {
    free(localities);
    free(all);
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for a communicator of %d ranks", bootstrap->rank,
                    bootstrap->nranks);
  }
  bny_exchange exchange = {bootstrap, bny_deadline_now() + settings->timeout_ns, comm->process};
  bny_facts_gather(bootstrap, settings, own_status, &own);
  banyan_status status = bny_exchange_all(&exchange, &own, all, sizeof own);
  if (status != BANYAN_OK) all[bootstrap->rank] = own; /* this rank's own error precedes that of the exchange */
  if (status == BANYAN_OK || own.status != BANYAN_OK) status = bny_facts_compare(all, bootstrap);
  if (status == BANYAN_OK) status = build(comm, &exchange, settings, all, localities);
  free(localities);
  free(all);
  return status;
}

banyan_status bny_comm_make(const banyan_bootstrap *bootstrap, const banyan_comm_config *config,
                            banyan_status own_status, int32_t origin, const banyan_comm *parent, banyan_comm **comm) {
  bny_settings settings;
  bny_log_rank(bootstrap->rank);
  if (own_status == BANYAN_OK)
    own_status = read_settings(config, origin, &settings);
  else
    settings = (bny_settings){.origin = origin, .timeout_ns = usual_timeout_ns};
  settings.parent = parent;
  if (parent) settings.options.levels = NULL; /* BANYAN_LEVELS describes all ranks of the first communicator */
  banyan_comm *made = calloc(1, sizeof *made);
  if (!made)
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for a communicator of %d ranks", bootstrap->rank,
                    bootstrap->nranks);
  made->rank = bootstrap->rank;
  made->nranks = bootstrap->nranks;
  made->origin = origin;
  made->process = bny_process();
  made->tag = BANYAN_TAG_NONE;
  made->first_timeout_ns = settings.first_timeout_ns;
  made->arena_is_explicit = settings.arena_is_explicit;
  if (own_status == BANYAN_OK) own_status = find_locality(made, &settings);
  banyan_status status = assemble(made, bootstrap, &settings, own_status);
  if (status != BANYAN_OK) {
    bny_comm_free(made);
    return status;
  }
  log_settings(made, config);
  *comm = made;
  return BANYAN_OK;
}

banyan_status bny_comm_make_part(const banyan_comm *comm, const banyan_bootstrap *bootstrap, int32_t color,
                                 banyan_comm **part) {
  banyan_comm_config config = {.size = sizeof config,
                               .timeout_ns = comm->exec->timeout_ns,
                               .first_timeout_ns = comm->first_timeout_ns,
                               .arena_bytes = comm->arena_is_explicit ? comm->arena_bytes : 0,
                               .algorithm = comm->algorithm,
                               .threads = comm->explicit_threads};
  char device[32];
  if (comm->device.engine) {
    const bny_device *own = comm->device.engine->device;
    snprintf(device, sizeof device, "%s:%d", own->ops->name, own->facts.ordinal);
    config.device = device;
  }
  banyan_status status = bny_comm_make(bootstrap, &config, BANYAN_OK, comm->origin, color >= 0 ? comm : NULL, part);
  if (status != BANYAN_OK) return status;
  (*part)->stream = comm->stream;
  return BANYAN_OK;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

banyan_status banyan_comm_set_stream(banyan_comm *comm, void *stream) {
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  if (!comm->device.engine)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "the communicator has no device, and so no streams; see banyan_comm_config.device");
  comm->stream = stream;
  return BANYAN_OK;
}

int64_t banyan_comm_set_tag(banyan_comm *comm, int64_t tag) {
  if (!comm) return BANYAN_TAG_NONE;
  int64_t before = comm->tag;
  comm->tag = tag < 0 ? BANYAN_TAG_NONE : tag;
  return before;
}

int32_t banyan_comm_rank(const banyan_comm *comm) { return comm ? comm->rank : -1; }
int32_t banyan_comm_nranks(const banyan_comm *comm) { return comm ? comm->nranks : -1; }

void banyan_comm_abort(banyan_comm *comm, const char *reason) {
  if (!comm || bny_comm_is_inherited(comm)) return;
  atomic_fetch_add_explicit(&comm->aborts, 1, memory_order_release);
  bny_exec_abort(comm->exec, reason);
  if (comm->device.engine) bny_comm_abort_device(comm, reason);
}

/* Returns the failure of this communicator. Looks first at what peers have reported. */
static const bny_failure *failure_of(const banyan_comm *comm) {
  if (bny_comm_is_inherited(comm)) return &bny_exec_failure_of_child;
  if (comm->exec->progress) comm->exec->progress(comm->transport);
  bny_comm_check((banyan_comm *)(uintptr_t)comm);
  return &comm->exec->failure;
}

banyan_status banyan_comm_status(const banyan_comm *comm) {
  return comm ? failure_of(comm)->status : bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
}

const char *banyan_comm_error(const banyan_comm *comm) { return comm ? failure_of(comm)->text : ""; }
int32_t banyan_comm_failed_rank(const banyan_comm *comm) { return comm ? failure_of(comm)->culprit : -1; }

banyan_status banyan_network_describe(char *text, size_t bytes) {
  if (!text || bytes == 0) return bny_fail(BANYAN_ERR_ARGUMENT, "text must not be NULL, nor bytes 0");
  return bny_net_describe(text, bytes);
}

size_t banyan_comm_metrics(const banyan_comm *comm, char *text, size_t bytes) {
  if (!text) bytes = 0;
  if (bytes) text[0] = 0;
  const bny_flight *flight = comm ? comm->exec->record.flight : NULL;
  return flight ? bny_flight_metrics(flight, text, bytes) : 0;
}

size_t banyan_comm_describe(const banyan_comm *comm, char *text, size_t bytes) {
  size_t length = 0;
  if (!text) bytes = 0;
  if (bytes) text[0] = 0;
  if (!comm) return 0;
  bny_append(text, bytes, &length, "banyan %s: rank %d of %d, ", banyan_version(), comm->rank, comm->nranks);
  const char *oversubscribed = comm->ranks_per_core > 1 ? " (more ranks than cores: they take turns)" : "";
  char limit[64] = "";
  if (comm->quota_cpus > 0) snprintf(limit, sizeof limit, " (a CPU quota allows %.4g)", comm->quota_cpus);
  if (comm->nnodes > 1)
    bny_append(text, bytes, &length, "processes of %d nodes, over %s%s, on %d cores here%s; ", comm->nnodes,
               comm->transport->network == BNY_NETWORK_RDMA ? "RDMA" : "TCP", comm->transport->puts ? " by puts" : "",
               comm->cores, oversubscribed);
  else
    bny_append(text, bytes, &length, "%s of one node on %d cores%s; ",
               strcmp(comm->transport->ops->name, "loop") == 0 ? "threads of one process" : "processes", comm->cores,
               oversubscribed);
  bny_append(text, bytes, &length, "transport %s, arena %zu KiB per rank, messages in parts of %zu KiB, ",
             comm->transport->ops->name, comm->arena_bytes >> 10, comm->part_bytes >> 10);
  bny_append(text, bytes, &length, "CPU kernels %s, %d thread%s for attention%s, algorithm %s",
             comm->exec->kernels->name, comm->threads, comm->threads == 1 ? "" : "s", limit,
             comm->algorithm ? comm->algorithm : "by predicted cost");
  const bny_engine *engine = comm->device.engine;
  if (engine)
    bny_append(text, bytes, &length, ", combines on %s (%s), ", engine->device->ops->name, engine->device->facts.name);
  if (engine)
    bny_append(text, bytes, &length, "whose %zu KiB arenas go by %s", engine->arenas->bytes >> 10,
               bny_memory_kind_name(engine->arenas->kind));
  if (engine && comm->device.proxy)
    bny_append(text, bytes, &length,
               " within this node, staged in host memory between nodes, by a thread of each rank");
  if (comm->transport->devices[0]) bny_append(text, bytes, &length, ", network devices %s", comm->transport->devices);
  describe_levels(comm, text, bytes, &length);
  if (comm->plans) bny_append(text, bytes, &length, ", plans made: %llu", (unsigned long long)comm->plans);
  return length;
}
