/* SPDX-License-Identifier: Apache-2.0
 * Prints findings for --check, and chooses the exit status. */
#include "tools/topo/topo.h"

#include "tools/topo/json.h"
#include "topo/model/json.h"

static char *check_json(const topo_view *view, const char *status) {
  json_t *model = bny_topo_json(view->topo);
  json_t *findings = topo_json_findings(view, json_object_get(model, "nodes"), view->all ? TOPO_INFO : TOPO_NOTE);
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
  const topo_findings *findings = &view->findings;
  topo_severity worst = findings->count == 0 ? TOPO_INFO : findings->list[0].severity;
  *status = results[worst].status;
  if (json) return check_json(view, results[worst].word);
  tool_page page;
  FILE *out = tool_page_begin(&page);
  for (int32_t f = 0; f < findings->count; f++) {
    const topo_finding *finding = &findings->list[f];
    if (finding->severity == TOPO_INFO && !view->all) break;
    topo_put(out, view, topo_severity_name(finding->severity));
    fprintf(out, ": %s: ", finding->id);
    topo_put(out, view, finding->text);
    fputc('\n', out);
  }
  return tool_page_end(&page);
}
