/* SPDX-License-Identifier: Apache-2.0
 * Graphs, and how long they take. */
#include <stdlib.h>

#include "gpu_driver.h"

struct gpu_graph {
  gpu *device;
  CUgraphExec exec;
};

/* `last` on one stream comes before what is put on the others from now on: the branches of a graph. */
static bool order(gpu *device, void *first, void *const *others, int32_t count, tool_error *error) {
  const gpu_driver *driver = &device->driver;
  CUevent event = NULL;
  bool ok = gpu_succeeded(driver, driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate", error);
  if (!ok) {
    return false;
  }
  ok = gpu_succeeded(driver, driver->cuEventRecord(event, first), "cuEventRecord", error);
  for (int32_t i = 0; ok && i < count; i++) {
    ok = gpu_succeeded(driver, driver->cuStreamWaitEvent(others[i], event, 0), "cuStreamWaitEvent", error);
  }
  driver->cuEventDestroy(event);
  return ok;
}

bool gpu_capture_begin(gpu *device, void *const *streams, int32_t count, tool_error *error) {
  CUresult result = device->driver.cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  return gpu_succeeded(&device->driver, result, "cuStreamBeginCapture", error) &&
         order(device, streams[0], streams + 1, count - 1, error);
}

/* What a first launch would have to allocate is allocated now: later, kernels of others may wait for those of this
 * graph. */
static bool instantiate(gpu *device, CUgraph captured, void *stream, CUgraphExec *exec, tool_error *error) {
  const gpu_driver *driver = &device->driver;
  CUgraphExec made = NULL;
  if (!gpu_succeeded(driver, driver->cuGraphInstantiateWithFlags(&made, captured, 0), "cuGraphInstantiate", error)) {
    return false;
  }
  if (!gpu_succeeded(driver, driver->cuGraphUpload(made, stream), "cuGraphUpload", error)) {
    driver->cuGraphExecDestroy(made);
    return false;
  }
  *exec = made;
  return true;
}

bool gpu_capture_end(gpu *device, void *const *streams, int32_t count, gpu_graph **graph, tool_error *error) {
  const gpu_driver *driver = &device->driver;
  CUgraph captured = NULL;
  gpu_graph *made = calloc(1, sizeof *made);
  bool ok = made != NULL || tool_error_set(error, "out of memory");
  for (int32_t i = 1; ok && i < count; i++) {
    ok = order(device, streams[i], streams, 1, error);
  }
  /* A capture that has failed is to be ended as well. */
  CUresult result = driver->cuStreamEndCapture(streams[0], &captured);
  ok = ok && gpu_succeeded(driver, result, "cuStreamEndCapture", error) &&
       instantiate(device, captured, streams[0], &made->exec, error);
  if (captured != NULL) {
    driver->cuGraphDestroy(captured);
  }
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
    if (events[i] != NULL) {
      device->driver.cuEventDestroy(events[i]);
    }
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

bool gpu_graph_time(gpu_graph *graph, void *stream, int32_t warmup, int32_t count, double seconds, double *times_us,
                    tool_error *error) {
  gpu *device = graph->device;
  const gpu_driver *driver = &device->driver;
  CUevent *events = make_events(device, 2 * count, error);
  bool ok = events != NULL;
  for (int32_t i = -warmup; ok && i < count; i++) {
    ok = (i < 0 || gpu_succeeded(driver, driver->cuEventRecord(events[2 * i], stream), "cuEventRecord", error)) &&
         gpu_graph_launch(graph, stream, error) &&
         (i < 0 || gpu_succeeded(driver, driver->cuEventRecord(events[2 * i + 1], stream), "cuEventRecord", error));
    /* So that a graph that never ends does so here, and no more than that is under way. */
    ok = ok && (i != -1 || gpu_wait(device, stream, seconds, error));
  }
  ok = ok && gpu_wait(device, stream, seconds, error);
  for (int32_t i = 0; ok && i < count; i++) {
    float milliseconds = 0;
    ok = gpu_succeeded(driver, driver->cuEventElapsedTime(&milliseconds, events[2 * i], events[2 * i + 1]),
                       "cuEventElapsedTime", error);
    times_us[i] = (double)milliseconds * 1e3;
  }
  free_events(device, events, 2 * count);
  return ok;
}
