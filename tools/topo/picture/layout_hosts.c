/* SPDX-License-Identifier: Apache-2.0
 * Roles of nodes in a picture, classes of hosts that look alike, and the choice of hosts to draw. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/layout_work.h"

bool topo_is_gpu_link(const bny_topo_link *link) {
  return (link->kind == BNY_TOPO_LINK_NVLINK || link->kind == BNY_TOPO_LINK_XGMI) && link->from != link->to;
}

/* ---- roles ------------------------------------------------------------------------------------------------------- */

static bool has_gpu_link(const bny_topo *topo, int32_t node) {
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    if (topo_is_gpu_link(&topo->links[l])) return true;
  }
  return false;
}

static topo_role role_of(const bny_topo *topo, int32_t node) {
  switch (topo->nodes[node].kind) {
  case BNY_TOPO_HOST: return TOPO_ROLE_HOST;
  case BNY_TOPO_PACKAGE:
  case BNY_TOPO_NUMA: return TOPO_ROLE_AREA;
  case BNY_TOPO_PCI: return TOPO_ROLE_PCI;
  case BNY_TOPO_GPU: return TOPO_ROLE_GPU;
  case BNY_TOPO_NIC: return TOPO_ROLE_NIC;
  case BNY_TOPO_SWITCH: return has_gpu_link(topo, node) ? TOPO_ROLE_NVSWITCH : TOPO_ROLE_SWITCH;
  default: return TOPO_ROLE_NONE;
  }
}

static bool in_host(topo_role role) {
  return role == TOPO_ROLE_AREA || role == TOPO_ROLE_PCI || role == TOPO_ROLE_GPU || role == TOPO_ROLE_NIC;
}

/* Devices are children of PCI or above, CPUs of CPUs or the host. Other nodes in between are skipped. */
static int32_t parent_of(const topo_work *work, int32_t node) {
  const topo_place *places = work->places;
  int32_t up = work->topo->nodes[node].parent;
  bool area = places[node].role == TOPO_ROLE_AREA;
  while (up >= 0 && places[up].role != TOPO_ROLE_HOST && places[up].role != TOPO_ROLE_AREA &&
         (area || places[up].role != TOPO_ROLE_PCI))
    up = work->topo->nodes[up].parent;
  return up >= 0 ? up : work->topo->nnodes;
}

static void child_add(topo_place *places, int32_t parent, int32_t child) {
  places[child].parent = parent;
  places[child].next = -1;
  if (places[parent].first < 0)
    places[parent].first = child;
  else
    places[places[parent].last].next = child;
  places[parent].last = child;
}

/* An area that contains one area and nothing else is drawn together with it. */
static void merge_areas(topo_work *work) {
  topo_place *places = work->places;
  for (int32_t n = work->topo->nnodes - 1; n >= 0; n--) {
    int32_t only = places[n].role == TOPO_ROLE_AREA ? places[n].first : -1;
    if (only < 0 || places[only].next >= 0 || places[only].role != TOPO_ROLE_AREA || places[only].with >= 0) continue;
    places[n].with = only;
    places[n].first = places[only].first;
    places[n].last = places[only].last;
    for (int32_t c = places[n].first; c >= 0; c = places[c].next) places[c].parent = n;
    places[only].role = TOPO_ROLE_NONE;
  }
}

static void parts_set(topo_work *work) {
  const bny_topo *topo = work->topo;
  topo_place *places = work->places;
  for (int32_t n = 0; n <= topo->nnodes; n++) {
    places[n] = (topo_place){.parent = -1,
                             .first = -1,
                             .next = -1,
                             .last = -1,
                             .with = -1,
                             .rank = -1,
                             .rail = -1,
                             .box = -1,
                             .host = topo->nnodes};
    places[n].role = n < topo->nnodes ? role_of(topo, n) : TOPO_ROLE_HOST;
  }
  /* PCI bridges without a device below are ignored. Children come after parents. */
  bool *useful = (bool *)work->host_class; /* array not in use yet */
  memset(useful, 0, ((size_t)topo->nnodes + 1) * sizeof *useful);
  for (int32_t n = topo->nnodes - 1; n >= 0; n--) {
    bool device = places[n].role == TOPO_ROLE_GPU || places[n].role == TOPO_ROLE_NIC;
    if (places[n].role == TOPO_ROLE_PCI && !useful[n]) places[n].role = TOPO_ROLE_NONE;
    if (device || places[n].role == TOPO_ROLE_PCI) useful[parent_of(work, n)] = true;
  }
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t parent = topo->nodes[n].parent;
    places[n].host = places[n].role == TOPO_ROLE_HOST ? n : parent >= 0 ? places[parent].host : topo->nnodes;
    if (places[n].host != n) places[n].ordinal = ++places[places[n].host].ordinal;
    if (in_host(places[n].role)) child_add(places, parent_of(work, n), n);
  }
  memset(work->host_class, 0, ((size_t)topo->nnodes + 1) * sizeof *work->host_class);
  merge_areas(work);
  for (int32_t r = 0; r < work->levels->nranks; r++) {
    const bny_topo_rank *rank = &work->levels->ranks[r];
    places[rank->node].rank = r;
    if (rank->nic >= 0 && places[rank->nic].rail < 0) places[rank->nic].rail = rank->rail;
  }
  for (int32_t n = 0; n <= topo->nnodes; n++) work->nhosts += places[n].role == TOPO_ROLE_HOST && places[n].first >= 0;
}

bool topo_is_root(const topo_work *work, int32_t node) {
  int32_t parent = work->places[node].parent;
  return work->places[node].role == TOPO_ROLE_PCI && work->topo->nodes[node].host_bridge && parent >= 0 &&
         work->places[parent].role != TOPO_ROLE_PCI;
}

int32_t topo_nic_of(const topo_work *work, int32_t node) {
  if (work->topo->nodes[node].kind == BNY_TOPO_PORT) node = work->topo->nodes[node].parent;
  return node >= 0 && work->topo->nodes[node].kind == BNY_TOPO_NIC ? node : -1;
}

/* A port with nothing known behind it is linked to its own NIC, which gives its speed. */
static void nics_set(topo_work *work) {
  const bny_topo *topo = work->topo;
  bool rails = false, switches = false;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    if (link->kind != BNY_TOPO_LINK_NET) continue;
    int32_t ends[2] = {link->from, link->to}, nics[2] = {topo_nic_of(work, ends[0]), topo_nic_of(work, ends[1])};
    for (int i = 0; i < 2; i++) {
      if (nics[i] < 0 || (i == 1 && nics[0] == nics[1])) continue;
      topo_place *place = &work->places[nics[i]];
      place->speed += link->gbytes_per_s;
      place->speed_assumed = place->speed_assumed || link->source == BNY_TOPO_ASSUMED;
      if (work->places[ends[!i]].role == TOPO_ROLE_SWITCH) place->taps++, switches = true;
    }
  }
  for (int32_t n = 0; n < topo->nnodes; n++) {
    if (bny_topo_port_down(topo, n) && topo_nic_of(work, n) >= 0) work->places[topo_nic_of(work, n)].down = true;
  }
  for (int32_t f = 0; f < work->levels->nfindings; f++) {
    const bny_topo_finding *finding = &work->levels->findings[f];
    int32_t nic = finding->node >= 0 ? topo_nic_of(work, finding->node) : -1;
    if (nic >= 0 && finding->severity >= BNY_TOPO_WARNING) work->places[nic].wrong = true;
  }
  for (int32_t n = 0; n < topo->nnodes; n++) rails = rails || work->places[n].rail >= 0;
  work->rails_only = rails && !switches && work->nhosts > 1;
  for (int32_t n = 0; n < topo->nnodes && work->rails_only; n++) work->places[n].taps = work->places[n].rail >= 0;
}

bool topo_work_start(topo_work *work) {
  size_t nodes = (size_t)work->topo->nnodes + 1;
  work->places = calloc(nodes, sizeof *work->places);
  work->host_class = calloc(nodes, sizeof *work->host_class);
  work->group = calloc(nodes, sizeof *work->group);
  work->tier = calloc(nodes, sizeof *work->tier);
  work->hub_of = calloc(nodes, sizeof *work->hub_of);
  work->classes = calloc(nodes, sizeof *work->classes);
  work->crossings = NULL;
  if (!work->places || !work->host_class || !work->group || !work->tier || !work->hub_of || !work->classes)
    return false;
  parts_set(work);
  nics_set(work);
  work->detailed = work->nhosts <= 1;
  return true;
}

void topo_work_end(topo_work *work) {
  free(work->places);
  free(work->host_class);
  free(work->group);
  free(work->tier);
  free(work->hub_of);
  free(work->classes);
  free(work->crossings);
}

/* ---- hosts that look alike --------------------------------------------------------------------------------------- */

static uint64_t mix_text(uint64_t hash, const char *text) {
  return text ? bny_hash_add_bytes(hash, text, strlen(text)) : bny_hash_of(hash);
}

static uint64_t mix_number(uint64_t hash, double number) { return bny_hash_add_bytes(hash, &number, sizeof number); }

/* Hashes a node's links regardless of their order: kind, speed and, within the host, the node at the other end. */
static uint64_t look_of_links(const topo_work *work, int32_t host, int32_t node) {
  const bny_topo *topo = work->topo;
  uint64_t sum = 0;
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    const bny_topo_link *link = &topo->links[l];
    int32_t other = bny_topo_other_end(topo, node, l);
    bool inside = other != host && work->places[other].host == host && topo->nodes[other].kind != BNY_TOPO_SWITCH;
    uint64_t one = bny_hash_of((uint64_t)link->kind * 64 + (uint64_t)topo->nodes[other].kind);
    one = mix_number(one, link->gbytes_per_s);
    one = mix_number(one, link->count + 1e6 * link->source + (inside ? 1e8 * work->places[other].ordinal : 0));
    sum += mix_number(one, link->rated_gbytes_per_s);
  }
  return sum;
}

/* Hashes the contents of each host except names and numbers; by node. */
static uint64_t *looks_of(const topo_work *work) {
  const bny_topo *topo = work->topo;
  uint64_t *looks = calloc((size_t)topo->nnodes + 1, sizeof *looks);
  for (int32_t n = 0; looks && n < topo->nnodes; n++) {
    const bny_topo_node *node = &topo->nodes[n];
    int32_t host = work->places[n].host;
    if (host == topo->nnodes) continue;
    uint64_t one = bny_hash_of((uint64_t)node->kind + 16 * (uint64_t)((int64_t)node->compute + 1));
    one = mix_text(one, node->model);
    int32_t parent = node->parent < 0 || node->parent == host ? 0 : work->places[node->parent].ordinal;
    one = mix_number(one, parent + 1e7 * node->host_bridge);
    one ^= node->kind == BNY_TOPO_NIC ? bny_hash_of((uint64_t)(work->places[n].rail + 2)) : 0;
    looks[host] = bny_hash_of(looks[host] * 31 + one) + look_of_links(work, host, n);
  }
  return looks;
}

typedef struct host_look {
  uint64_t look;
  int32_t host;
} host_look;

static int look_order(const void *a, const void *b) {
  const host_look *left = a, *right = b;
  if (left->look != right->look) return left->look < right->look ? -1 : 1;
  return (left->host > right->host) - (left->host < right->host);
}

static int class_order(const void *a, const void *b) {
  const topo_class *left = a, *right = b;
  return (left->first > right->first) - (left->first < right->first);
}

static bool classes_find(topo_work *work) {
  int32_t nnodes = work->topo->nnodes, count = 0;
  uint64_t *looks = looks_of(work);
  host_look *sorted = calloc((size_t)work->nhosts + 1, sizeof *sorted);
  for (int32_t n = 0; looks && sorted && n <= nnodes; n++) {
    if (work->places[n].role == TOPO_ROLE_HOST && work->places[n].first >= 0)
      sorted[count++] = (host_look){.look = n < nnodes ? looks[n] : 0, .host = n};
  }
  if (sorted) qsort(sorted, (size_t)count, sizeof *sorted, look_order);
  for (int32_t i = 0; i < count; i++) {
    if (i == 0 || sorted[i].look != sorted[i - 1].look)
      work->classes[work->nclasses++] = (topo_class){.look = sorted[i].look, .first = sorted[i].host};
    work->classes[work->nclasses - 1].hosts++;
  }
  qsort(work->classes, (size_t)work->nclasses, sizeof *work->classes, class_order);
  for (int32_t c = 0; c < work->nclasses; c++) {
    host_look wanted = {.look = work->classes[c].look, .host = -1};
    int32_t low = 0, high = count;
    while (low < high) {
      int32_t middle = low + (high - low) / 2;
      if (look_order(&sorted[middle], &wanted) < 0)
        low = middle + 1;
      else
        high = middle;
    }
    for (int32_t i = low; i < count && sorted[i].look == wanted.look; i++) work->host_class[sorted[i].host] = c;
  }
  bool good = looks && sorted;
  free(looks);
  free(sorted);
  return good;
}

/* ---- hosts that are drawn ---------------------------------------------------------------------------------------- */

static const double width_most = 1560;

typedef struct choice {
  topo_work *work;
  bool *chosen; /* by node */
  double width;
  int32_t count;
} choice;

/* Hosts of a class have the same width, apart from names. */
static void choose(choice *c, int32_t host, int32_t at_least) {
  topo_work *work = c->work;
  if (c->chosen[host] || c->count >= HOSTS_MOST) return;
  double width = topo_measure_host(work, host) + HOST_GAP;
  if (c->count >= at_least && c->width + width > width_most) return;
  c->chosen[host] = true;
  c->width += width;
  c->count++;
  work->classes[work->host_class[host]].drawn++;
}

static void choose_in_order(choice *c) {
  topo_work *work = c->work;
  int32_t nnodes = work->topo->nnodes;
  /* The order is: one of each class, hosts with findings, then the first. */
  for (int32_t i = 0; i < work->nclasses; i++) choose(c, work->classes[i].first, 2);
  for (int32_t i = 0; i < work->levels->nfindings; i++) {
    int32_t node = work->levels->findings[i].node;
    int32_t host = node < 0 ? nnodes : work->places[node].host;
    if (work->places[host].first >= 0) choose(c, host, 2);
  }
  double reserve = c->width;
  for (int32_t n = 0; n <= nnodes; n++) {
    if (work->places[n].role != TOPO_ROLE_HOST || work->places[n].first < 0) continue;
    /* More than a few equal hosts are drawn only if all fit. */
    bool all = reserve / (c->count > 0 ? c->count : 1) * work->nhosts <= width_most;
    if (work->nhosts <= 4 || all || c->count < 3) choose(c, n, 2);
  }
}

void topo_choose_hosts(topo_work *work) {
  choice c = {.work = work, .chosen = calloc((size_t)work->topo->nnodes + 1, sizeof *c.chosen)};
  if (!c.chosen || !classes_find(work)) {
    work->layout->out_of_memory = true;
  } else {
    choose_in_order(&c);
    /* A placeholder for one host takes as much room as the host. */
    for (int32_t n = 0; c.count == work->nhosts - 1 && n <= work->topo->nnodes; n++) {
      if (work->places[n].role == TOPO_ROLE_HOST && work->places[n].first >= 0) choose(&c, n, HOSTS_MOST);
    }
  }
  for (int32_t n = 0; c.chosen && n <= work->topo->nnodes; n++) {
    if (c.chosen[n] && work->ndrawn < HOSTS_MOST) work->drawn[work->ndrawn++] = n;
  }
  for (int32_t n = 0; c.chosen && n < work->topo->nnodes; n++)
    work->places[n].drawn =
        (in_host(work->places[n].role) || work->places[n].role == TOPO_ROLE_HOST) && c.chosen[work->places[n].host];
  free(c.chosen);
}
