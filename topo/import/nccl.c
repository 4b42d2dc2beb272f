/* SPDX-License-Identifier: Apache-2.0
 *
 * Imports NCCL's topology XML, as NCCL_TOPO_DUMP_FILE writes it and NCCL_TOPO_FILE reads it. RCCL's works too (xgmi for
 * nvlink, gcn for sm). <cpu> is a NUMA node. <pci> is a GPU or NIC, by its content or class, or a bridge. A second
 * <gpu> in a <pci> is another partition of the device. <nic> is the NIC of the surrounding <pci>, or a virtual
 * machine's own directly below <cpu>. <net> is a port of it, unless its name is that of a virtual interface. Unknown
 * elements are skipped with their content, and attributes that the model has no field for become attributes of the
 * node.
 *
 * banyan's own export adds attributes that NCCL ignores, so that the same model comes back: `host`, `package` and
 * `place` of a <cpu>, `host_bridge` of what stands directly below it, and `name` of a <gpu> or <nic> that has
 * another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/model/guid.h"
#include "topo/import/nccl_link.h"
#include "topo/model/model.h"
#include "topo/model/names.h"
#include "topo/model/speed.h"
#include "topo/import/xml.h"

enum { MOST_CPUS = 16384, MOST_HOSTS = 1024, SYS_CPUS = 64, MOST_LANES = 64, MOST_PARTITIONS = 64, MOST_BRIDGES = 64 };
static const double most_megabits_per_s = 8e9;

const char *const bny_topo_nccl_cpu_attributes[] = {"affinity", NULL};
const char *const bny_topo_nccl_pci_attributes[] = {"class", "vendor", "device", "subsystem_vendor", "subsystem_device",
                                                    NULL};
const char *const bny_topo_nccl_gpu_attributes[] = {"gdr", "mlopart", "arch", NULL};
const char *const bny_topo_nccl_net_attributes[] = {"maxconn", "gdr",  "coll",  "net", "gin",
                                                    "rma",     "rail", "plane", NULL};

typedef struct reading {
  const bny_topo_xml *xml;
  bny_topo *topo;
  bny_topo_error *error;
  int32_t *node_of;                         /* by element; -1: no node, its content is skipped */
  bny_topo_names hosts, buses, numas, gpus; /* hosts: few, in order of first use */
  int32_t ncpus;
  bool has_gpus, has_nets; /* false in an input file, which NCCL completes */
  int32_t numbered_gpus, numbered_nics;
  int32_t bridges[MOST_BRIDGES], nbridges; /* host bridges of the current <cpu> */
} reading;

static bool fail_at(const reading *r, int32_t element, const char *what) {
  return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, element), "<%.40s>: %s", bny_topo_xml_name(r->xml, element),
                       what);
}

static const char *text_of(const reading *r, int32_t element, const char *name) {
  const char *value = bny_topo_xml_attribute(r->xml, element, name);
  return value == NULL || *value == '\0' ? NULL : value;
}

static bool number_of(const reading *r, int32_t element, const char *name, int64_t least, int64_t most,
                      int64_t *value) {
  return bny_topo_xml_integer(r->xml, element, name, least, most, value, r->error);
}

/* `attributes`: names of those of the element that the node keeps as they are, up to NULL. */
static bool add_node(reading *r, int32_t element, const bny_topo_node *node, const char *const *attributes) {
  char kept[BNY_TOPO_ATTRIBUTES_BYTES] = "";
  bny_topo_node whole = *node;
  for (; *attributes != NULL; attributes++) {
    bny_topo_attribute_put(kept, *attributes, text_of(r, element, *attributes));
  }
  if (bny_topo_xml_is(r->xml, element, "pci")) {
    int32_t gpu = bny_topo_xml_child(r->xml, element, "gpu");
    for (attributes = bny_topo_nccl_gpu_attributes; gpu >= 0 && *attributes != NULL; attributes++) {
      bny_topo_attribute_put(kept, *attributes, text_of(r, gpu, *attributes));
    }
  }
  whole.attributes = kept[0] == '\0' ? NULL : kept;
  r->node_of[element] = bny_topo_add_node(r->topo, &whole);
  return r->node_of[element] >= 0 || fail_at(r, element, "out of memory");
}

static bool add_link(reading *r, int32_t element, const bny_topo_link *link) {
  return bny_topo_add_link(r->topo, link) >= 0 || fail_at(r, element, "out of memory");
}

/* ---- <cpu> ------------------------------------------------------------------------------------------------------- */

/* Finds or adds the host of a host_hash. A dump of one host has no hash, or one. */
static bool host_of(reading *r, int32_t cpu, int32_t *host) {
  const char *hash = text_of(r, cpu, "host_hash");
  for (int32_t h = 0; h < r->hosts.count; h++) {
    if (strcmp(r->hosts.entries[h].key, hash == NULL ? "" : hash) == 0) {
      *host = r->hosts.entries[h].value;
      return true;
    }
  }
  if (r->hosts.count == MOST_HOSTS) {
    return fail_at(r, cpu, "more than 1024 hosts");
  }
  char name[32];
  snprintf(name, sizeof name, "host%d", r->hosts.count);
  const char *named = text_of(r, cpu, "host");
  bny_topo_node node = {.kind = BNY_TOPO_HOST,
                        .parent = -1,
                        .index = r->hosts.count,
                        .name = named == NULL ? name : (char *)named,
                        .guid = (char *)hash,
                        .compute = -1,
                        .source = BNY_TOPO_FILE};
  *host = bny_topo_add_node(r->topo, &node);
  bny_topo_names_add(&r->hosts, 0, hash == NULL ? "" : hash, *host);
  return (*host >= 0 && !r->hosts.out_of_memory) || fail_at(r, cpu, "out of memory");
}

static bool family_of(const reading *r, int32_t cpu, int64_t *family, int64_t *model) {
  *family = *model = -1;
  return number_of(r, cpu, "familyid", -1, 65535, family) && number_of(r, cpu, "modelid", -1, 65535, model);
}

/* Finds or adds a package; its NUMA nodes follow one another in a file. */
static bool package_of(reading *r, int32_t cpu, int32_t host, int32_t *package) {
  const char *name = text_of(r, cpu, "package");
  for (*package = r->topo->nnodes - 1; *package > host; --*package) {
    const bny_topo_node *node = &r->topo->nodes[*package];
    if (node->kind == BNY_TOPO_PACKAGE && node->parent == host) {
      break;
    }
  }
  if (*package > host && strcmp(r->topo->nodes[*package].name, name) == 0) {
    return true;
  }
  bny_topo_node node = {.kind = BNY_TOPO_PACKAGE,
                        .parent = host,
                        .index = -1,
                        .name = (char *)name,
                        .vendor = (char *)text_of(r, cpu, "vendor"),
                        .compute = -1,
                        .source = BNY_TOPO_FILE};
  *package = bny_topo_add_node(r->topo, &node);
  return *package >= 0 || fail_at(r, cpu, "out of memory");
}

/* Returns the node below which a device of this <cpu> stands: its host bridge if that is known. */
static bool bridge_of(reading *r, int32_t device, int32_t parent, int32_t *bridge) {
  const char *name = bny_topo_xml_is(r->xml, parent, "cpu") ? text_of(r, device, "host_bridge") : NULL;
  *bridge = r->node_of[parent];
  if (name == NULL) {
    return true;
  }
  for (int32_t b = 0; b < r->nbridges; b++) {
    if (strcmp(r->topo->nodes[r->bridges[b]].name, name) == 0) {
      *bridge = r->bridges[b];
      return true;
    }
  }
  if (r->nbridges == MOST_BRIDGES) {
    return fail_at(r, device, "more than 64 host bridges of one <cpu>");
  }
  bny_topo_node node = {.kind = BNY_TOPO_PCI,
                        .parent = *bridge,
                        .index = -1,
                        .name = (char *)name,
                        .compute = -1,
                        .host_bridge = true,
                        .source = BNY_TOPO_FILE};
  *bridge = r->bridges[r->nbridges++] = bny_topo_add_node(r->topo, &node);
  return *bridge >= 0 || fail_at(r, device, "out of memory");
}

static bool take_cpu(reading *r, int32_t cpu) {
  int64_t numa = -1, family, model;
  int32_t host = -1;
  if (++r->ncpus > MOST_CPUS) {
    return fail_at(r, cpu, "more than 16384 of them");
  }
  if (!number_of(r, cpu, "numaid", -1, 65535, &numa) || !family_of(r, cpu, &family, &model) ||
      !host_of(r, cpu, &host)) {
    return false;
  }
  const char *arch = text_of(r, cpu, "arch"), *place = text_of(r, cpu, "place");
  r->nbridges = 0;
  if (text_of(r, cpu, "package") != NULL && !package_of(r, cpu, host, &host)) {
    return false;
  }
  if (place != NULL && (strcmp(place, "host") == 0 || strcmp(place, "package") == 0)) {
    r->node_of[cpu] = host; /* its devices stand beside NUMA nodes, or without one */
    return true;
  }
  char name[32], about[64] = "";
  if (numa < 0) {
    snprintf(name, sizeof name, "cpu%d", r->ncpus - 1);
  } else {
    snprintf(name, sizeof name, "node%d", (int)numa);
  }
  if (family >= 0 && model >= 0) {
    snprintf(about, sizeof about, "%.20s family %d model %d", arch == NULL ? "?" : arch, (int)family, (int)model);
  } else if (arch != NULL) {
    snprintf(about, sizeof about, "%.20s", arch);
  }
  bny_topo_node node = {.kind = BNY_TOPO_NUMA,
                        .parent = host,
                        .index = (int32_t)numa,
                        .name = name,
                        .model = about[0] == '\0' ? NULL : about,
                        .vendor = (char *)text_of(r, cpu, "vendor"),
                        .compute = -1,
                        .source = BNY_TOPO_FILE};
  if (!add_node(r, cpu, &node, bny_topo_nccl_cpu_attributes)) {
    return false;
  }
  bny_topo_names_add(&r->numas, bny_topo_ancestor(r->topo, host, BNY_TOPO_HOST), r->topo->nodes[r->node_of[cpu]].name,
                     cpu);
  return true;
}

/* Links every pair of NUMA nodes at the speed of the slower, as NCCL assumes too. */
static bool join_cpus(reading *r) {
  int32_t *cpus = malloc(((size_t)r->ncpus + 1) * sizeof *cpus), count = 0;
  if (cpus == NULL) {
    return bny_topo_fail(r->error, 0, "out of memory");
  }
  for (int32_t e = 0; e < bny_topo_xml_count(r->xml); e++) {
    if (r->node_of[e] >= 0 && r->topo->nodes[r->node_of[e]].kind == BNY_TOPO_NUMA) {
      cpus[count++] = e;
    }
  }
  bool joined = true;
  for (int32_t b = 0; joined && b < count; b++) {
    for (int32_t a = b < SYS_CPUS ? 0 : b - SYS_CPUS; joined && a < b; a++) {
      int32_t from = r->node_of[cpus[a]], to = r->node_of[cpus[b]];
      if (bny_topo_ancestor(r->topo, from, BNY_TOPO_HOST) != bny_topo_ancestor(r->topo, to, BNY_TOPO_HOST)) {
        continue;
      }
      double speeds[2];
      for (int i = 0; i < 2; i++) {
        int32_t cpu = cpus[i == 0 ? a : b];
        int64_t family = -1, model = -1;
        joined = joined && family_of(r, cpu, &family, &model);
        speeds[i] =
            bny_topo_speed_cpu(text_of(r, cpu, "arch"), text_of(r, cpu, "vendor"), (int32_t)family, (int32_t)model);
      }
      bny_topo_link link = {.kind = BNY_TOPO_LINK_SYS,
                            .from = from,
                            .to = to,
                            .count = 1,
                            .source = BNY_TOPO_ASSUMED,
                            .gbytes_per_s = speeds[0] < speeds[1] ? speeds[0] : speeds[1]};
      joined = joined && add_link(r, cpus[b], &link);
    }
  }
  free(cpus);
  return joined;
}

/* ---- <pci> ------------------------------------------------------------------------------------------------------- */

/* Missing values default to 16 lanes of generation 3, with source "assumed". */
static bool join_upwards(reading *r, int32_t pci) {
  const char *speed = text_of(r, pci, "link_speed");
  int generation = speed == NULL ? 0 : bny_topo_speed_pci_generation(speed);
  int64_t lanes = 0;
  if (generation < 0) {
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, pci),
                         "<pci link_speed=\"%.40s\">: no PCI link has that speed", speed);
  }
  if (!number_of(r, pci, "link_width", 0, MOST_LANES, &lanes)) {
    return false;
  }
  int32_t node = r->node_of[pci];
  bny_topo_link link = {.kind = BNY_TOPO_LINK_PCI,
                        .from = node,
                        .to = r->topo->nodes[node].parent,
                        .count = (int32_t)lanes,
                        .gbytes_per_s =
                            bny_topo_speed_pci(generation == 0 ? 3 : generation, lanes == 0 ? 16 : (int)lanes),
                        .source = generation == 0 || lanes == 0 ? BNY_TOPO_ASSUMED : BNY_TOPO_FILE};
  return add_link(r, pci, &link);
}

static bool class_starts(const char *class, const char *prefix) {
  return class != NULL && strncmp(class, prefix, strlen(prefix)) == 0;
}

static bny_topo_kind kind_of(const reading *r, int32_t pci) {
  const char *class = text_of(r, pci, "class");
  if (bny_topo_xml_child(r->xml, pci, "gpu") >= 0) {
    return BNY_TOPO_GPU;
  }
  if (bny_topo_xml_child(r->xml, pci, "nic") >= 0) {
    return BNY_TOPO_NIC;
  }
  if (class_starts(class, "0x0680")) {
    return BNY_TOPO_SWITCH;
  }
  if (bny_topo_xml_child(r->xml, pci, "pci") >= 0) {
    return BNY_TOPO_PCI;
  }
  if (class_starts(class, "0x03") || class_starts(class, "0x12")) {
    return BNY_TOPO_GPU;
  }
  return class_starts(class, "0x02") ? BNY_TOPO_NIC : BNY_TOPO_PCI;
}

/* A Broadcom switch of generation 4 or 5 appears as one bridge with bridges of the same make below, but is one
 * switch. */
static bool part_of_parent(const reading *r, int32_t pci, int32_t parent) {
  static const char *const devices[] = {"0xc010", "0xc030"};
  const char *vendor = text_of(r, pci, "vendor"), *device = text_of(r, pci, "device");
  const char *parent_vendor = text_of(r, parent, "vendor"), *parent_device = text_of(r, parent, "device");
  if (vendor == NULL || device == NULL || parent_vendor == NULL || parent_device == NULL ||
      strcmp(vendor, "0x1000") != 0 || strcmp(parent_vendor, "0x1000") != 0 || strcmp(device, parent_device) != 0) {
    return false;
  }
  return strcmp(device, devices[0]) == 0 || strcmp(device, devices[1]) == 0;
}

/* Names the vendor of a PCI number ("0x10de" is NVIDIA), or returns an unknown number. */
static const char *vendor_name(const char *vendor, bool amd, bool nvidia) {
  static const struct {
    const char *number, *name;
  } known[] = {{"0x10de", "NVIDIA"}, {"0x1002", "AMD"},      {"0x1022", "AMD"},      {"0x15b3", "Mellanox"},
               {"0x8086", "Intel"},  {"0x1000", "Broadcom"}, {"0x14e4", "Broadcom"}, {"0x1d0f", "Amazon"},
               {"0x17db", "HPE"},    {"0x10b5", "PLX"}};
  for (size_t i = 0; vendor != NULL && i < sizeof known / sizeof known[0]; i++) {
    if (strcmp(vendor, known[i].number) == 0) {
      return known[i].name;
    }
  }
  return vendor != NULL ? vendor : amd ? "AMD" : nvidia ? "NVIDIA" : NULL;
}

/* Parses "906" and "gfx942". gfx90a counts as 910: the last character is a hexadecimal digit worth up to 15. */
static int32_t gfx_number(const char *gcn) {
  const char *digits = strncmp(gcn, "gfx", 3) == 0 ? gcn + 3 : gcn;
  size_t length = strcspn(digits, ":");
  if (length < 3 || length > 5 || strspn(digits, "0123456789abcdef") < length) {
    return -1;
  }
  int32_t number = 0;
  for (size_t i = 0; i < length; i++) {
    number = number * 10 + (digits[i] <= '9' ? digits[i] - '0' : digits[i] - 'a' + 10);
  }
  return number;
}

/* Fills in the data of a <gpu>; -1: it has no element. The caller keeps `name`. */
static bool describe_gpu(reading *r, int32_t pci, int32_t gpu, bny_topo_node *node, char name[48]) {
  int64_t number = -1, compute = -1;
  if (gpu >= 0) {
    const char *gcn = text_of(r, gpu, "gcn");
    if (!number_of(r, gpu, "dev", -1, 65535, &number) || !number_of(r, gpu, "sm", -1, 65535, &compute)) {
      return false;
    }
    if (gcn != NULL) {
      compute = gfx_number(gcn);
    }
    node->compute = (int32_t)compute;
    node->vendor = (char *)vendor_name(text_of(r, pci, "vendor"), gcn != NULL, gcn == NULL);
  } else if (!r->has_gpus) {
    number = r->numbered_gpus++;
  }
  const char *named = gpu < 0 ? NULL : text_of(r, gpu, "name");
  if (named != NULL) {
    snprintf(name, 48, "%s", named);
  } else if (number >= 0) {
    snprintf(name, 48, "GPU%d", (int)number);
  } else {
    snprintf(name, 48, "GPU@%s", node->bus_id == NULL ? "?" : node->bus_id);
  }
  node->index = (int32_t)number;
  return true;
}

/* Interfaces of tunnels, bridges and containers, which lead nowhere of their own. */
static bool is_virtual(const char *name) {
  static const char *const prefixes[] = {"tun",   "tap",     "br-",  "cali",   "veth",  "docker", "virbr",  "vnet",
                                         "vxlan", "flannel", "cni",  "wg",     "dummy", "lxc",    "lxd",    "cilium",
                                         "ovs",   "genev",   "kube", "podman", "sit",   "gre",    "ip6tnl", "nerdctl"};
  for (size_t i = 0; name != NULL && i < sizeof prefixes / sizeof prefixes[0]; i++) {
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
      return true;
    }
  }
  return name != NULL && strcmp(name, "lo") == 0;
}

/* Returns the first <net> that stands for a port, behind `after` unless that is -1. */
static int32_t real_net(const reading *r, int32_t nic, int32_t after) {
  int32_t e = after < 0 ? bny_topo_xml_first(r->xml, nic) : bny_topo_xml_next(r->xml, after);
  while (e >= 0 && !(bny_topo_xml_is(r->xml, e, "net") && !is_virtual(text_of(r, e, "name")))) {
    e = bny_topo_xml_next(r->xml, e);
  }
  return e;
}

/* Names a NIC by its first port, otherwise by bus id. If the file names no port, NICs are numbered. */
static void describe_nic(reading *r, int32_t nic, bny_topo_node *node, char name[48]) {
  int32_t net = nic < 0 ? -1 : real_net(r, nic, -1);
  const char *port = net < 0 ? NULL : text_of(r, net, "name"), *named = nic < 0 ? NULL : text_of(r, nic, "name");
  if (named != NULL) {
    snprintf(name, 48, "%s", named);
  } else if (port != NULL) {
    snprintf(name, 48, "%s", port);
  } else if (!r->has_nets) {
    node->index = r->numbered_nics++;
    snprintf(name, 48, "NIC%d", node->index);
  } else {
    snprintf(name, 48, "NIC@%s", node->bus_id == NULL ? "?" : node->bus_id);
  }
}

static bool take_pci(reading *r, int32_t pci, int32_t parent) {
  char bus_id[BNY_TOPO_BUS_BYTES], name[48];
  const char *bus = text_of(r, pci, "busid");
  if (bus == NULL) {
    return fail_at(r, pci, "has no busid");
  }
  if (!bny_topo_bus_normalise(bus, bus_id)) {
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, pci),
                         "<pci busid=\"%.40s\">: not a bus id such as 0000:1b:00.0", bus);
  }
  int32_t within;
  if (!bridge_of(r, pci, parent, &within)) {
    return false;
  }
  bny_topo_node node = {.kind = kind_of(r, pci),
                        .parent = within,
                        .index = -1,
                        .name = bus_id,
                        .model = (char *)text_of(r, pci, "device"),
                        .vendor = (char *)vendor_name(text_of(r, pci, "vendor"), false, false),
                        .bus_id = bus_id,
                        .compute = -1,
                        .source = BNY_TOPO_FILE};
  int32_t host = bny_topo_ancestor(r->topo, node.parent, BNY_TOPO_HOST);
  if (node.kind == BNY_TOPO_PCI && part_of_parent(r, pci, parent)) {
    r->node_of[pci] = node.parent;
    return true;
  }
  if (node.kind == BNY_TOPO_GPU) {
    if (!describe_gpu(r, pci, bny_topo_xml_child(r->xml, pci, "gpu"), &node, name)) {
      return false;
    }
    node.name = name;
  } else if (node.kind == BNY_TOPO_NIC) {
    describe_nic(r, bny_topo_xml_child(r->xml, pci, "nic"), &node, name);
    node.name = name;
  }
  if (!add_node(r, pci, &node, bny_topo_nccl_pci_attributes) || !join_upwards(r, pci)) {
    return false;
  }
  const bny_topo_node *added = &r->topo->nodes[r->node_of[pci]];
  bny_topo_names_add(&r->buses, host, added->bus_id, pci);
  if (added->kind == BNY_TOPO_GPU) {
    bny_topo_names_add(&r->gpus, host, added->name, pci);
  }
  return true;
}

/* ---- <gpu>, <nic>, <net> ----------------------------------------------------------------------------------------- */

static bool take_gpu(reading *r, int32_t gpu, int32_t parent) {
  if (!bny_topo_xml_is(r->xml, parent, "pci")) {
    return fail_at(r, gpu, "stands outside of a <pci>");
  }
  int32_t first = bny_topo_xml_child(r->xml, parent, "gpu"), whole = r->node_of[parent], part = 0;
  if (first == gpu) {
    r->node_of[gpu] = whole;
    return true;
  }
  for (int32_t e = first; e != gpu; e = bny_topo_xml_next(r->xml, e)) {
    part += bny_topo_xml_is(r->xml, e, "gpu");
  }
  if (part > MOST_PARTITIONS) {
    return fail_at(r, gpu, "more than 64 of one <pci>");
  }
  char name[48];
  bny_topo_node node = {.kind = BNY_TOPO_GPU, .parent = whole, .name = name, .compute = -1, .source = BNY_TOPO_FILE};
  if (!describe_gpu(r, parent, gpu, &node, name)) {
    return false;
  }
  /* Partitions may have numbers of their own, or share one. */
  if (text_of(r, gpu, "name") == NULL && (node.index < 0 || node.index == r->topo->nodes[whole].index)) {
    snprintf(name, sizeof name, "%.30s.%d", r->topo->nodes[whole].name, (int)part);
    node.index = r->topo->nodes[whole].index;
  }
  node.model = r->topo->nodes[whole].model;
  if (!add_node(r, gpu, &node, bny_topo_nccl_gpu_attributes)) {
    return false;
  }
  const bny_topo_node *added = &r->topo->nodes[r->node_of[gpu]];
  bny_topo_names_add(&r->gpus, bny_topo_ancestor(r->topo, whole, BNY_TOPO_HOST), added->name, gpu);
  return true;
}

static bool take_nic(reading *r, int32_t nic, int32_t parent) {
  char name[48];
  bool in_pci = bny_topo_xml_is(r->xml, parent, "pci");
  if (!in_pci && !bny_topo_xml_is(r->xml, parent, "cpu")) {
    return fail_at(r, nic, "stands outside of a <pci> and a <cpu>");
  }
  if (!in_pci && real_net(r, nic, -1) < 0 && bny_topo_xml_child(r->xml, nic, "net") >= 0) {
    return true; /* virtual interfaces alone; without a node its content is skipped */
  }
  if (in_pci && r->topo->nodes[r->node_of[parent]].kind == BNY_TOPO_NIC) {
    r->node_of[nic] = r->node_of[parent];
    return true;
  }
  int32_t within;
  if (!bridge_of(r, nic, parent, &within)) {
    return false;
  }
  bny_topo_node node = {
      .kind = BNY_TOPO_NIC, .parent = within, .index = -1, .name = name, .compute = -1, .source = BNY_TOPO_FILE};
  describe_nic(r, nic, &node, name);
  return add_node(r, nic, &node, (const char *const[]){NULL});
}

/* speed is in Mb/s; 0 and -1 mean unknown. */
static bool take_net(reading *r, int32_t net, int32_t parent) {
  if (!bny_topo_xml_is(r->xml, parent, "nic")) {
    return fail_at(r, net, "stands outside of a <nic>");
  }
  int64_t number = -1, port = -1;
  if (!number_of(r, net, "dev", -1, 1 << 20, &number) || !number_of(r, net, "port", -1, 1 << 20, &port)) {
    return false;
  }
  const char *speed = text_of(r, net, "speed"), *latency = text_of(r, net, "latency"), *name = text_of(r, net, "name");
  if (is_virtual(name)) {
    return true;
  }
  char *end = "";
  double megabits = speed == NULL ? 0 : strtod(speed, &end);
  if (*end != '\0' || !(megabits == -1 || (megabits >= 0 && megabits <= most_megabits_per_s))) {
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, net), "<net speed=\"%.40s\">: absurd, wants Mb/s", speed);
  }
  double microseconds = latency == NULL ? 0 : strtod(latency, &end);
  if (*end != '\0' || !(microseconds >= 0 && microseconds <= 1e6)) {
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, net), "<net latency=\"%.40s\">: absurd, wants us",
                         latency);
  }
  int32_t nic = r->node_of[parent];
  char unnamed[32], guid[BNY_TOPO_GUID_BYTES];
  snprintf(unnamed, sizeof unnamed, "port%d", (int)port);
  /* This guid is the card's (system image), from its first function and port, not the port's own. */
  const char *said = text_of(r, net, "guid");
  bny_topo_node node = {.kind = BNY_TOPO_PORT,
                        .parent = nic,
                        .index = (int32_t)port,
                        .name = name == NULL ? unnamed : (char *)name,
                        .compute = -1,
                        .guid = said != NULL && bny_topo_guid_from_nccl(said, guid) ? guid : (char *)said,
                        .source = BNY_TOPO_FILE};
  if (!add_node(r, net, &node, bny_topo_nccl_net_attributes)) {
    return false;
  }
  if (number >= 0 && r->topo->nodes[nic].index < 0) {
    r->topo->nodes[nic].index = (int32_t)number;
  }
  bny_topo_link link = {.kind = BNY_TOPO_LINK_NET,
                        .from = r->node_of[net],
                        .to = nic,
                        .count = 1,
                        .source = BNY_TOPO_FILE,
                        .gbytes_per_s = megabits > 0 ? bny_topo_speed_net(megabits) : 0,
                        .latency_us = microseconds};
  return add_link(r, net, &link);
}

/* ---- the whole file ---------------------------------------------------------------------------------------------- */

static bool take_element(reading *r, int32_t element) {
  int32_t parent = bny_topo_xml_parent(r->xml, element);
  const char *name = bny_topo_xml_name(r->xml, element);
  bool at_top = parent == 0;
  if (strcmp(name, "cpu") == 0) {
    return at_top ? take_cpu(r, element) : fail_at(r, element, "stands outside of <system>");
  }
  if (at_top || r->node_of[parent] < 0) {
    bool lost =
        strcmp(name, "pci") == 0 || strcmp(name, "nic") == 0 || strcmp(name, "gpu") == 0 || strcmp(name, "net") == 0;
    return !(at_top && lost) || fail_at(r, element, "stands outside of a <cpu>");
  }
  if (strcmp(name, "pci") == 0) {
    return bny_topo_xml_is(r->xml, parent, "cpu") || bny_topo_xml_is(r->xml, parent, "pci")
               ? take_pci(r, element, parent)
               : fail_at(r, element, "stands outside of a <cpu> and a <pci>");
  }
  if (strcmp(name, "gpu") == 0) {
    return take_gpu(r, element, parent);
  }
  if (strcmp(name, "nic") == 0) {
    return take_nic(r, element, parent);
  }
  return strcmp(name, "net") != 0 || take_net(r, element, parent);
}

static bool once(reading *r, bny_topo_names *names, const char *what) {
  const bny_topo_name *twice = bny_topo_names_sort(names);
  if (names->out_of_memory) {
    return bny_topo_fail(r->error, 0, "out of memory");
  }
  return twice == NULL || bny_topo_fail(r->error, bny_topo_xml_line(r->xml, twice->value),
                                        "%s %.60s stands twice in one host", what, twice->key);
}

/* RCCL's models repeat bus ids. Of several devices with one bus id a GPU keeps it, otherwise the first. The others have
 * none, because links and look-ups could mean any of them. */
static bool buses_once(reading *r) {
  int32_t kept = 0, repeated = 0, example = -1;
  bny_topo_names_sort(&r->buses);
  for (int32_t first = 0, end; first < r->buses.count && !r->buses.out_of_memory; first = end) {
    const bny_topo_name *names = r->buses.entries;
    int32_t owner = first, gpus = 0;
    for (end = first; end < r->buses.count && names[end].scope == names[first].scope &&
                      strcmp(names[end].key, names[first].key) == 0;
         end++) {
      if (r->topo->nodes[r->node_of[names[end].value]].kind == BNY_TOPO_GPU && gpus++ == 0) {
        owner = end;
      }
      if (gpus > 1) {
        return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, names[end].value),
                             "bus id %.60s stands at two GPUs of one host; give each host a host_hash of its own",
                             names[end].key);
      }
    }
    bny_topo_name owning = names[owner];
    for (int32_t i = first; i < end; i++) {
      bny_topo_node *node = &r->topo->nodes[r->node_of[names[i].value]];
      if (i != owner && !bny_topo_set_string(r->topo, &node->bus_id, NULL)) {
        return bny_topo_fail(r->error, 0, "out of memory");
      }
      example = i != owner && example < 0 ? r->node_of[owning.value] : example;
      repeated += i != owner;
    }
    r->buses.entries[kept++] = owning;
  }
  r->buses.count = kept;
  bool noted = repeated == 0 || bny_topo_add_note(r->topo, example,
                                                  "bus ids stand at several devices of the file, %s first: %d devices "
                                                  "are taken without one, and nothing can be looked up by it",
                                                  r->topo->nodes[example].bus_id, (int)repeated);
  return (noted && !r->buses.out_of_memory) || bny_topo_fail(r->error, 0, "out of memory");
}

static bool note_virtual(reading *r) {
  int32_t first = -1, count = 0;
  for (int32_t e = 1; e < bny_topo_xml_count(r->xml); e++) {
    if (bny_topo_xml_is(r->xml, e, "net") && is_virtual(text_of(r, e, "name"))) {
      first = first < 0 ? e : first;
      count++;
    }
  }
  return count == 0 ||
         bny_topo_add_note(r->topo, -1,
                           "%d network interfaces of the file are virtual, %.40s first: they lead nowhere of their own "
                           "and are no NICs; NCCL_SOCKET_IFNAME would leave them out",
                           (int)count, text_of(r, first, "name")) ||
         bny_topo_fail(r->error, 0, "out of memory");
}

/* A virtual machine's eth0 may be below each <cpu>: the second becomes "eth0#1". */
static bool tell_nics_apart(reading *r) {
  bny_topo_names nics = {0};
  for (int32_t n = 0; n < r->topo->nnodes; n++) {
    if (r->topo->nodes[n].kind == BNY_TOPO_NIC) {
      bny_topo_names_add(&nics, bny_topo_ancestor(r->topo, n, BNY_TOPO_HOST), r->topo->nodes[n].name, n);
    }
  }
  bny_topo_names_sort(&nics);
  bool done = !nics.out_of_memory;
  int32_t first = 0; /* first NIC with this name; it keeps the name */
  for (int32_t i = 1; done && i < nics.count; i++) {
    if (nics.entries[i].scope != nics.entries[first].scope ||
        strcmp(nics.entries[i].key, nics.entries[first].key) != 0) {
      first = i;
      continue;
    }
    char name[80];
    bny_topo_node *node = &r->topo->nodes[nics.entries[i].value];
    snprintf(name, sizeof name, "%.60s#%d", node->name, (int)(i - first));
    done = bny_topo_set_string(r->topo, &node->name, name);
  }
  bny_topo_names_free(&nics);
  return done || bny_topo_fail(r->error, 0, "out of memory");
}

static bool read_system(reading *r) {
  int64_t version = 1;
  if (!number_of(r, 0, "version", 0, INT32_MAX, &version)) {
    return false;
  }
  if (version < 1 || version > 2) {
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, 0), "NCCL topology of version %d: 1 and 2 are known",
                         (int)version);
  }
  for (int32_t e = 0; e < bny_topo_xml_count(r->xml); e++) {
    r->node_of[e] = -1;
    r->has_gpus = r->has_gpus || bny_topo_xml_is(r->xml, e, "gpu");
    r->has_nets = r->has_nets || bny_topo_xml_is(r->xml, e, "net");
  }
  for (int32_t e = 1; e < bny_topo_xml_count(r->xml); e++) {
    if (!take_element(r, e)) {
      return false;
    }
  }
  if (r->topo->nnodes == 0) {
    return fail_at(r, 0, "holds no <cpu>");
  }
  return once(r, &r->numas, "NUMA node") && buses_once(r) && once(r, &r->gpus, "the number of") && join_cpus(r) &&
         bny_topo_nccl_links(r->xml, r->topo, r->node_of, &r->buses, r->error) && tell_nics_apart(r) && note_virtual(r);
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  bny_topo_xml *xml = bny_topo_xml_parse(text, bytes, error);
  if (xml == NULL) {
    return false;
  }
  bool taken = false;
  reading r = {.xml = xml, .topo = topo, .error = error};
  if (bny_topo_xml_is(xml, 0, "graphs")) {
    bny_topo_fail(error, bny_topo_xml_line(xml, 0),
                  "a graph that NCCL made (NCCL_GRAPH_DUMP_FILE): it holds channels, not a "
                  "machine; give what NCCL_TOPO_DUMP_FILE writes");
  } else {
    r.node_of = malloc((size_t)bny_topo_xml_count(xml) * sizeof *r.node_of);
    taken = r.node_of == NULL ? bny_topo_fail(error, 0, "out of memory") : read_system(&r);
  }
  free(r.node_of);
  bny_topo_names_free(&r.hosts);
  bny_topo_names_free(&r.buses);
  bny_topo_names_free(&r.numas);
  bny_topo_names_free(&r.gpus);
  bny_topo_xml_free(xml);
  return taken;
}

static bool recognises(const char *text, size_t bytes) {
  return bny_topo_xml_root_is(text, bytes, "system") || bny_topo_xml_root_is(text, bytes, "graphs");
}

const bny_topo_importer bny_topo_import_nccl = {.name = "nccl-xml", .recognises = recognises, .parse = parse};
