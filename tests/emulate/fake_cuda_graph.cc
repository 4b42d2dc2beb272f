/* SPDX-License-Identifier: Apache-2.0
 * The events and graphs of the fake CUDA driver, for its word `live`. */
#include <atomic>
#include <cstring>

#include "tests/emulate/fake_cuda_queue.hh"

/* Handles are addresses of shared pointers, because a queue may still use a destroyed object. */
template <typename T> static std::shared_ptr<T> *of_handle(void *handle) {
  return static_cast<std::shared_ptr<T> *>(handle);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

extern "C" CUresult cuEventCreate(CUevent *event, unsigned) {
  *event = reinterpret_cast<CUevent>(new std::shared_ptr<fake_event>(std::make_shared<fake_event>()));
  return fake_enter(true);
}

extern "C" CUresult cuEventDestroy(CUevent event) {
  delete of_handle<fake_event>(event);
  return fake_enter(true);
}

extern "C" CUresult cuEventRecord(CUevent event, CUstream stream) {
  std::shared_ptr<fake_event> &recorded = *of_handle<fake_event>(event);
  if (fake_queue_capture_of(stream)) return CUDA_ERROR_NOT_SUPPORTED; /* these graphs have no events */
  auto item = std::make_shared<fake_item>();
  recorded->done = false;
  item->records = recorded;
  fake_queue_push(stream, item);
  return fake_enter(false);
}

extern "C" CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  const std::shared_ptr<fake_event> &first = *of_handle<fake_event>(from), &second = *of_handle<fake_event>(to);
  if (!first->done || !second->done) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(second->when_ms - first->when_ms);
  return CUDA_SUCCESS;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

extern "C" CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  if (fake_queue_capture_of(stream)) return CUDA_ERROR_ILLEGAL_STATE;
  fake_queue_set_capture(stream, std::make_shared<fake_graph>());
  return fake_enter(true);
}

extern "C" CUresult cuStreamEndCapture(CUstream stream, CUgraph *made) {
  std::shared_ptr<fake_graph> graph = fake_queue_capture_of(stream);
  *made = nullptr;
  if (!graph) return CUDA_ERROR_ILLEGAL_STATE;
  fake_queue_end_capture(stream);
  *made = reinterpret_cast<CUgraph>(new std::shared_ptr<fake_graph>(graph));
  return fake_enter(true);
}

extern "C" CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long) {
  *exec = reinterpret_cast<CUgraphExec>(new std::shared_ptr<fake_graph>(*of_handle<fake_graph>(graph)));
  return fake_enter_idle();
}

extern "C" CUresult cuGraphDestroy(CUgraph graph) {
  delete of_handle<fake_graph>(graph);
  return fake_enter(true);
}

extern "C" CUresult cuGraphExecDestroy(CUgraphExec exec) {
  delete of_handle<fake_graph>(exec);
  return fake_enter(true);
}

extern "C" CUresult cuGraphUpload(CUgraphExec, CUstream) { return fake_enter_idle(); }

/* Each launch of a graph is a separate stream of the emulator. */
extern "C" CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  static std::atomic<uint32_t> streams{1u << 31};
  auto item = std::make_shared<fake_item>();
  const fake_graph &graph = **of_handle<fake_graph>(exec);
  item->launches = graph.launches;
  item->words = graph.words;
  const uint32_t own = streams++;
  for (bny_emulator_launch &launch : item->launches) launch.stream = own;
  if (graph.delay_ms > 0) fake_queue_delay(stream, graph.delay_ms);
  fake_queue_push(stream, item);
  return fake_enter(false);
}

/* ---- other functions that programs use --------------------------------------------------------------------------- */

extern "C" CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
  memcpy(reinterpret_cast<void *>(static_cast<uintptr_t>(to)), from, bytes);
  return fake_enter(true);
}

extern "C" CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
  memcpy(to, reinterpret_cast<void *>(static_cast<uintptr_t>(from)), bytes);
  return fake_enter(true);
}

extern "C" CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return cuMemcpyAsync(to, from, bytes, stream);
}

extern "C" CUresult cuDeviceTotalMem(size_t *bytes, CUdevice) {
  *bytes = static_cast<size_t>(1) << 30;
  return CUDA_SUCCESS;
}
