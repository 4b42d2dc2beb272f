/* SPDX-License-Identifier: Apache-2.0
 * --check: findings alone, for scripts that watch many machines, also against a profile; and --diff. */
#ifndef BNY_TOOLS_TOPO_CHECK_H
#define BNY_TOOLS_TOPO_CHECK_H

#include "tools/topo/view.h"

/* Removes the findings of these ids, which commas separate. Returns false and *error if an id is unknown. */
bool topo_check_mute(bny_topo_levels *levels, const char *ids, tool_error *error);

/* Adds a finding for each probe of this machine that failed. */
bool topo_check_probes(const topo_view *view, bny_topo_levels *levels, tool_error *error);

/* Returns lines of "SEVERITY: ID: TEXT", or an empty text. Infos are left out, unless the view has `all`. JSON is
 * {"status", "source", "hosts", "gpus", "nics", "findings", "probes"} with status "healthy", "note" or "fault". *status
 * receives the exit status. The caller frees it; NULL and *error. */
char *topo_check(const topo_view *view, bool json, int *status, tool_error *error);

/* Adds what the machine lacks of a profile, which is a machine in good health. A profile of one host is the measure of
 * every host. */
bool topo_check_profile(const topo_view *profile, const topo_view *machine, bny_topo_levels *levels, tool_error *error);

/* Returns one line per difference: "- " only in the first, "+ " only in the second, "~ " changed. JSON is {"first",
 * "second", "same", "differences": [{"change": "missing|added|changed", "what", "text"}]}. */
char *topo_diff(const topo_view *first, const topo_view *second, bool json, int *status, tool_error *error);

#endif
