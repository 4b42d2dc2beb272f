// SPDX-License-Identifier: Apache-2.0
// Converts failures to the exceptions of banyan.errors.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "banyan.h"

namespace bny {

namespace nb = nanobind;

// Throws the exception of `status`. Its text is `text`, or banyan_last_error() by default.
[[noreturn]] void raise_status(banyan_status status, int32_t rank, const char *text = nullptr);

// Throws the exception that a signal handler has raised during a wait, if there is one.
void throw_pending();

// For destructors, which cannot throw. A pending exception is kept, and exceptions of signal handlers are deferred.
class no_throw {
public:
  no_throw() = default;
  ~no_throw();

private:
  nb::error_scope before_;
};

// Throws ArgumentError, which names the argument. The Python exception that is set, if any, becomes its cause.
[[noreturn]] void reject(const char *argument, const std::string &text);

// Throws StateError.
[[noreturn]] void reject_state(const std::string &text);

} // namespace bny
