/* SPDX-License-Identifier: Apache-2.0
 * What is in the queues of the fake CUDA driver's streams. */
#ifndef BNY_TESTS_FAKE_CUDA_QUEUE_HH
#define BNY_TESTS_FAKE_CUDA_QUEUE_HH

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "fake_cuda_parts.h"

struct fake_event {
  bool done = true;
  double when_ms = 0;
};

/* What a work is told of: words that may be addresses. */
typedef std::vector<uint64_t> fake_words;

/* A graph while it is captured, and then: of one stream, one launch after another. */
struct fake_graph {
  std::vector<bny_emulator_launch> launches;
  fake_words words;
  double delay_ms = 0; /* of a launch of it */
};

/* Launches, a work of the host, or an event to record. */
struct fake_item {
  std::vector<bny_emulator_launch> launches;
  fake_words words;
  std::function<void()> host;
  std::shared_ptr<fake_event> records;
  size_t left = 0; /* threads of launches that have not come to their end */
  bool started = false;
};

void fake_queue_push(const void *stream, const std::shared_ptr<fake_item> &item);

/* To the stream's queue, or into the graph into which it is captured. */
void fake_queue_launch(const void *stream, const bny_emulator_launch &launch, const fake_words &words);

/* What events on the stream tell is so much later from now on; of one that is captured, with each launch of its graph. */
void fake_queue_delay(const void *stream, double ms);

/* NULL: the stream is not being captured. */
std::shared_ptr<fake_graph> fake_queue_capture_of(const void *stream);
void fake_queue_set_capture(const void *stream, const std::shared_ptr<fake_graph> &graph);
void fake_queue_end_capture(const void *stream);

#endif
