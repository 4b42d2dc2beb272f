/* SPDX-License-Identifier: Apache-2.0
 * Resolves addresses, and makes connections and listeners of the TCP bootstrap. */
#include "boot/tcp_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "boot/exchange.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/interface.h"
#include "base/process.h"
#include "base/thread.h"

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

bool bny_boot_address_is_loopback(const struct sockaddr *address) {
  uint32_t ipv4;
  if (ipv4_of(address, &ipv4)) return ipv4 >> 24 == 127;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

banyan_status bny_boot_address_check(const struct bny_boot_settings *settings, const char *name, const char *value,
                                     const struct sockaddr *address, socklen_t bytes) {
  char text[BNY_BOOT_ADDRESS_BYTES];
  uint32_t ipv4;
  bny_boot_address_text(address, bytes, text);
  const struct in6_addr *ipv6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
  bool is_ipv4 = ipv4_of(address, &ipv4), is_ipv6 = !is_ipv4 && address->sa_family == AF_INET6;
  bool is_wildcard = is_ipv4 ? ipv4 == 0 : is_ipv6 && IN6_IS_ADDR_UNSPECIFIED(ipv6);
  if (is_ipv6 && IN6_IS_ADDR_LINKLOCAL(ipv6) &&
      ((const struct sockaddr_in6 *)(const void *)address)->sin6_scope_id == 0)
    return bny_boot_reject("%s is \"%s\", a link-local address without its scope, which is the interface on this node: "
                           "append %%eth0, or the interface's name, on each node",
                           name, value);
  if (is_wildcard)
    return bny_boot_reject("%s is \"%s\": must be the address of one interface of rank 0's node, not of all", name,
                           value);
  if (!settings->has_secret && !bny_boot_address_is_loopback(address))
    return bny_boot_reject("%s \"%s\" is %s, which other machines can reach: set BANYAN_SECRET or BANYAN_SECRET_FILE "
                           "to the same secret on all ranks",
                           name, value, text);
  return BANYAN_OK;
}

static bool is_number(const char *host, bool *is_loopback) {
  struct addrinfo hints = {.ai_flags = AI_NUMERICHOST}, *found;
  *is_loopback = false;
  if (!*host || getaddrinfo(host, NULL, &hints, &found) != 0) return false;
  *is_loopback = bny_boot_address_is_loopback(found->ai_addr);
  freeaddrinfo(found);
  return true;
}

bool bny_boot_address_is_name(const struct bny_boot_settings *settings) {
  bool is_loopback;
  return !settings->is_one_node && !is_number(settings->host, &is_loopback);
}

/* If there are several nodes, rejects a name of this node that resolves to a loopback address. localhost and 127.0.0.1
 * are accepted, because the user then states that the nodes are on one machine. */
static banyan_status check_reach(const struct bny_boot_settings *settings, const struct addrinfo *found) {
  char text[BNY_BOOT_ADDRESS_BYTES];
  bool is_meant = strcmp(settings->host, "localhost") == 0 || strcmp(settings->host, "127.0.0.1") == 0 ||
                  strcmp(settings->host, "::1") == 0;
  if (is_meant || !settings->has_nodes || settings->interface[0] || !bny_boot_address_is_loopback(found->ai_addr))
    return BANYAN_OK;
  bny_boot_address_text(found->ai_addr, found->ai_addrlen, text);
  return bny_boot_reject(
      "MASTER_ADDR \"%s\" is %s on the node of rank %d, a loopback address that ranks of other nodes cannot reach: set "
      "BANYAN_INTERFACE to a network of all nodes, or MASTER_ADDR to an address that they reach, on all ranks",
      settings->host, text, settings->rank);
}

/* A look-up of a name. The resolver may take long and cannot be stopped, so it has its own thread. The last user of
 * this struct frees it. */
struct look_up {
  char host[256], port[8];
  struct addrinfo *found;
  int error;
  atomic_bool done; /* found and error are set */
  int ends[2];      /* a pipe, whose second end is the thread's */
  atomic_int use;   /* number of users of this struct */
};

static void release(struct look_up *look_up) {
  if (atomic_fetch_sub(&look_up->use, 1) > 1) return;
  if (look_up->found) freeaddrinfo(look_up->found);
  free(look_up);
}

/* Returns 0, an errno, or an error of getaddrinfo(), which is negative. */
static int ask(const char *host, const char *port, struct addrinfo **found) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  int error = getaddrinfo(host, port, &hints, found);
  /* This name means this node also where neither /etc/hosts nor the DNS has it. */
  if (error && host && strcmp(host, "localhost") == 0) error = getaddrinfo(NULL, port, &hints, found);
  return error == EAI_SYSTEM ? errno : error;
}

static void *run_look_up(void *argument) {
  struct look_up *look_up = argument;
  look_up->error = ask(look_up->host, look_up->port, &look_up->found);
  atomic_store_explicit(&look_up->done, true, memory_order_release);
  if (write(look_up->ends[1], "", 1) != 1) errno = 0; /* the caller has given up; this thread blocks SIGPIPE */
  close(look_up->ends[1]);
  release(look_up);
  return NULL;
}

/* Returns whether any of these poll() events occurred by limit_ns. */
static bool socket_wait(int fd, short events, int64_t limit_ns) {
  struct pollfd wait = {.fd = fd, .events = events};
  int ready;
  do ready = poll(&wait, 1, bny_deadline_poll_ms(limit_ns));
  while (ready == 0 ? !bny_deadline_is_late(limit_ns) : ready < 0 && errno == EINTR && !bny_deadline_is_late(limit_ns));
  return ready > 0;
}

/* Looks a name up until the deadline, by a thread if there can be one. */
static int look_up(const char *host, const char *port, int64_t deadline_ns, struct addrinfo **found) {
  struct look_up *mine = calloc(1, sizeof *mine);
  pthread_t thread;
  bool has_pipe = mine && pipe2(mine->ends, O_CLOEXEC) == 0;
  for (int i = 0; has_pipe && i < 2; i++) mine->ends[i] = bny_file_above_stderr(mine->ends[i]);
  if (!has_pipe || mine->ends[0] < 0 || mine->ends[1] < 0) {
    for (int i = 0; has_pipe && i < 2; i++)
      if (mine->ends[i] >= 0) close(mine->ends[i]);
    free(mine);
    return ask(host, port, found);
  }
  snprintf(mine->host, sizeof mine->host, "%s", host);
  snprintf(mine->port, sizeof mine->port, "%s", port);
  atomic_init(&mine->done, false);
  atomic_init(&mine->use, 2);
  int error = ETIMEDOUT;
  if (bny_thread_start(&thread, run_look_up, mine) == 0) {
    pthread_detach(thread);
    bool answered = socket_wait(mine->ends[0], POLLIN, deadline_ns);
    if (answered && atomic_load_explicit(&mine->done, memory_order_acquire)) {
      error = mine->error;
      *found = mine->found;
      mine->found = NULL;
    }
  } else {
    close(mine->ends[1]);
    release(mine);
    error = ask(host, port, found);
  }
  close(mine->ends[0]);
  release(mine);
  return error;
}

banyan_status bny_boot_address_resolve(const struct bny_boot_settings *settings, int64_t deadline_ns,
                                       struct addrinfo **list) {
  char port[8];
  bool is_loopback;
  struct addrinfo *found;
  snprintf(port, sizeof port, "%d", settings->port);
  bool is_digits = is_number(settings->host, &is_loopback);
  /* On one node any loopback address will do, which needs no DNS. */
  int error;
  if (is_digits || settings->is_one_node)
    error = ask(settings->is_one_node && !is_loopback ? NULL : settings->host, port, &found);
  else
    error = look_up(settings->host, port, deadline_ns, &found);
  if (error)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "banyan_env_create: MASTER_ADDR is \"%s\", which has no address: %s",
                    settings->host, error > 0 ? strerror(error) : gai_strerror(error));
  for (const struct addrinfo *each = found; each; each = each->ai_next) {
    banyan_status status =
        bny_boot_address_check(settings, "MASTER_ADDR", settings->host, each->ai_addr, each->ai_addrlen);
    if (!status) status = check_reach(settings, each);
    if (status) {
      freeaddrinfo(found);
      return status;
    }
  }
  *list = found;
  return BANYAN_OK;
}

banyan_status bny_boot_interface_find(const struct bny_boot_settings *settings, int family,
                                      const struct addrinfo *preferred, struct sockaddr_storage *found) {
  bny_interface interface = {.name = ""};
  banyan_status status = BANYAN_OK;
  if (settings->interface[0]) status = bny_interface_find(settings->interface, family, preferred, &interface);
  *found = interface.address;
  return status;
}

socklen_t bny_boot_address_bytes(const struct sockaddr_storage *address) {
  return address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

void bny_boot_address_set_port(struct sockaddr_storage *address, int port) {
  if (address->ss_family == AF_INET)
    ((struct sockaddr_in *)(void *)address)->sin_port = htons((uint16_t)port);
  else
    ((struct sockaddr_in6 *)(void *)address)->sin6_port = htons((uint16_t)port);
}

int bny_boot_socket_configure(int fd) {
  int on = 1, domain = 0;
  socklen_t bytes = sizeof domain;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return -1;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0) return -1;
  if (domain == AF_UNIX) return 0;
  /* On a network that loses many packets, small messages are resent after constant rather than growing pauses. */
  setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof on);
  return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool bny_boot_socket_is_own(int fd, struct bny_boot_user *user) {
  struct ucred peer;
  socklen_t bytes = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  *user = (struct bny_boot_user){.process = peer.pid, .uid = peer.uid};
  return peer.uid == geteuid();
}

int bny_boot_socket_receive(int fd, void *place, size_t bytes, int64_t limit_ns) {
  size_t done = 0;
  uint64_t process = bny_process();
  while (done < bytes) {
    if (process != bny_process()) return ECONNRESET; /* a fork in the wait: these bytes are the parent's */
    ssize_t got = recv(fd, (char *)place + done, bytes - done, MSG_DONTWAIT);
    if (got > 0)
      done += (size_t)got;
    else if (got == 0)
      return ECONNRESET;
    else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      return errno;
    else if (!socket_wait(fd, POLLIN, limit_ns))
      return ETIMEDOUT;
  }
  return 0;
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

/* Binds this end to the chosen interface. Returns 0 or errno. */
static int choose_source(const struct bny_boot_settings *settings, int fd, const struct sockaddr *address) {
  struct sockaddr_storage source;
  if (address->sa_family == AF_UNIX || bny_boot_address_is_loopback(address)) return 0;
  if (bny_boot_interface_find(settings, address->sa_family, NULL, &source) != BANYAN_OK) return EADDRNOTAVAIL;
  if (source.ss_family == AF_UNSPEC) return 0;
  if (source.ss_family != address->sa_family) return EADDRNOTAVAIL;
  return bind(fd, (struct sockaddr *)&source, bny_boot_address_bytes(&source)) == 0 ? 0 : errno;
}

/* Makes the name of the local socket of an address. A name in the abstract namespace vanishes with its socket. */
static const struct sockaddr *local_address(const struct sockaddr *address, socklen_t *bytes,
                                            struct sockaddr_un *name) {
  char text[BNY_BOOT_ADDRESS_BYTES];
  bny_boot_address_text(address, *bytes, text);
  *name = (struct sockaddr_un){.sun_family = AF_UNIX};
  int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "banyan-%s", text);
  *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
  return (const struct sockaddr *)name;
}

int bny_boot_socket_connect(const struct bny_boot_settings *settings, const struct sockaddr *address, socklen_t bytes,
                            int64_t limit_ns) {
  int error = 0;
  socklen_t error_bytes = sizeof error;
  struct sockaddr_un name;
  if (!settings->has_secret) address = local_address(address, &bytes, &name);
  int fd = bny_file_above_stderr(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return -1;
  if (bny_boot_socket_configure(fd) != 0) error = errno;
  if (!error) error = choose_source(settings, fd, address);
  if (!error && connect(fd, address, bytes) != 0) {
    error = errno;
    if (error == EINPROGRESS || error == EINTR) {
      error = ETIMEDOUT;
      if (socket_wait(fd, POLLOUT, limit_ns) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0)
        error = errno;
    }
  }
  if (!error && is_self_connected(fd)) {
    struct linger none = {.l_onoff = 1, .l_linger = 0}; /* a reset frees the port at once for rank 0's listener */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    error = ECONNREFUSED;
  }
  if (!error) return fd;
  close(fd);
  errno = error;
  return -1;
}

int bny_boot_socket_listen(const struct bny_boot_settings *settings, const struct sockaddr *address, socklen_t bytes) {
  int on = 1;
  struct sockaddr_un name;
  if (!settings->has_secret) address = local_address(address, &bytes, &name);
  int fd = bny_file_above_stderr(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return -1;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 && bind(fd, address, bytes) == 0 &&
      listen(fd, SOMAXCONN) == 0)
    return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}
