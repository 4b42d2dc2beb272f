/* SPDX-License-Identifier: Apache-2.0
 * Loads libcuda.so.1, resolves its functions, and maps its errors to status codes. */
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/cuda/cuda.h"
#include "base/cuda_library.h"
#include "base/status.h"

static const bny_cuda_function functions[] = {
#define BNY_CUDA_FUNCTION(name, version) {#name, version, offsetof(bny_cuda_driver, name), true},
#define BNY_CUDA_OPTIONAL(name, version) {#name, version, offsetof(bny_cuda_driver, name), false},
#define BNY_CUDA_PROGRAM(name, version)
#include "base/cuda_functions.def"
#undef BNY_CUDA_FUNCTION
#undef BNY_CUDA_OPTIONAL
#undef BNY_CUDA_PROGRAM
};

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

static banyan_status resolve(bny_cuda_driver *driver) {
  char text[BNY_CUDA_LIBRARY_TEXT_BYTES];
  banyan_status status = bny_cuda_driver_check_version(driver->version, CUDA_VERSION);
  if (status != BANYAN_OK) return status;
  const size_t count = sizeof functions / sizeof functions[0];
  if (!bny_cuda_library_find(driver->library, driver->version, functions, count, driver, text))
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "%s", text);
  CUresult result = driver->cuInit(0);
  if (result == CUDA_SUCCESS) return BANYAN_OK;
  bny_cuda_check(driver, result, "cuInit");
  return bny_fail(BANYAN_ERR_UNSUPPORTED, "%s", banyan_last_error());
}

banyan_status bny_cuda_driver_load(const char *library, bny_cuda_driver *driver) {
  char text[BNY_CUDA_LIBRARY_TEXT_BYTES];
  bny_cuda_driver loaded = {0};
  if (!bny_cuda_library_open(library, &loaded.library, &loaded.version, text))
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "%s", text);
  banyan_status status = resolve(&loaded);
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

banyan_status bny_cuda_check(const bny_cuda_driver *driver, CUresult result, const char *format, ...) {
  char what[BNY_ERROR_TEXT_BYTES / 2];
  if (result == CUDA_SUCCESS) return BANYAN_OK;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  const char *text = NULL, *name = NULL;
  if (driver->cuGetErrorString(result, &text) != CUDA_SUCCESS || !text) text = "an error without a text";
  if (driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name) name = "without a name";
  return bny_fail(status_of(result), "%s: %s (%s, %d)", what, text, name, (int)result);
}

CUresult bny_cuda_enter(bny_cuda_device *self, bny_cuda_scope *scope) {
  *scope = (bny_cuda_scope){0};
  CUcontext current = NULL;
  CUresult result = self->driver.cuCtxGetCurrent(&current);
  if (result != CUDA_SUCCESS || current == self->context) return result;
  result = self->driver.cuCtxPushCurrent(self->context);
  scope->pushed = result == CUDA_SUCCESS;
  return result;
}

CUresult bny_cuda_enter_setup(bny_cuda_device *self, bny_cuda_scope *scope) {
  CUresult result = bny_cuda_enter(self, scope);
  if (result != CUDA_SUCCESS) return result;
  scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  result = self->driver.cuThreadExchangeStreamCaptureMode(&scope->mode);
  scope->exchanged = result == CUDA_SUCCESS;
  return result;
}

void bny_cuda_leave(bny_cuda_device *self, const bny_cuda_scope *scope) {
  CUcontext popped;
  CUstreamCaptureMode mode = scope->mode;
  if (scope->exchanged) self->driver.cuThreadExchangeStreamCaptureMode(&mode);
  if (scope->pushed) self->driver.cuCtxPopCurrent(&popped);
}

void bny_cuda_hold(bny_cuda_device *self) { atomic_fetch_add_explicit(&self->users, 1, memory_order_relaxed); }

void bny_cuda_drop(bny_cuda_device *self) {
  if (atomic_fetch_sub_explicit(&self->users, 1, memory_order_acq_rel) != 1) return;
  self->driver.cuDevicePrimaryCtxRelease(self->handle);
  bny_cuda_driver_unload(&self->driver);
  free(self);
}
