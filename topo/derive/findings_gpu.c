/* SPDX-License-Identifier: Apache-2.0 Findings about GPUs: lost ones, their kinds, and reports of their driver. */
#include <stdio.h>
#include <string.h>

#include "topo/derive/derive.h"

/* ---- lost GPUs --------------------------------------------------------------------------------------------------- */

static int32_t devices_of(const bny_topo_derivation *d, int32_t host) { /* GPUs; the partitions of a GPU count once */
  int32_t devices = 0;
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    int32_t node = d->levels->ranks[d->by_host[i]].node;
    devices += bny_topo_device(d->topo, node) == node;
  }
  return devices;
}

/* Returns whether missing GPUs are lost, and not only hidden from this process. A few missing GPUs count as lost, and
 * more as hidden. */
static bool are_lost(int32_t missing, int32_t present) { return missing > 0 && 3 * missing <= present; }

/* Counts the bus ids of unlisted GPUs that links lead to. *first receives the note of the first. */
static int32_t bus_ids_missing(const bny_topo_derivation *d, int32_t node, const bny_topo_note **first) {
  char bus_id[BNY_TOPO_BUS_BYTES];
  int32_t at = 0, count = 0;
  for (const bny_topo_note *note; (note = bny_topo_find_note(d->topo, BNY_TOPO_NOTE_LOST, &at)) != NULL;)
    if (note->node == node && bny_topo_bus_normalise(note->text, bus_id) && count++ == 0) *first = note;
  return count;
}

/* Returns the first missing GPU number if the numbers indicate 4, 8 or 16 GPUs; otherwise -1. */
static int32_t number_missing(const bny_topo_derivation *d, int32_t host) {
  uint32_t seen = 0, count = 0, most = 0;
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    int32_t node = d->levels->ranks[d->by_host[i]].node, number = d->topo->nodes[node].index;
    if (bny_topo_device(d->topo, node) != node) continue;
    if (number < 0 || number >= 16) return -1;
    seen |= 1u << number;
    most = (uint32_t)number + 1 > most ? (uint32_t)number + 1 : most;
    count++;
  }
  if ((most != 4 && most != 8 && most != 16) || !are_lost((int32_t)(most - count), (int32_t)count)) return -1;
  int32_t number = 0;
  while (seen >> number & 1) number++;
  return number;
}

/* Returns the size of the board if all GPUs of a host are on the same kind of board; otherwise 0. */
static int32_t board_gpus(const bny_topo_derivation *d, int32_t host) {
  const bny_topo_board *common = NULL;
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    const bny_topo_board *board = bny_topo_board_of(d->topo->nodes[d->levels->ranks[d->by_host[i]].node].model);
    if (!board || (common && board != common)) return 0;
    common = board;
  }
  return common ? common->gpus : 0;
}

/* Returns whether a host has 7 or 15 GPUs, one fewer than a board, and links join all of them. */
static bool is_odd(const bny_topo_derivation *d, int32_t host) {
  const bny_topo_level *islands = bny_topo_level_of(d->levels, BNY_TOPO_LEVEL_ISLAND);
  int32_t count = devices_of(d, host);
  if (!islands || (count != 7 && count != 15)) return false;
  const bny_topo_group *group = &islands->groups[islands->group_of[d->by_host[d->host_first[host]]]];
  return group->count == bny_topo_ranks_on(d, host);
}

/* Returns the number of GPUs that most hosts with GPUs have; 0 if there is no such number. */
static int32_t usual_gpus(const bny_topo_derivation *d) {
  int32_t hosts = 0, times = 0;
  for (int32_t h = 0; h < d->nhosts; h++)
    if (bny_topo_ranks_on(d, h) > 0) d->values[hosts++] = devices_of(d, h);
  int32_t usual = (int32_t)bny_topo_usual(d->values, hosts, &times);
  return hosts > 2 && 2 * times > hosts ? usual : 0;
}

static void host_lost(bny_topo_finder *s, int32_t host, int32_t usual) {
  const bny_topo_derivation *d = s->d;
  int32_t node = d->hosts[host], count = devices_of(d, host), number = number_missing(d, host);
  int32_t board = board_gpus(d, host);
  const bny_topo_note *first = NULL;
  int32_t missing = bus_ids_missing(d, node, &first);
  if (missing == 1 && are_lost(missing, count))
    bny_topo_find(s, node, "the GPU at %s is missing, which links of others lead to", first->text);
  else if (are_lost(missing, count))
    bny_topo_find(s, node, "%d GPUs are missing, which links of others lead to: the first is at %s", missing,
                  first->text);
  else if (number >= 0)
    bny_topo_find(s, node, "GPU%d is missing: %d GPUs are listed", number, count);
  else if (usual > count && 2 * count >= usual)
    bny_topo_find(s, node, "%d GPUs, most hosts have %d", count, usual);
  else if (count % 2 == 1 && are_lost(board - count, count))
    bny_topo_find(s, node, "%d GPUs, their board has %d", count, board);
}

void bny_topo_find_gpu_lost(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  char bus_id[BNY_TOPO_BUS_BYTES];
  if (d->levels->rank_kind != BNY_TOPO_GPU) return;
  int32_t at = 0, usual = usual_gpus(d);
  for (const bny_topo_note *note; (note = bny_topo_find_note(d->topo, BNY_TOPO_NOTE_LOST, &at)) != NULL;)
    if (!bny_topo_bus_normalise(note->text, bus_id)) bny_topo_find(s, note->node, "%s", note->text);
  for (int32_t h = 0; h < d->nhosts; h++) {
    bool is_reported = bny_topo_is_noted(d->topo, BNY_TOPO_NOTE_LOST, d->hosts[h]) && s->nfacts > 0;
    if (bny_topo_ranks_on(d, h) > 0 && !is_reported) host_lost(s, h, usual);
  }
}

/* If no board or other host indicates more GPUs, the host may be built this way, or a container may have only these
 * GPUs. */
void bny_topo_find_gpus_odd(bny_topo_finder *s) {
  for (int32_t h = 0; h < s->d->nhosts && s->d->levels->rank_kind == BNY_TOPO_GPU; h++)
    if (is_odd(s->d, h) && !bny_topo_is_found(s->d, "gpu-lost", s->d->hosts[h]) && usual_gpus(s->d) == 0)
      bny_topo_find(s, s->d->hosts[h], "%d GPUs that links join, where boards have %d: one is lost, or hidden",
                    devices_of(s->d, h), devices_of(s->d, h) + 1);
}

void bny_topo_find_gpu_hidden(bny_topo_finder *s) {
  const bny_topo_note *first = NULL;
  for (int32_t h = 0; h < s->d->nhosts; h++) {
    int32_t missing = bus_ids_missing(s->d, s->d->hosts[h], &first);
    if (missing > 0 && !are_lost(missing, devices_of(s->d, h)))
      bny_topo_find(s, s->d->hosts[h],
                    "links lead to %d GPUs that are not listed: they are lost, or hidden from the "
                    "process that wrote this",
                    missing);
  }
}

void bny_topo_find_hosts_uneven(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  int32_t least = -1, most = 0;
  for (int32_t h = 0; h < d->nhosts; h++) {
    int32_t count = bny_topo_ranks_on(d, h);
    if (count == 0) continue;
    least = least < 0 || count < least ? count : least;
    most = count > most ? count : most;
  }
  if (least >= 0 && least < most)
    bny_topo_find(s, -1, "hosts have from %d to %d %ss, so rails from %d on join fewer hosts", least, most,
                  bny_topo_members_word(d), least);
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

void bny_topo_find_gpu_kinds(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  int32_t low = -1, high = -1, odd = -1;
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    int32_t node = d->levels->ranks[r].node, compute = d->topo->nodes[node].compute;
    if (compute < 0) continue;
    odd = low >= 0 && odd < 0 && compute != low ? node : odd;
    low = low < 0 || compute < low ? compute : low;
    high = compute > high ? compute : high;
  }
  if (low != high)
    bny_topo_find(s, odd, "GPUs are of different kinds, from %d to %d by %s", low, high,
                  bny_topo_is_amd(d, odd) ? "gfx number" : "compute capability");
}

void bny_topo_find_gpu_none(bny_topo_finder *s) {
  bny_topo_kind kind = s->d->levels->rank_kind;
  if (kind != BNY_TOPO_GPU && s->d->levels->nranks > 0)
    bny_topo_find(s, -1, "no GPU is known: ranks are placed on %ss",
                  kind == BNY_TOPO_NUMA  ? "NUMA node"
                  : kind == BNY_TOPO_NIC ? "NIC"
                                         : bny_topo_kind_name(kind));
}

/* ---- what the driver says ---------------------------------------------------------------------------------------- */

/* Adds one fact for each node, with the texts of all its notes of that kind. Such notes are adjacent. */
static void pass_notes(bny_topo_finder *s, bny_topo_note_kind kind, const char *about) {
  int32_t at = 0;
  const bny_topo_note *note = bny_topo_find_note(s->d->topo, kind, &at);
  while (note) {
    char text[240];
    int32_t node = note->node;
    size_t used = (size_t)snprintf(text, sizeof text, "%s", about);
    for (const char *between = " "; note && note->node == node; between = ", ") {
      if (used < sizeof text) used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", between, note->text);
      note = bny_topo_find_note(s->d->topo, kind, &at);
    }
    bny_topo_find(s, node, "%s", text);
  }
}

void bny_topo_find_fabric(bny_topo_finder *s) { pass_notes(s, BNY_TOPO_NOTE_FABRIC, "the driver says of its fabric:"); }

void bny_topo_find_slowed(bny_topo_finder *s) { pass_notes(s, BNY_TOPO_NOTE_SLOWED, "the driver says:"); }

void bny_topo_find_replays(bny_topo_finder *s) { pass_notes(s, BNY_TOPO_NOTE_REPLAYS, "the driver counts"); }

void bny_topo_find_errors(bny_topo_finder *s) { pass_notes(s, BNY_TOPO_NOTE_ERRORS, "the driver counts or asks:"); }

/* Returns the NVLink domain that a GPU has joined, which is a switch for a cluster and clique; -1 if none. */
static int32_t domain_of(const bny_topo *topo, int32_t node) {
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    const bny_topo_node *other = &topo->nodes[bny_topo_other_end(topo, node, l)];
    if (topo->links[l].kind == BNY_TOPO_LINK_NVLINK && other->kind == BNY_TOPO_SWITCH && other->guid && !other->bus_id)
      return bny_topo_other_end(topo, node, l);
  }
  return -1;
}

void bny_topo_find_clique(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  for (int32_t h = 0; h < d->nhosts; h++) {
    int32_t count = 0, times = 0;
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1]; i++) {
      int32_t domain = domain_of(d->topo, d->levels->ranks[d->by_host[i]].node);
      if (domain >= 0) d->values[count++] = domain;
    }
    int32_t usual = (int32_t)bny_topo_usual(d->values, count, &times);
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1] && times < count; i++) {
      int32_t node = d->levels->ranks[d->by_host[i]].node, domain = domain_of(d->topo, node);
      if (domain >= 0 && domain != usual)
        bny_topo_find(s, node, "it is in the NVLink clique %s, others of its host are in %s",
                      d->topo->nodes[domain].guid, d->topo->nodes[usual].guid);
    }
  }
}

/* ---- GPUDirect RDMA ---------------------------------------------------------------------------------------------- */

/* Returns whether a GPU of this node's host could do it. */
static bool has_partner(const bny_topo_derivation *d, int32_t node) {
  int32_t host = d->host_of[node] < 0 ? -1 : d->host_number[d->host_of[node]];
  for (int32_t i = host < 0 ? 0 : d->host_first[host]; host >= 0 && i < d->host_first[host + 1]; i++)
    if (!bny_topo_gdr_off(d->topo, d->levels->ranks[d->by_host[i]].node)) return true;
  return false;
}

void bny_topo_find_gdr_off(bny_topo_finder *s) {
  const bny_topo *topo = s->d->topo;
  int32_t gpus = 0;
  for (int32_t r = 0; r < s->d->levels->nranks; r++) gpus += bny_topo_gdr_off(topo, s->d->levels->ranks[r].node);
  for (int32_t n = 0; n < topo->nnodes; n++) {
    if (!bny_topo_gdr_off(topo, n)) continue;
    if (topo->nodes[n].kind == BNY_TOPO_GPU ? 2 * gpus <= s->d->levels->nranks
                                            : bny_topo_is_rdma(topo->nodes[n].name) && has_partner(s->d, n))
      bny_topo_find(s, n, "GPUDirect RDMA is off, so data between GPU and network goes through the host's memory");
  }
}

/* ---- what the input says of itself ------------------------------------------------------------------------------- */

static void pass_texts(bny_topo_finder *s, bny_topo_note_kind kind) {
  int32_t at = 0;
  for (const bny_topo_note *note; (note = bny_topo_find_note(s->d->topo, kind, &at)) != NULL;)
    bny_topo_find(s, note->node, "%s", note->text);
}

void bny_topo_find_input(bny_topo_finder *s) { pass_texts(s, BNY_TOPO_NOTE_INPUT); }

void bny_topo_find_ends_differ(bny_topo_finder *s) { pass_texts(s, BNY_TOPO_NOTE_DIFFERS); }

void bny_topo_find_nic_virtual(bny_topo_finder *s) { pass_texts(s, BNY_TOPO_NOTE_VIRTUAL); }
