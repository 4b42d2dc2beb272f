/* SPDX-License-Identifier: Apache-2.0
 * Probes GPUs, their PCI links, NVLinks and fabric with NVIDIA's management library. GPUs already in the model are
 * found by bus id. A GPU that does not answer is reported and skipped; the others are probed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "topo/probe/nvml.h"
#include "topo/probe/util.h"
#include "topo/model/speed.h"

enum { MOST_GPUS = 256, NUMA_WORDS = 16, WORD_BITS = 8 * sizeof(unsigned long), MOST_LANES = 32 };

static const char *plural(int32_t count) { return count == 1 ? "" : "s"; }

/* ---- the place of a GPU ------------------------------------------------------------------------------------------ */

static int32_t host_of_machine(bny_topo *topo) {
  char name[256] = "";
  return bny_topo_probe_host(topo, gethostname(name, sizeof name - 1) == 0 ? name : NULL);
}

/* Returns the NUMA node that NVML reports, if it is a single one in the model; otherwise the host. */
static int32_t place_of(const bny_nvml_machine *machine, bny_nvml_device device) {
  unsigned long words[NUMA_WORDS] = {0};
  int32_t near = -1, count = 0;
  const bny_nvml *nvml = machine->nvml;
  if (nvml->memory_affinity(device, NUMA_WORDS, words, BNY_NVML_SCOPE_NODE) != BNY_NVML_SUCCESS) return machine->host;
  for (int32_t bit = 0; bit < NUMA_WORDS * (int32_t)WORD_BITS; bit++)
    if (words[bit / (int32_t)WORD_BITS] >> bit % (int32_t)WORD_BITS & 1) near = bit, count++;
  int32_t numa = count == 1 ? bny_topo_find_numa(machine->topo, near) : -1;
  return numa >= 0 ? numa : machine->host;
}

/* Finds the GPU by bus id. If sysfs does not show it, adds it, named by NVML's number or the next free one, because
 * GPUs of other vendors have numbers too. */
static int32_t gpu_place(const bny_nvml_machine *machine, const bny_nvml_gpu *gpu) {
  char name[32];
  unsigned number = gpu->number;
  int32_t known = bny_topo_find_bus(machine->topo, gpu->bus_id);
  if (known >= 0 && machine->topo->nodes[known].kind == BNY_TOPO_GPU) return known;
  do {
    snprintf(name, sizeof name, "GPU%u", number++);
  } while (bny_topo_find_name(machine->topo, BNY_TOPO_GPU, name) >= 0);
  bny_topo_node node =
      bny_topo_node_of(BNY_TOPO_GPU, place_of(machine, gpu->device), (int32_t)gpu->number, name, BNY_TOPO_PROBED);
  node.bus_id = known < 0 ? gpu->bus_id : NULL;
  return bny_topo_add_node(machine->topo, &node);
}

/* ---- properties of a GPU ----------------------------------------------------------------------------------------- */

static void gpu_describe(const bny_nvml_machine *machine, bny_nvml_gpu *gpu) {
  const bny_nvml *nvml = machine->nvml;
  bny_topo *topo = machine->topo;
  bny_topo_node *node = &topo->nodes[gpu->node];
  char text[BNY_NVML_TEXT_BYTES] = "";
  int major = 0, minor = 0;
  if (nvml->name(gpu->device, text, sizeof text) == BNY_NVML_SUCCESS) {
    text[sizeof text - 1] = '\0';
    bny_topo_set_string(topo, &node->model, text);
  }
  if (nvml->uuid(gpu->device, text, sizeof text) == BNY_NVML_SUCCESS) {
    text[sizeof text - 1] = '\0';
    bny_topo_set_string(topo, &node->guid, text);
  }
  bny_topo_set_string(topo, &node->vendor, "NVIDIA");
  if (nvml->compute(gpu->device, &major, &minor) == BNY_NVML_SUCCESS && major > 0 && major < 100 && minor >= 0 &&
      minor < 10)
    node->compute = 10 * major + minor;
  gpu->compute = node->compute;
  node->index = (int32_t)gpu->number;
  node->source = BNY_TOPO_PROBED;
}

static int number_of(bny_nvml_return (*ask)(bny_nvml_device, unsigned *), bny_nvml_device device, unsigned most) {
  unsigned value = 0;
  return ask(device, &value) == BNY_NVML_SUCCESS && value <= most ? (int)value : 0;
}

/* The rated generation is used, because an idle GPU lowers the current one. The current width is used, because a width
 * below the rated one is a fault. */
static void gpu_join_pci(const bny_nvml_machine *machine, const bny_nvml_gpu *gpu) {
  const bny_nvml *nvml = machine->nvml;
  int generation = number_of(nvml->generation_most, gpu->device, BNY_TOPO_PCI_GENERATIONS);
  int rated_lanes = number_of(nvml->width_most, gpu->device, MOST_LANES);
  int lanes = number_of(nvml->width, gpu->device, MOST_LANES);
  if (generation == 0) generation = number_of(nvml->generation, gpu->device, BNY_TOPO_PCI_GENERATIONS);
  if (lanes == 0) lanes = rated_lanes;
  if (generation == 0 || lanes == 0) return;
  int32_t up = bny_topo_probe_upwards(machine->topo, gpu->node, BNY_TOPO_LINK_PCI);
  if (up < 0) return;
  bny_topo_link *link = &machine->topo->links[up];
  link->count = lanes;
  link->gbytes_per_s = bny_topo_speed_pci(generation, lanes);
  link->rated_gbytes_per_s = bny_topo_speed_pci(generation, rated_lanes);
  link->source = BNY_TOPO_PROBED;
}

/* Adds coherent links to the CPU if the model has the NUMA node. */
static void gpu_join_cpu(const bny_nvml_machine *machine, const bny_nvml_gpu *gpu) {
  int32_t numa = bny_topo_ancestor(machine->topo, gpu->node, BNY_TOPO_NUMA), up = 0;
  double count = 0, state, megabytes, sum = 0;
  if (numa < 0 || !bny_nvml_field_read(machine->nvml, gpu->device, BNY_NVML_FIELD_C2C_COUNT, 0, &count)) return;
  if (!(count >= 1 && count <= 64)) return;
  for (unsigned l = 0; l < (unsigned)count; l++) {
    bool reports = bny_nvml_field_read(machine->nvml, gpu->device, BNY_NVML_FIELD_C2C_STATUS, l, &state);
    if (reports && state == 0) continue;
    up++;
    if (bny_nvml_field_read(machine->nvml, gpu->device, BNY_NVML_FIELD_C2C_SPEED, l, &megabytes) && megabytes > 0 &&
        megabytes < 1e6)
      sum += megabytes;
  }
  if (up == 0) return;
  bny_topo_add_link(machine->topo, &(bny_topo_link){.kind = BNY_TOPO_LINK_C2C,
                                                    .from = gpu->node,
                                                    .to = numa,
                                                    .count = up,
                                                    .gbytes_per_s = sum / 1000,
                                                    .rated_gbytes_per_s = sum / 1000 * (count / up),
                                                    .source = BNY_TOPO_PROBED});
}

/* ---- all GPUs ---------------------------------------------------------------------------------------------------- */

static bny_nvml_return gpu_open(const bny_nvml *nvml, unsigned number, bny_nvml_gpu *gpu) {
  *gpu = (bny_nvml_gpu){.number = number, .node = -1, .compute = -1, .domain = -1};
  bny_nvml_pci pci = {0};
  bny_nvml_return status = nvml->handle(number, &gpu->device);
  if (status == BNY_NVML_SUCCESS) status = nvml->pci(gpu->device, &pci);
  if (status != BNY_NVML_SUCCESS) return status;
  if (pci.bus > 0xff || pci.device > 0x1f) return BNY_NVML_UNKNOWN;
  snprintf(gpu->bus_id, sizeof gpu->bus_id, "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
  return BNY_NVML_SUCCESS;
}

/* Opens the GPUs that answer, each once. Returns the number of GPUs that do not answer; *status and *number describe
 * the first of them. */
static int32_t gpus_open(bny_nvml_machine *machine, unsigned count, bny_nvml_return *status, unsigned *number) {
  int32_t lost = 0;
  for (unsigned g = 0; g < count; g++) {
    bny_nvml_gpu *gpu = &machine->gpus[machine->ngpus];
    bny_nvml_return got = gpu_open(machine->nvml, g, gpu);
    for (int32_t i = 0; i < machine->ngpus && got == BNY_NVML_SUCCESS; i++)
      if (strcmp(machine->gpus[i].bus_id, gpu->bus_id) == 0) got = BNY_NVML_UNKNOWN;
    if (got == BNY_NVML_SUCCESS)
      machine->ngpus++;
    else if (lost++ == 0)
      *status = got, *number = g;
  }
  return lost;
}

static void report_found(const bny_nvml_machine *machine, bny_topo_probe_report *report) {
  bny_topo_probe_more(report, "%d GPU%s", machine->ngpus, plural(machine->ngpus));
  if (machine->links > 0) bny_topo_probe_more(report, ", %d NVLink%s", machine->links, plural(machine->links));
  if (machine->nswitches > 0)
    bny_topo_probe_more(report, " by %d NVSwitch%s", machine->nswitches, machine->nswitches == 1 ? "" : "es");
  if (machine->gpus[0].domain >= 0)
    bny_topo_probe_more(report, " in NVLink domain %.60s", machine->topo->nodes[machine->gpus[0].domain].guid);
  if (machine->links_down > 0) bny_topo_probe_more(report, ", %d down", machine->links_down);
  if (machine->links_refused > 0) bny_topo_probe_more(report, ", %d without peer access", machine->links_refused);
  if (machine->links_unseen > 0) bny_topo_probe_more(report, ", %d lead out of sight", machine->links_unseen);
}

static void gpus_probe(bny_nvml_machine *machine, unsigned count, bny_topo_probe_report *report) {
  bny_nvml_return status = BNY_NVML_SUCCESS;
  unsigned number = 0;
  int32_t lost = gpus_open(machine, count, &status, &number);
  if (machine->ngpus == 0) {
    report->outcome = BNY_TOPO_PROBE_FAILED;
    bny_topo_probe_more(report, "none of %u GPU%s answers: %.80s", count, plural((int32_t)count),
                        bny_nvml_error(machine->nvml, status));
    return;
  }
  machine->host = host_of_machine(machine->topo);
  for (int32_t g = 0; g < machine->ngpus && machine->host >= 0; g++) {
    bny_nvml_gpu *gpu = &machine->gpus[g];
    gpu->node = gpu_place(machine, gpu);
    if (gpu->node < 0) break;
    gpu_describe(machine, gpu);
    gpu_join_pci(machine, gpu);
    gpu_join_cpu(machine, gpu);
  }
  char text[128];
  snprintf(text, sizeof text, "GPU %u %s not answer: %.60s", number, lost > 1 ? "and others do" : "does",
           bny_nvml_error(machine->nvml, status));
  if (lost > 0 && machine->host >= 0) bny_topo_add_sign(machine->topo, BNY_TOPO_NOTE_LOST, machine->host, text);
  if (!machine->topo->out_of_memory) bny_nvml_links(machine);
  report->outcome = machine->topo->out_of_memory ? BNY_TOPO_PROBE_FAILED : BNY_TOPO_PROBE_FOUND;
  if (machine->topo->out_of_memory) {
    bny_topo_probe_more(report, "out of memory");
    return;
  }
  report_found(machine, report);
  if (lost > 0) bny_topo_probe_more(report, "; %s", text);
}

static void run(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report) {
  bny_nvml nvml;
  report->text[0] = '\0';
  bny_nvml_loading loading = bny_nvml_open(options->nvml, &nvml, report->text, sizeof report->text);
  if (loading != BNY_NVML_LOADED) {
    report->outcome = loading == BNY_NVML_NO_LIBRARY ? BNY_TOPO_PROBE_ABSENT : BNY_TOPO_PROBE_FAILED;
    return;
  }
  unsigned count = 0;
  bny_nvml_return status = nvml.count(&count);
  bny_nvml_machine machine = {.nvml = &nvml, .topo = topo, .host = -1};
  if (status == BNY_NVML_SUCCESS && count > 0 && count <= MOST_GPUS) machine.gpus = calloc(count, sizeof *machine.gpus);
  if (machine.gpus) {
    gpus_probe(&machine, count, report);
  } else {
    report->outcome = status == BNY_NVML_SUCCESS && count == 0 ? BNY_TOPO_PROBE_NOTHING : BNY_TOPO_PROBE_FAILED;
    if (status != BNY_NVML_SUCCESS)
      bny_topo_probe_more(report, "nvmlDeviceGetCount_v2: %.120s", bny_nvml_error(&nvml, status));
    else if (count == 0)
      bny_topo_probe_more(report, "the driver has no GPU");
    else
      bny_topo_probe_more(report, count > MOST_GPUS ? "%u GPUs, which no machine has" : "out of memory for %u GPUs",
                          count);
  }
  free(machine.gpus);
  bny_nvml_close(&nvml);
}

const bny_topo_probe bny_topo_probe_nvml = {.name = "nvml", .run = run};
