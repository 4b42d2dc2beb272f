/* SPDX-License-Identifier: Apache-2.0
 *
 * File descriptors for the processes of one host, over an abstract Unix socket that exists only while it is done: rank 0
 * gives every other rank the memory file of the window and one pidfd per rank, or every rank gives all others a descriptor
 * of its own by way of rank 0. A peer must run as the same user and know the secret of this communicator, which travels by
 * the (authenticated) bootstrap.
 */
#ifndef BNY_TRANSPORT_HANDOVER_H
#define BNY_TRANSPORT_HANDOVER_H

#include "transport/transport.h"

enum { BNY_HANDOVER_NAME_BYTES = 24, BNY_HANDOVER_SECRET_BYTES = 16 };

/* What rank 0 tells the others through the bootstrap. */
typedef struct bny_handover_ticket {
  char name[BNY_HANDOVER_NAME_BYTES];
  unsigned char secret[BNY_HANDOVER_SECRET_BYTES];
} bny_handover_ticket;

/* A listening socket and its ticket. */
banyan_status bny_handover_listen(bny_handover_ticket *ticket, int *listener);

/* Rank 0: serves all others. Fills pidfds[nranks] (-1 where the kernel offers none); the caller closes them. */
banyan_status bny_handover_serve(int listener, const bny_handover_ticket *ticket, int memory, int32_t nranks, int *pidfds,
                                 int64_t deadline_ns);

/* The others. */
banyan_status bny_handover_receive(const bny_handover_ticket *ticket, int32_t rank, int32_t nranks, int *memory,
                                   int *pidfds, int64_t deadline_ns);

/* Every rank gives `mine` and gets fds[nranks], which it closes: the descriptors of all ranks, -1 in its own place and
 * wherever a rank gave -1. Rank 0 serves with the listener; the others leave it -1. `mine` remains the caller's. */
banyan_status bny_handover_trade(int listener, const bny_handover_ticket *ticket, int32_t rank, int32_t nranks, int mine,
                                 int *fds, int64_t deadline_ns);

#endif
