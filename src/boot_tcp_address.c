/* SPDX-License-Identifier: Apache-2.0
 * Addresses and sockets of the TCP bootstrap. */
#include "boot_tcp.h"

#ifdef HAVE_SODIUM
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "boot_common.h"
#include "clock.h"

/* A connection that the kernel lets go only after a while may hold the port of a run that has just ended. */
static const int64_t bind_patience_ns = 2000000000;

void bny_boot_address_text(const struct sockaddr *address, socklen_t bytes, char text[BNY_BOOT_ADDRESS_BYTES]) {
  char host[64], port[8];
  if (getnameinfo(address, bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    snprintf(text, BNY_BOOT_ADDRESS_BYTES, "an unknown address");
  else
    snprintf(text, BNY_BOOT_ADDRESS_BYTES, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static bool ipv4_of(const struct sockaddr *address, uint32_t *ipv4) {
  if (address->sa_family == AF_INET) {
    *ipv4 = ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr);
    return true;
  }
  if (address->sa_family != AF_INET6) return false;
  const struct in6_addr *ipv6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
  if (!IN6_IS_ADDR_V4MAPPED(ipv6)) return false;
  memcpy(ipv4, ipv6->s6_addr + 12, sizeof *ipv4);
  *ipv4 = ntohl(*ipv4);
  return true;
}

static bool is_loopback(const struct sockaddr *address) {
  uint32_t ipv4;
  if (ipv4_of(address, &ipv4)) return ipv4 >> 24 == 127;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

static bool is_wildcard(const struct sockaddr *address) {
  uint32_t ipv4;
  if (ipv4_of(address, &ipv4)) return ipv4 == 0;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

static banyan_status check_address(const struct bny_boot_settings *settings, const struct sockaddr *address,
                                   socklen_t bytes) {
  char text[BNY_BOOT_ADDRESS_BYTES];
  bny_boot_address_text(address, bytes, text);
  if (is_wildcard(address))
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "banyan_env_create: MASTER_ADDR is \"%s\": must be the address of one "
                    "interface of rank 0's host, not of all",
                    settings->host);
  if (!settings->has_secret && !is_loopback(address))
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "banyan_env_create: MASTER_ADDR \"%s\" is %s, which other machines can reach: "
                    "set BANYAN_SECRET or BANYAN_SECRET_FILE to the same secret on all ranks",
                    settings->host, text);
  return BANYAN_OK;
}

banyan_status bny_boot_address_resolve(const struct bny_boot_settings *settings, struct addrinfo **list) {
  char port[8];
  struct addrinfo *found;
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  snprintf(port, sizeof port, "%d", settings->port);
  int error = getaddrinfo(settings->host, port, &hints, &found);
  if (error)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "banyan_env_create: MASTER_ADDR is \"%s\", which has no address: %s",
                    settings->host, error == EAI_SYSTEM ? strerrordesc_np(errno) : gai_strerror(error));
  for (const struct addrinfo *each = found; each; each = each->ai_next) {
    banyan_status status = check_address(settings, each->ai_addr, each->ai_addrlen);
    if (status) {
      freeaddrinfo(found);
      return status;
    }
  }
  *list = found;
  return BANYAN_OK;
}

int bny_boot_socket_configure(int fd) {
  int on = 1;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return -1;
  return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool bny_boot_socket_wait(int fd, short events, int64_t limit_ns) {
  struct pollfd wait = {.fd = fd, .events = events};
  int ready;
  do ready = poll(&wait, 1, bny_boot_poll_ms(limit_ns));
  while (ready == 0 ? bny_clock_ns() < limit_ns : ready < 0 && errno == EINTR);
  return ready > 0;
}

void bny_boot_socket_close(int fd) {
  char rest[4096];
  shutdown(fd, SHUT_WR);
  for (int i = 0; i < 256 && recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0; i++) continue;
  close(fd);
}

/* The socket of one address, listening; -1 and errno. */
static int listen_at(const struct addrinfo *address) {
  int on = 1;
  int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
    return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

static banyan_status use_inherited(const struct bny_boot_settings *settings, char address[BNY_BOOT_ADDRESS_BYTES]) {
  int listening = 0;
  socklen_t bytes = sizeof listening;
  struct sockaddr_storage name;
  socklen_t name_bytes = sizeof name;
  int fd = settings->listen_fd;
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) != 0 || !listening ||
      getsockname(fd, (struct sockaddr *)&name, &name_bytes) != 0 ||
      (name.ss_family != AF_INET && name.ss_family != AF_INET6) || bny_boot_socket_configure(fd) != 0)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "banyan_env_create: BANYAN_LISTEN_FD is \"%d\", which is not a listening TCP "
                    "socket of this process",
                    fd);
  banyan_status status = check_address(settings, (struct sockaddr *)&name, name_bytes);
  if (status) return status;
  bny_boot_address_text((struct sockaddr *)&name, name_bytes, address);
  return BANYAN_OK;
}

banyan_status bny_boot_address_listen(const struct bny_boot_settings *settings, int64_t deadline_ns, int *listen_fd,
                                      bool *owned, char address[BNY_BOOT_ADDRESS_BYTES]) {
  if (settings->listen_fd >= 0) {
    banyan_status status = use_inherited(settings, address);
    if (status) return status;
    *listen_fd = settings->listen_fd;
    *owned = false;
    return BANYAN_OK;
  }
  struct addrinfo *list;
  banyan_status status = bny_boot_address_resolve(settings, &list);
  if (status) return status;
  int64_t patience_ns = bny_clock_ns() + bind_patience_ns;
  if (patience_ns > deadline_ns) patience_ns = deadline_ns;
  int fd = -1, error = 0;
  while (fd < 0) {
    for (const struct addrinfo *each = list; each && fd < 0; each = each->ai_next) {
      fd = listen_at(each);
      error = errno;
      bny_boot_address_text(each->ai_addr, each->ai_addrlen, address);
    }
    if (fd >= 0 || error != EADDRINUSE || bny_clock_ns() >= patience_ns) break;
    poll(NULL, 0, 50);
  }
  freeaddrinfo(list);
  if (fd < 0)
    return bny_fail_errno(BANYAN_ERR_BOOTSTRAP, error, "banyan_env_create: rank 0 cannot listen on %s (%s)", address,
                          error == EADDRINUSE ? "set BANYAN_PORT to a free port on all ranks"
                                              : "MASTER_ADDR must be an address of rank 0's host");
  *listen_fd = fd;
  *owned = true;
  return BANYAN_OK;
}

/* A port that nobody listens on can connect to itself, if the kernel picks it as the source port as well. */
static bool is_self_connected(int fd) {
  struct sockaddr_storage here, there;
  socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
  memset(&here, 0, sizeof here);
  memset(&there, 0, sizeof there);
  return getsockname(fd, (struct sockaddr *)&here, &here_bytes) == 0 &&
         getpeername(fd, (struct sockaddr *)&there, &there_bytes) == 0 && here_bytes == there_bytes &&
         memcmp(&here, &there, here_bytes) == 0;
}

/* Ends by a reset, so that the port is free at once for rank 0 to listen on. */
static void reset_connection(int fd) {
  struct linger none = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  close(fd);
}

int bny_boot_address_connect(const struct addrinfo *address, int64_t limit_ns) {
  int error = 0;
  socklen_t bytes = sizeof error;
  int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (bny_boot_socket_configure(fd) != 0) error = errno;
  if (!error && connect(fd, address->ai_addr, address->ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS || error == EINTR) {
      error = ETIMEDOUT;
      if (bny_boot_socket_wait(fd, POLLOUT, limit_ns) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    }
  }
  if (!error && is_self_connected(fd)) {
    reset_connection(fd);
    errno = ECONNREFUSED;
    return -1;
  }
  if (!error) return fd;
  close(fd);
  errno = error;
  return -1;
}
#endif
