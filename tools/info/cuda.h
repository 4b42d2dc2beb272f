/* SPDX-License-Identifier: Apache-2.0
 * What the CUDA driver says of itself and its devices, where there is one. */
#ifndef INFO_CUDA_H
#define INFO_CUDA_H

struct json_t;

/* {"driver": "13.0" or null, "devices": [{"name", "bytes"}], "text"}; "text" says it all, or why there is none. */
struct json_t *info_cuda(void);

#endif
