/* SPDX-License-Identifier: Apache-2.0
 * BANYAN_INTERFACE: the name of an interface, an address, or a network such as 10.0.0.0/8. */
#ifndef BNY_INTERFACE_H
#define BNY_INTERFACE_H

#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include "banyan.h"

typedef struct bny_interface {
  char name[IF_NAMESIZE];          /* as in the kernel, without an alias such as ":1" */
  struct sockaddr_storage address; /* with port 0 */
} bny_interface;

/* Finds the interface of this node that the text names. It prefers one of the addresses `preferred` (may be NULL), then
 * one of this family, then any. */
banyan_status bny_interface_find(const char *text, int family, const struct addrinfo *preferred, bny_interface *found);

#endif
