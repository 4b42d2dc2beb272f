// SPDX-License-Identifier: Apache-2.0
// Calls of the module as Python sees them. nanobind's own have no signature for inspect, and list all signatures in
// several lines if arguments are wrong. A call forwards to one of them, and costs no more unless it fails.
#include "comm.hh"

#include <algorithm>
#include <iterator>
#include <structmember.h>

namespace bny {

namespace {

struct call {
  PyObject head;
  vectorcallfunc vectorcall;
  PyObject *target; // a function or method of nanobind
};

constexpr const char *COLLECTIVE[] = {"allgather",         "allgather_heads", "allreduce",
                                      "attention_combine", "barrier",         "broadcast",
                                      "combine",           "select",          "shift"};

call *of(PyObject *self) { return reinterpret_cast<call *>(self); }

// Replaces nanobind's error by one line. The peers of a communicator learn of it, as of arguments that are rejected.
void explain(PyObject *target, PyObject *const *args, size_t count, PyObject *names) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  nb::object kind = nb::steal(type), error = nb::steal(value), where = nb::steal(trace);
  try {
    std::string text = error.is_valid() ? nb::str(error).c_str() : "";
    if (text.find("(): incompatible function arguments.") == std::string::npos) {
      PyErr_Restore(kind.release().ptr(), error.release().ptr(), where.release().ptr());
      return;
    }
    nb::list given;
    for (size_t i = 0; i < count; i++) given.append(nb::handle(args[i]));
    nb::dict named;
    Py_ssize_t size = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t i = 0; i < size; i++)
      named[nb::handle(PyTuple_GetItem(names, i))] = nb::handle(args[count + static_cast<size_t>(i)]);
    nb::object said = nb::module_::import_("banyan.errors").attr("wrong_call")(nb::handle(target), given, named);
    PyErr_SetObject(PyExc_TypeError, said.ptr());
    std::string name = nb::str(nb::handle(target).attr("__name__")).c_str();
    bool init = name.size() > 5 && name.compare(name.size() - 5, 5, "_init") == 0;
    bool collective = std::find(std::begin(COLLECTIVE), std::end(COLLECTIVE),
                                name.substr(0, name.size() - (init ? 5 : 0))) != std::end(COLLECTIVE);
    if (collective && count > 0 && nb::isinstance<comm>(args[0]) && nb::inst_ready(args[0]))
      nb::inst_ptr<comm>(args[0])->read(init, [] { throw nb::python_error(); });
  } catch (nb::python_error &failed) {
    failed.restore();
  }
}

PyObject *forward(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
  PyObject *target = of(self)->target;
  PyObject *result = PyObject_Vectorcall(target, args, flags, names);
  if (!result && PyErr_ExceptionMatches(PyExc_TypeError))
    explain(target, args, static_cast<size_t>(PyVectorcall_NARGS(flags)), names);
  return result;
}

PyObject *bind(PyObject *self, PyObject *owner, PyObject *) {
  if (!owner || owner == Py_None) return Py_INCREF(self), self;
  nb::object method = nb::steal(PyImport_ImportModule("types"));
  if (method.is_valid()) method = nb::steal(PyObject_GetAttrString(method.ptr(), "MethodType"));
  return method.is_valid() ? PyObject_CallFunctionObjArgs(method.ptr(), self, owner, nullptr) : nullptr;
}

PyObject *attribute(PyObject *self, PyObject *name) {
  PyObject *found = PyObject_GenericGetAttr(self, name);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  if (!PyUnicode_CompareWithASCIIString(name, "__signature__")) {
    nb::object errors = nb::steal(PyImport_ImportModule("banyan.errors"));
    return errors.is_valid() ? PyObject_CallMethod(errors.ptr(), "signature_of", "O", of(self)->target) : nullptr;
  }
  return PyObject_GetAttr(of(self)->target, name);
}

PyObject *docstring(PyObject *self, void *) { return PyObject_GetAttrString(of(self)->target, "__doc__"); }
PyObject *shown(PyObject *self) { return PyObject_Repr(of(self)->target); }

int traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(of(self)->target);
  return 0;
}

int clear(PyObject *self) {
  Py_CLEAR(of(self)->target);
  return 0;
}

void dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

template <class function> void *slot(function *of) { return reinterpret_cast<void *>(of); }

// Wraps the functions or methods of nanobind among the attributes of a module or class.
void wrap(nb::handle type, nb::handle owner) {
  for (nb::handle name : nb::list(nb::handle(owner.attr("__dict__")))) {
    std::string text = nb::str(name).c_str();
    nb::object target = owner.attr("__dict__")[name];
    std::string kind = nb::str(target.type().attr("__name__")).c_str();
    if ((kind != "nb_func" && kind != "nb_method") || (text[0] == '_' && text[1] == '_')) continue;
    PyObject *made = PyType_GenericAlloc(reinterpret_cast<PyTypeObject *>(type.ptr()), 0);
    if (!made) throw nb::python_error();
    of(made)->vectorcall = forward;
    of(made)->target = target.release().ptr();
    owner.attr(name) = nb::steal(made);
  }
}

} // namespace

void wrap_calls(nb::module_ &module) {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(call, vectorcall), READONLY, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  static PyGetSetDef getters[] = {{"__doc__", docstring, nullptr, nullptr, nullptr},
                                  {nullptr, nullptr, nullptr, nullptr, nullptr}};
  PyType_Slot slots[] = {{Py_tp_call, slot(PyVectorcall_Call)},
                         {Py_tp_descr_get, slot(bind)},
                         {Py_tp_getattro, slot(attribute)},
                         {Py_tp_repr, slot(shown)},
                         {Py_tp_traverse, slot(traverse)},
                         {Py_tp_clear, slot(clear)},
                         {Py_tp_dealloc, slot(dealloc)},
                         {Py_tp_members, members},
                         {Py_tp_getset, getters},
                         {0, nullptr}};
  PyType_Spec spec = {
      "banyan._core.Call", sizeof(call), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  nb::object type = nb::steal(PyType_FromSpec(&spec));
  if (!type.is_valid()) throw nb::python_error();
  for (nb::handle each : nb::list(nb::handle(module.attr("__dict__").attr("values")())))
    if (PyType_Check(each.ptr())) wrap(type, each);
  wrap(type, module);
}

} // namespace bny
