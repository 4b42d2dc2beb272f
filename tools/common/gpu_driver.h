/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files that implement gpu.h. */
#ifndef BNY_TOOLS_COMMON_GPU_DRIVER_H
#define BNY_TOOLS_COMMON_GPU_DRIVER_H

#include "base/cuda_driver.h"
#include "tools/common/gpu.h"

struct gpu {
  bny_cuda_driver driver;
  CUdevice handle;
  CUcontext context; /* the primary one, retained */
  gpu_facts facts;
};

/* Returns true, or false with an error that says what was tried and the driver's name for the result. */
bool gpu_succeeded(const bny_cuda_driver *driver, CUresult result, const char *what, tool_error *error);

#endif
