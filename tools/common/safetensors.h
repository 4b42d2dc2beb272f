/* SPDX-License-Identifier: Apache-2.0 Reads safetensors files: a u64 header length, a JSON object of tensors, then
 * their data. The file may come from anywhere, so all its fields are checked against its size before use. */
#ifndef BNY_TOOLS_COMMON_SAFETENSORS_H
#define BNY_TOOLS_COMMON_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "tools/common/util.h"

enum { SAFETENSORS_DIMS_MAX = 8 };

typedef struct safetensor {
  const char *name;
  banyan_dtype dtype;
  const char *dtype_name; /* as in the file: "F16" */
  bool supported;         /* false: dtype is not supported; only the name is known */
  int32_t dims;
  int64_t shape[SAFETENSORS_DIMS_MAX];
  const void *data; /* at any address */
  size_t bytes;
} safetensor;

typedef struct safetensors safetensors;

bool safetensors_open(const char *path, safetensors **file, tool_error *error);
void safetensors_close(safetensors *file); /* NULL is allowed */

const char *safetensors_path(const safetensors *file);
size_t safetensors_count(const safetensors *file);
const safetensor *safetensors_at(const safetensors *file, size_t index);       /* in order of their place in the file */
const safetensor *safetensors_find(const safetensors *file, const char *name); /* NULL if there is none */
const char *safetensors_metadata(const safetensors *file, const char *key);    /* NULL if there is none */

#endif
