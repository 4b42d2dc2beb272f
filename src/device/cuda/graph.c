/* SPDX-License-Identifier: Apache-2.0
 * Graphs of what is put on streams of the library: captured, and launched again. */
#include "device/cuda/cuda.h"

bool bny_cuda_has_graphs(const bny_cuda_driver *driver) {
  return driver->cuStreamBeginCapture && driver->cuStreamEndCapture && driver->cuGraphInstantiateWithFlags &&
         driver->cuGraphUpload && driver->cuGraphLaunch && driver->cuGraphExecDestroy && driver->cuGraphDestroy;
}

/* Relaxed mode: other threads are not restricted meanwhile, be they of this library or of the program. */
banyan_status bny_cuda_graph_begin(bny_device *device, void *stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter_setup(self, &scope);
  if (status != BANYAN_OK) return status;
  CUresult result = self->driver.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "capture of a stream of CUDA device %d", device->facts.ordinal);
  return BANYAN_OK;
}

banyan_status bny_cuda_graph_end(bny_device *device, void *stream, void **graph) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter_setup(self, &scope);
  if (status != BANYAN_OK) return status;
  CUgraph captured = NULL;
  CUgraphExec made = NULL;
  CUresult result = self->driver.cuStreamEndCapture(stream, &captured);
  if (result == CUDA_SUCCESS && graph) result = self->driver.cuGraphInstantiateWithFlags(&made, captured, 0);
  if (captured) self->driver.cuGraphDestroy(captured);
  if (result == CUDA_SUCCESS && graph) {
    result = self->driver.cuGraphUpload(made, stream);
    if (result != CUDA_SUCCESS) self->driver.cuGraphExecDestroy(made);
  }
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS && graph)
    return bny_cuda_fail(&self->driver, result, "a graph on CUDA device %d", device->facts.ordinal);
  if (graph) *graph = made;
  return BANYAN_OK;
}

void bny_cuda_graph_free(bny_device *device, void *graph) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (!graph || bny_cuda_enter_setup(self, &scope) != BANYAN_OK) return;
  self->driver.cuGraphExecDestroy(graph);
  bny_cuda_leave(self, &scope);
}

banyan_status bny_cuda_graph_launch(bny_device *device, void *graph, void *stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_enter(self, &scope);
  if (status != BANYAN_OK) return status;
  CUresult result = self->driver.cuGraphLaunch(graph, stream);
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "launch of a graph on CUDA device %d", device->facts.ordinal);
  return BANYAN_OK;
}
