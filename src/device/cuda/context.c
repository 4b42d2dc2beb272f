/* SPDX-License-Identifier: Apache-2.0 Sets and restores the calling thread's context in each call, and counts the users
 * of a device. The last of them closes it. */
#include <stdlib.h>

#include "device/cuda/cuda.h"

banyan_status bny_cuda_enter(bny_cuda_device *self, bny_cuda_scope *scope) {
  *scope = (bny_cuda_scope){0};
  CUcontext current = NULL;
  CUresult result = self->driver.cuCtxGetCurrent(&current);
  if (result != CUDA_SUCCESS) return bny_cuda_fail(&self->driver, result, "cuCtxGetCurrent");
  if (current == self->context) return BANYAN_OK;
  result = self->driver.cuCtxPushCurrent(self->context);
  if (result != CUDA_SUCCESS) return bny_cuda_fail(&self->driver, result, "cuCtxPushCurrent");
  scope->pushed = true;
  return BANYAN_OK;
}

banyan_status bny_cuda_enter_setup(bny_cuda_device *self, bny_cuda_scope *scope) {
  banyan_status status = bny_cuda_enter(self, scope);
  if (status != BANYAN_OK) return status;
  scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUresult result = self->driver.cuThreadExchangeStreamCaptureMode(&scope->mode);
  if (result != CUDA_SUCCESS) {
    bny_cuda_leave(self, scope);
    return bny_cuda_fail(&self->driver, result, "cuThreadExchangeStreamCaptureMode");
  }
  scope->exchanged = true;
  return BANYAN_OK;
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
