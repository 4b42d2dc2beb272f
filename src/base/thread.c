/* SPDX-License-Identifier: Apache-2.0
 * Starts threads with a fixed stack size and with signals blocked. */
#include "base/thread.h"

#include <signal.h>

/* These stay unblocked: if a fault's signal is blocked, the kernel ends the process and the program's handler does not
 * run. */
static void block_signals(sigset_t *before) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  sigset_t blocked;
  sigfillset(&blocked);
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) sigdelset(&blocked, faults[i]);
  pthread_sigmask(SIG_SETMASK, &blocked, before);
}

int bny_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument) {
  pthread_attr_t attributes;
  sigset_t before;
  int error = pthread_attr_init(&attributes);
  if (error) return error;
  error = pthread_attr_setstacksize(&attributes, BNY_THREAD_STACK_BYTES);
  if (!error) {
    block_signals(&before);
    error = pthread_create(thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  pthread_attr_destroy(&attributes);
  return error;
}
