// SPDX-License-Identifier: Apache-2.0
#include "frameworks.hh"

#include <cstring>

namespace bny {

known_types known;

PyObject *word(PyObject **kept, const char *text) {
  if (!*kept) *kept = PyUnicode_InternFromString(text);
  return *kept;
}

namespace {

std::string module_of(nb::handle object) {
  nb::object name = nb::steal(PyObject_GetAttrString(object.type().ptr(), "__module__"));
  const char *text =
      name.is_valid() && PyUnicode_Check(name.ptr()) ? PyUnicode_AsUTF8AndSize(name.ptr(), nullptr) : nullptr;
  PyErr_Clear();
  return text ? text : "";
}

bool begins(const std::string &text, const char *start) { return text.compare(0, std::strlen(start), start) == 0; }

// Returns the framework of a type or of its first base that has one. User classes come before their bases.
framework framework_of_bases(PyTypeObject *type) {
  nb::object bases = nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject *>(type), "__mro__"));
  for (nb::handle base : bases) {
    nb::object name = nb::steal(PyObject_GetAttrString(base.ptr(), "__module__"));
    const char *text =
        name.is_valid() && PyUnicode_Check(name.ptr()) ? PyUnicode_AsUTF8AndSize(name.ptr(), nullptr) : "";
    PyErr_Clear();
    if (text && begins(text, "torch")) return framework::torch;
    if (text && begins(text, "jax")) return framework::jax;
    if (text && begins(text, "cupy")) return framework::cupy;
  }
  return framework::other;
}

} // namespace

bool is_masked(nb::handle object) { return begins(module_of(object), "numpy.ma"); }

const dl_exchange *exchange_of(nb::handle object) {
  nb::object capsule = nb::steal(PyObject_GetAttrString(object.type().ptr(), "__dlpack_c_exchange_api__"));
  void *table = nullptr;
  if (capsule.is_valid() && PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api"))
    table = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
  PyErr_Clear();
  const dl_exchange *exchange = static_cast<const dl_exchange *>(table);
  return exchange && exchange->version.major == 1 ? exchange : nullptr;
}

framework framework_of(nb::handle object) {
  PyTypeObject *type = Py_TYPE(object.ptr());
  if (type == known.numpy_array) return framework::numpy;
  if (type == known.torch_tensor) return framework::torch;
  std::string module = module_of(object);
  std::string name = nb::type_name(object.type()).c_str();
  if (begins(module, "torch")) {
    if (module == "torch" && name.find("Tensor") != std::string::npos) {
      known.torch_exchange = exchange_of(object);
      known.torch_tensor = type;
      Py_INCREF(reinterpret_cast<PyObject *>(type));
    }
    return framework::torch;
  }
  if (begins(module, "jax")) return framework::jax;
  if (begins(module, "cupy")) return framework::cupy;
  if (module == "numpy" && name.find("ndarray") != std::string::npos) {
    known.numpy_array = type;
    Py_INCREF(reinterpret_cast<PyObject *>(type));
  }
  return PyObject_CheckBuffer(object.ptr()) ? framework::numpy : framework_of_bases(type);
}

void *current_stream(nb::handle object) {
  nb::object number;
  switch (framework_of(object)) {
  case framework::torch:
    number = nb::module_::import_("torch.cuda").attr("current_stream")().attr("cuda_stream");
    break;
  case framework::cupy: number = nb::module_::import_("cupy.cuda").attr("get_current_stream")().attr("ptr"); break;
  default: return nullptr;
  }
  return PyLong_AsVoidPtr(number.ptr());
}

} // namespace bny
