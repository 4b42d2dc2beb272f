/* SPDX-License-Identifier: Apache-2.0
 * A loop that only reads memory, by several threads: what attention over the same memory stands beside. */
#ifndef BNY_TOOLS_DECODE_READERS_H
#define BNY_TOOLS_DECODE_READERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/common/util.h"

typedef struct decode_readers decode_readers;

/* Starts `count` - 1 threads, because the caller of decode_readers_run_us() is one too. Each has a part of the memory,
 * in whole lines of 64 bytes. NULL with the error set. */
decode_readers *decode_readers_start(int32_t count, const void *memory, size_t bytes, tool_error *error);

/* All threads read their parts once. Returns the time from where the first of them begins to where the last ends. */
double decode_readers_run_us(decode_readers *readers);

/* Ends the threads, at any time between runs. NULL is allowed. */
void decode_readers_end(decode_readers *readers);

#endif
