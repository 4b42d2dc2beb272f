/* SPDX-License-Identifier: Apache-2.0
 * Heads from MPI: MPI_Allgather of the shares, and then each token's heads are copied to their place, because MPI gives
 * the shares one after another. */
#include <string.h>

#include "tools/perf/perf.h"

typedef struct heads_state {
  const perf_case *perf;
  char *mine, *shares, *all;
} heads_state;

static void fill(void *opaque, uint32_t key) {
  heads_state *state = opaque;
  perf_bytes_fill(state->mine, state->perf->bytes, key, state->perf->world->rank);
}

static void place(const heads_state *state) {
  size_t nranks = (size_t)state->perf->world->nranks, tokens = (size_t)state->perf->tokens;
  size_t line = state->perf->bytes / tokens;
  for (size_t t = 0; t < tokens; t++)
    for (size_t r = 0; r < nranks; r++)
      memcpy(state->all + (t * nranks + r) * line, state->shares + (r * tokens + t) * line, line);
}

/* A share is whole heads of bf16, and so whole floats. */
static banyan_status run(void *opaque) {
  heads_state *state = opaque;
  const perf_case *perf = state->perf;
  bool done = perf->world->mpi->allgather((const float *)(const void *)state->mine, (int)(perf->bytes / sizeof(float)),
                                          (float *)(void *)state->shares);
  place(state);
  return done ? BANYAN_OK : BANYAN_ERR_SYSTEM;
}

static void check(void *opaque, uint32_t key, perf_errors *errors) {
  heads_state *state = opaque;
  size_t nranks = (size_t)state->perf->world->nranks, tokens = (size_t)state->perf->tokens;
  size_t line = state->perf->bytes / tokens;
  for (size_t r = 0; r < nranks; r++) {
    for (size_t t = 0; t < tokens; t++) memcpy(state->shares + t * line, state->all + (t * nranks + r) * line, line);
    errors->wrong += (int64_t)perf_bytes_check(state->shares, state->perf->bytes, key, (int32_t)r);
  }
}

perf_method perf_mpi_heads(const perf_case *perf) {
  heads_state *state = tool_new(1, sizeof *state);
  size_t whole = perf->bytes * (size_t)perf->world->nranks;
  *state = (heads_state){perf, tool_take(perf->bytes), tool_take(whole), tool_take(whole)};
  return (perf_method){.name = perf_mpi_names[0], .state = state, .fill = fill, .run = run, .check = check};
}
