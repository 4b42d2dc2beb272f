/* SPDX-License-Identifier: Apache-2.0
 * Loads UCX at run time, keeps the program's signal handlers, and records what UCX logs. */
#include "transport/ucx/library.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <ucm/api/ucm.h>

#include "base/status.h"

static const struct {
  const char *name;
  size_t offset;
} functions[] = {
#define BNY_UCX_FUNCTION(name) {#name, offsetof(bny_ucx, name)},
#include "transport/ucx/functions.def"
#undef BNY_UCX_FUNCTION
};

enum { SIGNALS = 32 }; /* real-time signals have no default use */

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

/* Restores only handlers that UCX has installed since; other threads may do the same. */
static void restore_signals(const dispositions *saved) {
  if (getenv("UCX_HANDLE_ERRORS") || getenv("UCX_DEBUG_SIGNO")) return;
  for (int i = 1; i < SIGNALS; i++) {
    struct sigaction now;
    if (!saved->known[i] || is_of_ucx(&saved->actions[i]) || sigaction(i, NULL, &now) != 0) continue;
    if (is_of_ucx(&now)) sigaction(i, &saved->actions[i], NULL);
  }
  sigaltstack(&saved->stack, NULL);
}

/* The user's settings of libucm take precedence. */
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

/* Keeps libucm from patching mmap() and others on its first use, when UCX is loaded: a thread that allocates at that
 * moment can lose its memory. With memory events off libucm does not patch them, and does not check again. Other users
 * who ask for events later get them. Threads may run this at once: the first of them uses libucm while the events are
 * off. */
static void use_libucm_without_hooks(void) {
  if (user_sets_memory_events() || is_loaded("libucs.so.0")) return; /* libucm is already in use */
  /* libucm needs functions of libucs, which comes with UCX */
  void *library = dlopen("libucm.so.0", RTLD_LAZY | RTLD_LOCAL);
  if (!library) return; /* UCX then proceeds as by default */
  ucm_global_config_t *options = dlsym(library, "ucm_global_opts");
  ucs_status_t (*test_events)(int) = NULL;
  void *address = dlsym(library, "ucm_test_events");
  memcpy(&test_events, &address, sizeof address);
  if (!options || !test_events) return;
  __atomic_store_n(&options->enable_events, 0, __ATOMIC_SEQ_CST);
  test_events(0);                                                 /* its first use, with no events */
  __atomic_store_n(&options->enable_events, 1, __ATOMIC_SEQ_CST); /* the default, which UCX sets too */
}

/* ---- log messages of UCX ----------------------------------------------------------------------------------------- */

static _Thread_local struct {
  bool on, pushed;
  size_t length;
  char text[256];
} captured;

const char *bny_ucx_captured_log(void) { return captured.text; }

/* Keeps each text once, because UCX retries some operations. */
static ucs_log_func_rc_t capture(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                                 const ucs_log_component_config_t *component, const char *format, va_list arguments) {
  char text[sizeof captured.text];
  va_list own;
  (void)file, (void)line, (void)function, (void)component;
  if (!captured.on || level > UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_CONTINUE;
  va_copy(own, arguments);
  vsnprintf(text, sizeof text, format, own);
  va_end(own);
  if (!strstr(captured.text, text))
    bny_append(captured.text, sizeof captured.text, &captured.length, "%s%s", captured.length ? "; " : "", text);
  return UCS_LOG_FUNC_RC_CONTINUE;
}

/* UCX keeps its handlers in an array without a lock. The loader's lock protects it, because a lock in banyan would be a
 * global variable. */
static int change_handlers(struct dl_phdr_info *info, size_t bytes, void *data) {
  const bny_ucx *ucx = data;
  (void)info, (void)bytes;
  unsigned count = ucx->ucs_log_num_handlers();
  if (captured.pushed)
    ucx->ucs_log_pop_handler();
  else
    ucx->ucs_log_push_handler(capture);
  captured.pushed = ucx->ucs_log_num_handlers() > count; /* the array holds a limited number */
  return 1;                                              /* ends the iteration */
}

void bny_ucx_capture_log(const bny_ucx *ucx, bool on) {
  bny_ucx copy = *ucx;
  captured.on = on;
  captured.length = 0;
  captured.text[0] = 0;
  if (on != captured.pushed) dl_iterate_phdr(change_handlers, &copy);
}

/* libucs copies the name into 64 bytes when it is loaded, and a longer one aborts the process (1.13). */
static banyan_status check_node_name(void) {
  enum { NAME_LENGTH_MAX = 63 };
  struct utsname node;
  if (uname(&node) != 0 || strlen(node.nodename) <= NAME_LENGTH_MAX || is_loaded("libucs.so.0")) return BANYAN_OK;
  return bny_fail(
      BANYAN_ERR_UNSUPPORTED,
      "ranks are on several nodes, and UCX, which connects them, aborts if the name of its node has more than "
      "%d characters, as %s has: give this node a shorter name (hostname NAME)",
      NAME_LENGTH_MAX, node.nodename);
}

banyan_status bny_ucx_load(bny_ucx *ucx) {
  dispositions saved;
  banyan_status status = check_node_name();
  if (status != BANYAN_OK) return status;
  save_signals(&saved);
  use_libucm_without_hooks();
  void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  const char *why = library ? NULL : dlerror();
  restore_signals(&saved);
  if (!library && !strstr(why, "No such file"))
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "UCX, which connects several nodes, cannot be loaded: %s", why);
  if (!library)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "ranks are on several nodes, and UCX, which connects them, cannot be loaded (%s). Debian and "
                    "Ubuntu: apt-get install libucx0",
                    why);
  bny_ucx found;
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *address = dlsym(library, functions[i].name);
    if (!address) {
      dlclose(library);
      return bny_fail(BANYAN_ERR_UNSUPPORTED, "UCX on this node has no %s: it is older than 1.12", functions[i].name);
    }
    memcpy((char *)&found + functions[i].offset, &address, sizeof address);
  }
  *ucx = found;
  return BANYAN_OK;
}
