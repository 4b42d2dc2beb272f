/* SPDX-License-Identifier: Apache-2.0
 * Identifies the user by the kernel, if there is no secret. Rank 0 makes a random key and gives it only to processes of
 * its own user, over a local socket that is named after its TCP address. Each side reads the other's user from the
 * kernel. Such a name is visible only in its network namespace, so all ranks must also be on one node. */
#include "boot/tcp_address.h"

#ifdef HAVE_SODIUM
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "boot/exchange.h"
#include "boot/tcp.h"
#include "base/deadline.h"
#include "base/sysfs.h"
#include "base/file.h"

/* A rank 0 that has just ended may hold the name for a moment. */
static const int64_t name_patience_ns = 2000000000;

const uint8_t *bny_boot_key_of(const struct banyan_env *env, bool local) {
  return env->settings.has_secret || local ? env->settings.key : env->issued_key;
}

void bny_boot_issue_begin(struct banyan_env *env) { randombytes_buf(env->issued_key, sizeof env->issued_key); }

/* Returns whether the kernel shows this process every user as itself. A user namespace shows unmapped users as the
 * overflow user. */
static bool sees_all_users(void) {
  const int64_t all_users = UINT32_MAX;
  long long first, outside, count;
  char line[96];
  return bny_sysfs_line(line, sizeof line, "/proc/self/uid_map") &&
         sscanf(line, "%lld %lld %lld", &first, &outside, &count) == 3 && first == 0 && count == all_users;
}

banyan_status bny_boot_user_check(const struct bny_boot_settings *settings) {
  enum { OVERFLOW_UNLESS_SET = 65534 };
  if (settings->has_secret) return BANYAN_OK;
  int64_t overflow = bny_sysfs_number("/proc/sys/kernel/overflowuid");
  if (overflow < 0) overflow = OVERFLOW_UNLESS_SET;
  if ((int64_t)geteuid() != overflow || sees_all_users()) return BANYAN_OK;
  return bny_boot_reject("rank %d of %d runs as user %ld, which is what this user namespace shows for every user that "
                         "it does not map: without a secret a process of another user could join (set BANYAN_SECRET or "
                         "BANYAN_SECRET_FILE to the same secret on all ranks)",
                         settings->rank, settings->nranks, (long)geteuid());
}

static void name_of(const char *tcp_address, char name[BNY_BOOT_ADDRESS_BYTES]) {
  snprintf(name, BNY_BOOT_ADDRESS_BYTES, "@banyan-user-%.*s", BNY_BOOT_ADDRESS_BYTES - 16, tcp_address);
}

banyan_status bny_boot_issue_listen(struct banyan_env *env, int64_t deadline_ns) {
  char name[BNY_BOOT_ADDRESS_BYTES];
  if (env->settings.has_secret) return BANYAN_OK;
  int64_t patience_ns = bny_deadline_now() + name_patience_ns;
  if (patience_ns > deadline_ns) patience_ns = deadline_ns;
  name_of(env->address, name);
  int *fd = &env->listen_fds[BNY_BOOT_ISSUES_KEYS];
  while ((*fd = bny_boot_listen_by_name(name)) < 0 && errno == EADDRINUSE && bny_deadline_now() < patience_ns)
    poll(NULL, 0, 50);
  if (*fd >= 0) return BANYAN_OK;
  return bny_fail_errno(BANYAN_ERR_BOOTSTRAP, errno,
                        "banyan_env_create: rank 0 cannot listen on the local socket %s, where it checks the user of "
                        "each rank (set BANYAN_PORT to another port, or BANYAN_SECRET to a secret, on all ranks)",
                        name);
}

bool bny_boot_issue(const struct banyan_env *env, int fd, struct bny_boot_user *user) {
  return bny_boot_socket_user(fd, user) && user->uid == geteuid() &&
         send(fd, env->issued_key, sizeof env->issued_key, MSG_DONTWAIT | MSG_NOSIGNAL) ==
             (ssize_t)sizeof env->issued_key;
}

enum bny_boot_issue bny_boot_issue_ask(struct banyan_env *env, int64_t limit_ns, struct bny_boot_user *user) {
  char name[BNY_BOOT_ADDRESS_BYTES];
  enum bny_boot_issue outcome = BNY_BOOT_NOT_ISSUED;
  name_of(env->address, name);
  bny_boot_issue_begin(env); /* the key of an earlier attempt may be another job's */
  int fd = bny_boot_socket_connect_text(&env->settings, name, limit_ns);
  if (fd < 0) return errno == ECONNREFUSED ? BNY_BOOT_NOT_ISSUED : BNY_BOOT_NOT_ASKED;
  if (bny_boot_socket_user(fd, user) && user->uid != geteuid())
    outcome = BNY_BOOT_OTHER_USER;
  else if (bny_boot_socket_receive(fd, env->issued_key, sizeof env->issued_key, limit_ns) == 0)
    outcome = BNY_BOOT_ISSUED;
  close(fd);
  return outcome;
}

enum { ARGUMENTS_BYTES = 16384, WRAPPERS_AT_MOST = 16 };

struct process {
  int64_t parent;
  char name[64];
  char arguments[ARGUMENTS_BYTES]; /* each argument ends with a NUL */
  size_t bytes;
};

static bool read_process(int64_t id, struct process *process) {
  char line[512], path[64];
  long long parent;
  bny_sysfs_line(line, sizeof line, "/proc/%lld/stat", (long long)id);
  const char *name = strchr(line, '('), *end = strrchr(line, ')'); /* the name may hold anything */
  if (!name || !end || sscanf(end, ") %*c %lld", &parent) != 1) return false;
  process->parent = parent;
  snprintf(process->name, sizeof process->name, "%.*s", (int)(end - name - 1), name + 1);
  snprintf(path, sizeof path, "/proc/%lld/cmdline", (long long)id);
  FILE *file = bny_file_read(path);
  process->bytes = file ? fread(process->arguments, 1, sizeof process->arguments, file) : 0;
  if (file) fclose(file);
  return true;
}

static void read_input(int64_t id, char target[64]) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/0", (long long)id);
  ssize_t length = readlink(path, target, 63);
  target[length > 0 ? length : 0] = '\0';
}

struct children {
  char input[64]; /* the parent's standard input, from readlink() */
  int count;
};

/* A child that reads a pipe of its own filters what another one writes, and is not counted. */
static void count_children(void *context, const char *folder, const char *thread) {
  struct children *children = context;
  char line[512], input[64], *end;
  bny_sysfs_line(line, sizeof line, "%s/%s/children", folder, thread);
  for (char *at = line; *at; at = end) {
    long long child = strtoll(at, &end, 10);
    if (end == at) return;
    read_input(child, input);
    children->count += strncmp(input, "pipe:", 5) != 0 || strcmp(input, children->input) == 0;
    end += *end == ' ';
  }
}

static bool ends_with(const struct process *process, const char *end, size_t bytes) {
  size_t before = process->bytes - bytes;
  return bytes > 0 && bytes < process->bytes && process->arguments[before - 1] == '\0' &&
         memcmp(process->arguments + before, end, bytes) == 0;
}

/* Returns whether the process exists only for this child: a shell, or a program such as timeout, which has the child's
 * arguments behind its own. The arguments of a script lack its interpreter there. */
static bool is_wrapper(int64_t id, const struct process *process, const struct process *child) {
  struct children children = {.count = 0};
  size_t length = strlen(process->name), first = strnlen(child->arguments, child->bytes) + 1;
  read_input(id, children.input);
  bny_sysfs_each(count_children, &children, "/proc/%lld/task", (long long)id);
  if (children.count > 1) return false;
  if (length >= 2 && strcmp(process->name + length - 2, "sh") == 0) return true;
  if (process->bytes <= child->bytes) return false; /* a copy by fork() */
  return ends_with(process, child->arguments, child->bytes) ||
         (first < child->bytes && ends_with(process, child->arguments + first, child->bytes - first));
}

int64_t bny_boot_launcher_of(int64_t id) {
  struct process of[2];
  if (!read_process(id, &of[0])) return 0;
  for (int i = 0; i < WRAPPERS_AT_MOST; i++) {
    const struct process *child = &of[i % 2];
    struct process *parent = &of[(i + 1) % 2];
    if (child->parent <= 1 || !read_process(child->parent, parent)) return 0;
    if (!is_wrapper(child->parent, parent, child)) return child->parent;
  }
  return 0;
}

/* A process may also start the other ranks and be one itself. */
bool bny_boot_launcher_differs(int64_t process) {
  int64_t own = getpid(), mine = bny_boot_launcher_of(own), its = bny_boot_launcher_of(process);
  return mine > 0 && its > 0 && mine != its && mine != process && its != own;
}
#endif
