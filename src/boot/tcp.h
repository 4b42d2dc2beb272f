/* SPDX-License-Identifier: Apache-2.0
 * Bootstrap over TCP: declarations for its parts.
 *
 * Rank 0 listens at an address that all ranks know. Up to BNY_BOOT_FANOUT other ranks connect to it: a star. More ranks
 * form a tree, in which no rank keeps more than this number of connections on its node, or to other nodes:
 *
 *   - The processes of a node (a network namespace) meet first. The one that binds a name derived from the secret is
 *     the front of its node and connects to rank 0. The others connect to the front, over a local socket.
 *   - A rank with as many children as it may have redirects the next one to one of its children, which listens for it.
 *
 * Rank 0 thus meets each node once, and briefly, however many ranks there are. A rank that finds no front, or a silent
 * one, connects to rank 0 itself. The form of the tree affects cost only.
 *
 * A rank joins by challenge, hello and welcome (tcp_link.h). The welcome needs rank 0's consent: the parent sends a
 * JOIN frame towards rank 0, and the VERDICT comes back. When all have joined, READY goes down the tree. Without a
 * secret, rank 0 first gives a key to the processes of its user (tcp_user.c).
 *
 * In an all-gather each rank's block goes up the tree to rank 0 as a frame of its own, and the result comes down. A
 * rank that finds an error sends its text to all its peers as FAILURE, and they forward it. It is final. */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "banyan.h"
#include "boot/tcp_link.h"
#include "base/status.h"

/* The most children of a rank on its node, and on other nodes. */
enum { BNY_BOOT_FANOUT = 64 };

/* The time limit for a connection to authenticate itself. After the same time a silent peer is tried again. */
#define BNY_BOOT_UNAUTHENTICATED_NS ((int64_t)5 * 1000 * 1000 * 1000)

/* ---- settings from the environment: tcp_settings.c --------------------------------------------------------------- */

struct bny_boot_settings {
  int32_t rank;
  int32_t nranks;
  int32_t fanout;
  const char *rank_from, *size_from, *local_from; /* the variables of rank, size and ranks of this node; NULL: none */
  bool has_nodes;                                 /* the number of ranks of this node shows that there are several
                                                   * nodes */
  bool is_one_node;             /* by local_from: rank 0 listens at a loopback address, for any MASTER_ADDR */
  char host[256];               /* MASTER_ADDR */
  char interface[64];           /* BANYAN_INTERFACE; "": none */
  char locality[32];            /* processes of a node meet if theirs are equal; "", except in tests of several nodes */
  char job[BNY_BOOT_JOB_BYTES]; /* sent in the hello */
  int port;
  int nports;    /* number of ports of which rank 0 takes the first free one; 0: only `port` */
  int listen_fd; /* BANYAN_LISTEN_FD, rank 0 only; -1: none */
  bool has_secret;
  uint8_t key[BNY_BOOT_KEY_BYTES]; /* derived from the secret, or from an empty one */
};

banyan_status bny_boot_settings_read(struct bny_boot_settings *settings);

/* Appends the variables that set this process's rank, because the ranks that it waits for may not exist. */
void bny_boot_append_origin(char *text, size_t bytes, size_t *length, const struct bny_boot_settings *settings);

/* Appends a job, its number of ranks and the time when this rank of it began. */
void bny_boot_append_job(char *text, size_t bytes, size_t *length, const char *job, uint32_t nranks, uint64_t began_s);

/* If rank 0 is at a loopback address and there may be several nodes, appends `before` and the variable to set. */
void bny_boot_append_loopback(char *text, size_t bytes, size_t *length, const char *before,
                              const struct banyan_env *env);

/* ---- the bootstrap ----------------------------------------------------------------------------------------------- */

/* Listeners: one for other nodes, which rank 0 may have inherited, one for this node, and rank 0's for issuing keys. */
enum { BNY_BOOT_ISSUES_KEYS = 2, BNY_BOOT_LISTENERS };

struct banyan_env {
  uint64_t process; /* its maker */
  struct bny_boot_settings settings;
  uint8_t issued_key[BNY_BOOT_KEY_BYTES]; /* without a secret: the key of TCP connections */
  uint64_t began_s;                       /* sent in the hello */
  char address[BNY_BOOT_ADDRESS_BYTES];   /* rank 0's own, or that of this rank's parent */
  banyan_status failure;                  /* not BANYAN_OK: final; while joining: to be reported to the others */
  char failure_text[BNY_ERROR_TEXT_BYTES];
  int listen_fds[BNY_BOOT_LISTENERS]; /* while joining; -1: none */
  struct bny_boot_link parent;        /* towards rank 0; none on rank 0 */
  struct bny_boot_link *children;
  int32_t nchildren, capacity;
  int32_t *parents; /* rank 0: the parent of each rank; -1: not joined yet */
};

/* Keeps the thread's last error as the failure of this bootstrap: tcp_fail.c. */
void bny_boot_failure_set(struct banyan_env *env, banyan_status status);

/* For this time a rank that has failed looks for the others, and rank 0 waits for them, to report the reason. */
#define BNY_BOOT_REPORT_NS ((int64_t)3 * 1000 * 1000 * 1000)

/* Makes the bootstrap of these settings: banyan_env_create() without the environment. */
banyan_status bny_boot_env_make(const struct bny_boot_settings *settings, int64_t timeout_ns, banyan_env **env,
                                banyan_bootstrap *bootstrap);

/* ---- the user: tcp_user.c ---------------------------------------------------------------------------------------- */

struct bny_boot_user {
  int64_t process;
  uid_t uid;
};

/* Returns the key of a connection. Over a local socket without a secret it protects nothing; the kernel checks the
 * user. */
const uint8_t *bny_boot_key_of(const struct banyan_env *env, bool local);

/* Rejects a rank without a secret that runs as the overflow user of a user namespace, which other users share. */
banyan_status bny_boot_user_check(const struct bny_boot_settings *settings);

/* Makes a random key. Other ranks keep theirs, which is secret, until rank 0 gives them its own. */
void bny_boot_issue_begin(struct banyan_env *env);

/* Rank 0: listens for processes that ask for its key, and gives it to one of the same user. */
banyan_status bny_boot_issue_listen(struct banyan_env *env, int64_t deadline_ns);
bool bny_boot_issue(const struct banyan_env *env, int fd, struct bny_boot_user *user);

/* Other ranks: ask rank 0, which is at env->address, for its key. NOT_ASKED: the system did not let this rank ask; see
 * errno. */
enum bny_boot_issue { BNY_BOOT_ISSUED, BNY_BOOT_NOT_ISSUED, BNY_BOOT_NOT_ASKED, BNY_BOOT_OTHER_USER };
enum bny_boot_issue bny_boot_issue_ask(struct banyan_env *env, int64_t limit_ns, struct bny_boot_user *user);

/* ---- the launcher: tcp_user.c -------------------------------------------------------------------------------- */

/* Returns the process that has started this one: the nearest ancestor that is not a wrapper of one rank, such as a
 * shell or timeout. 0: /proc does not show it. */
int64_t bny_boot_launcher_of(int64_t process);

/* Returns whether that process, of this node, and the calling one are known to have different launchers. */
bool bny_boot_launcher_differs(int64_t process);
#define BNY_BOOT_LAUNCHER_HINT "if they are of one job, set BANYAN_JOB to the same text on all its ranks"

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* tcp_seek.c, all ranks except rank 0: finds a parent. Returns when this rank has joined the tree. Others may then join
 * below it (env->listen_fds). */
banyan_status bny_boot_seek(struct banyan_env *env, int64_t deadline_ns);

/* tcp_listen.c, rank 0: makes its listener, env->listen_fds[0]: the inherited socket, or a new one at the chosen
 * interface, or at the first address of the host that can be bound. A name without such an address is looked up again
 * until the deadline, and a port that rank 0 of another job holds is awaited. env->address becomes its text. */
banyan_status bny_boot_listen_as_rank_0(struct banyan_env *env, int64_t deadline_ns);

/* tcp_seek.c, rank 0: asks who listens at its own address. ANOTHER_JOB, THIS_JOB: rank 0 of another job, or of this
 * job, listens there. The thread's last error names both jobs. */
enum bny_boot_holder { BNY_BOOT_UNKNOWN, BNY_BOOT_ANOTHER_JOB, BNY_BOOT_THIS_JOB };
struct addrinfo;
enum bny_boot_holder bny_boot_seek_holder(struct banyan_env *env, const struct addrinfo *list, int64_t deadline_ns);

/* tcp_join.c: accepts other ranks. Returns when all ranks have joined. */
banyan_status bny_boot_join_all(struct banyan_env *env, int64_t deadline_ns);

/* tcp_gather.c */
banyan_status bny_boot_gather(struct banyan_env *env, const void *mine, void *all, size_t bytes, int64_t timeout_ns);

/* ---- failures and shutdown: tcp_fail.c --------------------------------------------------------------------------- */

/* Sends the thread's last error to all peers and hangs up. Returns `status`. */
banyan_status bny_boot_fail_all(struct banyan_env *env, banyan_status status);

/* Sets the error of a peer that has ended, was silent or forged. `doing` names the operation. */
banyan_status bny_boot_fail_peer(const struct banyan_env *env, const struct bny_boot_link *link,
                                 enum bny_boot_progress progress, const char *doing);

/* Makes a received FAILURE frame this thread's error. */
banyan_status bny_boot_fail_received(const struct bny_boot_link *link);

/* Sends all queued data on the links of all children. Links that are lost or late are closed; *lost is the first of
 * them, or NULL. */
void bny_boot_flush_children(struct banyan_env *env, int64_t deadline_ns, struct bny_boot_link **lost);

/* Returns rank 0's deadline for a rank with left_ms left, which is earlier so that rank 0's reason arrives in time. */
int64_t bny_boot_deadline_of_peer(uint32_t left_ms);
