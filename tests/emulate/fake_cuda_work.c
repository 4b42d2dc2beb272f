/* SPDX-License-Identifier: Apache-2.0
 * The fake CUDA driver's streams, copies, modules and launches. The calling thread does all work at once. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/emulate/fake_cuda.h"
#include "tests/emulate/fake_cuda_parts.h"

/* ---- streams ----------------------------------------------------------------------------------------------------- */

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  CUresult result = fake_enter(true);
  if (result != CUDA_SUCCESS) return result;
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  fake_lock();
  *stream = fake_add(STREAM, NULL, 0)->address;
  fake_unlock();
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  CUresult result = fake_enter(true);
  if (result != CUDA_SUCCESS) return result;
  fake_lock();
  bool removed = fake_remove(STREAM, stream);
  fake_unlock();
  return removed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Checks that the stream belongs to the current device or is the default one. Sets *runs unless it is being
 * captured. */
static CUresult use(CUstream stream, bool setup, bool *runs) {
  CUresult result = fake_enter(setup);
  if (result != CUDA_SUCCESS) return result;
  fake_lock();
  const object *found = stream ? fake_find(STREAM, stream) : NULL;
  if (stream && (!found || found->device != fake_device())) result = CUDA_ERROR_INVALID_HANDLE;
  *runs = !(found && found->capturing) && !fake_queue_is_capturing(stream);
  fake_unlock();
  return result == CUDA_SUCCESS && fake_queue_is_broken() ? CUDA_ERROR_LAUNCH_FAILED : result;
}

CUresult cuStreamQuery(CUstream stream) {
  bool runs = false;
  CUresult result = use(stream, true, &runs);
  if (result != CUDA_SUCCESS) return result;
  if (!runs) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return fake_is("slow-writes", fake_device()) || fake_queue_is_busy(stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  bool runs = false;
  CUresult result = use(stream, false, &runs);
  *status = runs ? CU_STREAM_CAPTURE_STATUS_NONE : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return result;
}

CUresult cuStreamSynchronize(CUstream stream) {
  CUresult result;
  while ((result = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) usleep(100);
  return result;
}

EXPORTED fake_cuda_capture_function fake_cuda_capture;
void fake_cuda_capture(void *stream, bool on) {
  if (on) fake_kernel_forget(stream);
  fake_lock();
  fake_find(STREAM, stream)->capturing = on;
  fake_unlock();
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  bool runs = false;
  CUresult result = use(stream, false, &runs);
  if (result != CUDA_SUCCESS) return result;
  fake_lock();
  bool known = fake_covering((void *)(uintptr_t)to, bytes) && fake_covering((void *)(uintptr_t)from, bytes);
  fake_unlock();
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  if (fake_queue_is_on())
    fake_queue_copy(stream, (void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
  else if (runs)
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
  return CUDA_SUCCESS;
}

static atomic_uint fills;
EXPORTED fake_cuda_fills_function fake_cuda_fills;
uint32_t fake_cuda_fills(void) { return atomic_load(&fills); }

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  bool runs = false;
  CUresult result = use(stream, false, &runs);
  if (result != CUDA_SUCCESS) return result;
  fake_lock();
  bool known = fake_covering((void *)(uintptr_t)to, bytes) != NULL;
  fake_unlock();
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  atomic_fetch_add(&fills, 1);
  if (fake_queue_is_on())
    fake_queue_fill(stream, (void *)(uintptr_t)to, value, bytes);
  else if (runs)
    fake_fill((void *)(uintptr_t)to, value, bytes);
  return CUDA_SUCCESS;
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

static bool is_own(const void *image) { return ((const fake_cuda_image *)image)->magic == FAKE_CUDA_MAGIC; }

/* Returns whether the image stands for the kernels of the emulator. */
static bool is_library(const void *image) {
  static const unsigned char fat_binary[4] = {0x50, 0xed, 0x55, 0xba};
  return memcmp(image, fat_binary, 4) == 0 || memcmp(image, "emul", 4) == 0;
}

static atomic_int loads;

EXPORTED fake_cuda_loads_function fake_cuda_loads;
int fake_cuda_loads(void) { return atomic_load(&loads); }

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  if (fake_number("load-fails", 0)) return (CUresult)fake_number("load-fails", 0);
  if (!is_own(image) && !is_library(image)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  /* As in real drivers, the caller may free the image. */
  static const fake_cuda_image library;
  fake_cuda_image *copy = is_own(image) ? malloc(sizeof *copy) : NULL;
  if (copy) memcpy(copy, image, sizeof *copy);
  atomic_fetch_add(&loads, 1);
  fake_note("cuModuleLoadData");
  fake_lock();
  object *made = fake_add(MODULE, NULL, 0);
  made->image = copy ? copy : &library;
  *module = made->address;
  fake_unlock();
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  fake_lock();
  const object *found = fake_find(MODULE, module);
  void *image = found && is_own(found->image) ? (void *)(uintptr_t)found->image : NULL;
  bool removed = fake_remove(MODULE, module);
  fake_unlock();
  free(image);
  return removed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* The handle of a function is its address in the image. */
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  fake_lock();
  const object *found = fake_find(MODULE, module);
  const fake_cuda_image *image = found ? found->image : NULL;
  fake_unlock();
  if (image && !is_own(image)) {
    *function = (CUfunction)(uintptr_t)fake_kernel_find(name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
  }
  for (int i = 0; image && i < FAKE_CUDA_KERNELS_MAX && image->kernels[i].name; i++) {
    if (strcmp(image->kernels[i].name, name) != 0 && strcmp(image->kernels[i].name, "*") != 0) continue;
    *function = (CUfunction)(uintptr_t)&image->kernels[i];
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncLoad(CUfunction function) {
  fake_kernel_note(function, FAKE_KERNEL_LOADED);
  return fake_enter_idle();
}

static int local_bytes(void) { return (int)fake_number("local", 800); }

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  fake_kernel_note(function, FAKE_KERNEL_LOADED);
  *value = attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES ? local_bytes() : 0;
  return fake_enter(true);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
    if (value == CU_SHAREDMEM_CARVEOUT_MAX_SHARED) fake_kernel_note(function, FAKE_KERNEL_SHARES);
    return fake_enter(true);
  }
  return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? fake_enter(true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                     size_t shared_bytes) {
  (void)function;
  *blocks = threads > 0 && shared_bytes <= 227 << 10 ? 2048 / threads : 0;
  return fake_enter(true);
}

/* Only the SMs limit the result. */
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
  int blocks = 0, sms = 0;
  if (config->numAttrs != 1 || config->attrs[0].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result =
      cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, (int)config->blockDimX, config->sharedMemBytes);
  if (result == CUDA_SUCCESS)
    result = cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, fake_device());
  *clusters = sms / (int)config->attrs[0].value.clusterDim.x * blocks;
  return result;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Checks that a kernel of the library is prepared. At a first launch, a driver may have to load the kernel or allocate
 * memory for it. The kernel may also be unable to share SMs. In each case the launch waits, forever if kernels wait for
 * each other. */
static bool is_ready(CUfunction function) {
  const unsigned noted = fake_kernel_noted(function);
  const char *lacks = fake_stack() < (size_t)local_bytes() ? "has more local memory than threads have"
                      : !(noted & FAKE_KERNEL_LOADED)      ? "was never loaded"
                      : !(noted & FAKE_KERNEL_SHARES)      ? "does not ask for all shared memory"
                                                           : NULL;
  if (lacks) fprintf(stderr, "fake CUDA: a kernel is launched that %s\n", lacks);
  return !lacks;
}

static CUresult run(CUfunction function, CUstream stream, fake_cuda_launch *launch) {
  bool runs = false;
  CUresult result = use(stream, false, &runs);
  if (result != CUDA_SUCCESS) return result;
  launch->device = fake_device();
  if (fake_kernel_is(function) && !is_ready(function)) return CUDA_ERROR_ILLEGAL_STATE;
  if (fake_kernel_is(function)) {
    fake_kernel_launch(function, stream, !runs, launch);
    return CUDA_SUCCESS;
  }
  void (*kernel)(const fake_cuda_launch *);
  const char *entry = (const char *)function;
  memcpy(&kernel, entry + sizeof(const char *), sizeof kernel);
  if (runs) kernel(launch);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared_bytes, CUstream stream, void **arguments, void **extra) {
  fake_cuda_launch launch = {
      .grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared_bytes = shared_bytes, .arguments = arguments};
  if (extra || gx * gy * gz == 0 || bx * by * bz == 0 || bx * by * bz > 1024) return CUDA_ERROR_INVALID_VALUE;
  return run(function, stream, &launch);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
  fake_cuda_launch launch = {
      .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
      .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
      .shared_bytes = config->sharedMemBytes,
      .arguments = arguments,
  };
  if (extra) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const CUlaunchAttribute *attribute = &config->attrs[i];
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      launch.early = attribute->value.programmaticStreamSerializationAllowed != 0;
    } else if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      launch.cluster[0] = attribute->value.clusterDim.x;
      launch.cluster[1] = attribute->value.clusterDim.y;
      launch.cluster[2] = attribute->value.clusterDim.z;
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return run(function, config->hStream, &launch);
}
