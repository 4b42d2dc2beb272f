/* SPDX-License-Identifier: Apache-2.0
 * Arrays of f16, bf16, E4M3 and int8, and random numbers that are a function of their index. */
#ifndef BNY_TOOLS_COMMON_FLOAT_H
#define BNY_TOOLS_COMMON_FLOAT_H

#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

/* Little-endian elements at any address. Exact. */
void tool_floats_load(banyan_dtype dtype, const void *source, size_t count, float *values);

/* To nearest, ties to even; beyond the range of f16 infinity, and of eight bits the largest number. */
void tool_floats_store(banyan_dtype dtype, const float *values, size_t count, void *target);

/* values[i] = deviation * x(stream, first + i) with x of mean 0 and variance 1: the sum of four uniform numbers,
 * which is near enough to normal. The same on every machine and in any piece, so that a rank makes no more than its
 * own shard. */
void tool_floats_random(uint64_t stream, uint64_t first, size_t count, float deviation, float *values);

#endif
