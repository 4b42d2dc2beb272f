/* SPDX-License-Identifier: Apache-2.0
 * Prints the table of sizes: settings, a row for each, and the summary. */
#include "tools/perf/perf.h"

#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/json.h"

static double gigabytes_per_second(const perf_row *row) {
  return row->p50_us > 0 ? (double)row->bytes / row->p50_us / 1e3 : 0;
}

/* Returns the time of the fastest MPI form over that of banyan. */
static double ratio_of(const perf_row *row) {
  double best = INFINITY;
  for (int i = 0; i < row->mpi_count; i++) best = fmin(best, row->mpi_p50_us[i]);
  return row->p50_us > 0 ? best / row->p50_us : 0;
}

typedef struct place {
  char host[64];
  int32_t process, cpu;
} place;

static void print_settings(const perf_case *perf, const perf_protocol *protocol, FILE *stream) {
  fprintf(stream, "# banyan-perf %s: %s, %d ranks, %s\n", banyan_version(), bny_collective_name(perf->collective),
          perf->world->nranks, perf->world->how);
  if (perf->collective == BNY_COMBINE) {
    fprintf(stream, "# head_dim %d, ", perf->combine.value_dim);
    tool_print_combine(stream, &perf->combine);
  }
  fprintf(stream, "# warm-up %d, ", protocol->warmup);
  if (protocol->iterations > 0)
    fprintf(stream, "iterations %d, ", protocol->iterations);
  else
    fprintf(stream, "iterations by size, ");
  fprintf(stream, "results %s; time of an iteration: that of the slowest rank%s\n#\n",
          protocol->check ? "checked" : "not checked", protocol->in_a_row ? ", half of two calls in a row" : "");
}

static void print_columns(FILE *stream) {
  fprintf(stream, "#\n# %10s %9s  %-18s %9s %9s %9s %7s %9s\n", "bytes", "rows", "algorithm", "p50", "p99", "algbw",
          "errors", "worst");
  fprintf(stream, "# %10s %9s  %-18s %9s %9s %9s %7s %9s\n", "(B)", "", "", "(us)", "(us)", "(GB/s)", "", "rel err");
}

bool perf_report_header(const perf_case *perf, const perf_protocol *protocol, FILE *stream, tool_error *error) {
  const tool_world *world = perf->world;
  place mine = {.process = (int32_t)getpid(), .cpu = sched_getcpu()};
  gethostname(mine.host, sizeof mine.host - 1);
  place *all = tool_new((size_t)world->nranks, sizeof *all);
  bool ok = tool_world_gather(world, &mine, sizeof mine, all, error);
  if (ok && world->rank == 0 && stream != NULL) {
    print_settings(perf, protocol, stream);
    for (int32_t r = 0; r < world->nranks; r++) {
      fprintf(stream, "# rank %3d  pid %7d  on %s  cpu %d\n", r, all[r].process, all[r].host, all[r].cpu);
    }
    print_columns(stream);
    fflush(stream);
  }
  return ok;
}

void perf_report_row(const perf_row *row, FILE *stream) {
  fprintf(stream, "  %10zu %9" PRId64 "  %-18s %9.2f %9.2f %9.3f %7" PRId64 " %9.1e\n", row->bytes, row->rows,
          row->algorithm[0] == '\0' ? "-" : row->algorithm, row->p50_us, row->p99_us, gigabytes_per_second(row),
          row->errors.wrong, row->errors.worst);
  for (int i = 0; i < row->mpi_count; i++) {
    fprintf(stream, "  %10zu %9" PRId64 "  %-18s %9.2f  %.2f times banyan's\n", row->bytes, row->rows,
            row->mpi_names[i], row->mpi_p50_us[i], row->p50_us > 0 ? row->mpi_p50_us[i] / row->p50_us : 0);
  }
  fflush(stream);
}

void perf_report_trailer(const perf_row *rows, int count, const perf_protocol *protocol, FILE *stream) {
  int64_t wrong = 0;
  double bandwidth = 0, ratio = INFINITY;
  for (int i = 0; i < count; i++) {
    wrong += rows[i].errors.wrong;
    bandwidth += gigabytes_per_second(&rows[i]) / count;
    ratio = fmin(ratio, ratio_of(&rows[i]));
  }
  if (protocol->check) {
    fprintf(stream, "# Out of bounds values : %" PRId64 " %s\n", wrong, wrong == 0 ? "OK" : "FAILED");
  } else {
    fprintf(stream, "# Out of bounds values : not checked\n");
  }
  fprintf(stream, "# Avg algorithm bandwidth : %.3f GB/s\n", bandwidth);
  for (int i = 0; i < count; i++) {
    if (rows[i].all_between_nodes > 0) {
      fprintf(stream, "# Between nodes, %zu bytes : %" PRIu64 " sent by all ranks, %" PRIu64 " at most by one\n",
              rows[i].bytes, rows[i].all_between_nodes, rows[i].most_between_nodes);
    }
  }
  if (protocol->against_mpi) {
    fprintf(stream, "# Least ratio to the best MPI form : %.2f (above 1: banyan is faster)\n", ratio);
  }
  fprintf(stream, "#\n");
}

static json_t *row_json(const perf_case *perf, const perf_row *row, const perf_protocol *protocol) {
  json_t *o = json_pack("{s:s, s:i, s:I}", "collective", bny_collective_name(perf->collective), "ranks",
                        perf->world->nranks, "bytes", (json_int_t)row->bytes);
  if (perf->collective == BNY_COMBINE) {
    tool_json_add(o, json_pack("{s:I, s:i, s:s, s:s, s:o}", "rows", (json_int_t)row->rows, "head_dim",
                               perf->combine.value_dim, "wire", tool_dtype_name(perf->combine.wire), "scatter",
                               bny_scatter_name(perf->combine.scatter), "max_rel_error",
                               protocol->check ? tool_json_real(row->errors.worst) : json_null()));
  }
  tool_json_add(o, json_pack("{s:s, s:i, s:o, s:o, s:o, s:I, s:I, s:I, s:o}", "algorithm", row->algorithm, "iterations",
                             row->iterations, "banyan_us", tool_json_real(row->p50_us), "banyan_p99_us",
                             tool_json_real(row->p99_us), "algorithm_gbps", tool_json_real(gigabytes_per_second(row)),
                             "bytes_sent_per_rank", (json_int_t)row->bytes_sent, "bytes_between_nodes",
                             (json_int_t)row->all_between_nodes, "bytes_between_nodes_per_rank",
                             (json_int_t)row->most_between_nodes, "errors",
                             protocol->check ? json_integer((json_int_t)row->errors.wrong) : json_null()));
  if (protocol->against_mpi) {
    for (int i = 0; i < row->mpi_count; i++) {
      char key[40];
      snprintf(key, sizeof key, "%s_us", row->mpi_names[i]);
      json_object_set_new(o, key, tool_json_real(row->mpi_p50_us[i]));
    }
    json_object_set_new(o, "ratio_to_best_mpi", tool_json_real(ratio_of(row)));
  }
  return o;
}

bool perf_report_json(const perf_case *perf, const perf_row *rows, int count, const perf_protocol *protocol,
                      tool_error *error) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(list, row_json(perf, &rows[i], protocol));
  return tool_json_write(json_pack("{s:o}", "rows", list), stdout, error);
}
