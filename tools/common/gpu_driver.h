/* SPDX-License-Identifier: Apache-2.0
 * Declarations that the files of gpu.h share. */
#pragma once

#include "base/cuda_driver.h"
#include "tools/common/gpu.h"

struct gpu {
  bny_cuda_driver driver;
  CUdevice handle;
  CUcontext context; /* the primary context, retained */
  gpu_facts facts;
};

/* Returns whether the result is success. Otherwise *error has the call that failed and the driver's name of the
 * result. */
bool gpu_succeeded(const bny_cuda_driver *driver, CUresult result, const char *what, tool_error *error);
