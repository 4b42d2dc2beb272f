/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests on a GPU: worlds whose ranks have a communicator and a stream on one, all on the same or each on the next. A
 * process that has forked from one that uses a GPU cannot use it, so tests begin to in ranks alone. */
#ifndef BNY_TESTS_GPU_WORLD_H
#define BNY_TESTS_GPU_WORLD_H

#include "tests/support/sheet.h"
#include "tests/support/world.h"
#include "tools/common/gpu.h"

typedef struct gpu_rank {
  world_rank *world;
  gpu *device;
  void *stream;
  bool is_process; /* else a thread */
  char name[20];   /* name of the device, as communicators take it */
} gpu_rank;

typedef struct gpu_setup {
  int32_t nranks;
  bool processes;     /* else threads */
  bool spread;        /* over all devices, else all on one */
  int32_t comms;      /* communicators that will be alive at once on a device; 0: 1 */
  bool bare;          /* the body makes its communicators and streams itself */
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

/* Only little of each test: for emulated devices. */
bool gpu_quick(void);

/* How many devices there are. */
int32_t gpu_devices(void);

/* Says why a test (or part `index` of it) is not run here. */
void gpu_skip(const char *test, int index, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A case that CK_RUN_CASE may name; each of its tests has 150 s. */
struct TCase;
void gpu_add_case(struct Suite *suite, struct TCase *made);

/* Runs the suite; 77 where there is no GPU. */
int gpu_main(struct Suite *suite);

/* ---- sheets in a device's memory --------------------------------------------------------------------------------- */

typedef struct gpu_sheet {
  banyan_partial partial;
  void *memory;
} gpu_sheet;

/* Like the sheet of the host, and holding what it holds. */
bool gpu_sheet_make(gpu_rank *self, const sheet *from, gpu_sheet *made);
bool gpu_sheet_write(gpu_rank *self, const gpu_sheet *to, const sheet *from);
bool gpu_sheet_read(gpu_rank *self, sheet *to, const gpu_sheet *from);
void gpu_sheet_free(gpu_rank *self, gpu_sheet *sheet);

/* A partial that points into the memory of a sheet of the host, moved to the same places of the device's. */
banyan_partial gpu_sheet_partial(const gpu_sheet *sheet, const void *memory, banyan_partial partial);

#endif
