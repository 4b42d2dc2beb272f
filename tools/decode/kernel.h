/* SPDX-License-Identifier: Apache-2.0
 * Local attention alone, on the host: how fast the threads of one rank read the keys and values that they attend to,
 * beside a loop of as many threads that only reads the same memory, and beside torch. */
#ifndef BNY_TOOLS_DECODE_KERNEL_H
#define BNY_TOOLS_DECODE_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/decode/problem.h"

typedef struct decode_kernel_settings {
  int32_t threads; /* 0: one for each core of this process */
  int32_t repeat;
  int64_t timeout_ns;
  bool against_torch;
} decode_kernel_settings;

/* Prints the result to stdout, as text or as JSON. *verified says whether it is near enough to the reference. */
bool decode_kernel_work(const decode_kernel_settings *settings, const decode_problem *problem, bool json,
                        bool *verified, tool_error *error);

#endif
