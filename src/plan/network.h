/* SPDX-License-Identifier: Apache-2.0
 * The links between ranks, and the way of a message over them. Prices and the simulator share this. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "plan/levels.h"

/* Kinds of links, inner to outer. */
typedef enum bny_hop {
  BNY_HOP_NVLINK,
  BNY_HOP_XGMI,
  BNY_HOP_PCIE,
  BNY_HOP_PACKAGES, /* between CPU packages */
  BNY_HOP_NIC,
  BNY_HOP_LEAF, /* from leaf switches to spines */
  BNY_HOP_SPINE,
  BNY_HOPS
} bny_hop;

/* The links that messages between groups of one level cross. */
typedef enum bny_link_way {
  BNY_WAY_MEMORY, /* none: the receiver reads the sender's memory */
  BNY_WAY_NVLINK,
  BNY_WAY_XGMI,
  BNY_WAY_PCIE,
  BNY_WAY_NETWORK,
  BNY_WAY_PORTS /* without a topology, each rank has a port for each level above the first */
} bny_link_way;

/* One direction of a link. All messages that cross it at the same time share its speed. */
typedef struct bny_link {
  bny_hop kind;
  int32_t owner; /* the first rank that uses it */
  int32_t users; /* ranks */
  bool out;      /* away from the owner */
  bool wide;     /* its messages also cross other links, which are no faster all together: it limits none */
  double ns_per_byte;
  double behind_bytes_per_ns; /* those links, towards the ranks */
} bny_link;

/* A fact for planning, equal on every rank. */
typedef struct bny_links {
  bny_link_way ways[BNY_LEVELS_MAX]; /* by level */
  int32_t nlinks, capacity;
  bny_link *links;
  int32_t
      *at[BNY_HOPS]; /* by rank: its outgoing link of each kind, -1: none; the incoming one is the next. NULL: none */
  uint64_t *fabric;  /* by rank: equal where switches join their NICs; 0: not known. NULL: for no rank */
  bool split;        /* some ranks have no way to others */
  bool even;         /* all ranks have equal links and groups, and no link that they share slows them */
} bny_links;

enum { BNY_ROUTE_LINKS_MAX = 2 * (BNY_HOPS - BNY_HOP_PCIE) };

typedef struct bny_route {
  bool exists;
  int32_t nlinks, links[BNY_ROUTE_LINKS_MAX];
  double latency_ns;
  double post_ns;          /* sender: time of each message except the first after a wait */
  double seen_ns;          /* receiver: time of a message that has arrived already */
  double read_ns_per_byte; /* receiver: without links */
} bny_route;

bny_links *bny_links_make(void);         /* NULL: no memory */
void bny_links_free(bny_links *network); /* NULL is allowed */

/* Adds both directions of a link and returns the outgoing one; -1: no memory. */
int32_t bny_links_add(bny_links *network, bny_hop kind, int32_t owner, double ns_per_byte);

/* The network of levels without a topology. */
bny_links *bny_links_of_levels(const bny_levels *levels);

uint64_t bny_links_hash(uint64_t hash, const bny_links *network, int32_t nranks);

/* Sets `even` of the levels' network, and users and width of its links. */
void bny_links_compare(const bny_levels *levels);

/* The least time of a byte of a message over a level's links, which carry nothing else. */
double bny_links_least_ns_per_byte(const bny_levels *levels, int32_t level);

/* The route of a message between two ranks. */
void bny_links_route(const bny_levels *levels, int32_t from, int32_t to, bny_route *route);
