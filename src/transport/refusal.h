/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that a rank refused for itself and sent nothing of. It reports them to all ranks, so that no rank waits.
 * Each rank has a ring of known refusals in its node's shared memory: its own, and those of other nodes, which it
 * forwards. */
#ifndef BNY_TRANSPORT_REFUSAL_H
#define BNY_TRANSPORT_REFUSAL_H

#include "transport/transport.h"

enum { BNY_REFUSAL_TEXT_WORDS = 28, BNY_REFUSAL_TEXT_BYTES = 8 * BNY_REFUSAL_TEXT_WORDS };

/* Consecutive refused calls share the text of the first. */
typedef struct bny_refusal {
  uint64_t first, last; /* epochs */
  int32_t rank, status;
  char text[BNY_REFUSAL_TEXT_BYTES];
} bny_refusal;

/* Adds the entry to this rank's ring, and forwards it between nodes. Returns false if it was already in the ring. */
bool bny_refusal_add(bny_transport *transport, const bny_refusal *refusal);

/* Returns true if a rank is known to have refused the call of this epoch. It also reads the rings of the other ranks of
 * this node. */
bool bny_refusal_find(bny_transport *transport, uint64_t epoch, bny_refusal *found);

#endif
