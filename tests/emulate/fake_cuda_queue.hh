/* SPDX-License-Identifier: Apache-2.0
 * The queues of the fake CUDA driver's streams. */
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "tests/emulate/fake_cuda_parts.h"

struct fake_event {
  bool done = true;
  double when_ms = 0;
};

/* The words of a work item that may be addresses. */
typedef std::vector<uint64_t> fake_words;

/* A graph during capture and afterwards: launches of one stream, one after another. */
struct fake_graph {
  std::vector<bny_emulator_launch> launches;
  fake_words words;
  double delay_ms = 0; /* delay of each launch of the graph */
};

/* An item of a queue: launches, a host function, or an event to record. */
struct fake_item {
  std::vector<bny_emulator_launch> launches;
  fake_words words;
  std::function<void()> host;
  std::shared_ptr<fake_event> records;
  size_t left = 0; /* threads of launches that have not ended */
  bool started = false;
};

void fake_queue_push(const void *stream, const std::shared_ptr<fake_item> &item);

/* Adds a launch to the stream's queue, or to the graph that captures it. */
void fake_queue_launch(const void *stream, const bny_emulator_launch &launch, const fake_words &words);

/* Delays the times of later events on the stream; if the stream is captured, at each launch of its graph. */
void fake_queue_delay(const void *stream, double ms);

/* Returns NULL if the stream is not being captured. */
std::shared_ptr<fake_graph> fake_queue_capture_of(const void *stream);
void fake_queue_set_capture(const void *stream, const std::shared_ptr<fake_graph> &graph);
void fake_queue_end_capture(const void *stream);
