/* SPDX-License-Identifier: Apache-2.0
 * Conversion of f16, bf16, E4M3 and int8 arrays, and random numbers that depend only on their index. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

/* Converts little-endian elements at any address to f32, exactly. */
void tool_floats_load(banyan_dtype dtype, const void *source, size_t count, float *values);

/* Converts f32 to elements, rounded to nearest even. Values out of range become infinity in f16, and saturate in eight
 * bits. */
void tool_floats_store(banyan_dtype dtype, const float *values, size_t count, void *target);

/* values[i] = deviation * x(stream, first + i), where x has mean 0 and variance 1. x is the sum of four uniform
 * numbers, which is nearly normal. It depends only on stream and index, so each rank generates only its own shard. */
void tool_floats_random(uint64_t stream, uint64_t first, size_t count, float deviation, float *values);
