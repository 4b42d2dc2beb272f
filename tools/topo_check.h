/* SPDX-License-Identifier: Apache-2.0
 * --check: findings alone, for scripts that watch over many machines; and --diff. */
#ifndef TOPO_CHECK_H
#define TOPO_CHECK_H

#include "topo_view.h"

/* Exit statuses, of which 2 is any program's for what went wrong. */
enum { TOPO_EXIT_GOOD = 0, TOPO_EXIT_DIFFERS = 1, TOPO_EXIT_WARNINGS = 1, TOPO_EXIT_TROUBLE = 2, TOPO_EXIT_FAULTS = 3 };

/* "SEVERITY: TEXT" a line, nothing if there is nothing; or {"status", "source", "hosts", "gpus", "nics", "findings",
 * "probes"} of which status is "good", "warning" or "fault". *status receives the exit status. */
char *topo_check(const topo_view *view, bool json, int *status, tool_error *error);

/* What differs, a line each: "- " only in the first, "+ " only in the second, "~ " changed; or
 * {"first", "second", "same", "differences": [{"change": "missing|added|changed", "what", "text"}]}. */
char *topo_diff(const topo_view *first, const topo_view *second, bool json, int *status, tool_error *error);

#endif
