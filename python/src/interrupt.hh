// SPDX-License-Identifier: Apache-2.0
// Handlers of signals run while the main thread waits, as Python has them at that moment. If one raises, as that of
// Ctrl-C does, the library ends the wait. The exception is pending then, and the caller throws it.
#pragma once

#include <Python.h>

namespace bny {

// Called once, with the GIL.
void interrupt_prepare();

// The calling thread is in a call that may wait while the object lives. Only the main thread of Python is concerned.
class interrupt_window {
public:
  interrupt_window();
  ~interrupt_window();

private:
  bool watched_;
};

// Releases the GIL. A daemon thread that would take it again while Python ends sleeps instead: Python would end the
// thread by unwinding its stack, and C++ would end the process.
class gil_released {
public:
  gil_released() noexcept : state_(PyEval_SaveThread()) {}
  gil_released(const gil_released &) = delete;
  ~gil_released();

private:
  PyThreadState *state_;
};

// How often this process and its ancestors have been forked off: a child has another number than its parent.
unsigned forks();

} // namespace bny
