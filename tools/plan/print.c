/* SPDX-License-Identifier: Apache-2.0
 * banyan-plan --print: the steps of one rank, or of all if there are few. */
#include <jansson.h>
#include <string.h>

#include "tools/common/json.h"
#include "tools/common/options.h"
#include "tools/plan/view.h"

enum { CONTINUED = 12 }; /* a step's list of ranks goes on in this column, below its first word */

static void print_text(const plan_view *view, const bny_plan *plan) {
  size_t bytes = bny_plan_print(plan, NULL, 0) + 1;
  char *text = tool_new(bytes, 1);
  bny_plan_print(plan, text, bytes);
  char *rest = text;
  for (char *line = strsep(&rest, "\n"); line != NULL && rest != NULL; line = strsep(&rest, "\n"))
    tool_print_wrapped(view->stream, 0, CONTINUED, line);
}

static json_t *slice_json(const bny_plan *plan, const bny_slice *slice) {
  if (plan->payload->has_rows) {
    return json_pack("{s:i, s:i, s:i, s:i}", "token", slice->token0, "tokens", slice->tokens, "head", slice->head0,
                     "heads", slice->heads);
  }
  return json_pack("{s:I, s:I}", "byte", (json_int_t)slice->byte0, "bytes", (json_int_t)slice->bytes);
}

static json_t *sources_json(const bny_plan *plan, const bny_step *step) {
  json_t *array = json_array();
  for (int32_t i = 0; i < step->count; i++) {
    const bny_source *source = &plan->sources[step->first + i];
    bool own = source->message < 0;
    const bny_message *message = own ? NULL : &plan->messages[source->message];
    json_array_append_new(array, json_pack("{s:i, s:i}", "rank", own ? plan->rank : message->peer, "slot",
                                           own ? source->slot : message->slot));
  }
  return array;
}

static json_t *step_json(const bny_plan *plan, const bny_step *step) {
  static const char *const kinds[] = {"copy", "merge", "send", "wait", "deliver"};
  if (step->kind == BNY_STEP_WAIT) {
    const bny_message *message = &plan->messages[step->message];
    return json_pack("{s:s, s:i, s:i, s:I, s:o}", "step", kinds[step->kind], "rank", message->peer, "slot",
                     message->slot, "bytes", (json_int_t)message->what.bytes, "slice",
                     slice_json(plan, &message->what.slice));
  }
  json_t *o = json_pack("{s:s}", "step", kinds[step->kind]);
  if (step->kind != BNY_STEP_DELIVER)
    tool_json_add(o, json_pack("{s:i, s:I}", "slot", step->slot, "bytes", (json_int_t)plan->slots[step->slot].bytes));
  if (step->kind == BNY_STEP_SEND) {
    json_t *ranks = json_array();
    for (int32_t i = 0; i < step->count; i++) json_array_append_new(ranks, json_integer(plan->peers[step->first + i]));
    json_object_set_new(o, "ranks", ranks);
    return o;
  }
  json_object_set_new(o, "slice", slice_json(plan, &step->slice));
  if (step->kind != BNY_STEP_COPY) json_object_set_new(o, "from", sources_json(plan, step));
  return o;
}

static json_t *plan_json(const bny_plan *plan) {
  json_t *steps = json_array();
  for (int32_t i = 0; i < plan->nsteps; i++) json_array_append_new(steps, step_json(plan, &plan->steps[i]));
  char hash[24];
  snprintf(hash, sizeof hash, "%016llx", (unsigned long long)plan->hash);
  return json_pack("{s:i, s:s, s:s, s:s, s:f, s:i, s:I, s:o}", "rank", plan->rank, "algorithm", plan->algorithm,
                   "reason", plan->reason, "hash", hash, "predicted_us", plan->predicted_ns / 1e3, "slots",
                   plan->nslots, "outbox_bytes", (json_int_t)plan->outbox_bytes, "steps", steps);
}

static bool print_ranks(const plan_view *view, const bny_request *request, int32_t first, int32_t last, json_t *plans,
                        tool_error *error) {
  for (int32_t rank = first; rank <= last; rank++) {
    bny_plan *plan;
    if (bny_plan_make(request, rank, &plan) != BANYAN_OK) return tool_error_set(error, "%s", banyan_last_error());
    if (plans != NULL) {
      json_array_append_new(plans, plan_json(plan));
    } else {
      if (rank > first) fputc('\n', view->stream);
      print_text(view, plan);
    }
    bny_plan_free(plan);
  }
  return true;
}

bool plan_view_print(const plan_view *view, tool_error *error) {
  bny_request request = plan_request_make(view->ranks, view->shape);
  int32_t nranks = view->ranks->nranks;
  bool few = nranks <= PLAN_PRINT_RANKS;
  int32_t first = view->rank >= 0 ? view->rank : 0, last = view->rank >= 0 || !few ? first : nranks - 1;
  json_t *plans = view->json ? json_array() : NULL;
  bool ok = print_ranks(view, &request, first, last, plans, error);
  if (plans != NULL) {
    json_t *o = plan_shape_json(view->ranks, view->shape);
    json_object_set_new(o, "plans", plans);
    bool written = tool_json_write(o, view->stream, error);
    return ok && written;
  }
  if (ok && view->rank < 0 && !few) fprintf(view->stream, "\nOf rank 0 of %d; --rank prints another.\n", nranks);
  return ok;
}
