/* SPDX-License-Identifier: Apache-2.0
 * Adds RDMA devices to the model: each is the NIC of its PCI function, with ports, GUIDs, states and speeds. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/probe/util.h"
#include "topo/probe/verbs.h"
#include "topo/model/speed.h"

enum { MOST_DEVICES = 4096, MOST_PORTS = 32, SKU_BYTES = 96, WORDS_BYTES = 96 };

/* Data of a port until all are known. */
typedef struct port_record {
  int32_t link;
  bool down;
  double gbytes_per_s; /* trained speed; 0 unknown */
  char sku[SKU_BYTES]; /* exact hardware variant */
} port_record;

typedef struct taking {
  const bny_topo_verbs *verbs;
  void *devices;
  const char *sysfs;
  bny_topo *topo;
  int32_t *nics; /* by device: its node; -1 none */
  port_record *ports;
  int32_t nports, capacity;
  int32_t found, active, parts, rejected;                                   /* devices, ports, devices, devices */
  char down[BNY_TOPO_PROBE_NAME + 16], rejection[BNY_TOPO_PROBE_NAME + 64]; /* first inactive port, rejected device */
} taking;

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static const struct {
  int32_t code;
  double megabits;
  const char *name;
} lanes[] = {{1, 2500, "SDR"},   {2, 5000, "DDR"},   {4, 10000, "QDR"},    {8, 10000, "FDR10"}, {16, 14000, "FDR"},
             {32, 25000, "EDR"}, {64, 50000, "HDR"}, {128, 100000, "NDR"}, {256, 200000, "XDR"}};
static const struct { int32_t code, lanes; } widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};

static int lane_of(int32_t speed) {
  for (int i = 0; i < (int)(sizeof lanes / sizeof lanes[0]); i++)
    if (lanes[i].code == speed) return i;
  return -1;
}

static int32_t width_of(int32_t code) {
  for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
    if (widths[i].code == code) return widths[i].lanes;
  return 0;
}

/* libibverbs has eight bits for the speed of a lane and reports faster ones as NDR. sysfs then has the rate ("800
 * Gb/sec (4X XDR)"). The ports of a bond carry their sum. */
static double megabits_of(const taking *t, const char *name, const char *bus_id, int32_t port,
                          const bny_topo_verbs_port *facts) {
  enum { NDR = 128 };
  char text[64];
  int lane = lane_of(facts->speed);
  double megabits = lane < 0 ? 0 : lanes[lane].megabits * width_of(facts->width);
  if ((lane < 0 || facts->speed == NDR) &&
      bny_topo_probe_line(text, sizeof text, "%s/class/infiniband/%s/ports/%d/rate", t->sysfs, name, (int)port)) {
    double said = strtod(text, NULL) * 1000;
    megabits = said > megabits && said < 1e7 ? said : megabits;
  }
  if (facts->link_layer == BNY_TOPO_VERBS_ETHERNET && bus_id[0] != '\0') {
    double bond = bny_topo_probe_bond_megabits(t->sysfs, bus_id);
    megabits = bond > megabits ? bond : megabits;
  }
  return megabits;
}

/* Writes "InfiniBand 4x NDR, lid 23" or "Ethernet, down", which the model stores as the port's kind. */
static void word_port(const bny_topo_verbs_port *facts, char text[WORDS_BYTES]) {
  static const char *const states[] = {", state unknown", ", down", ", initialising", ", armed", "", ", in trouble"};
  bool ethernet = facts->link_layer == BNY_TOPO_VERBS_ETHERNET;
  bool infiniband = facts->link_layer == BNY_TOPO_VERBS_INFINIBAND || facts->lid > 0;
  const char *layer = ethernet ? "Ethernet (RDMA)" : infiniband ? "InfiniBand" : "RDMA";
  const char *state = states[facts->state >= 1 && facts->state <= 5 ? facts->state : 0];
  int lane = ethernet || facts->state == BNY_TOPO_VERBS_DOWN ? -1 : lane_of(facts->speed);
  char rate[24] = "", lid[24] = "";
  if (lane >= 0 && width_of(facts->width) > 0)
    snprintf(rate, sizeof rate, " %dx %s", (int)width_of(facts->width), lanes[lane].name);
  if (facts->lid > 0) snprintf(lid, sizeof lid, ", lid %d", (int)facts->lid);
  snprintf(text, WORDS_BYTES, "%s%s%s%s", layer, rate, lid, state);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Software devices have no PCI device, but a network interface below them. */
static bool bus_of_device(const taking *t, const char *name, char bus_id[BNY_TOPO_BUS_BYTES]) {
  char interface[BNY_TOPO_PROBE_NAME];
  bus_id[0] = '\0';
  return bny_topo_probe_bus_of(bus_id, "%s/class/infiniband/%s/device", t->sysfs, name) ||
         (bny_topo_probe_line(interface, sizeof interface, "%s/class/infiniband/%s/parent", t->sysfs, name) &&
          interface[0] != '\0' && strchr(interface, '/') == NULL &&
          bny_topo_probe_bus_of(bus_id, "%s/class/net/%s/device", t->sysfs, interface));
}

static int32_t place_nic(const taking *t, const char *name, const char *bus_id) {
  if (bus_id[0] != '\0') {
    bool known = bny_topo_find_bus(t->topo, bus_id) >= 0;
    int32_t nic = bny_topo_probe_pci_device(t->sysfs, t->topo, bus_id, BNY_TOPO_NIC, name);
    if (nic >= 0 && !known) bny_topo_probe_pci_rate(t->sysfs, t->topo, nic);
    return nic;
  }
  int32_t known = bny_topo_find_name(t->topo, BNY_TOPO_NIC, name);
  bny_topo_node node = {.kind = BNY_TOPO_NIC,
                        .parent = bny_topo_probe_host(t->topo, NULL),
                        .index = -1,
                        .name = (char *)name,
                        .compute = -1,
                        .source = BNY_TOPO_PROBED};
  return known >= 0 ? known : bny_topo_add_node(t->topo, &node);
}

static int32_t place_port(const taking *t, int32_t nic, int32_t port) {
  for (int32_t n = nic + 1; n < t->topo->nnodes; n++) {
    const bny_topo_node *node = &t->topo->nodes[n];
    if (node->kind == BNY_TOPO_PORT && node->parent == nic && node->index == port) return n;
  }
  char name[16];
  snprintf(name, sizeof name, "%d", (int)port);
  bny_topo_node node = {
      .kind = BNY_TOPO_PORT, .parent = nic, .index = port, .name = name, .compute = -1, .source = BNY_TOPO_PROBED};
  return bny_topo_add_node(t->topo, &node);
}

static void set_guid(const taking *t, int32_t node, uint64_t guid) {
  char text[24];
  if (guid != 0) {
    snprintf(text, sizeof text, "%016" PRIx64, guid);
    bny_topo_set_string(t->topo, &t->topo->nodes[node].guid, text);
  }
}

/* ---- ports and devices ------------------------------------------------------------------------------------------- */

static bool record_port(taking *t, const port_record *record) {
  bool room = bny_topo_grow(&t->ports, t->nports, &t->capacity, sizeof *t->ports);
  if (room) t->ports[t->nports++] = *record;
  t->topo->out_of_memory = t->topo->out_of_memory || !room;
  return room;
}

/* An inactive port has speed 0. Its rating is the speed that it trained to before a subnet manager started. */
static void take_port(taking *t, int32_t device, int32_t port, const char *bus_id, const char *sku) {
  const char *name = t->verbs->name(t->devices, device);
  bny_topo_verbs_port facts = {0};
  if (t->verbs->port(t->devices, device, port, &facts) != 0) return;
  int32_t node = place_port(t, t->nics[device], port);
  int32_t up = node < 0 ? -1 : bny_topo_probe_upwards(t->topo, node, BNY_TOPO_LINK_NET);
  if (up < 0) return;
  char words[WORDS_BYTES];
  word_port(&facts, words);
  bny_topo_set_string(t->topo, &t->topo->nodes[node].model, words);
  set_guid(t, node, facts.guid);
  bool active = facts.state >= BNY_TOPO_VERBS_ACTIVE;
  double speed = bny_topo_speed_net(megabits_of(t, name, bus_id, port, &facts));
  port_record record = {.link = up,
                        .down = facts.state <= BNY_TOPO_VERBS_DOWN,
                        .gbytes_per_s = facts.state <= BNY_TOPO_VERBS_DOWN ? 0 : speed};
  snprintf(record.sku, sizeof record.sku, "%s", sku);
  bny_topo_link *link = &t->topo->links[up];
  link->count = 1;
  link->gbytes_per_s = active ? speed : 0;
  link->rated_gbytes_per_s = record.gbytes_per_s;
  link->source = BNY_TOPO_PROBED;
  t->active += active;
  if (!active && t->down[0] == '\0') snprintf(t->down, sizeof t->down, "%.40s port %d", name, (int)port);
  record_port(t, &record);
}

static void take_device(taking *t, int32_t device) {
  const char *name = t->verbs->name(t->devices, device);
  char bus_id[BNY_TOPO_BUS_BYTES], sku[SKU_BYTES], board[64];
  /* The name becomes part of paths. */
  if (name == NULL || name[0] == '\0' || name[0] == '.' || strlen(name) >= BNY_TOPO_PROBE_NAME ||
      strchr(name, '/') != NULL)
    return;
  if (bus_of_device(t, name, bus_id) && bny_topo_probe_pci_part(t->sysfs, bus_id)) {
    t->parts++;
    return;
  }
  int32_t nic = place_nic(t, name, bus_id);
  bool again = nic < 0 || t->topo->nodes[nic].kind != BNY_TOPO_NIC;
  for (int32_t before = 0; before < device && !again; before++)
    again = t->nics[before] == nic; /* a subfunction, or software on top, with the ports of the first */
  if (again) {
    t->parts++;
    return;
  }
  t->nics[device] = nic;
  t->found++;
  bny_topo_set_string(t->topo, &t->topo->nodes[nic].name, name);
  if (t->topo->nodes[nic].model == NULL &&
      bny_topo_probe_line(board, sizeof board, "%s/class/infiniband/%s/hca_type", t->sysfs, name) && board[0] != '\0')
    bny_topo_set_string(t->topo, &t->topo->nodes[nic].model, board);
  bny_topo_verbs_device facts = {0};
  int failed = t->verbs->device(t->devices, device, &facts);
  if (failed != 0) {
    if (t->rejected++ == 0)
      snprintf(t->rejection, sizeof t->rejection, "%.30s cannot be opened: %.60s", name, strerror(failed));
    return;
  }
  set_guid(t, nic, facts.guid);
  bny_topo_probe_line(board, sizeof board, "%s/class/infiniband/%s/board_id", t->sysfs, name);
  snprintf(sku, sizeof sku, "%x:%x:%s", (unsigned)facts.vendor, (unsigned)facts.part, board);
  for (int32_t port = 1; port <= facts.ports && port <= MOST_PORTS; port++) take_port(t, device, port, bus_id, sku);
  t->verbs->release(t->devices);
}

/* Rates a port that is down by others of the same hardware. */
static void rate_down(const taking *t) {
  for (int32_t p = 0; p < t->nports; p++) {
    for (int32_t other = 0; t->ports[p].down && other < t->nports; other++) {
      double *rated = &t->topo->links[t->ports[p].link].rated_gbytes_per_s;
      if (strcmp(t->ports[p].sku, t->ports[other].sku) == 0 && t->ports[other].gbytes_per_s > *rated)
        *rated = t->ports[other].gbytes_per_s;
    }
  }
}

static void describe(const taking *t, bny_topo_probe_report *report) {
  bny_topo_outcome outcome = t->found == 0             ? BNY_TOPO_PROBE_NOTHING
                             : t->rejected == t->found ? BNY_TOPO_PROBE_FAILED
                                                       : BNY_TOPO_PROBE_FOUND;
  bny_topo_probe_say(report, outcome, "%s", "");
  bny_topo_probe_count(report, t->found, "RDMA device", "RDMA devices");
  bny_topo_probe_count(report, t->nports, "port", "ports");
  int inactive = t->nports - t->active;
  if (inactive > 0)
    bny_topo_probe_more(report, ", %d not active (%s%s)", inactive, t->down, inactive > 1 ? " first" : "");
  if (t->parts > 0) bny_topo_probe_more(report, ", %d more share them", (int)t->parts);
  if (t->rejected > 0) bny_topo_probe_more(report, "; %s", t->rejection);
}

void bny_topo_verbs_take(const bny_topo_verbs *verbs, const char *sysfs, bny_topo *topo,
                         bny_topo_probe_report *report) {
  bny_topo_probe_list in_kernel = bny_topo_probe_names("%s/class/infiniband", sysfs);
  free(in_kernel.names);
  if (in_kernel.count == 0) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_NOTHING, "no RDMA device: nothing in %.100s/class/infiniband", sysfs);
    return;
  }
  taking t = {.verbs = verbs, .sysfs = sysfs, .topo = topo};
  int32_t count = 0;
  t.devices = verbs->open(&count);
  if (t.devices == NULL) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_FAILED, "libibverbs does not list devices: %s", strerror(errno));
    return;
  }
  count = count < MOST_DEVICES ? count : MOST_DEVICES;
  t.nics = malloc(((size_t)count + 1) * sizeof *t.nics);
  if (t.nics == NULL || bny_topo_probe_host(topo, NULL) < 0) {
    topo->out_of_memory = true;
    bny_topo_probe_say(report, BNY_TOPO_PROBE_FAILED, "out of memory");
  } else if (count == 0) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_FAILED, "libibverbs has no driver for the kernel's %d RDMA devices",
                       (int)in_kernel.count);
  } else {
    for (int32_t device = 0; device < count; device++) {
      t.nics[device] = -1;
      take_device(&t, device);
    }
    rate_down(&t);
    describe(&t, report);
  }
  free(t.ports);
  free(t.nics);
  verbs->close(t.devices);
}
