/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/topo/check.h"

#include <stdlib.h>

#include "topo/import/json.h"
#include "tools/topo/draw.h"
#include "tools/topo/json.h"

static char *check_json(const topo_view *view, const char *status, tool_error *error) {
  json_t *model = bny_topo_json(view->topo);
  json_t *findings = model == NULL ? NULL : topo_json_findings(view->levels, json_object_get(model, "nodes"));
  json_t *root = findings == NULL ? NULL
                                  : json_pack("{s:s, s:s, s:i, s:i, s:i, s:O, s:o}", "status", status, "source",
                                              view->title, "hosts", (int)bny_topo_count(view->topo, BNY_TOPO_HOST),
                                              "gpus", (int)bny_topo_count(view->topo, BNY_TOPO_GPU), "nics",
                                              (int)bny_topo_count(view->topo, BNY_TOPO_NIC), "findings", findings,
                                              "probes", topo_json_probes(view));
  json_decref(findings);
  json_decref(model);
  return topo_json_text(root, error);
}

char *topo_check(const topo_view *view, bool json, int *status, tool_error *error) {
  const bny_topo_levels *levels = view->levels;
  int worst = BNY_TOPO_INFO;
  for (int32_t f = 0; f < levels->nfindings; f++) {
    worst = (int)levels->findings[f].severity > worst ? (int)levels->findings[f].severity : worst;
  }
  for (int32_t i = 0; i < view->nreports; i++) { /* a driver that does not answer is a warning */
    bool failed = view->reports[i].outcome == BNY_TOPO_PROBE_FAILED;
    worst = failed && worst < BNY_TOPO_WARNING ? BNY_TOPO_WARNING : worst;
  }
  *status = worst == BNY_TOPO_FAULT ? TOOL_EXIT_FAULTS : worst == BNY_TOPO_WARNING ? TOOL_EXIT_FAILED : TOOL_EXIT_OK;
  if (json) {
    return check_json(view, worst == BNY_TOPO_INFO ? "good" : bny_topo_severity_name((bny_topo_severity)worst), error);
  }
  char *text = NULL;
  size_t bytes;
  FILE *out = open_memstream(&text, &bytes);
  if (out == NULL) {
    tool_error_set(error, "out of memory");
    return NULL;
  }
  for (int32_t f = 0; f < levels->nfindings; f++) {
    const bny_topo_finding *finding = &levels->findings[f];
    topo_put(out, view, topo_ink_of_severity(finding->severity), bny_topo_severity_name(finding->severity));
    fputs(": ", out);
    topo_put(out, view, TOPO_INK_PLAIN, finding->text);
    fputc('\n', out);
  }
  for (int32_t i = 0; i < view->nreports; i++) {
    if (view->reports[i].outcome == BNY_TOPO_PROBE_FAILED) {
      topo_string line = {.text = ""};
      topo_append(&line, ": the probe %s failed: %s", view->reports[i].name, view->reports[i].text);
      topo_put(out, view, TOPO_INK_WARNING, "warning");
      topo_put(out, view, TOPO_INK_PLAIN, line.text);
      fputc('\n', out);
    }
  }
  return topo_finish(out, &text, error);
}
