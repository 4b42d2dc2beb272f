/* SPDX-License-Identifier: Apache-2.0
 * Addresses and sockets of the TCP bootstrap. As text an address is "10.0.0.1:29500" or "[fd00::1]:29500". Without a
 * secret, the socket of an address is a local one, "@banyan-127.0.0.1:29500" in the abstract namespace. Such a name is
 * visible only in its network namespace, so all ranks must be on one node. */
#pragma once

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "banyan.h"
#include "boot/tcp.h"

/* ---- addresses --------------------------------------------------------------------------------------------------- */

void bny_boot_address_text(const struct sockaddr *address, socklen_t bytes, char text[BNY_BOOT_ADDRESS_BYTES]);
bool bny_boot_address_is_loopback(const struct sockaddr *address);

/* Rejects a wildcard address, and without a secret one that is not loopback. `name` is the variable that sets it. */
banyan_status bny_boot_address_check(const struct bny_boot_settings *settings, const char *name, const char *value,
                                     const struct sockaddr *address, socklen_t bytes);

/* Resolves the settings' host by the deadline and checks all its addresses; freeaddrinfo() frees them.
 * BANYAN_ERR_BOOTSTRAP: it has no address, yet. */
banyan_status bny_boot_address_resolve(const struct bny_boot_settings *settings, int64_t deadline_ns,
                                       struct addrinfo **list);

/* Returns whether the host is a name, whose addresses may change. */
bool bny_boot_address_is_name(const struct bny_boot_settings *settings);

/* Finds this node's address that BANYAN_INTERFACE names, with port 0: one of `preferred` (may be NULL), else one of
 * this family, else any. Without BANYAN_INTERFACE its family is AF_UNSPEC. */
banyan_status bny_boot_interface_find(const struct bny_boot_settings *settings, int family,
                                      const struct addrinfo *preferred, struct sockaddr_storage *found);

socklen_t bny_boot_address_bytes(const struct sockaddr_storage *address);
void bny_boot_address_set_port(struct sockaddr_storage *address, int port);

/* ---- sockets ----------------------------------------------------------------------------------------------------- */

/* Returns a listening socket, or -1 and errno. */
int bny_boot_socket_listen(const struct bny_boot_settings *settings, const struct sockaddr *address, socklen_t bytes);

/* Returns a socket connected by limit_ns from the chosen interface, if there is one; or -1 and errno. */
int bny_boot_socket_connect(const struct bny_boot_settings *settings, const struct sockaddr *address, socklen_t bytes,
                            int64_t limit_ns);

/* Sets non-blocking, close-on-exec and no delay; -1 and errno. */
int bny_boot_socket_configure(int fd);

/* Gets the process at the other end of a local socket, and returns whether it runs as this user. Not even root may
 * stand in for it. */
struct bny_boot_user {
  int64_t process;
  uid_t uid;
};
bool bny_boot_socket_is_own(int fd, struct bny_boot_user *user);

/* Receives exactly `bytes`; returns 0, or errno: ETIMEDOUT, ECONNRESET when the peer has closed. */
int bny_boot_socket_receive(int fd, void *place, size_t bytes, int64_t limit_ns);
