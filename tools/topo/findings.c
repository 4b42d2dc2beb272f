/* SPDX-License-Identifier: Apache-2.0
 * Writes findings, for the whole text and for --check, which also chooses the exit status, and the reports of
 * probes. */
#include <string.h>

#include "tools/topo/json.h"
#include "topo/model/json.h"

void topo_put_findings(FILE *out, const topo_view *view, topo_severity least, bool wraps) {
  for (int32_t f = 0; f < view->findings.count && view->findings.list[f].severity >= least; f++) {
    const topo_finding *finding = &view->findings.list[f];
    const char *line = tool_format("%s: %s: %s", topo_severity_name(finding->severity), finding->id, finding->text);
    if (wraps)
      tool_print_wrapped(out, fprintf(out, "  "), 4, line);
    else
      fprintf(out, "%s\n", line);
  }
}

static char *check_json(const topo_view *view, const char *status, topo_severity least) {
  json_t *model = bny_topo_json(view->topo);
  json_t *findings = topo_json_findings(view, json_object_get(model, "nodes"), least);
  json_t *root = json_pack(
      "{s:s, s:s, s:i, s:i, s:i, s:o, s:o}", "status", status, "source", view->title, "hosts",
      (int)bny_topo_count(view->topo, BNY_TOPO_HOST), "gpus", (int)bny_topo_count(view->topo, BNY_TOPO_GPU), "nics",
      (int)bny_topo_count(view->topo, BNY_TOPO_NIC), "findings", findings, "probes", topo_json_probes(view));
  json_decref(model);
  return topo_json_text(root);
}

char *topo_check(const topo_view *view, bool json, int *status) {
  static const struct {
    int status;
    const char *word;
  } results[] = {[TOPO_INFO] = {TOOL_EXIT_OK, "healthy"},
                 [TOPO_NOTE] = {TOOL_EXIT_FAILED, "note"},
                 [TOPO_FAULT] = {TOOL_EXIT_FAULTS, "fault"}};
  topo_severity worst = view->findings.count == 0 ? TOPO_INFO : view->findings.list[0].severity;
  topo_severity least = view->all ? TOPO_INFO : TOPO_NOTE;
  *status = results[worst].status;
  if (json) return check_json(view, results[worst].word, least);
  tool_page page;
  topo_put_findings(tool_page_begin(&page), view, least, false);
  return tool_page_end(&page);
}

/* Returns what helps if a probe found no library or driver, whose name is in the report. */
static const char *advice_for(const bny_topo_probe_report *report) {
  if (report->outcome != BNY_TOPO_PROBE_ABSENT) return "";
  if (strcmp(report->name, "nvml") == 0)
    return "; where there are NVIDIA GPUs, install their driver; in a container, start it with --gpus all";
  return strcmp(report->name, "sysfs") == 0 ? "; let /sys be seen from here: it is read, never written" : "";
}

void topo_put_probes(FILE *out, const topo_view *view) {
  if (view->reports == NULL) return;
  fputs("\nProbes\n", out);
  for (int32_t i = 0; i < BNY_TOPO_PROBES; i++) {
    const bny_topo_probe_report *report = &view->reports[i];
    int column = fprintf(out, "  %-8s%-9s", report->name, bny_topo_outcome_name(report->outcome));
    const char *text = report->text[0] == '\0' ? "-" : report->text;
    tool_print_wrapped(out, column, column, tool_format("%s%s", text, advice_for(report)));
  }
}
