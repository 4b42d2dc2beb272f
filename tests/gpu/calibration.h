/* SPDX-License-Identifier: Apache-2.0
 * Declarations that the files of gpu_calibrate share. A measurement prints its figures on stdout, one JSON object per
 * line. Each is printed at once, so that an interrupted run keeps its figures. */
#pragma once

#include "tests/gpu/calibrate.h"
#include "device/device.h"
#include "tools/common/gpu.h"

typedef struct calibration {
  gpu *gpu;
  bny_device *device;
  bny_device_module *module;
  void *stream;
  bool quick; /* short measurements, for emulated devices */
  tool_error error;
} calibration;

typedef struct calibration_launch {
  const char *kernel;
  uint32_t grid, block, shared_bytes;
  void **arguments;
} calibration_launch;

/* All functions return false on failure, with the text in self->error. */
bool calibration_open(int32_t ordinal, calibration *self);
void calibration_close(calibration *self);
bool calibration_launch_on(calibration *self, const calibration_launch *launch);
/* Launching is split into two functions, because finding a kernel may wait for an idle device. The device is not idle
 * while one CTA waits for another. */
bool calibration_find(calibration *self, const char *name, bny_device_kernel *kernel);
bool calibration_launch_found(calibration *self, const bny_device_kernel *kernel, const calibration_launch *launch);
bool calibration_finish(calibration *self);
bool calibration_time(calibration *self, const calibration_launch *launch, int count, double *us_of_one);
bool calibration_take(calibration *self, size_t bytes, void *pointer_to_memory); /* all zero */
bool calibration_status(calibration *self, banyan_status status, const char *what);

/* Prints a figure. A NAN value is unknown. With `assumed` NAN, predictions assume no value. `note` describes the
 * figure. */
void calibration_say(const char *name, double value, const char *unit, double assumed, const char *note);

bool calibrate_launches(calibration *self);
bool calibrate_latency(calibration *self);
bool calibrate_bandwidth(calibration *self);
bool calibrate_timer(calibration *self);
bool calibrate_words(calibration *self);
bool calibrate_tearing(calibration *self);
bool calibrate_peer(calibration *self);
bool calibrate_functions(calibration *self);
bool calibrate_matrix(calibration *self);
