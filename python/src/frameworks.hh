// SPDX-License-Identifier: Apache-2.0
// Frameworks: their types, and functions that are looked up once.
#pragma once
#include "array.hh"

namespace bny {

// Types and functions of frameworks, found once. They are never released, because the interpreter ends first.
struct known_types {
  PyTypeObject *numpy_array = nullptr;
  PyTypeObject *torch_tensor = nullptr;
  const dl_exchange *torch_exchange = nullptr;
  PyObject *numpy_empty = nullptr;
  PyObject *torch_to_dlpack = nullptr;
  PyObject *dtype_word = nullptr, *new_empty_word = nullptr, *requires_grad_word = nullptr;
};

extern known_types known;

struct torch_number {
  const char *name;
  dl_dtype dtype;
};

inline constexpr torch_number torch_numbers[] = {{"float32", {DL_FLOAT, 32, 1}},
                                                 {"bfloat16", {DL_BFLOAT, 16, 1}},
                                                 {"float16", {DL_FLOAT, 16, 1}},
                                                 {"int32", {DL_INT, 32, 1}},
                                                 {"float8_e4m3fn", {DL_FLOAT8_E4M3FN, 8, 1}},
                                                 {"float8_e5m2", {DL_FLOAT8_E5M2, 8, 1}},
                                                 {"int8", {DL_INT, 8, 1}},
                                                 {"uint8", {DL_UINT, 8, 1}},
                                                 {"bool", {DL_BOOL, 8, 1}}};

PyObject *word(PyObject **kept, const char *text);

// Returns the C exchange API of the object's type; NULL if it has none.
const dl_exchange *exchange_of(nb::handle object);

} // namespace bny
