/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files of banyan-perf. */
#ifndef BNY_TOOLS_PERF_PERF_H
#define BNY_TOOLS_PERF_PERF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "banyan.h"
#include "tools/common/gpu.h"
#include "tools/common/util.h"
#include "tools/common/world.h"

/* Data for banyan-perf: made anew for every call from a key and the rank, so that each rank knows the result. */

/* The layout of the partials of `rows` rows: element r * stat_stride of max and sum, and values from r * row_stride
 * on. */
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

/* Counts bytes, and the wrong ones. */
void perf_bytes_fill(void *data, size_t bytes, uint32_t key, int32_t rank);
size_t perf_bytes_check(const void *data, size_t bytes, uint32_t key, int32_t rank);

/* The same of gathered heads, where those of a rank lie apart, token by token; `share` has room for one rank's. */
size_t perf_heads_check(const void *all, size_t bytes, size_t tokens, int32_t nranks, uint32_t key, char *share);

/* banyan-perf measures one collective of banyan at one size, and other ways to the same result. */

typedef struct perf_case {
  const tool_world *world;
  bny_collective collective;
  size_t bytes;          /* combine: of a partial, rows * (head_dim + 2) * 4. Else of one rank's message */
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

/* Names "banyan". *op lives as long as the method. */
bool perf_banyan_method(const perf_case *perf, perf_method *method, banyan_op **op, tool_error *error);

/* The three forms of a combine on MPI, for ranks under mpirun. */
enum { PERF_MPI_METHODS = 3 };
extern const char *const perf_mpi_names[PERF_MPI_METHODS];

bool perf_mpi_methods(const perf_case *perf, perf_method methods[PERF_MPI_METHODS], tool_error *error);

/* The only form of an all-gather of heads, which has the first of these names. */
perf_method perf_mpi_heads(const perf_case *perf);

/* Takes the times of one case: all methods in one loop, in a rotating order, each call with new data. */

typedef struct perf_protocol {
  int32_t iterations; /* 0: by size */
  int32_t warmup;
  bool check;
  bool against_mpi;
  bool in_a_row; /* calls follow one another without a barrier, and the time is half of that of two in a row */
} perf_protocol;

/* Times of an iteration are those of the slowest rank. */
typedef struct perf_row {
  size_t bytes;
  int64_t rows; /* combine */
  char algorithm[32];
  double p50_us, p99_us;
  int mpi_count;
  double mpi_p50_us[PERF_MPI_METHODS];            /* in the order of perf_mpi_methods() */
  uint64_t bytes_sent;                            /* by the rank that sends most */
  uint64_t most_between_nodes, all_between_nodes; /* the same to other nodes, and by all ranks */
  int32_t iterations;
  perf_errors errors; /* over all ranks; wrong: of all methods */
} perf_row;

bool perf_measure(const perf_case *perf, const perf_protocol *protocol, perf_row *row, tool_error *error);

/* banyan-perf prints a table with comment lines before and after it, or JSON. */

/* Collective: where each rank runs. Only rank 0 prints, to stream, if it is not NULL. */
bool perf_report_header(const perf_case *perf, const perf_protocol *protocol, FILE *stream, tool_error *error);

void perf_report_row(const perf_row *row, FILE *stream);
void perf_report_trailer(const perf_row *rows, int count, const perf_protocol *protocol, FILE *stream);

/* {"rows": [...]} on standard output. */
bool perf_report_json(const perf_case *perf, const perf_row *rows, int count, const perf_protocol *protocol,
                      tool_error *error);

/* Merging partials as a careful user of MPI would write it: factors once per row, vectorised loops, the division folded
 * into the factors. With the vectors of the processor at hand, so that banyan is compared with good code. */

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

/* Combines on a GPU: ranks are threads of this process, all on one device, and the time is that of a graph in which
 * every rank combines over and over, on a branch of its own. Beside it, measured alike: a copy of the partial by every
 * rank, and the three reductions of the Tree Attention paper, of maxima, denominators and numerators, each of them a
 * combine. */

typedef struct perf_device_settings {
  const char *device; /* "cuda" or "cuda:N" */
  int32_t nranks;
  int64_t timeout_ns; /* 0: 30 s */
  bool between;       /* a kernel that evicts caches stands between runs */
} perf_device_settings;

typedef struct perf_device_row {
  size_t bytes; /* size of a rank's partial */
  int64_t rows;
  char algorithm[32];
  int32_t runs;          /* in a graph */
  int32_t iterations;    /* replays of it */
  double p50_us, p99_us; /* time of a run */
  double copy_us, reductions_us;
  double between_us; /* time of the work between runs, which the other times exclude */
  perf_errors errors;
} perf_device_row;

/* False in builds without CUDA. */
bool perf_device_built(void);

/* All sizes, printed to stdout as they come, or as JSON. *correct: all results that were checked. */
bool perf_device_work(const perf_device_settings *settings, const perf_case *cases, int count,
                      const perf_protocol *protocol, bool json, bool *correct, tool_error *error);

/* The report of combines on a GPU, on stdout. */

void perf_device_report_header(const gpu_facts *facts, const perf_device_settings *settings, const perf_case *perf,
                               const perf_protocol *protocol);
void perf_device_report_row(const perf_device_row *row);

/* {"device": {...}, "rows": [...]}. */
bool perf_device_report_json(const gpu_facts *facts, const perf_device_settings *settings, const perf_case *cases,
                             const perf_device_row *rows, int count, const perf_protocol *protocol, tool_error *error);

/* replay.c: how many ranks the files of a pattern have; and a rank's part of such a combine. *same: the status is that
 * of the file. */
bool perf_replay_ranks(const char *pattern, int32_t *nranks, tool_error *error);
bool perf_replay(const char *pattern, const tool_world *world, bool *same, tool_error *error);

#endif
