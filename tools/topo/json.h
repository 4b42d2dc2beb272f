/* SPDX-License-Identifier: Apache-2.0
 * JSON parts that several views of banyan-topo write. */
#pragma once

#include <jansson.h>

#include "tools/topo/topo.h"

/* Returns a new reference to [{"id", "severity", "node", "nodes", "text"}]. `nodes` are those of bny_topo_json(). */
json_t *topo_json_findings(const topo_view *view, const json_t *nodes, topo_severity least);

json_t *topo_json_probes(const topo_view *view); /* [{"name", "outcome", "text"}] */

char *topo_json_text(json_t *json); /* takes the reference; NULL: out of memory */
