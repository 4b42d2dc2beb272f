/* SPDX-License-Identifier: Apache-2.0
 * Writes timelines for Perfetto and as SVG, and plans as GOAL. */
#include "tools/simulate/output.h"

#include <errno.h>
#include <string.h>

typedef struct style {
  const char *name, *category, *colour;
} style;

static const style styles[] = {[BNY_STEP_COPY] = {"copy", "compute", "#3a94cf"},
                               [BNY_STEP_MERGE] = {"merge", "compute", "#009e73"},
                               [BNY_STEP_SEND] = {"send", "send", "#1a1a1a"},
                               [BNY_STEP_WAIT] = {"wait", "wait", "#f0d9a8"},
                               [BNY_STEP_DELIVER] = {"deliver", "compute", "#0072b2"}};

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

/* A row for each rank: steps as boxes, waits pale, sends as ticks above. */
static void svg_write(FILE *file, const sim_job *job, const char *title) {
  int32_t nranks = job->stages[0].request->nranks, drawn = nranks < SIM_DRAWN_RANKS ? nranks : SIM_DRAWN_RANKS;
  int row_height = 14, left = 70, width = 880, top = 34, height = top + drawn * row_height + 30;
  double scale = job->total_ns > 0 ? width / job->total_ns : 0;
  fprintf(file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
          "font-size=\"10\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
          "<text x=\"%d\" y=\"18\" font-size=\"13\">%s, simulated: %.2f us</text>\n",
          left + width + 30, height, left, title, job->total_ns / 1e3);
  for (int32_t row = 0; row < drawn; row++)
    fprintf(file, "<text x=\"4\" y=\"%d\">rank %d</text>\n", top + row * row_height + 10,
            drawn > 1 ? (int)((int64_t)row * (nranks - 1) / (drawn - 1)) : 0);
  for (int64_t i = 0; i < job->nevents; i++) {
    const sim_event *e = &job->events[i];
    int32_t row = nranks > 1 ? (int32_t)((int64_t)e->rank * (drawn - 1) / (nranks - 1)) : 0;
    if (drawn > 1 && (int64_t)row * (nranks - 1) / (drawn - 1) != e->rank) continue;
    double x = left + e->begin_ns * scale, length = (e->end_ns - e->begin_ns) * scale;
    bool tick = e->kind == BNY_STEP_SEND;
    fprintf(file, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>\n", x,
            top + row * row_height + (tick ? 0 : 3),
            tick           ? 0.6
            : length > 0.3 ? length
                           : 0.3,
            tick ? 3 : 9, styles[e->kind].colour);
  }
  int x = left;
  for (size_t i = 0; i < sizeof styles / sizeof styles[0]; i++, x += 90)
    fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%d\" y=\"%d\">%s</text>\n",
            x, height - 18, styles[i].colour, x + 14, height - 9, styles[i].name);
  fputs("</svg>\n", file);
}

bool sim_timeline_write(const char *path, const sim_job *job, const char *title, tool_error *error) {
  size_t length = strlen(path);
  bool svg = length > 4 && strcmp(path + length - 4, ".svg") == 0;
  FILE *file = fopen(path, "w");
  if (file == NULL) return tool_error_usage(error, tool_error_set(error, "%.200s: %s", path, strerror(errno)));
  (svg ? svg_write : json_write)(file, job, title);
  bool ok = ferror(file) == 0;
  ok = fclose(file) == 0 && ok;
  return tool_error_usage(error, ok || tool_error_set(error, "%.200s: %s", path, strerror(errno)));
}

/* ---- GOAL -------------------------------------------------------------------------------------------------------- */

/* One operation of GOAL; it requires the one before it. */
static void goal_line(FILE *stream, int64_t *label, const char *text) {
  fprintf(stream, "l%lld: %s\n", (long long)++*label, text);
  if (*label > 1) fprintf(stream, "l%lld requires l%lld\n", (long long)*label, (long long)*label - 1);
}

void sim_goal_write(FILE *stream, const sim_job *job) {
  char text[96];
  const sim_stage *stage = &job->stages[0];
  fprintf(stream, "num_ranks %d\n", stage->request->nranks);
  for (int32_t r = 0; r < stage->request->nranks; r++) {
    const bny_plan *plan = stage->plans[r];
    int64_t label = 0;
    fprintf(stream, "rank %d {\n", r);
    for (int32_t i = 0; i < plan->nsteps; i++) {
      const bny_step *step = &plan->steps[i];
      for (int32_t k = 0; step->kind == BNY_STEP_SEND && k < step->count; k++) {
        snprintf(text, sizeof text, "send %zub to %d tag %d", plan->slots[step->slot].bytes,
                 plan->peers[step->first + k], step->slot);
        goal_line(stream, &label, text);
      }
      if (step->kind == BNY_STEP_WAIT) {
        const bny_message *message = &plan->messages[step->message];
        snprintf(text, sizeof text, "recv %zub from %d tag %d", message->what.bytes, message->peer, message->slot);
        goal_line(stream, &label, text);
      } else if (step->kind != BNY_STEP_SEND) {
        snprintf(text, sizeof text, "calc %.0f", job->work_ns(job, stage, plan, step));
        goal_line(stream, &label, text);
      }
    }
    fputs("}\n", stream);
  }
}
