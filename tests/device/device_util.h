/* SPDX-License-Identifier: Apache-2.0
 * Devices of the fake CUDA driver, for tests. */
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/device.h"
#include "tests/emulate/fake_cuda.h"

static inline const char *fake_cuda_path(void) {
  static _Thread_local char path[4096];
  const char *build = getenv("top_builddir");
  if (!path[0]) snprintf(path, sizeof path, "%s/tests/emulate/.libs/fake_cuda.so", build ? build : ".");
  return path;
}

/* Returns a function of the fake driver, which stays loaded. */
static inline void *fake_cuda_function(const char *name) {
  void *library = dlopen(fake_cuda_path(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  void *function = library ? dlsym(library, name) : NULL;
  if (!function) fprintf(stderr, "%s: no %s\n", fake_cuda_path(), name), abort();
  dlclose(library);
  return function;
}
#define FAKE_CUDA(name) ((name##_function *)fake_cuda_function(#name))

/* Writes an image to a file and sets BANYAN_CUDA_IMAGE to it. The file disappears when the process ends. */
static inline void fake_cuda_set_image(const void *image, size_t bytes) {
  char path[64];
  int file = memfd_create("image", 0);
  if (file < 0 || write(file, image, bytes) != (ssize_t)bytes) perror("memfd_create"), abort();
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  setenv("BANYAN_CUDA_IMAGE", path, 1);
}

static inline banyan_status open_fake(int32_t ordinal, bny_device **device) {
  bny_device_choice choice = {.by = BNY_DEVICE_BY_ORDINAL, .ordinal = ordinal, .library = fake_cuda_path()};
  return bny_device_open("cuda", &choice, device);
}
