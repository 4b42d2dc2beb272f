/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPU_JSON_H
#define GPU_JSON_H

#include <jansson.h>

#include "tools/common/gpu.h"

/* What a device is, as an object. */
json_t *gpu_facts_json(const gpu_facts *facts);

#endif
