/* SPDX-License-Identifier: Apache-2.0
 * banyan-topo --explain BYTES: the algorithm chosen for partials of that size on this topology, and the reason. */
#ifndef BNY_TOOLS_TOPO_EXPLAIN_H
#define BNY_TOOLS_TOPO_EXPLAIN_H

#include <stdbool.h>
#include <stddef.h>

#include "tools/topo/view.h"

/* Returns text for the caller to free, or NULL and *error. It is for a combine of f32 rows of 128 values in 32 heads,
 * on all ranks. */
char *topo_explain(const topo_view *view, size_t bytes, bool json, tool_error *error);

#endif
