/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of a GPU alone: worlds whose ranks use streams, graphs and memory of the device themselves. Tests of behaviour
 * run there too, see tests/support/world.h. */
#ifndef BNY_TESTS_GPU_WORLD_H
#define BNY_TESTS_GPU_WORLD_H

#include "tests/support/world.h"
#include "tools/common/gpu.h"

typedef struct gpu_rank {
  world_rank *world;
  gpu *device;
  void *stream;
  const char *name; /* the device's, as communicators take it */
} gpu_rank;

typedef struct gpu_setup {
  int32_t nranks;
  bool processes;     /* else threads */
  bool spread;        /* over all devices, else all on one */
  int32_t comms;      /* communicators that will be alive at once on a device; 0: 1 */
  bool bare;          /* the body makes its communicators itself */
  int64_t timeout_ns; /* 0: what should do */
  size_t arena_bytes;
  void *argument;
  void (*body)(gpu_rank *self, void *argument);
} gpu_setup;

/* Fails the test with what went wrong first. */
void gpu_run(const gpu_setup *setup);

/* A communicator on the rank's device. */
banyan_status gpu_comm_make(gpu_rank *self, const gpu_setup *setup, banyan_comm **comm);

/* Notes a failure unless ok. Returns ok. */
bool gpu_ok(gpu_rank *self, bool ok, const tool_error *error);

/* Until all on the rank's stream has ended, 60 s at most. */
bool gpu_finish(gpu_rank *self);

/* Says why a test (or part `index` of it) is not run here. */
void gpu_skip(const char *test, int index, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A case that CK_RUN_CASE may name; each of its tests has 150 s. */
struct TCase;
void gpu_add_case(struct Suite *suite, struct TCase *made);

/* Runs the suite; 77 where there is no GPU. */
int gpu_main(struct Suite *suite);

#endif
