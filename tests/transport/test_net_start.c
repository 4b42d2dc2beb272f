/* SPDX-License-Identifier: Apache-2.0
 * UCX fails to start: wrong settings, no /sys, no /proc, or no thread. Every rank gets the reason, and no rank is
 * reported as dead. Also tests the ports that UCX opens, and their addresses. */
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/support/world.h"

#include "net_util.h"

enum { ALL = -1, NOBODY = 65534 };

typedef struct setting {
  const char *name, *value;
  int rank;                /* the rank with this setting; ALL: every rank */
  const char *own, *other; /* texts in the errors of ranks with and without the setting */
} setting;

/* Creates a communicator of two nodes, which fails. */
static void fail_to_create(world_rank *self, const char *expected) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 20 * INT64_C(1000000000)};
  double begun_s = world_now_s();
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  const char *text = banyan_last_error();
  world_check(self, status == BANYAN_ERR_SYSTEM || status == BANYAN_ERR_ARGUMENT, "%s: %s",
              banyan_status_string(status), text);
  world_check(self, strstr(text, expected) != NULL, "no \"%s\" in: %s", expected, text);
  world_check(self, strstr(text, "died in") == NULL, "blames a rank: %s", text);
  world_check(self, world_now_s() - begun_s < 15, "took %.1f s", world_now_s() - begun_s);
}

static void create_with(world_rank *self) {
  const setting *with = self->argument;
  bool has = with->rank == ALL || with->rank == self->rank;
  if (has) setenv(with->name, with->value, 1);
  fail_to_create(self, has ? with->own : with->other);
}

static void be_two_nodes(void) {
  world_be_nodes("a,b");
  unsetenv("UCX_NET_DEVICES");
  unsetenv("UCX_TLS");
  setenv("BANYAN_LOG", "error", 1);
}

TEST_LOOP(names_a_wrong_setting, 8) {
  static const char missing[] = "rank 1 could not be connected: UCX has no transport here that leads to other nodes";
  static const setting settings[] = {
      {"UCX_NET_DEVICES", "nosuch0", ALL, "network device 'nosuch0' is not available", NULL},
      {"UCX_TLS", "self", ALL, "UCX_TLS is \"self\"", NULL},
      {"UCX_TLS", "nosuch", ALL, "transport 'nosuch' is not available", NULL},
      {"UCX_NET_DEVICES", "nosuch0", 1, "network device 'nosuch0' is not available", missing},
      {"UCX_TLS", "self", 1, "UCX_TLS is \"self\"", missing},
      {"BANYAN_INTERFACE", "nosuch0", 1, "BANYAN_INTERFACE is \"nosuch0\"",
       "rank 1 could not be connected: BANYAN_INTERFACE"},
      {"BANYAN_NET_DEVICES", "lo,nosuch0", 1, "there is no network device \"nosuch0\"; this node has",
       "rank 1 could not be connected: BANYAN_NET_DEVICES is \"lo,nosuch0\""},
      {"BANYAN_NET_DEVICES", "^*", ALL, "it leaves no device that is up", NULL},
  };
  setting with = settings[_i];
  world_setup setup = {.nranks = 2, .processes = true, .bare = true, .argument = &with};
  be_two_nodes();
  world_run(&setup, create_with);
}

/* Each rank has a network, but not the other rank's. Both detect it at once. */
static void create_apart(world_rank *self) {
  banyan_comm_config config = {.size = sizeof config};
  setenv("UCX_TCP_AF_PRIO", self->rank == 0 ? "inet" : "inet6", 1);
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  const char *text = banyan_last_error();
  const char *expected = self->rank == 0 ? "rank 1 cannot be reached from rank 0, or has died (UCX: "
                                         : "rank 0 cannot be reached from rank 1, or has died (UCX: ";
  world_check(self, status == BANYAN_ERR_PEER && strstr(text, expected), "no \"%s\" in: %s", expected, text);
}

TEST(names_two_that_cannot_meet) {
  world_setup setup = {.nranks = 2, .processes = true, .bare = true};
  be_two_nodes();
  world_run(&setup, create_apart);
}

/* ---- missing parts of the system --------------------------------------------------------------------------------- */

/* Hides this path from this process only. */
static bool hide(const char *path) {
  return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
         mount("none", path, "tmpfs", 0, NULL) == 0;
}

/* Tries it in a child process, so that the caller keeps its root. Returns false, after printing the reason, if the
 * system cannot. */
static bool can_hide(void) {
  pid_t child = fork();
  int how = 1;
  if (child == 0) _exit(hide("/mnt") ? 0 : 1);
  waitpid(child, &how, 0);
  if (how != 0) printf("skipped: needs root and a mount namespace\n");
  return how == 0;
}

static void create_without(world_rank *self) {
  const setting *without = self->argument;
  if (!world_check(self, hide(without->name), "cannot hide %s", without->name)) return;
  fail_to_create(self, without->own);
}

TEST_LOOP(names_what_the_system_lacks, 2) {
  static const setting settings[] = {
      {"/sys", NULL, ALL, "opendir(/sys/class/net) failed", NULL},
      {"/proc", NULL, ALL, "/proc cannot be read here, without which UCX does not work", NULL},
  };
  setting without = settings[_i];
  if (!can_hide()) return;
  world_setup setup = {.nranks = 2, .processes = true, .bare = true, .argument = &without};
  be_two_nodes();
  world_run(&setup, create_without);
}

/* Root may always create threads, so it becomes another user first. */
static void create_without_threads(world_rank *self) {
  struct rlimit none = {0, 0};
  bool ready = geteuid() != 0 || (setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 &&
                                  setresuid(NOBODY, NOBODY, NOBODY) == 0);
  if (!world_check(self, ready && setrlimit(RLIMIT_NPROC, &none) == 0, "cannot give up threads")) return;
  fail_to_create(self, "ulimit -u");
}

TEST(needs_a_thread) {
  world_setup setup = {.nranks = 2, .processes = true, .bare = true};
  be_two_nodes();
  world_run(&setup, create_without_threads);
}

/* ---- ports ------------------------------------------------------------------------------------------------------- */

static int addresses_listened_at(const char *table, char addresses[][33], int most) {
  char line[512];
  int found = 0;
  FILE *file = fopen(table, "re");
  while (file && found < most && fgets(line, sizeof line, file)) {
    unsigned state;
    unsigned long inode;
    char path[64], name[64], target[64];
    if (sscanf(line, "%*d: %32[0-9A-F]:%*x %*[0-9A-F]:%*x %x %*s %*s %*s %*s %*s %lu", addresses[found], &state,
               &inode) != 3)
      continue;
    bool own = false;
    snprintf(target, sizeof target, "socket:[%lu]", inode);
    for (int fd = 0; fd < 256 && state == 0x0a && !own; fd++) {
      snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
      ssize_t length = readlink(path, name, sizeof name - 1);
      own = length > 0 && (size_t)length == strlen(target) && strncmp(name, target, (size_t)length) == 0;
    }
    found += own;
  }
  if (file) fclose(file);
  return found;
}

/* Checks the listening addresses of a chosen interface, and of any. 0100007F is 127.0.0.1 as the kernel prints it. */
static void look_at_ports(world_rank *self) {
  enum { MOST = 16 };
  const bool *bound = self->argument;
  char addresses[MOST][33];
  if (!world_ok(self, banyan_barrier(self->comm), "barrier")) return;
  int found = addresses_listened_at("/proc/self/net/tcp", addresses, MOST);
  world_check(self, found > 0, "no port found");
  for (int i = 0; i < found; i++) {
    world_check(self, strcmp(addresses[i], "00000000") != 0, "listens on all interfaces");
    world_check(self, !*bound || strcmp(addresses[i], "0100007F") == 0, "listens at %s", addresses[i]);
  }
  found = addresses_listened_at("/proc/self/net/tcp6", addresses, MOST);
  world_check(self, found == 0, "listens at %s", addresses[0]);
  world_meet(self);
}

TEST_LOOP(listens_at_the_chosen_interface, 5) {
  static const char *const values[][2] = {{"BANYAN_INTERFACE", "lo"},
                                          {"BANYAN_INTERFACE", "127.0.0.1"},
                                          {"BANYAN_INTERFACE", "127.0.0.0/8"},
                                          {"BANYAN_NET_DEVICES", "lo"},
                                          {"BANYAN_NET_DEVICES", NULL}};
  bool bound = values[_i][1] != NULL;
  world_setup setup = {.nranks = 2, .processes = true, .argument = &bound};
  be_two_nodes();
  if (bound) setenv(values[_i][0], values[_i][1], 1);
  world_run(&setup, look_at_ports);
}

int main(void) {
  if (net_is_absent()) return 77;
  unsetenv("BANYAN_UCX_PUT"); /* ranks leave their calls here, which puts over TCP do not support */
  return world_main(suite_of("net_start", 60));
}
