/* SPDX-License-Identifier: Apache-2.0
 * Addresses of the TCP bootstrap. */
#include "boot/tcp_address.h"

#ifdef HAVE_SODIUM
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/file.h"
#include "base/interface.h"
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

static bool is_wildcard(const struct sockaddr *address) {
  uint32_t ipv4;
  if (ipv4_of(address, &ipv4)) return ipv4 == 0;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

banyan_status bny_boot_address_check(const struct bny_boot_settings *settings, const char *name, const char *value,
                                     const struct sockaddr *address, socklen_t bytes) {
  char text[BNY_BOOT_ADDRESS_BYTES];
  bny_boot_address_text(address, bytes, text);
  if (is_wildcard(address))
    return bny_fail(
        BANYAN_ERR_ARGUMENT,
        "banyan_env_create: %s is \"%s\": must be the address of one interface of rank 0's host, not of all", name,
        value);
  if (!settings->has_secret && !bny_boot_address_is_loopback(address))
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "banyan_env_create: %s \"%s\" is %s, which other machines can reach: set BANYAN_SECRET or "
                    "BANYAN_SECRET_FILE to the same secret on all ranks",
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

/* Rejects a node's own name that is a loopback address there, where there are several nodes. By localhost and 127.0.0.1
 * the user says that these are on one machine. */
static banyan_status check_reach(const struct bny_boot_settings *settings, const struct addrinfo *found) {
  char text[BNY_BOOT_ADDRESS_BYTES];
  bool is_meant = strcmp(settings->host, "localhost") == 0 || strcmp(settings->host, "127.0.0.1") == 0 ||
                  strcmp(settings->host, "::1") == 0;
  if (is_meant || !settings->has_nodes || settings->interface[0] || !bny_boot_address_is_loopback(found->ai_addr))
    return BANYAN_OK;
  bny_boot_address_text(found->ai_addr, found->ai_addrlen, text);
  return bny_fail(
      BANYAN_ERR_ARGUMENT,
      "banyan_env_create: MASTER_ADDR \"%s\" is %s on the node of rank %d, a loopback address that ranks of "
      "other nodes cannot reach: set BANYAN_INTERFACE to a network of all nodes, or MASTER_ADDR to an "
      "address that they reach, on all ranks",
      settings->host, text, settings->rank);
}

/* A look-up of a name. The resolver may take long and cannot be stopped, so it has a thread, and the last of the two
 * frees the memory. */
struct look_up {
  char host[256], port[8];
  struct addrinfo *found;
  int error;
  atomic_bool done; /* found and error are set */
  int ends[2];      /* a pipe, whose second end is the thread's */
  atomic_int use;   /* how many still use this */
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
  if (write(look_up->ends[1], "", 1) != 1) errno = 0; /* the other has given up; this thread blocks SIGPIPE */
  close(look_up->ends[1]);
  release(look_up);
  return NULL;
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
    bool answered = bny_boot_socket_wait(mine->ends[0], POLLIN, deadline_ns);
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
#endif
