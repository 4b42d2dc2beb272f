/* SPDX-License-Identifier: Apache-2.0
 * --check: findings alone, for scripts that monitor many machines; and --diff. */
#ifndef TOPO_CHECK_H
#define TOPO_CHECK_H

#include "tools/topo/view.h"

/* Returns lines of "SEVERITY: TEXT", or an empty text. JSON is {"status", "source", "hosts", "gpus", "nics",
 * "findings", "probes"} with status "good", "warning" or "fault". *status receives the exit status. The caller frees
 * it; NULL and *error. */
char *topo_check(const topo_view *view, bool json, int *status, tool_error *error);

/* Returns one line per difference: "- " only in the first, "+ " only in the second, "~ " changed. JSON is {"first",
 * "second", "same", "differences": [{"change": "missing|added|changed", "what", "text"}]}. */
char *topo_diff(const topo_view *first, const topo_view *second, bool json, int *status, tool_error *error);

#endif
