/* SPDX-License-Identifier: Apache-2.0
 * Ranks with devices of the fake CUDA driver, for tests from banyan.h down: launches return at once, and run together
 * once all ranks have made theirs. */
#ifndef BNY_TESTS_DEVICE_WORLD_H
#define BNY_TESTS_DEVICE_WORLD_H

#include <check.h>
#include <unistd.h>

#include "tests/device/device_util.h"
#include "tests/support/world.h"

/* The fake driver runs kernels if both are there; else none of n tests runs. */
#if defined HAVE_CUDA && defined HAVE_CXX17
#define DEVICE_TESTS(n) (n)
#else
#define DEVICE_TESTS(n) (0 * (n))
#endif

/* A machine of so many devices, which is what FAKE_CUDA's other words say. */
static inline void device_world_begin(int devices, const char *words) {
  char more[768];
  snprintf(more, sizeof more, "devices=%d,seed=%llu,%s", devices, (unsigned long long)world_seed(), words);
  setenv("FAKE_CUDA", more, 1);
  setenv("BANYAN_CUDA_LIBRARY", fake_cuda_path(), 1);
  setenv("BANYAN_ARENA_KIB", "16384", 0); /* memory of these devices is memory of the machine */
  fake_cuda_set_image("emulated", 8);
}

static inline void device_world_end(void) {
  char left[256];
  ck_assert_msg(FAKE_CUDA(fake_cuda_live)(left, sizeof left) == 0, "left: %s", left);
}

/* Everything that all ranks have launched runs to its end, however slow the machine: a rank that left would free memory
 * of kernels that still run. */
static inline bool device_world_run(world_rank *self) {
  char why[256] = "";
  bool good = world_meet(self);
  if (good && self->rank == 0) good = world_check(self, FAKE_CUDA(fake_cuda_run)(why, sizeof why), "devices: %s", why);
  return world_meet(self) && good;
}

/* self->comm, on device `ordinal`; negative: on the host. */
static inline bool device_world_join(world_rank *self, int ordinal) {
  char device[16];
  snprintf(device, sizeof device, "cuda:%d", ordinal);
  banyan_comm_config config = {
      .size = sizeof config, .timeout_ns = WORLD_GUARD_NS, .device = ordinal < 0 ? NULL : device};
  return world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create");
}

/* A stream of the rank's own, and a kernel of the test's: the default stream is common to all ranks of a device. */
typedef struct device_world_own {
  bny_device *device;
  void *stream;
  bny_device_module *module;
} device_world_own;

static inline bool device_world_make_own(world_rank *self, int ordinal, device_world_own *own) {
  *own = (device_world_own){NULL, NULL, NULL};
  return world_ok(self, open_fake(ordinal, &own->device), "open") &&
         world_ok(self, own->device->ops->stream_make(own->device, &own->stream), "stream") &&
         world_ok(self, own->device->ops->module_load(own->device, "emulated", 9, &own->module), "image");
}

static inline void device_world_free_own(device_world_own *own) {
  if (!own->device) return;
  if (own->module) own->device->ops->module_unload(own->module);
  if (own->stream) own->device->ops->stream_free(own->device, own->stream);
  own->device->ops->close(own->device);
}

#endif
