/* SPDX-License-Identifier: Apache-2.0
 * banyan-plan --cost: prints the cost of the plan for a shape by level, and the choices from 1 KiB to 64 MiB.
 * --compare prints all methods, fastest first. */
#include <jansson.h>
#include <string.h>

#include "tools/common/json.h"
#include "tools/plan/view.h"

enum { SIZE_FIRST = 10, SIZE_LAST = 26 }; /* powers of two */

static void heading_print(const plan_view *view) {
  char shape[PLAN_TEXT_BYTES];
  plan_shape_print(view->shape, shape);
  fprintf(view->stream, "%s\n%d rank%s: %s\n", shape, view->ranks->nranks, view->ranks->nranks == 1 ? "" : "s",
          view->ranks->title);
}

static double work_ns(const plan_view *view, const plan_counts *counts) {
  return (double)counts->work_bytes * view->ranks->levels->levels[0].link.gamma_ns_per_byte;
}

static void counts_print(const plan_view *view, const plan_counts *counts) {
  const bny_levels *levels = view->ranks->levels;
  char text[PLAN_NUMBER_BYTES];
  double all = work_ns(view, counts);
  fprintf(view->stream, "\n%-10s %-9s %7s %9s %11s %11s %11s\n", "level", "links", "rounds", "messages", "sent",
          "received", "time");
  for (int32_t k = 0; k < levels->nlevels; k++) {
    const plan_level_count *count = &counts->levels[k];
    double ns = plan_count_ns(&levels->levels[k].link, count);
    all += ns;
    fprintf(view->stream, "%-10s %-9s %7lld %9lld", levels->levels[k].name, plan_ranks_link(view->ranks, k),
            (long long)count->rounds, (long long)count->messages);
    fprintf(view->stream, " %11s", plan_text_bytes((double)count->bytes_sent, text));
    fprintf(view->stream, " %11s", plan_text_bytes((double)count->bytes_received, text));
    fprintf(view->stream, " %11s\n", plan_text_time(ns, text));
  }
  fprintf(view->stream, "%-10s %-9s %7s %9s %11s", "merging", "-", "", "", "");
  fprintf(view->stream, " %11s", plan_text_bytes((double)counts->work_bytes, text));
  fprintf(view->stream, " %11s\n", plan_text_time(work_ns(view, counts), text));
  fprintf(view->stream, "%-10s %62s\n", "together", plan_text_time(all, text));
  if (counts->nranks < view->ranks->nranks) {
    fprintf(view->stream,
            "Counted in the plans of %d ranks, spread over all %d: the most of any, each figure for itself.\n",
            counts->nranks, view->ranks->nranks);
  } else {
    fprintf(view->stream, "Counted in the plans: the most of any rank, each figure for itself.\n");
  }
}

static json_t *counts_json(const plan_view *view, const plan_counts *counts) {
  const bny_levels *levels = view->ranks->levels;
  json_t *array = json_array();
  for (int32_t k = 0; k < levels->nlevels; k++) {
    const plan_level_count *count = &counts->levels[k];
    json_array_append_new(
        array, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:f}", "level", levels->levels[k].name, "links",
                         plan_ranks_link(view->ranks, k), "rounds", (json_int_t)count->rounds, "messages",
                         (json_int_t)count->messages, "bytes_sent", (json_int_t)count->bytes_sent, "bytes_received",
                         (json_int_t)count->bytes_received, "us", plan_count_ns(&levels->levels[k].link, count) / 1e3));
  }
  return json_pack("{s:i, s:I, s:f, s:o}", "ranks_counted", counts->nranks, "merged_bytes",
                   (json_int_t)counts->work_bytes, "merging_us", work_ns(view, counts) / 1e3, "levels", array);
}

/* Prints a row for each power of two: the choice, its time, what it sends over the outermost level, and the
 * runner-up. */
static bool sizes_print(const plan_view *view, json_t *array, tool_error *error) {
  const bny_levels *levels = view->ranks->levels;
  int32_t last = levels->nlevels - 1;
  char text[PLAN_NUMBER_BYTES];
  if (array == NULL) {
    fprintf(view->stream, "\n%9s  %-19s %11s %12s %12s  %s\n", "per rank", "choice", "predicted", "sent by one",
            last > 0 ? levels->levels[last].name : "", "next");
  }
  for (int power = SIZE_FIRST; power <= SIZE_LAST; power++) {
    plan_methods methods;
    plan_shape shape = plan_shape_resized(view->shape, (size_t)1 << power);
    tool_error rejected = {.text = ""};
    if (!plan_methods_weigh(view->ranks, &shape, &methods, &rejected)) {
      if (array == NULL)
        fprintf(view->stream, "%9s  %s\n", plan_text_bytes((double)((size_t)1 << power), text), rejected.text);
      else
        json_array_append_new(array,
                              json_pack("{s:I, s:s}", "bytes", (json_int_t)1 << power, "rejected", rejected.text));
      continue;
    }
    const plan_method *best = plan_methods_chosen(&methods), *next = NULL;
    for (int32_t i = 0; i < methods.count && next == NULL; i++)
      next = methods.methods[i].serves && &methods.methods[i] != best ? &methods.methods[i] : NULL;
    if (array != NULL) {
      json_array_append_new(array, json_pack("{s:I, s:s, s:f, s:o}", "bytes", (json_int_t)1 << power, "choice",
                                             best->name, "predicted_us", best->ns / 1e3, "methods",
                                             plan_methods_json(view->ranks, &methods)));
      continue;
    }
    fprintf(view->stream, "%9s  %-19s", plan_text_bytes((double)((size_t)1 << power), text), best->name);
    fprintf(view->stream, " %11s", plan_text_time(best->ns, text));
    fprintf(view->stream, " %12s", plan_text_bytes(best->bytes_sent, text));
    fprintf(view->stream, " %12s", last > 0 ? plan_text_bytes(best->level_bytes[last], text) : "");
    if (next != NULL) fprintf(view->stream, "  %s, %.2f times", next->name, next->ns / best->ns);
    fputc('\n', view->stream);
  }
  return tool_flush(view->stream) || tool_error_stdout(error);
}

static bool cost_text(const plan_view *view, const plan_methods *methods, const plan_counts *counts,
                      tool_error *error) {
  char text[PLAN_NUMBER_BYTES];
  const plan_method *best = plan_methods_chosen(methods);
  heading_print(view);
  fputc('\n', view->stream);
  plan_levels_print(view->ranks, view->stream);
  fprintf(view->stream, "\n%s: %s predicted, %s\n\n", best->name, plan_text_time(best->ns, text), best->why);
  plan_methods_print(view->ranks, methods, view->columns, view->stream);
  counts_print(view, counts);
  return view->shape->collective == BNY_BARRIER || sizes_print(view, NULL, error);
}

static bool cost_json(const plan_view *view, const plan_methods *methods, const plan_counts *counts,
                      tool_error *error) {
  const plan_method *best = plan_methods_chosen(methods);
  json_t *o = plan_shape_json(view->ranks, view->shape), *sizes = json_array();
  bool ok = view->shape->collective == BNY_BARRIER || sizes_print(view, sizes, error);
  tool_json_add(o, json_pack("{s:s, s:f, s:o, s:o, s:o}", "choice", best->name, "predicted_us", best->ns / 1e3,
                             "methods", plan_methods_json(view->ranks, methods), "counted", counts_json(view, counts),
                             "sizes", sizes));
  bool written = tool_json_write(o, view->stream, error);
  return ok && written;
}

bool plan_view_cost(const plan_view *view, tool_error *error) {
  plan_methods methods;
  plan_counts counts;
  bny_request request = plan_request_make(view->ranks, view->shape);
  return plan_methods_weigh(view->ranks, view->shape, &methods, error) &&
         plan_counts_make(view->ranks, &request, &counts, error) &&
         (view->json ? cost_json : cost_text)(view, &methods, &counts, error);
}

bool plan_view_compare(const plan_view *view, tool_error *error) {
  plan_methods methods;
  bool combine = view->shape->collective == BNY_COMBINE;
  if (!plan_methods_compare(view->ranks, view->shape, view->keys, &methods, error)) return false;
  if (view->json) {
    json_t *o = plan_shape_json(view->ranks, view->shape);
    if (combine)
      tool_json_add(o, json_pack("{s:I, s:i}", "keys_per_rank", (json_int_t)view->keys->per_rank, "kv_heads",
                                 view->keys->kv_heads));
    json_object_set_new(o, "methods", plan_methods_json(view->ranks, &methods));
    return tool_json_write(o, view->stream, error);
  }
  heading_print(view);
  if (combine) {
    fprintf(view->stream, "cache of each rank: %lld keys and values of %d heads\n", (long long)view->keys->per_rank,
            view->keys->kv_heads);
  }
  fputc('\n', view->stream);
  plan_methods_print(view->ranks, &methods, view->columns, view->stream);
  fprintf(view->stream, "\nBytes are those that the rank sends that sends most, by level.\n");
  if (combine) {
    fprintf(view->stream, "Times are of communication and merging alone. In Ring Attention each rank attends to all "
                          "keys,\nand may hide some of their way behind that.\n");
  }
  return tool_flush(view->stream) || tool_error_stdout(error);
}
