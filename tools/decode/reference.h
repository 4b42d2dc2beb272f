/* SPDX-License-Identifier: Apache-2.0
 * Attention in double precision over the keys and values as they are kept, in the plainest form: what the methods
 * are measured against. The rows are shared out over the ranks, and each rank reads all keys of its rows from the
 * source, not from shards, so that an error in sharding shows. */
#ifndef BNY_TOOLS_DECODE_REFERENCE_H
#define BNY_TOOLS_DECODE_REFERENCE_H

#include <stdbool.h>

#include "tools/decode/problem.h"
#include "tools/common/world.h"

/* *rows is [batch][heads][value_dim] on every rank; free() releases it. Long work says how far it is on stderr. */
bool decode_reference_make(const tool_world *world, const decode_problem *problem, int32_t layer, double **rows,
                           tool_error *error);

/* Raises the largest errors to those of a row: |out - want| of an element, and |out - want|_2 / |want|_2. */
void decode_row_error(const float *out, const double *want, int32_t count, double *max_abs, double *max_rel);

#endif
