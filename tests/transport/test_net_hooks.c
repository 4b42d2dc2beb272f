/* SPDX-License-Identifier: Apache-2.0
 * The effects of loading UCX on the process: libc remains unpatched unless the user or another library requests memory
 * events, and later requests still work. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/support/world.h"

#include <ucm/api/ucm.h>

#include "tests/transport/net_util.h"
#include "tests/support/suite.h"

/* The functions that UCX would patch with jumps. */
static const char *const functions[] = {"mmap", "munmap", "mremap", "shmat", "shmdt", "brk", "sbrk", "madvise"};

enum { FUNCTIONS = sizeof functions / sizeof functions[0], BEGINNING_BYTES = 16 };

typedef struct beginnings {
  unsigned char bytes[FUNCTIONS][BEGINNING_BYTES];
} beginnings;

/* Reads the functions as the program sees them. A sanitizer has its own versions of some, which UCX would patch. */
static beginnings read_beginnings(void) {
  beginnings now;
  for (int i = 0; i < FUNCTIONS; i++) {
    void *function = dlsym(RTLD_DEFAULT, functions[i]);
    ck_assert_msg(function, "no %s", functions[i]);
    memcpy(now.bytes[i], function, BEGINNING_BYTES);
  }
  return now;
}

static void use_ucx(world_rank *self) {
  ck_assert_int_eq(banyan_barrier(self->comm), BANYAN_OK);
  world_meet(self);
}

static void make_communicators(void) {
  world_be_nodes("a,b");
  WORLD_RUN(use_ucx, .nranks = 2);
}

static const char *first_difference(const beginnings *a, const beginnings *b) {
  for (int i = 0; i < FUNCTIONS; i++)
    if (memcmp(a->bytes[i], b->bytes[i], BEGINNING_BYTES) != 0) return functions[i];
  return NULL;
}

TEST(libc_stays_as_it_is) {
  unsetenv("UCX_MEM_EVENTS");
  beginnings before = read_beginnings();
  make_communicators();
  beginnings after = read_beginnings();
  const char *changed = first_difference(&before, &after);
  ck_assert_msg(!changed, "%s() has been written into", changed);
}

static atomic_int unmapped;

static void note_unmapping(ucm_event_type_t type, ucm_event_t *event, void *argument) {
  (void)type, (void)event, (void)argument;
  atomic_fetch_add(&unmapped, 1);
}

/* A sanitizer replaces libc's functions, which UCX must not patch then. */
#define EVENTS (world_is_sanitized() ? 0 : 1)

/* Requests events as a registration cache of UCX does, or MPI over UCX. */
TEST_LOOP(others_get_memory_events, EVENTS) {
  unsetenv("UCX_MEM_EVENTS");
  make_communicators();
  void *library = dlopen("libucm.so.0", RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library, "%s", dlerror());
  ucs_status_t (*set_handler)(int, int, ucm_event_callback_t, void *);
  void *address = dlsym(library, "ucm_set_event_handler");
  ck_assert_ptr_nonnull(address);
  memcpy(&set_handler, &address, sizeof address);
  ck_assert_int_eq(set_handler(UCM_EVENT_VM_UNMAPPED, 0, note_unmapping, NULL), UCS_OK);
  int before = atomic_load(&unmapped);
  void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(memory, MAP_FAILED);
  ck_assert_int_eq(munmap(memory, 4096), 0);
  ck_assert_int_gt(atomic_load(&unmapped), before);
}

TEST_LOOP(the_user_decides, EVENTS) {
  setenv("UCX_MEM_EVENTS", "y", 1);
  beginnings before = read_beginnings();
  make_communicators();
  beginnings after = read_beginnings();
  ck_assert_ptr_nonnull(first_difference(&before, &after));
}

/* Checks in a child process, because each test must be the first to load UCX. */
static bool is_absent(void) {
  pid_t child = fork();
  if (child == 0) {
    bool absent = net_is_absent();
    fflush(stdout);
    _exit(absent ? 1 : 0);
  }
  int how = 0;
  return child < 0 || waitpid(child, &how, 0) != child || how != 0;
}

int main(void) {
  if (is_absent()) return 77;
  return world_main(suite_of("net_hooks", 30));
}
