/* SPDX-License-Identifier: Apache-2.0
 * Stands between programs and the CUDA driver, and breaks what a test asks for. */
#include "tests/gpu/cuda_shim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>

#include "base/cuda_driver.h"

/* ---- the driver -------------------------------------------------------------------------------------------------- */

static struct {
  pthread_once_t once;
  PFN_cuGetProcAddress_v12000 find;
  PFN_cuDriverGetVersion_v2020 version;
  bny_cuda_driver real;
  atomic_uint rejected;
} driver = {.once = PTHREAD_ONCE_INIT};

static void load(void) {
  const char *path = getenv("CUDA_SHIM_OF");
  void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  CUdriverProcAddressQueryResult outcome;
  if (!library) return;
  driver.find = (PFN_cuGetProcAddress_v12000)dlsym(library, "cuGetProcAddress_v2");
  driver.version = (PFN_cuDriverGetVersion_v2020)dlsym(library, "cuDriverGetVersion");
  if (!driver.find) return;
#define BNY_CUDA_FUNCTION(name, number) \
  driver.find(#name, (void **)(void *)&driver.real.name, number, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &outcome);
#define BNY_CUDA_OPTIONAL(name, number)
#define BNY_CUDA_PROGRAM(name, number)
#include "base/cuda_functions.def"
}

/* ---- what is broken ---------------------------------------------------------------------------------------------- */

/* Each thread keeps the allocation that it made last, as the pattern of the arena to replace, and the replacement. */
static _Thread_local struct {
  CUmemAllocationProp like;
  size_t allocated_bytes;
  int to_come; /* arenas before the one to break, plus 1; 0: none is to be broken */
  CUmemGenericAllocationHandle broken;
  CUdeviceptr opened, shown;
} own;

__attribute__((visibility("default"))) cuda_shim_reject_function cuda_shim_reject;
void cuda_shim_reject(unsigned ways) { atomic_store(&driver.rejected, ways); }

__attribute__((visibility("default"))) cuda_shim_break_function cuda_shim_break;
void cuda_shim_break(int number) { own.to_come = number + 1; }

static bool is_to_break(void) { return own.to_come > 0 && --own.to_come == 0; }

static bool is_rejected(unsigned way) { return atomic_load(&driver.rejected) & way; }

/* ---- in place of the driver's functions -------------------------------------------------------------------------- */

static CUresult CUDAAPI allocate(CUdeviceptr *address, size_t bytes) {
  own.allocated_bytes = bytes;
  return driver.real.cuMemAlloc(address, bytes);
}

static CUresult CUDAAPI create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *wanted,
                               unsigned long long flags) {
  own.like = *wanted;
  return driver.real.cuMemCreate(handle, bytes, wanted, flags);
}

static CUresult CUDAAPI export(void *handle, CUmemGenericAllocationHandle memory, CUmemAllocationHandleType type,
                               unsigned long long flags) {
  if (is_rejected(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_SHIM_FILES : CUDA_SHIM_FABRIC))
    return CUDA_ERROR_NOT_SUPPORTED;
  return driver.real.cuMemExportToShareableHandle(handle, memory, type, flags);
}

static CUresult CUDAAPI import(CUmemGenericAllocationHandle *memory, void *handle, CUmemAllocationHandleType type) {
  CUresult result = driver.real.cuMemImportFromShareableHandle(memory, handle, type);
  if (result == CUDA_SUCCESS && is_to_break()) own.broken = *memory;
  return result;
}

static CUresult CUDAAPI map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle memory,
                            unsigned long long flags) {
  CUmemGenericAllocationHandle other;
  if (!own.broken || memory != own.broken) return driver.real.cuMemMap(address, bytes, offset, memory, flags);
  own.broken = 0;
  CUresult result = driver.real.cuMemCreate(&other, bytes, &own.like, 0);
  if (result != CUDA_SUCCESS) return result;
  result = driver.real.cuMemMap(address, bytes, offset, other, flags);
  driver.real.cuMemRelease(other); /* the mapping holds it */
  return result;
}

static CUresult CUDAAPI get_handle(CUipcMemHandle *handle, CUdeviceptr address) {
  return is_rejected(CUDA_SHIM_IPC) ? CUDA_ERROR_NOT_SUPPORTED : driver.real.cuIpcGetMemHandle(handle, address);
}

static CUresult CUDAAPI open_handle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
  CUresult result = driver.real.cuIpcOpenMemHandle(address, handle, flags);
  if (result != CUDA_SUCCESS || !is_to_break()) return result;
  result = driver.real.cuMemAlloc(&own.shown, own.allocated_bytes);
  if (result != CUDA_SUCCESS) {
    driver.real.cuIpcCloseMemHandle(*address);
    return result;
  }
  own.opened = *address;
  *address = own.shown;
  return CUDA_SUCCESS;
}

static CUresult CUDAAPI close_handle(CUdeviceptr address) {
  if (!own.shown || address != own.shown) return driver.real.cuIpcCloseMemHandle(address);
  driver.real.cuMemFree(own.shown);
  own.shown = 0;
  return driver.real.cuIpcCloseMemHandle(own.opened);
}

static const struct {
  const char *name;
  void (*function)(void);
} replaced[] = {
    {"cuMemAlloc", (void (*)(void))allocate},
    {"cuMemCreate", (void (*)(void))create},
    {"cuMemExportToShareableHandle", (void (*)(void)) export},
    {"cuMemImportFromShareableHandle", (void (*)(void))import},
    {"cuMemMap", (void (*)(void))map},
    {"cuIpcGetMemHandle", (void (*)(void))get_handle},
    {"cuIpcOpenMemHandle", (void (*)(void))open_handle},
    {"cuIpcCloseMemHandle", (void (*)(void))close_handle},
};

__attribute__((visibility("default"))) CUresult CUDAAPI cuGetProcAddress(const char *name, void **function, int version,
                                                                         cuuint64_t flags,
                                                                         CUdriverProcAddressQueryResult *outcome) {
  pthread_once(&driver.once, load);
  if (!driver.find) return CUDA_ERROR_NOT_INITIALIZED;
  CUresult result = driver.find(name, function, version, flags, outcome);
  if (result != CUDA_SUCCESS || !*function) return result;
  for (size_t i = 0; i < sizeof replaced / sizeof replaced[0]; i++)
    if (strcmp(name, replaced[i].name) == 0) memcpy(function, &replaced[i].function, sizeof *function);
  return result;
}

__attribute__((visibility("default"))) CUresult CUDAAPI cuDriverGetVersion(int *version) {
  pthread_once(&driver.once, load);
  return driver.version ? driver.version(version) : CUDA_ERROR_NOT_INITIALIZED;
}
