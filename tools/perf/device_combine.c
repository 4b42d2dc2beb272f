/* SPDX-License-Identifier: Apache-2.0
 * Times combines of ranks on one device. */
#include "tools/perf/perf.h"

#include <stdio.h>
#include <string.h>

#include "tools/common/device_ranks.h"
#include "tools/common/gpu.h"

enum { ROWS_CHECKED = 512, RUNS_MAX = 32, KEY = 1 };

/* Each form is measured as one or more operations of every rank, or as a copy. */
typedef enum form { BETWEEN, COMBINE, COPY, REDUCTIONS } form;

enum { MAXIMA, DENOMINATORS, NUMERATORS, REDUCTION_COUNT };

/* A rank's memory on the device and its operations. */
typedef struct rank_memory {
  float *values, *max, *sum; /* the partial, one block of memory from `values` on */
  float *out;                /* as large as the partial */
  float *spare_max, *spare_sum;
  banyan_op *combine, *reductions[REDUCTION_COUNT];
} rank_memory;

typedef struct measurement {
  device_ranks ranks;
  const perf_case *perf;
  gpu_between *between; /* NULL: no kernel between runs */
  rank_memory memories[DEVICE_RANKS_MAX];
  float *host; /* as large as a partial */
} measurement;

bool perf_device_built(void) { return true; }

/* ---- memory and operations --------------------------------------------------------------------------------------- */

static int64_t rows_of(const perf_case *perf) { return (int64_t)perf->tokens * perf->heads; }

static bool take(measurement *m, rank_memory *at, tool_error *error) {
  size_t rows = (size_t)rows_of(m->perf);
  gpu *device = m->ranks.device;
  bool ok = gpu_take(device, m->perf->bytes, (void **)(void *)&at->values, error) &&
            gpu_take(device, m->perf->bytes, (void **)(void *)&at->out, error) &&
            gpu_take(device, rows * sizeof(float), (void **)(void *)&at->spare_max, error) &&
            gpu_take(device, rows * sizeof(float), (void **)(void *)&at->spare_sum, error);
  if (ok) {
    at->max = at->values + rows * (size_t)m->perf->head_dim;
    at->sum = at->max + rows;
  }
  return ok;
}

static bool fill(measurement *m, int32_t rank, tool_error *error) {
  int64_t rows = rows_of(m->perf);
  int32_t dim = m->perf->head_dim;
  perf_rows data = {rows, dim, m->host + rows * dim, m->host + rows * dim + rows, m->host, 1, dim};
  perf_rows_fill(&data, KEY, rank);
  return gpu_write(m->ranks.device, m->memories[rank].values, m->host, m->perf->bytes, error);
}

/* The first two all-reduces of the paper are combines of statistics only, and the third is a combine of all values. A
 * merge of partials takes the maximum and sums values that are scaled to it, so no work remains in between. */
static banyan_status plan(measurement *m, int32_t rank) {
  const perf_case *perf = m->perf;
  rank_memory *at = &m->memories[rank];
  int32_t heads = perf->heads, dim = perf->head_dim;
  tool_part part = tool_part_of_rank(perf->scatter, perf->tokens, heads, rank, m->ranks.nranks);
  bool nothing = perf->scatter == BANYAN_SCATTER_ROOT && rank != 0;
  banyan_partial in = tool_partial_max_sum(at->values, at->max, at->sum, heads, dim);
  banyan_partial statistics = tool_partial_max_sum(NULL, at->max, at->sum, heads, 0);
  banyan_partial spare = tool_partial_max_sum(NULL, at->spare_max, at->spare_sum, heads, 0);
  banyan_partial out = tool_partial_result(at->out, part.heads, dim), whole = tool_partial_result(at->out, heads, dim);
  banyan_combine_desc desc = {.size = sizeof desc,
                              .tokens = perf->tokens,
                              .heads = heads,
                              .value_dim = dim,
                              .wire = perf->wire,
                              .scatter = perf->scatter,
                              .order = perf->order,
                              .algorithm = perf->algorithm,
                              .stream = m->ranks.streams[rank]};
  banyan_comm *comm = m->ranks.ranks[rank].comm;
  banyan_status status = banyan_combine_init(comm, &desc, &in, nothing ? NULL : &out, &at->combine);
  desc.scatter = BANYAN_SCATTER_NONE;
  for (int i = 0; i < REDUCTION_COUNT && status == BANYAN_OK; i++) {
    bool last = i == NUMERATORS;
    desc.value_dim = last ? dim : 0;
    status = banyan_combine_init(comm, &desc, last ? &in : &statistics, last ? &whole : &spare, &at->reductions[i]);
  }
  return status;
}

static bool plan_rank(device_rank *self, void *opaque) {
  banyan_status status = plan(opaque, self->rank);
  return status == BANYAN_OK || tool_error_banyan(&self->error, status, "cannot plan the combine");
}

static bool begin(measurement *m, tool_error *error) {
  memset(m->memories, 0, sizeof m->memories);
  m->host = tool_take(m->perf->bytes);
  bool ok = true;
  for (int32_t r = 0; ok && r < m->ranks.nranks; r++) ok = take(m, &m->memories[r], error) && fill(m, r, error);
  return ok && device_ranks_call(&m->ranks, plan_rank, m, error);
}

static void end(measurement *m) {
  for (int32_t r = 0; r < m->ranks.nranks; r++) {
    rank_memory *at = &m->memories[r];
    banyan_op_free(at->combine);
    for (int i = 0; i < REDUCTION_COUNT; i++) banyan_op_free(at->reductions[i]);
    gpu_give(m->ranks.device, at->values);
    gpu_give(m->ranks.device, at->out);
    gpu_give(m->ranks.device, at->spare_max);
    gpu_give(m->ranks.device, at->spare_sum);
  }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

typedef struct run_form {
  measurement *m;
  form form;
} run_form;

static bool put_form(const run_form *what, int32_t rank, tool_error *error) {
  measurement *m = what->m;
  rank_memory *at = &m->memories[rank];
  switch (what->form) {
  case BETWEEN: return true;
  case COPY: return gpu_copy(m->ranks.device, at->out, at->values, m->perf->bytes, m->ranks.streams[rank], error);
  case COMBINE: return device_time_start(at->combine, error);
  default:
    return device_time_start(at->reductions[MAXIMA], error) && device_time_start(at->reductions[DENOMINATORS], error) &&
           device_time_start(at->reductions[NUMERATORS], error);
  }
}

static bool put(void *argument, int32_t run, int32_t rank, tool_error *error) {
  const run_form *what = argument;
  const measurement *m = what->m;
  (void)run;
  return put_form(what, rank, error) &&
         (m->between == NULL || gpu_between_put(m->between, rank, m->ranks.streams[rank], error));
}

/* Without what stands between runs, whose time must be known. */
static bool time_form(measurement *m, form form, const perf_device_row *row, int32_t warmup, double *p50_us,
                      double *p99_us, tool_error *error) {
  run_form what = {m, form};
  device_timing timing = {
      .put = put, .argument = &what, .runs = row->runs, .warmup = warmup, .iterations = row->iterations};
  bool ok = device_time(&m->ranks, &timing, p50_us, p99_us, error);
  *p50_us -= row->between_us;
  *p99_us -= row->between_us;
  return ok;
}

static bool check(measurement *m, perf_errors *errors, tool_error *error) {
  const perf_case *perf = m->perf;
  int32_t nranks = m->ranks.nranks;
  for (int32_t r = 0; r < nranks; r++) {
    tool_part part = tool_part_of_rank(perf->scatter, perf->tokens, perf->heads, r, nranks);
    if (perf->scatter == BANYAN_SCATTER_ROOT && r != 0) continue;
    size_t bytes = (size_t)part.tokens * (size_t)part.heads * (size_t)perf->head_dim * sizeof(float);
    if (!gpu_read(m->ranks.device, m->host, m->memories[r].out, bytes, error)) return false;
    perf_rows_check(&part, perf->heads, perf->head_dim, m->host, KEY, nranks, ROWS_CHECKED,
                    tool_error_bound_of(perf->wire, m->memories[r].combine), errors);
  }
  return true;
}

static int32_t within(double value, int32_t least, int32_t most) {
  return value < least ? least : value > most ? most : (int32_t)value;
}

static void set_counts(const perf_case *perf, const perf_protocol *protocol, perf_device_row *row) {
  row->iterations = protocol->iterations > 0 ? protocol->iterations : 200;
  /* Few iterations mean that the user wants a quick answer. */
  row->runs = within((16 << 20) / (double)(perf->bytes + 1), 4, within(4 * row->iterations, 4, RUNS_MAX));
}

static bool measure(measurement *m, const perf_protocol *protocol, perf_device_row *row, tool_error *error) {
  banyan_op_info info = {.size = sizeof info};
  double ignored = 0;
  *row = (perf_device_row){.bytes = m->perf->bytes, .rows = rows_of(m->perf)};
  set_counts(m->perf, protocol, row);
  bool ok = begin(m, error);
  if (ok && banyan_op_query(m->memories[0].combine, &info) == BANYAN_OK)
    snprintf(row->algorithm, sizeof row->algorithm, "%s", info.algorithm);
  double between_us = 0;
  ok = ok && (m->between == NULL || time_form(m, BETWEEN, row, protocol->warmup, &between_us, &ignored, error));
  row->between_us = between_us;
  ok = ok && time_form(m, COMBINE, row, protocol->warmup, &row->p50_us, &row->p99_us, error) &&
       (!protocol->check || check(m, &row->errors, error)) &&
       time_form(m, COPY, row, protocol->warmup, &row->copy_us, &ignored, error) &&
       time_form(m, REDUCTIONS, row, protocol->warmup, &row->reductions_us, &ignored, error);
  end(m);
  return ok;
}

bool perf_device_work(const perf_device_settings *settings, const perf_case *cases, int count,
                      const perf_protocol *protocol, bool json, bool *correct, tool_error *error) {
  measurement m = {.perf = NULL};
  perf_device_row *rows = tool_new((size_t)count, sizeof *rows);
  bool ok = device_ranks_open(settings->device, settings->nranks, settings->timeout_ns, &m.ranks, error) &&
            (!settings->between || gpu_between_make(m.ranks.device, settings->nranks, &m.between, error));
  const gpu_facts *facts = ok ? gpu_facts_of(m.ranks.device) : NULL;
  *correct = true;
  if (ok && !json) perf_device_report_header(facts, settings, &cases[0], protocol);
  for (int i = 0; ok && i < count; i++) {
    size_t mark = tool_mark();
    m.perf = &cases[i];
    ok = measure(&m, protocol, &rows[i], error);
    tool_release(mark);
    *correct = *correct && rows[i].errors.wrong == 0;
    if (ok && !json) perf_device_report_row(&rows[i]);
  }
  ok = ok && (!json || perf_device_report_json(facts, settings, cases, rows, count, protocol, error));
  gpu_between_free(m.between);
  device_ranks_close(&m.ranks);
  return ok;
}
