/* SPDX-License-Identifier: Apache-2.0
 *
 * The place of this process: in the machine that a file describes, or in this machine as probes find it. Probes that
 * fail give a coarser place and a note in its source. Settings that cannot be followed are errors. */
#ifndef BNY_PLACE_FIND_H
#define BNY_PLACE_FIND_H

#include "place/place.h"

typedef struct bny_place_query {
  const char *topo;         /* BANYAN_TOPO; NULL: this machine */
  const char *topo_rank;    /* BANYAN_TOPO_RANK: a number, or a list by rank; NULL: the rank finds itself */
  int32_t rank;             /* its number among those that the environment describes */
  const char *device;       /* "cuda:2"; NULL: none */
  const char *cuda_library; /* NULL: libcuda.so.1 */
  const char *costs;        /* BANYAN_COSTS; NULL: usual prices */
} bny_place_query;

banyan_status bny_place_find(const bny_place_query *query, bny_place *place);

/* Adds the NIC that serves a rank without a device, which leaves its node. This looks at all PCI devices. */
void bny_place_find_nic(bny_place *place);

#endif
