/* SPDX-License-Identifier: Apache-2.0
 * Numbers this process, so that the child of a fork() notices that it is a different process. The number lies in a page
 * that the kernel gives to children as zeros. */
#include "base/process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

typedef _Atomic uint64_t number;

/* The library's only mutable global variable. A communicator cannot hold the number of the current process. */
static struct {
  number *_Atomic own; /* this process's number; 0: it has none yet */
  number plain;        /* used in place of the page if the kernel has no such pages */
  number last;         /* children inherit it, and count from there */
  pthread_once_t once;
} this_process = {.once = PTHREAD_ONCE_INIT};

static void forget(void) {
  number *mine = atomic_load_explicit(&this_process.own, memory_order_relaxed);
  if (mine) atomic_store_explicit(mine, 0, memory_order_relaxed);
}

/* Linux before 4.14 and sandboxes lack such pages, and emulators only claim to have them. A fork() handler then does
 * the same. Only the page also covers children that clone() makes. */
static void make(void) {
  size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
  void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  number *made = &this_process.plain;
  if (page != MAP_FAILED && madvise(page, bytes, MADV_WIPEONFORK) == 0)
    made = page;
  else if (page != MAP_FAILED)
    munmap(page, bytes);
  pthread_atfork(NULL, NULL, forget);
  atomic_store_explicit(&this_process.own, made, memory_order_release);
}

uint64_t bny_process(void) {
  number *mine = atomic_load_explicit(&this_process.own, memory_order_acquire);
  if (!mine) {
    pthread_once(&this_process.once, make);
    mine = atomic_load_explicit(&this_process.own, memory_order_acquire);
  }
  uint64_t now = atomic_load_explicit(mine, memory_order_relaxed), next;
  if (now) return now;
  next = atomic_fetch_add_explicit(&this_process.last, 1, memory_order_relaxed) + 1;
  return atomic_compare_exchange_strong(mine, &now, next) ? next : now;
}
