/* SPDX-License-Identifier: Apache-2.0
 * Prints what the library would choose on this machine, and why. */
#include "tools/topo/topo.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/plan/methods.h"
#include "tools/topo/json.h"

enum { HEADS = 32, HEAD_DIM = 128 };

static char *explain_json(const plan_ranks *ranks, const plan_shape *shape, const plan_methods *methods,
                          tool_error *error) {
  const plan_method *best = plan_methods_chosen(methods);
  json_t *o = plan_shape_json(ranks, shape);
  json_object_set_new(o, "choice", json_string(best->name));
  json_object_set_new(o, "predicted_us", json_real(best->ns / 1e3));
  json_object_set_new(o, "methods", plan_methods_json(ranks, methods));
  return topo_json_text(o, error);
}

static char *explain_text(const topo_view *view, const plan_ranks *ranks, const plan_shape *shape,
                          const plan_methods *methods, tool_error *error) {
  char *text = NULL, what[PLAN_TEXT_BYTES], time[PLAN_NUMBER_BYTES];
  size_t bytes;
  FILE *stream = open_memstream(&text, &bytes);
  if (stream == NULL) {
    tool_error_set(error, "out of memory");
    return NULL;
  }
  const plan_method *best = plan_methods_chosen(methods);
  plan_shape_print(shape, what);
  fprintf(stream, "%s: %d ranks\n%s\n\n", view->title, ranks->nranks, what);
  plan_levels_print(ranks, stream);
  fprintf(stream, "\n%s, %s predicted\n\n", best->name, plan_text_time(best->ns, time));
  plan_methods_print(ranks, methods, view->utf8 ? PLAN_BARS_UTF8 : PLAN_BARS_ASCII, view->columns, stream);
  fprintf(stream, "\nBytes by level are those that the rank sends that sends most. Full bars are off the scale.\n");
  return topo_finish(stream, &text, error);
}

char *topo_explain(const topo_view *view, size_t bytes, bool json, tool_error *error) {
  const plan_shape like = {.collective = BNY_COMBINE, .heads = HEADS, .value_dim = HEAD_DIM, .wire = BANYAN_F32};
  plan_shape shape = plan_shape_resized(&like, bytes);
  plan_ranks ranks;
  plan_methods methods;
  char *text = NULL;
  if (!plan_ranks_of(view->topo, view->levels, view->title, view->nreports > 0, &ranks, error)) return NULL;
  if (plan_methods_weigh(&ranks, &shape, &methods, error))
    text = json ? explain_json(&ranks, &shape, &methods, error) : explain_text(view, &ranks, &shape, &methods, error);
  plan_ranks_release(&ranks);
  return text;
}
