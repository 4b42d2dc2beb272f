/* SPDX-License-Identifier: Apache-2.0
 * The report of the CUDA driver about itself and its devices, if there is a driver. */
#ifndef BNY_TOOLS_INFO_CUDA_H
#define BNY_TOOLS_INFO_CUDA_H

struct json_t;

/* {"driver": "13.0" or null, "devices": [{"name", "bytes"}], "text"}; "text" says it all, or why there is none. */
struct json_t *info_cuda(void);

#endif
