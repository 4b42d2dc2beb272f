/* SPDX-License-Identifier: Apache-2.0
 * The same result from MPI, three ways:
 *   mpi_allgather   MPI_Allgather of the partials, then every rank merges all of them
 *   mpi_op          one MPI_Allreduce with a custom operation, on rows of max, sum, values
 *   mpi_allreduce3  MPI_Allreduce of the maxima, of the sums and of the values
 * Each has its input in its own layout, and gives normalised rows. */
#include "tools/perf/perf.h"

#include <string.h>

const char *const perf_mpi_names[PERF_MPI_METHODS + 1] = {"mpi_allgather", "mpi_op", "mpi_allreduce3", "mpi_allreduce"};

enum { ROWS_CHECKED = 512 };

typedef struct mpi_state {
  const perf_case *perf;
  int64_t rows;
  int32_t dim;
  tool_part part;
  perf_rows input;
  float *send;    /* the input: max, sum, values one after another, or (mpi_op) row by row */
  float *receive; /* from all ranks, or reduced */
  float *factors; /* mpi_allgather: [nranks] */
  float *out;
  perf_list *lists; /* select: [nranks], in `receive` */
  bool by_row;      /* mpi_op */
} mpi_state;

static const tool_mpi *mpi_of(const mpi_state *state) { return state->perf->world->mpi; }

static void fill(void *opaque, uint32_t key) {
  mpi_state *state = opaque;
  perf_rows_fill(&state->input, key, state->perf->world->rank);
}

static void check(void *opaque, uint32_t key, perf_errors *errors) {
  mpi_state *state = opaque;
  perf_rows_check(&state->part, state->perf->heads, state->dim, state->out, key, state->perf->world->nranks,
                  ROWS_CHECKED, tool_error_bound(BANYAN_F32, 0), errors);
}

static void destroy(void *opaque) {
  mpi_state *state = opaque;
  if (state->by_row) mpi_of(state)->rows_end();
}

static banyan_status status_of(bool done) { return done ? BANYAN_OK : BANYAN_ERR_SYSTEM; }

/* ---- the three --------------------------------------------------------------------------------------------------- */

static banyan_status run_allgather(void *opaque) {
  mpi_state *state = opaque;
  int count = (int)(state->rows * (state->dim + 2));
  bool done = mpi_of(state)->allgather(state->send, count, state->receive);
  perf_merge_gathered(state->receive, state->perf->world->nranks, state->rows, state->dim, state->factors, state->out);
  return status_of(done);
}

static banyan_status run_op(void *opaque) {
  mpi_state *state = opaque;
  int64_t stride = state->dim + 2;
  bool done = mpi_of(state)->rows_allreduce(state->send, state->receive, (int)state->rows);
  perf_merge_finish(state->receive + 2, stride, state->receive + 1, stride, state->rows, state->dim, state->out);
  return status_of(done);
}

static banyan_status run_allreduce3(void *opaque) {
  mpi_state *state = opaque;
  int64_t rows = state->rows;
  float *max = state->send, *sum = max + rows, *values = sum + rows;
  float *all_max = state->receive, *all_sum = all_max + rows, *all_values = all_sum + rows;
  const tool_mpi *mpi = mpi_of(state);
  bool done = mpi->allreduce(max, all_max, (int)rows, true);
  perf_merge_rescale(max, all_max, rows, state->dim, sum, values);
  memcpy(max, all_max, (size_t)rows * sizeof *max); /* the input is a partial still, for another run */
  done = done && mpi->allreduce(sum, all_sum, (int)rows, false) &&
         mpi->allreduce(values, all_values, (int)(rows * state->dim), false);
  perf_merge_finish(all_values, state->dim, all_sum, 1, rows, state->dim, state->out);
  return status_of(done);
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

/* MPI_Allgather of the shares, and then the heads of each token are copied into order, because MPI gives the shares one
 * after another. A share is whole heads of bf16, and so whole floats. */
static banyan_status run_heads(void *opaque) {
  mpi_state *state = opaque;
  size_t nranks = (size_t)state->perf->world->nranks, tokens = (size_t)state->perf->tokens;
  size_t line = state->perf->bytes / tokens;
  bool done = mpi_of(state)->allgather(state->send, (int)(state->perf->bytes / sizeof(float)), state->receive);
  for (size_t t = 0; t < tokens; t++)
    for (size_t r = 0; r < nranks; r++)
      memcpy((char *)state->out + (t * nranks + r) * line, (char *)state->receive + (r * tokens + t) * line, line);
  return status_of(done);
}

static void fill_heads(void *opaque, uint32_t key) {
  mpi_state *state = opaque;
  perf_bytes_fill(state->send, state->perf->bytes, key, state->perf->world->rank);
}

static void check_heads(void *opaque, uint32_t key, perf_errors *errors) {
  mpi_state *state = opaque;
  const perf_case *perf = state->perf;
  errors->wrong += (int64_t)perf_heads_check(state->out, perf->bytes, (size_t)perf->tokens, perf->world->nranks, key,
                                             (char *)state->receive);
}

perf_method perf_mpi_heads(const perf_case *perf) {
  mpi_state *state = tool_new(1, sizeof *state);
  size_t whole = perf->bytes * (size_t)perf->world->nranks;
  *state = (mpi_state){.perf = perf, .send = tool_take(perf->bytes), .receive = tool_take(whole)};
  state->out = tool_take(whole);
  return (perf_method){
      .name = perf_mpi_names[0], .state = state, .fill = fill_heads, .run = run_heads, .check = check_heads};
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static banyan_status run_sums(void *opaque) {
  mpi_state *state = opaque;
  return status_of(mpi_of(state)->allreduce(state->send, state->out, (int)(state->perf->bytes / sizeof(float)), false));
}

static void fill_sums(void *opaque, uint32_t key) {
  mpi_state *state = opaque;
  perf_sums_fill(state->send, state->perf->bytes / sizeof(float), key, state->perf->world->rank);
}

static void check_sums(void *opaque, uint32_t key, perf_errors *errors) {
  mpi_state *state = opaque;
  const perf_case *perf = state->perf;
  errors->wrong += (int64_t)perf_sums_check(state->out, perf->bytes / sizeof(float), key, perf->world->nranks);
}

perf_method perf_mpi_sums(const perf_case *perf) {
  mpi_state *state = tool_new(1, sizeof *state);
  *state = (mpi_state){.perf = perf, .send = tool_take(perf->bytes), .out = tool_take(perf->bytes)};
  return (perf_method){
      .name = perf_mpi_names[PERF_MPI_SUM], .state = state, .fill = fill_sums, .run = run_sums, .check = check_sums};
}

/* ---- selections -------------------------------------------------------------------------------------------------- */

static banyan_status run_lists(void *opaque) {
  mpi_state *state = opaque;
  const perf_case *perf = state->perf;
  bool done = mpi_of(state)->allgather(state->send, (int)(perf->bytes / sizeof(float)), state->receive);
  for (int32_t r = 0; r < perf->world->nranks; r++)
    state->lists[r] = perf_list_at((char *)state->receive + (size_t)r * perf->bytes, perf->bytes);
  perf_list out = perf_list_at(state->out, perf->bytes);
  perf_list_merge(state->lists, perf->world->nranks, &out);
  return status_of(done);
}

static void fill_lists(void *opaque, uint32_t key) {
  mpi_state *state = opaque;
  perf_list list = perf_list_at(state->send, state->perf->bytes);
  perf_list_fill(&list, key, state->perf->world->rank, state->perf->world->nranks);
}

static void check_lists(void *opaque, uint32_t key, perf_errors *errors) {
  mpi_state *state = opaque;
  perf_list list = perf_list_at(state->out, state->perf->bytes);
  errors->wrong += (int64_t)perf_list_check(&list, key, state->perf->world->nranks);
}

perf_method perf_mpi_lists(const perf_case *perf) {
  mpi_state *state = tool_new(1, sizeof *state);
  size_t nranks = (size_t)perf->world->nranks;
  *state = (mpi_state){.perf = perf, .send = tool_take(perf->bytes), .receive = tool_take(nranks * perf->bytes)};
  state->out = tool_take(perf->bytes);
  state->lists = tool_new(nranks, sizeof *state->lists);
  return (perf_method){
      .name = perf_mpi_names[0], .state = state, .fill = fill_lists, .run = run_lists, .check = check_lists};
}

/* ---- making them ------------------------------------------------------------------------------------------------- */

static mpi_state *make_state(const perf_case *perf, bool gathers, bool by_row) {
  mpi_state *state = tool_new(1, sizeof *state);
  size_t nranks = (size_t)perf->world->nranks;
  state->perf = perf;
  state->rows = (int64_t)perf->tokens * perf->heads;
  state->dim = perf->head_dim;
  state->part =
      tool_part_of_rank(BANYAN_SCATTER_NONE, perf->tokens, perf->heads, perf->world->rank, perf->world->nranks);
  state->send = tool_take(perf->bytes);
  state->receive = tool_take(gathers ? nranks * perf->bytes : perf->bytes);
  state->factors = tool_take(nranks * sizeof *state->factors);
  state->out = tool_take(perf->bytes);
  float *max = state->send;
  if (by_row) {
    state->input = (perf_rows){state->rows, state->dim, max, max + 1, max + 2, state->dim + 2, state->dim + 2};
    state->by_row = mpi_of(state)->rows_begin(state->dim, perf_merge_pair);
    if (!state->by_row) return NULL;
  } else {
    float *sum = max + state->rows;
    state->input = (perf_rows){state->rows, state->dim, max, sum, sum + state->rows, 1, state->dim};
  }
  return state;
}

bool perf_mpi_methods(const perf_case *perf, perf_method methods[PERF_MPI_METHODS], tool_error *error) {
  banyan_status (*const runs[])(void *) = {run_allgather, run_op, run_allreduce3};
  for (int i = 0; i < PERF_MPI_METHODS; i++) {
    mpi_state *state = make_state(perf, i == 0, i == 1);
    if (state == NULL) {
      while (i-- > 0) destroy(methods[i].state);
      return tool_error_set(error, "cannot prepare MPI's messages of %zu bytes", perf->bytes);
    }
    methods[i] = (perf_method){
        .name = perf_mpi_names[i], .state = state, .fill = fill, .run = runs[i], .check = check, .destroy = destroy};
  }
  return true;
}
