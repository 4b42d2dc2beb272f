/* SPDX-License-Identifier: Apache-2.0
 * Loads modules and launches kernels. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda.h"
#include "base/status.h"

#ifndef BNY_CUDA_KERNELS
#define BNY_CUDA_KERNELS "what BANYAN_CUDA_IMAGE was built for" /* this build has none */
#endif

/* A loaded image. Communicators of one process share it, because a load takes about as long as all else that a
 * communicator needs. */
struct bny_device_module {
  bny_cuda_device *device; /* the first user's; held, so that its context stays */
  CUmodule module;
  uint64_t digest; /* digest_of() the image */
  size_t bytes;
  int32_t users;
  bny_device_module *next;
};

static struct {
  pthread_mutex_t lock;
  bny_device_module *first;
} modules = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* FNV-1a over words of 8 bytes. */
static uint64_t digest_of(const unsigned char *image, size_t bytes) {
  uint64_t digest = 0xcbf29ce484222325, word = 0;
  for (size_t at = 0; at < bytes; at += sizeof word) {
    memcpy(&word, image + at, bytes - at < sizeof word ? bytes - at : sizeof word);
    digest = (digest ^ word) * 0x100000001b3;
  }
  return digest;
}

/* Explains a failed load. Images hold code for some architectures. For others the driver compiles PTX, but only if it
 * is as new as the toolkit. */
static banyan_status fail_load(bny_cuda_device *self, CUresult result) {
  const bny_device_facts *facts = &self->device.facts;
  banyan_status status =
      bny_cuda_check(&self->driver, result, "kernels do not load on CUDA device %d (compute capability %d.%d)",
                     facts->ordinal, facts->compute / 10, facts->compute % 10);
  if (status != BANYAN_ERR_UNSUPPORTED) return status;
  return bny_fail(
      status,
      "%s; they are for %s, by the toolkit of CUDA %d.%d, and the driver is of CUDA %d.%d: install a driver of CUDA "
      "%d.%d or newer, or build banyan with CUDA_ARCHS=%d, or with a toolkit no newer than the driver",
      banyan_last_error(), BNY_CUDA_KERNELS, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, facts->driver / 1000,
      facts->driver % 1000 / 10, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, facts->compute);
}

static banyan_status load(bny_cuda_device *self, const void *image, bny_device_module **module) {
  bny_device_module *made = malloc(sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a module");
  *made = (bny_device_module){.device = self};
  bny_cuda_scope scope;
  CUresult result = bny_cuda_enter_setup(self, &scope);
  if (result == CUDA_SUCCESS)
    result = self->driver.cuModuleLoadData(&made->module, image); /* the image's header states its size */
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS) {
    free(made);
    return fail_load(self, result);
  }
  bny_cuda_hold(self);
  *module = made;
  return BANYAN_OK;
}

banyan_status bny_cuda_module_load(bny_device *device, const void *image, size_t bytes, bny_device_module **module) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  if (!image) {
    image = bny_cuda_image;
    bytes = bny_cuda_image_bytes;
  }
  if (bytes == 0)
    return bny_fail(
        BANYAN_ERR_UNSUPPORTED,
        "this banyan was built without CUDA kernels: build it with nvcc, and with CUDA_ARCHS=%d if the build "
        "machine has no device",
        self->device.facts.compute);
  const uint64_t digest = digest_of(image, bytes);
  pthread_mutex_lock(&modules.lock);
  bny_device_module *found = modules.first;
  while (found && (found->device->context != self->context || found->digest != digest || found->bytes != bytes))
    found = found->next;
  banyan_status status = found ? BANYAN_OK : load(self, image, &found);
  if (status == BANYAN_OK && found->users++ == 0) {
    found->digest = digest;
    found->bytes = bytes;
    found->next = modules.first;
    modules.first = found;
  }
  pthread_mutex_unlock(&modules.lock);
  if (status == BANYAN_OK) *module = found;
  return status;
}

void bny_cuda_module_unload(bny_device_module *module) {
  if (!module) return;
  bny_cuda_scope scope;
  pthread_mutex_lock(&modules.lock);
  const bool is_last = --module->users == 0;
  for (bny_device_module **link = &modules.first; is_last && *link; link = &(*link)->next)
    if (*link == module) {
      *link = module->next;
      break;
    }
  pthread_mutex_unlock(&modules.lock);
  if (!is_last) return;
  if (bny_cuda_enter_setup(module->device, &scope) == CUDA_SUCCESS)
    module->device->driver.cuModuleUnload(module->module);
  bny_cuda_leave(module->device, &scope);
  bny_cuda_drop(module->device);
  free(module);
}

static CUresult read_kernel(const bny_cuda_driver *driver, CUfunction function, bny_device_kernel *kernel) {
  CUresult result = driver->cuFuncGetAttribute(&kernel->shared_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function);
  if (result != CUDA_SUCCESS) return result;
  return driver->cuFuncGetAttribute(&kernel->local_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
}

/* Raises the stack limit to the kernel's needs in advance. If the driver raised it at the first launch, it would wait
 * for all running kernels, and these wait for each other. */
static CUresult make_stack(const bny_cuda_driver *driver, const bny_device_kernel *kernel) {
  size_t stack = 0;
  CUresult result = driver->cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE);
  if (result != CUDA_SUCCESS || kernel->local_bytes < 0 || stack >= (size_t)kernel->local_bytes) return result;
  return driver->cuCtxSetLimit(CU_LIMIT_STACK_SIZE, (size_t)kernel->local_bytes);
}

/* Requests the maximum of shared memory for every kernel. Shared memory is part of an SM's L1 cache, and the split
 * changes only while the SM is idle. A kernel with another split could not start on an SM before the running kernel
 * ends. */
static CUresult set_shared(const bny_cuda_driver *driver, CUfunction function, int32_t room) {
  CUresult result = driver->cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                               CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
  if (result != CUDA_SUCCESS || room <= 0) return result;
  return driver->cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, room);
}

banyan_status bny_cuda_kernel_find(bny_device_module *module, const char *name, bny_device_kernel *kernel) {
  bny_cuda_device *self = module->device;
  bny_cuda_scope scope;
  CUfunction function = NULL;
  bny_device_kernel found = {0};
  CUresult result = bny_cuda_enter_setup(self, &scope);
  if (result == CUDA_SUCCESS) result = self->driver.cuModuleGetFunction(&function, module->module, name);
  /* Forces lazy drivers to load the kernel now. A first launch that loads could not be captured, and might wait for
   * running kernels. Older drivers load it for the attributes. */
  if (result == CUDA_SUCCESS && self->driver.cuFuncLoad) result = self->driver.cuFuncLoad(function);
  if (result == CUDA_SUCCESS) result = read_kernel(&self->driver, function, &found);
  if (result == CUDA_SUCCESS)
    result = set_shared(&self->driver, function, self->device.facts.shared_bytes_max - found.shared_bytes);
  if (result == CUDA_SUCCESS) result = make_stack(&self->driver, &found);
  bny_cuda_leave(self, &scope);
  found.function = function;
  if (result == CUDA_SUCCESS) *kernel = found;
  return bny_cuda_check(&self->driver, result, "kernel %s on CUDA device %d", name, self->device.facts.ordinal);
}

banyan_status bny_cuda_kernel_residency(bny_device *device, const bny_device_kernel *kernel, uint32_t block_threads,
                                        uint32_t shared_bytes, int32_t *blocks) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  int found = 0;
  CUresult result = bny_cuda_enter_setup(self, &scope);
  if (result == CUDA_SUCCESS)
    result = self->driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel->function, (int)block_threads,
                                                                      shared_bytes);
  bny_cuda_leave(self, &scope);
  if (result == CUDA_SUCCESS) *blocks = found;
  return bny_cuda_check(&self->driver, result, "how many blocks of %u threads CUDA device %d holds", block_threads,
                        device->facts.ordinal);
}

banyan_status bny_cuda_kernel_clusters(bny_device *device, const bny_device_kernel *kernel, uint32_t block_threads,
                                       uint32_t shared_bytes, uint32_t cluster, int32_t *clusters) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  CUresult result = CUDA_SUCCESS;
  int found = 0;
  if (device->facts.clusters && self->driver.cuOccupancyMaxActiveClusters) {
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {cluster, 1, 1}};
    CUlaunchConfig config = {.gridDimX = cluster,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = block_threads,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .sharedMemBytes = shared_bytes,
                             .attrs = &attribute,
                             .numAttrs = 1};
    bny_cuda_scope scope;
    result = bny_cuda_enter_setup(self, &scope);
    if (result == CUDA_SUCCESS) result = self->driver.cuOccupancyMaxActiveClusters(&found, kernel->function, &config);
    bny_cuda_leave(self, &scope);
  }
  *clusters = found;
  return bny_cuda_check(&self->driver, result, "how many clusters of %u blocks CUDA device %d holds", cluster,
                        device->facts.ordinal);
}

static CUresult launch_extended(const bny_cuda_driver *driver, const bny_device_launch *launch, CUstream stream) {
  CUlaunchAttribute attributes[2];
  unsigned count = 0;
  if (launch->cluster[0])
    attributes[count++] = (CUlaunchAttribute){
        .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        .value.clusterDim = {.x = launch->cluster[0], .y = launch->cluster[1], .z = launch->cluster[2]},
    };
  if (launch->early)
    attributes[count++] = (CUlaunchAttribute){
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value.programmaticStreamSerializationAllowed = 1,
    };
  CUlaunchConfig config = {
      .gridDimX = launch->grid[0],
      .gridDimY = launch->grid[1],
      .gridDimZ = launch->grid[2],
      .blockDimX = launch->block[0],
      .blockDimY = launch->block[1],
      .blockDimZ = launch->block[2],
      .sharedMemBytes = launch->shared_bytes,
      .hStream = stream,
      .attrs = attributes,
      .numAttrs = count,
  };
  return driver->cuLaunchKernelEx(&config, launch->kernel->function, launch->arguments, NULL);
}

banyan_status bny_cuda_launch(bny_device *device, const bny_device_launch *launch, void *stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  if (launch->cluster[0] && !device->facts.clusters)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "CUDA device %d has no clusters of blocks", device->facts.ordinal);
  bny_device_launch asked = *launch;
  asked.early = launch->early && device->facts.early_launch; /* other devices run the kernels in turn, which is also
                                                              * correct */
  bny_cuda_scope scope;
  CUresult result = bny_cuda_enter(self, &scope);
  if (result == CUDA_SUCCESS && (asked.cluster[0] || asked.early))
    result = launch_extended(&self->driver, &asked, stream);
  else if (result == CUDA_SUCCESS)
    result =
        self->driver.cuLaunchKernel(asked.kernel->function, asked.grid[0], asked.grid[1], asked.grid[2], asked.block[0],
                                    asked.block[1], asked.block[2], asked.shared_bytes, stream, asked.arguments, NULL);
  bny_cuda_leave(self, &scope);
  return bny_cuda_check(&self->driver, result,
                        "launch of %ux%ux%u blocks of %u threads with %u bytes of shared memory on CUDA device %d",
                        asked.grid[0], asked.grid[1], asked.grid[2], asked.block[0] * asked.block[1] * asked.block[2],
                        asked.shared_bytes, device->facts.ordinal);
}
