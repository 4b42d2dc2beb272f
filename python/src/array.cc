// SPDX-License-Identifier: Apache-2.0
#include "array.hh"

#include <cstring>

#include "frameworks.hh"

namespace bny {

namespace {

// Reads a format of the struct module. Returns false if it is not a number or has the other byte order.
bool read_format(const char *format, Py_ssize_t item_bytes, dl_dtype *dtype) {
  if (!format) format = "B";
  if (*format == '@' || *format == '=' || *format == '<') format++;
  bool is_complex = *format == 'Z';
  if (is_complex) format++;
  if (*format == 0 || format[1] != 0) return false;
  uint8_t code;
  if (std::strchr("efdg", *format))
    code = is_complex ? DL_COMPLEX : DL_FLOAT;
  else if (std::strchr("bhilqn", *format))
    code = DL_INT;
  else if (std::strchr("cBHILQN", *format))
    code = DL_UINT;
  else if (*format == '?')
    code = DL_BOOL;
  else
    return false;
  *dtype = {code, static_cast<uint8_t>(item_bytes * 8), 1};
  return true;
}

constexpr const char *takes = ": banyan takes integers, floats and complex numbers";

// The message includes the framework's own exception, if there is one.
[[noreturn]] void reject_memory(const char *name) {
  std::string said;
  if (PyErr_Occurred()) {
    nb::python_error cause;
    std::string text = nb::str(cause.value()).c_str();
    said = " (" + text.substr(0, text.find('\n')) + ")";
    cause.restore();
  }
  reject(name, "its framework does not give its memory" + said +
                   ": it was freed, or is not a dense array, as .to_dense(), .dequantize() or a copy make one");
}

// Returns the name of the dtype of `object`, or "" if it has none.
std::string text_of_dtype(nb::handle object) {
  nb::object type = nb::steal(PyObject_GetAttrString(object.ptr(), "dtype"));
  nb::object text = nb::steal(type.is_valid() ? PyObject_Str(type.ptr()) : nullptr);
  PyErr_Clear();
  return text.is_valid() ? nb::str(text).c_str() : "";
}

} // namespace

array::~array() {
  if (buffered_) PyBuffer_Release(&buffer_);
}

void array::open(const char *argument, nb::handle object, bool write, const std::string &wanted, void *stream) {
  name = argument;
  if (buffered_) PyBuffer_Release(&buffer_);
  buffered_ = read_only_ = false;
  device = {DL_CPU, 0};
  if (object.is_none()) reject(name, "it is None, and not an array");
  framework kind = framework_of(object);
  if (kind == framework::torch) {
    open_torch(object, stream);
  } else if ((kind == framework::numpy || kind == framework::jax) && open_buffer(object, write)) {
    // open_buffer() has set read_only_.
  } else if (!open_exchange(object)) {
    open_dlpack(object, stream);
  }
  if (write && kind == framework::jax) reject(name, "arrays of JAX cannot be written; leave it out");
  if (write) want_writable("a result");
  if (dtype.lanes > 1) reject(name, "its elements are vectors, and not numbers");
  check_device(wanted);
  if (!data && count() > 0)
    reject(name, "the array has no memory of its own: it was freed, or wraps another, as a DTensor its to_local()");
  // DLPack keeps the tensor alive, but .data or .set_() may replace its memory. So the storage is kept too.
  if (lasting && kind == framework::torch && nb::hasattr(object, "untyped_storage"))
    storage_ = object.attr("untyped_storage")();
}

bool array::reopen(nb::handle object, bool write, const std::string &wanted, void *stream) {
  int dims = ndim;
  dl_dtype type = dtype;
  int64_t layout[2][ARRAY_DIMS];
  std::memcpy(layout[0], shape, sizeof shape), std::memcpy(layout[1], strides, sizeof strides);
  open(name, object, write, wanted, stream);
  size_t bytes = static_cast<size_t>(ndim) * sizeof *shape;
  return ndim == dims && dtype.code == type.code && dtype.bits == type.bits &&
         std::memcmp(layout[0], shape, bytes) == 0 && std::memcmp(layout[1], strides, bytes) == 0;
}

// Uses the buffer protocol, which numpy, bytearray and JAX arrays on a CPU support. Returns false if another is needed.
bool array::open_buffer(nb::handle object, bool write) {
  if (Py_TYPE(object.ptr()) != known.numpy_array && is_masked(object))
    reject(name, "it is a masked array, whose mask would be lost; use .filled(), or token_mask");
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    nb::python_error cause;
    if (!PyObject_HasAttrString(object.ptr(), "dtype")) {
      cause.restore();
      reject(name, "its memory cannot be read");
    }
    if (framework_of(object) == framework::jax) return false;
    // The package ml_dtypes gives numpy bf16 and eight-bit floats, but buffers cannot name these types.
    std::string said = text_of_dtype(object);
    for (const torch_number &row : torch_numbers) {
      if (said != row.name) continue;
      owner_ = object.attr("view")(row.dtype.bits == 8 ? "uint8" : "uint16");
      if (!open_buffer(owner_, write)) return false;
      dtype = row.dtype;
      return true;
    }
    reject(name, said + takes);
  }
  buffered_ = true;
  if (!read_format(buffer_.format, buffer_.itemsize, &dtype)) {
    bool swapped = *buffer_.format == '>' || *buffer_.format == '!';
    std::string said = text_of_dtype(object);
    reject(name, (said.empty() ? "elements of format \"" + std::string(buffer_.format) + "\"" : said) +
                     (swapped ? ": numbers are in this machine's order of bytes" : takes));
  }
  if (buffer_.ndim > ARRAY_DIMS) reject(name, "it has more than six dimensions");
  ndim = buffer_.ndim;
  read_only_ = buffer_.readonly;
  data = buffer_.buf;
  // ctypes arrays provide no strides, even on request. They are contiguous.
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    shape[i] = buffer_.shape[i];
    strides[i] = buffer_.strides ? buffer_.strides[i] / buffer_.itemsize : stride;
    if (buffer_.strides && buffer_.strides[i] % buffer_.itemsize != 0)
      reject(name, "its strides are not whole elements");
    stride *= shape[i];
  }
  return true;
}

// Uses DLPack's exchange API in C, which creates no Python object.
bool array::open_exchange(nb::handle object) {
  const dl_exchange *exchange =
      Py_TYPE(object.ptr()) == known.torch_tensor ? known.torch_exchange : exchange_of(object);
  if (!exchange) return false;
  if (exchange->borrow && !lasting) {
    dl_tensor tensor;
    if (exchange->borrow(object.ptr(), &tensor) != 0) reject_memory(name);
    take(tensor);
    return true;
  }
  dl_managed_versioned *managed = nullptr;
  if (!exchange->from_object || exchange->from_object(object.ptr(), &managed) != 0) reject_memory(name);
  nb::object capsule = nb::steal(PyCapsule_New(managed, "dltensor_versioned", [](PyObject *self) {
    dl_managed_versioned *held = static_cast<dl_managed_versioned *>(PyCapsule_GetPointer(self, "dltensor_versioned"));
    if (held && held->deleter) held->deleter(held);
  }));
  open_capsule(capsule);
  return true;
}

// torch's C function is several times faster than Tensor.__dlpack__, which is written in Python.
void array::open_torch(nb::handle object, void *stream) {
  nb::object grad = nb::steal(PyObject_GetAttr(object.ptr(), word(&known.requires_grad_word, "requires_grad")));
  if (!grad.is_valid()) PyErr_Clear();
  if (grad.ptr() == Py_True) {
    if (nb::cast<bool>(nb::module_::import_("torch").attr("is_grad_enabled")()))
      reject(name, "the tensor requires a gradient, which does not pass; use .detach(), or torch.no_grad()");
    nb::object plain = object.attr("detach")(); // a Parameter under no_grad(); same memory
    return open_torch(plain, stream);
  }
  if (open_exchange(object)) {
    // A lazily negated tensor has strides of imaginary parts. Only such tensors are tested, because is_neg() is slow.
    bool may_be = ndim > 0 && (strides[ndim - 1] != 1 || shape[ndim - 1] == 1);
    if (may_be && nb::cast<bool>(object.attr("is_neg")()))
      reject(name, "its negation has been put off; use .resolve_neg()");
    if (dtype.code == DL_COMPLEX && nb::cast<bool>(object.attr("is_conj")()))
      reject(name, "its conjugation has been put off; use .resolve_conj()");
    return;
  }
  if (!known.torch_to_dlpack) {
    nb::object convert = nb::module_::import_("torch.utils.dlpack").attr("to_dlpack");
    known.torch_to_dlpack = convert.release().ptr();
  }
  nb::object capsule = nb::steal(PyObject_CallFunctionObjArgs(known.torch_to_dlpack, object.ptr(), nullptr));
  if (!capsule.is_valid()) reject_memory(name);
  open_capsule(capsule);
  if (device.type == DL_CUDA) open_dlpack(object, stream); // this orders the streams
}

void array::open_dlpack(nb::handle object, void *stream) {
  if (std::strstr(nb::type_name(object.type()).c_str(), "Tracer"))
    reject(name, "it is traced by JAX, and has no memory yet; there banyan.jax_ops.combine is called");
  if (!PyObject_HasAttrString(object.ptr(), "__dlpack__"))
    reject(name, "a " + std::string(nb::type_name(object.type()).c_str()) + " is not an array: it has no __dlpack__");
  nb::object capsule;
  try {
    nb::dict arguments;
    nb::object where = object.attr("__dlpack_device__")();
    int kind;
    PyObject *id;
    if (!PyArg_ParseTuple(where.ptr(), "iO", &kind, &id)) throw nb::python_error();
    if (kind == DL_CUDA) {
      // DLPack denotes the default stream by 1.
      arguments["stream"] = stream ? reinterpret_cast<uintptr_t>(stream) : 1;
    }
    nb::object give = object.attr("__dlpack__");
    try {
      capsule = give(nb::arg("max_version") = nb::make_tuple(1, 0), **arguments);
    } catch (nb::python_error &error) {
      if (!error.matches(PyExc_TypeError)) throw;
      capsule = give(**arguments);
    }
  } catch (nb::python_error &error) {
    error.restore();
    reject_memory(name);
  }
  open_capsule(capsule);
}

// Keeps the capsule without consuming it. Its destructor releases the memory.
void array::open_capsule(nb::object capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    take(static_cast<dl_managed *>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    void *memory = PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned");
    const dl_managed_versioned *managed = static_cast<dl_managed_versioned *>(memory);
    if (managed->version.major != 1) reject(name, "its DLPack version is not 1");
    read_only_ = managed->flags & DL_READ_ONLY;
    take(managed->tensor);
  } else {
    reject(name, "__dlpack__ returned no tensor");
  }
  owner_ = capsule;
}

void array::take(const dl_tensor &tensor) {
  if (tensor.ndim > ARRAY_DIMS) reject(name, "it has more than six dimensions");
  if (tensor.ndim < 0 || (tensor.ndim > 0 && !tensor.shape))
    reject(name, "__dlpack__ returned a tensor without a shape");
  ndim = tensor.ndim;
  dtype = tensor.dtype;
  device = tensor.device;
  data = tensor.data ? static_cast<char *>(tensor.data) + tensor.byte_offset : nullptr;
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    shape[i] = tensor.shape[i];
    strides[i] = tensor.strides ? tensor.strides[i] : stride;
    stride *= shape[i];
  }
}

} // namespace bny
