/* SPDX-License-Identifier: Apache-2.0
 * Measures the device properties that predictions assume: `gpu_calibrate [NAME...]` runs all measurements or the named
 * ones. docs/devices-predicted.md explains the consequences of each. Exit status: 0 all measured, 1 a measurement
 * failed, 77 no GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/calibration.h"
#include "tools/common/gpu_driver.h"

#ifdef CALIBRATE_IMAGE
__asm__(".pushsection .rodata\n.balign 64\ncalibrate_image:\n.incbin \"" CALIBRATE_IMAGE "\"\n"
        ".balign 8\ncalibrate_image_bytes:\n.quad . - calibrate_image\n.popsection\n");
extern const unsigned char calibrate_image[];
extern const size_t calibrate_image_bytes;
#else
static const unsigned char calibrate_image[1];
static const size_t calibrate_image_bytes;
#endif

enum { WAIT_S = 20 };

/* ---- a device ---------------------------------------------------------------------------------------------------- */

bool calibration_status(calibration *self, banyan_status status, const char *what) {
  return status == BANYAN_OK || tool_error_banyan(&self->error, status, what);
}

bool calibration_open(int32_t ordinal, calibration *self) {
  char name[20];
  *self = (calibration){.quick = getenv("GPU_TEST_QUICK") != NULL};
  snprintf(name, sizeof name, "cuda:%d", ordinal);
  return gpu_open(ordinal, &self->gpu, &self->error) && gpu_stream_make(self->gpu, &self->stream, &self->error) &&
         calibration_status(self, bny_device_open_named(name, getenv("BANYAN_CUDA_LIBRARY"), &self->device), name) &&
         calibration_status(
             self, self->device->ops->module_load(self->device, calibrate_image, calibrate_image_bytes, &self->module),
             "kernels");
}

void calibration_close(calibration *self) {
  if (self->module) self->device->ops->module_unload(self->module);
  if (self->device) self->device->ops->close(self->device);
  if (self->gpu) gpu_stream_free(self->gpu, self->stream);
  gpu_close(self->gpu);
}

bool calibration_take(calibration *self, size_t bytes, void *pointer_to_memory) {
  void *made = NULL;
  bool ok = gpu_take(self->gpu, bytes, &made, &self->error) &&
            gpu_fill(self->gpu, made, 0, bytes, self->stream, &self->error) && calibration_finish(self);
  memcpy(pointer_to_memory, &made, sizeof made);
  return ok;
}

bool calibration_finish(calibration *self) { return gpu_wait(self->gpu, self->stream, WAIT_S, &self->error); }

/* ---- launches and their time ------------------------------------------------------------------------------------- */

bool calibration_find(calibration *self, const char *name, bny_device_kernel *kernel) {
  return calibration_status(self, self->device->ops->kernel_find(self->module, name, kernel), name);
}

bool calibration_launch_found(calibration *self, const bny_device_kernel *kernel, const calibration_launch *what) {
  bny_device_launch launch = {.kernel = kernel,
                              .grid = {what->grid, 1, 1},
                              .block = {what->block, 1, 1},
                              .shared_bytes = what->shared_bytes,
                              .arguments = what->arguments};
  return calibration_status(self, self->device->ops->launch(self->device, &launch, self->stream), what->kernel);
}

bool calibration_launch_on(calibration *self, const calibration_launch *what) {
  bny_device_kernel kernel;
  return calibration_find(self, what->kernel, &kernel) && calibration_launch_found(self, &kernel, what);
}

/* Measures a launch, after one warm-up launch. */
bool calibration_time(calibration *self, const calibration_launch *what, int count, double *us_of_one) {
  bny_device_kernel kernel;
  void *from = NULL, *to = NULL;
  double passed_us = 0;
  bool ok = calibration_find(self, what->kernel, &kernel) && calibration_launch_found(self, &kernel, what) &&
            calibration_finish(self) && gpu_event_make(self->gpu, &from, &self->error) &&
            gpu_event_make(self->gpu, &to, &self->error) &&
            gpu_event_record(self->gpu, from, self->stream, &self->error);
  for (int i = 0; ok && i < count; i++) ok = calibration_launch_found(self, &kernel, what);
  ok = ok && gpu_event_record(self->gpu, to, self->stream, &self->error) && calibration_finish(self) &&
       gpu_event_elapsed(self->gpu, from, to, &passed_us, &self->error);
  gpu_event_free(self->gpu, from);
  gpu_event_free(self->gpu, to);
  *us_of_one = passed_us / count;
  return ok;
}

/* Measures replays of a graph of `nodes` empty kernels. */
static bool time_graph(calibration *self, const calibration_launch *what, int nodes, double *us) {
  enum { REPLAYS_MAX = 50 };
  double times[REPLAYS_MAX];
  gpu_graph *graph = NULL;
  gpu_rounds rounds = {.warmup = 3, .count = self->quick ? 2 : REPLAYS_MAX, .seconds = WAIT_S};
  bool ok = gpu_capture_begin(self->gpu, self->stream, &self->error);
  for (int i = 0; ok && i < nodes; i++) ok = calibration_launch_on(self, what);
  ok = ok && gpu_capture_end(self->gpu, self->stream, &graph, &self->error) &&
       gpu_graphs_time(&graph, &self->stream, 1, &rounds, times, &self->error);
  gpu_graph_free(graph);
  *us = INFINITY;
  for (int i = 0; ok && i < rounds.count; i++) *us = fmin(*us, times[i]);
  return ok;
}

bool calibrate_launches(calibration *self) {
  enum { NODES = 32 };
  uint32_t *none = NULL;
  void *arguments[] = {&none};
  calibration_launch empty = {"calibrate_empty", 1, 32, 0, arguments};
  double launch_us, one_us, many_us;
  bool ok = calibration_time(self, &empty, self->quick ? 4 : 1000, &launch_us) &&
            time_graph(self, &empty, 1, &one_us) && time_graph(self, &empty, NODES, &many_us);
  if (!ok) return false;
  calibration_say("launch_us", launch_us, "us", NAN, "an empty kernel after another on a stream");
  calibration_say("graph_us", one_us, "us", NAN, "a replay of a graph of one empty kernel, one after another");
  calibration_say("graph_node_us", (many_us - one_us) / (NODES - 1), "us", 1.0, "one more empty kernel in a graph");
  return true;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static void say_number(const char *key, double value) {
  if (isfinite(value))
    printf(", \"%s\": %.6g", key, value);
  else
    printf(", \"%s\": null", key);
}

void calibration_say(const char *name, double value, const char *unit, double assumed, const char *note) {
  printf("{\"name\": \"%s\", \"unit\": \"%s\"", name, unit);
  say_number("value", value);
  say_number("assumed", assumed);
  printf(", \"text\": \"%s\"}\n", note);
  fflush(stdout);
}

/* The most uncertain measurements come first. */
static const struct {
  const char *name;
  bool (*measure)(calibration *self);
} measurements[] = {
    {"timer", calibrate_timer},         {"matrix", calibrate_matrix},       {"tearing", calibrate_tearing},
    {"words", calibrate_words},         {"latency", calibrate_latency},     {"launches", calibrate_launches},
    {"bandwidth", calibrate_bandwidth}, {"functions", calibrate_functions}, {"peer", calibrate_peer},
};

static bool is_wanted(const char *name, int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], name) == 0) return true;
  return argc < 2;
}

int main(int argc, char **argv) {
  calibration self;
  tool_error error = {.text = ""};
  bool all = true;
  if (gpu_count(&error) == 0) {
    fprintf(stderr, "gpu_calibrate: %s\n", error.text);
    return 77;
  }
  if (!calibration_open(0, &self)) {
    fprintf(stderr, "gpu_calibrate: %s\n", self.error.text);
    return EXIT_FAILURE;
  }
  for (size_t i = 0; i < sizeof measurements / sizeof measurements[0]; i++) {
    if (!is_wanted(measurements[i].name, argc, argv) || measurements[i].measure(&self)) continue;
    fprintf(stderr, "gpu_calibrate: %s: %s\n", measurements[i].name, self.error.text);
    all = false;
  }
  calibration_close(&self);
  return all ? EXIT_SUCCESS : EXIT_FAILURE;
}
