/* SPDX-License-Identifier: Apache-2.0 Queries and waits for streams, puts copies on them, and identifies pointers. */
#include <string.h>

#include "device/cuda/cuda.h"
#include "base/status.h"

/* ---- memory of its own ------------------------------------------------------------------------------------------- */

banyan_status bny_cuda_local_make(bny_device *device, size_t bytes, void **address) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter_setup(self, &scope);
  if (status != BANYAN_OK) return status;
  CUdeviceptr made = 0;
  CUresult result = self->driver.cuMemAlloc(&made, bytes);
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "%zu bytes of CUDA device %d", bytes, device->facts.ordinal);
  *address = (void *)(uintptr_t)made;
  return BANYAN_OK;
}

void bny_cuda_local_free(bny_device *device, void *address) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (!address || bny_cuda_enter_setup(self, &scope) != BANYAN_OK) return;
  self->driver.cuMemFree(bny_cuda_address(address));
  bny_cuda_leave(self, &scope);
}

/* ---- words of the host ------------------------------------------------------------------------------------------- */

banyan_status bny_cuda_words_make(bny_device *device, size_t count, bny_device_words *words) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter_setup(self, &scope);
  if (status != BANYAN_OK) return status;
  void *host = NULL;
  CUdeviceptr address = 0;
  CUresult result = self->driver.cuMemHostAlloc(&host, count * sizeof(uint64_t),
                                                CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (result == CUDA_SUCCESS) {
    result = self->driver.cuMemHostGetDevicePointer(&address, host, 0);
    if (result != CUDA_SUCCESS) self->driver.cuMemFreeHost(host);
  }
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS) return bny_cuda_fail(&self->driver, result, "%zu words of pinned memory", count);
  memset(host, 0, count * sizeof(uint64_t));
  *words = (bny_device_words){.host = host, .device = (void *)(uintptr_t)address, .count = count};
  return BANYAN_OK;
}

void bny_cuda_words_free(bny_device *device, bny_device_words *words) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (words->host && bny_cuda_enter_setup(self, &scope) == BANYAN_OK) {
    self->driver.cuMemFreeHost(words->host);
    bny_cuda_leave(self, &scope);
  }
  *words = (bny_device_words){0};
}

/* A driver does not report whether that device's memory is mapped here, only whether it can be. */
static bool reaches_device(const bny_cuda_device *self, int ordinal) {
  CUdevice peer;
  int access = 0;
  if (ordinal == self->device.facts.ordinal) return true;
  return self->driver.cuDeviceGet(&peer, ordinal) == CUDA_SUCCESS &&
         self->driver.cuDeviceCanAccessPeer(&access, self->handle, peer) == CUDA_SUCCESS && access;
}

banyan_status bny_cuda_pointer(bny_device *device, const void *pointer, bny_pointer_facts *facts) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  unsigned type = 0, managed = 0;
  int ordinal = -1;
  CUdeviceptr first = 0;
  size_t bytes = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void *values[] = {&type, &managed, &ordinal, &first, &bytes};
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter(self, &scope);
  if (status != BANYAN_OK) return status;
  CUresult result =
      self->driver.cuPointerGetAttributes(sizeof names / sizeof names[0], names, values, bny_cuda_address(pointer));
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE)
    return bny_cuda_fail(&self->driver, result, "which device owns a pointer");
  bny_pointer_facts found = {.kind = BNY_POINTER_UNKNOWN, .ordinal = -1, .reached = self->pageable};
  if (result == CUDA_SUCCESS && type) {
    found.kind = managed ? BNY_POINTER_MANAGED : type == CU_MEMORYTYPE_DEVICE ? BNY_POINTER_DEVICE : BNY_POINTER_HOST;
    if (found.kind == BNY_POINTER_DEVICE) found.ordinal = ordinal;
    found.same = found.ordinal == device->facts.ordinal;
    found.reached = found.kind != BNY_POINTER_DEVICE || reaches_device(self, ordinal);
    found.first = (uintptr_t)first;
    found.bytes = bytes;
  }
  *facts = found;
  return BANYAN_OK;
}

/* ---- hot --------------------------------------------------------------------------------------------------------- */

banyan_status bny_cuda_copy(bny_device *device, void *to, const void *from, size_t bytes, void *stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (bytes == 0) return BANYAN_OK;
  banyan_status status = bny_cuda_enter(self, &scope);
  if (status != BANYAN_OK) return status;
  CUresult result = self->driver.cuMemcpyAsync(bny_cuda_address(to), bny_cuda_address(from), bytes, stream);
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "copy of %zu bytes on CUDA device %d", bytes, device->facts.ordinal);
  return BANYAN_OK;
}

banyan_status bny_cuda_zero(bny_device *device, void *to, size_t bytes, void *stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (bytes == 0) return BANYAN_OK;
  banyan_status status = bny_cuda_enter(self, &scope);
  if (status != BANYAN_OK) return status;
  CUresult result = self->driver.cuMemsetD8Async(bny_cuda_address(to), 0, bytes, stream);
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "zeros for %zu bytes on CUDA device %d", bytes, device->facts.ordinal);
  return BANYAN_OK;
}

/* ---- streams of our own ------------------------------------------------------------------------------------------ */

banyan_status bny_cuda_stream_make(bny_device *device, void **stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter_setup(self, &scope);
  if (status != BANYAN_OK) return status;
  CUstream made = NULL;
  CUresult result = self->driver.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "a stream on CUDA device %d", device->facts.ordinal);
  *stream = made;
  return BANYAN_OK;
}

void bny_cuda_stream_free(bny_device *device, void *stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (!stream || bny_cuda_enter_setup(self, &scope) != BANYAN_OK) return;
  self->driver.cuStreamDestroy(stream);
  bny_cuda_leave(self, &scope);
}

/* Drivers treat this query as one that invalidates captures. */
banyan_status bny_cuda_stream_query(bny_device *device, void *stream, bool *done) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter_setup(self, &scope);
  if (status != BANYAN_OK) return status;
  CUresult result = self->driver.cuStreamQuery(stream);
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
    return bny_cuda_fail(&self->driver, result, "a stream of CUDA device %d", device->facts.ordinal);
  *done = result == CUDA_SUCCESS;
  return BANYAN_OK;
}
