// SPDX-License-Identifier: Apache-2.0
// The memory layout of XLA's foreign function interface, major version 0: https://openxla.org/xla/custom_call. Only the
// parts that a CPU target reads are declared. Every struct begins with its size and a list of extensions.
#pragma once
#include <cstddef>
#include <cstdint>

namespace bny {

enum ffi_dtype : int32_t {
  FFI_S32 = 4,
  FFI_S64 = 5,
  FFI_F16 = 10,
  FFI_F32 = 11,
  FFI_BF16 = 16,
  FFI_F8E5M2 = 19,
  FFI_F8E4M3FN = 20
};
enum ffi_code : int32_t { FFI_INVALID_ARGUMENT = 3, FFI_DEADLINE_EXCEEDED = 4, FFI_ABORTED = 10, FFI_UNAVAILABLE = 14 };
enum { FFI_STAGE_EXECUTE = 3, FFI_ATTRIBUTE_SCALAR = 3, FFI_EXTENSION_METADATA = 1 };

struct ffi_extension {
  size_t size;
  int32_t type;
  ffi_extension *next;
};

struct ffi_version {
  size_t size;
  ffi_extension *extensions;
  int32_t major;
  int32_t minor;
};

struct ffi_metadata {
  size_t size;
  ffi_version version;
  uint32_t traits;
};

// The handler is called once with this extension, and reports the version that it was built for.
struct ffi_metadata_extension {
  ffi_extension base;
  ffi_metadata *metadata;
};

struct ffi_buffer {
  size_t size;
  ffi_extension *extensions;
  ffi_dtype dtype;
  void *data;
  int64_t rank;
  int64_t *dims;
};

struct ffi_text {
  const char *start;
  size_t length;
};

struct ffi_scalar {
  ffi_dtype dtype;
  void *value;
};

// Arguments and results alike: pointers to ffi_buffer.
struct ffi_list {
  size_t size;
  ffi_extension *extensions;
  int64_t count;
  int32_t *types;
  void **items;
};

struct ffi_attributes {
  size_t size;
  ffi_extension *extensions;
  int64_t count;
  int32_t *types;
  ffi_text **names;
  void **items;
};

struct ffi_error;

struct ffi_error_arguments {
  size_t size;
  ffi_extension *extensions;
  const char *text;
  ffi_code code;
};

struct ffi_api {
  size_t size;
  ffi_extension *extensions;
  ffi_version version;
  const void *internal;
  ffi_error *(*make_error)(ffi_error_arguments *arguments);
};

struct ffi_call {
  size_t size;
  ffi_extension *extensions;
  const ffi_api *api;
  void *context;
  int32_t stage;
  ffi_list arguments;
  ffi_list results;
  ffi_attributes attributes;
};

} // namespace bny
