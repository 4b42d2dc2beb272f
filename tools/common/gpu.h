/* SPDX-License-Identifier: Apache-2.0
 * A GPU for programs that measure or test on one: memory, streams, graphs and times. It uses the CUDA driver API, which
 * is loaded on demand. BANYAN_CUDA_LIBRARY replaces libcuda.so.1. Streams may be passed to the functions of banyan.h.
 *
 * Every thread that has called gpu_enter() may use the gpu. All calls return false and set *error on failure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/common/util.h"

typedef struct gpu gpu;

typedef struct gpu_facts {
  char name[64];
  int32_t ordinal;
  int32_t compute;      /* 90 is 9.0 */
  int32_t cuda_version; /* CUDA version of the driver: 13000 is 13.0 */
  int32_t sms;
  int32_t clock_mhz, memory_clock_mhz; /* highest clock; 0: the driver does not report it */
  int32_t bus_bits;
  int64_t cache_bytes, memory_bytes;
  bool one_process; /* the device allows only one context */
} gpu_facts;

/* Returns the number of devices; 0, with the reason, if there is no driver. */
int32_t gpu_count(tool_error *error);

/* Retains the device's primary context and makes it current in the calling thread. */
bool gpu_open(int32_t ordinal, gpu **device, tool_error *error);
void gpu_close(gpu *device); /* NULL is allowed */
bool gpu_enter(gpu *device, tool_error *error);
const gpu_facts *gpu_facts_of(const gpu *device);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Allocate and free device memory. 0 bytes give a valid address. Either call may wait until the device is idle. Do not
 * call them while kernels of one rank wait for kernels that another rank has not launched yet. */
bool gpu_alloc(gpu *device, size_t bytes, void **memory, tool_error *error);
void gpu_free(gpu *device, void *memory); /* NULL is allowed */

/* Copy between host and device. The copy is complete when the call returns. It is not ordered with streams. */
bool gpu_write(gpu *device, void *to, const void *from, size_t bytes, tool_error *error);
bool gpu_read(gpu *device, void *to, const void *from, size_t bytes, tool_error *error);

/* ---- streams ----------------------------------------------------------------------------------------------------- */

bool gpu_stream_make(gpu *device, void **stream, tool_error *error); /* not ordered with other streams */
void gpu_stream_free(gpu *device, void *stream);
bool gpu_copy(gpu *device, void *to, const void *from, size_t bytes, void *stream, tool_error *error);
bool gpu_fill(gpu *device, void *to, unsigned char byte, size_t bytes, void *stream, tool_error *error);

/* An event records when a stream reaches it. elapsed() returns the microseconds between two completed events. */
bool gpu_event_make(gpu *device, void **event, tool_error *error);
void gpu_event_free(gpu *device, void *event); /* NULL is allowed */
bool gpu_event_record(gpu *device, void *event, void *stream, tool_error *error);
bool gpu_event_elapsed(gpu *device, void *from, void *to, double *us, tool_error *error);

/* Waits until all work on the stream is done, or `seconds` have passed. */
bool gpu_wait(gpu *device, void *stream, double seconds, tool_error *error);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

typedef struct gpu_graph gpu_graph;

/* Captures the work of the stream until gpu_capture_end() makes a graph of it. Only this thread may enqueue work there
 * meanwhile. */
bool gpu_capture_begin(gpu *device, void *stream, tool_error *error);
bool gpu_capture_end(gpu *device, void *stream, gpu_graph **graph, tool_error *error);
bool gpu_graph_launch(gpu_graph *graph, void *stream, tool_error *error);
void gpu_graph_free(gpu_graph *graph); /* NULL is allowed */

typedef struct gpu_rounds {
  int32_t warmup, count;
  double seconds; /* time limit for the warm-up, and for the rest */
} gpu_rounds;

/* Launches all graphs, each on its own stream, `warmup` times and then `count` times, without waiting in between.
 * times_us[count] receives the microseconds of each of the latter rounds on the first stream. Separate graphs are used,
 * because kernels of ranks wait for each other, and drivers do not guarantee that branches of one graph run
 * concurrently. */
bool gpu_graphs_time(gpu_graph *const *graphs, void *const *streams, int32_t ngraphs, const gpu_rounds *rounds,
                     double *times_us, tool_error *error);
