/* SPDX-License-Identifier: Apache-2.0
 * Probes this machine with hwloc. It reports what cgroups allow, or the machine that variables select (HWLOC_XMLFILE,
 * HWLOC_SYNTHETIC, HWLOC_FSROOT). hwloc writes XML and banyan's importer reads it, so that a machine and its dump give
 * the same model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/probe/binding.h"
#include "topo/probe/util.h"

#if defined HAVE_HWLOC && defined HAVE_LIBXML2
#include <errno.h>
#include <hwloc.h>

extern const bny_topo_importer bny_topo_import_hwloc;

/* Excludes components that start drivers or graphics, because they are slow and leave threads and contexts behind. NVML
 * is excluded, because it has its own probe. libpciaccess is excluded, because it leaks memory and only adds names to
 * hwloc's data from sysfs. */
static void leave_out_drivers(hwloc_topology_t machine) {
  static const char *const components[] = {"cuda", "nvml", "opencl", "gl", "levelzero", "pci"};
  for (size_t i = 0; i < sizeof components / sizeof components[0]; i++) {
    /* Fails if the component is not installed. */
    hwloc_topology_set_components(machine, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, components[i]);
  }
}

/* Returns a loaded topology, or NULL and the failed step. */
static hwloc_topology_t load(const char **failed) {
  hwloc_topology_t machine;
  *failed = "start";
  if (hwloc_topology_init(&machine) != 0) return NULL;
  leave_out_drivers(machine);
  *failed = "look at PCI";
  if (hwloc_topology_set_io_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0) {
    *failed = "look at the machine";
    if (hwloc_topology_load(machine) == 0) return machine;
  }
  hwloc_topology_destroy(machine);
  return NULL;
}

static bny_topo *import(hwloc_topology_t machine, bny_topo_error *error) {
  unsigned long flags = 0;
#if HWLOC_API_VERSION >= 0x00030000
  flags = HWLOC_TOPOLOGY_EXPORT_XML_FLAG_V2;
#endif
  char *text = NULL;
  int bytes = 0;
  if (hwloc_topology_export_xmlbuffer(machine, &text, &bytes, flags) != 0) {
    bny_topo_fail(error, 0, "hwloc cannot write XML: %s", strerror(errno));
    return NULL;
  }
  bny_topo *found = bny_topo_new();
  *error = (bny_topo_error){.text = "out of memory"};
  /* The count may include the final NUL. */
  size_t length = text == NULL || bytes <= 0 ? 0 : strnlen(text, (size_t)bytes);
  if (found != NULL && !(bny_topo_import_hwloc.parse(text, length, found, error) && bny_topo_check(found, error))) {
    bny_topo_free(found);
    found = NULL;
  }
  hwloc_free_xmlbuffer(machine, text);
  return found;
}

static bny_topo_source source_of(bny_topo_source source, bool ours) {
  return source == BNY_TOPO_FILE && ours ? BNY_TOPO_PROBED : source;
}

/* Adds hwloc's data to the host, which exists already. */
static bool take_host(bny_topo *topo, int32_t host, const bny_topo_node *found, bool ours) {
  bny_topo_node *node = &topo->nodes[host];
  node->source = source_of(found->source, ours);
  return (ours || bny_topo_set_string(topo, &node->name, found->name)) &&
         bny_topo_set_string(topo, &node->model, found->model) &&
         bny_topo_set_string(topo, &node->vendor, found->vendor);
}

/* Appends the nodes and links of `found` to `topo`, except functions that are parts of others. */
static bool take_all(const char *sysfs, bny_topo *topo, const bny_topo *found, bool ours) {
  int32_t *place = malloc(((size_t)found->nnodes + 1) * sizeof *place);
  bool good = place != NULL;
  for (int32_t n = 0; good && n < found->nnodes; n++) {
    bny_topo_node node = found->nodes[n];
    int32_t parent = node.parent < 0 ? -1 : place[node.parent];
    bool part = ours && node.bus_id != NULL && (node.kind == BNY_TOPO_NIC || node.kind == BNY_TOPO_GPU) &&
                bny_topo_probe_pci_part(sysfs, node.bus_id);
    place[n] = -1;
    if (part || (node.parent >= 0 && parent < 0)) continue;
    node.parent = parent;
    node.source = source_of(node.source, ours);
    place[n] = node.kind == BNY_TOPO_HOST ? bny_topo_probe_host(topo, node.name) : bny_topo_add_node(topo, &node);
    good = place[n] >= 0 && (node.kind != BNY_TOPO_HOST || take_host(topo, place[n], &found->nodes[n], ours));
  }
  for (int32_t l = 0; good && l < found->nlinks; l++) {
    bny_topo_link link = found->links[l];
    link.from = place[link.from];
    link.to = place[link.to];
    link.source = source_of(link.source, ours);
    good = link.from < 0 || link.to < 0 || bny_topo_add_link(topo, &link) >= 0;
  }
  free(place);
  topo->out_of_memory = topo->out_of_memory || !good;
  return good;
}

static void describe(const bny_topo *topo, bool ours, bny_topo_probe_report *report) {
  const char *variable = bny_topo_hwloc_variable();
  const char *forced = getenv("HWLOC_THISSYSTEM");
  bny_topo_probe_say(report, BNY_TOPO_PROBE_FOUND, "%s", "");
  bny_topo_probe_count(report, bny_topo_count(topo, BNY_TOPO_PACKAGE), "package", "packages");
  bny_topo_probe_count(report, bny_topo_count(topo, BNY_TOPO_NUMA), "NUMA node", "NUMA nodes");
  bny_topo_probe_count(report, bny_topo_count(topo, BNY_TOPO_GPU), "GPU", "GPUs");
  bny_topo_probe_count(report, bny_topo_count(topo, BNY_TOPO_NIC), "NIC", "NICs");
  if (!ours)
    bny_topo_probe_more(report, "; by %s: not this machine", variable == NULL ? "its variables" : variable);
  else if (variable != NULL && forced == NULL)
    bny_topo_probe_more(report, "; hwloc could not use %s: this is this machine", variable);
}

static void run(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report) {
  const char *failed, *sysfs = options->sysfs == NULL ? "/sys" : options->sysfs;
  if (options->quick) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_ABSENT, "not asked, to save time");
    return;
  }
  if (strcmp(sysfs, "/sys") != 0) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_ABSENT, "not asked: hwloc looks at this machine, and not in %.100s",
                       sysfs);
    return;
  }
  if (bny_topo_hwloc_variable() == NULL && !bny_topo_probe_exists("/sys/devices/system/cpu")) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_ABSENT, "not asked: there is no /sys/devices/system/cpu, where it looks");
    return;
  }
  hwloc_topology_t machine = load(&failed);
  if (machine == NULL) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_FAILED, "hwloc cannot %s: %s", failed, strerror(errno));
    return;
  }
  bool ours = hwloc_topology_is_thissystem(machine) != 0;
  bny_topo_error error;
  bny_topo *found = import(machine, &error);
  hwloc_topology_destroy(machine);
  if (found == NULL) {
    bny_topo_probe_say(report, BNY_TOPO_PROBE_FAILED, "hwloc's topology is rejected: %.150s", error.text);
    return;
  }
  if (take_all(sysfs, topo, found, ours))
    describe(topo, ours, report);
  else
    bny_topo_probe_say(report, BNY_TOPO_PROBE_FAILED, "out of memory");
  bny_topo_free(found);
}

#else

static void run(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report) {
  (void)options;
  (void)topo;
#ifdef HAVE_HWLOC
  const char *missing = "libxml2, which reads what hwloc finds";
#else
  const char *missing = "hwloc";
#endif
  bny_topo_probe_say(report, BNY_TOPO_PROBE_ABSENT, "built without %s: no cgroups, no HWLOC_* variables", missing);
}

#endif

const bny_topo_probe bny_topo_probe_hwloc = {.name = "hwloc", .run = run};
