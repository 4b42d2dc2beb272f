/* SPDX-License-Identifier: Apache-2.0 Findings about PCI links: devices and switches are compared with siblings, and
 * then with their own rating. A property that all siblings share is by design, such as slots of eight lanes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/derive/derive.h"
#include "topo/model/speed.h"

/* ---- comparison with siblings ------------------------------------------------------------------------------------ */

/* A device or switch and its upstream link. Places with equal keys are siblings, in any host. */
typedef struct pci_place {
  const char *model;  /* devices: "" unknown */
  int32_t keys[5];    /* kind; compute, or whether a NIC serves; switches: GPUs and NICs below, switches above; last:
                       * whether the lanes are known, else the link counts as one */
  int32_t node, link; /* indices */
  double lanes, lane_speed;
} pci_place;

typedef enum verdict { VERDICT_WIDTH, VERDICT_GENERATION, VERDICT_IDLE, VERDICT_RATING } verdict;

static int place_order(const void *a, const void *b) {
  const pci_place *x = a, *y = b;
  int keys = bny_topo_order(x->keys, y->keys, 5), models = strcmp(x->model, y->model);
  return keys ? keys : models ? models : bny_topo_order(&x->node, &y->node, 1);
}

static bool are_siblings(const pci_place *a, const pci_place *b) {
  return memcmp(a->keys, b->keys, sizeof a->keys) == 0 && strcmp(a->model, b->model) == 0;
}

/* Lists all places whose speed is known. `below` counts GPUs and NICs below each node, and `serves` NICs of ranks. */
static int32_t places_list(const bny_topo_derivation *d, const int32_t (*below)[2], const bool *serves,
                           pci_place *places) {
  const bny_topo *topo = d->topo;
  int32_t count = 0;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    const bny_topo_node *node = &topo->nodes[n];
    bool device = node->kind == BNY_TOPO_GPU || node->kind == BNY_TOPO_NIC;
    bool holds = node->kind == BNY_TOPO_PCI && below[n][0] + below[n][1] > 0;
    int32_t l = device || holds ? bny_topo_link_up(topo, n, BNY_TOPO_LINK_PCI) : -1;
    if (l < 0 || topo->links[l].gbytes_per_s <= 0 || topo->links[l].source == BNY_TOPO_ASSUMED) continue;
    if (topo->links[l].count <= 0 && node->kind == BNY_TOPO_NIC) continue; /* slots of NICs differ by design */
    pci_place place = {.model = device && node->model ? node->model : "", .keys = {(int32_t)node->kind}, .node = n};
    if (node->kind == BNY_TOPO_PCI) {
      place.keys[1] = below[n][0];
      place.keys[2] = below[n][1];
      for (int32_t up = node->parent; up >= 0; up = topo->nodes[up].parent)
        place.keys[3] += topo->nodes[up].kind == BNY_TOPO_PCI;
    } else {
      place.keys[1] = node->kind == BNY_TOPO_GPU ? node->compute : serves[n];
    }
    place.link = l;
    place.keys[4] = topo->links[l].count > 0;
    place.lanes = topo->links[l].count > 0 ? topo->links[l].count : 1;
    place.lane_speed = topo->links[l].gbytes_per_s / place.lanes;
    places[count++] = place;
  }
  qsort(places, (size_t)count, sizeof *places, place_order);
  return count;
}

/* Returns whether a value is too small compared with its siblings. Most siblings must have the usual value. */
static bool is_behind(double value, double usual, int32_t times, int32_t count) {
  return value < 0.75 * usual && 2 * times > count;
}

static void siblings_judge(bny_topo_finder *s, const pci_place *places, int32_t count, verdict wanted) {
  double *values = s->d->values;
  const bool lanes_known = places[0].keys[4];
  const double idle = 1.1 * bny_topo_speed_pci(1, 16) / (lanes_known ? 16 : 1);
  int32_t times_lanes, times_speed;
  for (int32_t i = 0; i < count; i++) values[i] = places[i].lanes;
  double lanes = bny_topo_usual(values, count, &times_lanes);
  for (int32_t i = 0; i < count; i++) values[i] = places[i].lane_speed;
  double speed = bny_topo_usual(values, count, &times_speed);
  for (int32_t i = 0; i < count; i++) {
    const bny_topo_link *link = &s->d->topo->links[places[i].link];
    bool less = places[i].lanes < lanes || places[i].lane_speed < BNY_TOPO_ALIKE * speed;
    double limit = less ? BNY_TOPO_ALIKE : 0.26;
    bool narrow = is_behind(places[i].lanes, lanes, times_lanes, count);
    bool old = is_behind(places[i].lane_speed, speed, times_speed, count), sleeps = places[i].lane_speed < idle;
    /* Without a majority, the result is only a note: one of two GPUs or NICs is slower, or a device has a quarter of
     * the lanes. */
    double part = fmin(places[i].lanes / lanes, places[i].lane_speed / speed);
    bool doubt =
        !narrow && !old &&
        (part <= 0.26 || (part <= 0.75 && count == 2 && places[i].keys[0] != BNY_TOPO_PCI && places[i].keys[1] != 0));
    if (wanted == VERDICT_WIDTH && narrow)
      bny_topo_find(s, places[i].node, "its PCI link has %g lane%s, those of its siblings %g", places[i].lanes,
                    bny_topo_plural((int32_t)places[i].lanes), lanes);
    else if (wanted == VERDICT_GENERATION && old && !sleeps && !lanes_known)
      bny_topo_find(s, places[i].node, "its PCI link runs at %.4g GB/s, those of its siblings at %.4g",
                    places[i].lane_speed, speed);
    else if (wanted == VERDICT_GENERATION && old && !sleeps)
      bny_topo_find(s, places[i].node, "its PCI link runs at %.2g GB/s for each lane, those of its siblings at %.2g",
                    places[i].lane_speed, speed);
    else if (wanted == VERDICT_IDLE && old && sleeps)
      bny_topo_find(s, places[i].node, "its PCI link is at generation 1, those of its siblings run at %.2g times that",
                    speed / places[i].lane_speed);
    else if (wanted == VERDICT_RATING && doubt)
      bny_topo_find(s, places[i].node, "its PCI link runs at %.4g GB/s, that of a sibling at %.4g", link->gbytes_per_s,
                    link->gbytes_per_s / part);
    else if (wanted == VERDICT_RATING && !narrow && !old && link->gbytes_per_s < limit * link->rated_gbytes_per_s)
      bny_topo_find(s, places[i].node, "its PCI link runs at %.4g GB/s of %.4g", link->gbytes_per_s,
                    link->rated_gbytes_per_s);
  }
}

/* Returns whether all links of GPUs, of NICs and of switches are equal and as rated. Large clusters then need no
 * comparison. */
static bool are_all_alike(const bny_topo *topo) {
  int32_t first[BNY_TOPO_KINDS];
  for (int k = 0; k < BNY_TOPO_KINDS; k++) first[k] = -1;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    if (link->kind != BNY_TOPO_LINK_PCI || link->gbytes_per_s <= 0) continue;
    int32_t *like = &first[topo->nodes[link->from].kind];
    const bny_topo_link *other = *like < 0 ? link : &topo->links[*like];
    if (link->count != other->count || link->gbytes_per_s < BNY_TOPO_ALIKE * other->gbytes_per_s ||
        other->gbytes_per_s < BNY_TOPO_ALIKE * link->gbytes_per_s ||
        link->gbytes_per_s < BNY_TOPO_ALIKE * link->rated_gbytes_per_s)
      return false;
    *like = l;
  }
  return true;
}

static void all_judge(bny_topo_finder *s, verdict wanted) {
  const bny_topo *topo = s->d->topo;
  if (are_all_alike(topo)) return;
  size_t nodes = (size_t)topo->nnodes + 1;
  pci_place *places = malloc(nodes * sizeof *places);
  bool *serves = calloc(nodes, sizeof *serves);
  int32_t(*below)[2] = calloc(nodes, sizeof *below);
  s->no_memory = s->no_memory || !places || !serves || !below;
  if (!s->no_memory) {
    for (int32_t r = 0; r < s->d->levels->nranks; r++)
      if (s->d->levels->ranks[r].nic >= 0) serves[s->d->levels->ranks[r].nic] = true;
    for (int32_t n = topo->nnodes - 1; n >= 0; n--) {
      below[n][0] += topo->nodes[n].kind == BNY_TOPO_GPU;
      below[n][1] += topo->nodes[n].kind == BNY_TOPO_NIC;
      for (int i = 0; i < 2 && topo->nodes[n].parent >= 0; i++) below[topo->nodes[n].parent][i] += below[n][i];
    }
    int32_t count = places_list(s->d, (const int32_t(*)[2])below, serves, places);
    for (int32_t first = 0, end; first < count; first = end) {
      for (end = first; end < count && are_siblings(&places[first], &places[end]);) end++;
      siblings_judge(s, &places[first], end - first, wanted);
    }
  }
  free(places);
  free(serves);
  free(below);
}

void bny_topo_find_pci_width(bny_topo_finder *s) { all_judge(s, VERDICT_WIDTH); }

void bny_topo_find_pci_generation(bny_topo_finder *s) { all_judge(s, VERDICT_GENERATION); }

void bny_topo_find_pci_idle(bny_topo_finder *s) { all_judge(s, VERDICT_IDLE); }

void bny_topo_find_pci_rating(bny_topo_finder *s) { all_judge(s, VERDICT_RATING); }

/* ---- virtual machines -------------------------------------------------------------------------------------------- */

static bool below_switch(const bny_topo *topo, int32_t node) {
  for (node = topo->nodes[node].parent; node >= 0; node = topo->nodes[node].parent)
    if (topo->nodes[node].kind == BNY_TOPO_PCI && !topo->nodes[node].host_bridge) return true;
  return false;
}

static bool is_coherent(const bny_topo *topo, int32_t node) { /* with its CPU; it then needs no switch */
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l))
    if (topo->links[l].kind == BNY_TOPO_LINK_C2C) return true;
  return false;
}

/* Returns whether this device has its own root port. Its bus then differs from that of the host bridge above it, which
 * is in the bridge's name ("pci0000:80" or "0000:[80-8f]"). A physical machine without PCI switches has root ports, so
 * nothing is hidden. */
static bool has_root_port(const bny_topo *topo, int32_t node) {
  const bny_topo_node *device = &topo->nodes[node], *above = &topo->nodes[device->parent];
  unsigned domain, bus, root_domain, root_bus;
  if (above->kind != BNY_TOPO_PCI || !above->host_bridge || !device->bus_id ||
      sscanf(device->bus_id, "%8x:%2x:", &domain, &bus) != 2)
    return false;
  bool named = sscanf(above->name, "pci%8x:%2x", &root_domain, &root_bus) == 2 ||
               sscanf(above->name, "%8x:[%2x-", &root_domain, &root_bus) == 2;
  return named && (domain != root_domain || bus != root_bus);
}

/* Returns whether GPUs and NICs share one parent without a PCI switch, as in virtual machines. */
static bool is_flat(const bny_topo_derivation *d, int32_t host) {
  const bny_topo *topo = d->topo;
  int32_t ngpus = bny_topo_ranks_on(d, host), nnics = bny_topo_nics_on(d, host);
  int64_t beside = 0;
  if (ngpus < 4 || nnics < 2 || d->levels->rank_kind != BNY_TOPO_GPU) return false;
  for (int32_t i = d->nic_first[host]; i < d->nic_first[host + 1]; i++) {
    if (below_switch(topo, d->nics[i])) return false;
    d->roots[topo->nodes[d->nics[i]].parent] = 0;
  }
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    int32_t node = d->levels->ranks[d->by_host[i]].node;
    if (below_switch(topo, node) || is_coherent(topo, node) || has_root_port(topo, node)) return false;
    d->roots[topo->nodes[node].parent] = 0;
  }
  for (int32_t i = d->nic_first[host]; i < d->nic_first[host + 1]; i++) d->roots[topo->nodes[d->nics[i]].parent]++;
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    int32_t parent = topo->nodes[d->levels->ranks[d->by_host[i]].node].parent;
    beside += topo->nodes[parent].kind != BNY_TOPO_HOST ? d->roots[parent] : 0;
  }
  return beside >= 2 * (int64_t)ngpus; /* on average, each GPU has two siblings that are NICs */
}

void bny_topo_find_pci_flat(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  for (int32_t h = 0; h < d->nhosts; h++) {
    if (is_flat(d, h))
      bny_topo_find(s, d->hosts[h],
                    "no PCI switch between %d GPUs and %d NICs, as in a virtual machine that hides them: which NIC is "
                    "near which GPU was taken from their order, and data between them may go through the CPU",
                    bny_topo_ranks_on(d, h), bny_topo_nics_on(d, h));
  }
}
