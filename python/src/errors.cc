// SPDX-License-Identifier: Apache-2.0
#include "errors.hh"

namespace bny {

namespace {

[[noreturn]] void raise(nb::object error, nb::object cause) {
  if (cause.is_valid()) error.attr("__cause__") = cause;
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

// Returns the pending exception and clears it.
nb::object pending() {
  if (!PyErr_Occurred()) return nb::object();
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return nb::steal(value);
}

} // namespace

void throw_pending() {
  if (PyErr_Occurred()) throw nb::python_error();
}

no_throw::~no_throw() {
  if (!PyErr_Occurred()) return;
  if (!PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
    PyErr_WriteUnraisable(nullptr);
    return;
  }
  PyErr_Clear();
  PyErr_SetInterrupt();
}

void raise_status(banyan_status status, int32_t rank, const char *text) {
  std::string copy = text ? text : banyan_last_error();
  // Ctrl-C aborts the communicator. It raises KeyboardInterrupt, not the error of the abort.
  throw_pending();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  nb::object make = nb::module_::import_("banyan.errors").attr("make_error");
  raise(make(static_cast<int>(status), copy, rank), nb::object());
}

void reject(const char *argument, const std::string &text) {
  nb::object cause = pending();
  nb::object type = nb::module_::import_("banyan.errors").attr("ArgumentError");
  nb::object error = type(std::string(argument) + ": " + text);
  error.attr("argument") = argument;
  raise(error, cause);
}

void reject_state(const std::string &text) {
  nb::object make = nb::module_::import_("banyan.errors").attr("make_error");
  raise(make(static_cast<int>(BANYAN_ERR_STATE), text, -1), nb::object());
}

} // namespace bny
