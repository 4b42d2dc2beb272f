/* SPDX-License-Identifier: Apache-2.0
 * A kernel to stand between those that are measured, as a model's kernels stand between combines. It has more code than
 * the instruction caches of an SM hold, and reads twice what the second-level cache holds. The driver compiles it. */
#ifndef BNY_TOOLS_COMMON_GPU_BETWEEN_H
#define BNY_TOOLS_COMMON_GPU_BETWEEN_H

#include "tools/common/gpu.h"

typedef struct gpu_between gpu_between;

enum { GPU_BETWEEN_INSTRUCTIONS = 1 << 14 }; /* each has 16 bytes */

/* The kernel's work is done in `parts`, each on its own stream and its share of the SMs. May wait until the device is
 * idle. Returns false with an error text. */
bool gpu_between_make(gpu *device, int32_t parts, gpu_between **between, tool_error *error);
void gpu_between_free(gpu_between *between); /* NULL is allowed */

/* Puts a part on a stream. */
bool gpu_between_put(const gpu_between *between, int32_t part, void *stream, tool_error *error);

/* The kernel as text of PTX, to be freed; NULL if there is no memory. */
char *gpu_between_text(void);

#endif
