/* SPDX-License-Identifier: Apache-2.0
 * The files of a gpu share this. */
#ifndef BNY_TOOLS_COMMON_GPU_DRIVER_H
#define BNY_TOOLS_COMMON_GPU_DRIVER_H

#include <cuda.h>
#include <cudaTypedefs.h>

#include "tools/common/gpu.h"

typedef struct gpu_driver {
#define GPU_FUNCTION(name, version) PFN_##name##_v##version name;
#include "tools/common/gpu_functions.def"
#undef GPU_FUNCTION
  int version;
} gpu_driver;

struct gpu {
  gpu_driver driver;
  CUdevice handle;
  CUcontext context; /* the primary one, retained */
  gpu_facts facts;
};

/* True, or false with an error that says what was tried and the driver's name for the result. */
bool gpu_succeeded(const gpu_driver *driver, CUresult result, const char *what, tool_error *error);

#endif
