/* SPDX-License-Identifier: Apache-2.0
 * Addresses and sockets of the TCP bootstrap. As text an address is "10.0.0.1:29500", "[fd00::1]:29500", or "@name"
 * of a local socket in the abstract namespace. */
#ifndef BNY_BOOT_TCP_ADDRESS_H
#define BNY_BOOT_TCP_ADDRESS_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "banyan.h"
#include "boot_tcp.h"

/* ---- addresses --------------------------------------------------------------------------------------------------- */

void bny_boot_address_text(const struct sockaddr *address, socklen_t bytes, char text[BNY_BOOT_ADDRESS_BYTES]);
bool bny_boot_address_is_loopback(const struct sockaddr *address);

/* Refuses a wildcard address, and without a secret one that is not loopback. It is what the variable `name` means. */
banyan_status bny_boot_address_check(const struct bny_boot_settings *settings, const char *name, const char *value,
                                     const struct sockaddr *address, socklen_t bytes);

/* Resolves the settings' host. All its addresses have been checked. */
banyan_status bny_boot_address_resolve(const struct bny_boot_settings *settings, struct addrinfo **list);

/* boot_tcp_interface.c: this host's address that BANYAN_INTERFACE means, its port 0; best one of `preferred` (may be
 * NULL), else of this family, else any. Without BANYAN_INTERFACE its family is AF_UNSPEC. */
banyan_status bny_boot_interface_find(const struct bny_boot_settings *settings, int family,
                                      const struct addrinfo *preferred, struct sockaddr_storage *found);

socklen_t bny_boot_address_bytes(const struct sockaddr_storage *address);
void bny_boot_address_set_port(struct sockaddr_storage *address, int port);

/* ---- listening: boot_tcp_listen.c -------------------------------------------------------------------------------- */

/* Rank 0's listening socket: the inherited one, or a new one at the chosen interface, or on the first address of the
 * host that can be bound. `address` becomes its text. */
banyan_status bny_boot_listen_as_rank_0(const struct bny_boot_settings *settings, int64_t deadline_ns, int *listen_fd,
                                        char address[BNY_BOOT_ADDRESS_BYTES]);

/* Another rank's, for those that are sent on to it: any port of the chosen interface, or of the address through
 * which it has reached rank 0 on `connected`. Returns -1 and errno. */
int bny_boot_listen_beside(const struct bny_boot_settings *settings, int connected,
                           char address[BNY_BOOT_ADDRESS_BYTES]);

/* For processes of this host: the front's, which exists once and so may fail with EADDRINUSE; and any other's.
 * `address` becomes the name. Return -1 and errno. */
int bny_boot_listen_as_front(const struct bny_boot_settings *settings, char address[BNY_BOOT_ADDRESS_BYTES]);
int bny_boot_listen_locally(char address[BNY_BOOT_ADDRESS_BYTES]);

/* ---- connections: boot_tcp_socket.c ------------------------------------------------------------------------------ */

/* A connected socket by limit_ns, or -1 and errno. From the chosen interface, if there is one. */
int bny_boot_socket_connect(const struct bny_boot_settings *settings, const struct sockaddr *address, socklen_t bytes,
                            int64_t limit_ns);
int bny_boot_socket_connect_text(const struct bny_boot_settings *settings, const char *address, int64_t limit_ns);

/* Non-blocking, close-on-exec, no delay; -1 and errno. */
int bny_boot_socket_configure(int fd);

/* Whether the process at the other end of a local socket is of this user, or root's; its number. */
bool bny_boot_socket_is_own(int fd, int64_t *process);

/* Waits for `events` on fd. Returns whether any came by limit_ns. */
bool bny_boot_socket_wait(int fd, short events, int64_t limit_ns);

/* Closes so that what was sent still arrives: unread input would turn the close into a reset. */
void bny_boot_socket_close(int fd);

#endif
