/* SPDX-License-Identifier: Apache-2.0
 * Writes the last parts of the picture: findings, and the reports of this machine's probes. */
#include <string.h>

#include "tools/topo/topo.h"

enum { FINDINGS_MOST = 24 };

static const char *mark_of(const topo_view *view, topo_severity severity) {
  if (severity == TOPO_INFO) return view->utf8 ? "·" : "-";
  return severity == TOPO_FAULT ? (view->utf8 ? "✖" : "x") : view->utf8 ? "▲" : "!";
}

void topo_put_findings(FILE *out, const topo_view *view) {
  const topo_findings *findings = &view->findings;
  if (findings->count == 0) return;
  topo_put_heading(out, view, "Findings");
  int32_t shown = view->all || findings->count <= FINDINGS_MOST ? findings->count : FINDINGS_MOST;
  for (int32_t f = 0; f < shown; f++) {
    const topo_finding *finding = &findings->list[f];
    fputs("  ", out);
    topo_put(out, view, mark_of(view, finding->severity));
    fputc(' ', out);
    topo_put(out, view, topo_severity_name(finding->severity));
    topo_put_blanks(out, 9 - (int32_t)strlen(topo_severity_name(finding->severity)));
    topo_put_wrapped(out, view, 13, finding->text);
  }
  if (shown < findings->count) fprintf(out, "    and %d more: --check lists all\n", (int)(findings->count - shown));
}

/* ---- probes ------------------------------------------------------------------------------------------------------ */

/* Advice if a probe found no library or driver. The report names the missing one. */
static const struct {
  const char *probe, *advice;
} advices[] = {
    {"nvml", "where there are NVIDIA GPUs, install their driver; in a container, start it with --gpus all"},
    {"sysfs", "let /sys be seen from here: it is read, never written"},
};

static const char *advice_for(const bny_topo_probe_report *report) {
  for (size_t i = 0; i < sizeof advices / sizeof advices[0]; i++)
    if (strcmp(advices[i].probe, report->name) == 0) return advices[i].advice;
  return "";
}

void topo_put_probes(FILE *out, const topo_view *view) {
  if (view->nreports == 0) return;
  topo_put_heading(out, view, "Probes");
  for (int32_t i = 0; i < view->nreports; i++) {
    const bny_topo_probe_report *report = &view->reports[i];
    const char *outcome = bny_topo_outcome_name(report->outcome), *advice = advice_for(report);
    fprintf(out, "  %-8s", report->name);
    topo_put(out, view, outcome);
    topo_put_blanks(out, 9 - (int32_t)strlen(outcome));
    topo_put_wrapped(out, view, 19, report->text[0] == '\0' ? "-" : report->text);
    if (report->outcome == BNY_TOPO_PROBE_ABSENT && advice[0] != '\0') {
      topo_put_blanks(out, 19);
      topo_put_wrapped(out, view, 19, advice);
    }
  }
}
