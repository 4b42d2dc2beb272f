/* SPDX-License-Identifier: Apache-2.0
 * Tests that run with ranks as threads, as processes, and as processes that count themselves as ranks of several
 * nodes. */
#pragma once

#include "tests/support/world.h"
#ifdef HAVE_UCX
#include "tests/transport/net_util.h"
#endif

typedef enum placed { PLACED_THREADS, PLACED_PROCESSES, PLACED_NODES, PLACED_APART, PLACED_WAYS } placed;

/* Returns false without UCX. `together`: the node of each rank, such as "a,a,b"; `apart`: "a,b,c". */
static inline bool placed_set(placed placed, const char *together, const char *apart, world_setup *setup) {
  setup->processes = placed != PLACED_THREADS;
  if (placed < PLACED_NODES) {
    world_be_nodes(NULL);
    return true;
  }
#ifdef HAVE_UCX
  if (net_is_absent()) return false;
  world_be_nodes(placed == PLACED_NODES ? together : apart);
  return true;
#else
  (void)together, (void)apart;
  return false;
#endif
}
