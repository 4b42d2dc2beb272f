/* SPDX-License-Identifier: Apache-2.0
 * banyan's own format, which keeps the complete model:
 *   {"format": "banyan-topology", "version": 1,
 *    "nodes": [{"id", "kind", "name", "parent", "index", "model", "vendor", "bus_id", "guid", "attributes", "compute",
 *               "host_bridge", "source"}, ..],
 *    "links": [{"from", "to", "kind", "count", "gbytes_per_s", "rated_gbytes_per_s", "latency_us", "source"}, ..],
 *    "notes": [{"node", "kind", "text"}, ..]}
 * Unknown values are omitted, except gbytes_per_s, which is null. Parents come before children. A reader needs only id
 * and kind of nodes, and from, to and kind of links. An id may be a number; name defaults to id, source to "file";
 * unknown members are ignored. Writing and reading a model returns the same model, bit for bit. */
#pragma once

#include "topo/model/model.h"

struct json_t;

/* Returns a new reference, to which more members (levels, findings) may be added; NULL without memory or jansson. */
struct json_t *bny_topo_json(const bny_topo *topo);

/* Returns the text; NULL if out of memory. Each object of an array has its own line, and numbers have as few digits as
 * exact reading allows. */
char *bny_topo_json_text(const struct json_t *json);

/* Combines both. Returns text that the caller frees. On failure it returns NULL and sets *error. */
char *bny_topo_export_json(const bny_topo *topo, bny_topo_error *error);
