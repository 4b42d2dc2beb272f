/* SPDX-License-Identifier: Apache-2.0
 * Loads NVIDIA's management library, of release 525 of the driver or newer, as the kernels need it. */
#include "topo/probe/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const struct {
  size_t offset;
  const char *name;
} symbols[] = {
    {offsetof(bny_nvml, init), "nvmlInit_v2"},
    {offsetof(bny_nvml, shutdown), "nvmlShutdown"},
    {offsetof(bny_nvml, error_string), "nvmlErrorString"},
    {offsetof(bny_nvml, count), "nvmlDeviceGetCount_v2"},
    {offsetof(bny_nvml, handle), "nvmlDeviceGetHandleByIndex_v2"},
    {offsetof(bny_nvml, pci), "nvmlDeviceGetPciInfo_v3"},
    {offsetof(bny_nvml, name), "nvmlDeviceGetName"},
    {offsetof(bny_nvml, uuid), "nvmlDeviceGetUUID"},
    {offsetof(bny_nvml, compute), "nvmlDeviceGetCudaComputeCapability"},
    {offsetof(bny_nvml, generation_most), "nvmlDeviceGetMaxPcieLinkGeneration"},
    {offsetof(bny_nvml, width_most), "nvmlDeviceGetMaxPcieLinkWidth"},
    {offsetof(bny_nvml, generation), "nvmlDeviceGetCurrPcieLinkGeneration"},
    {offsetof(bny_nvml, width), "nvmlDeviceGetCurrPcieLinkWidth"},
    {offsetof(bny_nvml, memory_affinity), "nvmlDeviceGetMemoryAffinity"},
    {offsetof(bny_nvml, link_state), "nvmlDeviceGetNvLinkState"},
    {offsetof(bny_nvml, link_remote), "nvmlDeviceGetNvLinkRemotePciInfo_v2"},
    {offsetof(bny_nvml, link_remote_type), "nvmlDeviceGetNvLinkRemoteDeviceType"},
    {offsetof(bny_nvml, fields), "nvmlDeviceGetFieldValues"},
    {offsetof(bny_nvml, p2p), "nvmlDeviceGetP2PStatus"},
    {offsetof(bny_nvml, fabric), "nvmlDeviceGetGpuFabricInfoV"}, /* the last: release 535 has it */
};
enum { SYMBOLS = sizeof symbols / sizeof symbols[0] };

/* Resolves all symbols. Returns the name of a missing one that is needed; NULL if there is none. */
static const char *resolve(bny_nvml *nvml) {
  for (size_t i = 0; i < SYMBOLS; i++) {
    void *address = dlsym(nvml->library, symbols[i].name);
    if (!address && i + 1 < SYMBOLS) return symbols[i].name;
    memcpy((char *)nvml + symbols[i].offset, &address, sizeof address);
  }
  return NULL;
}

bny_nvml_loading bny_nvml_open(const char *path, bny_nvml *nvml, char *text, size_t text_bytes) {
  *nvml = (bny_nvml){.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
  if (!nvml->library) {
    const char *reason = dlerror();
    if (reason && !strstr(reason, "No such file")) {
      snprintf(text, text_bytes, "%s", reason);
      return BNY_NVML_UNUSABLE;
    }
    snprintf(text, text_bytes, "%.100s is not there: no NVIDIA driver", path);
    return BNY_NVML_NO_LIBRARY;
  }
  const char *missing = resolve(nvml);
  bny_nvml_return status = missing ? BNY_NVML_SUCCESS : nvml->init();
  if (!missing && status == BNY_NVML_SUCCESS) return BNY_NVML_LOADED;
  if (missing)
    snprintf(text, text_bytes, "%.80s has no %s: not NVML, or that of a driver before release 525", path, missing);
  else
    snprintf(text, text_bytes, "nvmlInit_v2: %.150s", bny_nvml_error(nvml, status));
  dlclose(nvml->library);
  nvml->library = NULL;
  return status == BNY_NVML_DRIVER_NOT_LOADED ? BNY_NVML_NO_LIBRARY : BNY_NVML_UNUSABLE;
}

void bny_nvml_close(bny_nvml *nvml) {
  if (!nvml->library) return;
  nvml->shutdown();
  dlclose(nvml->library);
  nvml->library = NULL;
}

const char *bny_nvml_error(const bny_nvml *nvml, bny_nvml_return status) {
  const char *text = nvml->error_string(status);
  return text ? text : "an error that it does not name";
}

bool bny_nvml_field_read(const bny_nvml *nvml, bny_nvml_device device, unsigned id, unsigned scope, double *value) {
  bny_nvml_field field = {.id = id, .scope = scope, .status = BNY_NVML_UNKNOWN};
  if (nvml->fields(device, 1, &field) != BNY_NVML_SUCCESS || field.status != BNY_NVML_SUCCESS) return false;
  switch (field.value_type) {
  case BNY_NVML_VALUE_UINT: *value = field.value.number; return true;
  case BNY_NVML_VALUE_ULONG: *value = (double)field.value.number_long; return true;
  case BNY_NVML_VALUE_ULONGLONG: *value = (double)field.value.number_longer; return true;
  default: return false;
  }
}

bool bny_nvml_fabric_read(const bny_nvml *nvml, bny_nvml_device device, bny_nvml_fabric *fabric) {
  *fabric = (bny_nvml_fabric){.version = BNY_NVML_FABRIC_VERSION};
  return nvml->fabric && nvml->fabric(device, fabric) == BNY_NVML_SUCCESS;
}
