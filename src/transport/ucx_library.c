/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_UCX
#include "transport/ucx_library.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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

banyan_status bny_ucx_load(bny_ucx *ucx) {
  dispositions saved;
  save_signals(&saved);
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
