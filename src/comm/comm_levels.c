/* SPDX-License-Identifier: Apache-2.0
 * Finds this rank's locality and the levels that follow from the localities of all ranks, and reports both. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/comm.h"
#include "locality/locality.h"

banyan_status bny_comm_find_locality(banyan_comm *comm, const bny_settings *settings) {
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

void bny_comm_find_nic(banyan_comm *comm, const bny_settings *settings) {
  if (settings->options.topo || comm->locality.nic) return;
  int64_t begin = bny_clock_ns();
  bny_locality_find_nic(&comm->locality);
  comm->locality_ns += bny_clock_ns() - begin;
}

static bool all_explicit(const bny_locality *localities, int32_t nranks) {
  for (int32_t r = 0; r < nranks; r++)
    if (localities[r].topo_rank < 0) return false;
  return true;
}

/* A single level is dropped, because all links then cost the same. With several levels, other costs are those of the
 * outermost level. */
banyan_status bny_comm_set_levels(banyan_comm *comm, const bny_settings *settings, const bny_node_map *map,
                                  const bny_locality *localities) {
  const char *explicit_levels = settings->options.levels;
  comm->cost = bny_price_cost(&bny_prices_default, BNY_LINK_MEMORY, map->ranks_per_core);
  if (explicit_levels) {
    banyan_status status = bny_levels_parse(comm->nranks, explicit_levels, &comm->cost, &comm->levels);
    return status == BANYAN_OK ? status : bny_fail(status, "BANYAN_LEVELS: %s", banyan_last_error());
  }
  bool is_explicit = all_explicit(localities, comm->nranks);
  bny_locality_world world = {.node_of = map->node_of,
                              .tcp = map->nnodes > 1 && comm->transport->network != BNY_NETWORK_RDMA,
                              .flat_nodes = settings->device && !is_explicit,
                              .ranks_per_core = is_explicit ? 1 : map->ranks_per_core};
  comm->notes = malloc(sizeof *comm->notes);
  if (!comm->notes) return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for its levels", comm->rank);
  banyan_status status = bny_locality_levels(localities, comm->nranks, &world, comm->notes, &comm->levels);
  if (status != BANYAN_OK) return bny_fail(status, "rank %d: %s", comm->rank, banyan_last_error());
  comm->cost = comm->levels->levels[comm->levels->nlevels - 1].link;
  if (comm->levels->nlevels > 1) return BANYAN_OK;
  bny_levels_free(comm->levels);
  comm->levels = NULL;
  return BANYAN_OK;
}

void bny_comm_describe_levels(const banyan_comm *comm, char *text, size_t bytes, size_t *length) {
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

void bny_comm_log_levels(const banyan_comm *comm) {
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
