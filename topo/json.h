/* SPDX-License-Identifier: Apache-2.0
 *
 * Our own format, which keeps all of a model:
 *   {"format": "banyan-topology", "version": 1,
 *    "nodes": [{"id", "kind", "name", "parent", "index", "model", "vendor", "bus_id", "guid", "compute", "host_bridge",
 *               "source"}, ..],
 *    "links": [{"from", "to", "kind", "count", "gbytes_per_s", "rated_gbytes_per_s", "latency_us", "source"}, ..]}
 * What is not known is left out, but for gbytes_per_s, which is null. A parent stands before its children. Only id and kind,
 * from, to and kind are needed when it is read; an id may be a number; name defaults to id, source to "file"; members that
 * are not known are passed over. What is written and read again is the same model, to the last bit. */
#ifndef BNY_TOPO_JSON_H
#define BNY_TOPO_JSON_H

#include "topo/model.h"

struct json_t;

/* A new reference, for more members (levels, findings) to be added to; NULL without memory or without jansson. */
struct json_t *bny_topo_json(const bny_topo *topo);

/* As text, the objects of an array one to a line, numbers exact and as short as that allows; NULL without memory. */
char *bny_topo_json_text(const struct json_t *json);

/* Both. For the caller to free; NULL and *error on failure. */
char *bny_topo_export_json(const bny_topo *topo, bny_topo_error *error);

#endif
