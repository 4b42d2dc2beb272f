/* SPDX-License-Identifier: Apache-2.0
 * Calls that a rank rejected before it sent anything. It reports them to all ranks, so that no rank waits. Each rank
 * has a ring of known rejections in its node's shared memory: its own, and those of other nodes, which it forwards. */
#pragma once

#include "transport/transport.h"

enum { BNY_REJECTION_TEXT_WORDS = 28, BNY_REJECTION_TEXT_BYTES = 8 * BNY_REJECTION_TEXT_WORDS };

/* Consecutive rejected calls share the text of the first. */
typedef struct bny_rejection {
  uint64_t first, last; /* epochs */
  int32_t rank, status;
  char text[BNY_REJECTION_TEXT_BYTES];
} bny_rejection;

/* Adds the entry to this rank's ring, and forwards it between nodes. Returns false if it was already in the ring. */
bool bny_rejection_add(bny_transport *transport, const bny_rejection *rejection);

/* Returns true if a rank is known to have rejected the call of this epoch. It also reads the rings of the other ranks
 * of this node. */
bool bny_rejection_find(bny_transport *transport, uint64_t epoch, bny_rejection *found);
