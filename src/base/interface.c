/* SPDX-License-Identifier: Apache-2.0
 * Finds the interface that BANYAN_INTERFACE means: the name of an interface, an address, or a network such as
 * 10.0.0.0/8. */
#include "base/interface.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/status.h"

struct network {
  int family; /* AF_UNSPEC: the text is the name of an interface */
  uint8_t address[16];
  int bits; /* bits that must agree */
};

/* Returns false if the text is neither a network nor a possible name. */
static bool parse_network(const char *text, struct network *network) {
  char address[64];
  const char *slash = strchr(text, '/');
  size_t length = slash ? (size_t)(slash - text) : strlen(text);
  memset(network, 0, sizeof *network);
  if (length == 0 || length >= sizeof address) return false;
  memcpy(address, text, length);
  address[length] = '\0';
  if (inet_pton(AF_INET, address, network->address) == 1)
    network->family = AF_INET;
  else if (inet_pton(AF_INET6, address, network->address) == 1)
    network->family = AF_INET6;
  else
    return !slash; /* names have no slash */
  int most = network->family == AF_INET ? 32 : 128;
  network->bits = most;
  if (!slash) return true;
  char *end;
  long bits = strtol(slash + 1, &end, 10);
  if (end == slash + 1 || *end || bits < 0 || bits > most) return false;
  network->bits = (int)bits;
  return true;
}

static const uint8_t *bytes_of(const struct sockaddr *address) {
  if (address->sa_family == AF_INET)
    return (const uint8_t *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
  return (const uint8_t *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
}

static bool is_within(const struct network *network, const struct sockaddr *address) {
  const uint8_t *bytes = bytes_of(address);
  if (network->family != address->sa_family) return false;
  for (int bit = 0; bit < network->bits; bit += 8) {
    int left = network->bits - bit;
    uint8_t mask = left >= 8 ? 0xff : (uint8_t)(0xff00u >> left);
    if ((bytes[bit / 8] ^ network->address[bit / 8]) & mask) return false;
  }
  return true;
}

/* Returns whether other nodes may reach an address. Link-local addresses do not count, because they also need the
 * interface's number. */
static bool is_usable(const struct ifaddrs *each) {
  if (!each->ifa_addr || !(each->ifa_flags & IFF_UP)) return false;
  if (each->ifa_addr->sa_family == AF_INET) return true;
  return each->ifa_addr->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)each->ifa_addr)->sin6_addr);
}

static bool is_loopback(const struct sockaddr *address) {
  const uint8_t *bytes = bytes_of(address);
  return address->sa_family == AF_INET ? bytes[0] == 127
                                       : IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)(const void *)bytes);
}

/* Hosts without a common network have such an address each, which routes over their other interfaces lead to. */
static bool is_routed(const struct ifaddrs *each) {
  return (each->ifa_flags & IFF_LOOPBACK) && !is_loopback(each->ifa_addr);
}

static size_t address_bytes(const struct sockaddr *address) { return address->sa_family == AF_INET ? 4 : 16; }

/* Rates an address: 3 if it is preferred, 2 if its family matches, else 1. */
static int suits(const struct sockaddr *address, int family, const struct addrinfo *preferred) {
  for (const struct addrinfo *each = preferred; each; each = each->ai_next)
    if (each->ai_family == address->sa_family &&
        memcmp(bytes_of(each->ai_addr), bytes_of(address), address_bytes(address)) == 0)
      return 3;
  return family == address->sa_family ? 2 : 1;
}

/* Lists interfaces with their addresses: "lo 127.0.0.1, eth0 10.0.0.1"; or says that there is none. */
static void list_addresses(const struct ifaddrs *list, char *names, size_t bytes) {
  char text[INET6_ADDRSTRLEN];
  size_t length = 0;
  names[0] = '\0';
  for (const struct ifaddrs *each = list; each; each = each->ifa_next) {
    if (!is_usable(each)) continue;
    inet_ntop(each->ifa_addr->sa_family, bytes_of(each->ifa_addr), text, sizeof text);
    bny_append(names, bytes, &length, "%s%s %s", length ? ", " : "", each->ifa_name, text);
  }
  if (!length) bny_append(names, bytes, &length, "no address (no interface is up)");
}

static banyan_status fail_unknown(const char *wanted, const struct ifaddrs *list) {
  char names[256];
  list_addresses(list, names, sizeof names);
  return bny_fail(
      BANYAN_ERR_ARGUMENT,
      "BANYAN_INTERFACE is \"%s\", which is not an interface, address or network of this node, which has: %s", wanted,
      names);
}

static bool has_in_network(const struct ifaddrs *each, const struct sockaddr *address) {
  if (!is_usable(each) || !each->ifa_netmask || each->ifa_addr->sa_family != address->sa_family) return false;
  const uint8_t *own = bytes_of(each->ifa_addr), *other = bytes_of(address), *mask = bytes_of(each->ifa_netmask);
  for (size_t i = 0; i < address_bytes(address); i++)
    if ((own[i] ^ other[i]) & mask[i]) return false;
  return true;
}

bool bny_interface_has_network_of(const struct sockaddr *address, char *names, size_t bytes) {
  struct ifaddrs *list;
  bool has = getifaddrs(&list) != 0;
  names[0] = '\0';
  if (has) return true; /* unknown */
  for (const struct ifaddrs *each = list; each && !has; each = each->ifa_next) has = has_in_network(each, address);
  list_addresses(list, names, bytes);
  freeifaddrs(list);
  return has;
}

void bny_interface_list(char *names, size_t bytes) {
  struct ifaddrs *list;
  names[0] = '\0';
  if (getifaddrs(&list) != 0) return;
  list_addresses(list, names, bytes);
  freeifaddrs(list);
}

bool bny_interface_shares_network(const char *names) {
  char address[64], own[8];
  int end = 0;
  for (const char *at = names; sscanf(at, "%*s %63[^,]%n", address, &end) == 1; at += end + (at[end] == ',')) {
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    bool is_four = inet_pton(AF_INET, address, &four.sin_addr) == 1;
    if (!is_four && inet_pton(AF_INET6, address, &six.sin6_addr) != 1) continue;
    const struct sockaddr *parsed = is_four ? (struct sockaddr *)&four : (struct sockaddr *)&six;
    if (!is_loopback(parsed) && bny_interface_has_network_of(parsed, own, sizeof own)) return true;
  }
  return names[0] == '\0'; /* unknown */
}

banyan_status bny_interface_find(const char *text, int family, const struct addrinfo *preferred, bny_interface *found) {
  struct network network;
  struct ifaddrs *list;
  int best = 0;
  memset(found, 0, sizeof *found);
  if (getifaddrs(&list) != 0)
    return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "the interfaces of this host cannot be listed");
  bool parsed = parse_network(text, &network);
  for (const struct ifaddrs *each = list; each && parsed; each = each->ifa_next) {
    if (!is_usable(each)) continue;
    bool fits = network.family == AF_UNSPEC ? strcmp(each->ifa_name, text) == 0 : is_within(&network, each->ifa_addr);
    int suitable = fits ? suits(each->ifa_addr, family, preferred) : 0;
    if (suitable <= best) continue;
    best = suitable;
    memset(found, 0, sizeof *found);
    found->is_routed = is_routed(each);
    snprintf(found->name, sizeof found->name, "%.*s", (int)strcspn(each->ifa_name, ":"), each->ifa_name);
    memcpy(&found->address, each->ifa_addr,
           each->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
  }
  banyan_status status = best > 0 ? BANYAN_OK : fail_unknown(text, list);
  freeifaddrs(list);
  return status;
}

/* ---- addresses that several nodes have --------------------------------------------------------------------------- */

/* Returns 0 unless this is an IPv4 address of an interface that leads to other nodes. */
static uint64_t number_of(const struct ifaddrs *each) {
  uint32_t address;
  if (!is_usable(each) || each->ifa_addr->sa_family != AF_INET || (each->ifa_flags & IFF_LOOPBACK)) return 0;
  memcpy(&address, bytes_of(each->ifa_addr), sizeof address);
  return bny_hash_of(address);
}

int32_t bny_interface_addresses(uint64_t *addresses, int32_t most) {
  struct ifaddrs *list;
  int32_t count = 0;
  if (getifaddrs(&list) != 0) return 0;
  for (const struct ifaddrs *each = list; each && count < most; each = each->ifa_next)
    if (number_of(each)) addresses[count++] = number_of(each);
  freeifaddrs(list);
  return count;
}

void bny_interface_names(const uint64_t *addresses, int32_t count, char *names, size_t bytes) {
  struct ifaddrs *list;
  size_t length = 0;
  names[0] = '\0';
  if (count == 0 || getifaddrs(&list) != 0) return;
  for (const struct ifaddrs *each = list; each; each = each->ifa_next) {
    uint64_t number = number_of(each);
    for (int32_t i = 0; number && i < count; i++)
      if (addresses[i] == number) {
        bny_append(names, bytes, &length, "%s%.*s", length ? "," : "", (int)strcspn(each->ifa_name, ":"),
                   each->ifa_name);
        break;
      }
  }
  freeifaddrs(list);
}
