/* SPDX-License-Identifier: Apache-2.0
 * Imports hwloc's XML, versions 1 to 3, as `lstopo machine.xml` writes it. libhwloc is not used for this, because it
 * trusts its input: an assertion can end the program, errors have no line, and nothing is bounded. It also keeps every
 * cache and thread.
 *
 * In version 2 a NUMA node is a sibling of its parent's I/O devices; in version 1 it contains them. A PCI switch
 * appears as one upstream bridge with one bridge per downstream port; the model has one node for it: the upstream
 * bridge. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/import/import.h"
#include "tools/topo/import/hwloc.h"
#include "tools/topo/import/xml.h"

enum { MOST_INDEX = 1 << 24 };

static bool is_numa(const char *type) { return strcmp(type, "NUMANode") == 0 || strcmp(type, "Node") == 0; }

static bool is_package(const char *type) { return strcmp(type, "Package") == 0 || strcmp(type, "Socket") == 0; }

static bool fail_at(const bny_topo_hwloc *h, int32_t element, const char *what) {
  return bny_topo_fail(h->error, bny_topo_xml_line(h->xml, element), "<object type=\"%.30s\">: %s",
                       bny_topo_hwloc_type(h, element), what);
}

static bool add_node(bny_topo_hwloc *h, int32_t element, const bny_topo_node *node) {
  h->at[element].node = bny_topo_add_node(h->topo, node);
  return h->at[element].node >= 0;
}

static bool index_of(const bny_topo_hwloc *h, int32_t element, int64_t *index) {
  *index = -1;
  return bny_topo_xml_integer(h->xml, element, "os_index", -1, UINT32_MAX, index, h->error);
}

/* ---- processors and memory --------------------------------------------------------------------------------------- */

static bool take_machine(bny_topo_hwloc *h, int32_t machine) {
  const char *name = bny_topo_hwloc_info(h, machine, "HostName"), *top = bny_topo_hwloc_info(h, 0, "HostName"),
             *model = bny_topo_hwloc_info(h, machine, "DMIProductName");
  name = name != NULL && *name != '\0' ? name : top != NULL && *top != '\0' ? top : "host0";
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_HOST, -1, 0, name, BNY_TOPO_FILE);
  node.model = model != NULL ? model : bny_topo_hwloc_info(h, machine, "PlatformModel");
  node.vendor = bny_topo_hwloc_info(h, machine, "DMISysVendor");
  if (!add_node(h, machine, &node)) return false;
  h->at[machine].cpu = h->at[machine].io = h->at[machine].node;
  return true;
}

static bool add_package(bny_topo_hwloc *h, int32_t package, int32_t parent) {
  int64_t index;
  char name[32];
  if (!index_of(h, package, &index)) return false;
  bool known = index >= 0 && index <= MOST_INDEX;
  snprintf(name, sizeof name, "package%d", known ? (int)index : h->packages);
  h->packages++;
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_PACKAGE, parent, known ? (int32_t)index : -1, name, BNY_TOPO_FILE);
  node.model = bny_topo_hwloc_info(h, package, "CPUModel"), node.vendor = bny_topo_hwloc_info(h, package, "CPUVendor");
  return add_node(h, package, &node);
}

static bool add_numa(bny_topo_hwloc *h, int32_t numa, int32_t parent) {
  int64_t index;
  char name[32];
  if (!index_of(h, numa, &index)) return false;
  bool known = index >= 0 && index <= MOST_INDEX;
  snprintf(name, sizeof name, "node%d", known ? (int)index : h->numas);
  h->numas++;
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_NUMA, parent, known ? (int32_t)index : -1, name, BNY_TOPO_FILE);
  return add_node(h, numa, &node);
}

/* Returns the first NUMA node among the children, or below a memory-side cache among them; -1: none. */
static int32_t numa_beside(const bny_topo_hwloc *h, int32_t element) {
  for (int32_t e = bny_topo_xml_first(h->xml, element); e >= 0; e = bny_topo_xml_next(h->xml, e)) {
    int32_t inner = e;
    while (inner >= 0 && strcmp(bny_topo_hwloc_type(h, inner), "MemCache") == 0)
      inner = bny_topo_xml_child(h->xml, inner, "object");
    /* A NUMA node with objects inside belongs to version 1. */
    if (inner >= 0 && is_numa(bny_topo_hwloc_type(h, inner)) && bny_topo_xml_child(h->xml, inner, "object") < 0)
      return inner;
  }
  return -1;
}

static int32_t only_package(const bny_topo_hwloc *h, int32_t numa) {
  int32_t package = -1;
  for (int32_t e = bny_topo_xml_first(h->xml, numa); e >= 0; e = bny_topo_xml_next(h->xml, e)) {
    if (is_package(bny_topo_hwloc_type(h, e))) {
      if (package >= 0) return -1;
      package = e;
    }
  }
  return package;
}

/* Returns the NUMA node that holds the CPUs of a memory-only node; -1 if the node has its own CPUs. Memory without
 * CPUs, such as HBM, CXL or GPU memory, follows that node and has the same cpuset or none. */
static int32_t numa_with_cpus(const bny_topo_hwloc *h, int32_t numa) {
  int32_t above = bny_topo_xml_parent(h->xml, numa);
  while (above > 0 && strcmp(bny_topo_hwloc_type(h, above), "MemCache") == 0)
    above = bny_topo_xml_parent(h->xml, above);
  int32_t first = numa_beside(h, above);
  const char *own = bny_topo_xml_attribute(h->xml, numa, "cpuset"),
             *set = first < 0 ? NULL : bny_topo_xml_attribute(h->xml, first, "cpuset");
  return first >= 0 && first < numa && own != NULL && set != NULL && (strcmp(own, set) == 0 || strcmp(own, "0x0") == 0)
             ? first
             : -1;
}

/* In version 1 a NUMA node holds objects, and their devices belong to it. If it holds exactly one package, the package
 * becomes its parent. */
static bool take_numa(bny_topo_hwloc *h, int32_t numa, int32_t parent) {
  int32_t within = h->at[parent].cpu, with_cpus = numa_with_cpus(h, numa);
  if (h->at[numa].node >= 0) return true; /* already added for its parent */
  if (with_cpus >= 0) {
    h->at[numa].node = h->at[with_cpus].node;
    return true;
  }
  int32_t package = only_package(h, numa);
  if (package >= 0) {
    if (!add_package(h, package, within)) return false;
    within = h->at[package].node;
  }
  if (!add_numa(h, numa, within)) return false;
  h->at[numa].cpu = within;
  h->at[numa].io = h->at[numa].node;
  return true;
}

static bool take_package(bny_topo_hwloc *h, int32_t package, int32_t parent) {
  int32_t io = h->at[parent].io;
  if (h->at[package].node < 0 && !add_package(h, package, h->at[parent].cpu)) return false;
  h->at[package].cpu = h->at[package].node;
  h->at[package].io = h->topo->nodes[io].kind == BNY_TOPO_NUMA ? io : h->at[package].node;
  return true;
}

/* ---- PCI --------------------------------------------------------------------------------------------------------- */

static bool is_host_bridge(const bny_topo_hwloc *h, int32_t bridge) {
  const char *type = bny_topo_xml_attribute(h->xml, bridge, "bridge_type");
  return type != NULL && strncmp(type, "0-", 2) == 0;
}

/* Returns whether a bridge below this parent is the upstream bridge of a switch. Such a bridge is below a root port
 * (itself below a host bridge), or below a downstream port of another switch. Ports have no node of their own: a
 * downstream port refers to the node of its switch. */
static bool is_upwards(const bny_topo_hwloc *h, int32_t parent) {
  return strcmp(bny_topo_hwloc_type(h, parent), "Bridge") == 0 && !is_host_bridge(h, parent) && !h->at[parent].upwards;
}

static bool take_bridge(bny_topo_hwloc *h, int32_t bridge, int32_t parent) {
  char bus_id[BNY_TOPO_BUS_BYTES];
  int32_t within = h->at[parent].node >= 0 && strcmp(bny_topo_hwloc_type(h, parent), "Bridge") == 0 ? h->at[parent].node
                                                                                                    : h->at[parent].io;
  h->at[bridge].io = within;
  if (is_host_bridge(h, bridge)) {
    const char *range = bny_topo_xml_attribute(h->xml, bridge, "bridge_pci");
    bny_topo_node node = bny_topo_node_of(BNY_TOPO_PCI, within, -1, range == NULL ? "?" : range, BNY_TOPO_FILE);
    node.host_bridge = true;
    return add_node(h, bridge, &node);
  }
  const char *bus = bny_topo_xml_attribute(h->xml, bridge, "pci_busid");
  if (bus == NULL || !bny_topo_bus_normalise(bus, bus_id))
    return fail_at(h, bridge, "its pci_busid is missing or none such as 0000:1b:00.0");
  h->at[bridge].upwards = is_upwards(h, parent);
  if (!h->at[bridge].upwards) {
    h->at[bridge].node = within;
    return true;
  }
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_PCI, within, -1, bus_id, BNY_TOPO_FILE);
  node.bus_id = bus_id, node.model = bny_topo_hwloc_info(h, bridge, "PCIDevice");
  node.vendor = bny_topo_hwloc_info(h, bridge, "PCIVendor");
  return add_node(h, bridge, &node) && bny_topo_hwloc_join_upwards(h, bridge);
}

static bool take_device(bny_topo_hwloc *h, int32_t device, int32_t parent) {
  bool in_bridge = strcmp(bny_topo_hwloc_type(h, parent), "Bridge") == 0;
  bny_topo_kind kind = bny_topo_hwloc_device_kind(h, device);
  if (kind == BNY_TOPO_KINDS) return bny_topo_hwloc_note_left_out(h, device);
  return bny_topo_hwloc_device(h, device, kind, in_bridge ? h->at[parent].node : h->at[parent].io);
}

/* In versions 2 and 3 the devices of an object belong to the NUMA node among its children. */
static bool take_beside(bny_topo_hwloc *h, int32_t element) {
  int32_t numa = numa_beside(h, element);
  if (numa < 0) return true;
  bool good = h->at[numa].node >= 0 || add_numa(h, numa, h->at[element].cpu);
  h->at[element].io = h->at[numa].node;
  return good;
}

/* ---- the whole file ---------------------------------------------------------------------------------------------- */

static bool take_object(bny_topo_hwloc *h, int32_t element) {
  int32_t parent = bny_topo_xml_parent(h->xml, element);
  const char *type = bny_topo_hwloc_type(h, element);
  if (type[0] == '\0') return true;
  if (parent == 0 && (strcmp(type, "Machine") == 0 || strcmp(type, "System") == 0 || is_numa(type))) {
    if (h->topo->nnodes > 0) return fail_at(h, element, "the second of its file");
    if (!take_machine(h, element)) return false;
    /* In version 1 the root may be a NUMA node, or a system of several machines. */
    bool numa = is_numa(type);
    h->at[element].node = numa ? -1 : h->at[element].node;
    return numa ? add_numa(h, element, h->at[element].cpu) && (h->at[element].io = h->at[element].node) >= 0
                : take_beside(h, element);
  }
  if (h->at[parent].cpu < 0) return fail_at(h, element, "is outside of a Machine");
  h->at[element].cpu = h->at[parent].cpu;
  h->at[element].io = h->at[parent].io;
  bool good = true;
  if (strcmp(type, "Bridge") == 0) return !h->at[element].wanted || take_bridge(h, element, parent);
  if (strcmp(type, "PCIDev") == 0) return take_device(h, element, parent);
  if (is_package(type))
    good = take_package(h, element, parent);
  else if (is_numa(type))
    return take_numa(h, element, parent);
  return good && take_beside(h, element);
}

/* Marks from the last element to the first, because parents come before children. */
static void mark_wanted(bny_topo_hwloc *h) {
  for (int32_t e = bny_topo_xml_count(h->xml) - 1; e > 0; e--) {
    if (strcmp(bny_topo_hwloc_type(h, e), "PCIDev") == 0 && bny_topo_hwloc_device_kind(h, e) != BNY_TOPO_KINDS)
      h->at[e].wanted = true;
    if (h->at[e].wanted) h->at[bny_topo_xml_parent(h->xml, e)].wanted = true;
  }
}

static bool buses_once(bny_topo_hwloc *h) {
  bny_topo_names buses = {0};
  for (int32_t e = 1; e < bny_topo_xml_count(h->xml); e++) {
    int32_t node = h->at[e].node;
    const char *bus_id = node < 0 ? NULL : h->topo->nodes[node].bus_id,
               *own = bny_topo_xml_attribute(h->xml, e, "pci_busid");
    char normal[BNY_TOPO_BUS_BYTES];
    if (bus_id != NULL && own != NULL && bny_topo_bus_normalise(own, normal) && strcmp(normal, bus_id) == 0)
      bny_topo_names_add(&buses, 0, bus_id, e);
  }
  const bny_topo_name *twice = bny_topo_names_sort(&buses);
  bool good = !buses.out_of_memory;
  if (good && twice != NULL)
    good = bny_topo_fail(h->error, bny_topo_xml_line(h->xml, twice->value), "pci_busid %s appears twice", twice->key);
  bny_topo_names_free(&buses);
  return good;
}

static bool read_topology(bny_topo_hwloc *h) {
  const char *version = bny_topo_xml_attribute(h->xml, 0, "version");
  int major = version == NULL ? 1 : atoi(version);
  if (major < 1 || major > 3) {
    return bny_topo_fail(h->error, bny_topo_xml_line(h->xml, 0),
                         "hwloc XML of version %.20s: 1 to 3 are known; lstopo --export-xml-flags v2 writes version 2",
                         version);
  }
  h->types_are_bits = major >= 3;
  mark_wanted(h);
  for (int32_t e = 1; e < bny_topo_xml_count(h->xml); e++)
    if (!take_object(h, e)) return false;
  if (h->topo->nnodes == 0) return bny_topo_fail(h->error, bny_topo_xml_line(h->xml, 0), "holds no Machine");
  return buses_once(h) && bny_topo_hwloc_nvlinks(h) && bny_topo_hwloc_join_numas(h) && bny_topo_hwloc_number_gpus(h);
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  bny_topo_xml *xml = bny_topo_xml_parse(text, bytes, error);
  if (xml == NULL) return false;
  size_t count = (size_t)bny_topo_xml_count(xml);
  bny_topo_hwloc h = {.xml = xml, .topo = topo, .error = error, .at = malloc(count * sizeof *h.at)};
  for (size_t e = 0; h.at != NULL && e < count; e++) h.at[e] = (bny_topo_hwloc_place){-1, -1, -1, false, false};
  bool taken = h.at != NULL && read_topology(&h);
  free(h.at);
  bny_topo_xml_free(xml);
  return taken;
}

static bool recognises(const char *text, size_t bytes) { return bny_topo_xml_root_is(text, bytes, "topology"); }

const bny_topo_importer bny_topo_import_hwloc = {.name = "hwloc-xml", .recognises = recognises, .parse = parse};
