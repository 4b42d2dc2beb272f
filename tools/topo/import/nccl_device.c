/* SPDX-License-Identifier: Apache-2.0
 * Imports the devices in NCCL's XML: <pci>, <gpu>, <nic> and <net>. Also has the helpers for all elements. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/import/nccl.h"
#include "topo/model/speed.h"

enum { MOST_LANES = 64, MOST_PARTITIONS = 64 };
static const double most_megabits_per_s = 8e9;

bool bny_topo_nccl_fail(const bny_topo_nccl *r, int32_t element, const char *what) {
  return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, element), "<%.40s>: %s", bny_topo_xml_name(r->xml, element),
                       what);
}

const char *bny_topo_nccl_text(const bny_topo_nccl *r, int32_t element, const char *name) {
  const char *value = bny_topo_xml_attribute(r->xml, element, name);
  return value == NULL || *value == '\0' ? NULL : value;
}

bool bny_topo_nccl_number(const bny_topo_nccl *r, int32_t element, const char *name, int64_t least, int64_t most,
                          int64_t *value) {
  return bny_topo_xml_integer(r->xml, element, name, least, most, value, r->error);
}

bool bny_topo_nccl_add(bny_topo_nccl *r, int32_t element, const bny_topo_node *node) {
  return (r->node_of[element] = bny_topo_add_node(r->topo, node)) >= 0;
}

/* ---- <pci> ------------------------------------------------------------------------------------------------------- */

/* Missing values default to 16 lanes of generation 3. Without a generation the speed is assumed. A file that says it
 * without a width still shows a link that is slower than its siblings. */
static bool join_upwards(bny_topo_nccl *r, int32_t pci) {
  const char *speed = bny_topo_nccl_text(r, pci, "link_speed");
  int generation = speed == NULL ? 0 : bny_topo_speed_pci_generation(speed);
  int64_t lanes = 0;
  if (generation < 0) {
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, pci),
                         "<pci link_speed=\"%.40s\">: no PCI link has that speed", speed);
  }
  if (!bny_topo_nccl_number(r, pci, "link_width", 0, MOST_LANES, &lanes)) return false;
  int32_t node = r->node_of[pci];
  double gbytes_per_s = bny_topo_speed_pci(generation == 0 ? 3 : generation, lanes == 0 ? 16 : (int)lanes);
  return bny_topo_join(r->topo, BNY_TOPO_LINK_PCI, node, r->topo->nodes[node].parent, (int32_t)lanes, gbytes_per_s,
                       generation == 0 ? BNY_TOPO_ASSUMED : BNY_TOPO_FILE) >= 0;
}

static bool class_starts(const char *class, const char *prefix) {
  return class != NULL && strncmp(class, prefix, strlen(prefix)) == 0;
}

/* Names the vendor of a PCI number ("0x10de" is NVIDIA), or returns an unknown number. */
static const char *vendor_name(const char *vendor, bool amd, bool nvidia) {
  const char *name = vendor == NULL ? NULL : bny_topo_vendor_name(strtol(vendor, NULL, 16));
  return name != NULL ? name : vendor != NULL ? vendor : amd ? "AMD" : nvidia ? "NVIDIA" : NULL;
}

static bny_topo_kind kind_of(const bny_topo_nccl *r, int32_t pci) {
  const char *class = bny_topo_nccl_text(r, pci, "class");
  if (bny_topo_xml_child(r->xml, pci, "gpu") >= 0) return BNY_TOPO_GPU;
  if (bny_topo_xml_child(r->xml, pci, "nic") >= 0) return BNY_TOPO_NIC;
  if (class_starts(class, "0x0680")) return BNY_TOPO_SWITCH;
  if (bny_topo_xml_child(r->xml, pci, "pci") >= 0) return BNY_TOPO_PCI;
  const char *vendor = vendor_name(bny_topo_nccl_text(r, pci, "vendor"), false, false);
  bool makes_gpus =
      vendor == NULL || strcmp(vendor, "NVIDIA") == 0 || strcmp(vendor, "AMD") == 0 || strcmp(vendor, "Intel") == 0;
  /* A display of another vendor belongs to a management controller. */
  if ((class_starts(class, "0x03") && makes_gpus) || class_starts(class, "0x12")) return BNY_TOPO_GPU;
  return class_starts(class, "0x02") ? BNY_TOPO_NIC : BNY_TOPO_PCI;
}

static unsigned hex_of(const bny_topo_nccl *r, int32_t pci, const char *name) {
  const char *text = bny_topo_nccl_text(r, pci, name);
  return text == NULL ? 0 : (unsigned)strtoul(text, NULL, 16);
}

/* Returns the generation of a Broadcom switch that can be at this level (0: upper, 1: lower) of a two-level switch; 0
 * for other devices. The ids are those of NCCL (getBcmGen). They include the subsystem's vendor, and generation 4 has
 * the same ids at both levels. */
static int broadcom_generation(const bny_topo_nccl *r, int32_t pci, unsigned level) {
  if (!bny_topo_xml_is(r->xml, pci, "pci") || hex_of(r, pci, "vendor") != 0x1000 ||
      hex_of(r, pci, "subsystem_vendor") != 0x1000)
    return 0;
  unsigned device = hex_of(r, pci, "device"), subsystem = hex_of(r, pci, "subsystem_device") & 0xf000;
  if (device == 0xc010 && subsystem == 0xa000) return 4;
  return device == 0xc030 && subsystem == level << 12 && bny_topo_nccl_text(r, pci, "subsystem_device") != NULL ? 5 : 0;
}

/* Such a switch appears as a bridge with further bridges of its generation below, but is one switch of two levels. */
static bool part_of_parent(const bny_topo_nccl *r, int32_t pci) {
  int generation = broadcom_generation(r, pci, 1);
  int32_t parent = bny_topo_xml_parent(r->xml, pci);
  return generation > 0 && broadcom_generation(r, parent, 0) == generation && !part_of_parent(r, parent);
}

/* Parses "906" and "gfx942". The last character is a hexadecimal digit, so gfx90a counts as 910. */
static int32_t gfx_number(const char *gcn) {
  const char *digits = strncmp(gcn, "gfx", 3) == 0 ? gcn + 3 : gcn;
  size_t length = strcspn(digits, ":");
  if (length < 3 || length > 5 || strspn(digits, "0123456789abcdef") < length) return -1;
  int32_t number = 0;
  for (size_t i = 0; i < length; i++)
    number = number * 10 + (digits[i] <= '9' ? digits[i] - '0' : digits[i] - 'a' + 10);
  return number;
}

/* Fills in the data of a <gpu>; `gpu` is -1 if there is no such element. node->name points to `name`. */
static bool describe_gpu(bny_topo_nccl *r, int32_t pci, int32_t gpu, bny_topo_node *node, char name[48]) {
  int64_t number = -1, compute = -1;
  if (gpu >= 0) {
    const char *gcn = bny_topo_nccl_text(r, gpu, "gcn");
    if (!bny_topo_nccl_number(r, gpu, "dev", -1, 65535, &number) ||
        !bny_topo_nccl_number(r, gpu, "sm", -1, 65535, &compute))
      return false;
    if (gcn != NULL) compute = gfx_number(gcn);
    node->compute = (int32_t)compute;
    node->vendor = vendor_name(bny_topo_nccl_text(r, pci, "vendor"), gcn != NULL, gcn == NULL);
  } else if (!r->has_gpus) {
    number = r->numbered_gpus++;
  }
  if (number >= 0)
    snprintf(name, 48, "GPU%d", (int)number);
  else
    snprintf(name, 48, "GPU@%s", node->bus_id == NULL ? "?" : node->bus_id);
  node->index = (int32_t)number;
  return true;
}

/* Returns whether this is an interface of a tunnel, bridge or container, which is not a port of a NIC. */
static bool is_virtual(const char *name) {
  static const char *const prefixes[] = {"tun",   "tap",     "br-",  "cali",   "veth",  "docker", "virbr",  "vnet",
                                         "vxlan", "flannel", "cni",  "wg",     "dummy", "lxc",    "lxd",    "cilium",
                                         "ovs",   "genev",   "kube", "podman", "sit",   "gre",    "ip6tnl", "nerdctl"};
  for (size_t i = 0; name != NULL && i < sizeof prefixes / sizeof prefixes[0]; i++)
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
  return name != NULL && strcmp(name, "lo") == 0;
}

/* An element with net="0" is not a network device of NCCL. It represents in-network collectives (coll), GPU-initiated
 * traffic (gin, rma), or a port that is merged into another <net>. */
static bool is_port(const bny_topo_nccl *r, int32_t net) {
  const char *sends = bny_topo_nccl_text(r, net, "net");
  return sends == NULL || strtol(sends, NULL, 0) != 0;
}

/* Returns the first <net> of a NIC; if `ports`, the first that is a port. -1 if there is none. */
static int32_t first_net(const bny_topo_nccl *r, int32_t nic, bool ports) {
  int32_t e = bny_topo_xml_first(r->xml, nic);
  while (e >= 0 && !(bny_topo_xml_is(r->xml, e, "net") && !is_virtual(bny_topo_nccl_text(r, e, "name")) &&
                     (!ports || is_port(r, e))))
    e = bny_topo_xml_next(r->xml, e);
  return e;
}

/* Names a NIC by its first port, otherwise by bus id. If the file names no port, NICs are numbered. */
static void describe_nic(bny_topo_nccl *r, int32_t nic, bny_topo_node *node, char name[48]) {
  int32_t net = nic < 0 ? -1 : first_net(r, nic, true);
  if (net < 0 && nic >= 0) net = first_net(r, nic, false);
  const char *port = net < 0 ? NULL : bny_topo_nccl_text(r, net, "name");
  if (port != NULL) {
    snprintf(name, 48, "%s", port);
  } else if (!r->has_nets) {
    node->index = r->numbered_nics++;
    snprintf(name, 48, "NIC%d", node->index);
  } else {
    snprintf(name, 48, "NIC@%s", node->bus_id == NULL ? "?" : node->bus_id);
  }
}

/* Returns the GPU that a <pci> is a partition of; -1: none. ROCm lists partitions as functions of one gfx9 accelerator.
 * The second function of a display adapter is not a partition. */
static int32_t whole_of(const bny_topo_nccl *r, int32_t pci, int32_t parent, const char *bus_id, int32_t compute) {
  enum { GFX9 = 900 };
  bool accelerator = hex_of(r, pci, "vendor") == 0x1002 && compute >= GFX9;
  for (int32_t e = bny_topo_xml_first(r->xml, parent); accelerator && e >= 0 && e < pci;
       e = bny_topo_xml_next(r->xml, e)) {
    const bny_topo_node *node = r->node_of[e] < 0 ? NULL : &r->topo->nodes[r->node_of[e]];
    if (node != NULL && node->kind == BNY_TOPO_GPU && node->bus_id != NULL &&
        strncmp(node->bus_id, bus_id, strlen(bus_id) - 1) == 0)
      return bny_topo_device(r->topo, r->node_of[e]);
  }
  return -1;
}

bool bny_topo_nccl_pci(bny_topo_nccl *r, int32_t pci, int32_t parent) {
  char bus_id[BNY_TOPO_BUS_BYTES], name[48];
  const char *bus = bny_topo_nccl_text(r, pci, "busid");
  if (bus == NULL) return bny_topo_nccl_fail(r, pci, "has no busid");
  if (!bny_topo_bus_normalise(bus, bus_id)) {
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, pci),
                         "<pci busid=\"%.40s\">: not a bus id such as 0000:1b:00.0", bus);
  }
  int32_t within = r->node_of[parent], whole = -1;
  bny_topo_node node = bny_topo_node_of(kind_of(r, pci), within, -1, bus_id, BNY_TOPO_FILE);
  node.model = bny_topo_nccl_text(r, pci, "device");
  node.vendor = vendor_name(bny_topo_nccl_text(r, pci, "vendor"), false, false), node.bus_id = bus_id;
  int32_t host = bny_topo_ancestor(r->topo, node.parent, BNY_TOPO_HOST);
  if (node.kind == BNY_TOPO_PCI && part_of_parent(r, pci)) {
    r->node_of[pci] = node.parent;
    return true;
  }
  if (node.kind == BNY_TOPO_GPU) {
    if (!describe_gpu(r, pci, bny_topo_xml_child(r->xml, pci, "gpu"), &node, name)) return false;
    node.name = name;
    whole = whole_of(r, pci, parent, bus_id, node.compute);
    node.parent = whole < 0 ? within : whole;
  } else if (node.kind == BNY_TOPO_NIC) {
    describe_nic(r, bny_topo_xml_child(r->xml, pci, "nic"), &node, name);
    node.name = name;
  }
  static const char *const files[] = {"class", "vendor", "device"};
  char attributes[BNY_TOPO_ATTRIBUTES_BYTES] = "";
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
    bny_topo_attribute_put(attributes, files[i], bny_topo_nccl_text(r, pci, files[i]));
  node.attributes = attributes[0] == '\0' ? NULL : attributes;
  if (!bny_topo_nccl_add(r, pci, &node) || (whole < 0 && !join_upwards(r, pci))) return false;
  const bny_topo_node *added = &r->topo->nodes[r->node_of[pci]];
  bny_topo_names_add(&r->buses, host, added->bus_id, pci);
  if (added->kind == BNY_TOPO_PCI && bny_topo_nccl_text(r, pci, "class") == NULL &&
      bny_topo_xml_child(r->xml, pci, "pci") < 0 &&
      !bny_topo_add_note(r->topo, r->node_of[pci], "a PCI device without a class, so what it is is not known"))
    return false;
  if (added->kind == BNY_TOPO_GPU) bny_topo_names_add(&r->gpus, host, added->name, pci);
  return true;
}

/* ---- <gpu>, <nic>, <net> ----------------------------------------------------------------------------------------- */

bool bny_topo_nccl_gpu(bny_topo_nccl *r, int32_t gpu, int32_t parent) {
  if (!bny_topo_xml_is(r->xml, parent, "pci")) return bny_topo_nccl_fail(r, gpu, "is outside of a <pci>");
  int32_t first = bny_topo_xml_child(r->xml, parent, "gpu"), whole = r->node_of[parent], part = 0;
  if (first == gpu) {
    r->node_of[gpu] = whole;
    return true;
  }
  for (int32_t e = first; e != gpu; e = bny_topo_xml_next(r->xml, e)) part += bny_topo_xml_is(r->xml, e, "gpu");
  if (part > MOST_PARTITIONS) return bny_topo_nccl_fail(r, gpu, "more than 64 of one <pci>");
  char name[48];
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_GPU, whole, 0, name, BNY_TOPO_FILE);
  if (!describe_gpu(r, parent, gpu, &node, name)) return false;
  /* Each partition may have its own number, or all may share one. */
  if (node.index < 0 || node.index == r->topo->nodes[whole].index) {
    snprintf(name, sizeof name, "%.30s.%d", r->topo->nodes[whole].name, (int)part);
    node.index = r->topo->nodes[whole].index;
  }
  node.model = r->topo->nodes[whole].model;
  if (!bny_topo_nccl_add(r, gpu, &node)) return false;
  const bny_topo_node *added = &r->topo->nodes[r->node_of[gpu]];
  bny_topo_names_add(&r->gpus, bny_topo_ancestor(r->topo, whole, BNY_TOPO_HOST), added->name, gpu);
  return true;
}

/* Notes a NIC if every <net> of it has net="0". */
static bool note_portless(bny_topo_nccl *r, int32_t nic, int32_t node) {
  return first_net(r, nic, false) < 0 || first_net(r, nic, true) >= 0 ||
         bny_topo_add_note(r->topo, node, "each <net> of it says net=\"0\", so it has no port that NCCL sends through");
}

bool bny_topo_nccl_nic(bny_topo_nccl *r, int32_t nic, int32_t parent) {
  char name[48];
  bool in_pci = bny_topo_xml_is(r->xml, parent, "pci");
  if (!in_pci && !bny_topo_xml_is(r->xml, parent, "cpu"))
    return bny_topo_nccl_fail(r, nic, "is outside of a <pci> and a <cpu>");
  if (!in_pci && first_net(r, nic, false) < 0 && bny_topo_xml_child(r->xml, nic, "net") >= 0)
    return true; /* only virtual interfaces: without a node, the content is skipped */
  if (in_pci && r->topo->nodes[r->node_of[parent]].kind == BNY_TOPO_NIC) {
    r->node_of[nic] = r->node_of[parent];
    return note_portless(r, nic, r->node_of[nic]);
  }
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_NIC, r->node_of[parent], -1, name, BNY_TOPO_FILE);
  describe_nic(r, nic, &node, name);
  return bny_topo_nccl_add(r, nic, &node) && note_portless(r, nic, r->node_of[nic]);
}

/* speed is in Mb/s; 0 and -1 mean unknown. */
bool bny_topo_nccl_net(bny_topo_nccl *r, int32_t net, int32_t parent) {
  if (!bny_topo_xml_is(r->xml, parent, "nic")) return bny_topo_nccl_fail(r, net, "is outside of a <nic>");
  int64_t number = -1, port = -1;
  if (!bny_topo_nccl_number(r, net, "dev", -1, 1 << 20, &number) ||
      !bny_topo_nccl_number(r, net, "port", -1, 1 << 20, &port))
    return false;
  const char *speed = bny_topo_nccl_text(r, net, "speed"), *latency = bny_topo_nccl_text(r, net, "latency"),
             *name = bny_topo_nccl_text(r, net, "name");
  if (is_virtual(name) || !is_port(r, net)) return true;
  char *end = "";
  double megabits = speed == NULL ? 0 : strtod(speed, &end);
  if (*end != '\0' || !(megabits == -1 || (megabits >= 0 && megabits <= most_megabits_per_s)))
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, net), "<net speed=\"%.40s\">: must be 0 to %g Mb/s, or -1",
                         speed, most_megabits_per_s);
  double microseconds = latency == NULL ? 0 : strtod(latency, &end);
  if (*end != '\0' || !(microseconds >= 0 && microseconds <= 1e6))
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, net), "<net latency=\"%.40s\">: must be 0 to 1e6 us",
                         latency);
  int32_t nic = r->node_of[parent];
  char unnamed[32];
  snprintf(unnamed, sizeof unnamed, "port%d", (int)port);
  bny_topo_node node =
      bny_topo_node_of(BNY_TOPO_PORT, nic, (int32_t)port, name == NULL ? unnamed : name, BNY_TOPO_FILE);
  if (!bny_topo_nccl_add(r, net, &node)) return false;
  if (number >= 0 && r->topo->nodes[nic].index < 0) r->topo->nodes[nic].index = (int32_t)number;
  int32_t link = bny_topo_join(r->topo, BNY_TOPO_LINK_NET, r->node_of[net], nic, 1,
                               megabits > 0 ? bny_topo_speed_net(megabits) : 0, BNY_TOPO_FILE);
  if (link >= 0) r->topo->links[link].latency_us = microseconds;
  return link >= 0;
}

bool bny_topo_nccl_note_virtual(bny_topo_nccl *r) {
  int32_t first = -1, count = 0;
  for (int32_t e = 1; e < bny_topo_xml_count(r->xml); e++) {
    if (bny_topo_xml_is(r->xml, e, "net") && is_virtual(bny_topo_nccl_text(r, e, "name"))) {
      first = first < 0 ? e : first;
      count++;
    }
  }
  if (count == 0) return true;
  char text[256];
  snprintf(
      text, sizeof text,
      "%d network interfaces of the file are virtual, %.40s first: they lead nowhere of their own and are no NICs; "
      "NCCL_SOCKET_IFNAME would leave them out",
      (int)count, bny_topo_nccl_text(r, first, "name"));
  return bny_topo_add_sign(r->topo, BNY_TOPO_NOTE_VIRTUAL, -1, text);
}
