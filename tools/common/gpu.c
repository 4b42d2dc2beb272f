/* SPDX-License-Identifier: Apache-2.0
 * Loads the driver's functions, and opens a device with its memory, streams and graphs. */
#include "tools/common/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cuda_library.h"
#include "tools/common/gpu_driver.h"

/* ---- the driver -------------------------------------------------------------------------------------------------- */

static const bny_cuda_function functions[] = {
#define BNY_CUDA_FUNCTION(name, version) {#name, version, offsetof(bny_cuda_driver, name), true},
#define BNY_CUDA_OPTIONAL(name, version)
#define BNY_CUDA_PROGRAM BNY_CUDA_FUNCTION
#include "base/cuda_functions.def"
#undef BNY_CUDA_FUNCTION
#undef BNY_CUDA_OPTIONAL
#undef BNY_CUDA_PROGRAM
};

bool gpu_succeeded(const bny_cuda_driver *driver, CUresult result, const char *what, tool_error *error) {
  if (result == CUDA_SUCCESS) return true;
  const char *name = NULL;
  driver->cuGetErrorName(result, &name);
  return tool_error_set(error, "%s: %s (%d)", what, name != NULL ? name : "unknown error", (int)result);
}

static bool load(bny_cuda_driver *driver, tool_error *error) {
  /* Streams that share a connection wait for each other. Kernels that wait for kernels of other streams would then
   * deadlock. */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  char text[BNY_CUDA_LIBRARY_TEXT_BYTES];
  void *library = NULL;
  if (!bny_cuda_library_open(getenv("BANYAN_CUDA_LIBRARY"), &library, &driver->version, text))
    return tool_error_set(error, "%s", text);
  const size_t count = sizeof functions / sizeof functions[0];
  bool ok = driver->version >= 12000 || tool_error_set(error, "the NVIDIA driver is older than CUDA 12");
  ok = ok && (bny_cuda_library_find(library, driver->version, functions, count, driver, text) ||
              tool_error_set(error, "%s", text));
  ok = ok && gpu_succeeded(driver, driver->cuInit(0), "cuInit", error);
  dlclose(library);
  return ok;
}

int32_t gpu_count(tool_error *error) {
  bny_cuda_driver driver;
  int count = 0;
  if (!load(&driver, error) || !gpu_succeeded(&driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount", error))
    return 0;
  if (count == 0) tool_error_set(error, "the NVIDIA driver finds no device");
  return count;
}

/* ---- a device ---------------------------------------------------------------------------------------------------- */

static int32_t attribute(const gpu *device, CUdevice_attribute which) {
  int value = 0;
  return device->driver.cuDeviceGetAttribute(&value, which, device->handle) == CUDA_SUCCESS ? value : 0;
}

static void find_facts(gpu *device, int32_t ordinal) {
  gpu_facts *facts = &device->facts;
  size_t bytes = 0;
  device->driver.cuDeviceGetName(facts->name, sizeof facts->name, device->handle);
  device->driver.cuDeviceTotalMem(&bytes, device->handle);
  facts->ordinal = ordinal;
  facts->memory_bytes = (int64_t)bytes;
  facts->cuda_version = device->driver.version;
  facts->compute = 10 * attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                   attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  facts->sms = attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  facts->clock_mhz = attribute(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000;
  facts->memory_clock_mhz = attribute(device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) / 1000;
  facts->bus_bits = attribute(device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  facts->one_process = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
  facts->cache_bytes = attribute(device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
}

bool gpu_open(int32_t ordinal, gpu **device, tool_error *error) {
  gpu *made = calloc(1, sizeof *made);
  if (made == NULL) return tool_error_set(error, "out of memory");
  const bny_cuda_driver *driver = &made->driver;
  bool ok = load(&made->driver, error) &&
            gpu_succeeded(driver, driver->cuDeviceGet(&made->handle, ordinal), "cuDeviceGet", error) &&
            gpu_succeeded(driver, driver->cuDevicePrimaryCtxRetain(&made->context, made->handle),
                          "cuDevicePrimaryCtxRetain", error);
  if (ok && !gpu_enter(made, error)) {
    driver->cuDevicePrimaryCtxRelease(made->handle);
    ok = false;
  }
  if (!ok) {
    free(made);
    return false;
  }
  find_facts(made, ordinal);
  *device = made;
  return true;
}

void gpu_close(gpu *device) {
  if (device != NULL) {
    device->driver.cuCtxSetCurrent(NULL);
    device->driver.cuDevicePrimaryCtxRelease(device->handle);
    free(device);
  }
}

bool gpu_enter(gpu *device, tool_error *error) {
  return gpu_succeeded(&device->driver, device->driver.cuCtxSetCurrent(device->context), "cuCtxSetCurrent", error);
}

const gpu_facts *gpu_facts_of(const gpu *device) { return &device->facts; }

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static CUdeviceptr address(const void *memory) { return (CUdeviceptr)(uintptr_t)memory; }

bool gpu_alloc(gpu *device, size_t bytes, void **memory, tool_error *error) {
  CUdeviceptr taken = 0;
  CUresult result = device->driver.cuMemAlloc(&taken, bytes > 0 ? bytes : 1);
  if (result != CUDA_SUCCESS) {
    char what[64];
    snprintf(what, sizeof what, "%zu bytes of a device's memory", bytes);
    return gpu_succeeded(&device->driver, result, what, error);
  }
  *memory = (void *)(uintptr_t)taken;
  return true;
}

void gpu_free(gpu *device, void *memory) {
  if (memory != NULL) device->driver.cuMemFree(address(memory));
}

bool gpu_write(gpu *device, void *to, const void *from, size_t bytes, tool_error *error) {
  CUresult result = bytes > 0 ? device->driver.cuMemcpyHtoD(address(to), from, bytes) : CUDA_SUCCESS;
  /* The call may return before the bytes arrive. They are copied in the default stream, which other streams do not wait
   * for. */
  return gpu_succeeded(&device->driver, result, "cuMemcpyHtoD", error) && gpu_wait(device, NULL, 30, error);
}

bool gpu_read(gpu *device, void *to, const void *from, size_t bytes, tool_error *error) {
  CUresult result = bytes > 0 ? device->driver.cuMemcpyDtoH(to, address(from), bytes) : CUDA_SUCCESS;
  return gpu_succeeded(&device->driver, result, "cuMemcpyDtoH", error);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

bool gpu_stream_make(gpu *device, void **stream, tool_error *error) {
  CUstream made = NULL;
  CUresult result = device->driver.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
  if (!gpu_succeeded(&device->driver, result, "cuStreamCreate", error)) return false;
  *stream = made;
  return true;
}

void gpu_stream_free(gpu *device, void *stream) {
  if (stream != NULL) device->driver.cuStreamDestroy(stream);
}

bool gpu_copy(gpu *device, void *to, const void *from, size_t bytes, void *stream, tool_error *error) {
  CUresult result = device->driver.cuMemcpyDtoDAsync(address(to), address(from), bytes, stream);
  return gpu_succeeded(&device->driver, result, "cuMemcpyDtoDAsync", error);
}

bool gpu_fill(gpu *device, void *to, unsigned char byte, size_t bytes, void *stream, tool_error *error) {
  CUresult result = device->driver.cuMemsetD8Async(address(to), byte, bytes, stream);
  return gpu_succeeded(&device->driver, result, "cuMemsetD8Async", error);
}

bool gpu_event_make(gpu *device, void **event, tool_error *error) {
  CUevent made = NULL;
  bool ok =
      gpu_succeeded(&device->driver, device->driver.cuEventCreate(&made, CU_EVENT_DEFAULT), "cuEventCreate", error);
  *event = made;
  return ok;
}

void gpu_event_free(gpu *device, void *event) {
  if (event != NULL) device->driver.cuEventDestroy(event);
}

bool gpu_event_record(gpu *device, void *event, void *stream, tool_error *error) {
  return gpu_succeeded(&device->driver, device->driver.cuEventRecord(event, stream), "cuEventRecord", error);
}

bool gpu_event_elapsed(gpu *device, void *from, void *to, double *us, tool_error *error) {
  float milliseconds = 0;
  CUresult result = device->driver.cuEventElapsedTime(&milliseconds, from, to);
  *us = (double)milliseconds * 1e3;
  return gpu_succeeded(&device->driver, result, "cuEventElapsedTime", error);
}

bool gpu_wait(gpu *device, void *stream, double seconds, tool_error *error) {
  int64_t began = tool_now_ns();
  for (;;) {
    CUresult result = device->driver.cuStreamQuery(stream);
    int64_t waited = tool_now_ns() - began;
    if (result != CUDA_ERROR_NOT_READY) return gpu_succeeded(&device->driver, result, "work on a stream", error);
    if ((double)waited > seconds * 1e9)
      return tool_error_set(error, "a stream of device %d is still busy after %.1f s", device->facts.ordinal, seconds);
    if (waited > 1000000) {
      nanosleep(&(struct timespec){0, 100000}, NULL);
    }
  }
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

struct gpu_graph {
  gpu *device;
  CUgraphExec exec;
};

bool gpu_capture_begin(gpu *device, void *stream, tool_error *error) {
  CUresult result = device->driver.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  return gpu_succeeded(&device->driver, result, "cuStreamBeginCapture", error);
}

/* The upload makes the allocations of the first launch. At that launch, kernels of other ranks may already wait for
 * this graph's kernels, and an allocation would deadlock. */
static bool instantiate(gpu *device, CUgraph captured, void *stream, CUgraphExec *exec, tool_error *error) {
  const bny_cuda_driver *driver = &device->driver;
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
  const bny_cuda_driver *driver = &device->driver;
  CUgraph captured = NULL;
  gpu_graph *made = calloc(1, sizeof *made);
  bool ok = made != NULL || tool_error_set(error, "out of memory");
  /* A failed capture must also be ended. */
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
  const bny_cuda_driver *driver = &graph->device->driver;
  return gpu_succeeded(driver, driver->cuGraphLaunch(graph->exec, stream), "cuGraphLaunch", error);
}

void gpu_graph_free(gpu_graph *graph) {
  if (graph != NULL) {
    graph->device->driver.cuGraphExecDestroy(graph->exec);
    free(graph);
  }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static bool launch_all(gpu_graph *const *graphs, void *const *streams, int32_t ngraphs, tool_error *error) {
  bool ok = true;
  for (int32_t i = 0; ok && i < ngraphs; i++) ok = gpu_graph_launch(graphs[i], streams[i], error);
  return ok;
}

bool gpu_graphs_time(gpu_graph *const *graphs, void *const *streams, int32_t ngraphs, const gpu_rounds *rounds,
                     double *times_us, tool_error *error) {
  gpu *device = graphs[0]->device;
  int32_t count = rounds->count;
  void **events = calloc((size_t)count + 1, sizeof *events);
  bool ok = events != NULL || tool_error_set(error, "out of memory");
  for (int32_t i = 0; ok && i <= count; i++) ok = gpu_event_make(device, &events[i], error);
  for (int32_t i = 0; ok && i < rounds->warmup; i++) ok = launch_all(graphs, streams, ngraphs, error);
  /* Waiting here detects a graph that hangs before much else is queued behind it. */
  ok = ok && gpu_wait(device, streams[0], rounds->seconds, error) && launch_all(graphs, streams, ngraphs, error);
  for (int32_t i = 0; ok && i <= count; i++) {
    ok = gpu_event_record(device, events[i], streams[0], error) &&
         (i == count || launch_all(graphs, streams, ngraphs, error));
  }
  ok = ok && gpu_wait(device, streams[0], rounds->seconds, error);
  for (int32_t i = 0; ok && i < count; i++)
    ok = gpu_event_elapsed(device, events[i], events[i + 1], &times_us[i], error);
  for (int32_t i = 0; events != NULL && i <= count; i++) gpu_event_free(device, events[i]);
  free(events);
  return ok;
}
