/* SPDX-License-Identifier: Apache-2.0
 * Finds ranks and hosts, and derives levels in order. levels.h defines them. */
#include <stdlib.h>
#include <string.h>

#include "topo/levels/derive.h"

/* ---- ranks and hosts --------------------------------------------------------------------------------------------- */

static bny_topo_kind rank_kind_of(const bny_topo *topo) {
  static const bny_topo_kind kinds[] = {BNY_TOPO_GPU, BNY_TOPO_NUMA, BNY_TOPO_PACKAGE, BNY_TOPO_NIC};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
    if (bny_topo_count(topo, kinds[i]) > 0) return kinds[i];
  return BNY_TOPO_HOST;
}

/* A rank before it has its number. */
typedef struct seat {
  int32_t host, index, node;
} seat;

static int by_seat(const void *a, const void *b) { return bny_topo_order(a, b, 3); }

/* Sorts the ranks of a host by the numbers of their GPUs, and not by position in the file. GPUs without a number come
 * last. */
static bool ranks_order(bny_topo_derivation *d) {
  bny_topo_levels *levels = d->levels;
  seat *seats = malloc(((size_t)levels->nranks + 1) * sizeof *seats);
  if (!seats) return false;
  for (int32_t r = 0; r < levels->nranks; r++) {
    const bny_topo_rank *rank = &levels->ranks[r];
    int32_t index = d->topo->nodes[rank->node].index;
    seats[r] = (seat){.host = rank->host, .index = index < 0 ? INT32_MAX : index, .node = rank->node};
  }
  qsort(seats, (size_t)levels->nranks, sizeof *seats, by_seat);
  for (int32_t r = 0; r < levels->nranks; r++) {
    levels->ranks[r].node = seats[r].node;
    levels->ranks[r].host = seats[r].host;
    d->rank_of[seats[r].node] = r;
  }
  free(seats);
  return true;
}

static bool ranks_find(bny_topo_derivation *d) {
  const bny_topo *topo = d->topo;
  bny_topo_levels *levels = d->levels;
  levels->rank_kind = rank_kind_of(topo);
  levels->nranks = 0;
  levels->ranks = malloc(((size_t)bny_topo_count(topo, levels->rank_kind) + 1) * sizeof *levels->ranks);
  if (!levels->ranks) return false;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    const bny_topo_node *node = &topo->nodes[n];
    d->host_of[n] = node->kind == BNY_TOPO_HOST ? n : node->parent < 0 ? -1 : d->host_of[node->parent];
    d->host_number[n] = -1;
    d->rank_of[n] = -1;
    d->leaf[n] = -1;
    d->tier[n] = 0;
    d->uplink[n] = 0;
    d->nic[n] = (bny_topo_sum){.source = BNY_TOPO_MEASURED};
    if (node->kind == BNY_TOPO_HOST) {
      d->host_number[n] = d->nhosts;
      d->hosts[d->nhosts++] = n;
    }
    if (node->kind == levels->rank_kind) {
      d->rank_of[n] = levels->nranks;
      levels->ranks[levels->nranks++] =
          (bny_topo_rank){.node = n, .host = d->host_of[n], .nic = -1, .rail = -1, .nic_path = BNY_TOPO_PATH_NONE};
    }
  }
  return levels->rank_kind != BNY_TOPO_GPU || ranks_order(d);
}

/* Groups items by the host of their nodes and skips those without one: nodes[i] in, first[] and sorted[] out. */
static void by_host_sort(const bny_topo_derivation *d, const int32_t *nodes, int32_t count, bool items_are_ranks,
                         int32_t *first, int32_t *sorted) {
  for (int32_t h = 0; h <= d->nhosts; h++) first[h] = 0;
  for (int32_t i = 0; i < count; i++) {
    int32_t host = d->host_of[nodes[i]];
    if (host >= 0) first[d->host_number[host] + 1]++;
  }
  for (int32_t h = 0; h < d->nhosts; h++) first[h + 1] += first[h];
  for (int32_t i = 0; i < count; i++) {
    int32_t host = d->host_of[nodes[i]];
    if (host >= 0) sorted[first[d->host_number[host]]++] = items_are_ranks ? i : nodes[i];
  }
  for (int32_t h = d->nhosts; h > 0; h--) first[h] = first[h - 1];
  first[0] = 0;
}

static void hosts_sort(bny_topo_derivation *d) {
  const bny_topo *topo = d->topo;
  bny_topo_levels *levels = d->levels;
  for (int32_t r = 0; r < levels->nranks; r++) d->roots[r] = levels->ranks[r].node;
  by_host_sort(d, d->roots, levels->nranks, true, d->host_first, d->by_host);
  for (int32_t h = 0; h < d->nhosts; h++)
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1]; i++)
      levels->ranks[d->by_host[i]].local = i - d->host_first[h];
  int32_t nnics = 0;
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_NIC) d->roots[nnics++] = n;
  by_host_sort(d, d->roots, nnics, false, d->nic_first, d->nics);
  d->nnics = d->nic_first[d->nhosts];
}

static bool work_allocate(bny_topo_derivation *d) {
  size_t nodes = (size_t)d->topo->nnodes + 2;
  int32_t **arrays[] = {&d->host_of,     &d->rank_of, &d->by_host,   &d->host_first, &d->hosts,
                        &d->host_number, &d->nics,    &d->nic_first, &d->leaf,       &d->tier,
                        &d->crossed,     &d->keys,    &d->roots,     &d->leaf_roots};
  const size_t narrays = sizeof arrays / sizeof arrays[0];
  d->numbers = malloc(narrays * nodes * sizeof *d->numbers);
  for (size_t i = 0; d->numbers && i < narrays; i++) *arrays[i] = d->numbers + i * nodes;
  d->nvl = malloc(nodes * sizeof *d->nvl);
  d->nic = malloc(nodes * sizeof *d->nic);
  d->uplink = malloc(nodes * sizeof *d->uplink);
  return d->numbers && d->nvl && d->nic && d->uplink;
}

static void work_free(bny_topo_derivation *d) {
  free(d->numbers);
  free(d->nvl);
  free(d->nic);
  free(d->uplink);
}

bny_topo_levels *bny_topo_derive(const bny_topo *topo) {
  bny_topo_derivation d = {.topo = topo, .levels = calloc(1, sizeof *d.levels)};
  bool good = d.levels && work_allocate(&d) && ranks_find(&d);
  if (good) {
    hosts_sort(&d);
    good =
        bny_topo_derive_near(&d) && bny_topo_derive_nics(&d) && bny_topo_derive_rails(&d) && bny_topo_derive_fabric(&d);
  }
  work_free(&d);
  if (!good) {
    bny_topo_levels_free(d.levels);
    return NULL;
  }
  return d.levels;
}
