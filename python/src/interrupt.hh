// SPDX-License-Identifier: Apache-2.0
// Python's current signal handlers run while the main thread waits. If a handler raises, like that of Ctrl-C, the
// library ends the wait. The exception is then pending, and the caller throws it.
#pragma once

#include <Python.h>

namespace bny {

// Called once, with the GIL.
void interrupt_prepare();

// While the object exists, the calling thread is in a call that may wait. It has an effect only in Python's main
// thread.
class interrupt_window {
public:
  interrupt_window();
  ~interrupt_window();

private:
  bool watched_;
};

// Releases the GIL. A daemon thread that would take it again while Python ends sleeps instead. Otherwise Python would
// unwind the thread's stack, and C++ would terminate the process.
class gil_released {
public:
  gil_released() noexcept : state_(PyEval_SaveThread()) {}
  gil_released(const gil_released &) = delete;
  ~gil_released();

private:
  PyThreadState *state_;
};

// Returns the number of forks of this process and its ancestors. A child has a different number from its parent.
unsigned forks();

} // namespace bny
