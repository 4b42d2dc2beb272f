/* SPDX-License-Identifier: Apache-2.0
 * JSON that several views of banyan-topo write. */
#ifndef TOPO_JSON_H
#define TOPO_JSON_H

#include <jansson.h>

#include "topo_view.h"

/* A new reference: [{"severity", "node", "text"}]; `nodes` are those of bny_topo_json(). NULL without memory. */
json_t *topo_json_findings(const bny_topo_levels *levels, const json_t *nodes);

json_t *topo_json_probes(const topo_view *view); /* [{"name", "outcome", "text"}] */

/* Text for the caller to free; takes the reference. NULL and *error without memory, or if json is NULL for want of
 * it. */
char *topo_json_text(json_t *json, tool_error *error);

#endif
