/* SPDX-License-Identifier: Apache-2.0
 * Writes a topology as NCCL reads it with NCCL_TOPO_FILE. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/export/export.h"
#include "tools/topo/import/import.h"
#include "tools/topo/import/nccl.h"
#include "topo/model/guid.h"
#include "topo/model/speed.h"
#include "tools/topo/import/xml.h"

static const char hidden_switch[] = "fffffff:ffff:ff";
static const char switch_class[] = "0x068000", cpu_class[] = "0x068001";

typedef struct writing {
  const bny_topo *topo;
  FILE *out;
  int32_t *first, *next;               /* by node: first child, next sibling; -1 at the end */
  char (*bus_ids)[BNY_TOPO_BUS_BYTES]; /* by node; "": needs none */
  int32_t *numas;                      /* by node: number of a NUMA node, unique in its host */
  int32_t hosts, nets, gpus;           /* counts so far; nets: of this host */
  bool separate;                       /* NVSwitches of hosts get bus ids */
} writing;

static const bny_topo_node *node_at(const writing *w, int32_t n) { return &w->topo->nodes[n]; }

/* Writes a tag, or the beginning of one, at its depth. */
static void begin(writing *w, int depth, const char *tag) { fprintf(w->out, "%*s%s", 2 * depth, "", tag); }

/* Writes name="value" after a blank; nothing for NULL. */
static void write_text(writing *w, const char *name, const char *value) {
  if (value == NULL) return;
  fprintf(w->out, " %s=\"", name);
  for (; *value != '\0'; value++) {
    switch (*value) {
    case '&': fputs("&amp;", w->out); break;
    case '<': fputs("&lt;", w->out); break;
    case '>': fputs("&gt;", w->out); break;
    case '"': fputs("&quot;", w->out); break;
    default: fputc(*value, w->out); break;
    }
  }
  fputc('"', w->out);
}

/* Writes the attributes of a node that NCCL's elements have. */
static void write_attributes(writing *w, const bny_topo_node *node, const char *const *names) {
  char value[BNY_TOPO_ATTRIBUTES_BYTES];
  for (; *names != NULL; names++)
    if (bny_topo_attribute(node, *names, value)) write_text(w, *names, value);
}

static bool vendor_is(const bny_topo_node *node, const char *prefix) {
  return node->vendor != NULL && strncmp(node->vendor, prefix, strlen(prefix)) == 0;
}

static bool is_amd(const writing *w, int32_t gpu) {
  const bny_topo_node *node = node_at(w, gpu);
  for (int32_t l = bny_topo_first_link(w->topo, gpu); l >= 0; l = bny_topo_next_link(w->topo, gpu, l))
    if (w->topo->links[l].kind == BNY_TOPO_LINK_XGMI) return true;
  return vendor_is(node, "AMD") || vendor_is(node, "Advanced Micro");
}

/* Returns NULL if the class is unknown: a NIC may be Ethernet or InfiniBand, and a PCI device without children may be
 * anything. */
static const char *class_of(const writing *w, int32_t n, char value[BNY_TOPO_ATTRIBUTES_BYTES]) {
  const bny_topo_node *node = node_at(w, n);
  bool device = node->kind == BNY_TOPO_GPU || node->kind == BNY_TOPO_NIC;
  if (device && bny_topo_attribute(node, "class", value) &&
      strncmp(value,
              node->kind == BNY_TOPO_NIC ? "0x02"
              : is_amd(w, n)             ? "0x"
                                         : "0x03",
              4) == 0)
    return value;
  if (node->kind == BNY_TOPO_PCI && bny_topo_attribute(node, "class", value)) return value;
  if (node->kind == BNY_TOPO_PCI && w->first[n] < 0) return NULL;
  switch (node->kind) {
  case BNY_TOPO_GPU: return is_amd(w, n) ? "0x120000" : "0x030200";
  case BNY_TOPO_NIC: return NULL;
  case BNY_TOPO_SWITCH: return switch_class;
  default: return "0x060400";
  }
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

/* Finds the generation and lanes of a speed. If the lanes are unknown, 16 are tried first. */
static bool lanes_of(const bny_topo_link *link, int *generation, int *lanes) {
  const int tried[] = {link->count, 16, 8, 4, 2, 1};
  for (size_t t = link->count > 0 ? 0 : 1; t < (link->count > 0 ? 1 : sizeof tried / sizeof tried[0]); t++) {
    for (int g = 1; g <= BNY_TOPO_PCI_GENERATIONS; g++) {
      if (fabs(bny_topo_speed_pci(g, tried[t]) - link->gbytes_per_s) < 1e-6) {
        *generation = g;
        *lanes = tried[t];
        return true;
      }
    }
  }
  return false;
}

/* Writes a known speed. Unknown and assumed speeds are omitted, because NCCL determines or assumes them itself. */
static void write_speed(writing *w, int32_t n) {
  for (int32_t l = bny_topo_first_link(w->topo, n); l >= 0; l = bny_topo_next_link(w->topo, n, l)) {
    const bny_topo_link *link = &w->topo->links[l];
    int generation, lanes;
    bool upwards = link->kind == BNY_TOPO_LINK_PCI && link->from == n && link->to == node_at(w, n)->parent &&
                   link->source != BNY_TOPO_ASSUMED;
    if (upwards && lanes_of(link, &generation, &lanes)) {
      write_text(w, "link_speed", bny_topo_speed_pci_text(generation));
      fprintf(w->out, " link_width=\"%d\"", lanes);
      return;
    }
  }
}

static void write_link(writing *w, const char *tag, const char *target, const char *class, int32_t count, int depth) {
  fprintf(w->out, "%*s<%s target=\"%s\" count=\"%d\" tclass=\"%s\"/>\n", 2 * depth, "", tag, target,
          (int)(count < 1 ? 1 : count), class);
}

/* Writes links in the order of the model. NCCL treats all switches without a bus id as one. */
static bool write_links(writing *w, int32_t gpu, int depth) {
  const bny_topo *topo = w->topo;
  size_t count = 0;
  for (int32_t l = bny_topo_first_link(topo, gpu); l >= 0; l = bny_topo_next_link(topo, gpu, l)) count++;
  int32_t *links = malloc((count + 1) * sizeof *links), hidden = 0;
  if (links == NULL) return false;
  size_t at = count;
  for (int32_t l = bny_topo_first_link(topo, gpu); l >= 0; l = bny_topo_next_link(topo, gpu, l)) links[--at] = l;
  for (size_t i = 0; i < count; i++) {
    const bny_topo_link *link = &topo->links[links[i]];
    int32_t other = bny_topo_other_end(topo, gpu, links[i]);
    bny_topo_kind kind = node_at(w, other)->kind;
    if (link->kind == BNY_TOPO_LINK_C2C) {
      double count_of = link->count < 1 ? 1 : link->count;
      fprintf(w->out, "%*s<c2c bw=\"%.0f\" count=\"%.0f\"/>\n", 2 * depth, "", link->gbytes_per_s / count_of * 1000,
              count_of);
    } else if (!bny_topo_joins_gpus(link)) {
      continue;
    } else if (kind == BNY_TOPO_SWITCH && w->bus_ids[other][0] == '\0') {
      hidden += link->count;
    } else if (kind == BNY_TOPO_NUMA || kind == BNY_TOPO_PACKAGE) {
      write_link(w, "nvlink", hidden_switch, cpu_class, link->count, depth);
    } else if (kind == BNY_TOPO_GPU || kind == BNY_TOPO_SWITCH) {
      const char *tag = link->kind == BNY_TOPO_LINK_XGMI ? "xgmi" : "nvlink";
      char class[BNY_TOPO_ATTRIBUTES_BYTES];
      write_link(w, tag, w->bus_ids[other], class_of(w, other, class), link->count, depth);
    }
  }
  if (hidden > 0) write_link(w, "nvlink", hidden_switch, switch_class, hidden, depth);
  free(links);
  return true;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* Writes a GPU, and the other partitions of its device. */
static bool write_gpu(writing *w, int32_t n, int depth) {
  const bny_topo_node *gpu = node_at(w, n);
  char plain[32];
  snprintf(plain, sizeof plain, "GPU%d", (int)gpu->index);
  begin(w, depth, "<gpu");
  if (gpu->index >= 0) fprintf(w->out, " dev=\"%d\"", (int)gpu->index);
  if (gpu->compute >= 0 && is_amd(w, n))
    fprintf(w->out, gpu->compute == 910 ? " gcn=\"gfx90a\"" : " gcn=\"gfx%d\"", (int)gpu->compute);
  else if (gpu->compute >= 0)
    fprintf(w->out, " sm=\"%d\"", (int)gpu->compute);
  /* A partition with the number of its device has no separate rank. */
  bool ranked = gpu->index >= 0 && (bny_topo_device(w->topo, n) == n || node_at(w, gpu->parent)->index != gpu->index);
  if (ranked) fprintf(w->out, " rank=\"%d\"", (int)(w->hosts > 1 ? w->gpus : gpu->index));
  write_attributes(w, gpu, bny_topo_nccl_gpu_attributes);
  write_text(w, "name", strcmp(gpu->name, plain) == 0 ? NULL : gpu->name);
  w->gpus++;
  fprintf(w->out, ">\n");
  bool written = write_links(w, n, depth + 1);
  begin(w, depth, "</gpu>\n");
  for (int32_t part = w->first[n]; written && part >= 0; part = w->next[part])
    written = node_at(w, part)->kind != BNY_TOPO_GPU || w->bus_ids[part][0] != '\0' || write_gpu(w, part, depth);
  return written;
}

/* A port whose name is only a number takes its NIC's name. */
static const char *net_name(const writing *w, int32_t port) {
  const bny_topo_node *node = node_at(w, port);
  bool plain = node->name[strspn(node->name, "0123456789")] == '\0' && node->parent >= 0;
  return plain ? node_at(w, node->parent)->name : node->name;
}

static void write_net(writing *w, int32_t port, int32_t number, int depth) {
  const bny_topo_node *node = node_at(w, port);
  double speed = 0, latency = 0;
  for (int32_t l = bny_topo_first_link(w->topo, port); l >= 0; l = bny_topo_next_link(w->topo, port, l)) {
    const bny_topo_link *link = &w->topo->links[l];
    if (link->kind == BNY_TOPO_LINK_NET && link->gbytes_per_s > 0) {
      speed = link->gbytes_per_s;
      latency = link->latency_us;
    }
  }
  begin(w, depth, "<net");
  write_text(w, "name", net_name(w, port));
  fprintf(w->out, " dev=\"%d\" speed=\"%.0f\"", (int)number, speed * 8000);
  if (node->index >= 0) fprintf(w->out, " port=\"%d\"", (int)node->index);
  if (latency > 0) fprintf(w->out, " latency=\"%.9g\"", latency);
  char guid[BNY_TOPO_GUID_BYTES], reversed[BNY_TOPO_GUID_NCCL_BYTES];
  bool whole = node->guid != NULL && strlen(node->guid) == sizeof guid - 1 &&
               bny_topo_guid_normalise(node->guid, sizeof guid - 1, guid);
  if (whole) bny_topo_guid_to_nccl(guid, reversed);
  write_text(w, "guid", whole ? reversed : node->guid);
  write_attributes(w, node, bny_topo_nccl_net_attributes);
  fprintf(w->out, "/>\n");
}

/* `bridge` is the host bridge of a NIC directly below a processor; NULL if unknown. */
static void write_nic(writing *w, int32_t n, const char *bridge, int depth) {
  int32_t number = node_at(w, n)->index >= 0 ? node_at(w, n)->index : w->nets, first = w->first[n];
  while (first >= 0 && node_at(w, first)->kind != BNY_TOPO_PORT) first = w->next[first];
  bool named = first < 0 || strcmp(net_name(w, first), node_at(w, n)->name) != 0;
  begin(w, depth, "<nic");
  write_text(w, "host_bridge", bridge);
  write_text(w, "name", named ? node_at(w, n)->name : NULL);
  fprintf(w->out, first < 0 ? "/>\n" : ">\n");
  for (int32_t port = first; port >= 0; port = w->next[port]) {
    if (node_at(w, port)->kind == BNY_TOPO_PORT) {
      write_net(w, port, number++, depth + 1);
      w->nets++;
    }
  }
  if (first >= 0) begin(w, depth, "</nic>\n");
}

/* Writes the other PCI switches that this one is linked to. */
static void write_pcilinks(writing *w, int32_t n, int depth) {
  for (int32_t l = bny_topo_first_link(w->topo, n); l >= 0; l = bny_topo_next_link(w->topo, n, l)) {
    int32_t other = bny_topo_other_end(w->topo, n, l);
    bool across = w->topo->links[l].kind == BNY_TOPO_LINK_PCI && node_at(w, other)->kind == BNY_TOPO_PCI &&
                  node_at(w, n)->parent != other && node_at(w, other)->parent != n;
    if (across && w->bus_ids[other][0] != '\0')
      fprintf(w->out, "%*s<pcilink target=\"%s\"/>\n", 2 * depth, "", w->bus_ids[other]);
  }
}

/* Writes a device and its children. The model is at most 64 deep. */
static bool write_device(writing *w, int32_t n, const char *bridge, int depth) {
  const bny_topo_node *node = node_at(w, n);
  char class[BNY_TOPO_ATTRIBUTES_BYTES];
  bool good = true;
  if (node->kind == BNY_TOPO_PORT) return true;
  if (w->bus_ids[n][0] == '\0') {
    if (node->kind == BNY_TOPO_NIC) {
      write_nic(w, n, bridge, depth);
      return true;
    }
    /* The children of a host bridge become children of the processor. */
    for (int32_t child = w->first[n]; good && child >= 0; child = w->next[child])
      good = node_at(w, child)->kind == BNY_TOPO_SWITCH || write_device(w, child, node->name, depth);
    return good;
  }
  begin(w, depth, "<pci");
  write_text(w, "busid", w->bus_ids[n]);
  write_text(w, "class", class_of(w, n, class));
  write_attributes(w, node, bny_topo_nccl_pci_attributes + 1);
  write_speed(w, n);
  write_text(w, "host_bridge", bridge);
  fprintf(w->out, ">\n");
  if (node->kind == BNY_TOPO_GPU)
    good = write_gpu(w, n, depth + 1);
  else if (node->kind == BNY_TOPO_NIC)
    write_nic(w, n, NULL, depth + 1);
  else if (node->kind == BNY_TOPO_PCI)
    write_pcilinks(w, n, depth + 1);
  for (int32_t child = w->first[n]; good && child >= 0; child = w->next[child]) {
    bool part = node->kind == BNY_TOPO_GPU && node_at(w, child)->kind == BNY_TOPO_GPU;
    good = part || write_device(w, child, NULL, depth + 1);
  }
  begin(w, depth, "</pci>\n");
  for (int32_t part = node->kind == BNY_TOPO_GPU ? w->first[n] : -1; good && part >= 0; part = w->next[part])
    good = node_at(w, part)->kind != BNY_TOPO_GPU || w->bus_ids[part][0] == '\0' ||
           write_device(w, part, bridge, depth); /* a partition that is a PCI function of the device */
  return good;
}

/* ---- processors -------------------------------------------------------------------------------------------------- */

/* Returns whether devices are children of this host, package or NUMA node. NUMA nodes always have an element. */
static bool holds_devices(const writing *w, int32_t n) {
  for (int32_t child = w->first[n]; child >= 0; child = w->next[child]) {
    bny_topo_kind kind = node_at(w, child)->kind;
    if (kind == BNY_TOPO_PCI || kind == BNY_TOPO_GPU || kind == BNY_TOPO_NIC) return true;
  }
  return false;
}

static void write_processor(writing *w, int32_t n) {
  const bny_topo_node *node = node_at(w, n);
  int32_t package = bny_topo_ancestor(w->topo, n, BNY_TOPO_PACKAGE);
  const char *vendor = node->kind != BNY_TOPO_HOST ? node->vendor : NULL;
  if (vendor == NULL && package >= 0) vendor = node_at(w, package)->vendor;
  char arch[32] = "";
  int family, model;
  if (node->kind == BNY_TOPO_NUMA && node->model != NULL &&
      sscanf(node->model, "%31s family %d model %d", arch, &family, &model) == 3) {
    write_text(w, "arch", arch);
    write_text(w, "vendor", vendor);
    fprintf(w->out, " familyid=\"%d\" modelid=\"%d\"", family, model);
  } else if (vendor != NULL && (strcmp(vendor, "GenuineIntel") == 0 || strcmp(vendor, "AuthenticAMD") == 0)) {
    write_text(w, "arch", "x86_64");
    write_text(w, "vendor", vendor);
  } else if (arch[0] != '\0' && strchr(node->model, ' ') == NULL) {
    write_text(w, "arch", arch);
    write_text(w, "vendor", vendor);
  }
}

/* Returns whether a host has the name that an import assigns by default. */
static bool is_numbered(const bny_topo_node *host) {
  char name[32];
  snprintf(name, sizeof name, "host%d", (int)host->index);
  return strcmp(host->name, name) == 0;
}

static bool write_cpu(writing *w, int32_t n) {
  int32_t host = bny_topo_ancestor(w->topo, n, BNY_TOPO_HOST);
  begin(w, 1, "<cpu");
  if (w->hosts > 1 || (host >= 0 && node_at(w, host)->guid != NULL)) {
    char made[32];
    const char *guid = host < 0 ? NULL : node_at(w, host)->guid;
    snprintf(made, sizeof made, "0x%x", (unsigned)(host + 1));
    bool hash = guid != NULL && strncmp(guid, "0x", 2) == 0;
    write_text(w, "host_hash", hash ? guid : made);
  }
  int32_t package = bny_topo_ancestor(w->topo, n, BNY_TOPO_PACKAGE);
  fprintf(w->out, " numaid=\"%d\"", (int)w->numas[n]);
  write_attributes(w, node_at(w, n), bny_topo_nccl_cpu_attributes);
  write_processor(w, n);
  write_text(w, "host", host < 0 || (w->hosts == 1 && is_numbered(node_at(w, host))) ? NULL : node_at(w, host)->name);
  write_text(w, "package", package < 0 ? NULL : node_at(w, package)->name);
  write_text(w, "place",
             node_at(w, n)->kind == BNY_TOPO_HOST      ? "host"
             : node_at(w, n)->kind == BNY_TOPO_PACKAGE ? "package"
                                                       : NULL);
  fprintf(w->out, ">\n");
  bool good = true;
  for (int32_t child = w->first[n]; good && child >= 0; child = w->next[child]) {
    bny_topo_kind kind = node_at(w, child)->kind;
    if (kind == BNY_TOPO_PCI || kind == BNY_TOPO_GPU || kind == BNY_TOPO_NIC) good = write_device(w, child, NULL, 2);
  }
  begin(w, 1, "</cpu>\n");
  return good;
}

static bool write_system(writing *w) {
  bool amd = false, good = true;
  for (int32_t n = 0; n < w->topo->nnodes; n++) amd = amd || (node_at(w, n)->kind == BNY_TOPO_GPU && is_amd(w, n));
  fprintf(w->out, "<system version=\"%d\">\n", amd ? 2 : 1);
  for (int32_t n = 0; good && n < w->topo->nnodes; n++) {
    bny_topo_kind kind = node_at(w, n)->kind;
    if (kind == BNY_TOPO_HOST) w->nets = 0;
    if (kind == BNY_TOPO_NUMA || ((kind == BNY_TOPO_HOST || kind == BNY_TOPO_PACKAGE) && holds_devices(w, n)))
      good = write_cpu(w, n);
  }
  fprintf(w->out, "</system>\n");
  return good;
}

/* ---- the whole file ---------------------------------------------------------------------------------------------- */

static bool needs_bus(const writing *w, int32_t n) {
  const bny_topo_node *node = node_at(w, n), *parent = node->parent < 0 ? NULL : node_at(w, node->parent);
  switch (node->kind) {
  case BNY_TOPO_GPU: return parent == NULL || parent->kind != BNY_TOPO_GPU;
  case BNY_TOPO_NIC: return parent != NULL && parent->kind == BNY_TOPO_PCI && !parent->host_bridge;
  case BNY_TOPO_PCI: return !node->host_bridge;
  case BNY_TOPO_SWITCH: return w->separate && parent != NULL;
  default: return false;
  }
}

/* Assigns an unused bus id to each node that needs one and has none. */
static bool name_buses(writing *w) {
  bny_topo_names known = {0};
  unsigned made = 0;
  for (int32_t n = 0; n < w->topo->nnodes; n++) {
    const bny_topo_node *node = node_at(w, n);
    w->hosts += node->kind == BNY_TOPO_HOST;
    if (node->bus_id != NULL) bny_topo_names_add(&known, 0, node->bus_id, n);
  }
  bny_topo_names_sort(&known);
  for (int32_t n = 0; n < w->topo->nnodes; n++) {
    const bny_topo_node *node = node_at(w, n);
    char *bus_id = w->bus_ids[n];
    if (node->bus_id != NULL)
      snprintf(bus_id, sizeof w->bus_ids[n], "%s", node->bus_id);
    else if (needs_bus(w, n))
      do {
        snprintf(bus_id, sizeof w->bus_ids[n], "%04x:%02x:%02x.0", 0xfffe - (made >> 13), (made >> 5) & 0xff,
                 made & 0x1f);
        made++;
      } while (bny_topo_names_find(&known, 0, bus_id) >= 0);
  }
  bool good = !known.out_of_memory;
  bny_topo_names_free(&known);
  return good;
}

typedef struct numbered {
  int32_t host, number, node;
} numbered;

static int by_number(const void *a, const void *b) { return bny_topo_order(a, b, 3); }

/* Renumbers NUMA nodes of a host that share a number or have none, because NCCL would treat them as one node. */
static bool number_numas(writing *w) {
  numbered *all = malloc(((size_t)w->topo->nnodes + 1) * sizeof *all);
  int32_t count = 0, fresh = 0;
  if (all == NULL) return false;
  for (int32_t n = 0; n < w->topo->nnodes; n++) {
    const bny_topo_node *node = node_at(w, n);
    w->numas[n] = -1;
    if (node->kind == BNY_TOPO_NUMA) {
      all[count++] = (numbered){.host = bny_topo_ancestor(w->topo, n, BNY_TOPO_HOST), .number = node->index, .node = n};
      fresh = node->index >= fresh && node->index < INT32_MAX / 2 ? node->index + 1 : fresh;
    }
  }
  qsort(all, (size_t)count, sizeof *all, by_number);
  for (int32_t i = 0; i < count; i++) {
    bool taken = i > 0 && all[i].host == all[i - 1].host && all[i].number == all[i - 1].number;
    w->numas[all[i].node] = taken || all[i].number < 0 ? fresh++ : all[i].number;
  }
  free(all);
  return true;
}

static void list_children(writing *w) {
  for (int32_t n = w->topo->nnodes - 1; n >= 0; n--) {
    int32_t parent = node_at(w, n)->parent;
    if (parent >= 0) {
      w->next[n] = w->first[parent];
      w->first[parent] = n;
    }
  }
}

enum { COMPARED = 160 };

/* Lists GPUs and NICs by the name of their host, kind and name. */
static bool list_devices(const bny_topo *topo, bny_topo_names *devices) {
  int32_t *numbers = calloc((size_t)topo->nnodes + 1, sizeof *numbers);
  bny_topo_names hosts = {0};
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_HOST) bny_topo_names_add(&hosts, 0, topo->nodes[n].name, n);
  bny_topo_names_sort(&hosts);
  for (int32_t h = 0, number = 0; numbers != NULL && h < hosts.count; h++) {
    number += h == 0 || strcmp(hosts.entries[h - 1].key, hosts.entries[h].key) != 0;
    numbers[hosts.entries[h].value] = number;
  }
  for (int32_t n = 0; numbers != NULL && n < topo->nnodes; n++) {
    bny_topo_kind kind = topo->nodes[n].kind;
    int32_t host = bny_topo_ancestor(topo, n, BNY_TOPO_HOST), number = host < 0 ? 0 : numbers[host];
    if (kind == BNY_TOPO_GPU || kind == BNY_TOPO_NIC)
      bny_topo_names_add(devices, 2 * number + (kind == BNY_TOPO_NIC), topo->nodes[n].name, n);
  }
  bny_topo_names_sort(devices);
  bool listed = numbers != NULL && !devices->out_of_memory && !hosts.out_of_memory;
  bny_topo_names_free(&hosts);
  free(numbers);
  return listed;
}

/* Compares the devices and their paths with those of the imported text. */
static bool is_same(const bny_topo *topo, const bny_topo *again, const bny_topo_names *ours,
                    const bny_topo_names *theirs, bny_topo_error *error) {
  static const char cannot[] = "NCCL's XML cannot say this";
  if (ours->count != theirs->count) {
    return bny_topo_fail(error, 0, "%s: it would have %d GPUs and NICs, not %d", cannot, (int)theirs->count,
                         (int)ours->count);
  }
  for (int32_t a = 0; a < ours->count && a < COMPARED; a++) {
    const bny_topo_node *device = &topo->nodes[ours->entries[a].value];
    if (again->nodes[theirs->entries[a].value].kind != device->kind)
      return bny_topo_fail(error, 0, "%s: %.60s would be another device", cannot, device->name);
    for (int32_t b = 0; b < a; b++) {
      bny_topo_path path = bny_topo_path_between(topo, ours->entries[a].value, ours->entries[b].value);
      bny_topo_path other = bny_topo_path_between(again, theirs->entries[a].value, theirs->entries[b].value);
      if (path != other) {
        return bny_topo_fail(error, 0, "%s: %.60s to %.60s would be %s, not %s", cannot, device->name,
                             ours->entries[b].key, bny_topo_path_name(other), bny_topo_path_name(path));
      }
    }
  }
  return true;
}

/* Checks the text by importing it again. The format cannot hold every model, for example GPUs outside hosts. */
static bool comes_back(const bny_topo *topo, const char *text, size_t bytes, bny_topo_error *error) {
  bny_topo_error why = {.text = ""};
  bny_topo_names ours = {0}, theirs = {0};
  bny_topo *again = bny_topo_import(text, bytes, NULL, &why);
  bool same = again != NULL || !bny_topo_xml_available();
  if (!same) {
    bny_topo_fail(error, 0, "NCCL's XML cannot say this: %s", why.text);
  } else if (again != NULL) {
    same = list_devices(topo, &ours) && list_devices(again, &theirs) ? is_same(topo, again, &ours, &theirs, error)
                                                                     : bny_topo_fail(error, 0, "out of memory");
  }
  bny_topo_names_free(&ours);
  bny_topo_names_free(&theirs);
  bny_topo_free(again);
  return same;
}

static char *write_text_of(const bny_topo *topo, bool separate, bny_topo_error *error) {
  char *text = NULL;
  size_t bytes = 0, nodes = (size_t)topo->nnodes + 1;
  writing w = {.topo = topo, .separate = separate, .out = open_memstream(&text, &bytes)};
  w.first = malloc(nodes * sizeof *w.first);
  w.next = malloc(nodes * sizeof *w.next);
  w.bus_ids = calloc(nodes, sizeof *w.bus_ids);
  w.numas = malloc(nodes * sizeof *w.numas);
  bool good = w.out != NULL && w.first != NULL && w.next != NULL && w.bus_ids != NULL && w.numas != NULL;
  if (good) {
    for (size_t n = 0; n < nodes; n++) w.first[n] = w.next[n] = -1;
    list_children(&w);
    good = name_buses(&w) && number_numas(&w) && write_system(&w) && ferror(w.out) == 0;
  }
  good = (w.out == NULL || fclose(w.out) == 0) && good;
  free(w.first);
  free(w.next);
  free(w.bus_ids);
  free(w.numas);
  if (!good) bny_topo_fail(error, 0, "out of memory");
  if (!good || !comes_back(topo, text, bytes, error)) {
    free(text);
    return NULL;
  }
  return text;
}

/* A reader treats all switches without a bus id as one switch of the only host, or of all hosts. If that joins too many
 * GPUs, each switch gets a bus id. */
char *bny_topo_export_nccl(const bny_topo *topo, bny_topo_error *error) {
  char *text = write_text_of(topo, false, error);
  return text != NULL ? text : write_text_of(topo, true, error);
}
