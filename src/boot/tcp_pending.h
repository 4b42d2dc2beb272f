/* SPDX-License-Identifier: Apache-2.0
 * A rank to which others connect. A connection is pending until its peer authenticates itself. It then applies to join,
 * which rank 0 decides, and becomes a child. Pending connections are served side by side, and each has
 * BNY_BOOT_UNAUTHENTICATED_NS. Their number is limited; at the limit the oldest make room. A port scan, garbage or a
 * silent peer therefore delays no rank. */
#pragma once

#include "boot/tcp.h"

enum {
  BNY_BOOT_CANDIDATES = 256, /* at most */
  BNY_BOOT_REJECTION_BYTES = BNY_BOOT_REASON_BYTES + BNY_BOOT_ADDRESS_BYTES + 4
};

enum bny_boot_state {
  BNY_BOOT_GREETED,  /* the challenge has been sent */
  BNY_BOOT_WAITING,  /* authenticated; there is neither room for it nor a child to redirect it to */
  BNY_BOOT_APPLYING, /* rank 0 has been asked */
  BNY_BOOT_FINISHED  /* to be dropped */
};

struct bny_boot_candidate {
  int fd;
  bool local;
  enum bny_boot_state state;
  int64_t greeted_ns;
  uint64_t ticket;
  char address[BNY_BOOT_ADDRESS_BYTES]; /* the peer's address, for texts */
  struct bny_boot_challenge challenge;
  struct bny_boot_hello hello;
  size_t got; /* bytes of hello */
};

/* The child that forwarded a request to join, through which the answer returns. */
struct bny_boot_ticket {
  uint64_t ticket;
  int32_t child;
};

struct bny_boot_pending {
  struct banyan_env *env;
  int64_t begun_ns;
  int64_t deadline_ns;
  struct bny_boot_candidate *candidates; /* oldest first */
  int ncandidates;
  struct bny_boot_ticket *tickets;
  size_t ntickets, tickets_capacity;
  struct pollfd *polls;
  size_t polls_capacity;
  uint32_t next_child[2]; /* next child to redirect to: on another node, on this one */
  bool ready;             /* all have joined */

  /* Rank 0 only: */
  bool *joined;       /* [nranks] */
  int64_t settled_ns; /* all have joined, and a duplicate rank would have arrived by this time; 0: not all have
                       * joined */
  int32_t njoined;
  int nforged;     /* connections that answered the challenge wrongly */
  int nother_jobs; /* rejections of ranks of other jobs */
  int nforeign;    /* processes of other users that asked for a key */
  char forged_address[BNY_BOOT_ADDRESS_BYTES];
  char rejection[BNY_BOOT_REJECTION_BYTES]; /* the last one, for the error text */
};

/* Returns whether another connection fits. Otherwise the oldest pending one may be dropped for it at *when_ns. */
bool bny_boot_pending_has_room(const struct bny_boot_pending *pending, int64_t *when_ns);
banyan_status bny_boot_pending_accept(struct bny_boot_pending *pending, int listener); /* index in listen_fds */

/* Receives from a pending connection, whose state may be FINISHED afterwards. */
banyan_status bny_boot_pending_read(struct bny_boot_pending *pending, struct bny_boot_candidate *candidate);

/* Retries waiting connections, after a change of room or children. */
banyan_status bny_boot_pending_reconsider(struct bny_boot_pending *pending);

void bny_boot_pending_drop_finished(struct bny_boot_pending *pending);

/* Forwards a request towards rank 0, or answers it on rank 0. `child` is the link that it came from; -1: a pending
 * connection of this rank has this ticket. */
banyan_status bny_boot_pending_apply(struct bny_boot_pending *pending, const struct bny_boot_join *join, int32_t child);
banyan_status bny_boot_pending_answer(struct bny_boot_pending *pending, int32_t child, uint64_t ticket,
                                      const char *reason);
int32_t bny_boot_pending_recall(struct bny_boot_pending *pending, uint64_t ticket); /* the child of a ticket, or -1 */
banyan_status bny_boot_pending_fail_memory(const struct bny_boot_pending *pending);
banyan_status bny_boot_pending_fail_left(const struct bny_boot_pending *pending, int32_t rank);
