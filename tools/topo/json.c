/* SPDX-License-Identifier: Apache-2.0
 * JSON output: the model in the format of topo/import/json.h, which can be imported again, and derived data. The man
 * page lists the members. Nodes are referred to by id, and unknown values are omitted. */
#include <jansson.h>
#include <stdlib.h>

#include "tools/common/json.h"
#include "topo/model/json.h"
#include "tools/topo/json.h"

/* Returns an array of the results of `make` for 0 to count - 1. */
static json_t *list_of(int32_t count, json_t *(*make)(const void *all, int32_t i, const json_t *nodes), const void *all,
                       const json_t *nodes) {
  json_t *list = json_array();
  for (int32_t i = 0; i < count; i++)
    if (json_array_append_new(list, make(all, i, nodes)) != 0) tool_no_memory();
  return list;
}

/* Returns NULL, which is omitted, for an unknown value. */
static json_t *known(double value) { return value > 0 ? json_real(value) : NULL; }

/* Returns the id of a node; NULL for -1. */
static json_t *id_of(const json_t *nodes, int32_t node) {
  return node < 0 ? NULL : json_object_get(json_array_get(nodes, (size_t)node), "id");
}

static json_t *member_out(const void *members, int32_t i, const json_t *nodes) {
  (void)nodes;
  return json_integer(((const int32_t *)members)[i]);
}

static json_t *group_out(const void *all, int32_t g, const json_t *nodes) {
  const bny_topo_level *level = all;
  const bny_topo_group *group = &level->groups[g];
  return json_pack("{s:o, s:O*, s:s, s:o*, s:o*, s:b, s:b, s:s*}", "ranks",
                   list_of(group->count, member_out, level->members + group->first, nodes), "node",
                   id_of(nodes, group->node), "path", bny_topo_path_name(group->path), "gbytes_per_s",
                   known(group->gbytes_per_s), "latency_us", known(group->latency_us), "all_to_all", group->all_to_all,
                   "uniform", group->uniform, "source",
                   group->gbytes_per_s > 0 ? bny_topo_source_name(group->source) : NULL);
}

static json_t *level_out(const void *all, int32_t i, const json_t *nodes) {
  const bny_topo_level *level = &((const bny_topo_level *)all)[i];
  return json_pack("{s:s, s:o}", "kind", bny_topo_level_name(level->kind), "groups",
                   list_of(level->ngroups, group_out, level, nodes));
}

static json_t *rank_out(const void *all, int32_t r, const json_t *nodes) {
  const bny_topo_rank *rank = &((const bny_topo_rank *)all)[r];
  json_t *object = json_pack("{s:i, s:O*, s:O*, s:i, s:i}", "rank", r, "device", id_of(nodes, rank->node), "host",
                             id_of(nodes, rank->host), "local", rank->local, "nvlinks", rank->nvlinks);
  if (rank->nic < 0) return object;
  json_t *nic = json_pack("{s:O, s:s, s:i, s:o*, s:o*}", "nic", id_of(nodes, rank->nic), "nic_path",
                          bny_topo_path_name(rank->nic_path), "nic_shared", rank->nic_shared, "nic_gbytes_per_s",
                          known(rank->nic_gbytes_per_s), "rail", rank->rail < 0 ? NULL : json_integer(rank->rail));
  tool_json_add(object, nic);
  return object;
}

static json_t *node_out(const void *all, int32_t n, const json_t *nodes) {
  return json_incref(id_of(nodes, ((const int32_t *)all)[n]));
}

static json_t *finding_out(const void *all, int32_t f, const json_t *nodes) {
  const topo_finding *finding = &((const topo_finding *)all)[f];
  return json_pack("{s:s, s:s, s:O*, s:s, s:o*}", "id", finding->id, "severity", topo_severity_name(finding->severity),
                   "node", id_of(nodes, finding->node), "text", finding->text, "nodes",
                   finding->nnodes > 1 ? list_of(finding->nnodes, node_out, finding->nodes, nodes) : NULL);
}

json_t *topo_json_findings(const topo_view *view, const json_t *nodes, topo_severity least) {
  int32_t count = 0;
  while (count < view->findings.count && view->findings.list[count].severity >= least) count++;
  return list_of(count, finding_out, view->findings.list, nodes);
}

static json_t *probe_out(const void *all, int32_t i, const json_t *nodes) {
  const bny_topo_probe_report *report = &((const bny_topo_probe_report *)all)[i];
  (void)nodes;
  return json_pack("{s:s, s:s, s:s}", "name", report->name, "outcome", bny_topo_outcome_name(report->outcome), "text",
                   report->text);
}

json_t *topo_json_probes(const topo_view *view) {
  return list_of(view->reports == NULL ? 0 : BNY_TOPO_PROBES, probe_out, view->reports, NULL);
}

char *topo_json_text(json_t *json) {
  json_t *all = tool_json_stamped(json);
  char *text = all == NULL ? NULL : bny_topo_json_text(all);
  if (text == NULL) tool_no_memory();
  char *kept = tool_format("%s", text);
  json_decref(all);
  free(text);
  return kept;
}

char *topo_view_json(const topo_view *view) {
  const bny_topo_levels *levels = view->levels;
  json_t *root = bny_topo_json(view->topo), *nodes = json_object_get(root, "nodes");
  json_t *derived =
      json_pack("{s:o, s:o, s:o, s:o}", "levels", list_of(levels->nlevels, level_out, levels->levels, nodes), "ranks",
                list_of(levels->nranks, rank_out, levels->ranks, nodes), "findings",
                topo_json_findings(view, nodes, TOPO_INFO), "probes", topo_json_probes(view));
  tool_json_add(root, derived);
  return topo_json_text(root);
}
