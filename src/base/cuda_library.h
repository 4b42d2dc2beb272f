/* SPDX-License-Identifier: Apache-2.0
 * Finds functions of CUDA's driver at run time, for the library and the tools. The driver's headers are not needed
 * here: the caller passes a table of function names and driver versions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct bny_cuda_function {
  const char *name;
  int version;   /* exact version of the function's type; 12040 is 12.4 */
  size_t offset; /* offset of the pointer in the caller's struct */
  bool needed;   /* if false, the pointer becomes NULL when the driver has no such function */
} bny_cuda_function;

enum { BNY_CUDA_LIBRARY_TEXT_BYTES = 400 };

/* Loads the driver and reads its version. `path` NULL: libcuda.so.1. It is never unloaded, because the driver keeps
 * threads and handlers of its own; dlclose() releases the handle. On failure `text` gives the reason, and there is no
 * handle. */
bool bny_cuda_library_open(const char *path, void **library, int *version, char text[BNY_CUDA_LIBRARY_TEXT_BYTES]);

/* Sets the pointers in `functions_of`. A driver before CUDA 12 returns the newest version of each function that it has.
 * On failure `text` names what is missing. */
bool bny_cuda_library_find(void *library, int version, const bny_cuda_function *functions, size_t count,
                           void *functions_of, char text[BNY_CUDA_LIBRARY_TEXT_BYTES]);
