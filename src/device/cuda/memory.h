/* SPDX-License-Identifier: Apache-2.0
 * An arena in CUDA's memory, or a peer's as this device sees it. Nonzero fields exist and must be undone. */
#ifndef BNY_DEVICE_CUDA_MEMORY_H
#define BNY_DEVICE_CUDA_MEMORY_H

#include "device/cuda/cuda.h"

enum { BNY_CUDA_EXPORT_BYTES = 4096 };

/* The export of BNY_MEMORY_IPC: a page of a memory file. Other processes read the handle. Ranks of the owner's process,
 * where such handles do not work, use the address itself and are counted. So it stays until the last of them has left,
 * and no rank can join after that. */
typedef struct bny_cuda_export {
  CUipcMemHandle handle;
  bny_cuda_device *device; /* the next three are valid in the owner's process alone */
  CUdeviceptr address;
  _Atomic uint32_t users;
} bny_cuda_export;

typedef struct bny_cuda_memory {
  bny_device_memory memory; /* first */
  CUmemGenericAllocationHandle physical;
  bool has_physical, reserved, mapped; /* BNY_MEMORY_FILE, BNY_MEMORY_FABRIC */
  bool opened;                         /* an IPC handle */
  CUdeviceptr allocated;               /* for BNY_MEMORY_IPC, before it is exported */
  bny_cuda_export *exported;           /* mapped; counted */
  void *host;                          /* BNY_MEMORY_HOST, mapped */
  bool registered;
  int file; /* to pass on; -1: none, or passed on */
} bny_cuda_memory;

/* Makes a memory without contents; it holds the device. */
banyan_status bny_cuda_memory_new(bny_cuda_device *self, bny_memory_kind kind, bool imported, bny_cuda_memory **memory);

CUmemAllocationHandleType bny_cuda_handle_type(bny_memory_kind kind);

/* Maps memory->physical of memory.bytes at an address of its own, for this device to read and write. */
banyan_status bny_cuda_memory_map(bny_cuda_device *self, bny_cuda_memory *memory);

/* Registers memory->host, of memory.bytes, with the device. */
banyan_status bny_cuda_memory_register(bny_cuda_device *self, bny_cuda_memory *memory);

#endif
