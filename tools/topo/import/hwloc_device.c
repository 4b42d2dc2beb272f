/* SPDX-License-Identifier: Apache-2.0
 * Imports hwloc's PCI devices: GPUs, NICs with their ports, and NVSwitches. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/import/hwloc.h"
#include "topo/model/speed.h"

enum { MOST_PORTS = 16 };
/* hwloc's codes for kinds of operating system devices, and their bits in version 3. */
enum { OSDEV_NETWORK = 2, OSDEV_OPENFABRICS = 3, OSDEV_COPROCESSOR = 5 };
static const int bits[] = {[OSDEV_NETWORK] = 1 << 4, [OSDEV_OPENFABRICS] = 1 << 5, [OSDEV_COPROCESSOR] = 1 << 3};

const char *bny_topo_hwloc_type(const bny_topo_hwloc *h, int32_t element) {
  bool object = bny_topo_xml_is(h->xml, element, "object");
  const char *type = object ? bny_topo_xml_attribute(h->xml, element, "type") : NULL;
  return type == NULL ? "" : type;
}

const char *bny_topo_hwloc_info(const bny_topo_hwloc *h, int32_t element, const char *name) {
  for (int32_t e = bny_topo_xml_first(h->xml, element); e >= 0; e = bny_topo_xml_next(h->xml, e)) {
    const char *key = bny_topo_xml_is(h->xml, e, "info") ? bny_topo_xml_attribute(h->xml, e, "name") : NULL;
    if (key != NULL && strcmp(key, name) == 0) return bny_topo_xml_attribute(h->xml, e, "value");
  }
  return NULL;
}

static bool is_device_of(const bny_topo_hwloc *h, int32_t element, int osdev_type) {
  const char *kind = bny_topo_xml_attribute(h->xml, element, "osdev_type");
  return strcmp(bny_topo_hwloc_type(h, element), "OSDev") == 0 &&
         (osdev_type < 0 ||
          (kind != NULL && (h->types_are_bits ? (atoi(kind) & bits[osdev_type]) != 0 : atoi(kind) == osdev_type)));
}

/* Returns the name of the first device of a kind below a PCI device, or NULL. */
static const char *device_name(const bny_topo_hwloc *h, int32_t pci, int osdev_type, int32_t *place) {
  for (int32_t e = bny_topo_xml_first(h->xml, pci); e >= 0; e = bny_topo_xml_next(h->xml, e)) {
    const char *name = is_device_of(h, e, osdev_type) ? bny_topo_xml_attribute(h->xml, e, "name") : NULL;
    if (name != NULL && *name != '\0') {
      *place = e;
      return name;
    }
  }
  return NULL;
}

typedef struct pci_type {
  unsigned class, vendor, device;
} pci_type;

/* Parses "0302 [10de:1db8] [10de:131d] a1"; sets zeros if it cannot. */
static pci_type type_of(const bny_topo_hwloc *h, int32_t pci) {
  const char *text = bny_topo_xml_attribute(h->xml, pci, "pci_type");
  pci_type type = {0};
  int read = text == NULL ? 0 : sscanf(text, "%4x [%4x:%4x]", &type.class, &type.vendor, &type.device);
  return read == 3 || read < 1 ? type : (pci_type){.class = type.class};
}

bool bny_topo_hwloc_note_left_out(bny_topo_hwloc *h, int32_t pci) {
  const char *bus = bny_topo_xml_attribute(h->xml, pci, "pci_busid");
  return type_of(h, pci).class != 0 ||
         bny_topo_add_note(h->topo, -1, "PCI device %.30s has no class, so it is left out",
                           bus ? bus : "without bus id");
}

bny_topo_kind bny_topo_hwloc_device_kind(const bny_topo_hwloc *h, int32_t pci) {
  enum { NVIDIA = 0x10de, AMD = 0x1002, INTEL = 0x8086 };
  pci_type type = type_of(h, pci);
  unsigned class = type.class, vendor = type.vendor;
  int32_t place;
  const char *subtype = bny_topo_xml_attribute(h->xml, pci, "subtype");
  if ((subtype != NULL && strcmp(subtype, "NVSwitch") == 0) || (vendor == NVIDIA && class == 0x0680))
    return BNY_TOPO_SWITCH;
  if (class >> 8 == 0x02) return BNY_TOPO_NIC;
  bool accelerator = class == 0x0302 || class == 0x0380 || class >> 8 == 0x12;
  if (vendor == NVIDIA && class >> 8 == 0x03) return BNY_TOPO_GPU;
  if (vendor != AMD && vendor != INTEL) return BNY_TOPO_KINDS; /* such as the display of a management controller */
  /* A display counts as a GPU if it has a coprocessor. AMD's compute boards also count, by their device ids, because
   * hwloc may not have found their driver. Displays of mainboards and processors have other ids. */
  bool board = vendor == AMD && type.device >= 0x6600 && type.device < 0x8000 && (type.device & 0xfe00) != 0x7000 &&
               (type.device & 0xff00) != 0x7200;
  bool computes = class >> 8 == 0x03 && (board || device_name(h, pci, OSDEV_COPROCESSOR, &place) != NULL);
  return accelerator || computes ? BNY_TOPO_GPU : BNY_TOPO_KINDS;
}

bool bny_topo_hwloc_join_upwards(bny_topo_hwloc *h, int32_t element) {
  const char *speed = bny_topo_xml_attribute(h->xml, element, "pci_link_speed");
  char *end = "";
  double raw = speed == NULL ? 0 : strtod(speed, &end);
  if (*end != '\0' || !(raw >= 0 && raw <= 1000)) {
    return bny_topo_fail(h->error, bny_topo_xml_line(h->xml, element),
                         "pci_link_speed=\"%.40s\": must be 0 to 1000 GB/s", speed);
  }
  int32_t node = h->at[element].node;
  return bny_topo_join(h->topo, BNY_TOPO_LINK_PCI, node, h->topo->nodes[node].parent, 0,
                       raw > 0 ? bny_topo_speed_pci_raw(raw) : 0, BNY_TOPO_FILE) >= 0;
}

static bool add_ports(bny_topo_hwloc *h, int32_t openfabrics, int32_t nic) {
  char key[32], name[12];
  for (int port = 1; port <= MOST_PORTS; port++) {
    snprintf(key, sizeof key, "Port%dState", port);
    if (bny_topo_hwloc_info(h, openfabrics, key) == NULL) continue;
    snprintf(name, sizeof name, "%d", port);
    bny_topo_node node = bny_topo_node_of(BNY_TOPO_PORT, nic, port, name, BNY_TOPO_FILE);
    if (bny_topo_add_node(h->topo, &node) < 0) return false;
  }
  return true;
}

/* Returns the number in "rsmi3"; -1 for other names. */
static int32_t number_of(const char *name, const char *prefix) {
  size_t length = strlen(prefix);
  bool numbered = name != NULL && strncmp(name, prefix, length) == 0 && name[length] != '\0' &&
                  strlen(name) < length + 7 && name[length + strspn(name + length, "0123456789")] == '\0';
  return numbered ? atoi(name + length) : -1;
}

/* A partitioned AMD GPU has one ROCm SMI device per partition. The first stands for the GPU itself. */
static bool add_partitions(bny_topo_hwloc *h, int32_t pci, const bny_topo_node *gpu) {
  bny_topo_node node = *gpu;
  char name[64];
  node.parent = h->at[pci].node;
  node.bus_id = NULL;
  node.name = name;
  int32_t parts = 0;
  for (int32_t e = bny_topo_xml_first(h->xml, pci); e >= 0; e = bny_topo_xml_next(h->xml, e)) {
    bool part = is_device_of(h, e, -1) && number_of(bny_topo_xml_attribute(h->xml, e, "name"), "rsmi") >= 0;
    parts += part;
    if (part && parts > 1) {
      snprintf(name, sizeof name, "%.30s.%d", gpu->bus_id, (int)parts - 1);
      h->at[e].node = bny_topo_add_node(h->topo, &node);
      if (h->at[e].node < 0) return false;
    }
  }
  return true;
}

bool bny_topo_hwloc_device(bny_topo_hwloc *h, int32_t pci, bny_topo_kind kind, int32_t parent) {
  char bus_id[BNY_TOPO_BUS_BYTES], numbered[32];
  const char *bus = bny_topo_xml_attribute(h->xml, pci, "pci_busid");
  if (bus == NULL || !bny_topo_bus_normalise(bus, bus_id)) {
    return bny_topo_fail(h->error, bny_topo_xml_line(h->xml, pci),
                         "<object type=\"PCIDev\">: its pci_busid is missing or none such as 0000:1b:00.0");
  }
  int32_t openfabrics = -1, other = -1;
  const char *name = NULL, *model = bny_topo_hwloc_info(h, pci, "PCIDevice");
  if (kind == BNY_TOPO_NIC) {
    name = device_name(h, pci, OSDEV_OPENFABRICS, &openfabrics);
    name = name != NULL ? name : device_name(h, pci, OSDEV_NETWORK, &other);
  }
  if (kind == BNY_TOPO_SWITCH) {
    snprintf(numbered, sizeof numbered, "nvswitch%d", (int)h->switches++);
    name = numbered;
  }
  for (int32_t e = bny_topo_xml_first(h->xml, pci); kind == BNY_TOPO_GPU && e >= 0; e = bny_topo_xml_next(h->xml, e)) {
    const char *gpu_model = is_device_of(h, e, -1) ? bny_topo_hwloc_info(h, e, "GPUModel") : NULL;
    model = gpu_model != NULL ? gpu_model : model;
  }
  pci_type type = type_of(h, pci);
  char attributes[BNY_TOPO_ATTRIBUTES_BYTES];
  snprintf(attributes, sizeof attributes, "class=0x%04x00 vendor=0x%04x device=0x%04x", type.class, type.vendor,
           type.device);
  bny_topo_node node = bny_topo_node_of(kind, parent, -1, name == NULL ? bus_id : name, BNY_TOPO_FILE);
  node.model = model, node.vendor = bny_topo_hwloc_info(h, pci, "PCIVendor"), node.bus_id = bus_id;
  node.attributes = attributes, node.compute = kind == BNY_TOPO_GPU ? bny_topo_compute_of(NULL, model) : -1;
  h->at[pci].node = bny_topo_add_node(h->topo, &node);
  if (h->at[pci].node < 0) return false;
  return bny_topo_hwloc_join_upwards(h, pci) && (kind != BNY_TOPO_GPU || add_partitions(h, pci, &node)) &&
         (openfabrics < 0 || add_ports(h, openfabrics, h->at[pci].node));
}

/* ---- numbers of GPUs --------------------------------------------------------------------------------------------- */

/* Returns the number in "nvml3" of a PCI device, or of a partition; -1 if there is no name with that prefix. */
static int32_t number_in(const bny_topo_hwloc *h, int32_t element, const char *prefix) {
  if (is_device_of(h, element, -1)) return number_of(bny_topo_xml_attribute(h->xml, element, "name"), prefix);
  int32_t number = -1;
  for (int32_t e = bny_topo_xml_first(h->xml, element); e >= 0 && number < 0; e = bny_topo_xml_next(h->xml, e))
    number = is_device_of(h, e, -1) ? number_of(bny_topo_xml_attribute(h->xml, e, "name"), prefix) : -1;
  return number;
}

/* Numbers GPUs by NVML, ROCm SMI or CUDA names. Returns false unless every GPU has a unique number. */
static bool numbers_by(const bny_topo_hwloc *h, const char *prefix, int32_t *numbers, int32_t gpus) {
  bool all = true;
  char *seen = calloc((size_t)gpus + 1, 1);
  int32_t found = 0;
  for (int32_t e = 1; seen != NULL && all && e < bny_topo_xml_count(h->xml); e++) {
    bool gpu = h->at[e].node >= 0 && h->topo->nodes[h->at[e].node].kind == BNY_TOPO_GPU;
    if (gpu) {
      int32_t number = number_in(h, e, prefix);
      all = number >= 0 && number < gpus && !seen[number];
      if (all) {
        seen[number] = 1;
        numbers[found++] = number;
      }
    }
  }
  all = all && seen != NULL;
  free(seen);
  return all;
}

/* Numbers GPUs in the order of their bus ids, as drivers do. Partitions and GPUs without a bus id follow the GPU before
 * them. The file may list GPUs in another order. */
static void numbers_by_bus(const bny_topo *topo, int32_t *numbers) {
  int32_t found = 0;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    if (topo->nodes[n].kind != BNY_TOPO_GPU) continue;
    const char *own = topo->nodes[bny_topo_device(topo, n)].bus_id;
    int32_t number = 0;
    for (int32_t other = 0; other < topo->nnodes; other++) {
      if (topo->nodes[other].kind != BNY_TOPO_GPU || other == n) continue;
      const char *bus = topo->nodes[bny_topo_device(topo, other)].bus_id;
      int order = own == NULL || bus == NULL ? 0 : strcmp(bus, own);
      number += order < 0 || (order == 0 && other < n);
    }
    numbers[found++] = number;
  }
}

bool bny_topo_hwloc_number_gpus(bny_topo_hwloc *h) {
  int32_t gpus = bny_topo_count(h->topo, BNY_TOPO_GPU), number = 0;
  int32_t *numbers = malloc(((size_t)gpus + 1) * sizeof *numbers);
  bool good = numbers != NULL;
  if (good && !numbers_by(h, "nvml", numbers, gpus) && !numbers_by(h, "rsmi", numbers, gpus) &&
      !numbers_by(h, "cuda", numbers, gpus))
    numbers_by_bus(h->topo, numbers);
  for (int32_t n = 0; good && n < h->topo->nnodes; n++) {
    bny_topo_node *node = &h->topo->nodes[n];
    if (node->kind == BNY_TOPO_GPU) {
      char name[32];
      node->index = numbers[number++];
      snprintf(name, sizeof name, "GPU%d", node->index);
      good = bny_topo_set_string(h->topo, &node->name, name);
    }
  }
  free(numbers);
  return good;
}
