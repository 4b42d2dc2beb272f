/* SPDX-License-Identifier: Apache-2.0
 * BANYAN_INTERFACE: the name of an interface, an address, or a network such as 10.0.0.0/8. */
#pragma once

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <netdb.h>
#include <sys/socket.h>

#include "banyan.h"

typedef struct bny_interface {
  char name[IF_NAMESIZE];          /* as in the kernel, without an alias such as ":1" */
  struct sockaddr_storage address; /* with port 0 */
  bool is_routed;                  /* the loopback interface has it, but it is no loopback address: routes lead to it */
} bny_interface;

/* Finds the interface of this node that the text names. It prefers one of the addresses `preferred` (may be NULL), then
 * one of this family, then any. */
banyan_status bny_interface_find(const char *text, int family, const struct addrinfo *preferred, bny_interface *found);

/* Returns whether an interface of this node is in the network of this address, as far as the system lists them, and
 * writes their names and addresses: "lo 127.0.0.1, eth0 10.0.0.1". */
bool bny_interface_has_network_of(const struct sockaddr *address, char *names, size_t bytes);

/* Writes the names and addresses of this node's interfaces. */
void bny_interface_list(char *names, size_t bytes);

/* Returns whether an interface of this node is in the network of an address of such a list, but for loopback ones. */
bool bny_interface_shares_network(const char *names);

/* Writes numbers for the IPv4 addresses of this node's interfaces, without the loopback. Returns how many, at most
 * `most`. A bridge such as docker0 has the same address on many nodes, so it leads to none of them. */
int32_t bny_interface_addresses(uint64_t *addresses, int32_t most);

/* Writes the names of this node's interfaces that have one of these addresses: "docker0,virbr0". */
void bny_interface_names(const uint64_t *addresses, int32_t count, char *names, size_t bytes);
