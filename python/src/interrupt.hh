// SPDX-License-Identifier: Apache-2.0
// Ctrl-C ends a wait of the main thread: it aborts the communicator that this thread waits in.
//
// Python's handler of SIGINT only notes the signal, and the main thread looks when it runs Python again. A thread of
// the library's own therefore learns of the signal, by a handler before Python's. Calls pay two atomic stores for it.
#pragma once
#include "banyan.h"

namespace bny {

// Prepares for Ctrl-C, if the calling thread is the main thread and SIGINT has a handler of Python. The caller holds
// the GIL.
void interrupt_prepare();

// The main thread is in a call of this communicator while the object lives. In other threads it does nothing.
class interrupt_window {
public:
  explicit interrupt_window(banyan_comm *comm);
  ~interrupt_window();

private:
  bool watched_;
};

// Frees a communicator, which nobody then aborts.
void interrupt_destroy(banyan_comm *comm);

} // namespace bny
