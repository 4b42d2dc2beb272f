/* SPDX-License-Identifier: Apache-2.0
 * Loads NVIDIA's management library and hides the differences between its versions. */
#include "topo/probe/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* `older`: name of the function that older drivers have instead, and that is equivalent for this use. */
static const struct {
  size_t offset;
  const char *name, *older;
  bool needed;
} symbols[] = {
    {offsetof(bny_nvml, init), "nvmlInit_v2", NULL, true},
    {offsetof(bny_nvml, shutdown), "nvmlShutdown", NULL, true},
    {offsetof(bny_nvml, error_string), "nvmlErrorString", NULL, false},
    {offsetof(bny_nvml, count), "nvmlDeviceGetCount_v2", NULL, true},
    {offsetof(bny_nvml, handle), "nvmlDeviceGetHandleByIndex_v2", NULL, true},
    {offsetof(bny_nvml, pci), "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", true},
    {offsetof(bny_nvml, name), "nvmlDeviceGetName", NULL, false},
    {offsetof(bny_nvml, uuid), "nvmlDeviceGetUUID", NULL, false},
    {offsetof(bny_nvml, compute), "nvmlDeviceGetCudaComputeCapability", NULL, false},
    {offsetof(bny_nvml, generation_most), "nvmlDeviceGetMaxPcieLinkGeneration", NULL, false},
    {offsetof(bny_nvml, width_most), "nvmlDeviceGetMaxPcieLinkWidth", NULL, false},
    {offsetof(bny_nvml, generation), "nvmlDeviceGetCurrPcieLinkGeneration", NULL, false},
    {offsetof(bny_nvml, width), "nvmlDeviceGetCurrPcieLinkWidth", NULL, false},
    {offsetof(bny_nvml, memory_affinity), "nvmlDeviceGetMemoryAffinity", NULL, false},
    {offsetof(bny_nvml, link_state), "nvmlDeviceGetNvLinkState", NULL, false},
    {offsetof(bny_nvml, link_version), "nvmlDeviceGetNvLinkVersion", NULL, false},
    {offsetof(bny_nvml, link_remote), "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo", false},
    {offsetof(bny_nvml, link_remote_type), "nvmlDeviceGetNvLinkRemoteDeviceType", NULL, false},
    {offsetof(bny_nvml, fields), "nvmlDeviceGetFieldValues", NULL, false},
    {offsetof(bny_nvml, p2p), "nvmlDeviceGetP2PStatus", NULL, false},
    {offsetof(bny_nvml, fabric), "nvmlDeviceGetGpuFabricInfoV", NULL, false},
    {offsetof(bny_nvml, fabric_unversioned), "nvmlDeviceGetGpuFabricInfo", NULL, false},
};

/* Resolves all symbols. Returns the name of a missing required symbol; NULL if there is none. */
static const char *resolve(bny_nvml *nvml) {
  for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
    void *address = dlsym(nvml->library, symbols[i].name);
    if (!address && symbols[i].older) address = dlsym(nvml->library, symbols[i].older);
    if (!address && symbols[i].needed) return symbols[i].name;
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
    snprintf(text, text_bytes, "%.80s has no %s: not NVML, or that of a very old driver", path, missing);
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
  const char *text = nvml->error_string ? nvml->error_string(status) : NULL;
  return text ? text : status == BNY_NVML_GPU_IS_LOST ? "the GPU is lost" : "an error that it does not name";
}

bool bny_nvml_field_read(const bny_nvml *nvml, bny_nvml_device device, unsigned id, unsigned scope, double *value) {
  bny_nvml_field field = {.id = id, .scope = scope, .status = BNY_NVML_UNKNOWN};
  if (!nvml->fields || nvml->fields(device, 1, &field) != BNY_NVML_SUCCESS || field.status != BNY_NVML_SUCCESS)
    return false;
  switch (field.value_type) {
  case BNY_NVML_VALUE_UINT: *value = field.value.number; return true;
  case BNY_NVML_VALUE_ULONG: *value = (double)field.value.number_long; return true;
  case BNY_NVML_VALUE_ULONGLONG: *value = (double)field.value.number_longer; return true;
  default: return false;
  }
}

bool bny_nvml_fabric_read(const bny_nvml *nvml, bny_nvml_device device, bny_nvml_fabric *fabric) {
  *fabric = (bny_nvml_fabric){.version = BNY_NVML_FABRIC_VERSION};
  if (nvml->fabric && nvml->fabric(device, fabric) == BNY_NVML_SUCCESS) return true;
  *fabric = (bny_nvml_fabric){0};
  return nvml->fabric_unversioned && nvml->fabric_unversioned(device, fabric->uuid) == BNY_NVML_SUCCESS;
}
