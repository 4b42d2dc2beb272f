/* SPDX-License-Identifier: Apache-2.0
 *
 * A library between programs and CUDA's driver, be it NVIDIA's or the fake one, that breaks what tests tell it to.
 * Programs load it by BANYAN_CUDA_LIBRARY, and it loads the driver: CUDA_SHIM_OF, or libcuda.so.1. Functions are found
 * by dlsym. */
#ifndef BNY_TESTS_CUDA_SHIM_H
#define BNY_TESTS_CUDA_SHIM_H

enum { CUDA_SHIM_FILES = 1, CUDA_SHIM_FABRIC = 2, CUDA_SHIM_IPC = 4 };

/* From now on memory is not exported in these ways, by no thread of the process: as if the driver could not. */
typedef void cuda_shim_reject_function(unsigned ways);

/* Selects one of the arenas that this thread maps from now on (0: the next; -1: none). That mapping shows other memory
 * than its owner's, of the same size, which can be read and written as well. */
typedef void cuda_shim_break_function(int number);

#endif
