/* SPDX-License-Identifier: Apache-2.0
 * Bootstrap over TCP: what its parts share.
 *
 * Rank 0 listens at an address that all ranks know. Up to BNY_BOOT_FANOUT others connect to it: a star. More of them
 * form a tree, in which nobody keeps more connections than that of each kind:
 *
 *   - The processes of a host (a network namespace) meet first: the one that binds a name made of the secret is the
 *     front of its host, and goes to rank 0; the others go to the front, over a local socket.
 *   - Who has as many peers as it wants sends the next one on to one of those, which listens for them.
 *
 * So rank 0 meets each host once, and for a moment, however many ranks there are. A rank that finds no front (or a
 * silent one) goes to rank 0 itself: the tree's form is a matter of cost alone.
 *
 * How a rank joins (boot_tcp_auth.h): challenge, hello, welcome. The welcome comes when rank 0 agrees: who takes a
 * rank in sends a JOIN frame towards rank 0, and the VERDICT comes back. When all have joined, READY goes down the
 * tree.
 *
 * An allgather: each rank's block goes up the tree to rank 0 as a frame of its own, and the whole comes down.
 * Whoever finds an error sends its text to all its peers, who pass it on: FAILURE. It is final. */
#ifndef BNY_BOOT_TCP_H
#define BNY_BOOT_TCP_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "boot_tcp_auth.h"
#include "boot_tcp_link.h"
#include "status.h"

/* Peers below a rank: so many on its host, and so many on others. */
enum { BNY_BOOT_FANOUT = 64 };

/* How long a connection may take to authenticate itself, and a silent peer to be tried again. */
#define BNY_BOOT_STRANGER_NS ((int64_t)5 * 1000 * 1000 * 1000)

/* ---- what the environment says: boot_tcp_settings.c -------------------------------------------------------------- */

struct bny_boot_settings {
  int32_t rank;
  int32_t nranks;
  int32_t fanout;
  char host[256];     /* MASTER_ADDR */
  char interface[64]; /* BANYAN_INTERFACE; "": none */
  char locality[32];  /* processes of a host meet if theirs are equal: "", but for tests of many hosts */
  int port;
  int listen_fd; /* BANYAN_LISTEN_FD, rank 0 only; -1: none */
  bool has_secret;
  uint8_t key[BNY_BOOT_KEY_BYTES]; /* of the secret, or of the empty one */
};

banyan_status bny_boot_settings_read(struct bny_boot_settings *settings);

/* Whether the ranks are so many that they form a tree. */
bool bny_boot_is_tree(const struct bny_boot_settings *settings);

/* ---- the whole --------------------------------------------------------------------------------------------------- */

enum { BNY_BOOT_LISTENERS = 2 }; /* one for other hosts, one for this one; rank 0's may be inherited */

struct banyan_env {
  struct bny_boot_settings settings;
  char address[BNY_BOOT_ADDRESS_BYTES]; /* that rank 0 listens at, or of this rank's parent */
  banyan_status failure;                /* not BANYAN_OK: final */
  char failure_text[BNY_ERROR_TEXT_BYTES];
  int listen_fds[BNY_BOOT_LISTENERS]; /* while joining; -1: none */
  struct bny_boot_link parent;        /* towards rank 0, which has none */
  struct bny_boot_link *children;
  int32_t nchildren, capacity;
  int32_t *parents; /* rank 0: whom each rank has joined; -1: none yet */
};

/* Makes the bootstrap of these settings: banyan_env_create() without the environment. */
banyan_status bny_boot_env_make(const struct bny_boot_settings *settings, int64_t timeout_ns, banyan_env **env,
                                banyan_bootstrap *bootstrap);

/* boot_tcp_seek.c, all but rank 0: finds a parent. Returns when this rank has joined the tree, which others may join
 * below it (env->listen_fds). */
banyan_status bny_boot_seek(struct banyan_env *env, int64_t deadline_ns);

/* boot_tcp_join.c: lets others join. Returns when all ranks have joined. */
banyan_status bny_boot_join_all(struct banyan_env *env, int64_t deadline_ns);

/* boot_tcp_gather.c */
banyan_status bny_boot_gather(struct banyan_env *env, const void *mine, void *all, size_t bytes, int64_t timeout_ns);

/* ---- failures and farewells: boot_tcp_fail.c --------------------------------------------------------------------- */

/* Tells the thread's last error to all peers, and hangs up. Returns `status`. */
banyan_status bny_boot_fail_all(struct banyan_env *env, banyan_status status);

/* A peer has ended, was silent or forged: words it. `doing` says what was being done. */
banyan_status bny_boot_fail_peer(const struct banyan_env *env, const struct bny_boot_link *link,
                                 enum bny_boot_progress progress, const char *doing);

/* A FAILURE frame has come whole: it becomes this thread's error. */
banyan_status bny_boot_fail_heard(const struct bny_boot_link *link);

/* Sends what is waiting on the links of all children. Those that are lost, or late, are closed; *lost is the first
 * of them, or NULL. */
void bny_boot_flush_children(struct banyan_env *env, int64_t deadline_ns, struct bny_boot_link **lost);

/* How much earlier than a waiting rank's own deadline rank 0 gives up, so that its reason arrives in time. */
int64_t bny_boot_deadline_of_peer(uint32_t left_ms);

#endif
