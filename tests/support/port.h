/* SPDX-License-Identifier: Apache-2.0
 * A port of the loopback interface that is free, because this process listens at it. */
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/support/suite.h"

/* flags: of socket(), such as SOCK_CLOEXEC. The caller closes the socket. */
static inline int listen_on_any_port(int flags, int *port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
  ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  ck_assert_int_eq(listen(fd, SOMAXCONN), 0);
  ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
  *port = ntohs(address.sin_port);
  return fd;
}
