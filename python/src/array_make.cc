// SPDX-License-Identifier: Apache-2.0
// New arrays of the caller's framework.
#include "frameworks.hh"

namespace bny {

namespace {

nb::tuple shape_tuple(std::initializer_list<int64_t> dims) {
  PyObject *tuple = PyTuple_New(static_cast<Py_ssize_t>(dims.size()));
  Py_ssize_t i = 0;
  for (int64_t dim : dims) PyTuple_SetItem(tuple, i++, PyLong_FromLongLong(dim));
  return nb::steal<nb::tuple>(tuple);
}

} // namespace

// By the exchange API of C, which takes a third of the time of new_empty(). Invalid: by other means.
nb::object array::make_exchange(nb::handle like, const array &pattern, std::initializer_list<int64_t> dims) {
  if (Py_TYPE(like.ptr()) != known.torch_tensor || !known.torch_exchange) return nb::object();
  const dl_exchange *exchange = known.torch_exchange;
  if (!exchange->allocate || !exchange->to_object) return nb::object();
  int i = 0;
  for (int64_t dim : dims) shape[i++] = dim;
  dl_tensor prototype = {nullptr, pattern.device, i, pattern.dtype, shape, nullptr, 0};
  dl_managed_versioned *managed = nullptr;
  auto ignore = [](void *, const char *, const char *) {};
  if (exchange->allocate(&prototype, &managed, nullptr, ignore) != 0) return nb::object();
  take(managed->tensor);
  void *object = nullptr;
  if (exchange->to_object(managed, &object) != 0) throw nb::python_error();
  return nb::steal(static_cast<PyObject *>(object));
}

// A tensor in host memory that torch has just made: all but its address is known. False: it has to be read.
bool array::made_as(const array &pattern, nb::handle made, std::initializer_list<int64_t> dims) {
  if (Py_TYPE(made.ptr()) != known.torch_tensor || pattern.device.type != DL_CPU) return false;
  nb::object pointer =
      nb::steal(PyObject_CallMethodObjArgs(made.ptr(), word(&known.data_ptr_word, "data_ptr"), nullptr));
  if (!pointer.is_valid()) throw nb::python_error();
  dl_tensor tensor = {PyLong_AsVoidPtr(pointer.ptr()), pattern.device, 0, pattern.dtype, shape, nullptr, 0};
  for (int64_t dim : dims) shape[tensor.ndim++] = dim;
  take(tensor);
  return true;
}

nb::object array::make(const char *argument, nb::handle like, const array &pattern, std::initializer_list<int64_t> dims,
                       bool f32, const std::string &wanted, void *stream) {
  name = argument;
  if (!f32 && !lasting) {
    nb::object made = make_exchange(like, pattern, dims);
    if (made.is_valid()) return made;
  }
  nb::object made = empty_like(argument, like, shape_tuple(dims), f32);
  if (f32 || lasting || !made_as(pattern, made, dims)) open(argument, made, true, wanted, stream);
  return made;
}

namespace {

// An array like `object`, but of f32: no result of eight bits is made without being asked for.
nb::object empty_f32(nb::handle object, nb::handle shape) {
  framework kind = framework_of(object);
  if (kind == framework::torch) {
    nb::object f32 = nb::module_::import_("torch").attr("float32");
    return object.attr("new_empty")(shape, nb::arg("dtype") = f32);
  }
  nb::object space = nb::module_::import_(kind == framework::cupy ? "cupy" : "numpy");
  return space.attr("empty")(shape, nb::arg("dtype") = "float32");
}

} // namespace

nb::object empty_like(const char *argument, nb::handle object, nb::handle shape, bool f32) {
  if (f32) return empty_f32(object, shape);
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
    if (!dtype.is_valid()) refuse(argument, "its type has no dtype; give out=");
    made = PyObject_CallFunctionObjArgs(known.numpy_empty, shape.ptr(), dtype.ptr(), nullptr);
  } else if (PyObject_HasAttrString(object.ptr(), "__array_namespace__") || kind == framework::cupy) {
    nb::object space = kind == framework::cupy ? nb::object(nb::module_::import_("cupy"))
                                               : nb::object(object.attr("__array_namespace__")());
    nb::object empty = space.attr("empty")(shape, nb::arg("dtype") = object.attr("dtype"));
    made = empty.release().ptr();
  }
  if (!made) refuse(argument, "no array like it can be made; give out=");
  return nb::steal(made);
}

nb::object finished(nb::handle like, nb::object made) {
  if (like.is_none() || !made.is_valid() || made.is_none() || framework_of(like) != framework::jax) return made;
  return nb::module_::import_("jax.numpy").attr("asarray")(made);
}

} // namespace bny
