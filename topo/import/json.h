/* SPDX-License-Identifier: Apache-2.0
 *
 * banyan's own format, which keeps the complete model:
 *   {"format": "banyan-topology", "version": 1,
 *    "nodes": [{"id", "kind", "name", "parent", "index", "model", "vendor", "bus_id", "guid", "attributes", "compute",
 *               "host_bridge", "source"}, ..],
 *    "links": [{"from", "to", "kind", "count", "gbytes_per_s", "rated_gbytes_per_s", "latency_us", "source"}, ..],
 *    "notes": [{"node", "kind", "text"}, ..]}
 * Unknown values are omitted, except gbytes_per_s, which is null. Parents come before children. A reader needs only id
 * and kind of nodes, and from, to and kind of links. An id may be a number; name defaults to id, source to "file";
 * unknown members are ignored. A model that is written and read again is identical, to the last bit. */
#ifndef BNY_TOPO_JSON_H
#define BNY_TOPO_JSON_H

#include "topo/model/model.h"

struct json_t;

/* Returns a new reference, to which more members (levels, findings) may be added; NULL without memory or jansson. */
struct json_t *bny_topo_json(const bny_topo *topo);

/* Returns the text, with one object of an array per line and numbers exact but short; NULL without memory. */
char *bny_topo_json_text(const struct json_t *json);

/* Combines both. Returns text for the caller to free; NULL and *error on failure. */
char *bny_topo_export_json(const bny_topo *topo, bny_topo_error *error);

#endif
