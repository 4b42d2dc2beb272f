/* SPDX-License-Identifier: Apache-2.0
 * Passes file descriptors between the processes of one node, over an abstract Unix socket that exists only during the
 * call. Every rank gives its own descriptors to all others, through rank 0. A peer must run as the same user and know
 * the secret of this communicator, which travels over the (authenticated) bootstrap.
 *
 * Ranks wait for each other in the exchange, whose bootstrap notices deaths and names missing ranks. All ranks connect
 * before rank 0 passes anything, so the end of a connection is the end of a rank. */
#pragma once

#include "transport/transport.h"

typedef struct bny_fd_passing {
  uint64_t process; /* its owner: the exchange has the same */
  int32_t rank, nranks;
  int64_t deadline_ns; /* half of the exchange's time, so that a failure can still reach all ranks */
  int64_t last_ns;     /* a little later: rank 0 names a rank that never comes, so the others wait longer for rank 0 */
  int *sockets;        /* by rank: on rank 0 to every other rank, elsewhere to rank 0; else -1 */
  bool was_rejected;
  banyan_status admitted; /* rank 0: a failure, with its text, that the others do not know yet */
  char why[BNY_REPORT_BYTES];
} bny_fd_passing;

/* Connects all ranks to rank 0. It is collective. A failure is known to all ranks and leaves nothing to close. */
banyan_status bny_fd_passing_meet(const bny_exchange *exchange, bny_fd_passing *passing);

/* Every rank passes mine[each], which stay its own, and gets fds[nranks * each], which it closes: the descriptors of
 * all ranks. Its own entries, and those for which a rank passed -1, are -1. A rank that has failed before (`own`)
 * passes the thread's error instead, and the exchange fails on all ranks. */
banyan_status bny_fd_passing_exchange(bny_fd_passing *passing, banyan_status own, const int *mine, int32_t each,
                                      int *fds);

void bny_fd_passing_close(bny_fd_passing *passing);
