// SPDX-License-Identifier: Apache-2.0
// Reads arrays of any framework without copying, and makes new arrays of the same framework.
#pragma once
#include "dlpack.hh"
#include "errors.hh"

#include <algorithm>
#include <initializer_list>

namespace bny {

inline constexpr int ARRAY_DIMS = 6;

// The sizes of the dimensions of a new array, at most ARRAY_DIMS.
class dims_list {
public:
  dims_list(std::initializer_list<int64_t> dims) : dims_list(dims.begin(), static_cast<int>(dims.size())) {}
  dims_list(const int64_t *first, int count) : count_(count) { std::copy(first, first + count, dims_); }
  const int64_t *begin() const { return dims_; }
  const int64_t *end() const { return dims_ + count_; }
  size_t size() const { return static_cast<size_t>(count_); }

private:
  int count_;
  int64_t dims_[ARRAY_DIMS];
};

enum class framework { numpy, torch, jax, cupy, other };

framework framework_of(nb::handle object);
bool is_masked(nb::handle object); // an array of numpy.ma

// The memory of an array, which is held from open() until this object is destroyed. Strides are in elements.
class array {
public:
  // While an object of this class exists, arrays are opened as lasting or not lasting.
  struct lasting_scope {
    explicit lasting_scope(bool lasting) : before(now) { now = lasting; }
    lasting_scope(const lasting_scope &) = delete;
    ~lasting_scope() { now = before; }
    bool before;
    inline static thread_local bool now = false;
  };

  array() = default;
  array(const array &) = delete;
  array &operator=(const array &) = delete;
  ~array();

  // Reads `object`, which errors call `argument`. `write` means that it receives a result. `device` is that of the
  // communicator; for "" (the CPU) `stream` is ignored.
  void open(const char *argument, nb::handle object, bool write, const std::string &device, void *stream);

  // Opens another array in place of the one before. Returns false if its shape, strides or dtype differ.
  bool reopen(nb::handle object, bool write, const std::string &device, void *stream);

  // Makes a contiguous array like `like`, which `pattern` has read, and reads it. With `f32` the dtype is f32.
  nb::object make(const char *argument, nb::handle like, const array &pattern, const dims_list &dims, bool f32,
                  const std::string &device, void *stream);

  void want_dims(int dims, const char *shape_text) const;       // else ArgumentError
  void want_shape(int dim, int64_t size, const char *of) const; // `of` names the origin of the size
  void want_contiguous_rows() const;                            // the last dimension
  void want_contiguous() const;                                 // all dimensions
  void want_rows_apart(int dims) const;       // not all strides of the first `dims` are 0, which means contiguous
  void want_writable(const char *what) const; // although it was opened to be read
  int32_t size32(int dim) const;              // a dimension below 2^31, otherwise ArgumentError
  void want_vector(int64_t size, const char *shape_text, const char *of) const; // one dimension of this size
  banyan_dtype number() const;                             // f32, f16 or bf16, otherwise ArgumentError
  float *floats() const;                                   // the memory of an f32 array, otherwise ArgumentError
  const uint8_t *flags() const;                            // the memory of a bool or uint8 array, otherwise the same
  banyan_dtype values_number(bool integers = false) const; // also 8-bit floats, and int8 if `integers`
  int64_t count() const;
  size_t bytes() const { return static_cast<size_t>(count()) * (dtype.bits / 8u); }
  std::string dtype_name() const;

  const char *name = "";
  // A lasting array keeps its memory even if the framework's array gets other memory. A call that only reads the array
  // now is faster without this.
  bool lasting = lasting_scope::now;
  void *data = nullptr;
  int ndim = 0;
  int64_t shape[ARRAY_DIMS]; // the first ndim elements are set
  int64_t strides[ARRAY_DIMS];
  dl_dtype dtype = {};
  dl_device device = {DL_CPU, 0};

private:
  bool open_buffer(nb::handle object, bool write);
  bool open_exchange(nb::handle object);
  nb::object make_torch(nb::handle like, const array &pattern, const dims_list &dims);
  void open_torch(nb::handle object, void *stream);
  void open_dlpack(nb::handle object, void *stream);
  void open_capsule(nb::object capsule);
  void take(const dl_tensor &tensor);
  void check_device(const std::string &wanted) const;

  bool read_only_ = false;
  bool buffered_ = false;
  Py_buffer buffer_;   // if buffered_
  nb::object storage_; // keeps the memory of a lasting tensor
  nb::object owner_;   // keeps the memory: a capsule or the array itself
};

// A new array of the framework and dtype of `object`; with `f32` the dtype is f32. JAX arrays are immutable, so a numpy
// array is used until finished() converts it to JAX.
nb::object empty_like(const char *argument, nb::handle object, const dims_list &dims, bool f32 = false);
// Makes an array of the framework of `object`, and of this dtype, such as "float32".
nb::object empty_of(nb::handle object, const dims_list &dims, const char *dtype);
// Converts an array, or each of a tuple, to JAX if `like` is of JAX.
nb::object finished(nb::handle like, nb::object made);

// Returns the current stream of the framework of `object`; NULL if it has none.
void *current_stream(nb::handle object);

} // namespace bny
