/* SPDX-License-Identifier: Apache-2.0
 * Prints results as text or as JSON, and decides whether they are correct. */
#include "tools/decode/decode.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/json.h"
#include "tools/common/options.h"

/* ---- for people -------------------------------------------------------------------------------------------------- */

static void print_layers(FILE *stream, const decode_report *report) {
  const decode_problem *problem = report->problem;
  fprintf(stream, "%-10s", "input");
  if (report->input == NULL) {
    fprintf(stream, "random values from seed %" PRIu64 "\n", problem->seed);
    return;
  }
  fprintf(stream, "%s, layer%s", report->input, problem->layers == 1 ? "" : "s");
  for (int32_t i = 0; i < problem->layers && i < 12; i++)
    fprintf(stream, "%s %d", i > 0 ? "," : "", problem->layer_numbers[i]);
  fprintf(stream, "%s\n", problem->layers > 12 ? ", ..." : "");
}

void report_begin(const decode_report *report, FILE *stream) {
  const decode_problem *problem = report->problem;
  char text[2048];
  fprintf(stream, "banyan %s, banyan-decode: attention of one new token per sequence over a sharded KV cache\n",
          banyan_version());
  fprintf(stream, "%-10s%d, %s\n", "ranks", report->world->nranks, report->world->how);
  banyan_comm_describe(report->world->comm, text, sizeof text);
  fprintf(stream, "%-10s", "found");
  tool_print_wrapped(stream, 10, 10, text);
  print_layers(stream, report);
  fprintf(stream, "%-10s%d sequence%s of %s%d keys, %d heads on %d KV heads, head_dim %d, kept as %s,\n%-10sscale %g\n",
          "shape", problem->batch, problem->batch == 1 ? "" : "s", problem->batch == 1 ? "" : "up to ", problem->tokens,
          problem->heads, problem->kv_heads, problem->head_dim, tool_dtype_name(problem->dtype), "",
          (double)problem->scale);
  int32_t first, most, least;
  banyan_split(problem->tokens, report->world->nranks, 0, &first, &most);
  banyan_split(problem->tokens, report->world->nranks, report->world->nranks - 1, &first, &least);
  fprintf(stream, most == least ? "%-10s%d keys on each rank\n" : "%-10s%d or %d keys on each rank\n", "shards", most,
          least);
  fprintf(stream, "%-10s", "combine");
  tool_print_combine(stream, &report->settings->combine);
  fflush(stream);
}

static void print_bytes(FILE *stream, uint64_t bytes) {
  if (bytes < 10000) {
    fprintf(stream, " %6" PRIu64 " B  ", bytes);
  } else {
    bool large = bytes >= 10000000;
    fprintf(stream, " %6.1f %s", (double)bytes / (large ? 0x1p20 : 0x1p10), large ? "MiB" : "KiB");
  }
}

static void print_verdict(const decode_report *report, FILE *stream) {
  double worst = 0, bound = 0;
  for (int i = 0; i < report->count; i++) {
    const decode_result *r = &report->results[i];
    if (!r->verified) {
      fprintf(stream, "NOT VERIFIED: %s: relative error %.1e (bound %.1e)%s%s\n", r->method->name, r->max_rel_error,
              r->rel_error_bound, r->ranks_equal || !r->method->same_bits ? "" : ", ranks differ in bits",
              r->runs_equal ? "" : ", runs differ in bits");
    }
    worst = fmax(worst, r->beyond);
    bound = fmax(bound, r->rel_error_bound);
  }
  if (!report_verified(report)) return;
  const char *separator = "all ranks bitwise equal: ";
  for (int i = 0; i < report->count && report->world->nranks > 1; i++) {
    const decode_result *r = &report->results[i];
    if (r->ranks_comparable && r->method->same_bits) { /* verified, so its bits were compared */
      fprintf(stream, "%s%s", separator, r->method->name);
      separator = ", ";
    }
  }
  fprintf(stream, "%sverified: worst relative error%s %.1e (bound %.1e), repeated runs bitwise equal\n",
          separator[0] == ',' ? "\n" : "", report->settings->epsilon > 0 ? " beyond the certificate" : "", worst,
          bound);
}

/* Prints the library's reason for its choice, one line per algorithm. */
static void print_reason(const char *reason, FILE *stream) {
  enum { COLUMN = 20 };
  fprintf(stream, "\n%-*s%s\n", COLUMN, "algorithm", "predicted");
  while (*reason != '\0') {
    size_t length = (size_t)(strstr(reason, "; ") == NULL ? strlen(reason) : (size_t)(strstr(reason, "; ") - reason));
    char row[512];
    snprintf(row, sizeof row, "%.*s", (int)length, reason);
    size_t name = strcspn(row, " ");
    int column = fprintf(stream, "%-*.*s", COLUMN, (int)name, row);
    tool_print_wrapped(stream, column, COLUMN, row + name + strspn(row + name, " "));
    reason += length;
    reason += strspn(reason, "; ");
  }
}

static bool any_ring(const decode_report *report) {
  for (int i = 0; i < report->count; i++) {
    if (!report->results[i].method->same_bits) return true;
  }
  return false;
}

void report_results(const decode_report *report, FILE *stream) {
  fprintf(stream, "\n%-10s %-18s %8s %8s %8s %8s %8s %10s %10s\n", "", "", "worst", "latency", "latency", "of it",
          "of it", "sent per", "memory per");
  fprintf(stream, "%-10s %-18s %8s %8s %8s %8s %8s %10s %10s\n", "method", "algorithm", "rel err", "p50 us", "p99 us",
          "local", "combine", "rank", "rank");
  for (int i = 0; i < report->count; i++) {
    const decode_result *r = &report->results[i];
    fprintf(stream, "%-10s %-18s %8.1e %8.1f %8.1f", r->method->name,
            r->facts.algorithm[0] == '\0' ? "-" : r->facts.algorithm, r->max_rel_error, r->latency_p50_us,
            r->latency_p99_us);
    if (r->method->is_one)
      fprintf(stream, " %8s %8s", "-", "-");
    else
      fprintf(stream, " %8.1f %8.1f", r->local_p50_us, r->combine_p50_us);
    print_bytes(stream, r->facts.bytes_sent);
    print_bytes(stream, r->facts.extra_bytes);
    fputc('\n', stream);
  }
  fprintf(stream,
          "\nTimes of one layer over %d runs; the slowest rank counts. Local is attention, combine the rest.\n"
          "Errors are against attention in double precision over the same keys and values.\n"
          "Memory is that beyond inputs and output.\n",
          report->repeat * report->problem->layers);
  for (int i = 0; i < report->count; i++) {
    const decode_result *r = &report->results[i];
    if (r->method == &decode_method_overlap && r->facts.slices > 1)
      fprintf(stream, "overlap ran in %d slices: one is combined while the next is attended to.\n", r->facts.slices);
    else if (r->method == &decode_method_overlap)
      fprintf(stream, "overlap ran in one piece, because slices would not pay or could not run.\n");
  }
  for (int i = 0; i < report->count && report->settings->epsilon > 0; i++) {
    const decode_result *r = &report->results[i];
    fprintf(stream, "%s read up to %.1f %% of the pages of a rank and layer; rows are certified within %.1e.\n",
            r->method->name, 100 * r->pages_read, r->certified);
  }
  if (any_ring(report) && report->world->nranks > 1) {
    fprintf(stream,
            "ring sends keys and values. Each rank merges in its own order, so ranks differ in the last bits.\n");
  }
  for (int i = 0; i < report->count; i++) {
    const decode_result *r = &report->results[i];
    if (r->scatter != report->settings->combine.scatter)
      fprintf(stream, "%s has no scattered form: it gave all rows to every rank.\n", r->method->name);
  }
  for (int i = 0; i < report->count; i++) {
    const decode_result *r = &report->results[i];
    if (r->method == &decode_method_tree && r->facts.reason[0] != '\0') print_reason(r->facts.reason, stream);
  }
  fputc('\n', stream);
  print_verdict(report, stream);
}

bool report_verified(const decode_report *report) {
  for (int i = 0; i < report->count; i++) {
    if (!report->results[i].verified) return false;
  }
  return true;
}

/* ---- for programs ------------------------------------------------------------------------------------------------ */

static json_t *text_or_null(const char *text) { return text == NULL ? json_null() : json_string(text); }

static json_t *result_json(const decode_result *r) {
  json_t *latency =
      json_pack("{s:o, s:o}", "p50", tool_json_real(r->latency_p50_us), "p99", tool_json_real(r->latency_p99_us));
  json_t *o =
      json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:s, s:o, s:b, s:b, s:s}", "method",
                r->method->name, "algorithm", text_or_null(r->facts.algorithm[0] == '\0' ? NULL : r->facts.algorithm),
                "max_abs_error", tool_json_real(r->max_abs_error), "max_rel_error", tool_json_real(r->max_rel_error),
                "latency_us", latency, "local_us", r->method->is_one ? json_null() : tool_json_real(r->local_p50_us),
                "combine_us", r->method->is_one ? json_null() : tool_json_real(r->combine_p50_us), "slices",
                r->method->is_one ? json_integer(r->facts.slices) : json_null(), "bytes_sent_per_rank",
                (json_int_t)r->facts.bytes_sent, "peak_extra_bytes_per_rank", (json_int_t)r->facts.extra_bytes,
                "arena_bytes_per_rank", (json_int_t)r->facts.arena_bytes, "rel_error_bound",
                tool_json_real(r->rel_error_bound), "scatter", bny_scatter_name(r->scatter), "rank_bits_equal",
                r->ranks_comparable ? json_boolean(r->ranks_equal) : json_null(), "run_bits_equal", r->runs_equal,
                "verified", r->verified, "reason", r->facts.reason);
  if (r->pages_read > 0)
    tool_json_add(o, json_pack("{s:o, s:o}", "pages_read", tool_json_real(r->pages_read), "certified_error",
                               tool_json_real(r->certified)));
  return o;
}

bool report_json(const decode_report *report, FILE *stream, tool_error *error) {
  const decode_problem *problem = report->problem;
  json_t *results = json_array(), *shards = json_array(), *layers = json_array();
  json_t *o = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:o}", "ranks", report->world->nranks,
                        "batch", problem->batch, "tokens", problem->tokens, "heads", problem->heads, "kv_heads",
                        problem->kv_heads, "head_dim", problem->head_dim, "dtype", tool_dtype_name(problem->dtype),
                        "wire", tool_dtype_name(report->settings->combine.wire), "scatter",
                        bny_scatter_name(report->settings->combine.scatter), "order",
                        bny_order_name(report->settings->combine.order), "input", text_or_null(report->input));
  for (int32_t i = 0; i < problem->layers; i++) json_array_append_new(layers, json_integer(problem->layer_numbers[i]));
  for (int32_t r = 0; r < report->world->nranks; r++) {
    int32_t first, number;
    banyan_split(problem->tokens, report->world->nranks, r, &first, &number);
    json_array_append_new(shards, json_integer(number));
  }
  for (int i = 0; i < report->count; i++) json_array_append_new(results, result_json(&report->results[i]));
  tool_json_add(o, json_pack("{s:o, s:o, s:i, s:b, s:o}", "layers", layers, "tokens_per_rank", shards, "repeat",
                             report->repeat, "verified", report_verified(report), "results", results));
  return tool_json_write(o, stream, error);
}
