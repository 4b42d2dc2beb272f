/* SPDX-License-Identifier: Apache-2.0
 * Prints the rows that were measured on a device. */
#include "tools/perf/perf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "tools/common/json.h"

static double over(double time, double base) { return base > 0 ? time / base : NAN; }

void perf_device_report_header(const gpu_facts *facts, const perf_device_settings *settings, const perf_case *perf,
                               const perf_protocol *protocol) {
  printf("# banyan-perf %s: combine, %d ranks, threads of one process on device %d (%s)\n", banyan_version(),
         settings->nranks, facts->ordinal, facts->name);
  printf("# head_dim %d, wire %s, scatter %s, order %s, algorithm %s\n", perf->head_dim, tool_dtype_name(perf->wire),
         bny_scatter_name(perf->scatter), bny_order_name(perf->order),
         perf->algorithm == NULL ? "by predicted cost" : perf->algorithm);
  printf("# replays of a graph of several runs, results %s; copy: of a partial by every rank; reductions: three "
         "instead\n#\n",
         protocol->check ? "checked" : "not checked");
  if (settings->between) {
    printf("# between runs a kernel evicts caches of instructions and data; its time is taken off all times\n#\n");
  }
  printf("# %10s %6s  %-18s %4s %8s %8s %8s %5s %8s %5s %6s\n", "bytes", "rows", "algorithm", "runs", "p50", "p99",
         "copy", "ratio", "3 reds", "ratio", "errors");
  printf("# %10s %6s  %-18s %4s %8s %8s %8s %5s %8s %5s %6s\n", "(B)", "", "", "", "(us)", "(us)", "(us)", "", "(us)",
         "", "");
  fflush(stdout);
}

void perf_device_report_row(const perf_device_row *row) {
  printf("  %10zu %6" PRId64 "  %-18s %4d %8.2f %8.2f %8.2f %5.2f %8.2f %5.2f %6" PRId64 "\n", row->bytes, row->rows,
         row->algorithm, row->runs, row->p50_us, row->p99_us, row->copy_us, over(row->p50_us, row->copy_us),
         row->reductions_us, over(row->reductions_us, row->p50_us), row->errors.wrong);
  fflush(stdout);
}

static json_t *row_json(const perf_device_settings *settings, const perf_case *perf, const perf_device_row *row,
                        const perf_protocol *protocol) {
  json_t *o =
      json_pack("{s:s, s:i, s:I, s:I, s:i, s:s, s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                "collective", "combine", "ranks", settings->nranks, "bytes", (json_int_t)row->bytes, "rows",
                (json_int_t)row->rows, "head_dim", perf->head_dim, "wire", tool_dtype_name(perf->wire), "scatter",
                bny_scatter_name(perf->scatter), "algorithm", row->algorithm, "runs_in_graph", row->runs, "iterations",
                row->iterations, "banyan_us", tool_json_real(row->p50_us), "banyan_p99_us", tool_json_real(row->p99_us),
                "copy_us", tool_json_real(row->copy_us), "times_of_copy",
                tool_json_real(over(row->p50_us, row->copy_us)), "reductions_us", tool_json_real(row->reductions_us),
                "reductions_over_banyan", tool_json_real(over(row->reductions_us, row->p50_us)), "between_us",
                settings->between ? tool_json_real(row->between_us) : json_null(), "errors",
                protocol->check ? json_integer((json_int_t)row->errors.wrong) : json_null(), "max_rel_error",
                protocol->check ? tool_json_real(row->errors.worst) : json_null());
  return o;
}

bool perf_device_report_json(const gpu_facts *facts, const perf_device_settings *settings, const perf_case *cases,
                             const perf_device_row *rows, int count, const perf_protocol *protocol, tool_error *error) {
  json_t *o = json_object(), *list = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(list, row_json(settings, &cases[i], &rows[i], protocol));
  json_object_set_new(o, "device", tool_json_gpu(facts));
  json_object_set_new(o, "rows", list);
  return tool_json_write(o, stdout, error);
}
