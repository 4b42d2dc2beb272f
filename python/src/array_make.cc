// SPDX-License-Identifier: Apache-2.0
// New arrays of the caller's framework.
#include <cstdlib>
#include <new>

#include "frameworks.hh"

namespace bny {

namespace {

nb::tuple shape_tuple(const dims_list &dims) {
  PyObject *tuple = PyTuple_New(static_cast<Py_ssize_t>(dims.size()));
  Py_ssize_t i = 0;
  for (int64_t dim : dims) PyTuple_SetItem(tuple, i++, PyLong_FromLongLong(dim));
  return nb::steal<nb::tuple>(tuple);
}

// Host memory for a tensor and its DLPack descriptor, in one block. The tensor that is made of it frees the block.
struct piece {
  dl_managed_versioned managed;
  int64_t shape[ARRAY_DIMS];
  int64_t strides[ARRAY_DIMS];

  static piece *make(const array &pattern, const dims_list &dims) {
    constexpr size_t line = 64, head = (sizeof(piece) + line - 1) / line * line;
    size_t bytes = pattern.dtype.bits / 8u;
    for (int64_t dim : dims) bytes *= static_cast<size_t>(dim);
    void *memory = std::aligned_alloc(line, (head + bytes + line - 1) / line * line);
    if (!memory) throw std::bad_alloc();
    piece *made = new (memory) piece();
    int ndim = static_cast<int>(dims.size()), i = ndim;
    int64_t stride = 1;
    std::copy(dims.begin(), dims.end(), made->shape);
    while (i-- > 0) made->strides[i] = stride, stride *= made->shape[i];
    made->managed.version = {1, 0};
    made->managed.context = made;
    made->managed.deleter = [](dl_managed_versioned *self) { std::free(self->context); };
    made->managed.tensor = {
        static_cast<char *>(memory) + head, pattern.device, ndim, pattern.dtype, made->shape, made->strides, 0};
    return made;
  }
};

} // namespace

// Makes a tensor of host memory that is allocated here, in a third of the time of new_empty(). Returns an invalid
// object if it does not apply, as for a torch without DLPack's exchange API.
nb::object array::make_torch(nb::handle like, const array &pattern, const dims_list &dims) {
  const dl_exchange *exchange = known.torch_exchange;
  if (Py_TYPE(like.ptr()) != known.torch_tensor || pattern.device.type != DL_CPU || !exchange || !exchange->to_object)
    return nb::object();
  piece *made = piece::make(pattern, dims);
  dl_tensor tensor = made->managed.tensor;
  void *object = nullptr;
  if (exchange->to_object(&made->managed, &object) != 0) throw nb::python_error();
  // torch may have freed the descriptor, so `tensor` points to the shape in this object.
  std::copy(dims.begin(), dims.end(), shape);
  tensor.shape = shape, tensor.strides = nullptr;
  take(tensor);
  return nb::steal(static_cast<PyObject *>(object));
}

nb::object array::make(const char *argument, nb::handle like, const array &pattern, const dims_list &dims, bool f32,
                       const std::string &wanted, void *stream) {
  name = argument;
  if (!f32 && !lasting) {
    nb::object made = make_torch(like, pattern, dims);
    if (made.is_valid()) return made;
  }
  nb::object made = empty_like(argument, like, dims, f32);
  open(argument, made, true, wanted, stream);
  return made;
}

nb::object empty_of(nb::handle object, const dims_list &dims, const char *dtype) {
  nb::tuple shape = shape_tuple(dims);
  framework kind = framework_of(object);
  if (kind == framework::torch) {
    nb::object type = nb::module_::import_("torch").attr(dtype);
    return object.attr("new_empty")(shape, nb::arg("dtype") = type);
  }
  nb::object space = nb::module_::import_(kind == framework::cupy ? "cupy" : "numpy");
  return space.attr("empty")(shape, nb::arg("dtype") = dtype);
}

nb::object empty_like(const char *argument, nb::handle object, const dims_list &dims, bool f32) {
  if (f32) return empty_of(object, dims, "float32"); // results have eight bits only on request
  nb::tuple shape = shape_tuple(dims);
  framework kind = framework_of(object);
  PyObject *made = nullptr;
  if (kind == framework::torch) {
    made = PyObject_CallMethodObjArgs(object.ptr(), word(&known.new_empty_word, "new_empty"), shape.ptr(), nullptr);
  } else if (kind == framework::numpy || kind == framework::jax) {
    if (!known.numpy_empty) {
      nb::object empty = nb::module_::import_("numpy").attr("empty");
      known.numpy_empty = empty.release().ptr();
    }
    nb::object dtype = nb::steal(PyObject_GetAttr(object.ptr(), word(&known.dtype_word, "dtype")));
    if (!dtype.is_valid()) { // the object has only a buffer; numpy takes bytes for text, but not a memoryview
      PyErr_Clear();
      nb::object view = nb::steal(PyMemoryView_FromObject(object.ptr()));
      dtype = nb::module_::import_("numpy").attr("asarray")(view).attr("dtype");
    }
    made = PyObject_CallFunctionObjArgs(known.numpy_empty, shape.ptr(), dtype.ptr(), nullptr);
  } else if (PyObject_HasAttrString(object.ptr(), "__array_namespace__") || kind == framework::cupy) {
    nb::object space = kind == framework::cupy ? nb::object(nb::module_::import_("cupy"))
                                               : nb::object(object.attr("__array_namespace__")());
    nb::object empty = space.attr("empty")(shape, nb::arg("dtype") = object.attr("dtype"));
    made = empty.release().ptr();
  }
  if (!made) reject(argument, "no array like it can be made; give out=");
  return nb::steal(made);
}

nb::object finished(nb::handle like, nb::object made) {
  if (like.is_none() || !made.is_valid() || made.is_none() || framework_of(like) != framework::jax) return made;
  if (!PyTuple_Check(made.ptr())) return nb::module_::import_("jax.numpy").attr("asarray")(made);
  nb::list list;
  for (nb::handle each : made) list.append(finished(like, nb::borrow(each)));
  return nb::tuple(list);
}

} // namespace bny
