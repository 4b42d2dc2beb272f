/* SPDX-License-Identifier: Apache-2.0
 * banyan-plan --compare: all methods, fastest first. */
#include <jansson.h>

#include "tools/common/json.h"
#include "tools/plan/view.h"

bool plan_view_compare(const plan_view *view, tool_error *error) {
  plan_methods methods;
  char shape[PLAN_TEXT_BYTES];
  bool combine = view->shape->collective == BNY_COMBINE;
  if (!plan_methods_compare(view->ranks, view->shape, view->keys, &methods, error)) return false;
  if (view->json) {
    json_t *o = plan_shape_json(view->ranks, view->shape);
    if (combine) {
      json_object_set_new(o, "keys_per_rank", json_integer(view->keys->per_rank));
      json_object_set_new(o, "kv_heads", json_integer(view->keys->kv_heads));
    }
    json_object_set_new(o, "methods", plan_methods_json(view->ranks, &methods));
    return tool_json_write(o, view->stream, error);
  }
  plan_shape_print(view->shape, shape);
  fprintf(view->stream, "%s\n%d rank%s: %s\n", shape, view->ranks->nranks, view->ranks->nranks == 1 ? "" : "s",
          view->ranks->title);
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
