/* SPDX-License-Identifier: Apache-2.0
 * Data for banyan-perf: made new for every call, from a key and the rank, so that each rank can say what the result
 * is. */
#ifndef BNY_TOOLS_PERF_DATA_H
#define BNY_TOOLS_PERF_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "tools/common/util.h"

/* Where the partials of `rows` rows lie: element r * stat_stride of max and sum, r * row_stride and on of values. */
typedef struct perf_rows {
  int64_t rows;
  int32_t dim;
  float *max, *sum, *values;
  int64_t stat_stride, row_stride;
} perf_rows;

/* Base 2, whole maxima; numerators between half and one and a half, so that no sum cancels. */
void perf_rows_fill(const perf_rows *rows, uint32_t key, int32_t rank);

/* The result of a check. */
typedef struct perf_errors {
  int64_t wrong; /* rows or bytes out of bounds */
  double worst;  /* relative error of a row */
} perf_errors;

/* Checks `out` (normalised, [tokens][heads][dim] of `part` of a call with all_heads heads) against double precision and
 * adds to errors. Of many rows, about `sample` are checked. */
void perf_rows_check(const tool_part *part, int32_t all_heads, int32_t dim, const float *out, uint32_t key,
                     int32_t nranks, int64_t sample, double bound, perf_errors *errors);

/* Bytes, and how many of them are wrong. */
void perf_bytes_fill(void *data, size_t bytes, uint32_t key, int32_t rank);
size_t perf_bytes_check(const void *data, size_t bytes, uint32_t key, int32_t rank);

#endif
