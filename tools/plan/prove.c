/* SPDX-License-Identifier: Apache-2.0
 * banyan-plan --prove: makes and proves the plans of all ranks together. */
#include <jansson.h>
#include <string.h>
#include <sys/resource.h>

#include "tools/common/json.h"
#include "tools/plan/view.h"
#include "tools/prove/prove.h"

typedef struct proof {
  bny_request request;
  bny_plan **plans;
  char algorithm[64];
  int64_t steps, messages, bytes;
  double choose_s, make_s, prove_s;
  int64_t memory_bytes; /* peak memory of the process */
} proof;

/* Approximate memory of plans and proof per message: an entry with a slice and its source, two steps, an arrival. */
enum { BYTES_PER_MESSAGE = 300, BYTES_PER_RANK = 4096 };

/* Rejects in advance a proof that would need more memory than --memory. */
static bool check_memory(const plan_view *view, proof *p, tool_error *error) {
  const bny_request *request = &p->request;
  bny_candidate candidates[BNY_CANDIDATES_MAX];
  char *algorithm = p->algorithm;
  int64_t start = tool_now_ns();
  int32_t count = bny_algorithm_candidates(request, candidates);
  p->choose_s = (double)(tool_now_ns() - start) / 1e9;
  for (int32_t i = 0; i < count; i++) {
    if (!candidates[i].chosen) continue;
    size_t length = 0;
    bny_algorithm_print(candidates[i].algorithm, algorithm, sizeof p->algorithm, &length);
    double each = BYTES_PER_RANK + candidates[i].estimate.messages * BYTES_PER_MESSAGE;
    double all = each * request->nranks;
    if (all > (double)view->memory_most) {
      char need[PLAN_NUMBER_BYTES], most[PLAN_NUMBER_BYTES];
      return tool_error_set(error, "plans of %d ranks by %s have %.0f messages each: about %s, more than --memory %s",
                            request->nranks, algorithm, candidates[i].estimate.messages, plan_text_bytes(all, need),
                            plan_text_bytes((double)view->memory_most, most));
    }
  }
  return true;
}

static bool plans_make(proof *p, tool_error *error) {
  int64_t start = tool_now_ns();
  p->plans = tool_new((size_t)p->request.nranks, sizeof(bny_plan *));
  for (int32_t rank = 0; rank < p->request.nranks; rank++) {
    if (bny_plan_make_like(&p->request, p->plans[0], rank, &p->plans[rank]) != BANYAN_OK)
      return tool_error_set(error, "rank %d: %s", rank, banyan_last_error());
    const bny_plan *plan = p->plans[rank];
    p->steps += plan->nsteps;
    p->messages += plan->nmessages;
    for (int32_t i = 0; i < plan->nmessages; i++) p->bytes += (int64_t)plan->messages[i].what.bytes;
  }
  p->make_s = (double)(tool_now_ns() - start) / 1e9;
  return true;
}

static bool plans_prove(proof *p, tool_error *error) {
  int64_t start = tool_now_ns();
  banyan_status status = bny_plan_prove(&p->request, (const bny_plan *const *)p->plans);
  p->prove_s = (double)(tool_now_ns() - start) / 1e9;
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) == 0) p->memory_bytes = (int64_t)usage.ru_maxrss * 1024;
  return status == BANYAN_OK || tool_error_set(error, "not proved: %s", banyan_last_error());
}

/* Lists the proved properties of these plans, one to a line. */
static int proved_list(const proof *p, const char *lines[8]) {
  int count = 0;
  if (p->request.call.collective == BNY_BARRIER) {
    lines[count++] = "no rank leaves before all have come";
  } else if (bny_call_merges(&p->request.call)) {
    lines[count++] = "every contribution is in every row that is delivered, once";
    lines[count++] = "each rank delivers the rows that it owns, each once, and no others";
    lines[count++] = p->request.call.order == BANYAN_ORDER_CANONICAL
                         ? "every row is the canonical expression, the tree of neighbour pairs over the ranks"
                         : "all ranks that deliver a row deliver the same expression, and so the same bits";
  } else if (p->request.call.collective == BNY_ALLGATHER_HEADS) {
    lines[count++] = "each rank delivers all heads, each once, from the rank that holds them";
  } else {
    lines[count++] = "each rank delivers the bytes that it should, each once, from the rank that they are of";
  }
  lines[count++] = "every wait is met by a send that happens: no deadlock";
  lines[count++] = "nothing is read before it has arrived; no slot is written twice; slots do not overlap";
  return count;
}

static bool report(const plan_view *view, const proof *p, bool proved, tool_error *error) {
  const char *lines[8];
  char shape[PLAN_TEXT_BYTES], bytes[PLAN_NUMBER_BYTES], memory[PLAN_NUMBER_BYTES];
  int count = proved_list(p, lines);
  if (view->json) {
    json_t *o = plan_shape_json(view->ranks, view->shape), *list = json_array();
    for (int i = 0; i < count && proved; i++) json_array_append_new(list, json_string(lines[i]));
    tool_json_add(o, json_pack("{s:b, s:s?, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:o}", "proved", proved, "error",
                               proved ? NULL : error->text, "algorithm", p->algorithm, "steps", (json_int_t)p->steps,
                               "messages", (json_int_t)p->messages, "bytes", (json_int_t)p->bytes, "choose_seconds",
                               p->choose_s, "make_seconds", p->make_s, "prove_seconds", p->prove_s, "peak_memory_bytes",
                               (json_int_t)p->memory_bytes, "holds", list));
    return tool_json_write(o, view->stream, error);
  }
  if (!proved) return true;
  plan_shape_print(view->shape, shape);
  fprintf(view->stream, "%s\n%d ranks (%s) by %s\n\n", shape, p->request.nranks, view->ranks->title, p->algorithm);
  fprintf(view->stream,
          "proved: %lld steps, %lld messages, %s in all\n  %.2f s to plan, %.2f s to prove, peak memory %s\n",
          (long long)p->steps, (long long)p->messages, plan_text_bytes((double)p->bytes, bytes), p->make_s, p->prove_s,
          plan_text_bytes((double)p->memory_bytes, memory));
  for (int i = 0; i < count; i++) fprintf(view->stream, "  %s\n", lines[i]);
  return true;
}

bool plan_view_prove(const plan_view *view, tool_error *error) {
  proof p = {.request = plan_request_make(view->ranks, view->shape)};
  bool ok = check_memory(view, &p, error) && plans_make(&p, error);
  if (ok) {
    ok = plans_prove(&p, error);
    bool written = report(view, &p, ok, error);
    ok = ok && written;
  }
  for (int32_t rank = 0; p.plans != NULL && rank < p.request.nranks; rank++) bny_plan_free(p.plans[rank]);
  return ok;
}
