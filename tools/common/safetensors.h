/* SPDX-License-Identifier: Apache-2.0
 * Reads safetensors files: a u64 header length, a JSON object of tensors, then their data. The file is untrusted, so
 * all fields are checked against its size before use. */
#pragma once

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

typedef struct safetensors {
  const char *path;
  unsigned char *map;
  size_t map_bytes;
  struct json_t *header;
  safetensor *tensors; /* in the order of their offsets */
  size_t count;
} safetensors;

/* The memory is that of tool_new() (util.h), except for the mapped file and the header. */
bool safetensors_open(const char *path, safetensors **file, tool_error *error);
void safetensors_close(safetensors *file); /* NULL is allowed */

const safetensor *safetensors_find(const safetensors *file, const char *name); /* NULL if there is none */
const char *safetensors_metadata(const safetensors *file, const char *key);    /* NULL if there is none */
