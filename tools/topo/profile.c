/* SPDX-License-Identifier: Apache-2.0
 * --profile: reports what a machine lacks compared with a healthy machine. */
#include <stdio.h>
#include <string.h>

#include "tools/topo/topo.h"

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
