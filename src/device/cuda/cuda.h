/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files of the CUDA device. */
#pragma once

#include "device/cuda/driver.h"
#include "device/device.h"

typedef struct bny_cuda_device {
  bny_device device; /* first */
  bny_cuda_driver driver;
  CUdevice handle;
  CUcontext context;       /* the primary one, retained */
  bool vmm, files, fabric; /* supported by the driver's report; facts.memory_kinds has the tested kinds */
  bool pageable;           /* the device reaches pageable host memory, through the machine's page tables */
  bool rdma;               /* network adapters may access memory that is allocated for it */
  _Atomic uint32_t users;  /* the owner, and importing ranks of the process */
} bny_cuda_device;

/* The thread state that a call changes and restores. */
typedef struct bny_cuda_scope {
  bool pushed, exchanged;
  CUstreamCaptureMode mode;
} bny_cuda_scope;

/* Makes the device's context current, until bny_cuda_leave(), which is also called after a failure. For hot calls. */
CUresult bny_cuda_enter(bny_cuda_device *self, bny_cuda_scope *scope);

/* Does the same for set-up: its allocations must not invalidate a capture that this or another thread has begun. */
CUresult bny_cuda_enter_setup(bny_cuda_device *self, bny_cuda_scope *scope);
void bny_cuda_leave(bny_cuda_device *self, const bny_cuda_scope *scope);

void bny_cuda_hold(bny_cuda_device *self);
void bny_cuda_drop(bny_cuda_device *self);

static inline CUdeviceptr bny_cuda_address(const void *pointer) { return (CUdeviceptr)(uintptr_t)pointer; }

/* memory.c */
banyan_status bny_cuda_memory_make(bny_device *device, bny_memory_kind kind, size_t bytes, bny_device_memory **memory);
void bny_cuda_memory_free(bny_device_memory *memory);
banyan_status bny_cuda_host_register(bny_device *device, void *host, size_t bytes, void **address);
void bny_cuda_host_unregister(bny_device *device, void *host, size_t bytes);
banyan_status bny_cuda_memory_export(bny_device_memory *memory, bny_device_handle *handle, int *file);
banyan_status bny_cuda_memory_import(bny_device *device, const bny_device_offer *offer, bny_device_memory **memory);

/* Makes, exports and frees a small arena of each kind. Returns a bit for each that works. */
uint32_t bny_cuda_memory_try(bny_device *device);

/* image.c: the kernels of this build in the form that the driver takes, a fat binary for all architectures. */
extern const unsigned char bny_cuda_image[];
extern const size_t bny_cuda_image_bytes; /* 0: built without nvcc */

/* kernel.c */
banyan_status bny_cuda_module_load(bny_device *device, const void *image, size_t bytes, bny_device_module **module);
void bny_cuda_module_unload(bny_device_module *module);
banyan_status bny_cuda_kernel_find(bny_device_module *module, const char *name, bny_device_kernel *kernel);
banyan_status bny_cuda_kernel_residency(bny_device *device, const bny_device_kernel *kernel, uint32_t block_threads,
                                        uint32_t shared_bytes, int32_t *blocks);
banyan_status bny_cuda_kernel_clusters(bny_device *device, const bny_device_kernel *kernel, uint32_t block_threads,
                                       uint32_t shared_bytes, uint32_t cluster, int32_t *clusters);
banyan_status bny_cuda_launch(bny_device *device, const bny_device_launch *launch, void *stream);
