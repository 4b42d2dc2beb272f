/* SPDX-License-Identifier: Apache-2.0 Without a secret the kernel identifies the user. Rank 0 makes a random key and
 * gives it only to processes of its own user, over a local socket that is named after its TCP address. Each side reads
 * the other's user from the kernel. Such a name is visible only in its network namespace, so all ranks must also be on
 * one node. */
#include "boot/tcp_address.h"

#ifdef HAVE_SODIUM
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "boot/common.h"
#include "base/deadline.h"
#include "base/sysfs.h"

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
  return bny_fail(
      BANYAN_ERR_ARGUMENT,
      "banyan_env_create: rank %d of %d runs as user %ld, which is what this user namespace shows for every "
      "user that it does not map: without a secret a process of another user could join (set BANYAN_SECRET "
      "or BANYAN_SECRET_FILE to the same secret on all ranks)",
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
#endif
