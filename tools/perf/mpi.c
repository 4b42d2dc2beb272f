/* SPDX-License-Identifier: Apache-2.0
 * The same results from MPI. A combine has three forms:
 *   mpi_allgather   MPI_Allgather of the partials, then every rank merges all of them
 *   mpi_op          one MPI_Allreduce with a custom operation, on rows of max, sum, values
 *   mpi_allreduce3  MPI_Allreduce of the maxima, of the sums and of the values
 * Each has its input in its own layout, and gives normalised rows. */
#include "tools/perf/perf.h"

#include <string.h>

static const tool_mpi *mpi_of(const perf_method *method) { return method->perf->world->mpi; }

static banyan_status status_of(bool done) { return done ? BANYAN_OK : BANYAN_ERR_SYSTEM; }

static int floats_of(const perf_method *method) { return (int)(method->perf->bytes / sizeof(float)); }

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static banyan_status run_allgather(perf_method *method) {
  int32_t nranks = method->perf->world->nranks;
  bool done = mpi_of(method)->allgather(method->input, floats_of(method), method->receive);
  perf_merge_gathered(method->receive, nranks, method->rows.rows, method->rows.dim, method->work, method->output);
  return status_of(done);
}

static banyan_status run_op(perf_method *method) {
  int64_t rows = method->rows.rows, stride = method->rows.dim + 2;
  bool done = mpi_of(method)->rows_allreduce(method->input, method->receive, (int)rows);
  perf_merge_finish(method->receive + 2, stride, method->receive + 1, stride, rows, method->rows.dim, method->output);
  return status_of(done);
}

static banyan_status run_allreduce3(perf_method *method) {
  int64_t rows = method->rows.rows;
  int32_t dim = method->rows.dim;
  float *max = method->rows.max, *sum = method->rows.sum, *values = method->rows.values;
  float *all_max = method->receive, *all_sum = all_max + rows, *all_values = all_sum + rows;
  const tool_mpi *mpi = mpi_of(method);
  bool done = mpi->allreduce(max, all_max, (int)rows, true);
  perf_merge_rescale(max, all_max, rows, dim, sum, values);
  memcpy(max, all_max, (size_t)rows * sizeof *max); /* the input is a partial still, for another run */
  done = done && mpi->allreduce(sum, all_sum, (int)rows, false) &&
         mpi->allreduce(values, all_values, (int)(rows * dim), false);
  perf_merge_finish(all_values, dim, all_sum, 1, rows, dim, method->output);
  return status_of(done);
}

/* ---- others ------------------------------------------------------------------------------------------------------ */

/* MPI_Allgather of the shares, and then the heads of each token are copied into order, because MPI gives the shares one
 * after another. A share is whole heads of bf16, and so whole floats. */
static banyan_status run_heads(perf_method *method) {
  size_t nranks = (size_t)method->perf->world->nranks, tokens = (size_t)method->perf->combine.tokens;
  size_t line = method->perf->bytes / tokens;
  bool done = mpi_of(method)->allgather(method->input, floats_of(method), method->receive);
  for (size_t t = 0; t < tokens; t++)
    for (size_t r = 0; r < nranks; r++)
      memcpy((char *)method->output + (t * nranks + r) * line, (char *)method->receive + (r * tokens + t) * line, line);
  return status_of(done);
}

static banyan_status run_sums(perf_method *method) {
  return status_of(mpi_of(method)->allreduce(method->input, method->output, floats_of(method), false));
}

/* MPI_Allgather brings the sorted lists, which are then merged. */
static banyan_status run_lists(perf_method *method) {
  const perf_case *perf = method->perf;
  perf_list *lists = method->work;
  bool done = mpi_of(method)->allgather(method->input, floats_of(method), method->receive);
  for (int32_t r = 0; r < perf->world->nranks; r++)
    lists[r] = perf_list_at((char *)method->receive + (size_t)r * perf->bytes, perf->bytes);
  perf_list out = perf_list_at(method->output, perf->bytes);
  perf_list_merge(lists, perf->world->nranks, &out);
  return status_of(done);
}

/* ---- making them ------------------------------------------------------------------------------------------------- */

typedef struct form {
  bny_collective collective;
  const char *name;
  banyan_status (*run)(perf_method *method);
  bool gathers; /* it receives the messages of all ranks */
} form;

static const form forms[] = {
    {BNY_COMBINE, "mpi_allgather", run_allgather, true},    {BNY_COMBINE, "mpi_op", run_op, false},
    {BNY_COMBINE, "mpi_allreduce3", run_allreduce3, false}, {BNY_ALLGATHER_HEADS, "mpi_allgather", run_heads, true},
    {BNY_ALLREDUCE, "mpi_allreduce", run_sums, false},      {BNY_SELECT, "mpi_allgather", run_lists, true},
};

int perf_mpi_count(bny_collective collective) {
  int count = 0;
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) count += forms[i].collective == collective;
  return count;
}

static bool lay_out_rows(perf_method *method) {
  const banyan_combine_desc *desc = &method->perf->combine;
  int64_t rows = (int64_t)desc->tokens * desc->heads, dim = desc->value_dim, stride = dim + 2;
  float *memory = method->input, *sum = memory + rows;
  method->part = tool_part_of_rank(desc, method->perf->world->rank, method->perf->world->nranks);
  method->rows = (perf_rows){rows, desc->value_dim, memory, sum, sum + rows, 1, dim};
  if (method->run != run_op) return true;
  method->rows = (perf_rows){rows, desc->value_dim, memory, memory + 1, memory + 2, stride, stride};
  method->by_row = mpi_of(method)->rows_begin(desc->value_dim, perf_merge_pair);
  return method->by_row;
}

bool perf_mpi_methods(const perf_case *perf, perf_method methods[PERF_MPI_METHODS], tool_error *error) {
  size_t whole = (size_t)perf->world->nranks * perf->bytes;
  int count = 0;
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    const form *f = &forms[i];
    if (f->collective != perf->collective) continue;
    perf_method *method = &methods[count++];
    *method = (perf_method){.name = f->name, .perf = perf, .run = f->run, .input = tool_take(perf->bytes)};
    method->receive = tool_take(f->gathers ? whole : perf->bytes);
    method->work = tool_new((size_t)perf->world->nranks, sizeof(perf_list));
    method->output = tool_take(perf->collective == BNY_ALLGATHER_HEADS ? whole : perf->bytes);
    if (perf->collective == BNY_COMBINE && !lay_out_rows(method)) {
      while (count > 0) perf_method_free(&methods[--count]);
      return tool_error_set(error, "cannot prepare MPI's messages of %zu bytes", perf->bytes);
    }
  }
  return true;
}

void perf_method_free(perf_method *method) {
  banyan_op_free(method->op);
  if (method->by_row) mpi_of(method)->rows_end();
}
