/* SPDX-License-Identifier: Apache-2.0
 * Finds the parents and links of PCI devices. A device's path in sysfs names all bridges above it:
 *   /sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:02.0/0000:1b:00.0
 *                host bridge root port   upstream     downstream   device
 * A switch is one node with the bus id of its upstream bridge. */
#include "topo/probe/util.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/model/speed.h"

enum { MOST_BRIDGES = 24, MOST_MEGABITS = 10000000 };

typedef struct pci_path {
  char root[BNY_TOPO_BUS_BYTES]; /* "0000:16"; "" unknown */
  int32_t nbridges;
  char bridges[MOST_BRIDGES][BNY_TOPO_BUS_BYTES];
} pci_path;

/* "pci0000:16" */
static bool is_root(const char *part) {
  const char *colon = strchr(part, ':');
  return strncmp(part, "pci", 3) == 0 && colon != NULL && colon - part <= 11 && strlen(colon) == 3 &&
         part[3 + strspn(part + 3, "0123456789abcdef:")] == '\0';
}

static pci_path path_of(const char *sysfs, const char *bus_id) {
  char path[BNY_TOPO_PROBE_PATH], normal[BNY_TOPO_BUS_BYTES];
  pci_path found = {0};
  snprintf(path, sizeof path, "%s/bus/pci/devices/%s", sysfs, bus_id);
  char *real = realpath(path, NULL), *rest = real;
  for (char *part = strsep(&rest, "/"); part != NULL; part = strsep(&rest, "/")) {
    if (is_root(part)) {
      snprintf(found.root, sizeof found.root, "%s", part + 3);
      found.nbridges = 0;
    } else if (found.root[0] != '\0' && strchr(part, ':') != NULL && bny_topo_bus_normalise(part, normal)) {
      if (strcmp(normal, bus_id) == 0) break;
      if (found.nbridges < MOST_BRIDGES) memcpy(found.bridges[found.nbridges++], normal, sizeof normal);
    }
  }
  free(real);
  return found;
}

int32_t bny_topo_probe_pci_numa(const char *sysfs, const char *bus_id) {
  return (int32_t)bny_topo_probe_number(0, 1 << 20, -1, "%s/bus/pci/devices/%s/numa_node", sysfs, bus_id);
}

/* ---- the place of a device --------------------------------------------------------------------------------------- */

/* Returns the parent above all bridges: the device's NUMA node, or the only NUMA node, otherwise the host. The model
 * has no NUMA node that this process may not use. */
static int32_t top_of(const char *sysfs, const bny_topo *topo, const char *bus_id) {
  int32_t number = bny_topo_probe_pci_numa(sysfs, bus_id), only = -1;
  int32_t numa = bny_topo_find_numa(topo, number);
  for (int32_t n = 0; number < 0 && n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_NUMA) only = only == -1 ? n : -2;
  numa = only >= 0 ? only : numa;
  for (int32_t n = 0; numa < 0 && n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_HOST) return n;
  return numa;
}

/* Finds or adds the host bridge, "pci0000:16". */
static int32_t host_bridge(const char *sysfs, bny_topo *topo, const char *bus_id, const pci_path *path) {
  char name[BNY_TOPO_BUS_BYTES + 4];
  snprintf(name, sizeof name, "pci%s", path->root);
  int32_t known = bny_topo_find_name(topo, BNY_TOPO_PCI, name);
  if (known >= 0) return known;
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_PCI, top_of(sysfs, topo, bus_id), -1, name, BNY_TOPO_PROBED);
  node.host_bridge = true;
  return bny_topo_add_node(topo, &node);
}

static int32_t add_below(const char *sysfs, bny_topo *topo, int32_t parent, bny_topo_kind kind, const char *bus_id,
                         const char *name) {
  static const char *const files[] = {"class", "vendor", "device"};
  char attributes[BNY_TOPO_ATTRIBUTES_BYTES] = "", value[32];
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
    if (bny_sysfs_line(value, sizeof value, "%s/bus/pci/devices/%s/%s", sysfs, bus_id, files[i]))
      bny_topo_attribute_put(attributes, files[i], value);
  int64_t vendor = bny_topo_probe_number(0, 0xffff, -1, "%s/bus/pci/devices/%s/vendor", sysfs, bus_id);
  bny_topo_node node = bny_topo_node_of(kind, parent, -1, name, BNY_TOPO_PROBED);
  node.bus_id = bus_id, node.vendor = bny_topo_vendor_name(vendor);
  node.attributes = attributes[0] == '\0' ? NULL : attributes;
  int32_t added = bny_topo_add_node(topo, &node);
  return added < 0 || bny_topo_probe_upwards(topo, added, BNY_TOPO_LINK_PCI) < 0 ? -1 : added;
}

int32_t bny_topo_probe_pci_device(const char *sysfs, bny_topo *topo, const char *bus_id, bny_topo_kind kind,
                                  const char *name) {
  int32_t known = bny_topo_find_bus(topo, bus_id);
  if (known >= 0) return known;
  pci_path path = path_of(sysfs, bus_id);
  int32_t parent = path.root[0] == '\0' ? top_of(sysfs, topo, bus_id) : host_bridge(sysfs, topo, bus_id, &path);
  /* Every second bridge is a root port or downstream port, which has no node. */
  for (int32_t b = 1; parent >= 0 && b < path.nbridges; b += 2) {
    int32_t bridge = bny_topo_find_bus(topo, path.bridges[b]);
    parent = bridge >= 0 ? bridge : add_below(sysfs, topo, parent, BNY_TOPO_PCI, path.bridges[b], path.bridges[b]);
  }
  return parent < 0 ? -1 : add_below(sysfs, topo, parent, kind, bus_id, name);
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

static int generation_in(const char *directory, const char *file) {
  char text[64];
  bool there = bny_sysfs_line(text, sizeof text, "%s/%s", directory, file);
  int generation = there ? bny_topo_speed_pci_generation(text) : 0;
  return generation > 0 ? generation : 0;
}

/* Returns the link width in lanes; 0 for 255 (unknown) and for 0 (link down or absent). */
static int width_in(const char *directory, const char *file) {
  return (int)bny_topo_probe_number(1, 32, 0, "%s/%s", directory, file);
}

static int lesser_known(int a, int b) { return a == 0 || (b != 0 && b < a) ? b : a; }

/* The rating is the smaller one of both ends: a generation 5 card in a generation 4 slot is not a fault. */
bool bny_topo_probe_pci_rate(const char *sysfs, bny_topo *topo, int32_t node) {
  const char *bus_id = topo->nodes[node].bus_id;
  if (bus_id == NULL) return false;
  char device[BNY_TOPO_PROBE_PATH], above[BNY_TOPO_PROBE_PATH];
  int length = snprintf(device, sizeof device, "%s/bus/pci/devices/%s", sysfs, bus_id);
  snprintf(above, sizeof above, "%.*s/..", length < BNY_TOPO_PROBE_PATH - 4 ? length : 0, device);
  int rated_generation = lesser_known(generation_in(device, "max_link_speed"), generation_in(above, "max_link_speed"));
  int rated_width = lesser_known(width_in(device, "max_link_width"), width_in(above, "max_link_width"));
  if (rated_generation == 0 || rated_width == 0) return false;
  int generation = lesser_known(
      rated_generation, topo->nodes[node].kind == BNY_TOPO_NIC ? generation_in(device, "current_link_speed") : 0);
  int width = lesser_known(rated_width, width_in(device, "current_link_width"));
  int32_t up = bny_topo_probe_upwards(topo, node, BNY_TOPO_LINK_PCI);
  if (up < 0) return false;
  bny_topo_link *link = &topo->links[up];
  link->count = width;
  link->gbytes_per_s = bny_topo_speed_pci(generation, width);
  link->rated_gbytes_per_s = bny_topo_speed_pci(rated_generation, rated_width);
  link->source = BNY_TOPO_PROBED;
  return generation < rated_generation || width < rated_width;
}

/* ---- network devices --------------------------------------------------------------------------------------------- */

static bool first_name(const char *sysfs, const char *bus_id, const char *class, char name[BNY_TOPO_PROBE_NAME]) {
  bny_topo_probe_list list = bny_topo_probe_names("%s/bus/pci/devices/%s/%s", sysfs, bus_id, class);
  bool found = list.count > 0;
  if (found) memcpy(name, list.names[0], BNY_TOPO_PROBE_NAME);
  free(list.names);
  return found;
}

static bool interface_of(const char *sysfs, const char *bus_id, char name[BNY_TOPO_PROBE_NAME]) {
  if (first_name(sysfs, bus_id, "net", name)) return true;
  /* One level deeper: 0000:00:03.0/virtio2/net/eth0 */
  bny_topo_probe_list list = bny_topo_probe_names("%s/bus/pci/devices/%s", sysfs, bus_id);
  bool found = false;
  for (int32_t i = 0; i < list.count && !found; i++) {
    char inner[BNY_TOPO_PROBE_NAME + 8];
    snprintf(inner, sizeof inner, "%s/net", list.names[i]);
    found = strncmp(list.names[i], "virtio", 6) == 0 && first_name(sysfs, bus_id, inner, name);
  }
  free(list.names);
  return found;
}

bool bny_topo_probe_nic_name(const char *sysfs, const char *bus_id, char name[BNY_TOPO_PROBE_NAME]) {
  return first_name(sysfs, bus_id, "infiniband", name) || interface_of(sysfs, bus_id, name);
}

/* Functions of one card that are bonded with each other. */
enum { MOST_SLAVES = 8 };

typedef struct slave {
  char bus_id[BNY_TOPO_BUS_BYTES];
  int64_t megabits;
} slave;

static int slaves_of(const char *sysfs, const char *bus_id, slave slaves[MOST_SLAVES]) {
  char interface[BNY_TOPO_PROBE_NAME], line[512];
  int count = 0;
  if (!first_name(sysfs, bus_id, "net", interface) ||
      !bny_sysfs_line(line, sizeof line, "%s/class/net/%s/master/bonding/slaves", sysfs, interface))
    return 0;
  size_t card = strcspn(bus_id, "."); /* the part before the function */
  char *rest = line;
  for (char *name = strsep(&rest, " \t"); name != NULL && count < MOST_SLAVES; name = strsep(&rest, " \t")) {
    slave *one = &slaves[count];
    if (*name == '\0' || strchr(name, '/') != NULL ||
        !bny_topo_probe_bus_of(one->bus_id, "%s/class/net/%s/device", sysfs, name) ||
        strncmp(one->bus_id, bus_id, card + 1) != 0)
      continue;
    one->megabits = bny_topo_probe_number(0, MOST_MEGABITS, 0, "%s/class/net/%s/speed", sysfs, name);
    count++;
  }
  return count;
}

double bny_topo_probe_bond_megabits(const char *sysfs, const char *bus_id) {
  slave slaves[MOST_SLAVES];
  int count = slaves_of(sysfs, bus_id, slaves);
  int64_t sum = 0;
  for (int i = 0; i < count; i++) sum += slaves[i].megabits;
  return count > 1 ? (double)sum : 0;
}

bool bny_topo_probe_pci_part(const char *sysfs, const char *bus_id) {
  char name[BNY_TOPO_PROBE_NAME], physical[BNY_TOPO_BUS_BYTES];
  if (bny_topo_probe_bus_of(physical, "%s/bus/pci/devices/%s/physfn", sysfs, bus_id))
    return bny_topo_probe_nic_name(sysfs, physical, name) || !bny_topo_probe_nic_name(sysfs, bus_id, name);
  slave slaves[MOST_SLAVES];
  int count = first_name(sysfs, bus_id, "infiniband", name) ? 0 : slaves_of(sysfs, bus_id, slaves);
  for (int i = 0; i < count; i++)
    if (strcmp(slaves[i].bus_id, bus_id) != 0 && first_name(sysfs, slaves[i].bus_id, "infiniband", name)) return true;
  return false;
}
