// SPDX-License-Identifier: Apache-2.0
// Handlers of signals run while the main thread waits, as Python has them at that moment. If one raises, as that of
// Ctrl-C does, the library ends the wait. The exception is pending then, and the caller throws it.
#pragma once

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

// How often this process and its ancestors have been forked off: a child has another number than its parent.
unsigned forks();

} // namespace bny
