/* SPDX-License-Identifier: Apache-2.0
 * Maps a safetensors file and checks its header. */
#include "tools/common/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The longest accepted header. Real headers have a few hundred bytes per tensor. */
#define HEADER_BYTES_MAX ((uint64_t)100 << 20)

typedef struct dtype_row {
  const char *name;
  size_t bytes;
  banyan_dtype dtype; /* 0: attention does not support this type */
} dtype_row;

static const dtype_row dtype_rows[] = {
    {"F32", 4, BANYAN_F32}, {"F16", 2, BANYAN_F16}, {"BF16", 2, BANYAN_BF16},
    {"F64", 8, 0},          {"I64", 8, 0},          {"U64", 8, 0},
    {"I32", 4, 0},          {"U32", 4, 0},          {"I16", 2, 0},
    {"U16", 2, 0},          {"I8", 1, 0},           {"U8", 1, 0},
    {"BOOL", 1, 0},         {"F8_E4M3", 1, 0},      {"F8_E5M2", 1, 0},
};

static const dtype_row *find_dtype(const char *name) {
  for (size_t i = 0; i < sizeof dtype_rows / sizeof dtype_rows[0]; i++) {
    if (strcmp(dtype_rows[i].name, name) == 0) return &dtype_rows[i];
  }
  return NULL;
}

static bool map_file(const char *path, safetensors *file, tool_error *error) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return tool_error_set(error, "%s: %s", path, strerror(errno));
  struct stat status;
  bool ok = false;
  if (fstat(fd, &status) != 0) {
    tool_error_set(error, "%s: %s", path, strerror(errno));
  } else if (!S_ISREG(status.st_mode)) {
    tool_error_set(error, "%s: not a regular file", path);
  } else if (status.st_size < 8) {
    tool_error_set(error, "%s: %lld bytes, too short for a safetensors file", path, (long long)status.st_size);
  } else {
    void *map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
      tool_error_set(error, "%s: mmap: %s", path, strerror(errno));
    } else {
      file->map = map;
      file->map_bytes = (size_t)status.st_size;
      ok = true;
    }
  }
  close(fd);
  return ok;
}

/* Reads the shape and its number of elements. */
static bool read_shape(const char *path, const char *name, const json_t *json, safetensor *tensor, uint64_t *elements,
                       tool_error *error) {
  if (!json_is_array(json) || json_array_size(json) > SAFETENSORS_DIMS_MAX) {
    return tool_error_set(error, "%s: tensor %.80s: shape is not a list of at most %d sizes", path, name,
                          SAFETENSORS_DIMS_MAX);
  }
  tensor->dims = (int32_t)json_array_size(json);
  *elements = 1;
  for (int32_t i = 0; i < tensor->dims; i++) {
    const json_t *size = json_array_get(json, (size_t)i);
    if (!json_is_integer(size) || json_integer_value(size) < 0)
      return tool_error_set(error, "%s: tensor %.80s: shape[%d] is not a size", path, name, i);
    tensor->shape[i] = json_integer_value(size);
    if (__builtin_mul_overflow(*elements, (uint64_t)tensor->shape[i], elements))
      return tool_error_set(error, "%s: tensor %.80s: shape is too large", path, name);
  }
  return true;
}

static bool read_tensor(const safetensors *file, const char *name, const json_t *json, const unsigned char *data,
                        size_t data_bytes, safetensor *tensor, tool_error *error) {
  const char *path = file->path;
  const char *dtype_name = json_string_value(json_object_get(json, "dtype"));
  const json_t *offsets = json_object_get(json, "data_offsets");
  if (!json_is_object(json) || dtype_name == NULL)
    return tool_error_set(error, "%s: tensor %.80s: no dtype", path, name);
  const dtype_row *row = find_dtype(dtype_name);
  if (row == NULL) return tool_error_set(error, "%s: tensor %.80s: unknown dtype %.20s", path, name, dtype_name);
  uint64_t elements = 0;
  if (!read_shape(path, name, json_object_get(json, "shape"), tensor, &elements, error)) return false;
  if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
      !json_is_integer(json_array_get(offsets, 1))) {
    return tool_error_set(error, "%s: tensor %.80s: data_offsets is not a pair of offsets", path, name);
  }
  json_int_t begin = json_integer_value(json_array_get(offsets, 0));
  json_int_t end = json_integer_value(json_array_get(offsets, 1));
  if (begin < 0 || end < begin || (uint64_t)end > data_bytes) {
    return tool_error_set(error, "%s: tensor %.80s: data_offsets [%lld, %lld] lie outside the %zu bytes of data", path,
                          name, (long long)begin, (long long)end, data_bytes);
  }
  uint64_t bytes;
  if (__builtin_mul_overflow(elements, (uint64_t)row->bytes, &bytes) || bytes != (uint64_t)(end - begin)) {
    return tool_error_set(error,
                          "%s: tensor %.80s: data_offsets span %lld bytes, which is not what shape and dtype %s need",
                          path, name, (long long)(end - begin), row->name);
  }
  tensor->name = name;
  tensor->dtype_name = row->name;
  tensor->dtype = row->dtype;
  tensor->supported = row->dtype != 0;
  tensor->data = data + begin;
  tensor->bytes = (size_t)bytes;
  return true;
}

static int compare_places(const void *a, const void *b) {
  const safetensor *x = a, *y = b;
  if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors come before others at the same offset */
}

static bool check_overlap(const safetensors *file, tool_error *error) {
  for (size_t i = 1; i < file->count; i++) {
    const safetensor *a = &file->tensors[i - 1], *b = &file->tensors[i];
    if ((const char *)b->data < (const char *)a->data + a->bytes)
      return tool_error_set(error, "%s: the data of tensors %.80s and %.80s overlap", file->path, a->name, b->name);
  }
  return true;
}

static bool read_header(safetensors *file, tool_error *error) {
  uint64_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | file->map[i];
  if (length > file->map_bytes - 8) {
    return tool_error_set(error, "%s: header length %llu is more than the %zu bytes of the file", file->path,
                          (unsigned long long)length, file->map_bytes);
  }
  if (length > HEADER_BYTES_MAX) {
    return tool_error_set(error, "%s: header length %llu is more than is sensible", file->path,
                          (unsigned long long)length);
  }
  json_error_t json_error;
  file->header = json_loadb((const char *)file->map + 8, (size_t)length, JSON_REJECT_DUPLICATES, &json_error);
  if (!json_is_object(file->header)) {
    return tool_error_set(error, "%s: the header is not a JSON object: %s", file->path,
                          file->header == NULL ? json_error.text : "another kind of value");
  }
  file->tensors = tool_new(json_object_size(file->header), sizeof *file->tensors);
  const unsigned char *data = file->map + 8 + length;
  size_t data_bytes = file->map_bytes - 8 - (size_t)length;
  const char *name;
  json_t *value;
  json_object_foreach(file->header, name, value) {
    if (strcmp(name, "__metadata__") == 0) {
      if (!json_is_object(value)) return tool_error_set(error, "%s: __metadata__ is not an object", file->path);
    } else {
      if (!read_tensor(file, name, value, data, data_bytes, &file->tensors[file->count], error)) return false;
      file->count++;
    }
  }
  qsort(file->tensors, file->count, sizeof *file->tensors, compare_places);
  return check_overlap(file, error);
}

bool safetensors_open(const char *path, safetensors **file, tool_error *error) {
  safetensors *opened = tool_new(1, sizeof *opened);
  opened->path = path;
  if (!map_file(path, opened, error) || !read_header(opened, error)) {
    safetensors_close(opened);
    return false;
  }
  *file = opened;
  return true;
}

void safetensors_close(safetensors *file) {
  if (file == NULL) return;
  json_decref(file->header);
  if (file->map != NULL) munmap(file->map, file->map_bytes);
}

const safetensor *safetensors_find(const safetensors *file, const char *name) {
  for (size_t i = 0; i < file->count; i++) {
    if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
  }
  return NULL;
}

const char *safetensors_metadata(const safetensors *file, const char *key) {
  return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}
