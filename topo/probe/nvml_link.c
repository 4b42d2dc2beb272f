/* SPDX-License-Identifier: Apache-2.0
 * Probes NVLinks. For each link of each GPU, NVML reports whether it is up and what is at its other end: a GPU, an
 * NVSwitch or a CPU (POWER). Links to the same node become one link of the model. The rated number of links is the
 * GPU's own number including links that are down, or the largest number among GPUs of the same kind. It is not from a
 * table, because boards differ. */
#include "topo/probe/nvml.h"

#include <stdio.h>
#include <string.h>

#include "topo/model/speed.h"

static const unsigned hidden_bus = 0xff; /* virtual machines report a switch as ffffffff:ff:ff */

typedef enum access { ACCESS_UNKNOWN, ACCESS_GIVEN, ACCESS_REJECTED } access_state;

/* ---- the other end of a link ------------------------------------------------------------------------------------- */

static int32_t switch_add(bny_nvml_machine *machine, int32_t parent, const char *name, const char *model,
                          const char *bus_id, const char *guid) {
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_SWITCH, parent, machine->nswitches, name, BNY_TOPO_PROBED);
  node.model = model, node.vendor = "NVIDIA", node.bus_id = bus_id, node.guid = guid;
  return bny_topo_add_node(machine->topo, &node);
}

/* Returns a node per NVSwitch; one shared node if the bus id is hidden ("") or there are too many switches. */
static int32_t switch_of(bny_nvml_machine *machine, const char *bus_id) {
  if (machine->nswitches >= BNY_NVML_SWITCHES_MAX - 1) bus_id = "";
  for (int32_t s = 0; s < machine->nswitches; s++)
    if (strcmp(machine->switches[s].bus_id, bus_id) == 0) return machine->switches[s].node;
  char name[32];
  snprintf(name, sizeof name, "nvswitch%d", machine->nswitches);
  int32_t known = bus_id[0] ? bny_topo_find_bus(machine->topo, bus_id) : -1;
  bool is_switch = known >= 0 && machine->topo->nodes[known].kind == BNY_TOPO_SWITCH;
  int32_t node = is_switch ? known
                           : switch_add(machine, machine->host, name, bus_id[0] ? NULL : "hidden by the driver",
                                        bus_id[0] && known < 0 ? bus_id : NULL, NULL);
  if (node < 0) return -1;
  snprintf(machine->switches[machine->nswitches].bus_id, BNY_TOPO_BUS_BYTES, "%s", bus_id);
  machine->switches[machine->nswitches++].node = node;
  return node;
}

/* Returns the switch of an NVLink domain across hosts. Its GUID is the same on all hosts of the domain. */
static int32_t domain_of(bny_nvml_machine *machine, const bny_nvml_fabric *fabric) {
  char guid[64], name[32];
  const unsigned char *u = fabric->uuid;
  int32_t domains = 0;
  snprintf(guid, sizeof guid, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x.%u", u[0], u[1],
           u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15], fabric->clique);
  for (int32_t n = 0; n < machine->topo->nnodes; n++) {
    const bny_topo_node *node = &machine->topo->nodes[n];
    if (node->kind != BNY_TOPO_SWITCH || !node->guid) continue;
    if (strcmp(node->guid, guid) == 0) return n;
    domains += node->model && strcmp(node->model, "NVLink domain") == 0;
  }
  snprintf(name, sizeof name, "nvlink%d", domains);
  return switch_add(machine, -1, name, "NVLink domain", NULL, guid);
}

static void fabric_read(bny_nvml_machine *machine, bny_nvml_gpu *gpu) {
  bny_nvml_fabric fabric;
  static const unsigned char none[sizeof fabric.uuid];
  if (!bny_nvml_fabric_read(machine->nvml, gpu->device, &fabric) || fabric.state == BNY_NVML_FABRIC_NOT_SUPPORTED)
    return;
  bool registered = fabric.state == BNY_NVML_FABRIC_COMPLETED && fabric.status == BNY_NVML_SUCCESS;
  gpu->fabric_failed = !registered;
  if (!registered) {
    char text[64];
    snprintf(text, sizeof text, "state %u, status %d", (unsigned)fabric.state, (int)fabric.status);
    bny_topo_add_sign(machine->topo, BNY_TOPO_NOTE_FABRIC, gpu->node, text);
  }
  /* A fabric without a UUID is limited to the host. */
  if (registered && memcmp(fabric.uuid, none, sizeof none) != 0) gpu->domain = domain_of(machine, &fabric);
}

/* Returns the node at the other end of a link; -1 if it is unknown or not visible. */
static int32_t target_of(bny_nvml_machine *machine, const bny_nvml_gpu *gpu, unsigned link) {
  const bny_nvml *nvml = machine->nvml;
  unsigned type;
  bny_nvml_pci pci = {0};
  char bus_id[BNY_TOPO_BUS_BYTES] = "";
  if (nvml->link_remote_type(gpu->device, link, &type) != BNY_NVML_SUCCESS) type = BNY_NVML_REMOTE_UNKNOWN;
  bool known = nvml->link_remote(gpu->device, link, &pci) == BNY_NVML_SUCCESS;
  if (known && pci.bus < hidden_bus && pci.device <= 0x1f)
    snprintf(bus_id, sizeof bus_id, "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
  for (int32_t g = 0; bus_id[0] && g < machine->ngpus; g++)
    if (strcmp(machine->gpus[g].bus_id, bus_id) == 0) return &machine->gpus[g] == gpu ? -1 : machine->gpus[g].node;
  if (type == BNY_NVML_REMOTE_CPU) return bny_topo_ancestor(machine->topo, gpu->node, BNY_TOPO_NUMA);
  if (type != BNY_NVML_REMOTE_SWITCH) return -1;
  return gpu->domain >= 0 ? gpu->domain : switch_of(machine, bus_id);
}

static bny_nvml_way *way_to(bny_nvml_gpu *gpu, int32_t to) {
  for (int32_t w = 0; w < gpu->nways; w++)
    if (gpu->ways[w].to == to) return &gpu->ways[w];
  gpu->ways[gpu->nways] = (bny_nvml_way){.to = to};
  return &gpu->ways[gpu->nways++]; /* there are at most as many entries as links */
}

static double link_megabytes(const bny_nvml *nvml, bny_nvml_device device, unsigned link) {
  double value = 0;
  bool reports = bny_nvml_field_read(nvml, device, BNY_NVML_FIELD_NVLINK_SPEED, link, &value);
  if ((!reports || value <= 0) && link < 6)
    reports = bny_nvml_field_read(nvml, device, BNY_NVML_FIELD_NVLINK_SPEED_0 + link, 0, &value);
  if (!reports || value <= 0)
    reports = bny_nvml_field_read(nvml, device, BNY_NVML_FIELD_NVLINK_SPEED_COMMON, 0, &value);
  return reports && value > 0 && value < 1e6 ? value : 0;
}

static void links_read(bny_nvml_machine *machine, bny_nvml_gpu *gpu) {
  const bny_nvml *nvml = machine->nvml;
  for (unsigned l = 0; l < BNY_NVML_LINKS_MAX; l++) {
    unsigned state = 0;
    if (nvml->link_state(gpu->device, l, &state) != BNY_NVML_SUCCESS) continue; /* no such link */
    int32_t to = target_of(machine, gpu, l);
    if (to < 0) {
      gpu->down_somewhere += state == 0;
      machine->links_unseen += state != 0;
      continue;
    }
    bny_nvml_way *way = way_to(gpu, to);
    way->up += state != 0;
    way->down += state == 0;
    if (state != 0) way->megabytes += link_megabytes(nvml, gpu->device, l);
  }
}

/* ---- peer access ------------------------------------------------------------------------------------------------- */

static access_state access_by(const bny_nvml *nvml, const bny_nvml_gpu *a, const bny_nvml_gpu *b, unsigned capability) {
  unsigned status = BNY_NVML_P2P_UNKNOWN;
  if (nvml->p2p(a->device, b->device, capability, &status) != BNY_NVML_SUCCESS || status == BNY_NVML_P2P_UNKNOWN)
    return ACCESS_UNKNOWN;
  return status == BNY_NVML_P2P_OK ? ACCESS_GIVEN : ACCESS_REJECTED;
}

static access_state access_between(const bny_nvml *nvml, const bny_nvml_gpu *a, const bny_nvml_gpu *b) {
  access_state read = access_by(nvml, a, b, BNY_NVML_P2P_READ), links = access_by(nvml, a, b, BNY_NVML_P2P_NVLINK);
  if (read == ACCESS_REJECTED || links == ACCESS_REJECTED) return ACCESS_REJECTED;
  return read == ACCESS_GIVEN ? ACCESS_GIVEN : links;
}

static bool is_switch(const bny_nvml_machine *machine, const bny_nvml_way *way) {
  return machine->topo->nodes[way->to].kind == BNY_TOPO_SWITCH;
}

static int32_t links_to_switches(const bny_nvml_machine *machine, const bny_nvml_gpu *gpu) {
  int32_t up = 0;
  for (int32_t w = 0; w < gpu->nways; w++) up += is_switch(machine, &gpu->ways[w]) ? gpu->ways[w].up : 0;
  return up;
}

/* Returns whether a GPU cannot access any other GPU through switches. If it can access one, the fault is at the other
 * end. */
static bool rejected_by_switches(const bny_nvml_machine *machine, const bny_nvml_gpu *gpu) {
  int32_t rejected = 0;
  for (int32_t g = 0; g < machine->ngpus; g++) {
    const bny_nvml_gpu *other = &machine->gpus[g];
    if (other == gpu || links_to_switches(machine, other) == 0) continue;
    access_state access = access_between(machine->nvml, gpu, other);
    if (access == ACCESS_GIVEN) return false;
    rejected += access == ACCESS_REJECTED;
  }
  return rejected > 0 || gpu->fabric_failed;
}

/* ---- links of the model ------------------------------------------------------------------------------------------ */

/* Returns the raw speed of the fastest link among GPUs of that kind, which is the reference for slower ones. */
static double full_megabytes(const bny_nvml_machine *machine, int32_t compute) {
  double full = 0;
  for (int32_t g = 0; g < machine->ngpus; g++) {
    const bny_nvml_gpu *gpu = &machine->gpus[g];
    for (int32_t w = 0; w < gpu->nways && gpu->compute == compute; w++) {
      double one = gpu->ways[w].up > 0 ? gpu->ways[w].megabytes / gpu->ways[w].up : 0;
      full = one > full ? one : full;
    }
  }
  return full;
}

/* Adds a link. `rated` is the number of links that should be up. */
static void link_put(bny_nvml_machine *machine, const bny_nvml_gpu *gpu, const bny_nvml_way *way, int32_t up,
                     int32_t rated, bool rejected) {
  double full = full_megabytes(machine, gpu->compute), one = bny_topo_speed_nvlink(gpu->compute);
  double part = full > 0 && way->megabytes > 0 ? way->megabytes / way->up / full : 1;
  bny_topo_link link = {.kind = BNY_TOPO_LINK_NVLINK,
                        .from = gpu->node,
                        .to = way->to,
                        .count = up,
                        .gbytes_per_s = rejected ? 0 : up * one * part,
                        .rated_gbytes_per_s = rated * one,
                        .source = BNY_TOPO_PROBED};
  machine->links += up;
  machine->links_refused += rejected ? up : 0;
  bny_topo_add_link(machine->topo, &link);
}

/* Adds direct links. Both ends report a link. The smaller count is used, because a link that is down at one end is
 * down. */
static void join_direct(bny_nvml_machine *machine, int32_t g) {
  bny_nvml_gpu *gpu = &machine->gpus[g];
  for (int32_t w = 0; w < gpu->nways; w++) {
    const bny_nvml_way *way = &gpu->ways[w], *back = NULL;
    if (is_switch(machine, way)) continue;
    int32_t other = 0;
    while (other < machine->ngpus && machine->gpus[other].node != way->to) other++;
    for (int32_t b = 0; other < machine->ngpus && b < machine->gpus[other].nways; b++)
      if (machine->gpus[other].ways[b].to == gpu->node) back = &machine->gpus[other].ways[b];
    if (back && other < g) continue; /* added from the other end */
    int32_t up = back && back->up < way->up ? back->up : way->up, rated = way->up + way->down;
    if (back && back->up + back->down > rated) rated = back->up + back->down;
    machine->links_down += rated - up;
    if (up == 0) continue;
    bool rejected =
        other < machine->ngpus && access_between(machine->nvml, gpu, &machine->gpus[other]) == ACCESS_REJECTED;
    link_put(machine, gpu, way, up, rated, rejected);
    if (!back && other < machine->ngpus)
      bny_topo_add_sign(machine->topo, BNY_TOPO_NOTE_ONE_SIDED, way->to, machine->topo->nodes[gpu->node].name);
  }
}

/* Counts a GPU's links to switches, including links that are down. If the GPU has other links too, only links that are
 * up count. */
static int32_t links_owned(const bny_nvml_machine *machine, const bny_nvml_gpu *gpu) {
  int32_t owned = gpu->down_somewhere;
  for (int32_t w = 0; w < gpu->nways; w++) {
    if (!is_switch(machine, &gpu->ways[w])) return links_to_switches(machine, gpu);
    owned += gpu->ways[w].up + gpu->ways[w].down;
  }
  return owned;
}

static int32_t most_to(const bny_nvml_machine *machine, const bny_nvml_gpu *like, int32_t to) {
  int32_t most = 0;
  for (int32_t g = 0; g < machine->ngpus; g++) {
    const bny_nvml_gpu *gpu = &machine->gpus[g];
    for (int32_t w = 0; w < gpu->nways && gpu->compute == like->compute; w++)
      most = gpu->ways[w].to == to && gpu->ways[w].up > most ? gpu->ways[w].up : most;
  }
  return most;
}

/* Adds links to switches. Missing links are assigned to switches to which peers have more links, and the rest to the
 * switch with the fewest. */
static void join_switches(bny_nvml_machine *machine, const bny_nvml_gpu *gpu) {
  int32_t up = links_to_switches(machine, gpu), most = 0, missing[BNY_NVML_LINKS_MAX] = {0}, fewest = -1;
  for (int32_t g = 0; g < machine->ngpus; g++) {
    int32_t owned = machine->gpus[g].compute == gpu->compute && links_to_switches(machine, &machine->gpus[g]) > 0
                        ? links_owned(machine, &machine->gpus[g])
                        : 0;
    most = owned > most ? owned : most;
  }
  if (up == 0) return;
  int32_t left = most - up;
  machine->links_down += left;
  for (int32_t w = 0; w < gpu->nways; w++) {
    const bny_nvml_way *way = &gpu->ways[w];
    if (!is_switch(machine, way) || way->up == 0) continue;
    int32_t fewer = most_to(machine, gpu, way->to) - way->up;
    missing[w] = fewer < left ? fewer : left;
    left -= missing[w];
    if (fewest < 0 || way->up < gpu->ways[fewest].up) fewest = w;
  }
  if (fewest >= 0) missing[fewest] += left;
  bool rejected = rejected_by_switches(machine, gpu);
  for (int32_t w = 0; w < gpu->nways; w++) {
    const bny_nvml_way *way = &gpu->ways[w];
    if (is_switch(machine, way) && way->up > 0) link_put(machine, gpu, way, way->up, way->up + missing[w], rejected);
  }
}

void bny_nvml_links(bny_nvml_machine *machine) {
  for (int32_t g = 0; g < machine->ngpus; g++) {
    fabric_read(machine, &machine->gpus[g]);
    links_read(machine, &machine->gpus[g]);
  }
  for (int32_t g = 0; g < machine->ngpus && !machine->topo->out_of_memory; g++) {
    join_direct(machine, g);
    join_switches(machine, &machine->gpus[g]);
  }
}
