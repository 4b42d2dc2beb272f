/* SPDX-License-Identifier: Apache-2.0
 * Imports `nvidia-smi -q -x`: GPUs, their MIG instances, PCI links and fabric state. It does not list NUMA nodes,
 * bridges, NICs or the other ends of NVLinks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/model/model.h"
#include "topo/model/speed.h"
#include "topo/import/xml.h"

enum { MOST_GPUS = 65536, MOST_INSTANCES = 64 };

typedef struct reading {
  const bny_topo_xml *xml;
  bny_topo *topo;
  bny_topo_error *error;
  bny_topo_names buses, domains; /* domains: few, in order of appearance */
  int32_t host, gpus;
} reading;

/* Returns the text of a descendant by its path; NULL if it is absent or empty. *place receives the element. */
static const char *text_below(const reading *r, int32_t element, const char *const *way, int32_t *place) {
  for (; element >= 0 && *way != NULL; way++) element = bny_topo_xml_child(r->xml, element, *way);
  if (element < 0) return NULL;
  *place = element;
  const char *text = bny_topo_xml_text(r->xml, element);
  return text[0] == '\0' || strncmp(text, "N/A", 3) == 0 || strncmp(text, "[N/A", 4) == 0 ? NULL : text;
}

static const char *child_text(const reading *r, int32_t element, const char *name) {
  int32_t place;
  return text_below(r, element, (const char *const[]){name, NULL}, &place);
}

/* Reads "16x" and "5"; 0 if absent. */
static bool number_below(const reading *r, int32_t gpu, const char *group, const char *name, int most, int *number) {
  int32_t place;
  const char *text = text_below(r, gpu, (const char *const[]){"pci", "pci_gpu_link_info", group, name, NULL}, &place);
  *number = 0;
  if (text == NULL) return true;
  char *end;
  long value = strtol(text, &end, 10);
  if (end == text || (*end != '\0' && strcmp(end, "x") != 0) || value < 0 || value > most)
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, place), "<%s>%.40s: must be 0 to %d", name, text, most);
  *number = (int)value;
  return true;
}

/* The rated generation is used, because an idle GPU lowers the current one; in P0, the full-performance state, it does
 * not. The current width is used, because a width below the rated one is a fault. */
static bool join_pci(reading *r, int32_t gpu, int32_t node) {
  int rated, current, width, rated_width;
  const char *state = child_text(r, gpu, "performance_state");
  if (!number_below(r, gpu, "pcie_gen", "max_link_gen", BNY_TOPO_PCI_GENERATIONS, &rated) ||
      !number_below(r, gpu, "pcie_gen", "current_link_gen", BNY_TOPO_PCI_GENERATIONS, &current) ||
      !number_below(r, gpu, "link_widths", "current_link_width", 64, &width) ||
      !number_below(r, gpu, "link_widths", "max_link_width", 64, &rated_width))
    return false;
  int lanes = width == 0 ? rated_width : width;
  int generation = current > 0 && state != NULL && strcmp(state, "P0") == 0 ? current : rated;
  int32_t link = bny_topo_join(r->topo, BNY_TOPO_LINK_PCI, node, r->host, lanes, bny_topo_speed_pci(generation, lanes),
                               BNY_TOPO_FILE);
  if (link >= 0) r->topo->links[link].rated_gbytes_per_s = bny_topo_speed_pci(rated, rated_width);
  return link >= 0;
}

/* Returns the switch of an NVLink domain (cluster and clique). It is inside the host unless the cluster has a UUID
 * other than 0. */
static int32_t domain_of(reading *r, const char *cluster, const char *clique) {
  char guid[128];
  snprintf(guid, sizeof guid, "%.80s.%.20s", cluster, clique == NULL ? "0" : clique);
  for (int32_t d = 0; d < r->domains.count; d++) {
    int32_t node = r->domains.entries[d].value;
    if (strcmp(r->domains.entries[d].key, guid) == 0) return node;
  }
  bool local = strspn(cluster, "0-") == strlen(cluster);
  char name[32];
  snprintf(name, sizeof name, "nvlink%d", r->domains.count);
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_SWITCH, local ? r->host : -1, r->domains.count, name, BNY_TOPO_FILE);
  node.model = "NVLink domain", node.vendor = "NVIDIA", node.guid = guid;
  int32_t added = bny_topo_add_node(r->topo, &node);
  if (added >= 0) bny_topo_names_add(&r->domains, 0, r->topo->nodes[added].guid, added);
  return r->domains.out_of_memory ? -1 : added;
}

static bool join_fabric(reading *r, int32_t gpu, int32_t node) {
  int32_t fabric = bny_topo_xml_child(r->xml, gpu, "fabric");
  const char *state = fabric < 0 ? NULL : child_text(r, fabric, "state");
  const char *status = fabric < 0 ? NULL : child_text(r, fabric, "status");
  const char *cluster = fabric < 0 ? NULL : child_text(r, fabric, "clusterUuid");
  /* A GPU that has not joined the fabric has no NVLinks. That is a finding and not an error. */
  if (state == NULL || strcmp(state, "Completed") != 0 || status == NULL || strcmp(status, "Success") != 0 ||
      cluster == NULL)
    return true;
  enum { MOST_DOMAINS = 256 };
  if (r->domains.count == MOST_DOMAINS)
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, fabric), "more than %d NVLink domains", MOST_DOMAINS);
  int32_t to = domain_of(r, cluster, child_text(r, fabric, "cliqueId"));
  /* This output does not count the NVLinks of a GPU that has joined the fabric. */
  int32_t compute = r->topo->nodes[node].compute;
  compute = compute < 0 && child_text(r, gpu, "product_architecture") != NULL ? BNY_TOPO_COMPUTE_NEWEST : compute;
  int32_t count = bny_topo_nvlinks_most(compute);
  return (to >= 0 && bny_topo_join(r->topo, BNY_TOPO_LINK_NVLINK, node, to, count,
                                   count * bny_topo_speed_nvlink(compute), BNY_TOPO_ASSUMED) >= 0);
}

/* ---- health ------------------------------------------------------------------------------------------------------ */

/* Returns the driver's message for a GPU that does not answer; NULL if it answers. Any field may contain the
 * message. */
static const char *lost_of(const reading *r, int32_t gpu) {
  static const char *const words[] = {"GPU is lost", "GPU requires reset"};
  int32_t next = bny_topo_xml_next(r->xml, gpu), end = next < 0 ? bny_topo_xml_count(r->xml) : next;
  for (int32_t e = gpu + 1; e < end; e++) {
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
      if (strstr(bny_topo_xml_text(r->xml, e), words[i]) != NULL) return words[i];
  }
  return NULL;
}

/* Notes each field that shows a health problem of a GPU. A field that is absent or N/A is ignored. */
static bool note_health(const reading *r, int32_t gpu, int32_t node) {
  static const struct {
    bny_topo_note_kind kind;
    const char *good, *way[5];
  } fields[] = {
      {BNY_TOPO_NOTE_FABRIC, "Completed", {"fabric", "state"}},
      {BNY_TOPO_NOTE_FABRIC, "Success", {"fabric", "status"}},
      {BNY_TOPO_NOTE_FABRIC, "Healthy", {"fabric", "health", "summary"}},
      {BNY_TOPO_NOTE_FABRIC, "Full", {"fabric", "health", "bandwidth"}},
      {BNY_TOPO_NOTE_FABRIC, "False", {"fabric", "health", "route_recovery_in_progress"}},
      {BNY_TOPO_NOTE_FABRIC, "False", {"fabric", "health", "route_unhealthy"}},
      {BNY_TOPO_NOTE_FABRIC, "False", {"fabric", "health", "access_timeout_recovery"}},
      {BNY_TOPO_NOTE_FABRIC, "None", {"fabric", "health", "incorrect_configuration"}},
      {BNY_TOPO_NOTE_SLOWED, "Not Active", {"clocks_event_reasons", "clocks_event_reason_hw_slowdown"}},
      {BNY_TOPO_NOTE_SLOWED, "Not Active", {"clocks_event_reasons", "clocks_event_reason_hw_thermal_slowdown"}},
      {BNY_TOPO_NOTE_SLOWED, "Not Active", {"clocks_event_reasons", "clocks_event_reason_hw_power_brake_slowdown"}},
      {BNY_TOPO_NOTE_SLOWED, "Not Active", {"clocks_event_reasons", "clocks_event_reason_sw_thermal_slowdown"}},
      {BNY_TOPO_NOTE_SLOWED, "Not Active", {"clocks_throttle_reasons", "clocks_throttle_reason_hw_slowdown"}},
      {BNY_TOPO_NOTE_SLOWED, "Not Active", {"clocks_throttle_reasons", "clocks_throttle_reason_hw_thermal_slowdown"}},
      {BNY_TOPO_NOTE_SLOWED,
       "Not Active",
       {"clocks_throttle_reasons", "clocks_throttle_reason_hw_power_brake_slowdown"}},
      {BNY_TOPO_NOTE_SLOWED, "Not Active", {"clocks_throttle_reasons", "clocks_throttle_reason_sw_thermal_slowdown"}},
      {BNY_TOPO_NOTE_ERRORS, "None", {"gpu_recovery_action"}},
      {BNY_TOPO_NOTE_ERRORS, "0", {"pci", "replay_rollover_counter"}},
      {BNY_TOPO_NOTE_ERRORS, "0", {"ecc_errors", "volatile", "sram_uncorrectable"}},
      {BNY_TOPO_NOTE_ERRORS, "0", {"ecc_errors", "volatile", "sram_uncorrectable_parity"}},
      {BNY_TOPO_NOTE_ERRORS, "0", {"ecc_errors", "volatile", "sram_uncorrectable_secded"}},
      {BNY_TOPO_NOTE_ERRORS, "0", {"ecc_errors", "volatile", "dram_uncorrectable"}},
      {BNY_TOPO_NOTE_ERRORS, "0", {"ecc_errors", "volatile", "double_bit", "total"}},
      {BNY_TOPO_NOTE_ERRORS, "No", {"ecc_errors", "aggregate", "sram_threshold_exceeded"}},
      {BNY_TOPO_NOTE_ERRORS, "No", {"ecc_errors", "channel_repair_pending"}},
      {BNY_TOPO_NOTE_ERRORS, "No", {"ecc_errors", "tpc_repair_pending"}},
      {BNY_TOPO_NOTE_ERRORS, "No", {"retired_pages", "pending_retirement"}},
      {BNY_TOPO_NOTE_ERRORS, "No", {"retired_pages", "pending_blacklist"}},
      {BNY_TOPO_NOTE_ERRORS, "No", {"remapped_rows", "remapped_row_pending"}},
      {BNY_TOPO_NOTE_ERRORS, "No", {"remapped_rows", "remapped_row_failure"}},
  };
  const char *lost = lost_of(r, gpu);
  if (lost != NULL) return bny_topo_add_sign(r->topo, BNY_TOPO_NOTE_LOST, node, lost);
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    int32_t place;
    const char *text = text_below(r, gpu, fields[i].way, &place);
    char said[128];
    if (text == NULL || strcmp(text, fields[i].good) == 0 || strcmp(text, "Not Supported") == 0) continue;
    snprintf(said, sizeof said, "%s %.60s", bny_topo_xml_name(r->xml, place), text);
    if (!bny_topo_add_sign(r->topo, fields[i].kind, node, said)) return false;
  }
  return true;
}

/* Returns the replay counter of a GPU's PCI link; 0 if unknown. */
static double replays_of(const reading *r, int32_t gpu) {
  int32_t place;
  const char *text = text_below(r, gpu, (const char *const[]){"pci", "replay_counter", NULL}, &place);
  return text == NULL ? 0 : strtod(text, NULL);
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Compares the GPUs of a machine. Replays accumulate over its uptime, so a count above 100 and four times the median is
 * noted; for a single GPU, more than 1000. Disabled ECC is noted if most GPUs have it enabled; otherwise it is a
 * choice. */
static bool note_unlike(const reading *r) {
  static const char *const ecc_way[] = {"ecc_mode", "current_ecc", NULL};
  double *replays = malloc(((size_t)r->gpus + 1) * sizeof *replays);
  int32_t g = 0, on = 0, place, node = r->host;
  bool good = replays != NULL;
  for (int32_t e = bny_topo_xml_first(r->xml, 0); good && e >= 0; e = bny_topo_xml_next(r->xml, e)) {
    if (!bny_topo_xml_is(r->xml, e, "gpu")) continue;
    const char *ecc = text_below(r, e, ecc_way, &place);
    on += ecc != NULL && strcmp(ecc, "Enabled") == 0;
    replays[g++] = replays_of(r, e);
  }
  if (good) qsort(replays, (size_t)g, sizeof *replays, by_value);
  double usual = good && g > 1 ? replays[(g - 1) / 2] : 250, limit = usual < 25 ? 100 : 4 * usual;
  for (int32_t e = bny_topo_xml_first(r->xml, 0); good && e >= 0; e = bny_topo_xml_next(r->xml, e)) {
    if (!bny_topo_xml_is(r->xml, e, "gpu")) continue;
    do node++; /* in the order of the file */
    while (r->topo->nodes[node].kind != BNY_TOPO_GPU || bny_topo_device(r->topo, node) != node);
    const char *ecc = text_below(r, e, ecc_way, &place);
    char said[64];
    snprintf(said, sizeof said, "%.0f PCI replays", replays_of(r, e));
    if (replays_of(r, e) > limit) good = bny_topo_add_sign(r->topo, BNY_TOPO_NOTE_REPLAYS, node, said);
    if (good && ecc != NULL && strcmp(ecc, "Disabled") == 0 && 2 * on > g)
      good = bny_topo_add_sign(r->topo, BNY_TOPO_NOTE_ERRORS, node, "ECC is off, and on for the others");
  }
  free(replays);
  return good;
}

/* Adds the MIG instances of a GPU as partitions. The first one is the GPU itself. */
static bool add_instances(const reading *r, int32_t gpu, int32_t whole, bny_topo_node node) {
  int32_t group = bny_topo_xml_child(r->xml, gpu, "mig_devices"), part = 0;
  char name[32];
  node.parent = whole, node.name = name, node.bus_id = node.guid = NULL;
  for (int32_t e = group < 0 ? -1 : bny_topo_xml_first(r->xml, group); e >= 0; e = bny_topo_xml_next(r->xml, e)) {
    if (!bny_topo_xml_is(r->xml, e, "mig_device") || part++ == 0) continue;
    if (part > MOST_INSTANCES)
      return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, e), "more than %d MIG instances", MOST_INSTANCES);
    snprintf(name, sizeof name, "GPU%d.%d", (int)node.index, (int)part - 1);
    if (bny_topo_add_node(r->topo, &node) < 0) return false;
  }
  int32_t place;
  const char *mig = text_below(r, gpu, (const char *const[]){"mig_mode", "current_mig", NULL}, &place);
  return part > 0 || mig == NULL || strcmp(mig, "Enabled") != 0 ||
         bny_topo_add_note(r->topo, whole, "MIG is enabled and it has no instance, so no rank can use it");
}

static bool take_gpu(reading *r, int32_t gpu) {
  char bus_id[BNY_TOPO_BUS_BYTES], name[32];
  int line = bny_topo_xml_line(r->xml, gpu);
  const char *bus = bny_topo_xml_attribute(r->xml, gpu, "id");
  if (bus == NULL || !bny_topo_bus_normalise(bus, bus_id)) {
    return bny_topo_fail(r->error, line, "<gpu id=\"%.40s\">: not a bus id such as 00000000:1B:00.0",
                         bus == NULL ? "" : bus);
  }
  if (r->gpus == MOST_GPUS) return bny_topo_fail(r->error, line, "more than %d GPUs", MOST_GPUS);
  snprintf(name, sizeof name, "GPU%d", r->gpus);
  const char *product = child_text(r, gpu, "product_name");
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_GPU, r->host, r->gpus++, name, BNY_TOPO_FILE);
  node.model = product, node.vendor = "NVIDIA", node.bus_id = bus_id, node.guid = child_text(r, gpu, "uuid");
  node.compute = bny_topo_compute_of(child_text(r, gpu, "product_architecture"), product);
  int32_t added = bny_topo_add_node(r->topo, &node);
  if (added < 0) return false;
  bny_topo_names_add(&r->buses, 0, r->topo->nodes[added].bus_id, gpu);
  if (!note_health(r, gpu, added)) return false;
  return join_pci(r, gpu, added) && join_fabric(r, gpu, added) && add_instances(r, gpu, added, node);
}

static bool read_log(reading *r) {
  bny_topo_node host = bny_topo_node_of(BNY_TOPO_HOST, -1, 0, "host0", BNY_TOPO_FILE);
  r->host = bny_topo_add_node(r->topo, &host);
  if (r->host < 0) return false;
  for (int32_t e = bny_topo_xml_first(r->xml, 0); e >= 0; e = bny_topo_xml_next(r->xml, e))
    if (bny_topo_xml_is(r->xml, e, "gpu") && !take_gpu(r, e)) return false;
  const bny_topo_name *twice = bny_topo_names_sort(&r->buses);
  if (r->buses.out_of_memory) return false;
  if (twice != NULL)
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, twice->value), "bus id %s appears twice", twice->key);
  if (!note_unlike(r)) return false;
  int32_t place = 0;
  const char *attached = text_below(r, 0, (const char *const[]){"attached_gpus", NULL}, &place);
  /* With -i the file has fewer GPUs than are attached. */
  long count = attached == NULL ? r->gpus : strtol(attached, NULL, 10);
  if (count > r->gpus && r->gpus > 1) { /* a single GPU was selected with -i */
    char text[64];
    snprintf(text, sizeof text, "%ld GPUs attached, %d listed", count, r->gpus);
    if (!bny_topo_add_sign(r->topo, BNY_TOPO_NOTE_LOST, r->host, text)) return false;
  }
  if (count < r->gpus) {
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, place), "<attached_gpus>%.20s, but it lists %d", attached,
                         r->gpus);
  }
  return r->gpus > 0 || bny_topo_fail(r->error, bny_topo_xml_line(r->xml, 0), "holds no <gpu>");
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  bny_topo_xml *xml = bny_topo_xml_parse(text, bytes, error);
  if (xml == NULL) return false;
  reading r = {.xml = xml, .topo = topo, .error = error};
  bool taken = read_log(&r);
  bny_topo_names_free(&r.buses);
  bny_topo_names_free(&r.domains);
  bny_topo_xml_free(xml);
  return taken;
}

static bool recognises(const char *text, size_t bytes) { return bny_topo_xml_root_is(text, bytes, "nvidia_smi_log"); }

const bny_topo_importer bny_topo_import_smi = {.name = "nvidia-smi-xml", .recognises = recognises, .parse = parse};
