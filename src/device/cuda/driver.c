/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

static const struct {
  const char *name;
  int version;
  size_t offset;
  bool needed;
} functions[] = {
#define BNY_CUDA_FUNCTION(name, version) {#name, version, offsetof(bny_cuda_driver, name), true},
#define BNY_CUDA_OPTIONAL(name, version) {#name, version, offsetof(bny_cuda_driver, name), false},
#include "device/cuda/functions.def"
#undef BNY_CUDA_FUNCTION
#undef BNY_CUDA_OPTIONAL
};

static void *address_of(void *library, const char *name) { return dlsym(library, name); }

/* The driver's own way to look a function up: one form of a fixed version, instead of names with suffixes. */
static void *find(PFN_cuGetProcAddress_v12000 look_up, const char *name, int version) {
  CUdriverProcAddressQueryResult outcome = CU_GET_PROC_ADDRESS_SUCCESS;
  void *function = NULL;
  CUresult result = look_up(name, &function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &outcome);
  return result == CUDA_SUCCESS && outcome == CU_GET_PROC_ADDRESS_SUCCESS ? function : NULL;
}

/* "13.0 (release 580)". */
static const char *version_text(int version, char *text, size_t bytes) {
  const char *release = version == 12000 ? " (release 525)" : version == 13000 ? " (release 580)" : "";
  snprintf(text, bytes, "%d.%d%s", version / 1000, version % 1000 / 10, release);
  return text;
}

banyan_status bny_cuda_driver_check_version(int driver, int toolkit) {
  const int least = toolkit / 1000 * 1000;
  char here[32], built[32], needed[32];
  if (driver >= least) return BANYAN_OK;
  return bny_fail(
      BANYAN_ERR_UNSUPPORTED,
      "the NVIDIA driver is of CUDA %s, and this banyan was built with the toolkit of CUDA %s, whose kernels need a "
      "driver of CUDA %s or newer: install a newer driver, or build banyan with a toolkit of CUDA %d",
      version_text(driver, here, sizeof here), version_text(toolkit, built, sizeof built),
      version_text(least, needed, sizeof needed), driver / 1000);
}

static banyan_status open_library(const char *path, void **library) {
  /* It is never unloaded: the driver keeps threads and handlers of its own. */
  void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (opened) {
    *library = opened;
    return BANYAN_OK;
  }
  const char *reason = dlerror();
  if (reason && !strstr(reason, "No such file"))
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "CUDA's driver cannot be loaded: %.300s", reason);
  return bny_fail(BANYAN_ERR_UNSUPPORTED, "%.100s is not there: no NVIDIA driver on this machine (or in this container)",
                  path);
}

static banyan_status resolve(const char *path, bny_cuda_driver *driver) {
  PFN_cuDriverGetVersion_v2020 version = (PFN_cuDriverGetVersion_v2020)address_of(driver->library, "cuDriverGetVersion");
  if (!version) return bny_fail(BANYAN_ERR_UNSUPPORTED, "%.100s has no cuDriverGetVersion: not CUDA's driver", path);
  if (version(&driver->version) != CUDA_SUCCESS)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "cuDriverGetVersion failed: CUDA's driver does not work");
  banyan_status status = bny_cuda_driver_check_version(driver->version, CUDA_VERSION);
  if (status != BANYAN_OK) return status;
  PFN_cuGetProcAddress_v12000 look_up =
      (PFN_cuGetProcAddress_v12000)address_of(driver->library, "cuGetProcAddress_v2");
  if (!look_up) return bny_fail(BANYAN_ERR_UNSUPPORTED, "%.100s has no cuGetProcAddress_v2: not CUDA's driver", path);
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *function = find(look_up, functions[i].name, functions[i].version);
    if (!function && functions[i].needed)
      return bny_fail(BANYAN_ERR_UNSUPPORTED, "the NVIDIA driver (CUDA %d.%d) has no %s", driver->version / 1000,
                      driver->version % 1000 / 10, functions[i].name);
    memcpy((char *)driver + functions[i].offset, &function, sizeof function);
  }
  CUresult result = driver->cuInit(0);
  if (result == CUDA_SUCCESS) return BANYAN_OK;
  bny_cuda_fail(driver, result, "cuInit");
  return bny_fail(BANYAN_ERR_UNSUPPORTED, "%s", banyan_last_error());
}

banyan_status bny_cuda_driver_load(const char *library, bny_cuda_driver *driver) {
  const char *path = library ? library : "libcuda.so.1";
  bny_cuda_driver loaded = {0};
  banyan_status status = open_library(path, &loaded.library);
  if (status != BANYAN_OK) return status;
  status = resolve(path, &loaded);
  if (status != BANYAN_OK) {
    dlclose(loaded.library);
    return status;
  }
  *driver = loaded;
  return BANYAN_OK;
}

void bny_cuda_driver_unload(bny_cuda_driver *driver) {
  if (driver->library) dlclose(driver->library);
  driver->library = NULL;
}

static banyan_status status_of(CUresult result) {
  switch (result) {
  case CUDA_ERROR_OUT_OF_MEMORY: return BANYAN_ERR_MEMORY;
  case CUDA_ERROR_INVALID_DEVICE: return BANYAN_ERR_ARGUMENT;
  case CUDA_ERROR_NO_DEVICE:
  case CUDA_ERROR_NOT_SUPPORTED:
  case CUDA_ERROR_NOT_PERMITTED:
  case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
  case CUDA_ERROR_INVALID_IMAGE:
  case CUDA_ERROR_INVALID_PTX:
  case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
  case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
  case CUDA_ERROR_JIT_COMPILATION_DISABLED:
  case CUDA_ERROR_NO_BINARY_FOR_GPU: return BANYAN_ERR_UNSUPPORTED;
  default: return BANYAN_ERR_SYSTEM;
  }
}

banyan_status bny_cuda_fail(const bny_cuda_driver *driver, CUresult result, const char *format, ...) {
  char what[BNY_ERROR_TEXT_BYTES / 2];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  const char *text = NULL, *name = NULL;
  if (driver->cuGetErrorString(result, &text) != CUDA_SUCCESS || !text) text = "an error without a text";
  if (driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name) name = "without a name";
  return bny_fail(status_of(result), "%s: %s (%s, %d)", what, text, name, (int)result);
}
