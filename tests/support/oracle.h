/* SPDX-License-Identifier: Apache-2.0
 * The expected result of a combine in double precision, written only from banyan.h. It reads rows as their descriptor
 * defines them, and uses no algebra of the library. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

enum { ORACLE_DIM_MAX = 576 };

/* A row of weight d 2^m with normalised values. m and d are separate, because -1e30 + log2 d would be just m. */
typedef struct oracle_row {
  bool is_empty;
  double m, d;
  double o[ORACLE_DIM_MAX];
  double mean[ORACLE_DIM_MAX]; /* for a merged row: weighted mean of |o| over its parts */
  double coarse;               /* mean of 1 / d on a lossy wire, where a denormal sum of numerators leaves d small */
  double dropped;              /* the part that may be dropped by "Small weights" of banyan.h, likewise */
} oracle_row;

/* Load and store single elements; stores round to nearest. */
double oracle_load(const void *elements, banyan_dtype dtype, int64_t index);
void oracle_store(void *elements, banyan_dtype dtype, int64_t index, double value);
size_t oracle_bytes(banyan_dtype dtype);
double oracle_unit(banyan_dtype dtype);    /* relative rounding error */
double oracle_step(banyan_dtype dtype);    /* distance of the smallest numbers */
double oracle_largest(banyan_dtype dtype); /* largest finite number */

/* Returns what `roundings` of a value to a wire add to e in "Error" of banyan.h. */
double oracle_wire_error(banyan_dtype wire, uint64_t roundings);

oracle_row oracle_read(const banyan_partial *partial, int32_t token, int32_t head, int32_t value_dim);
oracle_row oracle_merge(const oracle_row *parts, int32_t count, int32_t value_dim);

/* Returns NULL if the row at (token, head) of an output is within the bound of banyan.h. Otherwise returns the error as
 * text, which the thread's next call overwrites. */
const char *oracle_compare(const banyan_partial *out, int32_t token, int32_t head, int32_t value_dim, banyan_dtype wire,
                           uint64_t roundings, const oracle_row *expected);
