/* SPDX-License-Identifier: Apache-2.0
 * PyTorch's attention on the host beside banyan's: scaled_dot_product_attention over random values of the same shape,
 * in a process of python3. */
#ifndef BNY_TOOLS_DECODE_TORCH_H
#define BNY_TOOLS_DECODE_TORCH_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/decode/problem.h"

typedef struct decode_torch decode_torch;

/* Starts the process, and waits until it is ready to run. NULL with the error set, also where python3 has no torch. */
decode_torch *decode_torch_start(const decode_problem *problem, int32_t threads, tool_error *error);

/* Runs it once in each form: as it is called (with enable_gqa, or on copies of the KV heads where torch has no such
 * thing), and with the query heads of a KV head folded into the queries. */
bool decode_torch_run_us(decode_torch *torch, double *as_is_us, double *folded_us, tool_error *error);

/* "2.15.0", and how it is called. */
const char *decode_torch_version(const decode_torch *torch);

/* Ends the process. NULL is allowed. */
void decode_torch_end(decode_torch *torch);

#endif
