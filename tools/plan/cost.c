/* SPDX-License-Identifier: Apache-2.0
 * banyan-plan --cost: prints the levels, all methods for a shape, fastest first, and the choices from 1 KiB to
 * 64 MiB. */
#include <jansson.h>
#include <string.h>

#include "tools/common/json.h"
#include "tools/plan/view.h"

enum { SIZE_FIRST = 10, SIZE_LAST = 26 }; /* powers of two */

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
    if (!plan_methods_weigh(view->ranks, &shape, NULL, &methods, &rejected)) {
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

static bool cost_text(const plan_view *view, const plan_methods *methods, tool_error *error) {
  char shape[PLAN_TEXT_BYTES], text[PLAN_NUMBER_BYTES];
  const plan_method *best = plan_methods_chosen(methods);
  plan_shape_print(view->shape, shape);
  fprintf(view->stream, "%s\n%d rank%s: %s\n\n", shape, view->ranks->nranks, view->ranks->nranks == 1 ? "" : "s",
          view->ranks->title);
  plan_levels_print(view->ranks, view->stream);
  fprintf(view->stream, "\n%s: %s predicted, %s\n\n", best->name, plan_text_time(best->ns, text), best->why);
  plan_methods_print(view->ranks, methods, view->columns, view->stream);
  fprintf(view->stream, "\nBytes are those that the rank sends that sends most, by level.\n");
  if (view->shape->collective == BNY_COMBINE)
    fprintf(view->stream,
            "Times are of communication and merging alone. Ring Attention moves %lld keys and values of %d heads\n"
            "from rank to rank, and may hide some of their way behind attention.\n",
            (long long)view->keys->per_rank, view->keys->kv_heads);
  return view->shape->collective == BNY_BARRIER || sizes_print(view, NULL, error);
}

static bool cost_json(const plan_view *view, const plan_methods *methods, tool_error *error) {
  const plan_method *best = plan_methods_chosen(methods);
  json_t *o = plan_shape_json(view->ranks, view->shape), *sizes = json_array();
  bool ok = view->shape->collective == BNY_BARRIER || sizes_print(view, sizes, error);
  tool_json_add(o, json_pack("{s:s, s:f, s:o, s:o}", "choice", best->name, "predicted_us", best->ns / 1e3, "methods",
                             plan_methods_json(view->ranks, methods), "sizes", sizes));
  if (view->shape->collective == BNY_COMBINE)
    tool_json_add(o, json_pack("{s:I, s:i}", "keys_per_rank", (json_int_t)view->keys->per_rank, "kv_heads",
                               view->keys->kv_heads));
  bool written = tool_json_write(o, view->stream, error);
  return ok && written;
}

bool plan_view_cost(const plan_view *view, tool_error *error) {
  plan_methods methods;
  return plan_methods_weigh(view->ranks, view->shape, view->keys, &methods, error) &&
         (view->json ? cost_json : cost_text)(view, &methods, error);
}
