/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON output: the model in the format of topo/import/json.h, which can be read again, and the data derived from it:
 *   "levels": [{"kind", "groups": [{"ranks": [..], "node", "path", "gbytes_per_s", "latency_us", "all_to_all",
 *               "uniform", "source"}]}]
 *   "ranks": [{"rank", "device", "host", "local", "nic", "nic_path", "nic_shared", "nic_gbytes_per_s", "rail",
 *              "nvlinks"}]
 *   "findings": [{"id", "severity", "node", "nodes", "text"}]   nodes: if there are several
 *   "probes": [{"name", "outcome", "text"}]   of this machine, otherwise empty
 *   "measured": {..}   with --measure, see measure/json.c
 * Nodes are referred to by id. Unknown values are omitted. */
#include <jansson.h>
#include <stdlib.h>

#include "tools/common/json.h"
#include "topo/import/json.h"
#include "tools/topo/json.h"
#include "tools/topo/measure/measure.h"

/* Sets a member and takes the reference, even on failure. Returns false for NULL. */
static bool put(json_t *object, const char *key, json_t *value) {
  return value != NULL && json_object_set_new(object, key, value) == 0;
}

static bool put_positive(json_t *object, const char *key, double value) {
  return value <= 0 || put(object, key, json_real(value));
}

static bool put_node(json_t *object, const char *key, const json_t *nodes, int32_t node) {
  return node < 0 || json_object_set(object, key, json_object_get(json_array_get(nodes, (size_t)node), "id")) == 0;
}

/* Returns the object, or releases it and returns NULL if `good` is false. */
static json_t *checked(json_t *object, bool good) {
  if (!good) {
    json_decref(object);
    return NULL;
  }
  return object;
}

static json_t *group_out(const bny_topo_level *level, const bny_topo_group *group, const json_t *nodes) {
  json_t *object = json_object(), *ranks = json_array();
  bool good = ranks != NULL;
  for (int32_t i = 0; good && i < group->count; i++)
    good = json_array_append_new(ranks, json_integer(level->members[group->first + i])) == 0;
  good = put(object, "ranks", ranks) && good && put_node(object, "node", nodes, group->node) &&
         put(object, "path", json_string(bny_topo_path_name(group->path))) &&
         put_positive(object, "gbytes_per_s", group->gbytes_per_s) &&
         put_positive(object, "latency_us", group->latency_us) &&
         put(object, "all_to_all", json_boolean(group->all_to_all)) &&
         put(object, "uniform", json_boolean(group->uniform)) &&
         (group->gbytes_per_s <= 0 || put(object, "source", json_string(bny_topo_source_name(group->source))));
  return checked(object, good);
}

static json_t *levels_out(const bny_topo_levels *levels, const json_t *nodes) {
  json_t *list = json_array();
  bool good = list != NULL;
  for (int32_t i = 0; good && i < levels->nlevels; i++) {
    const bny_topo_level *level = &levels->levels[i];
    json_t *object = json_object(), *groups = json_array();
    good = put(object, "kind", json_string(bny_topo_level_name(level->kind)));
    for (int32_t g = 0; good && g < level->ngroups; g++)
      good = json_array_append_new(groups, group_out(level, &level->groups[g], nodes)) == 0;
    good = put(object, "groups", groups) && good;
    good = json_array_append_new(list, object) == 0 && good;
  }
  return checked(list, good);
}

static json_t *rank_out(const bny_topo_rank *rank, int32_t r, const json_t *nodes) {
  json_t *object = json_object();
  bool good = put(object, "rank", json_integer(r)) && put_node(object, "device", nodes, rank->node) &&
              put_node(object, "host", nodes, rank->host) && put(object, "local", json_integer(rank->local)) &&
              put(object, "nvlinks", json_integer(rank->nvlinks));
  if (good && rank->nic >= 0) {
    good = put_node(object, "nic", nodes, rank->nic) &&
           put(object, "nic_path", json_string(bny_topo_path_name(rank->nic_path))) &&
           put(object, "nic_shared", json_integer(rank->nic_shared)) &&
           put_positive(object, "nic_gbytes_per_s", rank->nic_gbytes_per_s) &&
           (rank->rail < 0 || put(object, "rail", json_integer(rank->rail)));
  }
  return checked(object, good);
}

static json_t *ranks_out(const bny_topo_levels *levels, const json_t *nodes) {
  json_t *list = json_array();
  bool good = list != NULL;
  for (int32_t r = 0; good && r < levels->nranks; r++)
    good = json_array_append_new(list, rank_out(&levels->ranks[r], r, nodes)) == 0;
  return checked(list, good);
}

static json_t *finding_out(const bny_topo_finding *finding, const json_t *nodes) {
  json_t *object = json_object();
  bool good = put(object, "id", json_string(finding->id)) &&
              put(object, "severity", json_string(bny_topo_severity_name(finding->severity))) &&
              put_node(object, "node", nodes, finding->node) && put(object, "text", json_string(finding->text));
  json_t *all = finding->nnodes > 1 ? json_array() : NULL;
  for (int32_t n = 0; good && n < finding->nnodes && all != NULL; n++) {
    json_t *node = json_array_get(nodes, (size_t)finding->nodes[n]);
    good = json_array_append(all, json_object_get(node, "id")) == 0;
  }
  return checked(object, good && (finding->nnodes < 2 || put(object, "nodes", all)));
}

json_t *topo_json_findings(const bny_topo_levels *levels, const json_t *nodes, bny_topo_severity least) {
  json_t *list = json_array();
  bool good = list != NULL;
  for (int32_t f = 0; good && f < levels->nfindings && levels->findings[f].severity >= least; f++)
    good = json_array_append_new(list, finding_out(&levels->findings[f], nodes)) == 0;
  return checked(list, good);
}

json_t *topo_json_probes(const topo_view *view) {
  json_t *list = json_array();
  bool good = list != NULL;
  for (int32_t i = 0; good && i < view->nreports; i++) {
    const bny_topo_probe_report *report = &view->reports[i];
    json_t *object = json_object();
    good = put(object, "name", json_string(report->name)) &&
           put(object, "outcome", json_string(bny_topo_outcome_name(report->outcome))) &&
           put(object, "text", json_string(report->text));
    good = json_array_append_new(list, object) == 0 && good;
  }
  return checked(list, good);
}

char *topo_json_text(json_t *json, tool_error *error) {
  json_t *all = tool_json_stamped(json);
  char *text = all == NULL ? NULL : bny_topo_json_text(all);
  json_decref(all);
  if (text == NULL) tool_error_set(error, "out of memory");
  return text;
}

char *topo_view_json(const topo_view *view, tool_error *error) {
  json_t *root = bny_topo_json(view->topo);
  const json_t *nodes = root == NULL ? NULL : json_object_get(root, "nodes");
  bool good = root != NULL && put(root, "levels", levels_out(view->levels, nodes)) &&
              put(root, "ranks", ranks_out(view->levels, nodes)) &&
              put(root, "findings", topo_json_findings(view->levels, nodes, BNY_TOPO_INFO)) &&
              put(root, "probes", topo_json_probes(view)) &&
              (view->measured == NULL || put(root, "measured", topo_measured_json(view->measured, view->topo)));
  return topo_json_text(checked(root, good), error);
}
