/* SPDX-License-Identifier: Apache-2.0
 * Arrays of f16, bf16, E4M3 and int8, and random numbers that are a function of their index. */
#ifndef BNY_TOOLS_COMMON_FLOAT_H
#define BNY_TOOLS_COMMON_FLOAT_H

#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

/* Read little-endian elements at any address, exactly. */
void tool_floats_load(banyan_dtype dtype, const void *source, size_t count, float *values);

/* Write elements, rounded to nearest even. Values beyond the range become infinity in f16, and the largest number in
 * eight bits. */
void tool_floats_store(banyan_dtype dtype, const float *values, size_t count, void *target);

/* values[i] = deviation * x(stream, first + i) with x of mean 0 and variance 1: the sum of four uniform numbers, which
 * is nearly normal. It is the same on every machine and for any part, so a rank makes only its own shard. */
void tool_floats_random(uint64_t stream, uint64_t first, size_t count, float deviation, float *values);

#endif
