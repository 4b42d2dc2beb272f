/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"

#include <string.h>

#include "device/cuda.h"
#include "status.h"

static const struct {
  const char *name;
  banyan_status (*open)(const bny_device_choice *choice, bny_device **device);
} vendors[] = {
  {"cuda", bny_cuda_open},
};

const char *bny_memory_kind_name(bny_memory_kind kind) {
  switch (kind) {
  case BNY_MEMORY_FILE: return "memory files";
  case BNY_MEMORY_FABRIC: return "fabric handles";
  case BNY_MEMORY_IPC: return "IPC handles";
  case BNY_MEMORY_HOST: return "host memory";
  case BNY_MEMORY_KINDS: break;
  }
  return "memory of no kind";
}

banyan_status bny_device_open(const char *vendor, const bny_device_choice *choice, bny_device **device) {
  for (size_t i = 0; i < sizeof vendors / sizeof vendors[0]; i++)
    if (strcmp(vendors[i].name, vendor) == 0) return vendors[i].open(choice, device);
  return bny_fail(BANYAN_ERR_ARGUMENT, "banyan knows no device \"%.40s\"; it knows \"cuda\"", vendor);
}

#ifndef HAVE_CUDA
banyan_status bny_cuda_open(const bny_device_choice *choice, bny_device **device) {
  (void)choice, (void)device;
  return bny_fail(BANYAN_ERR_UNSUPPORTED, "this banyan was built without CUDA; install the CUDA toolkit and configure it "
                                          "--with-cuda");
}
#endif
