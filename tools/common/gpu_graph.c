/* SPDX-License-Identifier: Apache-2.0
 * Graphs, and how long they take. */
#include <stdlib.h>

#include "tools/common/gpu_driver.h"

struct gpu_graph {
  gpu *device;
  CUgraphExec exec;
};

bool gpu_capture_begin(gpu *device, void *stream, tool_error *error) {
  CUresult result = device->driver.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  return gpu_succeeded(&device->driver, result, "cuStreamBeginCapture", error);
}

/* The upload allocates what a first launch would allocate. Later, kernels of other ranks may wait for this graph's
 * kernels, and then an allocation could not end. */
static bool instantiate(gpu *device, CUgraph captured, void *stream, CUgraphExec *exec, tool_error *error) {
  const gpu_driver *driver = &device->driver;
  CUgraphExec made = NULL;
  if (!gpu_succeeded(driver, driver->cuGraphInstantiateWithFlags(&made, captured, 0), "cuGraphInstantiate", error))
    return false;
  if (!gpu_succeeded(driver, driver->cuGraphUpload(made, stream), "cuGraphUpload", error)) {
    driver->cuGraphExecDestroy(made);
    return false;
  }
  *exec = made;
  return true;
}

bool gpu_capture_end(gpu *device, void *stream, gpu_graph **graph, tool_error *error) {
  const gpu_driver *driver = &device->driver;
  CUgraph captured = NULL;
  gpu_graph *made = calloc(1, sizeof *made);
  bool ok = made != NULL || tool_error_set(error, "out of memory");
  /* A capture that has failed is to be ended as well. */
  CUresult result = driver->cuStreamEndCapture(stream, &captured);
  ok = ok && gpu_succeeded(driver, result, "cuStreamEndCapture", error) &&
       instantiate(device, captured, stream, &made->exec, error);
  if (captured != NULL) driver->cuGraphDestroy(captured);
  if (!ok) {
    free(made);
    return false;
  }
  made->device = device;
  *graph = made;
  return true;
}

bool gpu_graph_launch(gpu_graph *graph, void *stream, tool_error *error) {
  const gpu_driver *driver = &graph->device->driver;
  return gpu_succeeded(driver, driver->cuGraphLaunch(graph->exec, stream), "cuGraphLaunch", error);
}

void gpu_graph_free(gpu_graph *graph) {
  if (graph != NULL) {
    graph->device->driver.cuGraphExecDestroy(graph->exec);
    free(graph);
  }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static void free_events(gpu *device, CUevent *events, int32_t count) {
  for (int32_t i = 0; events != NULL && i < count; i++) {
    if (events[i] != NULL) device->driver.cuEventDestroy(events[i]);
  }
  free(events);
}

static CUevent *make_events(gpu *device, int32_t count, tool_error *error) {
  CUevent *events = calloc((size_t)count, sizeof *events);
  bool ok = events != NULL || tool_error_set(error, "out of memory");
  for (int32_t i = 0; ok && i < count; i++) {
    ok = gpu_succeeded(&device->driver, device->driver.cuEventCreate(&events[i], CU_EVENT_DEFAULT), "cuEventCreate",
                       error);
  }
  if (!ok) {
    free_events(device, events, count);
    return NULL;
  }
  return events;
}

static bool launch_all(gpu_graph *const *graphs, void *const *streams, int32_t ngraphs, tool_error *error) {
  bool ok = true;
  for (int32_t i = 0; ok && i < ngraphs; i++) ok = gpu_graph_launch(graphs[i], streams[i], error);
  return ok;
}

bool gpu_graphs_time(gpu_graph *const *graphs, void *const *streams, int32_t ngraphs, const gpu_rounds *rounds,
                     double *times_us, tool_error *error) {
  gpu *device = graphs[0]->device;
  const gpu_driver *driver = &device->driver;
  int32_t count = rounds->count;
  CUevent *events = make_events(device, count + 1, error);
  bool ok = events != NULL;
  for (int32_t i = 0; ok && i < rounds->warmup; i++) ok = launch_all(graphs, streams, ngraphs, error);
  /* So that a graph that never ends does so here, and no more than that is under way. */
  ok = ok && gpu_wait(device, streams[0], rounds->seconds, error) && launch_all(graphs, streams, ngraphs, error);
  for (int32_t i = 0; ok && i <= count; i++) {
    ok = gpu_succeeded(driver, driver->cuEventRecord(events[i], streams[0]), "cuEventRecord", error) &&
         (i == count || launch_all(graphs, streams, ngraphs, error));
  }
  ok = ok && gpu_wait(device, streams[0], rounds->seconds, error);
  for (int32_t i = 0; ok && i < count; i++) {
    float milliseconds = 0;
    ok = gpu_succeeded(driver, driver->cuEventElapsedTime(&milliseconds, events[i], events[i + 1]),
                       "cuEventElapsedTime", error);
    times_us[i] = (double)milliseconds * 1e3;
  }
  free_events(device, events, count + 1);
  return ok;
}
