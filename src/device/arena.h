/* SPDX-License-Identifier: Apache-2.0
 * The arenas of a group. Each rank makes one arena, and maps the arenas of all other ranks at addresses of its own
 * device.
 *
 * All ranks agree on how arenas are shared, from the facts that each reports about itself and its links. Every mapping
 * is verified with data. Every rank writes its own pattern into every arena and reads it back. It also reads the
 * patterns of all others in its own arena. If a mapping fails, all ranks get an error or continue with the next slower
 * kind, depending on the configuration. Either way the report names the pair of ranks.
 *
 * An arena is all zero when the call returns. */
#pragma once

#include "cuda/program.h"
#include "device/device.h"
#include "transport/transport.h"

/* The configuration, identical on all ranks except for the numbering of processes. */
typedef struct bny_arenas_config {
  size_t bytes;             /* size of each arena */
  const int32_t *nodes;     /* [nranks]: equal for ranks of one node in one network namespace */
  const int32_t *processes; /* [nranks]: equal for ranks of one process */
  bool strict;              /* rejects kinds slower than the devices claim to support; one rank that sets it sets it for
                             * all */
} bny_arenas_config;

/* Plans may be made from these facts, because all of them except `device` are identical on all ranks. */
typedef struct bny_arenas {
  bny_device *device;
  int32_t rank, nranks;
  bny_memory_kind kind;
  size_t bytes;              /* requested size of each arena */
  bool lines_whole, atomics; /* true for the links between all pairs: NVLink */
  int32_t ranks_per_device;  /* maximum over devices */
  bool apart;                /* some device has ranks of several processes */
  int32_t compute_least, sm_count_least, driver_least;
  bny_device_memory *memories[BNY_DEVICE_RANKS_MAX]; /* [rank] is this rank's own arena */
  bool stuck;                                        /* the device still uses the arenas, so they cannot be freed */
} bny_arenas;

enum { BNY_ARENAS_CELL_BYTES = 128 }; /* an arena has room for two cells per rank */

/* Collective over the exchange of at most BNY_DEVICE_RANKS_MAX ranks, bounded by its deadline. The device outlives the
 * arenas. */
banyan_status bny_arenas_make(bny_device *device, const bny_exchange *exchange, const bny_arenas_config *config,
                              bny_arenas **arenas);

/* Returns whether some device sees an arena at more than one address. */
bool bny_arenas_have_aliases(const bny_arenas *arenas);

/* Local. Frees this rank's arena and mappings. No kernel of this rank may use the arenas any more; peers may still use
 * this rank's arena. NULL is allowed. */
void bny_arenas_free(bny_arenas *arenas);
