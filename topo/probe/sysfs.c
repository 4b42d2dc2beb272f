/* SPDX-License-Identifier: Apache-2.0
 * Probes Linux's sysfs: packages and NUMA nodes, GPUs and NICs on PCI, the rated and trained speeds of their links, and
 * the speeds of ports that are not RDMA. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "topo/probe/binding.h"
#include "topo/probe/util.h"
#include "topo/model/speed.h"

enum { MOST_CPUS = 1 << 20, MOST_NUMAS = 1024, MOST_MEGABITS = 10000000 };

typedef struct looking {
  const char *sysfs;
  bny_topo *topo;
  int32_t host;
  int32_t numbered[BNY_TOPO_KINDS]; /* GPUs and switches so far */
  int32_t rated, below;             /* PCI links */
} looking;

/* ---- processors and memory --------------------------------------------------------------------------------------- */

/* Finds the package of a list such as "0-23,48-71" from the ends of its ranges; -1 if there are several or none.
 * Returns false if the list is empty. */
static bool package_of_list(const looking *w, const char *list, int32_t *package) {
  bool any = false, several = false;
  *package = -1;
  while (*list >= '0' && *list <= '9') {
    char *end;
    long ends[2];
    ends[0] = ends[1] = strtol(list, &end, 10);
    if (*end == '-') ends[1] = strtol(end + 1, &end, 10);
    for (int i = 0; i < 2; i++) {
      int32_t one = ends[i] >= 0 && ends[i] < MOST_CPUS ? bny_topo_cpu_package(w->sysfs, (int32_t)ends[i]) : -1;
      several = several || (any && one != *package);
      *package = one;
      any = true;
    }
    list = *end == ',' ? end + 1 : "";
  }
  *package = several ? -1 : *package;
  return any;
}

static int32_t package_numbered(const looking *w, int32_t number) {
  char name[32];
  snprintf(name, sizeof name, "package%d", (int)number);
  int32_t known = bny_topo_find_name(w->topo, BNY_TOPO_PACKAGE, name);
  if (known >= 0) return known;
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_PACKAGE, w->host, number, name, BNY_TOPO_PROBED);
  return bny_topo_add_node(w->topo, &node);
}

/* Memory-only nodes are skipped, because they hold no devices. */
static void take_numas(const looking *w) {
  bny_topo_probe_list list = bny_topo_probe_names("%s/devices/system/node", w->sysfs);
  struct utsname about;
  int32_t count = 0;
  for (int32_t i = 0; i < list.count && count < MOST_NUMAS; i++) {
    int number, used = -1;
    char cpus[4096];
    int32_t package;
    if (sscanf(list.names[i], "node%6d%n", &number, &used) != 1 || list.names[i][used] != '\0' || number < 0 ||
        !bny_sysfs_line(cpus, sizeof cpus, "%s/devices/system/node/%s/cpulist", w->sysfs, list.names[i]) ||
        !package_of_list(w, cpus, &package))
      continue;
    bny_topo_node node = bny_topo_node_of(BNY_TOPO_NUMA, package < 0 ? w->host : package_numbered(w, package), number,
                                          list.names[i], BNY_TOPO_PROBED);
    int32_t added = bny_topo_add_node(w->topo, &node);
    if (added < 0) break;
    count++;
  }
  free(list.names);
  double speed = bny_topo_speed_cpu(uname(&about) == 0 ? about.machine : NULL, NULL, -1, -1);
  bny_topo_join_numas(w->topo, &speed);
}

/* ---- PCI --------------------------------------------------------------------------------------------------------- */

/* Classifies devices as the hwloc importer does, with one exception: an AMD or Intel display on the root bus belongs to
 * a processor. */
static bny_topo_kind kind_of(const looking *w, const char *bus_id) {
  enum { NVIDIA = 0x10de, AMD = 0x1002, INTEL = 0x8086 };
  int64_t class = bny_topo_probe_number(0, 0xffffff, 0, "%s/bus/pci/devices/%s/class", w->sysfs, bus_id) >> 8;
  if (class >> 8 == 0x02) return BNY_TOPO_NIC;
  if (class >> 8 != 0x03 && class >> 8 != 0x12 && class != 0x0680)
    return BNY_TOPO_KINDS; /* true for most devices, so their vendor is not read */
  int64_t vendor = bny_topo_probe_number(0, 0xffff, 0, "%s/bus/pci/devices/%s/vendor", w->sysfs, bus_id);
  if (class == 0x0680) return vendor == NVIDIA ? BNY_TOPO_SWITCH : BNY_TOPO_KINDS;
  if (vendor == NVIDIA) return BNY_TOPO_GPU;
  if (vendor != AMD && vendor != INTEL) return BNY_TOPO_KINDS;
  bool plugged = bny_topo_probe_exists("%s/bus/pci/devices/%s/../class", w->sysfs, bus_id);
  return class != 0x0300 || plugged ? BNY_TOPO_GPU : BNY_TOPO_KINDS;
}

static void take_device(looking *w, const char *bus_id, bny_topo_kind kind) {
  char name[BNY_TOPO_PROBE_NAME];
  int32_t number = -1;
  if (bny_topo_probe_pci_part(w->sysfs, bus_id)) return;
  if (kind != BNY_TOPO_NIC) {
    number = w->numbered[kind]++;
    snprintf(name, sizeof name, kind == BNY_TOPO_GPU ? "GPU%d" : "nvswitch%d", (int)number);
  } else if (!bny_topo_probe_nic_name(w->sysfs, bus_id, name)) {
    snprintf(name, sizeof name, "%s", bus_id);
  }
  int32_t node = bny_topo_probe_pci_device(w->sysfs, w->topo, bus_id, kind, name);
  if (node >= 0 && kind == BNY_TOPO_GPU) w->topo->nodes[node].index = number;
}

static void take_devices(looking *w) {
  bny_topo_probe_list list = bny_topo_probe_names("%s/bus/pci/devices", w->sysfs);
  char bus_id[BNY_TOPO_BUS_BYTES];
  for (int32_t i = 0; i < list.count; i++) {
    /* The name becomes part of paths, so it must be in the system's form. */
    if (bny_topo_bus_normalise(list.names[i], bus_id) && strcmp(bus_id, list.names[i]) == 0) {
      bny_topo_kind kind = kind_of(w, bus_id);
      if (kind != BNY_TOPO_KINDS) take_device(w, bus_id, kind);
    }
  }
  free(list.names);
}

/* ---- properties of devices --------------------------------------------------------------------------------------- */

/* Adds a port to a NIC that is not RDMA; RDMA devices have their own probe. A bond member gets its own speed. */
static void take_ethernet(const looking *w, int32_t nic) {
  char bus_id[BNY_TOPO_BUS_BYTES], name[BNY_TOPO_PROBE_NAME];
  snprintf(bus_id, sizeof bus_id, "%s", w->topo->nodes[nic].bus_id);
  if (bny_topo_probe_exists("%s/bus/pci/devices/%s/infiniband", w->sysfs, bus_id) ||
      !bny_topo_probe_nic_name(w->sysfs, bus_id, name))
    return;
  int64_t megabits = bny_topo_probe_number(1, MOST_MEGABITS, 0, "%s/class/net/%s/speed", w->sysfs, name);
  if (megabits == 0) return;
  bny_topo_node port = bny_topo_node_of(BNY_TOPO_PORT, nic, 1, "1", BNY_TOPO_PROBED);
  port.model = "Ethernet";
  int32_t added = bny_topo_add_node(w->topo, &port);
  int32_t link = added < 0 ? -1 : bny_topo_probe_upwards(w->topo, added, BNY_TOPO_LINK_NET);
  if (link >= 0) {
    w->topo->links[link].count = 1;
    w->topo->links[link].gbytes_per_s = bny_topo_speed_net((double)megabits);
  }
}

static void complete(looking *w, int32_t n) {
  const bny_topo_node *node = &w->topo->nodes[n];
  if (node->bus_id == NULL || node->host_bridge) return;
  w->below += bny_topo_probe_pci_rate(w->sysfs, w->topo, n);
  int32_t link = bny_topo_probe_upwards(w->topo, n, BNY_TOPO_LINK_PCI);
  w->rated += link >= 0 && w->topo->links[link].rated_gbytes_per_s > 0;
  if (node->kind == BNY_TOPO_NIC) take_ethernet(w, n);
}

static void run(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report) {
  looking w = {.sysfs = options->sysfs, .topo = topo};
  if (!bny_topo_probe_exists("%s/devices", w.sysfs) && !bny_topo_probe_exists("%s/bus", w.sysfs)) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_ABSENT, "%.100s is not there: no sysfs", w.sysfs);
    return;
  }
  w.host = bny_topo_probe_host(topo, NULL);
  if (w.host < 0) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_FAILED, "out of memory");
    return;
  }
  take_numas(&w);
  take_devices(&w);
  /* `complete` appends ports, which need no visit. */
  for (int32_t n = 0, known = topo->nnodes; n < known; n++) complete(&w, n);
  int32_t numas = bny_topo_count(topo, BNY_TOPO_NUMA), gpus = bny_topo_count(topo, BNY_TOPO_GPU);
  int32_t nics = bny_topo_count(topo, BNY_TOPO_NIC);
  bool found = gpus > 0 || nics > 0 || numas > 0;
  bny_topo_probe_say(report, found ? BNY_TOPO_PROBE_FOUND : BNY_TOPO_PROBE_NOTHING, "%s", "");
  bny_topo_probe_count(report, bny_topo_count(topo, BNY_TOPO_PACKAGE), "package", "packages");
  bny_topo_probe_count(report, numas, "NUMA node", "NUMA nodes");
  bny_topo_probe_count(report, gpus, "GPU on PCI", "GPUs on PCI");
  bny_topo_probe_count(report, nics, "NIC on PCI", "NICs on PCI");
  if (gpus > 0 || nics > 0)
    bny_topo_probe_count(report, w.rated, "PCI link says its rating", "PCI links say their rating");
  if (w.below > 0) bny_topo_probe_count(report, w.below, "is below it", "are below it");
}

const bny_topo_probe bny_topo_probe_sysfs = {.name = "sysfs", .run = run};
