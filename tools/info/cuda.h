/* SPDX-License-Identifier: Apache-2.0
 * The report of the CUDA driver about itself and its devices, if there is a driver. */
#pragma once

struct json_t;

/* {"driver": "13.0" or null, "devices": [{"name", "bytes"}], "text"}; "text" says it all, or why there is none. */
struct json_t *info_cuda(void);
