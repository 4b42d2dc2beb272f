/* SPDX-License-Identifier: Apache-2.0
 * Draws connections between hosts: NVSwitches across hosts, and network switches by tier. */
#include "tools/topo/topo.h"

enum { TIERS = 4, ALIKE = 2, GROUPS_MOST = 12 }; /* tiers above the fourth are drawn as one */

static bool is_above_hosts(const topo_fold *fold, int32_t n) {
  return fold->topo->nodes[n].kind == BNY_TOPO_SWITCH && fold->host[n] < 0;
}

static const char *tier_name(int32_t tier) {
  static const char *const names[TIERS] = {"leaf", "spine", "core", "upper"};
  return names[tier > TIERS ? TIERS - 1 : tier - 1];
}

static void describe(const topo_fold *fold, const int32_t *group, int32_t count, topo_line *line) {
  topo_facts facts = topo_fold_facts(fold, group[0]);
  int32_t own = fold->tier[group[0]];
  topo_string text = {.text = ""};
  if (own == 0)
    topo_append(&text, "NVSwitch between hosts, joins %s with %d NVLink%s", topo_count(facts.peers, BNY_TOPO_GPU),
                (int)facts.links, facts.links == 1 ? "" : "s");
  else
    topo_append(&text, "%s%s switch%s", count > 1 ? tool_format("%d ", (int)count) : "", tier_name(own),
                count > 1 ? "es" : "");
  if (own > 0 && facts.below > 0)
    topo_append(&text, " of %s%s%s", topo_count(facts.below, BNY_TOPO_PORT), facts.net > 0 ? " at " : "",
                topo_speed(facts.net, facts.net_assumed));
  else if (own > 0)
    topo_append(&text, ", %d links", (int)facts.beside);
  topo_line_say(line, TOPO_LINE_LINKS, text.text);
  bool assumed;
  double uplink = own > 0 ? topo_fold_uplink(fold, group[0], &assumed) : 0;
  if (uplink > 0) topo_line_say(line, TOPO_LINE_LINKS, tool_format("up %s", topo_speed(uplink, assumed)));
}

static void draw_tier(const topo_fold *fold, const topo_view *view, int32_t *nodes, int32_t count, int32_t *ends,
                      topo_lines *lines) {
  int32_t groups = topo_fold_groups(fold, nodes, count, view->all ? INT32_MAX : ALIKE, ends);
  for (int32_t g = 0, start = 0; g < groups; start = ends[g++]) {
    topo_line *line = topo_lines_add(lines);
    if (g == GROUPS_MOST && !view->all) {
      topo_append(&line->label, "and %d switches more, none like these", (int)(count - start));
      return;
    }
    for (int32_t i = start; i < ends[g]; i++)
      line->severity = fold->severity[nodes[i]] > line->severity ? fold->severity[nodes[i]] : line->severity;
    topo_append_names(&line->label, fold->topo, &nodes[start], ends[g] - start, 34, false);
    describe(fold, &nodes[start], ends[g] - start, line);
  }
}

void topo_network_draw(const topo_fold *fold, const topo_view *view, topo_lines *lines) {
  int32_t total = fold->topo->nnodes, count = 0, highest = 0;
  int32_t *nodes = tool_new((size_t)total, sizeof *nodes), *ends = tool_new((size_t)total, sizeof *ends);
  for (int32_t n = 0; n < total; n++) {
    highest = fold->tier[n] > highest ? fold->tier[n] : highest;
    count += is_above_hosts(fold, n);
  }
  if (count > 0) topo_lines_add(lines);
  for (int32_t t = highest > TIERS ? TIERS : highest; count > 0 && t >= 0; t--) {
    int32_t here = 0;
    for (int faulty = 1; faulty >= 0; faulty--) { /* faulty ones first, so that they are always listed */
      for (int32_t n = 0; n < total; n++) {
        bool is_here = is_above_hosts(fold, n) && (fold->tier[n] == t || (t == TIERS && fold->tier[n] > t));
        if (is_here && (fold->severity[n] > TOPO_INFO) == faulty) nodes[here++] = n;
      }
    }
    draw_tier(fold, view, nodes, here, ends, lines);
  }
}
