/* SPDX-License-Identifier: Apache-2.0
 * Times combines of ranks on one device, and prints a row for each size. */
#include "tools/perf/perf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/common/device_ranks.h"
#include "tools/common/json.h"

enum { RUNS_MAX = 32, KEY = 1 };

/* Each form is measured as one or more operations of every rank, or as a copy. */
typedef enum form { COMBINE, COPY, REDUCTIONS } form;

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
  rank_memory memories[DEVICE_RANKS_MAX];
  float *host; /* as large as a partial */
} measurement;

/* ---- memory and operations --------------------------------------------------------------------------------------- */

static int64_t rows_of(const perf_case *perf) { return (int64_t)perf->combine.tokens * perf->combine.heads; }

static bool take(measurement *m, rank_memory *at, tool_error *error) {
  size_t rows = (size_t)rows_of(m->perf);
  gpu *device = m->ranks.device;
  bool ok = gpu_alloc(device, m->perf->bytes, (void **)(void *)&at->values, error) &&
            gpu_alloc(device, m->perf->bytes, (void **)(void *)&at->out, error) &&
            gpu_alloc(device, rows * sizeof(float), (void **)(void *)&at->spare_max, error) &&
            gpu_alloc(device, rows * sizeof(float), (void **)(void *)&at->spare_sum, error);
  if (ok) {
    at->max = at->values + rows * (size_t)m->perf->combine.value_dim;
    at->sum = at->max + rows;
  }
  return ok;
}

static bool fill(measurement *m, int32_t rank, tool_error *error) {
  int64_t rows = rows_of(m->perf);
  int32_t dim = m->perf->combine.value_dim;
  perf_rows data = {rows, dim, m->host + rows * dim, m->host + rows * dim + rows, m->host, 1, dim};
  perf_rows_fill(&data, KEY, rank);
  return gpu_write(m->ranks.device, m->memories[rank].values, m->host, m->perf->bytes, error);
}

/* The first two all-reduces of the paper are combines of statistics only, and the third is a combine of all values. A
 * merge of partials takes the maximum and sums values that are scaled to it, so no work remains in between. */
static banyan_status plan(void *argument, int32_t rank) {
  measurement *m = argument;
  rank_memory *at = &m->memories[rank];
  banyan_comm *comm = m->ranks.ranks[rank].comm;
  banyan_combine_desc desc = m->perf->combine;
  int32_t heads = desc.heads, dim = desc.value_dim, nranks = m->ranks.nranks;
  banyan_partial in = tool_partial_max_sum(at->values, at->max, at->sum, heads, dim), out;
  banyan_partial statistics = tool_partial_max_sum(NULL, at->max, at->sum, heads, 0);
  banyan_partial spare = tool_partial_max_sum(NULL, at->spare_max, at->spare_sum, heads, 0);
  desc.stream = m->ranks.streams[rank];
  bool receives = tool_partial_result(&desc, rank, nranks, at->out, &out);
  banyan_status status = banyan_combine_init(comm, &desc, &in, receives ? &out : NULL, &at->combine);
  desc.scatter = BANYAN_SCATTER_NONE;
  tool_partial_result(&desc, rank, nranks, at->out, &out);
  for (int i = 0; i < REDUCTION_COUNT && status == BANYAN_OK; i++) {
    bool last = i == NUMERATORS;
    desc.value_dim = last ? dim : 0;
    status = banyan_combine_init(comm, &desc, last ? &in : &statistics, last ? &out : &spare, &at->reductions[i]);
  }
  return status;
}

static bool begin(measurement *m, tool_error *error) {
  memset(m->memories, 0, sizeof m->memories);
  m->host = tool_take(m->perf->bytes);
  bool ok = true;
  for (int32_t r = 0; ok && r < m->ranks.nranks; r++) ok = take(m, &m->memories[r], error) && fill(m, r, error);
  return ok && device_ranks_plan(&m->ranks, plan, m, error);
}

static void end(measurement *m) {
  for (int32_t r = 0; r < m->ranks.nranks; r++) {
    rank_memory *at = &m->memories[r];
    banyan_op_free(at->combine);
    for (int i = 0; i < REDUCTION_COUNT; i++) banyan_op_free(at->reductions[i]);
    gpu_free(m->ranks.device, at->values);
    gpu_free(m->ranks.device, at->out);
    gpu_free(m->ranks.device, at->spare_max);
    gpu_free(m->ranks.device, at->spare_sum);
  }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static bool put(void *argument, int form, int32_t run, int32_t rank, tool_error *error) {
  measurement *m = argument;
  (void)run;
  rank_memory *at = &m->memories[rank];
  switch (form) {
  case COPY: return gpu_copy(m->ranks.device, at->out, at->values, m->perf->bytes, m->ranks.streams[rank], error);
  case COMBINE: return device_time_start(at->combine, error);
  default:
    return device_time_start(at->reductions[MAXIMA], error) && device_time_start(at->reductions[DENOMINATORS], error) &&
           device_time_start(at->reductions[NUMERATORS], error);
  }
}

static bool time_form(measurement *m, form form, const perf_device_row *row, int32_t warmup, double *p50_us,
                      double *p99_us, tool_error *error) {
  device_timing timing = {
      .put = put, .argument = m, .form = form, .runs = row->runs, .warmup = warmup, .iterations = row->iterations};
  return device_time(&m->ranks, &timing, p50_us, p99_us, error);
}

static bool check(measurement *m, perf_errors *errors, tool_error *error) {
  const perf_case *perf = m->perf;
  int32_t nranks = m->ranks.nranks;
  for (int32_t r = 0; r < nranks; r++) {
    tool_part part = tool_part_of_rank(&perf->combine, r, nranks);
    if (perf->combine.scatter == BANYAN_SCATTER_ROOT && r != 0) continue;
    size_t bytes = (size_t)part.tokens * (size_t)part.heads * (size_t)perf->combine.value_dim * sizeof(float);
    if (!gpu_read(m->ranks.device, m->host, m->memories[r].out, bytes, error)) return false;
    perf_rows_check(perf, &part, m->host, KEY, nranks, tool_error_bound_of(perf->combine.wire, m->memories[r].combine),
                    errors);
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
  ok = ok && time_form(m, COMBINE, row, protocol->warmup, &row->p50_us, &row->p99_us, error) &&
       (!protocol->check || check(m, &row->errors, error)) &&
       time_form(m, COPY, row, protocol->warmup, &row->copy_us, &ignored, error) &&
       time_form(m, REDUCTIONS, row, protocol->warmup, &row->reductions_us, &ignored, error);
  end(m);
  return ok;
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

static double over(double time, double base) { return base > 0 ? time / base : NAN; }

static void report_header(const gpu_facts *facts, const perf_device_settings *settings, const perf_case *perf,
                          const perf_protocol *protocol) {
  printf("# banyan-perf %s: combine, %d ranks, threads of one process on device %d (%s)\n", banyan_version(),
         settings->nranks, facts->ordinal, facts->name);
  printf("# head_dim %d, ", perf->combine.value_dim);
  tool_print_combine(stdout, &perf->combine);
  printf("# replays of a graph of several runs, results %s; copy: of a partial by every rank; reductions: three "
         "instead\n#\n",
         protocol->check ? "checked" : "not checked");
  printf("# %10s %6s  %-18s %4s %8s %8s %8s %5s %8s %5s %6s\n", "bytes", "rows", "algorithm", "runs", "p50", "p99",
         "copy", "ratio", "3 reds", "ratio", "errors");
  printf("# %10s %6s  %-18s %4s %8s %8s %8s %5s %8s %5s %6s\n", "(B)", "", "", "", "(us)", "(us)", "(us)", "", "(us)",
         "", "");
  fflush(stdout);
}

static void report_row(const perf_device_row *row) {
  printf("  %10zu %6" PRId64 "  %-18s %4d %8.2f %8.2f %8.2f %5.2f %8.2f %5.2f %6" PRId64 "\n", row->bytes, row->rows,
         row->algorithm, row->runs, row->p50_us, row->p99_us, row->copy_us, over(row->p50_us, row->copy_us),
         row->reductions_us, over(row->reductions_us, row->p50_us), row->errors.wrong);
  fflush(stdout);
}

static json_t *row_json(const perf_device_settings *settings, const perf_case *perf, const perf_device_row *row,
                        const perf_protocol *protocol) {
  return json_pack("{s:s, s:i, s:I, s:I, s:i, s:s, s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                   "collective", "combine", "ranks", settings->nranks, "bytes", (json_int_t)row->bytes, "rows",
                   (json_int_t)row->rows, "head_dim", perf->combine.value_dim, "wire",
                   tool_dtype_name(perf->combine.wire), "scatter", bny_scatter_name(perf->combine.scatter), "algorithm",
                   row->algorithm, "runs_in_graph", row->runs, "iterations", row->iterations, "banyan_us",
                   tool_json_real(row->p50_us), "banyan_p99_us", tool_json_real(row->p99_us), "copy_us",
                   tool_json_real(row->copy_us), "times_of_copy", tool_json_real(over(row->p50_us, row->copy_us)),
                   "reductions_us", tool_json_real(row->reductions_us), "reductions_over_banyan",
                   tool_json_real(over(row->reductions_us, row->p50_us)), "errors",
                   protocol->check ? json_integer((json_int_t)row->errors.wrong) : json_null(), "max_rel_error",
                   protocol->check ? tool_json_real(row->errors.worst) : json_null());
}

static bool report_json(const gpu_facts *facts, const perf_device_settings *settings, const perf_case *cases,
                        const perf_device_row *rows, int count, const perf_protocol *protocol, tool_error *error) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(list, row_json(settings, &cases[i], &rows[i], protocol));
  return tool_json_write(json_pack("{s:o, s:o}", "device", tool_json_gpu(facts), "rows", list), stdout, error);
}

bool perf_device_work(const perf_device_settings *settings, const perf_case *cases, int count,
                      const perf_protocol *protocol, bool json, bool *correct, tool_error *error) {
  measurement m = {.perf = NULL};
  perf_device_row *rows = tool_new((size_t)count, sizeof *rows);
  bool ok = device_ranks_open(settings->device, settings->nranks, settings->timeout_ns, &m.ranks, error);
  const gpu_facts *facts = ok ? gpu_facts_of(m.ranks.device) : NULL;
  *correct = true;
  if (ok && !json) report_header(facts, settings, &cases[0], protocol);
  for (int i = 0; ok && i < count; i++) {
    size_t mark = tool_mark();
    m.perf = &cases[i];
    ok = measure(&m, protocol, &rows[i], error);
    tool_release(mark);
    *correct = *correct && rows[i].errors.wrong == 0;
    if (ok && !json) report_row(&rows[i]);
  }
  ok = ok && (!json || report_json(facts, settings, cases, rows, count, protocol, error));
  device_ranks_close(&m.ranks);
  return ok;
}
