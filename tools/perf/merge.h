/* SPDX-License-Identifier: Apache-2.0
 * Merging partials as a careful user of MPI would write it: factors once per row, vectorised loops, the division folded
 * into the factors. With the vectors of the processor at hand, so that banyan is compared with good code. */
#ifndef BNY_TOOLS_PERF_MERGE_H
#define BNY_TOOLS_PERF_MERGE_H

#include <stddef.h>
#include <stdint.h>

/* Merges the contributions of all ranks, one after another in `all`: max[rows], sum[rows], values[rows][dim].
 * factors: scratch of nranks. */
void perf_merge_gathered(const float *all, int32_t nranks, int64_t rows, int32_t dim, float *factors, float *out);

/* inout = merge(in, inout), rows of max, sum, values[dim]. */
void perf_merge_pair(const float *in, float *inout, int64_t rows, int32_t dim);

/* values[r] and sum[r] times 2^(max[r] - all_max[r]). */
void perf_merge_rescale(const float *max, const float *all_max, int64_t rows, int32_t dim, float *sum, float *values);

/* out[r] = values[r] / sum[r]; rows of values lie `stride` apart, sums `sum_stride`. */
void perf_merge_finish(const float *values, int64_t stride, const float *sum, int64_t sum_stride, int64_t rows,
                       int32_t dim, float *out);

#endif
