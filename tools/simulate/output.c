/* SPDX-License-Identifier: Apache-2.0
 * Writes timelines for Perfetto. */
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
