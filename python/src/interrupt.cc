// SPDX-License-Identifier: Apache-2.0
#include "interrupt.hh"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <thread>

#include <nanobind/nanobind.h>

namespace bny {

namespace {

std::atomic<banyan_comm *> waits_in{nullptr};
std::atomic<unsigned long> calls{0}; // of the main thread
pthread_t main_thread;
std::atomic<bool> watching{false};
sem_t signalled;
struct sigaction before;
std::mutex aborting; // held while a communicator is aborted or destroyed

void on_interrupt(int number, siginfo_t *info, void *context) {
  int saved = errno;
  sem_post(&signalled);
  errno = saved;
  if (before.sa_flags & SA_SIGINFO)
    before.sa_sigaction(number, info, context);
  else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    before.sa_handler(number);
}

void watch() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (true) {
    if (sem_wait(&signalled) != 0) continue;
    banyan_comm *comm = waits_in.load();
    unsigned long call = calls.load();
    if (!comm) continue;
    // A call that is about to return is left to do so.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::lock_guard<std::mutex> lock(aborting);
    if (waits_in.load() == comm && calls.load() == call) banyan_comm_abort(comm, "interrupted by SIGINT");
  }
}

} // namespace

void interrupt_prepare() {
  namespace nb = nanobind;
  nb::module_ threading = nb::module_::import_("threading");
  if (!threading.attr("current_thread")().is(threading.attr("main_thread")())) return;
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) != 0) return;
  bool ours = (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_interrupt;
  if (!ours && !(now.sa_flags & SA_SIGINFO) && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) return;
  main_thread = pthread_self();
  if (!watching.exchange(true)) {
    sem_init(&signalled, 0, 0);
    std::thread(watch).detach();
    static bool registered = false;
    // The thread does not follow into the child of a fork, which begins anew.
    if (!registered) pthread_atfork(nullptr, nullptr, [] { watching = false, waits_in = nullptr; });
    registered = true;
  }
  if (ours) return;
  before = now;
  struct sigaction chained = now;
  chained.sa_sigaction = on_interrupt;
  chained.sa_flags |= SA_SIGINFO;
  sigaction(SIGINT, &chained, nullptr);
}

interrupt_window::interrupt_window(banyan_comm *comm)
    : watched_(watching.load(std::memory_order_relaxed) && pthread_equal(pthread_self(), main_thread)) {
  if (!watched_) return;
  calls.store(calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  waits_in.store(comm, std::memory_order_release);
}

interrupt_window::~interrupt_window() {
  if (watched_) waits_in.store(nullptr, std::memory_order_release);
}

void interrupt_destroy(banyan_comm *comm) {
  std::lock_guard<std::mutex> lock(aborting);
  banyan_comm_destroy(comm);
}

} // namespace bny
