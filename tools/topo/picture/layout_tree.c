/* SPDX-License-Identifier: Apache-2.0
 * The inside of hosts: horizontal places of devices and PCI switches, from the tree of containment. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/layout_work.h"

/* ---- units: a device, with the PCI bridges that lead to it alone ------------------------------------------------ */

int32_t topo_unit_below(const topo_work *work, int32_t node) {
  const topo_place *places = work->places;
  while (places[node].role == TOPO_ROLE_PCI && !topo_is_root(work, node) && places[node].first >= 0 &&
         places[places[node].first].next < 0)
    node = places[node].first;
  return places[node].role == TOPO_ROLE_GPU || places[node].role == TOPO_ROLE_NIC ? node : -1;
}

static int32_t bridges_above(const topo_work *work, int32_t device, int32_t parent) {
  int32_t count = 0;
  for (int32_t n = work->places[device].parent; n >= 0 && n != parent; n = work->places[n].parent) count++;
  return count;
}

bool topo_is_coherent(const bny_topo *topo, int32_t gpu) {
  for (int32_t l = bny_topo_first_link(topo, gpu); l >= 0; l = bny_topo_next_link(topo, gpu, l)) {
    const bny_topo_link *link = &topo->links[l];
    bny_topo_kind other = topo->nodes[bny_topo_other_end(topo, gpu, l)].kind;
    bool cpu = other == BNY_TOPO_NUMA || other == BNY_TOPO_PACKAGE;
    if (cpu && (link->kind == BNY_TOPO_LINK_C2C || topo_is_gpu_link(link))) return true;
  }
  return false;
}

bool topo_has_pci_link(const bny_topo *topo, int32_t node) {
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    if (topo->links[l].kind == BNY_TOPO_LINK_PCI && topo->links[l].from != topo->links[l].to) return true;
  }
  return false;
}

/* ---- the units of one parent ------------------------------------------------------------------------------------- */

typedef struct cluster {
  topo_work *work;
  int32_t parent;
  int32_t *gpus, *nics, ngpus, nnics;
  double lane;
} cluster;

static double right_lanes(int32_t taps) { return taps > 1 ? (taps - 1) * TAP_GAP : 0; }

/* Returns whether each two GPUs can share a NIC between them. Lines to PCI pass outside of it, lines to the network
 * between the GPUs. */
static bool pair_fits(const cluster *c) {
  const topo_work *work = c->work;
  return c->nnics > 0 && c->ngpus == 2 * c->nnics && work->nic_width + 2 * c->lane <= 2 * work->gpu_width + UNIT_GAP;
}

static double place_pairs(cluster *c, double x) {
  topo_work *work = c->work;
  double start = x;
  for (int32_t i = 0; i < c->nnics; i++) {
    topo_place *left = &work->places[c->gpus[2 * i]], *right = &work->places[c->gpus[2 * i + 1]];
    topo_place *nic = &work->places[c->nics[i]];
    double gap = UNIT_GAP + right_lanes(nic->taps);
    if (i > 0) x += UNIT_GAP;
    left->x = x;
    right->x = x + work->gpu_width + gap;
    left->attach = left->x + c->lane / 2;
    right->attach = right->x + work->gpu_width - c->lane / 2;
    right->label_left = true;
    x = right->x + work->gpu_width;
    nic->x = (left->x + x - work->nic_width) / 2;
    nic->attach = nic->x + work->nic_width / 2;
    nic->exit = TOPO_EXIT_TOP;
    nic->row = 0;
    nic->comb = 0;
    nic->tap_x = nic->attach - right_lanes(nic->taps) / 2;
  }
  return x - start;
}

/* Places NICs [first, last) below one another, under a GPU or alone. Returns the width. */
static double place_column(cluster *c, double x, int32_t gpu, int32_t first, int32_t last) {
  topo_work *work = c->work;
  int32_t rows = last - first, taps = 0;
  bool stacked = rows > 1;
  double nic_x = x + (gpu >= 0 ? c->lane : 0) + (stacked ? 8 : 0);
  double width = fmax(gpu >= 0 ? work->gpu_width : 0, rows > 0 ? nic_x - x + work->nic_width : 0);
  if (gpu >= 0) {
    work->places[gpu].x = x;
    work->places[gpu].width = width;
    work->places[gpu].attach = rows > 0 ? x + c->lane / 2 : x + width / 2;
    work->places[gpu].label_left = false;
  }
  for (int32_t i = first; i < last; i++) {
    topo_place *nic = &work->places[c->nics[i]];
    nic->x = nic_x;
    nic->row = (int8_t)(i - first);
    nic->comb = stacked ? nic_x - 5 : 0;
    nic->attach = stacked ? nic->comb : nic_x + work->nic_width / 2;
    nic->exit = gpu >= 0 || stacked ? TOPO_EXIT_RIGHT : TOPO_EXIT_TOP;
    nic->tap_x =
        nic->exit == TOPO_EXIT_RIGHT ? x + width + TAP_GAP + taps * TAP_GAP : nic->attach - right_lanes(nic->taps) / 2;
    taps += nic->exit == TOPO_EXIT_RIGHT ? nic->taps : 0;
  }
  return width + right_lanes(taps);
}

static double place_columns(cluster *c, double x) {
  double start = x;
  bool few = c->ngpus == 0 && c->nnics <= STACK_MOST;
  int32_t stacks = few ? c->nnics : (c->nnics + STACK_MOST - 1) / STACK_MOST;
  int32_t columns = c->ngpus > stacks ? c->ngpus : stacks;
  int32_t rows = columns > 0 ? (c->nnics + columns - 1) / columns : 0, placed = 0;
  for (int32_t column = 0; column < columns; column++) {
    /* Few NICs are spread below many GPUs; many fill stacks. */
    int32_t last = placed;
    if (rows > 1)
      last = placed + rows < c->nnics ? placed + rows : c->nnics;
    else if (placed < c->nnics && (2 * (int64_t)placed + 1) * columns / (2 * c->nnics) == column)
      last = placed + 1;
    if (column > 0) x += UNIT_GAP;
    x += place_column(c, x, column < c->ngpus ? c->gpus[column] : -1, placed, last);
    placed = last;
  }
  return x - start;
}

static double place_cluster(topo_work *work, int32_t parent, double x) {
  cluster c = {.work = work, .parent = parent, .lane = LANE};
  size_t children = 0;
  for (int32_t n = work->places[parent].first; n >= 0; n = work->places[n].next) children++;
  c.gpus = malloc((children + 1) * sizeof *c.gpus);
  c.nics = malloc((children + 1) * sizeof *c.nics);
  double width = 0;
  if (!c.gpus || !c.nics) {
    work->layout->out_of_memory = true;
  } else {
    for (int32_t n = work->places[parent].first; n >= 0; n = work->places[n].next) {
      int32_t unit = topo_unit_below(work, n);
      if (unit < 0) continue;
      bool gpu = work->places[unit].role == TOPO_ROLE_GPU;
      if (gpu)
        c.gpus[c.ngpus++] = unit;
      else
        c.nics[c.nnics++] = unit;
      if (gpu && topo_is_coherent(work->topo, unit) && topo_has_pci_link(work->topo, unit))
        c.lane = LANE + COHERENT_LANE;
      work->places[unit].width = gpu ? work->gpu_width : work->nic_width;
    }
    width = pair_fits(&c) ? place_pairs(&c, x) : place_columns(&c, x);
    for (int32_t n = work->places[parent].first; n >= 0; n = work->places[n].next) {
      int32_t unit = topo_unit_below(work, n);
      for (int32_t up = unit; unit >= 0 && up != parent; up = work->places[up].parent) {
        if (up != unit) work->places[up].x = work->places[up].attach = work->places[unit].attach;
      }
    }
  }
  free(c.gpus);
  free(c.nics);
  return width;
}

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

static void shift(topo_work *work, int32_t node, double by) {
  for (int32_t n = work->places[node].first; n >= 0; n = work->places[n].next) {
    topo_place *place = &work->places[n];
    place->x += by;
    place->attach += by;
    place->tap_x += by;
    if (place->comb > 0) place->comb += by;
    shift(work, n, by);
  }
}

static double pad_of(const topo_work *work, int32_t node) {
  topo_role role = work->places[node].role;
  return role == TOPO_ROLE_HOST ? HOST_PAD : role == TOPO_ROLE_AREA ? AREA_PAD : 0;
}

static double least_width(const topo_work *work, int32_t node) {
  topo_role role = work->places[node].role;
  if (role == TOPO_ROLE_AREA) return topo_area_least(work, node);
  if (role != TOPO_ROLE_HOST) return 20;
  double name = topo_text_width(topo_host_name(work, node), 11, true) + 2 * HOST_PAD;
  return fmin(fmax(name, 90), work->detailed ? 360 : 180);
}

static double place(topo_work *work, int32_t node, double x);

/* The children of a node side by side: areas, or the others. Devices form one cluster at the place of the first. */
typedef struct row {
  double at, low, high; /* low, high: range of their lines */
  int32_t children;
  bool first;
} row;

static void place_children(topo_work *work, int32_t node, bool areas, row *r) {
  topo_place *own = &work->places[node];
  bool clustered = false;
  for (int32_t n = own->first; n >= 0; n = work->places[n].next) {
    bool unit = topo_unit_below(work, n) >= 0;
    if ((work->places[n].role == TOPO_ROLE_AREA) != areas) continue;
    if (!unit || !clustered) {
      if (!r->first) r->at += areas ? AREA_GAP : UNIT_GAP + 4;
      r->at += unit ? place_cluster(work, node, r->at) : place(work, n, r->at);
      r->first = false;
    }
    clustered = clustered || unit;
    if (!unit && work->places[n].role == TOPO_ROLE_PCI)
      own->row = (int8_t)fmax(own->row, work->places[n].row + !topo_is_root(work, n));
    r->low = fmin(r->low, work->places[n].attach), r->high = fmax(r->high, work->places[n].attach);
    r->children++;
  }
}

static bool is_bare(const topo_work *work, int32_t host) {
  for (int32_t n = work->places[host].first; n >= 0; n = work->places[n].next) {
    if (topo_unit_below(work, n) != n || topo_has_pci_link(work->topo, n)) return false;
  }
  return true;
}

/* Sets x, width and attach of a node and everything below it, and the rows that its PCI switches need. */
static double place(topo_work *work, int32_t node, double x) {
  topo_place *own = &work->places[node];
  double pad = pad_of(work, node);
  row r = {.at = x + pad, .low = INFINITY, .high = -INFINITY, .first = true};
  own->row = 0;
  own->bare = own->role == TOPO_ROLE_HOST && is_bare(work, node);
  place_children(work, node, false, &r);
  if (own->role == TOPO_ROLE_HOST && !r.first && !own->bare) r.at = fmax(r.at, x + pad + UNPLACED_WIDTH);
  place_children(work, node, true, &r);
  own->x = x;
  own->width = r.at + pad - x;
  /* A node with one child is placed below it; a switch's line starts at its middle. */
  bool spans = topo_is_root(work, node) && r.children > 1;
  own->attach = r.children == 1 ? r.low : spans ? (r.low + r.high) / 2 : x + own->width / 2;
  double least = least_width(work, node);
  if (own->width < least) {
    shift(work, node, (least - own->width) / 2);
    own->attach += (least - own->width) / 2;
    own->width = least;
  }
  return own->width;
}

double topo_measure_host(topo_work *work, int32_t host) { return place(work, host, 0); }

static void rows_count(topo_work *work) {
  topo_rows *rows = &work->rows;
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    const topo_place *own = &work->places[n];
    if (!own->drawn) continue;
    if (own->role == TOPO_ROLE_NIC && own->row + 1 > rows->nic_rows) rows->nic_rows = own->row + 1;
    if (own->role == TOPO_ROLE_AREA && topo_area_height(work, n) + 1 > rows->strips)
      rows->strips = topo_area_height(work, n) + 1;
    int32_t unit = own->role == TOPO_ROLE_HOST || own->role == TOPO_ROLE_AREA ? -1 : topo_unit_below(work, n);
    bool top = own->parent >= 0 && unit >= 0 && topo_unit_below(work, own->parent) < 0;
    int32_t beads = top ? bridges_above(work, unit, own->parent) : 0;
    if (beads > rows->beads) rows->beads = beads;
    bool in_row = own->role == TOPO_ROLE_PCI && unit < 0 && !topo_is_root(work, n);
    if (in_row && own->row + 1 > rows->pci_rows) rows->pci_rows = own->row + 1;
    bool unplaced = own->parent >= 0 && work->places[own->parent].role == TOPO_ROLE_HOST && own->role != TOPO_ROLE_AREA;
    if (unplaced && rows->strips == 0 && !work->places[own->parent].bare) rows->strips = 1;
    if (topo_is_root(work, n)) rows->roots = 8;
  }
}

void topo_place_hosts(topo_work *work) {
  double x = PAGE_MARGIN;
  work->left = x;
  for (int32_t i = 0; i < work->ndrawn; i++) {
    x += place(work, work->drawn[i], x) + HOST_GAP;
  }
  if (work->ndrawn < work->nhosts) {
    work->more_x = x;
    x += MORE_WIDTH + HOST_GAP;
  }
  work->right = x > work->left ? x - HOST_GAP : x;
  rows_count(work);
}
