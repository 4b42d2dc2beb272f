/* SPDX-License-Identifier: Apache-2.0
 * Parts of the JSON output that all tools share. */
#pragma once

#include <jansson.h>

#include "tools/common/gpu.h"
#include "tools/common/util.h"

/* Returns a new object that begins with "version", "command" (quoted for a shell), "date" (UTC, ISO 8601) and "node"
 * {"hostname", "cpus" (that this process may use), "kernel"}, followed by the members of `object`. Takes the reference
 * to `object`. Returns NULL if out of memory. */
json_t *tool_json_stamped(json_t *object);

/* Appends the members of `more`, whose reference it takes, to an object. */
void tool_json_add(json_t *object, json_t *more);

/* Writes the stamped object and a newline. Takes the reference. On failure *error describes the write error. */
bool tool_json_write(json_t *object, FILE *stream, tool_error *error);

/* Returns null for infinity, which JSON does not have. */
json_t *tool_json_real(double value);

/* Describes a device as an object. */
json_t *tool_json_gpu(const gpu_facts *facts);
