/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_UCX
#include "transport/ucx_library.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <ucm/api/ucm.h>
#include <unistd.h>

#include "status.h"

static const struct {
  const char *name;
  size_t offset;
} functions[] = {
#define BNY_UCX_FUNCTION(name) {#name, offsetof(bny_ucx, name)},
#include "transport/ucx_functions.def"
#undef BNY_UCX_FUNCTION
};

enum { SIGNALS = 32 }; /* the real-time ones are nobody's by default */

typedef struct dispositions {
  bool known[SIGNALS];
  struct sigaction actions[SIGNALS];
  stack_t stack;
} dispositions;

static void save_signals(dispositions *saved) {
  memset(saved, 0, sizeof *saved);
  for (int i = 1; i < SIGNALS; i++) saved->known[i] = sigaction(i, NULL, &saved->actions[i]) == 0;
  sigaltstack(NULL, &saved->stack);
}

static bool is_of_ucx(const struct sigaction *action) {
  void *address;
  Dl_info where;
  memcpy(&address, &action->sa_handler, sizeof address);
  return address && dladdr(address, &where) && where.dli_fname && strstr(where.dli_fname, "libucs");
}

/* Only what UCX has taken since: another thread may do the same. */
static void restore_signals(const dispositions *saved) {
  if (getenv("UCX_HANDLE_ERRORS") || getenv("UCX_DEBUG_SIGNO")) return;
  for (int i = 1; i < SIGNALS; i++) {
    struct sigaction now;
    if (!saved->known[i] || is_of_ucx(&saved->actions[i]) || sigaction(i, NULL, &now) != 0) continue;
    if (is_of_ucx(&now)) sigaction(i, &saved->actions[i], NULL);
  }
  sigaltstack(&saved->stack, NULL);
}

/* What the user says about libucm goes first. */
static bool user_sets_memory_events(void) {
  static const char prefix[] = "UCX_MEM_";
  for (char **variable = environ; variable && *variable; variable++)
    if (strncmp(*variable, prefix, sizeof prefix - 1) == 0) return true;
  return false;
}

static bool is_loaded(const char *name) {
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library) dlclose(library);
  return library != NULL;
}

/* When libucm is first used, which is when UCX is loaded, it writes jumps over the beginnings of mmap(), munmap() and others,
 * and moves the end of the heap there and back to see whether they work. It takes itself for the first thing that a program
 * does. Here other threads run: one that allocates in that moment can lose what it got. libucm does not if memory events
 * are off, and never looks again; who asks for such events later gets them, as others in this process may.
 * Threads may do this at once: whichever comes first uses it while the events are off. */
static void use_libucm_without_hooks(void) {
  if (user_sets_memory_events() || is_loaded("libucs.so.0")) return; /* in the latter case it is in use already */
  void *library = dlopen("libucm.so.0", RTLD_LAZY | RTLD_LOCAL); /* it needs functions of libucs, which comes with UCX */
  if (!library) return; /* then as UCX would have it */
  ucm_global_config_t *options = dlsym(library, "ucm_global_opts");
  ucs_status_t (*test_events)(int) = NULL;
  void *address = dlsym(library, "ucm_test_events");
  memcpy(&test_events, &address, sizeof address);
  if (!options || !test_events) return;
  __atomic_store_n(&options->enable_events, 0, __ATOMIC_SEQ_CST);
  test_events(0); /* its first use, of no events */
  __atomic_store_n(&options->enable_events, 1, __ATOMIC_SEQ_CST); /* the default; UCX sets it, too */
}

banyan_status bny_ucx_load(bny_ucx *ucx) {
  dispositions saved;
  save_signals(&saved);
  use_libucm_without_hooks();
  void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  const char *why = library ? NULL : dlerror();
  restore_signals(&saved);
  if (!library)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "ranks are on several hosts, and UCX, which connects them, cannot be loaded (%s). Debian and Ubuntu: "
                    "apt-get install libucx0",
                    why);
  bny_ucx found;
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *address = dlsym(library, functions[i].name);
    if (!address) {
      dlclose(library);
      return bny_fail(BANYAN_ERR_UNSUPPORTED, "UCX on this host has no %s: it is older than 1.12", functions[i].name);
    }
    memcpy((char *)&found + functions[i].offset, &address, sizeof address);
  }
  *ucx = found;
  return BANYAN_OK;
}
#else
typedef int bny_ucx_is_absent; /* a file must not be empty */
#endif
