/* SPDX-License-Identifier: Apache-2.0
 * Adds the RDMA devices of sysfs to the model. Each is the NIC of its PCI function, and has ports, their states and
 * speeds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/model/speed.h"
#include "topo/probe/util.h"

enum { MOST_DEVICES = 4096, MOST_PORTS = 32, BOARD_BYTES = 128, WORDS_BYTES = 96 };

/* States of a port by number, as sysfs writes them: "4: ACTIVE". */
enum { STATE_DOWN = 1, STATE_ACTIVE = 4, STATES = 6 };

/* The data of a port, collected before any port is added. */
typedef struct port_record {
  int32_t link;
  bool down;
  double gbytes_per_s;     /* trained speed; 0 unknown */
  char board[BOARD_BYTES]; /* exact hardware variant */
} port_record;

typedef struct taking {
  const char *sysfs;
  bny_topo *topo;
  int32_t *nics; /* by device: its node; -1 none */
  port_record *ports;
  int32_t nports, capacity;
  int32_t found, active, parts;        /* devices, ports, devices */
  char down[BNY_TOPO_PROBE_NAME + 16]; /* first inactive port */
} taking;

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Finds the PCI device of an RDMA device. A software device has only a network interface, whose PCI device is used. */
static bool bus_of_device(const taking *t, const char *name, char bus_id[BNY_TOPO_BUS_BYTES]) {
  char interface[BNY_TOPO_PROBE_NAME];
  bus_id[0] = '\0';
  return bny_topo_probe_bus_of(bus_id, "%s/class/infiniband/%s/device", t->sysfs, name) ||
         (bny_sysfs_line(interface, sizeof interface, "%s/class/infiniband/%s/parent", t->sysfs, name) &&
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
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_NIC, bny_topo_probe_host(t->topo, NULL), -1, name, BNY_TOPO_PROBED);
  return known >= 0 ? known : bny_topo_add_node(t->topo, &node);
}

static int32_t place_port(const taking *t, int32_t nic, int32_t port) {
  for (int32_t n = nic + 1; n < t->topo->nnodes; n++) {
    const bny_topo_node *node = &t->topo->nodes[n];
    if (node->kind == BNY_TOPO_PORT && node->parent == nic && node->index == port) return n;
  }
  char name[16];
  snprintf(name, sizeof name, "%d", (int)port);
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_PORT, nic, port, name, BNY_TOPO_PROBED);
  return bny_topo_add_node(t->topo, &node);
}

/* ---- ports and devices ------------------------------------------------------------------------------------------- */

/* Returns the Mb/s of a rate, "400 Gb/sec (4X NDR)"; 0 if unknown. For a bond it is the sum of its ports. */
static double megabits_of(const taking *t, const char *rate, bool ethernet, const char *bus_id) {
  double megabits = strtod(rate, NULL) * 1000;
  double bond = ethernet && bus_id[0] != '\0' ? bny_topo_probe_bond_megabits(t->sysfs, bus_id) : 0;
  megabits = megabits > 0 && megabits < 1e7 ? megabits : 0;
  return bond > megabits ? bond : megabits;
}

/* Writes "InfiniBand 4x NDR, lid 23" or "Ethernet (RDMA), down", which the model stores as the port's kind. */
static void word_port(const char *layer, const char *rate, int state, int lid, char text[WORDS_BYTES]) {
  static const char *const states[STATES] = {", state unknown", ", down", ", initialising",
                                             ", armed",         "",       ", in trouble"};
  bool ethernet = strcmp(layer, "Ethernet") == 0, infiniband = strcmp(layer, "InfiniBand") == 0 || lid > 0;
  char name[8], trained[24] = "", id[24] = "";
  int lanes;
  const char *about = strchr(rate, '(');
  if (!ethernet && state != STATE_DOWN && about != NULL && sscanf(about, "(%2dX %7[A-Z0-9])", &lanes, name) == 2)
    snprintf(trained, sizeof trained, " %dx %s", lanes, name);
  if (lid > 0) snprintf(id, sizeof id, ", lid %d", lid);
  snprintf(text, WORDS_BYTES, "%s%s%s%s",
           ethernet     ? "Ethernet (RDMA)"
           : infiniband ? "InfiniBand"
                        : "RDMA",
           trained, id, states[state]);
}

/* Reads a file of a port into text[64]. */
static const char *port_line(const taking *t, const char *name, int32_t port, const char *file, char text[64]) {
  bny_sysfs_line(text, 64, "%s/class/infiniband/%s/ports/%d/%s", t->sysfs, name, (int)port, file);
  return text;
}

/* Collects the data of a port. An inactive port has speed 0. Its rating is the speed that it has trained to before a
 * subnet manager activates it. */
static void take_port(taking *t, int32_t nic, const char *name, int32_t port, const char *bus_id, const char *board) {
  char layer[64], rate[64], number[64], words[WORDS_BYTES];
  int32_t node = place_port(t, nic, port);
  int32_t up = node < 0 ? -1 : bny_topo_probe_upwards(t->topo, node, BNY_TOPO_LINK_NET);
  if (up < 0 || !bny_topo_grow(&t->ports, t->nports, &t->capacity, sizeof *t->ports)) {
    t->topo->out_of_memory = true;
    return;
  }
  int state = atoi(port_line(t, name, port, "state", number));
  int lid = (int)strtol(port_line(t, name, port, "lid", number), NULL, 0);
  state = state > 0 && state < STATES ? state : 0;
  port_line(t, name, port, "link_layer", layer);
  word_port(layer, port_line(t, name, port, "rate", rate), state, lid, words);
  bny_topo_set_string(t->topo, &t->topo->nodes[node].model, words);
  double speed = bny_topo_speed_net(megabits_of(t, rate, strcmp(layer, "Ethernet") == 0, bus_id));
  bool active = state >= STATE_ACTIVE;
  port_record *record = &t->ports[t->nports++];
  *record = (port_record){.link = up, .down = state <= STATE_DOWN, .gbytes_per_s = state <= STATE_DOWN ? 0 : speed};
  snprintf(record->board, sizeof record->board, "%s", board);
  bny_topo_link *link = &t->topo->links[up];
  link->count = 1;
  link->gbytes_per_s = active ? speed : 0;
  link->rated_gbytes_per_s = record->gbytes_per_s;
  link->source = BNY_TOPO_PROBED;
  t->active += active;
  if (!active && t->down[0] == '\0') snprintf(t->down, sizeof t->down, "%.40s port %d", name, (int)port);
}

static void take_device(taking *t, const char *name, int32_t device) {
  char bus_id[BNY_TOPO_BUS_BYTES], kind[48], id[64], board[BOARD_BYTES];
  if (bus_of_device(t, name, bus_id) && bny_topo_probe_pci_part(t->sysfs, bus_id)) {
    t->parts++;
    return;
  }
  int32_t nic = place_nic(t, name, bus_id);
  bool again = nic < 0 || t->topo->nodes[nic].kind != BNY_TOPO_NIC;
  for (int32_t before = 0; before < device && !again; before++)
    again = t->nics[before] == nic; /* a subfunction or a software device, with the ports of the first device */
  if (again) {
    t->parts++;
    return;
  }
  t->nics[device] = nic;
  t->found++;
  bny_topo_set_string(t->topo, &t->topo->nodes[nic].name, name);
  bool known = bny_sysfs_line(kind, sizeof kind, "%s/class/infiniband/%s/hca_type", t->sysfs, name);
  if (t->topo->nodes[nic].model == NULL && known && kind[0] != '\0')
    bny_topo_set_string(t->topo, &t->topo->nodes[nic].model, kind);
  bny_sysfs_line(id, sizeof id, "%s/class/infiniband/%s/board_id", t->sysfs, name);
  snprintf(board, sizeof board, "%s:%s", kind, id);
  for (int32_t port = 1; port <= MOST_PORTS; port++)
    if (bny_topo_probe_exists("%s/class/infiniband/%s/ports/%d", t->sysfs, name, (int)port))
      take_port(t, nic, name, port, bus_id, board);
}

/* Sets the rating of a port that is down to that of other ports of the same hardware. */
static void rate_down(const taking *t) {
  for (int32_t p = 0; p < t->nports; p++) {
    for (int32_t other = 0; t->ports[p].down && other < t->nports; other++) {
      double *rated = &t->topo->links[t->ports[p].link].rated_gbytes_per_s;
      if (strcmp(t->ports[p].board, t->ports[other].board) == 0 && t->ports[other].gbytes_per_s > *rated)
        *rated = t->ports[other].gbytes_per_s;
    }
  }
}

static void describe(const taking *t, bny_topo_probe_report *report) {
  bny_topo_probe_say(report, t->found == 0 ? BNY_TOPO_PROBE_NOTHING : BNY_TOPO_PROBE_FOUND, "%s", "");
  bny_topo_probe_count(report, t->found, "RDMA device", "RDMA devices");
  bny_topo_probe_count(report, t->nports, "port", "ports");
  int inactive = t->nports - t->active;
  if (inactive > 0)
    bny_topo_probe_more(report, ", %d not active (%s%s)", inactive, t->down, inactive > 1 ? " first" : "");
  if (t->parts > 0) bny_topo_probe_more(report, ", %d more share them", (int)t->parts);
}

static void run(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report) {
  taking t = {.sysfs = options->sysfs, .topo = topo};
  bny_topo_probe_list devices = bny_topo_probe_names("%s/class/infiniband", t.sysfs);
  int32_t count = devices.count < MOST_DEVICES ? devices.count : MOST_DEVICES;
  t.nics = malloc(((size_t)count + 1) * sizeof *t.nics);
  if (count == 0) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_NOTHING, "no RDMA device: nothing in %.100s/class/infiniband", t.sysfs);
  } else if (t.nics == NULL || bny_topo_probe_host(topo, NULL) < 0) {
    topo->out_of_memory = true;
    bny_topo_probe_say(report, BNY_TOPO_PROBE_FAILED, "out of memory");
  } else {
    for (int32_t device = 0; device < count; device++) {
      t.nics[device] = -1;
      take_device(&t, devices.names[device], device);
    }
    rate_down(&t);
    describe(&t, report);
  }
  free(devices.names);
  free(t.ports);
  free(t.nics);
}

const bny_topo_probe bny_topo_probe_rdma = {.name = "rdma", .run = run};
