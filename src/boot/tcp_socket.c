/* SPDX-License-Identifier: Apache-2.0
 * Connections of the TCP bootstrap. */
#include "boot/tcp_address.h"

#ifdef HAVE_SODIUM
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "boot/common.h"
#include "base/deadline.h"
#include "base/file.h"

int bny_boot_socket_configure(int fd) {
  int on = 1, domain = 0;
  socklen_t bytes = sizeof domain;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return -1;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0) return -1;
  if (domain == AF_UNIX) return 0;
  /* Small messages that are lost are sent again at once, and not after growing pauses, on a network that loses many. */
  setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof on);
  return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool bny_boot_socket_user(int fd, struct bny_boot_user *user) {
  struct ucred peer;
  socklen_t bytes = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  *user = (struct bny_boot_user){.process = peer.pid, .uid = peer.uid};
  return true;
}

bool bny_boot_socket_is_own(int fd, struct bny_boot_user *user) {
  return bny_boot_socket_user(fd, user) && (user->uid == geteuid() || user->uid == 0);
}

bool bny_boot_socket_wait(int fd, short events, int64_t limit_ns) {
  struct pollfd wait = {.fd = fd, .events = events};
  int ready;
  do ready = poll(&wait, 1, bny_deadline_poll_ms(limit_ns));
  while (ready == 0 ? !bny_deadline_is_late(limit_ns) : ready < 0 && errno == EINTR && !bny_deadline_is_late(limit_ns));
  return ready > 0;
}

int bny_boot_socket_receive(int fd, void *place, size_t bytes, int64_t limit_ns) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t got = recv(fd, (char *)place + done, bytes - done, MSG_DONTWAIT);
    if (got > 0)
      done += (size_t)got;
    else if (got == 0)
      return ECONNRESET;
    else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      return errno;
    else if (!bny_boot_socket_wait(fd, POLLIN, limit_ns))
      return ETIMEDOUT;
  }
  return 0;
}

void bny_boot_socket_close(int fd) {
  char rest[4096];
  shutdown(fd, SHUT_WR);
  for (int i = 0; i < 256 && recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0; i++) continue;
  close(fd);
}

/* A connection to a port without a listener can connect to itself, if the kernel picks that port as the source port. */
static bool is_self_connected(int fd) {
  struct sockaddr_storage here, there;
  socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
  memset(&here, 0, sizeof here);
  memset(&there, 0, sizeof there);
  return getsockname(fd, (struct sockaddr *)&here, &here_bytes) == 0 && here.ss_family != AF_UNIX &&
         getpeername(fd, (struct sockaddr *)&there, &there_bytes) == 0 && here_bytes == there_bytes &&
         memcmp(&here, &there, here_bytes) == 0;
}

/* Resets the connection, so that the port is free at once for rank 0's listener. */
static void reset_connection(int fd) {
  struct linger none = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  close(fd);
}

/* Binds this end to the chosen interface. Returns 0 or errno. */
static int choose_source(const struct bny_boot_settings *settings, int fd, const struct sockaddr *address) {
  struct sockaddr_storage source;
  if (address->sa_family == AF_UNIX || bny_boot_address_is_loopback(address)) return 0;
  if (bny_boot_interface_find(settings, address->sa_family, NULL, &source) != BANYAN_OK) return EADDRNOTAVAIL;
  if (source.ss_family == AF_UNSPEC) return 0;
  if (source.ss_family != address->sa_family) return EADDRNOTAVAIL;
  return bind(fd, (struct sockaddr *)&source, bny_boot_address_bytes(&source)) == 0 ? 0 : errno;
}

int bny_boot_socket_connect(const struct bny_boot_settings *settings, const struct sockaddr *address, socklen_t bytes,
                            int64_t limit_ns) {
  int error = 0;
  socklen_t error_bytes = sizeof error;
  int fd = bny_file_above_stderr(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return -1;
  if (bny_boot_socket_configure(fd) != 0) error = errno;
  if (!error) error = choose_source(settings, fd, address);
  if (!error && connect(fd, address, bytes) != 0) {
    error = errno;
    if (error == EINPROGRESS || error == EINTR) {
      error = ETIMEDOUT;
      if (bny_boot_socket_wait(fd, POLLOUT, limit_ns) &&
          getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0)
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

/* Parses "10.0.0.1:29500" or "[fd00::1]:29500", in digits. */
static bool parse_address(const char *text, struct sockaddr_storage *address) {
  char host[BNY_BOOT_ADDRESS_BYTES];
  const char *port = strrchr(text, ':');
  struct addrinfo hints = {
      .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
  struct addrinfo *list;
  if (!port) return false;
  bool brackets = text[0] == '[' && port > text && port[-1] == ']';
  snprintf(host, sizeof host, "%.*s", (int)(port - text) - (brackets ? 2 : 0), text + brackets);
  if (getaddrinfo(host, port + 1, &hints, &list) != 0) return false;
  memcpy(address, list->ai_addr, list->ai_addrlen);
  freeaddrinfo(list);
  return true;
}

int bny_boot_socket_connect_text(const struct bny_boot_settings *settings, const char *text, int64_t limit_ns) {
  struct sockaddr_storage address;
  memset(&address, 0, sizeof address);
  if (text[0] == '@') {
    struct sockaddr_un *name = (struct sockaddr_un *)(void *)&address;
    size_t length = strlen(text);
    if (length > sizeof name->sun_path) length = sizeof name->sun_path;
    name->sun_family = AF_UNIX;
    memcpy(name->sun_path + 1, text + 1, length - 1);
    return bny_boot_socket_connect(settings, (struct sockaddr *)name,
                                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length), limit_ns);
  }
  if (!parse_address(text, &address)) {
    errno = EINVAL;
    return -1;
  }
  return bny_boot_socket_connect(settings, (struct sockaddr *)&address, bny_boot_address_bytes(&address), limit_ns);
}
#endif
