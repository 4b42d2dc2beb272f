/* SPDX-License-Identifier: Apache-2.0
 * Parts that the JSON of all tools has in common. */
#ifndef BNY_TOOLS_COMMON_JSON_H
#define BNY_TOOLS_COMMON_JSON_H

#include <jansson.h>

#include "tools/common/gpu.h"
#include "tools/common/util.h"

/* Takes an object and returns it with these members in front: "version", "command" (as it can be typed), "date" (UTC,
 * ISO 8601) and "node" {"hostname", "cpus" (that this process may use), "kernel"}. NULL without memory. */
json_t *tool_json_stamped(json_t *object);

/* Writes the stamped object and a newline; takes the reference. The error is that of standard output. */
bool tool_json_write(json_t *object, FILE *stream, tool_error *error);

/* Returns null for infinity, which JSON does not have. */
json_t *tool_json_real(double value);

/* Describes a device as an object. */
json_t *tool_json_gpu(const gpu_facts *facts);

#endif
