/* SPDX-License-Identifier: Apache-2.0
 * A rank to which others connect. Connections are strangers until they have authenticated themselves; then they
 * apply, for rank 0 decides; then they are children. Strangers are served side by side, each has
 * BNY_BOOT_STRANGER_NS, and there is a limit to their number at which the oldest make room: so a port scan, garbage
 * or a silent peer holds up nobody. */
#ifndef BNY_BOOT_TCP_LOBBY_H
#define BNY_BOOT_TCP_LOBBY_H

#include "boot_tcp.h"

enum {
  BNY_BOOT_STRANGERS = 256, /* at most */
  BNY_BOOT_REFUSAL_BYTES = BNY_BOOT_REASON_BYTES + BNY_BOOT_ADDRESS_BYTES + 4
};

enum bny_boot_state {
  BNY_BOOT_GREETED,  /* has been sent a challenge */
  BNY_BOOT_WAITING,  /* has authenticated itself; there is neither room for it nor anyone to send it on to */
  BNY_BOOT_APPLYING, /* rank 0 has been asked */
  BNY_BOOT_FINISHED  /* to be dropped */
};

struct bny_boot_stranger {
  int fd;
  bool local;
  enum bny_boot_state state;
  int64_t greeted_ns;
  uint64_t ticket;
  char address[BNY_BOOT_ADDRESS_BYTES]; /* where it came from, for texts */
  struct bny_boot_challenge challenge;
  struct bny_boot_hello hello;
  size_t got; /* bytes of hello */
};

/* Who has asked for a rank to join: the child through which the answer goes. */
struct bny_boot_route {
  uint64_t ticket;
  int32_t child;
};

struct bny_boot_lobby {
  struct banyan_env *env;
  int64_t begun_ns;
  int64_t deadline_ns;
  struct bny_boot_stranger *strangers; /* the oldest first */
  int nstrangers;
  struct bny_boot_route *routes;
  size_t nroutes, routes_capacity;
  struct pollfd *polls;
  size_t polls_capacity;
  uint32_t next_child[2]; /* to send a rank on to: on another host, on this one */
  bool ready;             /* all have joined */

  /* Rank 0 alone: */
  bool *joined; /* [nranks] */
  int32_t njoined;
  int nforged; /* connections that answered the challenge wrongly */
  char forged_address[BNY_BOOT_ADDRESS_BYTES];
  char refusal[BNY_BOOT_REFUSAL_BYTES]; /* the last, for the error text */
};

/* boot_tcp_lobby.c: strangers. */

/* Whether another connection can be taken; else *when_ns is when the oldest stranger may be dropped for it. */
bool bny_boot_lobby_has_room(const struct bny_boot_lobby *lobby, int64_t *when_ns);
banyan_status bny_boot_lobby_accept(struct bny_boot_lobby *lobby, int listen_fd);

/* Takes what a stranger has sent; afterwards its state may be FINISHED. */
banyan_status bny_boot_lobby_hear(struct bny_boot_lobby *lobby, struct bny_boot_stranger *stranger);

/* Rank 0 has answered the application of a stranger. "": it becomes a child. */
banyan_status bny_boot_lobby_settle(struct bny_boot_lobby *lobby, struct bny_boot_stranger *stranger,
                                    const char *reason);

/* There may be room again, or someone to send on to. */
banyan_status bny_boot_lobby_reconsider(struct bny_boot_lobby *lobby);

void bny_boot_lobby_drop_finished(struct bny_boot_lobby *lobby);

/* boot_tcp_join.c: sends an application on its way, or answers it, on rank 0. `child` is where it came from; -1: one
 * of our own strangers has this ticket. */
banyan_status bny_boot_lobby_apply(struct bny_boot_lobby *lobby, const struct bny_boot_join *join, int32_t child);

#endif
