/* SPDX-License-Identifier: Apache-2.0
 * banyan-perf measures one collective of banyan at one size, and other ways to the same result. */
#ifndef BNY_TOOLS_PERF_METHODS_H
#define BNY_TOOLS_PERF_METHODS_H

#include <stdbool.h>
#include <stdint.h>

#include "banyan.h"
#include "tools/perf/data.h"
#include "tools/common/util.h"
#include "tools/common/world.h"

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
  void (*destroy)(void *state);
} perf_method;

/* Names "banyan". *op lives as long as the method. */
bool perf_banyan_method(const perf_case *perf, perf_method *method, banyan_op **op, tool_error *error);

/* The three forms of a combine on MPI, for ranks under mpirun. */
enum { PERF_MPI_METHODS = 3 };
extern const char *const perf_mpi_names[PERF_MPI_METHODS];

bool perf_mpi_methods(const perf_case *perf, perf_method methods[PERF_MPI_METHODS], tool_error *error);

/* The one form of an all-gather of heads, which has the first of these names. */
bool perf_mpi_heads(const perf_case *perf, perf_method *method, tool_error *error);

#endif
