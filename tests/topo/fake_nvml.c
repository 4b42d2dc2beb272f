/* SPDX-License-Identifier: Apache-2.0
 * A fake NVML for machines without a GPU. It has the functions that the probe calls, and answers as the machine that
 * FAKE_NVML names. FAKE_NVML_OPEN is set in the environment from init to shutdown. FAKE_NVML_FAILS is a seed with
 * which one call in eight fails. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/probe/nvml.h"
#include "tests/support/generator.h"

#define EXPORTED __attribute__((visibility("default")))

typedef enum joined { BY_NOTHING, BY_SWITCHES, BY_HIDDEN_SWITCHES, BY_MESH } joined;
typedef enum fault {
  NO_FAULT,
  LINKS_DOWN,    /* the last 6 of one GPU, or of all */
  LINKS_SLOW,    /* half speed, on one GPU */
  LANES_MISSING, /* 8 of 16, on one GPU */
  GPU_LOST,
  PEERS_REJECTED, /* all pairs */
  NOT_REGISTERED, /* one GPU is not in the fabric */
  CALLS_FAIL,
  INIT_FAILS,
  NO_DRIVER,
  ONE_BUS /* all GPUs report the same bus id */
} fault;

enum { ALL = -1 };

typedef struct machine {
  const char *name, *product;
  unsigned gpus, links;
  joined by;
  int major, minor;
  unsigned megabytes; /* speed of a link */
  fault wrong;
  int where;
  bool domain, coherent;
} machine;

static const char h100[] = "NVIDIA H100 80GB HBM3", v100[] = "Tesla V100-SXM2-32GB", gb200[] = "NVIDIA GB200";

static const machine machines[] = {
    {"dgx-h100", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, NO_FAULT, 0, false, false},
    {"dgx-h100-gpu3-12-links", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, LINKS_DOWN, 3, false, false},
    {"dgx-h100-all-12-links", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, LINKS_DOWN, ALL, false, false},
    {"dgx-h100-gpu2-slow", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, LINKS_SLOW, 2, false, false},
    {"dgx-h100-gpu4-8-lanes", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, LANES_MISSING, 4, false, false},
    {"dgx-h100-gpu5-lost", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, GPU_LOST, 5, false, false},
    {"dgx-h100-gpu6-not-registered", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, NOT_REGISTERED, 6, false, false},
    {"hgx-h100-vm", h100, 8, 18, BY_HIDDEN_SWITCHES, 9, 0, 26562, NO_FAULT, 0, false, false},
    {"v100-mesh", v100, 8, 6, BY_MESH, 7, 0, 25781, NO_FAULT, 0, false, false},
    {"v100-mesh-gpu0-0-links", v100, 8, 6, BY_MESH, 7, 0, 25781, LINKS_DOWN, 0, false, false},
    {"no-peer", v100, 8, 6, BY_MESH, 7, 0, 25781, PEERS_REJECTED, ALL, false, false},
    {"gb200", gb200, 4, 18, BY_HIDDEN_SWITCHES, 10, 0, 53125, NO_FAULT, 0, true, true},
    {"l40s", "NVIDIA L40S", 8, 0, BY_NOTHING, 8, 9, 0, NO_FAULT, 0, false, false},
    {"one-bus", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, ONE_BUS, ALL, false, false},
    {"no-gpu", h100, 0, 0, BY_NOTHING, 9, 0, 0, NO_FAULT, 0, false, false},
    {"absurd", h100, 4000000000u, 0, BY_NOTHING, 9, 0, 0, NO_FAULT, 0, false, false},
    {"all-lost", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, GPU_LOST, ALL, false, false},
    {"broken", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, CALLS_FAIL, 0, false, false},
    {"init-fails", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, INIT_FAILS, 0, false, false},
    {"no-driver", h100, 8, 18, BY_SWITCHES, 9, 0, 26562, NO_DRIVER, 0, false, false},
};

/* NVLinks between two V100 of a DGX-1. */
static const unsigned char mesh[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0},
                                         {2, 1, 2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                                         {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};
static const unsigned buses[8] = {0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf};

static const machine *here(void) {
  const char *name = getenv("FAKE_NVML");
  for (size_t i = 0; name && i < sizeof machines / sizeof machines[0]; i++)
    if (strcmp(machines[i].name, name) == 0) return &machines[i];
  fprintf(stderr, "fake_nvml: FAKE_NVML=%s: no such machine\n", name ? name : "");
  abort();
}

static bool is_at(const machine *m, fault wrong, unsigned gpu) {
  return m->wrong == wrong && (m->where == ALL || m->where == (int)gpu);
}

static bool fails_by_chance(void) {
  static uint64_t state; /* starts again when the library is reloaded */
  const char *seed = getenv("FAKE_NVML_FAILS");
  if (!seed) return false;
  if (state == 0) state = 0x9e3779b97f4a7c15u * (uint64_t)strtol(seed, NULL, 10);
  return random_next(&state) % 8 == 0;
}

static unsigned gpu_of(bny_nvml_device device) { return (unsigned)((uintptr_t)device - 1); }

/* The checks that each call about a GPU begins with. */
static bny_nvml_return answer(bny_nvml_device device) {
  const machine *m = here();
  unsigned gpu = gpu_of(device);
  if (!getenv("FAKE_NVML_OPEN")) abort();
  if (m->wrong == CALLS_FAIL || fails_by_chance()) return BNY_NVML_UNKNOWN;
  if (gpu >= m->gpus) return BNY_NVML_INVALID_ARGUMENT;
  return is_at(m, GPU_LOST, gpu) ? BNY_NVML_GPU_IS_LOST : BNY_NVML_SUCCESS;
}

static bny_nvml_return answer_link(bny_nvml_device device, unsigned link) {
  const machine *m = here();
  bny_nvml_return status = answer(device);
  if (status != BNY_NVML_SUCCESS) return status;
  return m->links == 0 ? BNY_NVML_NOT_SUPPORTED : link >= m->links ? BNY_NVML_INVALID_ARGUMENT : BNY_NVML_SUCCESS;
}

static unsigned peer_of(unsigned gpu, unsigned link) {
  unsigned peer = 0;
  for (; peer < 7 && link >= mesh[gpu][peer]; peer++) link -= mesh[gpu][peer];
  return peer;
}

/* A link is down if this end or the peer's end is down. In a mesh, all links of a GPU can be down. */
static bool is_up(const machine *m, unsigned gpu, unsigned link) {
  if (m->by == BY_MESH && m->wrong == LINKS_DOWN)
    return gpu != (unsigned)m->where && peer_of(gpu, link) != (unsigned)m->where;
  return !is_at(m, LINKS_DOWN, gpu) || link < m->links - 6;
}

static bool is_registered(unsigned gpu) { return !is_at(here(), NOT_REGISTERED, gpu); }

/* Defines a function of the library. The names are NVML's. */
#define CALL(name, ...)                       \
  EXPORTED bny_nvml_return name(__VA_ARGS__); \
  bny_nvml_return name(__VA_ARGS__)

/* Defines a function about a GPU that runs `work` if the checks succeed, which `m` and `gpu` describe. */
#define ABOUT(name, status, work, ...)              \
  CALL(name, bny_nvml_device device, __VA_ARGS__) { \
    const machine *m = here();                      \
    const unsigned gpu = gpu_of(device);            \
    bny_nvml_return got = status;                   \
    (void)m, (void)gpu;                             \
    if (got == BNY_NVML_SUCCESS) work;              \
    return got;                                     \
  }

CALL(nvmlInit_v2, void) {
  if (here()->wrong == INIT_FAILS) return 18;
  if (here()->wrong == NO_DRIVER) return BNY_NVML_DRIVER_NOT_LOADED;
  setenv("FAKE_NVML_OPEN", "1", 1);
  return BNY_NVML_SUCCESS;
}

CALL(nvmlShutdown, void) {
  unsetenv("FAKE_NVML_OPEN");
  return here()->wrong == CALLS_FAIL ? BNY_NVML_UNKNOWN : BNY_NVML_SUCCESS;
}

EXPORTED const char *nvmlErrorString(bny_nvml_return status);

const char *nvmlErrorString(bny_nvml_return status) {
  switch (status) {
  case BNY_NVML_DRIVER_NOT_LOADED: return "Driver Not Loaded";
  case BNY_NVML_GPU_IS_LOST: return "GPU is lost";
  case 18: return "Driver/library version mismatch";
  default: return "Unknown Error";
  }
}

CALL(nvmlDeviceGetCount_v2, unsigned *count) {
  if (here()->wrong == CALLS_FAIL || fails_by_chance()) return BNY_NVML_UNKNOWN;
  *count = here()->gpus;
  return BNY_NVML_SUCCESS;
}

CALL(nvmlDeviceGetHandleByIndex_v2, unsigned index, bny_nvml_device *device) {
  bny_nvml_device made = (bny_nvml_device)((uintptr_t)index + 1);
  bny_nvml_return status = answer(made);
  if (status == BNY_NVML_SUCCESS) *device = made;
  return status;
}

ABOUT(nvmlDeviceGetName, answer(device), snprintf(name, bytes, "%s", m->product), char *name, unsigned bytes)
ABOUT(nvmlDeviceGetUUID, answer(device), snprintf(uuid, bytes, "GPU-00000000-0000-0000-0000-%012u", gpu), char *uuid,
      unsigned bytes)
ABOUT(nvmlDeviceGetCudaComputeCapability, answer(device), (*major = m->major, *minor = m->minor), int *major,
      int *minor)
ABOUT(nvmlDeviceGetMaxPcieLinkGeneration, answer(device),
      *generation = m->major >= 9   ? 5
                    : m->major >= 8 ? 4
                                    : 3,
      unsigned *generation)
ABOUT(nvmlDeviceGetMaxPcieLinkWidth, answer(device), *lanes = 16, unsigned *lanes)
ABOUT(nvmlDeviceGetCurrPcieLinkGeneration, answer(device), *generation = 1, unsigned *generation) /* idle */
ABOUT(nvmlDeviceGetCurrPcieLinkWidth, answer(device), *lanes = is_at(m, LANES_MISSING, gpu) ? 8 : 16, unsigned *lanes)
ABOUT(nvmlDeviceGetNvLinkState, answer_link(device, link), *state = is_up(m, gpu, link), unsigned link, unsigned *state)
ABOUT(nvmlDeviceGetMemoryAffinity, answer(device),
      if (words > 0 && scope == BNY_NVML_SCOPE_NODE) nodes[0] = 1ul << (2 * gpu / m->gpus), unsigned words,
      unsigned long *nodes, unsigned scope)

static bny_nvml_return remote(bny_nvml_device device, unsigned link, bny_nvml_pci *pci, unsigned *type) {
  const machine *m = here();
  const unsigned gpu = gpu_of(device);
  bny_nvml_return status = answer_link(device, link);
  if (status == BNY_NVML_SUCCESS && !is_up(m, gpu, link)) status = BNY_NVML_NOT_SUPPORTED;
  if (status != BNY_NVML_SUCCESS) return status;
  *type = m->by == BY_MESH ? BNY_NVML_REMOTE_GPU : BNY_NVML_REMOTE_SWITCH;
  if (m->by == BY_MESH)
    *pci = (bny_nvml_pci){.bus = buses[peer_of(gpu, link)], .device_id = 0x1db510deu};
  else if (m->by == BY_SWITCHES)
    *pci = (bny_nvml_pci){.bus = 7 + link % 4, .device_id = 0x22a310deu};
  else
    *pci = (bny_nvml_pci){.domain = 0xffffffffu, .bus = 0xff, .device = 0xff};
  return BNY_NVML_SUCCESS;
}

CALL(nvmlDeviceGetNvLinkRemotePciInfo_v2, bny_nvml_device device, unsigned link, bny_nvml_pci *pci) {
  unsigned type;
  return remote(device, link, pci, &type);
}

CALL(nvmlDeviceGetNvLinkRemoteDeviceType, bny_nvml_device device, unsigned link, unsigned *type) {
  bny_nvml_pci pci;
  return remote(device, link, &pci, type);
}

CALL(nvmlDeviceGetP2PStatus, bny_nvml_device a, bny_nvml_device b, unsigned capability, unsigned *status) {
  const unsigned first = gpu_of(a), second = gpu_of(b);
  const machine *m = here();
  bny_nvml_return got = answer(a);
  if (got == BNY_NVML_SUCCESS) got = answer(b);
  if (got != BNY_NVML_SUCCESS) return got;
  bool linked = m->by == BY_MESH ? mesh[first][second] > 0 : m->by != BY_NOTHING;
  bool given = m->wrong != PEERS_REJECTED && is_registered(first) && is_registered(second);
  *status = given && (linked || capability != BNY_NVML_P2P_NVLINK) ? BNY_NVML_P2P_OK : BNY_NVML_P2P_NOT_SUPPORTED;
  return BNY_NVML_SUCCESS;
}

ABOUT(nvmlDeviceGetPciInfo_v3, answer(device),
      *pci = ((bny_nvml_pci){.bus = m->wrong == ONE_BUS ? 1 : buses[gpu % 8], .device_id = 0x233010deu}),
      bny_nvml_pci *pci)

static void field_fill(const machine *m, unsigned gpu, bny_nvml_field *field) {
  unsigned value = 0;
  bool there = true;
  /* Before Hopper each of the first links has a field, and all others share one. */
  const bool by_scope = field->id == BNY_NVML_FIELD_NVLINK_SPEED && m->major >= 9;
  const unsigned link = by_scope ? field->scope : field->id - BNY_NVML_FIELD_NVLINK_SPEED_0;
  const bool by_field = m->major < 9 && link <= BNY_NVML_FIELD_NVLINK_SPEED_COMMON - BNY_NVML_FIELD_NVLINK_SPEED_0;
  if ((by_scope || by_field) && link < m->links)
    value = is_up(m, gpu, link) ? m->megabytes / (is_at(m, LINKS_SLOW, gpu) ? 2 : 1) : 0;
  else if (field->id == BNY_NVML_FIELD_C2C_COUNT && m->coherent)
    value = 10;
  else if (field->id == BNY_NVML_FIELD_C2C_STATUS && m->coherent)
    value = 1;
  else if (field->id == BNY_NVML_FIELD_C2C_SPEED && m->coherent)
    value = 44712;
  else
    there = false;
  field->status = there ? BNY_NVML_SUCCESS : BNY_NVML_NOT_SUPPORTED;
  field->value_type = BNY_NVML_VALUE_UINT;
  field->value.number = value;
}

ABOUT(nvmlDeviceGetFieldValues, answer(device), for (int i = 0; i < count; i++) field_fill(m, gpu, &fields[i]),
      int count, bny_nvml_field *fields)

CALL(nvmlDeviceGetGpuFabricInfoV, bny_nvml_device device, bny_nvml_fabric *fabric) {
  bny_nvml_return status = answer(device);
  if (status != BNY_NVML_SUCCESS) return status;
  if (fabric->version != BNY_NVML_FABRIC_VERSION) return BNY_NVML_INVALID_ARGUMENT;
  if (here()->major < 9) return BNY_NVML_NOT_SUPPORTED;
  fabric->state = is_registered(gpu_of(device)) ? BNY_NVML_FABRIC_COMPLETED : BNY_NVML_FABRIC_IN_PROGRESS;
  fabric->status = BNY_NVML_SUCCESS;
  if (!here()->domain) return BNY_NVML_SUCCESS;
  for (int i = 0; i < 16; i++) fabric->uuid[i] = (unsigned char)(0x10 + i);
  fabric->clique = 3;
  return BNY_NVML_SUCCESS;
}
