// SPDX-License-Identifier: Apache-2.0
#include "interrupt.hh"

#include <atomic>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <nanobind/nanobind.h>

#include "banyan.h"

namespace bny {

namespace nb = nanobind;

namespace {

pthread_t main_thread; // Python's main thread, the only one that runs handlers
unsigned forked = 0;
std::atomic<bool> ending = false; // Python's exit handlers have run
std::atomic<int> returning = 0;   // threads that are about to take the GIL

int run_handlers(void *) {
  nb::gil_scoped_acquire with;
  return PyErr_CheckSignals() != 0;
}

// Threads that have not seen `ending` can take the GIL here. They could not once Python has ended.
void end() {
  ending = true;
  while (returning > 0) {
    PyThreadState *state = PyEval_SaveThread();
    sched_yield();
    PyEval_RestoreThread(state);
  }
}

// The thread that forked is the child's main thread and its only one.
void begin_child() {
  forked++;
  main_thread = pthread_self();
  returning = 0;
}

} // namespace

gil_released::~gil_released() {
  returning++;
  if (ending && !pthread_equal(pthread_self(), main_thread)) {
    returning--;
    while (true) pause();
  }
  PyEval_RestoreThread(state_);
  returning--;
}

void interrupt_prepare() {
  nb::module_ threading = nb::module_::import_("threading");
  main_thread = reinterpret_cast<pthread_t>(nb::cast<size_t>(threading.attr("main_thread")().attr("ident")));
  static const int registered = pthread_atfork(nullptr, nullptr, begin_child);
  (void)registered;
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(end));
}

interrupt_window::interrupt_window() : watched_(pthread_equal(pthread_self(), main_thread)) {
  if (watched_) banyan_on_wait(run_handlers, nullptr);
}

interrupt_window::~interrupt_window() {
  if (watched_) banyan_on_wait(nullptr, nullptr);
}

unsigned forks() { return forked; }

} // namespace bny
