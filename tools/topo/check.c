/* SPDX-License-Identifier: Apache-2.0
 * Prints findings for --check, and chooses the exit status. */
#include "tools/topo/topo.h"

#include <string.h>

#include "topo/import/json.h"
#include "tools/topo/json.h"

bool topo_check_mute(bny_topo_levels *levels, const char *ids, tool_error *error) {
  while (*ids != '\0') {
    char id[64];
    size_t length = strcspn(ids, ",");
    snprintf(id, sizeof id, "%.*s", (int)(length < sizeof id ? length : sizeof id - 1), ids);
    if (bny_topo_finding_kind_of(id) == NULL) {
      char known[1024];
      size_t used = 0;
      for (const bny_topo_finding_kind *kind = bny_topo_finding_kinds;
           kind->severity > BNY_TOPO_INFO && used < sizeof known; kind++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used == 0 ? "" : ", ", kind->id);
      return tool_error_set(error, "--mute %s: no finding has this id; the ids are %s", id, known);
    }
    bny_topo_findings_remove(levels, id);
    ids += length + (ids[length] == ',');
  }
  return true;
}

void topo_check_probes(const topo_view *view, bny_topo_levels *levels) {
  for (int32_t i = 0; i < view->nreports; i++) {
    topo_string text = {.text = ""};
    if (view->reports[i].outcome == BNY_TOPO_PROBE_FAILED) {
      topo_append(&text, "the probe %s failed: %s", view->reports[i].name, view->reports[i].text);
      if (!bny_topo_finding_add(levels, view->topo, "probe-failed", -1, text.text)) tool_no_memory();
    }
  }
}

static char *check_json(const topo_view *view, const char *status) {
  json_t *model = bny_topo_json(view->topo);
  json_t *findings =
      topo_json_findings(view->levels, json_object_get(model, "nodes"), view->all ? BNY_TOPO_INFO : BNY_TOPO_WARNING);
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
  } results[] = {[BNY_TOPO_INFO] = {TOOL_EXIT_OK, "healthy"},
                 [BNY_TOPO_WARNING] = {TOOL_EXIT_FAILED, "note"},
                 [BNY_TOPO_FAULT] = {TOOL_EXIT_FAULTS, "fault"}};
  const bny_topo_levels *levels = view->levels;
  bny_topo_severity worst = levels->nfindings == 0 ? BNY_TOPO_INFO : levels->findings[0].severity;
  *status = results[worst].status;
  if (json) return check_json(view, results[worst].word);
  tool_page page;
  FILE *out = tool_page_begin(&page);
  for (int32_t f = 0; f < levels->nfindings; f++) {
    const bny_topo_finding *finding = &levels->findings[f];
    if (finding->severity == BNY_TOPO_INFO && !view->all) break;
    if (view->titled) fprintf(out, "%s: ", view->title);
    topo_put(out, view, topo_ink_of_severity(finding->severity), bny_topo_severity_name(finding->severity));
    fprintf(out, ": %s: ", finding->id);
    topo_put(out, view, TOPO_INK_PLAIN, finding->text);
    fputc('\n', out);
  }
  return tool_page_end(&page);
}
