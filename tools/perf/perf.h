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

/* One case of banyan-perf: a collective of one size, by banyan and by other methods with the same result. */

typedef struct perf_case {
  const tool_world *world;
  bny_collective collective;
  size_t bytes;                /* combine: rows * (value_dim + 2) * 4 of a partial; else one rank's message */
  banyan_combine_desc combine; /* allgather-heads: its tokens, and heads of one rank */
} perf_case;

/* The layout of the partials of `rows` rows: element r * stat_stride of max and sum, and values from r * row_stride
 * on. */
typedef struct perf_rows {
  int64_t rows;
  int32_t dim;
  float *max, *sum, *values;
  int64_t stat_stride, row_stride;
} perf_rows;

typedef struct perf_method {
  const char *name;
  const perf_case *perf;
  banyan_status (*run)(struct perf_method *method);
  banyan_op *op;        /* set by banyan; NULL: a form of MPI */
  tool_part part;       /* combine: the rows of the result on this rank */
  perf_rows rows;       /* combine: input */
  void *input, *output; /* memory; of broadcast and barrier the output is the input */
  float *receive;       /* MPI: from all ranks, or reduced */
  void *work;           /* MPI: room for a factor or a list of each rank */
  bool by_row;          /* MPI: statistics are next to the values of their row */
} perf_method;

/* The method "banyan". */
bool perf_banyan_method(const perf_case *perf, perf_method *method, tool_error *error);

/* The forms of a collective on MPI, for ranks under mpirun: those in the table of mpi.c. */
enum { PERF_MPI_METHODS = 3 };

/* Returns the number of forms; 0: there is none. */
int perf_mpi_count(bny_collective collective);
bool perf_mpi_methods(const perf_case *perf, perf_method methods[PERF_MPI_METHODS], tool_error *error);

void perf_method_free(perf_method *method);

/* Data for banyan-perf. It is generated for each call from a key and the rank, so each rank can compute the expected
 * result. */

/* The result of a check. */
typedef struct perf_errors {
  int64_t wrong; /* rows or elements out of bounds */
  double worst;  /* relative error of a row */
} perf_errors;

/* Writes the input of this rank, with the same key on all ranks, and compares the output with what all inputs give. */
void perf_input_fill(const perf_method *method, uint32_t key);
void perf_output_check(const perf_method *method, uint32_t key, perf_errors *errors);

/* Fills partials in base 2 with integer maxima. Numerators are in [0.5, 1.5], so sums do not cancel. */
void perf_rows_fill(const perf_rows *rows, uint32_t key, int32_t rank);

/* Compares `out` (normalised, [tokens][heads][value_dim] of `part`) with double precision, and adds to errors. If there
 * are many rows, it checks some hundreds of them. */
void perf_rows_check(const perf_case *perf, const tool_part *part, const float *out, uint32_t key, int32_t nranks,
                     double bound, perf_errors *errors);

/* A list of pairs to select from, indices first, in `bytes` of memory. Lists are merged as MPI's form does. */
enum { PERF_PAIR_BYTES = sizeof(int64_t) + sizeof(float), PERF_PAIRS_MOST = 8192 };

typedef struct perf_list {
  int64_t *indices;
  float *scores;
  size_t count;
} perf_list;

perf_list perf_list_at(void *memory, size_t bytes);
void perf_list_merge(const perf_list *from, int32_t nranks, const perf_list *to);

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
  int mpi_count; /* forms of MPI, with their names and times */
  const char *mpi_names[PERF_MPI_METHODS];
  double mpi_p50_us[PERF_MPI_METHODS];
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
