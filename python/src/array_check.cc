// SPDX-License-Identifier: Apache-2.0
// Checks of arrays. A failed check raises an ArgumentError that names the argument.
#include "array.hh"

namespace bny {

void array::check_device(const std::string &wanted) const {
  if (device.type == DL_CUDA_MANAGED || device.type == DL_CUDA_HOST) return;
  if (wanted.empty() && device.type != DL_CPU) {
    reject(name, "the array is on a device (DLPack type " + std::to_string(device.type) + ", number " +
                     std::to_string(device.id) +
                     "), and this communicator is on the host: make it with device=\"cuda\", or copy the array");
  }
  if (!wanted.empty() && device.type == DL_CPU)
    reject(name, "the array is in host memory, and this communicator is on " + wanted);
}

void array::want_dims(int dims, const char *shape_text) const {
  if (ndim == dims) return;
  reject(name, "it has " + std::to_string(ndim) + " dimensions, and its shape is " + shape_text);
}

void array::want_shape(int dim, int64_t size, const char *of) const {
  if (shape[dim] == size) return;
  reject(name, "dimension " + std::to_string(dim) + " is " + std::to_string(shape[dim]) + ", and " + of + " is " +
                   std::to_string(size));
}

int32_t array::size32(int dim) const {
  if (shape[dim] > INT32_MAX) reject(name, "a dimension is above 2^31 - 1");
  return static_cast<int32_t>(shape[dim]);
}

void array::want_vector(int64_t size, const char *shape_text, const char *of) const {
  want_dims(1, shape_text);
  want_shape(0, size, of);
}

float *array::floats() const {
  if (dtype.code != DL_FLOAT || dtype.bits != 32) reject(name, dtype_name() + ": it is float32");
  return static_cast<float *>(data);
}

const uint8_t *array::flags() const {
  if (dtype.bits != 8 || (dtype.code != DL_BOOL && dtype.code != DL_UINT))
    reject(name, dtype_name() + ": it is bool or uint8");
  return static_cast<const uint8_t *>(data);
}

void array::want_contiguous_rows() const {
  if (ndim == 0 || shape[ndim - 1] <= 1 || strides[ndim - 1] == 1 || count() == 0) return;
  reject(name, "the last dimension is not contiguous: its stride is " + std::to_string(strides[ndim - 1]) +
                   " elements, and banyan wants 1");
}

void array::want_contiguous() const {
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    if (shape[i] > 1 && strides[i] != stride && count() > 0) reject(name, "the array is not contiguous");
    stride *= shape[i];
  }
}

void array::want_rows_apart(int dims) const {
  int64_t rows = 1;
  for (int i = 0; i < dims; i++) rows *= strides[i] == 0 ? shape[i] : 0;
  if (rows > 1 && count() > 0)
    reject(name, "its rows share their memory, as those of expand() and broadcast_to() do; use a copy");
}

void array::want_writable(const char *what) const {
  if (read_only_) reject(name, std::string("the array is read-only, and receives ") + what);
}

banyan_dtype array::number() const {
  if (dtype.code == DL_FLOAT && dtype.bits == 32) return BANYAN_F32;
  if (dtype.code == DL_FLOAT && dtype.bits == 16) return BANYAN_F16;
  if (dtype.code == DL_BFLOAT && dtype.bits == 16) return BANYAN_BF16;
  reject(name, dtype_name() + ": banyan takes float32, float16 and bfloat16");
}

banyan_dtype array::values_number(bool integers) const {
  if (dtype.code == DL_FLOAT8_E4M3FN) return BANYAN_E4M3;
  if (dtype.code == DL_FLOAT8_E5M2) return BANYAN_E5M2;
  if (integers && dtype.code == DL_INT && dtype.bits == 8) return BANYAN_I8;
  if (dtype.bits == 8)
    reject(name, dtype_name() + ": of eight bits banyan takes float8_e4m3fn and float8_e5m2" +
                     (integers ? ", and int8" : ""));
  return number();
}

int64_t array::count() const {
  int64_t product = 1;
  for (int i = 0; i < ndim; i++) product *= shape[i];
  return product;
}

std::string array::dtype_name() const {
  static const char *const names[] = {"int", "uint", "float", "handle", "bfloat", "complex"};
  if (dtype.code == DL_FLOAT8_E4M3FN) return "float8_e4m3fn";
  if (dtype.code == DL_FLOAT8_E5M2) return "float8_e5m2";
  if (dtype.code == DL_BOOL) return "bool";
  std::string kind = dtype.code < 6 ? names[dtype.code] : "float of DLPack's code " + std::to_string(dtype.code) + ", ";
  return kind + std::to_string(dtype.bits);
}

} // namespace bny
