// SPDX-License-Identifier: Apache-2.0
// The memory layout of DLPack: https://dmlc.github.io/dlpack. All frameworks exchange arrays by these structs.
#pragma once
#include <cstdint>

namespace bny {

enum dl_device_type : int32_t { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum dl_code : uint8_t {
  DL_INT = 0,
  DL_UINT = 1,
  DL_FLOAT = 2,
  DL_BFLOAT = 4,
  DL_COMPLEX = 5,
  DL_BOOL = 6,
  DL_FLOAT8_E4M3FN = 10,
  DL_FLOAT8_E5M2 = 12
};

struct dl_device {
  int32_t type;
  int32_t id;
};

struct dl_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct dl_tensor {
  void *data;
  dl_device device;
  int32_t ndim;
  dl_dtype dtype;
  int64_t *shape;
  int64_t *strides; // in elements; NULL: contiguous
  uint64_t byte_offset;
};

// In a capsule "dltensor".
struct dl_managed {
  dl_tensor tensor;
  void *context;
  void (*deleter)(dl_managed *self);
};

struct dl_version {
  uint32_t major;
  uint32_t minor;
};

// In a capsule "dltensor_versioned".
struct dl_managed_versioned {
  dl_version version;
  void *context;
  void (*deleter)(dl_managed_versioned *self);
  uint64_t flags;
  dl_tensor tensor;
};

inline constexpr uint64_t DL_READ_ONLY = 1;

// In a capsule "dlpack_exchange_api", the attribute __dlpack_c_exchange_api__ of a type. Functions return 0, or -1 with
// a Python exception set.
struct dl_exchange {
  dl_version version;
  dl_exchange *previous;
  int (*allocate)(dl_tensor *prototype, dl_managed_versioned **out, void *error_context,
                  void (*set_error)(void *error_context, const char *kind, const char *message));
  int (*from_object)(void *object, dl_managed_versioned **out);
  int (*to_object)(dl_managed_versioned *tensor, void **object);
  int (*borrow)(void *object, dl_tensor *out); // may be NULL
  int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
};

} // namespace bny
