// SPDX-License-Identifier: Apache-2.0
// Failures become the exceptions of banyan.errors.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "banyan.h"

namespace bny {

namespace nb = nanobind;

// Throws the exception of `status`. Its text is banyan_last_error(), or `text` if that is given.
[[noreturn]] void raise_status(banyan_status status, int32_t rank, const char *text = nullptr);

// Throws ArgumentError, which names the argument. The Python exception that is set, if any, becomes its cause.
[[noreturn]] void refuse(const char *argument, const std::string &text);

// Throws StateError.
[[noreturn]] void refuse_state(const std::string &text);

} // namespace bny
