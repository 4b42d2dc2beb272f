/* SPDX-License-Identifier: Apache-2.0
 * Marks on streams: CUDA's events. */
#include "device/cuda/cuda.h"

banyan_status bny_cuda_mark_make(bny_device *device, void **mark) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter_setup(self, &scope);
  if (status != BANYAN_OK) return status;
  CUevent made = NULL;
  CUresult result = self->driver.cuEventCreate(&made, CU_EVENT_DEFAULT);
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "an event on CUDA device %d", device->facts.ordinal);
  *mark = made;
  return BANYAN_OK;
}

void bny_cuda_mark_free(bny_device *device, void *mark) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (!mark || bny_cuda_enter_setup(self, &scope) != BANYAN_OK) return;
  self->driver.cuEventDestroy(mark);
  bny_cuda_leave(self, &scope);
}

banyan_status bny_cuda_mark_set(bny_device *device, void *mark, void *stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter(self, &scope);
  if (status != BANYAN_OK) return status;
  CUresult result = self->driver.cuEventRecord(mark, stream);
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "an event on a stream of CUDA device %d", device->facts.ordinal);
  return BANYAN_OK;
}

banyan_status bny_cuda_mark_elapsed(bny_device *device, void *from, void *to, double *ns) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter_setup(self, &scope);
  if (status != BANYAN_OK) return status;
  float milliseconds = 0;
  CUresult result = self->driver.cuEventElapsedTime(&milliseconds, from, to);
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "the time between events of CUDA device %d", device->facts.ordinal);
  *ns = (double)milliseconds * 1e6;
  return BANYAN_OK;
}
