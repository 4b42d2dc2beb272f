/* SPDX-License-Identifier: Apache-2.0
 * Prints findings for --check, chooses the exit status, and adds what a machine lacks compared with a --profile. */
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

/* ---- profiles ---------------------------------------------------------------------------------------------------- */

static bool is_less(double now, double expected) { return now < 0.95 * expected; }

/* Returns the finding id for a change for the worse; "profile-differs" for any other change. */
static const char *id_of(const topo_change *change, const bny_topo *topo) {
  bool missing = change->kind == TOPO_MISSING;
  if (change->kind == TOPO_ADDED) return "profile-differs";
  if (missing && strcmp(change->what, "host") == 0) return "host-missing";
  if (missing && strcmp(change->what, "switch") == 0) return "switch-missing";
  if (strcmp(change->what, "gpu") == 0 || strcmp(change->what, "nic") == 0) {
    bool gpu = change->what[0] == 'g';
    return missing                                                       ? (gpu ? "gpu-lost" : "nic-missing")
           : change->lanes[1] > 0 && change->lanes[1] < change->lanes[0] ? "pci-width"
           : is_less(change->pci[1], change->pci[0])                     ? "pci-generation"
           : change->net[1] <= 0 && change->net[0] > 0                   ? "nic-speed-unknown"
           : is_less(change->net[1], change->net[0])                     ? "nic-slow"
                                                                         : "profile-differs";
  }
  if (strcmp(change->what, "link") == 0) {
    bool trunk = change->link == BNY_TOPO_LINK_NET && change->nodes[1] >= 0 &&
                 topo->nodes[change->nodes[1]].kind == BNY_TOPO_SWITCH;
    bool fewer = missing || change->links[1] < change->links[0];
    return change->link == BNY_TOPO_LINK_NET ? (trunk ? (fewer ? "uplink-missing" : "trunk-slow") : "nic-uncabled")
           : missing                         ? "nvlink-missing"
           : fewer                           ? "nvlink-fewer"
           : is_less(change->speed[1], change->speed[0]) ? "link-slow"
                                                         : "profile-differs";
  }
  return "profile-differs";
}

/* Adds a finding for each change, except changes of levels, which follow from the others. */
static void add_findings(const topo_comparison *comparison, bny_topo_levels *levels) {
  static const char *const words[] = {"the profile has it, this machine does not", "the profile does not have it",
                                      "the profile has the first"};
  const bny_topo *topo = comparison->second->topo;
  int32_t count;
  const topo_change *changes = topo_compare(comparison, &count);
  for (const topo_change *c = changes; c < changes + count; c++) {
    char fact[400];
    snprintf(fact, sizeof fact, "%.300s: %s", c->text, words[c->kind]);
    if (strcmp(c->what, "level") != 0 && !bny_topo_finding_add(levels, topo, id_of(c, topo), c->nodes[1], fact))
      tool_no_memory();
  }
}

void topo_check_profile(const topo_view *profile, const topo_view *machine, bny_topo_levels *levels) {
  bool each = bny_topo_count(profile->topo, BNY_TOPO_HOST) == 1 && bny_topo_count(machine->topo, BNY_TOPO_HOST) > 1;
  topo_comparison comparison = {.first = profile, .second = machine, .only = -1, .arrow = "->", .together = true};
  if (!each) add_findings(&comparison, levels);
  for (int32_t n = 0; each && n < machine->topo->nnodes; n++) {
    comparison.only = n;
    if (machine->topo->nodes[n].kind == BNY_TOPO_HOST) add_findings(&comparison, levels);
  }
}
