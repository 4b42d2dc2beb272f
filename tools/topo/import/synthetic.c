/* SPDX-License-Identifier: Apache-2.0
 * Builds a model from a synthetic description. synthetic.h defines the grammar, and synthetic_items.c parses it. */
#include <stdio.h>
#include <stdlib.h>

#include "tools/topo/import/import.h"
#include "topo/model/speed.h"
#include "tools/topo/import/synthetic.h"

enum { NODES_MAX = 1000000, MESH_MAX = 64, RAILS_MAX = 256 };

static const double absurd_gbytes_per_s = 1e6;

/* A fabric switch and the bandwidth below it. */
typedef struct fabric_switch {
  int32_t node;
  double below_gbytes_per_s;
} fabric_switch;

typedef struct builder {
  const bny_topo_item *items;
  int count;
  bny_topo *topo;
  int32_t *gpus; /* nodes of all GPUs so far */
  int32_t ngpus, gpus_capacity;
  int32_t nic_in_host, bus_in_host;
  int32_t next_index[BNY_TOPO_ITEM_KINDS]; /* number of the next container or GPU, in its host or overall */
  fabric_switch leaves[RAILS_MAX];         /* switches of the open leaf item */
  int32_t nleaves;
  fabric_switch spine, core; /* open spine and core; node -1: none */
} builder;

static int32_t node_add(builder *b, bny_topo_kind kind, int32_t parent, const char *prefix, int32_t index,
                        const bny_topo_item *item) {
  char name[32], bus[BNY_TOPO_BUS_BYTES];
  snprintf(name, sizeof name, "%s%d", prefix, index);
  bny_topo_node node = bny_topo_node_of(kind, parent, index, name, BNY_TOPO_FILE);
  if (item->kind == BNY_TOPO_ITEM_BRIDGE)
    node.host_bridge = true;
  else if (kind == BNY_TOPO_PCI || kind == BNY_TOPO_GPU || kind == BNY_TOPO_NIC) {
    snprintf(bus, sizeof bus, "%04x:%02x:00.0", (unsigned)b->bus_in_host / 255, (unsigned)b->bus_in_host % 255 + 1);
    b->bus_in_host++;
    node.bus_id = bus;
  }
  if (kind == BNY_TOPO_GPU) node.compute = item->compute;
  return bny_topo_add_node(b->topo, &node);
}

static void link_add(builder *b, bny_topo_link_kind kind, int32_t from, int32_t to, int32_t count, double gbytes_per_s,
                     bny_topo_source source) {
  int32_t link = bny_topo_join(b->topo, kind, from, to, count, gbytes_per_s, source);
  if (link >= 0) b->topo->links[link].rated_gbytes_per_s = gbytes_per_s;
}

static void pci_link_add(builder *b, int32_t node, const bny_topo_item *item) {
  int32_t parent = b->topo->nodes[node].parent;
  if (item->pci_generation > 0)
    link_add(b, BNY_TOPO_LINK_PCI, node, parent, item->pci_lanes,
             bny_topo_speed_pci(item->pci_generation, item->pci_lanes), BNY_TOPO_FILE);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static bool gpu_add(builder *b, int32_t parent, const bny_topo_item *item) {
  if (!bny_topo_grow(&b->gpus, b->ngpus, &b->gpus_capacity, sizeof *b->gpus)) return false;
  int32_t gpu = node_add(b, BNY_TOPO_GPU, parent, "GPU", b->next_index[BNY_TOPO_ITEM_GPU]++, item);
  if (gpu < 0) return false;
  b->gpus[b->ngpus++] = gpu;
  pci_link_add(b, gpu, item);
  if (item->c2c) {
    int32_t cpu = parent;
    while (b->topo->nodes[cpu].kind == BNY_TOPO_PCI) cpu = b->topo->nodes[cpu].parent;
    link_add(b, BNY_TOPO_LINK_C2C, gpu, cpu, 1, item->speed_gbytes_per_s, BNY_TOPO_FILE);
  }
  return true;
}

/* Ports are linked to the leaf of the NIC's rail, or to the NIC itself if there is no fabric. */
static bool nic_add(builder *b, int32_t parent, const bny_topo_item *item) {
  int32_t number = b->nic_in_host++;
  int32_t nic = node_add(b, BNY_TOPO_NIC, parent, "NIC", number, item);
  if (nic < 0) return false;
  pci_link_add(b, nic, item);
  fabric_switch *leaf = b->nleaves ? &b->leaves[number % b->nleaves] : NULL;
  for (int32_t i = 1; i <= item->ports; i++) {
    int32_t port = node_add(b, BNY_TOPO_PORT, nic, "", i, item);
    if (port < 0) return false;
    link_add(b, BNY_TOPO_LINK_NET, port, leaf ? leaf->node : nic, 1, item->speed_gbytes_per_s, BNY_TOPO_FILE);
    if (leaf) leaf->below_gbytes_per_s += item->speed_gbytes_per_s;
  }
  return true;
}

/* ---- links between GPUs ------------------------------------------------------------------------------------------ */

static double gpu_link_speed(const builder *b, const bny_topo_item *item, int32_t gpu, bny_topo_source *source) {
  int32_t compute = b->topo->nodes[gpu].compute;
  *source = item->speed_gbytes_per_s > 0 || compute < 0 ? BNY_TOPO_FILE : BNY_TOPO_ASSUMED;
  if (item->speed_gbytes_per_s > 0) return item->speed_gbytes_per_s;
  if (compute < 0) return 0;
  return item->kind == BNY_TOPO_ITEM_XGMI ? bny_topo_speed_xgmi(compute) : bny_topo_speed_nvlink(compute);
}

/* Links the item's GPUs, which begin at `first`. `joint` is the NVSwitch. */
static void gpus_join(builder *b, const bny_topo_item *item, int32_t first, int32_t joint) {
  bny_topo_source source;
  for (int32_t i = first; i < b->ngpus; i++) {
    double speed = gpu_link_speed(b, item, b->gpus[i], &source);
    if (item->kind == BNY_TOPO_ITEM_NVSWITCH) {
      int32_t links = item->links ? item->links : 18;
      link_add(b, BNY_TOPO_LINK_NVLINK, b->gpus[i], joint, links, links * speed, source);
      continue;
    }
    int32_t links = item->links ? item->links : 1;
    bny_topo_link_kind kind = item->kind == BNY_TOPO_ITEM_XGMI ? BNY_TOPO_LINK_XGMI : BNY_TOPO_LINK_NVLINK;
    for (int32_t j = i + 1; j < b->ngpus; j++) link_add(b, kind, b->gpus[i], b->gpus[j], links, links * speed, source);
  }
}

/* ---- containers -------------------------------------------------------------------------------------------------- */

/* Counts the NICs of a host. A leaf with rails has as many switches. */
static int64_t nics_of_host(const bny_topo_item *items, int count) {
  int64_t units = 1, nics = 0;
  bool in_host = false;
  for (int i = 0; i < count && units <= NODES_MAX; i++)
    if (items[i].kind == BNY_TOPO_ITEM_HOST)
      in_host = true;
    else if (in_host && items[i].kind == BNY_TOPO_ITEM_NIC)
      nics += units * items[i].count;
    else if (in_host && items[i].kind != BNY_TOPO_ITEM_GPU)
      units *= items[i].count;
  return nics;
}

static bool leaf_open(builder *b, const bny_topo_item *item, int32_t number) {
  int64_t wanted = item->rails ? nics_of_host(b->items, b->count) : 1;
  if (wanted == 0) wanted = 1;
  b->nleaves = 0;
  for (int32_t rail = 0; rail < wanted; rail++) {
    int32_t index = (int32_t)(number * wanted) + rail;
    int32_t node = node_add(b, BNY_TOPO_SWITCH, -1, "leaf", index, item);
    if (node < 0) return false;
    b->leaves[b->nleaves++] = (fabric_switch){.node = node};
  }
  return true;
}

static void uplink_add(builder *b, const fabric_switch *from, fabric_switch *to, const bny_topo_item *item) {
  double said = item->speed_gbytes_per_s;
  double speed = said > 0 ? said : from->below_gbytes_per_s;
  if (speed > absurd_gbytes_per_s) speed = absurd_gbytes_per_s;
  link_add(b, BNY_TOPO_LINK_NET, from->node, to->node, 1, speed, said > 0 ? BNY_TOPO_FILE : BNY_TOPO_ASSUMED);
  to->below_gbytes_per_s += speed;
}

static bool build(builder *b, int at, int32_t parent);

static bool leaf_build(builder *b, int at) {
  const bny_topo_item *item = &b->items[at];
  bool above_missing = b->spine.node < 0 && item->count > 1;
  if (above_missing) b->spine = (fabric_switch){.node = node_add(b, BNY_TOPO_SWITCH, -1, "spine", 0, item)};
  for (int32_t unit = 0; unit < item->count; unit++) {
    if (!leaf_open(b, item, b->next_index[BNY_TOPO_ITEM_LEAF]++) || !build(b, at + 1, -1)) return false;
    for (int32_t rail = 0; rail < b->nleaves && b->spine.node >= 0; rail++)
      uplink_add(b, &b->leaves[rail], &b->spine, item);
  }
  return true;
}

static bool spine_build(builder *b, int at) {
  const bny_topo_item *item = &b->items[at];
  b->core.node = item->count > 1 ? node_add(b, BNY_TOPO_SWITCH, -1, "core", 0, item) : -1;
  for (int32_t unit = 0; unit < item->count; unit++) {
    b->spine = (fabric_switch){.node = node_add(b, BNY_TOPO_SWITCH, -1, "spine", unit, item)};
    if (b->spine.node < 0 || !build(b, at + 1, -1)) return false;
    if (b->core.node >= 0) uplink_add(b, &b->spine, &b->core, item);
  }
  return true;
}

static bool joint_build(builder *b, int at, int32_t parent) {
  const bny_topo_item *item = &b->items[at];
  for (int32_t unit = 0; unit < item->count; unit++) {
    int32_t first = b->ngpus, joint = -1;
    if (item->kind == BNY_TOPO_ITEM_NVSWITCH)
      joint = node_add(b, BNY_TOPO_SWITCH, parent, "nvswitch", b->next_index[BNY_TOPO_ITEM_NVSWITCH]++, item);
    if (!build(b, at + 1, parent)) return false;
    if (item->kind != BNY_TOPO_ITEM_NVSWITCH || joint >= 0) gpus_join(b, item, first, joint);
  }
  return true;
}

static bool container_build(builder *b, int at, int32_t parent) {
  static const bny_topo_kind kinds[BNY_TOPO_ITEM_KINDS] = {
      [BNY_TOPO_ITEM_HOST] = BNY_TOPO_HOST, [BNY_TOPO_ITEM_PACKAGE] = BNY_TOPO_PACKAGE,
      [BNY_TOPO_ITEM_NUMA] = BNY_TOPO_NUMA, [BNY_TOPO_ITEM_BRIDGE] = BNY_TOPO_PCI,
      [BNY_TOPO_ITEM_PCI] = BNY_TOPO_PCI,
  };
  const bny_topo_item *item = &b->items[at];
  for (int32_t unit = 0; unit < item->count; unit++) {
    if (item->kind == BNY_TOPO_ITEM_HOST) {
      b->nic_in_host = b->bus_in_host = 0;
      for (int kind = BNY_TOPO_ITEM_PACKAGE; kind < BNY_TOPO_ITEM_KINDS; kind++) b->next_index[kind] = 0;
    }
    int32_t node =
        node_add(b, kinds[item->kind], parent, bny_topo_item_name(item->kind), b->next_index[item->kind]++, item);
    if (node < 0) return false;
    if (item->kind == BNY_TOPO_ITEM_PCI) pci_link_add(b, node, item);
    if (!build(b, at + 1, node)) return false;
  }
  return true;
}

/* Builds the items from `at` on inside `parent`; returns false if out of memory. The recursion depth is the number of
 * items. */
static bool build(builder *b, int at, int32_t parent) {
  for (; at < b->count; at++) {
    const bny_topo_item *item = &b->items[at];
    if (item->kind == BNY_TOPO_ITEM_SPINE) return spine_build(b, at);
    if (item->kind == BNY_TOPO_ITEM_LEAF) return leaf_build(b, at);
    if (bny_topo_item_is_joint(item)) return joint_build(b, at, parent);
    if (!bny_topo_item_is_device(item)) return container_build(b, at, parent);
    for (int32_t i = 0; i < item->count; i++)
      if (!(item->kind == BNY_TOPO_ITEM_GPU ? gpu_add : nic_add)(b, parent, item)) return false;
  }
  return !b->topo->out_of_memory;
}

/* Bounds the size of the model before anything is built. */
static bool size_check(const bny_topo_item *items, int count, bny_topo_error *error) {
  int64_t units = 1, nodes = 0, gpus_joined = 0, joints = -1;
  for (int i = 0; i < count; i++) {
    int64_t here = units * items[i].count;
    nodes += here * (items[i].kind == BNY_TOPO_ITEM_NIC ? 1 + items[i].ports : 1);
    if (items[i].kind == BNY_TOPO_ITEM_LEAF && items[i].rails) {
      int64_t rails = nics_of_host(items, count);
      if (rails > RAILS_MAX) return bny_topo_fail(error, items[i].line, "more than %d rails", RAILS_MAX);
      nodes += here * rails;
    }
    if (nodes > NODES_MAX) return bny_topo_fail(error, items[i].line, "more than %d nodes", NODES_MAX);
    if (items[i].kind == BNY_TOPO_ITEM_NVLINK || items[i].kind == BNY_TOPO_ITEM_XGMI) joints = here;
    if (items[i].kind == BNY_TOPO_ITEM_GPU && joints > 0) gpus_joined += here / joints;
    if (gpus_joined > MESH_MAX)
      return bny_topo_fail(error, items[i].line, "more than %d GPUs linked each to each", MESH_MAX);
    if (!bny_topo_item_is_device(&items[i])) units = here;
  }
  return true;
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  bny_topo_item items[BNY_TOPO_ITEMS_MAX];
  int count;
  if (!bny_topo_items_parse(text, bytes, items, &count, error) || !size_check(items, count, error)) return false;
  builder *b = calloc(1, sizeof *b);
  bool built = false;
  if (b) {
    *b = (builder){.items = items, .count = count, .topo = topo, .spine = {.node = -1}, .core = {.node = -1}};
    built = build(b, 0, -1) && !topo->out_of_memory;
    free(b->gpus);
  }
  free(b);
  return built;
}

const bny_topo_importer bny_topo_import_synthetic = {
    .name = "synthetic", .recognises = bny_topo_is_synthetic, .parse = parse};
