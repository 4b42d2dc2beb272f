/* SPDX-License-Identifier: Apache-2.0
 * The functions of CUDA's driver, for the library and for programs that measure and test on a GPU. Types come from the
 * toolkit's headers. Each function is in the version that cuda_functions.def names. */
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

typedef struct bny_cuda_driver {
#define BNY_CUDA_FUNCTION(name, version) PFN_##name##_v##version name;
#define BNY_CUDA_OPTIONAL(name, version) PFN_##name##_v##version name;
#define BNY_CUDA_PROGRAM(name, version) PFN_##name##_v##version name;
#include "base/cuda_functions.def"
#undef BNY_CUDA_FUNCTION
#undef BNY_CUDA_OPTIONAL
#undef BNY_CUDA_PROGRAM
  void *library;
  int version; /* 12040 is 12.4 */
} bny_cuda_driver;
