/* SPDX-License-Identifier: Apache-2.0
 * Makes rank 0's listener: finds an address and a port, and asks who holds the port if it is taken. */
#include "boot/tcp_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "boot/exchange.h"
#include "base/deadline.h"
#include "base/interface.h"
#include "base/log.h"

/* The kernel may release a connection late, which keeps the port of a run that has just ended busy. */
static const int64_t bind_patience_ns = 2000000000;

/* The interval at which rank 0 asks the holder of its port. */
static const int64_t holder_interval_ns = 250000000;

/* Rejects an interface if MASTER_ADDR is an address of another interface of this node, because the other ranks connect
 * to that one. A loopback address is accepted: ranks of this node try the interface too. */
static banyan_status check_choice(const struct bny_boot_settings *settings, const struct addrinfo *resolved,
                                  const struct sockaddr_storage *found) {
  bny_interface other;
  char host[64], chosen[64];
  if (bny_boot_address_is_name(settings) || bny_boot_address_is_loopback(resolved->ai_addr) ||
      getnameinfo(resolved->ai_addr, resolved->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0 ||
      getnameinfo((const struct sockaddr *)found, bny_boot_address_bytes(found), chosen, sizeof chosen, NULL, 0,
                  NI_NUMERICHOST) != 0 ||
      strcmp(host, chosen) == 0 || bny_interface_find(host, resolved->ai_family, NULL, &other) != BANYAN_OK)
    return BANYAN_OK;
  return bny_boot_reject(
      "BANYAN_INTERFACE \"%s\" is %s on rank 0, and MASTER_ADDR %s, to which other ranks connect, is "
      "of its interface %s: let both be of one network on all ranks",
      settings->interface, chosen, host, other.name);
}

/* Replaces the list by the chosen interface's address. Without a chosen interface the list is unchanged. */
static banyan_status choose(const struct bny_boot_settings *settings, struct addrinfo *one,
                            struct sockaddr_storage *found, const struct addrinfo **list) {
  banyan_status status = BANYAN_OK;
  found->ss_family = AF_UNSPEC;
  if (!settings->is_one_node) status = bny_boot_interface_find(settings, (*list)->ai_family, *list, found);
  if (status || found->ss_family == AF_UNSPEC) return status;
  status = check_choice(settings, *list, found);
  if (status) return status;
  bny_boot_address_set_port(found, settings->port);
  *one = (struct addrinfo){
      .ai_family = found->ss_family, .ai_addr = (struct sockaddr *)found, .ai_addrlen = bny_boot_address_bytes(found)};
  *list = one;
  return bny_boot_address_check(settings, "BANYAN_INTERFACE", settings->interface, one->ai_addr, one->ai_addrlen);
}

/* Tries all addresses, repeatedly for a while if they are in use. Rank 0 of another job holds a port only until its
 * ranks have met, so this rank waits for it. Returns 0 or errno. *holder is the process that holds the port. */
static int listen_at_one_of(struct banyan_env *env, const struct addrinfo *list, int64_t deadline_ns,
                            enum bny_boot_holder *holder) {
  int64_t patience_ns = bny_deadline_now() + bind_patience_ns, ask_ns = bny_deadline_now();
  int fd = -1, error = 0;
  *holder = BNY_BOOT_UNKNOWN;
  for (;;) {
    error = 0; /* another address of the name would work, but ranks try the address in use first */
    for (const struct addrinfo *each = list; each && fd < 0 && error != EADDRINUSE; each = each->ai_next) {
      fd = bny_boot_socket_listen(&env->settings, each->ai_addr, each->ai_addrlen);
      error = errno;
      bny_boot_address_text(each->ai_addr, each->ai_addrlen, env->address);
    }
    int64_t now_ns = bny_deadline_now();
    if (fd >= 0 || error != EADDRINUSE || bny_deadline_is_late(deadline_ns)) break;
    if (now_ns >= ask_ns) {
      *holder = bny_boot_find_holder(env, list, deadline_ns);
      ask_ns = bny_deadline_now() + holder_interval_ns;
      if (*holder == BNY_BOOT_ANOTHER_JOB) patience_ns = bny_deadline_now() + bind_patience_ns;
      if (*holder == BNY_BOOT_THIS_JOB) break;
    }
    if (bny_deadline_is_late(patience_ns)) break;
    poll(NULL, 0, 50);
  }
  env->listen_fd = fd;
  return fd < 0 ? error : 0;
}

static banyan_status fail_to_listen(const struct banyan_env *env, int error, enum bny_boot_holder holder) {
  if (holder != BNY_BOOT_UNKNOWN) return bny_fail(BANYAN_ERR_BOOTSTRAP, "%s", banyan_last_error());
  return bny_fail_errno(BANYAN_ERR_BOOTSTRAP, error, "banyan_env_create: rank 0 cannot listen on %s (%s)", env->address,
                        error == EADDRINUSE ? "set BANYAN_PORT to a free port on all ranks"
                                            : "MASTER_ADDR must be an address of rank 0's node");
}

/* Copies the inherited socket, which its owner keeps, or takes its address without a secret. */
static banyan_status use_inherited(struct banyan_env *env, int64_t deadline_ns) {
  const struct bny_boot_settings *settings = &env->settings;
  int listening = 0;
  socklen_t bytes = sizeof listening;
  struct sockaddr_storage name;
  struct addrinfo one = {.ai_addr = (struct sockaddr *)&name, .ai_addrlen = sizeof name};
  enum bny_boot_holder holder;
  char text[16];
  snprintf(text, sizeof text, "%d", settings->listen_fd);
  if (getsockopt(settings->listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) != 0 || !listening ||
      getsockname(settings->listen_fd, one.ai_addr, &one.ai_addrlen) != 0 ||
      (name.ss_family != AF_INET && name.ss_family != AF_INET6) || bny_boot_socket_configure(settings->listen_fd) != 0)
    return bny_boot_reject("BANYAN_LISTEN_FD is \"%s\", which is not a listening TCP socket of this process", text);
  banyan_status status = bny_boot_address_check(settings, "BANYAN_LISTEN_FD", text, one.ai_addr, one.ai_addrlen);
  if (status) return status;
  if (!settings->has_secret) {
    int error = listen_at_one_of(env, &one, deadline_ns, &holder);
    return error ? fail_to_listen(env, error, holder) : BANYAN_OK;
  }
  env->listen_fd = fcntl(settings->listen_fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  bny_boot_address_text(one.ai_addr, one.ai_addrlen, env->address);
  return env->listen_fd >= 0 ? BANYAN_OK
                             : bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "banyan_env_create: BANYAN_LISTEN_FD %s", text);
}

/* Looks the host up and listens once. *again: the name may get another address. */
static banyan_status try_to_listen(struct banyan_env *env, int64_t deadline_ns, bool *again) {
  const struct bny_boot_settings *settings = &env->settings;
  struct addrinfo *resolved, one;
  struct sockaddr_storage found;
  enum bny_boot_holder holder = BNY_BOOT_UNKNOWN;
  banyan_status status = bny_boot_address_resolve(settings, deadline_ns, &resolved);
  *again = status == BANYAN_ERR_BOOTSTRAP;
  if (status) return status;
  const struct addrinfo *list = resolved;
  status = choose(settings, &one, &found, &list);
  int error = status ? 0 : listen_at_one_of(env, list, deadline_ns, &holder);
  *again = error == EADDRNOTAVAIL && list == resolved && bny_boot_address_is_name(settings);
  freeaddrinfo(resolved);
  return error ? fail_to_listen(env, error, holder) : status;
}

banyan_status bny_boot_listen(struct banyan_env *env, int64_t deadline_ns) {
  enum { PAUSE_MS = 200 };
  bool again = false;
  if (env->settings.listen_fd >= 0) return use_inherited(env, deadline_ns);
  for (int attempts = 1;; attempts++) {
    banyan_status status = try_to_listen(env, deadline_ns, &again);
    int left_ms = bny_deadline_is_late(deadline_ns) ? 0 : bny_deadline_left_ms(deadline_ns);
    if (!status || !again || left_ms == 0) return status;
    if (attempts == 1) bny_log(BNY_LOG_WARN, "%s; it is looked up until the deadline", banyan_last_error());
    poll(NULL, 0, left_ms < PAUSE_MS ? left_ms : PAUSE_MS);
  }
}
