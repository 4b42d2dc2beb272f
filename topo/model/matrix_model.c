/* SPDX-License-Identifier: Apache-2.0
 * Builds a containment tree that matches a matrix of paths. Each path type (PIX, PXB and so on) divides the devices
 * into groups, and the groups of a shorter path lie inside those of a longer one. A NODE group becomes a NUMA node, a
 * PHB group becomes a host bridge in it, and PXB and PIX groups become PCI switches. The matrix shows NVLinks in place
 * of the PCI path. GPUs of one NUMA node therefore count as NODE, unless another cell contradicts that. */
#include <stdio.h>
#include <stdlib.h>

#include "topo/model/matrix.h"
#include "topo/model/speed.h"

enum { STEP_PIX, STEP_PXB, STEP_PHB, STEP_NODE, STEPS };

typedef struct grouping {
  int group[STEPS][BNY_TOPO_MATRIX_MAX];                /* least device of the group */
  bool apart[BNY_TOPO_MATRIX_MAX][BNY_TOPO_MATRIX_MAX]; /* groups, by their least devices, that a cell separates */
} grouping;

static int step_of(bny_topo_path path) {
  switch (path) {
  case BNY_TOPO_PATH_PIX: return STEP_PIX;
  case BNY_TOPO_PATH_PXB: return STEP_PXB;
  case BNY_TOPO_PATH_PHB: return STEP_PHB;
  case BNY_TOPO_PATH_NODE: return STEP_NODE;
  default: return STEPS;
  }
}

static void unite(int *group, int count, int a, int b) {
  int low = group[a] < group[b] ? group[a] : group[b], high = group[a] < group[b] ? group[b] : group[a];
  for (int i = 0; i < count && low != high; i++)
    if (group[i] == high) group[i] = low;
}

/* Returns whether a cell contains a PCI path. */
static bool cell_says(const bny_topo_matrix_cell *cell) {
  return cell->known && (step_of(cell->path) < STEPS || cell->path == BNY_TOPO_PATH_SYS);
}

/* Returns whether a cell between two groups puts them on different NUMA nodes. A positive result is cached, because it
 * remains true when a group grows. */
static bool are_apart(const bny_topo_matrix *matrix, grouping *groups, int a, int b) {
  const int *group = groups->group[STEP_NODE];
  bool *apart = &groups->apart[a][b];
  for (int i = 0; i < matrix->ndevices && !*apart; i++) {
    for (int j = 0; j < matrix->ndevices && group[i] == a; j++)
      if (group[j] == b && matrix->cells[i][j].known && matrix->cells[i][j].path == BNY_TOPO_PATH_SYS) *apart = true;
  }
  return *apart;
}

static bool same_place(const bny_topo_matrix_device *a, const bny_topo_matrix_device *b) {
  if (a->numa >= 0 || b->numa >= 0) return a->numa == b->numa;
  return a->cpus.bytes > 0 && bny_topo_span_same(a->cpus, b->cpus);
}

static void devices_group(const bny_topo_matrix *matrix, grouping *groups) {
  int count = matrix->ndevices;
  for (int step = 0; step < STEPS; step++) {
    int *group = groups->group[step];
    for (int i = 0; i < count; i++) group[i] = step ? groups->group[step - 1][i] : i;
    for (int i = 0; i < count; i++) {
      for (int j = 0; j < i; j++)
        if (matrix->cells[i][j].known && step_of(matrix->cells[i][j].path) <= step) unite(group, count, i, j);
    }
  }
  int *group = groups->group[STEP_NODE];
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < i; j++)
      if (group[i] != group[j] && !cell_says(&matrix->cells[i][j]) &&
          same_place(&matrix->devices[i], &matrix->devices[j]) && !are_apart(matrix, groups, group[i], group[j]))
        unite(group, count, i, j);
  }
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

typedef struct builder {
  const bny_topo_matrix *matrix;
  const grouping *groups;
  bny_topo *topo;
  int32_t nodes[BNY_TOPO_MATRIX_MAX]; /* by device */
  int32_t host, npci;
} builder;

static int32_t container_add(builder *b, bny_topo_kind kind, int32_t parent, const char *name, int32_t index,
                             bool bridge) {
  bny_topo_node node = bny_topo_node_of(kind, parent, index, name, BNY_TOPO_FILE);
  node.host_bridge = bridge;
  return bny_topo_add_node(b->topo, &node);
}

static int32_t pci_add(builder *b, int32_t parent, bool bridge) {
  char name[32];
  snprintf(name, sizeof name, "%s%d", bridge ? "bridge" : "pci", b->npci++);
  return container_add(b, BNY_TOPO_PCI, parent, name, -1, bridge);
}

static int32_t device_add(builder *b, int which, int32_t parent) {
  const bny_topo_matrix_device *device = &b->matrix->devices[which];
  bny_topo_span shown = device->system_name.bytes ? device->system_name : device->name;
  char *name = bny_topo_span_copy(shown);
  if (!name) {
    b->topo->out_of_memory = true;
    return -1;
  }
  char cpus[BNY_TOPO_ATTRIBUTES_BYTES], attributes[BNY_TOPO_ATTRIBUTES_BYTES] = "";
  bool fits = device->cpus.bytes > 0 && device->cpus.bytes < sizeof cpus;
  snprintf(cpus, sizeof cpus, "%.*s", fits ? (int)device->cpus.bytes : 0, fits ? device->cpus.text : "");
  bny_topo_attribute_put(attributes, "cpus", cpus);
  int32_t nics = 0; /* before this device: NICs are numbered by column */
  for (int i = 0; i < which; i++) nics += b->matrix->devices[i].gpu < 0;
  bny_topo_node node = device->gpu >= 0 ? bny_topo_node_of(BNY_TOPO_GPU, parent, device->gpu, name, BNY_TOPO_FILE)
                                        : bny_topo_node_of(BNY_TOPO_NIC, parent, nics, name, BNY_TOPO_FILE);
  if (attributes[0]) node.attributes = attributes;
  int32_t added = bny_topo_add_node(b->topo, &node);
  free(name);
  return added;
}

static int group_size(const builder *b, int step, int leader) {
  int size = 0;
  for (int i = 0; i < b->matrix->ndevices; i++) size += b->groups->group[step][i] == leader;
  return size;
}

/* Fills one host bridge. Single devices become its children. Devices that share PXB become children of a switch, and
 * devices that share PIX of a switch inside that one. */
static void bridge_fill(builder *b, int leader, int32_t bridge) {
  const grouping *groups = b->groups;
  int32_t outer[BNY_TOPO_MATRIX_MAX], inner[BNY_TOPO_MATRIX_MAX]; /* by leader */
  for (int i = 0; i < b->matrix->ndevices; i++) {
    if (groups->group[STEP_PHB][i] != leader) continue;
    int pxb = groups->group[STEP_PXB][i], pix = groups->group[STEP_PIX][i];
    bool nested = group_size(b, STEP_PXB, pxb) > group_size(b, STEP_PIX, pix);
    if (pxb == i) outer[i] = nested ? pci_add(b, bridge, false) : bridge;
    if (pix == i) inner[i] = nested || group_size(b, STEP_PIX, pix) > 1 ? pci_add(b, outer[pxb], false) : outer[pxb];
    b->nodes[i] = device_add(b, i, inner[pix]);
  }
}

static bool numa_shared(const builder *b, int leader, int32_t numa) { /* another group is on this node */
  for (int i = 0; i < b->matrix->ndevices; i++)
    if (numa >= 0 && b->groups->group[STEP_NODE][i] != leader && b->matrix->devices[i].numa == numa) return true;
  return false;
}

static int32_t group_numa(const builder *b, int leader) {
  int32_t numa = -1;
  for (int i = 0; i < b->matrix->ndevices; i++)
    if (b->groups->group[STEP_NODE][i] == leader && numa < 0) numa = b->matrix->devices[i].numa;
  return numa;
}

/* Adds the NUMA node of a group. If the matrix separates devices of one NUMA node by SYS, each group gets its own node
 * inside a common package. */
static int32_t numa_add(builder *b, int leader, int32_t *packages) {
  char name[48];
  int32_t numa = group_numa(b, leader), parent = b->host;
  bool shared = numa_shared(b, leader, numa);
  if (shared) {
    if (packages[numa] < 0) {
      snprintf(name, sizeof name, "package%d", numa);
      packages[numa] = container_add(b, BNY_TOPO_PACKAGE, b->host, name, -1, false);
      if (packages[numa] >= 0) b->topo->nodes[packages[numa]].source = BNY_TOPO_ASSUMED;
    }
    parent = packages[numa];
  }
  bool as_said = numa >= 0 && !shared;
  snprintf(name, sizeof name, as_said ? "node%d" : "part%d", as_said ? numa : leader);
  return container_add(b, BNY_TOPO_NUMA, parent, name, numa, false);
}

/* Returns whether the location of a group is known: by a NUMA node, by CPUs, or by a PCI path. */
static bool is_placed(const builder *b, int leader) {
  const bny_topo_matrix *matrix = b->matrix;
  for (int i = 0; i < matrix->ndevices; i++) {
    if (b->groups->group[STEP_NODE][i] != leader) continue;
    if (matrix->devices[i].numa >= 0 || matrix->devices[i].cpus.bytes > 0) return true;
    for (int j = 0; j < matrix->ndevices; j++)
      if (cell_says(&matrix->cells[i][j])) return true;
  }
  return false;
}

static bool nodes_add(builder *b) {
  const bny_topo_matrix *matrix = b->matrix;
  enum { NUMAS = 4096 };
  int32_t *packages = malloc(NUMAS * sizeof *packages);
  if (!packages) return false;
  for (int i = 0; i < NUMAS; i++) packages[i] = -1;
  char name[32];
  int32_t number = bny_topo_count(b->topo, BNY_TOPO_HOST);
  snprintf(name, sizeof name, "host%d", number);
  b->host = container_add(b, BNY_TOPO_HOST, -1, name, number, false);
  for (int leader = 0; leader < matrix->ndevices; leader++) {
    if (b->groups->group[STEP_NODE][leader] != leader) continue;
    int32_t numa = is_placed(b, leader) ? numa_add(b, leader, packages) : b->host;
    for (int i = leader; i < matrix->ndevices; i++)
      if (b->groups->group[STEP_NODE][i] == leader && b->groups->group[STEP_PHB][i] == i)
        bridge_fill(b, i, pci_add(b, numa, true));
  }
  free(packages);
  return !b->topo->out_of_memory;
}

/* ---- NVLinks ----------------------------------------------------------------------------------------------------- */

static void link_add(builder *b, int32_t from, int32_t to, int32_t count) {
  bny_topo_join(b->topo, BNY_TOPO_LINK_NVLINK, from, to, count, 0, BNY_TOPO_FILE);
}

/* Returns whether a row has more links than a GPU can have. Each cell then counts the same links to a switch. */
static bool is_switched(const bny_topo_matrix *matrix, int device, int32_t *most) {
  int32_t sum = 0;
  *most = 0;
  for (int j = 0; j < matrix->ndevices; j++) {
    int32_t links = matrix->cells[device][j].links;
    sum += links;
    *most = links > *most ? links : *most;
  }
  return sum > bny_topo_nvlinks_most(-1);
}

static bool nvlinks_add(builder *b) {
  const bny_topo_matrix *matrix = b->matrix;
  int count = matrix->ndevices, island[BNY_TOPO_MATRIX_MAX];
  bool switched[BNY_TOPO_MATRIX_MAX] = {false};
  for (int i = 0; i < count; i++) island[i] = i;
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < i; j++)
      if (matrix->cells[i][j].links) unite(island, count, i, j);
  }
  int32_t most, switches = 0, nodes[BNY_TOPO_MATRIX_MAX];
  for (int i = 0; i < count; i++) switched[island[i]] = is_switched(matrix, i, &most) || switched[island[i]];
  for (int i = 0; i < count; i++) {
    if (island[i] == i && switched[i]) {
      char name[32];
      snprintf(name, sizeof name, "nvswitch%d", switches++);
      nodes[i] = container_add(b, BNY_TOPO_SWITCH, b->host, name, -1, false);
      if (nodes[i] >= 0) b->topo->nodes[nodes[i]].source = BNY_TOPO_ASSUMED;
    }
    if (switched[island[i]] && (is_switched(matrix, i, &most) || most > 0))
      link_add(b, b->nodes[i], nodes[island[i]], most);
    for (int j = 0; j < i && !switched[island[i]]; j++)
      if (matrix->cells[i][j].links) link_add(b, b->nodes[i], b->nodes[j], matrix->cells[i][j].links);
  }
  return !b->topo->out_of_memory;
}

/* ---- notes ------------------------------------------------------------------------------------------------------- */

static const char *name_at(const builder *b, int device) { return b->topo->nodes[b->nodes[device]].name; }

static void difference_note(const builder *b, const bny_topo_matrix_difference *d) {
  bool a_less = d->there.links < d->back.links || (d->there.links == d->back.links && d->there.path > d->back.path);
  int less = a_less ? d->a : d->b, more = a_less ? d->b : d->a;
  const bny_topo_matrix_cell *low = a_less ? &d->there : &d->back, *high = a_less ? &d->back : &d->there;
  bool gpus = b->matrix->devices[d->a].gpu >= 0 && b->matrix->devices[d->b].gpu >= 0;
  char text[160];
  if (!gpus && high->links > 0) {
    bny_topo_add_note(b->topo, b->nodes[d->a], "NVLinks between it and %.40s are left out, because both must be GPUs",
                      name_at(b, d->b));
    return;
  }
  if (low->links > 0)
    snprintf(text, sizeof text, "it lists %d NVLink%s to %.40s, which lists %d to it: the lower number counts",
             low->links, low->links == 1 ? "" : "s", name_at(b, more), high->links);
  else
    snprintf(text, sizeof text, "it lists %s to %.40s, which lists %s to it: the farther path counts",
             bny_topo_path_name(low->path), name_at(b, more), bny_topo_path_name(high->path));
  if (low->links == 0 && high->links > 0)
    bny_topo_add_sign(b->topo, BNY_TOPO_NOTE_ONE_SIDED, b->nodes[less], name_at(b, more));
  else
    bny_topo_add_sign(b->topo, BNY_TOPO_NOTE_DIFFERS, b->nodes[less], text);
}

/* Notes a GPU whose NUMA node differs from that of most GPUs with the same CPUs. It does nothing if all GPUs have the
 * same CPUs: in a container, they all may show the container's CPUs. */
static void numa_note(const builder *b, int i) {
  const bny_topo_matrix_device *device = &b->matrix->devices[i];
  int same = 0, differ = 0, other = -1;
  bool several = false;
  for (int j = 0; j < b->matrix->ndevices && device->numa >= 0 && device->cpus.bytes > 0; j++) {
    const bny_topo_matrix_device *peer = &b->matrix->devices[j];
    bool shared = bny_topo_span_same(peer->cpus, device->cpus);
    several = several || (peer->cpus.bytes > 0 && !shared);
    if (j == i || peer->numa < 0 || !shared) continue;
    *(peer->numa == device->numa ? &same : &differ) += 1;
    if (peer->numa != device->numa) other = j;
  }
  if (several && differ > same)
    bny_topo_add_note(b->topo, b->nodes[i], "it is on NUMA node %d, and %.40s on %d, though both have the same CPUs",
                      device->numa, name_at(b, other), b->matrix->devices[other].numa);
}

/* Notes contradictions: halves that differ, columns that differ, and two devices that a third one joined more closely
 * than their own cell shows. */
static void notes_add(const builder *b) {
  const bny_topo_matrix *matrix = b->matrix;
  int32_t odd = 0, first[2] = {0, 0};
  for (int d = 0; d < matrix->ndifferences; d++) difference_note(b, &matrix->differences[d]);
  for (int i = 0; i < matrix->ndevices; i++) numa_note(b, i);
  for (int i = 0; i < matrix->ndevices; i++) {
    for (int j = 0; j < i; j++) {
      const bny_topo_matrix_cell *cell = &matrix->cells[i][j];
      int step = 0;
      while (step < STEPS && b->groups->group[step][i] != b->groups->group[step][j]) step++;
      if (!cell_says(cell) || step == step_of(cell->path) || cell->differs) continue;
      if (odd++ == 0) first[0] = i, first[1] = j;
    }
  }
  char more[64] = "";
  if (odd > 1) snprintf(more, sizeof more, ", and so it is for %d more pair%s", odd - 1, odd == 2 ? "" : "s");
  if (odd > 0)
    bny_topo_add_note(b->topo, b->nodes[first[0]],
                      "it is %s to %.40s, but both are nearer than that to a third device%s",
                      bny_topo_path_name(matrix->cells[first[0]][first[1]].path), name_at(b, first[1]), more);
}

bool bny_topo_matrix_model(const bny_topo_matrix *matrix, bny_topo *topo) {
  grouping *groups = calloc(1, sizeof *groups);
  builder *b = malloc(sizeof *b);
  bool good = groups && b;
  if (good) {
    *b = (builder){.matrix = matrix, .groups = groups, .topo = topo};
    devices_group(matrix, groups);
    good = nodes_add(b) && nvlinks_add(b);
    if (good) notes_add(b);
  }
  free(groups);
  free(b);
  return good;
}
