/* SPDX-License-Identifier: Apache-2.0
 * Types and functions that the files of banyan-perf share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "banyan.h"
#include "tools/common/gpu.h"
#include "tools/common/util.h"
#include "tools/common/world.h"

/* Data for banyan-perf. It is generated for each call from a key and the rank, so each rank can compute the expected
 * result. */

/* The layout of the partials of `rows` rows: element r * stat_stride of max and sum, and values from r * row_stride
 * on. */
typedef struct perf_rows {
  int64_t rows;
  int32_t dim;
  float *max, *sum, *values;
  int64_t stat_stride, row_stride;
} perf_rows;

/* Fills partials in base 2 with integer maxima. Numerators are in [0.5, 1.5], so sums do not cancel. */
void perf_rows_fill(const perf_rows *rows, uint32_t key, int32_t rank);

/* The result of a check. */
typedef struct perf_errors {
  int64_t wrong; /* rows or bytes out of bounds */
  double worst;  /* relative error of a row */
} perf_errors;

/* Compares `out` (normalised, [tokens][heads][dim] of `part` of a call with all_heads heads) with double precision, and
 * adds to errors. If there are many rows, about `sample` of them are checked. */
void perf_rows_check(const tool_part *part, int32_t all_heads, int32_t dim, const float *out, uint32_t key,
                     int32_t nranks, int64_t sample, double bound, perf_errors *errors);

/* Counts the checked bytes and the wrong bytes. */
void perf_bytes_fill(void *data, size_t bytes, uint32_t key, int32_t rank);
size_t perf_bytes_check(const void *data, size_t bytes, uint32_t key, int32_t rank);

/* The same for gathered heads, where the heads of a rank are interleaved by token. `share` holds the data of one
 * rank. */
size_t perf_heads_check(const void *all, size_t bytes, size_t tokens, int32_t nranks, uint32_t key, char *share);

/* The same for sums of f32: whole numbers, whose sums are exact. Some thousand are checked. */
void perf_sums_fill(float *values, size_t count, uint32_t key, int32_t rank);
size_t perf_sums_check(const float *sums, size_t count, uint32_t key, int32_t nranks);

/* The same for a selection: a list of pairs, indices first, in `bytes` of memory. Merges the lists of ranks as MPI's
 * form does. */
enum { PERF_PAIR_BYTES = sizeof(int64_t) + sizeof(float), PERF_PAIRS_MOST = 8192 };

typedef struct perf_list {
  int64_t *indices;
  float *scores;
  size_t count;
} perf_list;

perf_list perf_list_at(void *memory, size_t bytes);
void perf_list_fill(const perf_list *list, uint32_t key, int32_t rank, int32_t nranks);
void perf_list_merge(const perf_list *from, int32_t nranks, const perf_list *to);
size_t perf_list_check(const perf_list *list, uint32_t key, int32_t nranks);

/* One case of banyan-perf: a collective of one size, by banyan and by other methods with the same result. */

typedef struct perf_case {
  const tool_world *world;
  bny_collective collective;
  size_t bytes;          /* combine: rows * (head_dim + 2) * 4 of a partial; else one rank's message */
  int32_t tokens, heads; /* combine: rows; allgather-heads: of one rank */
  int32_t head_dim;
  banyan_dtype wire;
  banyan_scatter scatter;
  banyan_order order;
  const char *algorithm; /* NULL: by predicted cost */
} perf_case;

typedef struct perf_method {
  const char *name;
  void *state;
  void (*fill)(void *state, uint32_t key); /* new input, the same key on all ranks */
  banyan_status (*run)(void *state);
  void (*check)(void *state, uint32_t key, perf_errors *errors);
  void (*destroy)(void *state); /* NULL: nothing to do */
} perf_method;

/* The method "banyan". *op lives as long as the method. */
bool perf_banyan_method(const perf_case *perf, perf_method *method, banyan_op **op, tool_error *error);

/* The three implementations of a combine on MPI, for ranks under mpirun. The fourth name is that of a sum. */
enum { PERF_MPI_METHODS = 3, PERF_MPI_SUM = PERF_MPI_METHODS };
extern const char *const perf_mpi_names[PERF_MPI_METHODS + 1];

bool perf_mpi_methods(const perf_case *perf, perf_method methods[PERF_MPI_METHODS], tool_error *error);

/* The only implementation of an all-gather of heads, with the first of these names. */
perf_method perf_mpi_heads(const perf_case *perf);

/* MPI_Allgather of the lists and a merge of them, with the first of these names. */
perf_method perf_mpi_lists(const perf_case *perf);

/* MPI_Allreduce of f32. */
perf_method perf_mpi_sums(const perf_case *perf);

/* Measures one case: all methods in one loop, in a rotating order, with new data in each call. */

typedef struct perf_protocol {
  int32_t iterations; /* 0: by size */
  int32_t warmup;
  bool check;
  bool against_mpi;
  bool in_a_row; /* no barrier between calls; the time is half of that of two consecutive calls */
} perf_protocol;

/* The time of an iteration is that of the slowest rank. */
typedef struct perf_row {
  size_t bytes;
  int64_t rows; /* combine */
  char algorithm[32];
  double p50_us, p99_us;
  int mpi_first, mpi_count;                       /* names of the forms */
  double mpi_p50_us[PERF_MPI_METHODS];            /* in the order of perf_mpi_methods() */
  uint64_t bytes_sent;                            /* by the rank that sends most */
  uint64_t most_between_nodes, all_between_nodes; /* the same between nodes, and the sum over ranks */
  int32_t iterations;
  perf_errors errors; /* over all ranks; wrong: of all methods */
} perf_row;

bool perf_measure(const perf_case *perf, const perf_protocol *protocol, perf_row *row, tool_error *error);

/* banyan-perf prints a table with comment lines before and after it, or JSON. */

/* Prints where each rank runs. Collective; only rank 0 prints, if stream is not NULL. */
bool perf_report_header(const perf_case *perf, const perf_protocol *protocol, FILE *stream, tool_error *error);

void perf_report_row(const perf_row *row, FILE *stream);
void perf_report_trailer(const perf_row *rows, int count, const perf_protocol *protocol, FILE *stream);

/* Prints {"rows": [...]} to standard output. */
bool perf_report_json(const perf_case *perf, const perf_row *rows, int count, const perf_protocol *protocol,
                      tool_error *error);

/* Merges of partials as a careful MPI user would write them: factors once per row, vectorised loops, and the division
 * folded into the factors. They use the vector instructions of the processor, so that banyan is compared with good
 * code. */

/* Merges the contributions of all ranks, which are consecutive in `all`: max[rows], sum[rows], values[rows][dim].
 * factors[nranks] is scratch. */
void perf_merge_gathered(const float *all, int32_t nranks, int64_t rows, int32_t dim, float *factors, float *out);

/* inout = merge(in, inout), rows of max, sum, values[dim]. */
void perf_merge_pair(const float *in, float *inout, int64_t rows, int32_t dim);

/* Multiplies values[r] and sum[r] by 2^(max[r] - all_max[r]). */
void perf_merge_rescale(const float *max, const float *all_max, int64_t rows, int32_t dim, float *sum, float *values);

/* out[r] = values[r] / sum[r]. `stride` is that of the rows of values, and `sum_stride` that of sums. */
void perf_merge_finish(const float *values, int64_t stride, const float *sum, int64_t sum_stride, int64_t rows,
                       int32_t dim, float *out);

/* Combines on a GPU. Ranks are threads of this process on one device. Each rank combines repeatedly in its own graph,
 * and the time is that of these graphs. Two alternatives are measured in the same way: each rank copies its partial,
 * and the three all-reduces of the Tree Attention paper (maxima, denominators, numerators), each as a combine. */

typedef struct perf_device_settings {
  const char *device; /* "cuda" or "cuda:N" */
  int32_t nranks;
  int64_t timeout_ns; /* 0: 30 s */
} perf_device_settings;

typedef struct perf_device_row {
  size_t bytes; /* size of a rank's partial */
  int64_t rows;
  char algorithm[32];
  int32_t runs;          /* in a graph */
  int32_t iterations;    /* replays of it */
  double p50_us, p99_us; /* time of a run */
  double copy_us, reductions_us;
  perf_errors errors;
} perf_device_row;

/* Measures all sizes. Prints each result at once, or all as JSON, to stdout. Sets *correct if all checked results are
 * right. Without CUDA it sets a usage error. */
bool perf_device_work(const perf_device_settings *settings, const perf_case *cases, int count,
                      const perf_protocol *protocol, bool json, bool *correct, tool_error *error);
