/* SPDX-License-Identifier: Apache-2.0
 *
 * The arenas of a group. Each rank makes one, and sees those of all others at addresses of its own device.
 *
 * All ranks agree how arenas are shared, from what each reports about itself and its links. Every mapping is verified:
 * every rank writes its own pattern into every arena, reads it back, and reads in its own arena what the others wrote.
 * If a mapping fails, it is an error on all ranks, or all continue with the next slower kind, as configured. Either way
 * the pair is named.
 *
 * An arena is all zero when the call returns. */
#ifndef BNY_DEVICE_ARENA_H
#define BNY_DEVICE_ARENA_H

#include "device/device.h"
#include "transport/transport.h"

/* Identical on all ranks, except that each process numbers itself. */
typedef struct bny_arenas_config {
  size_t bytes;             /* size of each arena */
  const int32_t *nodes;     /* [nranks]: equal where ranks are on one node (and in one network namespace) */
  const int32_t *processes; /* [nranks]: equal where ranks are threads of one process */
  bool strict;              /* rejects kinds slower than what the devices claim; if set on any rank, it holds for all */
} bny_arenas_config;

/* Every fact but `device` is identical on all ranks, so plans may be made from them. */
typedef struct bny_arenas {
  bny_device *device;
  int32_t rank, nranks;
  bny_memory_kind kind;
  size_t bytes;              /* requested size of each arena */
  bool lines_whole, atomics; /* between all pairs: links are NVLink */
  int32_t ranks_per_device;  /* at most */
  bool apart;                /* ranks of several processes have one device */
  int32_t compute_least, sm_count_least, driver_least;
  bny_device_memory **memories; /* [nranks]; [rank] is its own arena */
  bool stuck;                   /* the device is still busy, so nothing can be freed */
} bny_arenas;

enum { BNY_ARENAS_CELL_BYTES = 128 }; /* an arena has room for two cells per rank */

/* Collective over the exchange, bounded by its deadline. The device outlives the arenas. */
banyan_status bny_arenas_make(bny_device *device, const bny_exchange *exchange, const bny_arenas_config *config,
                              bny_arenas **arenas);

/* Returns whether some device sees an arena at more than one address. */
bool bny_arenas_have_aliases(const bny_arenas *arenas);

/* Frees this rank's side. Local. No kernel of this rank may use the arenas any more; peers may still use this rank's.
 * NULL is allowed. */
void bny_arenas_free(bny_arenas *arenas);

#endif
