/* SPDX-License-Identifier: Apache-2.0
 * Makes the network of a communicator from the localities of its ranks. */
#pragma once

#include "locality/locality.h"
#include "plan/network.h"

typedef struct bny_links_facts {
  const bny_locality *localities;         /* by rank */
  const uint64_t *node_of;                /* by rank: equal on one node */
  bny_link_class classes[BNY_LEVELS_MAX]; /* by level */
  bny_link_class network;                 /* the class between nodes */
} bny_links_facts;

/* A rank with the key of its group, and an order of them for qsort(): by node, key and rank. */
typedef struct bny_locality_keyed {
  uint64_t node, key;
  int32_t rank;
} bny_locality_keyed;

int bny_locality_by_key(const void *a, const void *b);

/* Returns NULL if there is no memory. */
bny_links *bny_locality_network(const bny_links_facts *facts, const bny_levels *levels);
