/* SPDX-License-Identifier: Apache-2.0
 * Writes timelines for Perfetto, and plans as GOAL. */
#include "tools/simulate/output.h"

#include <errno.h>
#include <string.h>

typedef struct style {
  const char *name, *category;
} style;

static const style styles[] = {[BNY_STEP_COPY] = {"copy", "compute"},
                               [BNY_STEP_MERGE] = {"merge", "compute"},
                               [BNY_STEP_SEND] = {"send", "send"},
                               [BNY_STEP_WAIT] = {"wait", "wait"},
                               [BNY_STEP_DELIVER] = {"deliver", "compute"}};

static void json_write(FILE *file, const sim_job *job, const char *title) {
  fputc('[', file);
  for (int32_t r = 0; r < job->stages[0].request->nranks; r++)
    fprintf(file,
            "%s\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank %d of %d (%s, "
            "simulated)\"}}",
            r > 0 ? "," : "", r, r, job->stages[0].request->nranks, title);
  for (int64_t i = 0; i < job->nevents; i++) {
    const sim_event *e = &job->events[i];
    const style *style = &styles[e->kind];
    fprintf(file, ",\n{\"name\":\"%s", style->name);
    if (e->peer >= 0) fprintf(file, " %d", e->peer);
    fprintf(file, "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f,\"args\":{",
            style->category, e->rank, e->begin_ns / 1e3, (e->end_ns - e->begin_ns) / 1e3);
    if (e->peer >= 0) fprintf(file, "\"peer\":%d,\"bytes\":%lld", e->peer, (long long)e->bytes);
    fputs("}}", file);
  }
  fputs("\n]\n", file);
}

bool sim_timeline_write(const char *path, const sim_job *job, const char *title, tool_error *error) {
  FILE *file = fopen(path, "w");
  if (file == NULL) return tool_error_usage(error, tool_error_set(error, "%.200s: %s", path, strerror(errno)));
  json_write(file, job, title);
  bool ok = ferror(file) == 0;
  ok = fclose(file) == 0 && ok;
  return tool_error_usage(error, ok || tool_error_set(error, "%.200s: %s", path, strerror(errno)));
}

/* ---- GOAL -------------------------------------------------------------------------------------------------------- */

/* One operation of GOAL. It requires the last one that is no send: a large send ends only when its receiver is ready,
 * and an executor does not wait for that. */
static void goal_line(FILE *stream, int64_t *label, int64_t *last, bool sends, const char *text) {
  fprintf(stream, "l%lld: %s\n", (long long)++*label, text);
  if (*last > 0) fprintf(stream, "l%lld requires l%lld\n", (long long)*label, (long long)*last);
  if (!sends) *last = *label;
}

void sim_goal_write(FILE *stream, const sim_job *job) {
  char text[96];
  const sim_stage *stage = &job->stages[0];
  fprintf(stream, "num_ranks %d\n", stage->request->nranks);
  for (int32_t r = 0; r < stage->request->nranks; r++) {
    const bny_plan *plan = stage->plans[r];
    int64_t label = 0, last = 0;
    fprintf(stream, "rank %d {\n", r);
    for (int32_t i = 0; i < plan->nsteps; i++) {
      const bny_step *step = &plan->steps[i];
      for (int32_t k = 0; step->kind == BNY_STEP_SEND && k < step->count; k++) {
        snprintf(text, sizeof text, "send %zub to %d tag %d", plan->slots[step->slot].bytes,
                 plan->peers[step->first + k], step->slot);
        goal_line(stream, &label, &last, true, text);
      }
      if (step->kind == BNY_STEP_WAIT) {
        const bny_message *message = &plan->messages[step->message];
        snprintf(text, sizeof text, "recv %zub from %d tag %d", message->what.bytes, message->peer, message->slot);
        goal_line(stream, &label, &last, false, text);
      } else if (step->kind != BNY_STEP_SEND) {
        snprintf(text, sizeof text, "calc %.0f", job->work_ns(job, stage, plan, step));
        goal_line(stream, &label, &last, false, text);
      }
    }
    fputs("}\n", stream);
  }
}
