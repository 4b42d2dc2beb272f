// SPDX-License-Identifier: Apache-2.0
#include "interrupt.hh"

#include <pthread.h>

#include <nanobind/nanobind.h>

#include "banyan.h"

namespace bny {

namespace nb = nanobind;

namespace {

pthread_t main_thread; // Python's main thread, which alone runs handlers
unsigned forked = 0;

int run_handlers(void *) {
  nb::gil_scoped_acquire with;
  return PyErr_CheckSignals() != 0;
}

} // namespace

void interrupt_prepare() {
  nb::module_ threading = nb::module_::import_("threading");
  main_thread = reinterpret_cast<pthread_t>(nb::cast<size_t>(threading.attr("main_thread")().attr("ident")));
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forked++; });
  (void)registered;
}

interrupt_window::interrupt_window() : watched_(pthread_equal(pthread_self(), main_thread)) {
  if (watched_) banyan_on_wait(run_handlers, nullptr);
}

interrupt_window::~interrupt_window() {
  if (watched_) banyan_on_wait(nullptr, nullptr);
}

unsigned forks() { return forked; }

} // namespace bny
