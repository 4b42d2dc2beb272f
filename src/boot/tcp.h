/* SPDX-License-Identifier: Apache-2.0
 * Bootstrap over TCP: declarations for its parts.
 *
 * The ranks form a star. Rank 0 listens at an address that all ranks know, and every other rank connects to it. A rank
 * joins by challenge, hello and welcome (tcp_link.h). When all have joined, rank 0 sends READY to each of them. Without
 * a secret the connections are local sockets, whose users the kernel shows (tcp_process.c).
 *
 * In an all-gather each rank sends its block to rank 0, which sends all blocks to each rank. A rank that finds an error
 * sends its text as FAILURE to rank 0, and rank 0 to all others. It is final. */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "banyan.h"
#include "boot/tcp_link.h"
#include "base/status.h"

/* The time limit for a connection to authenticate itself. After the same time a silent peer is tried again. */
#define BNY_BOOT_UNAUTHENTICATED_NS ((int64_t)5 * 1000 * 1000 * 1000)

/* ---- settings from the environment: tcp_settings.c --------------------------------------------------------------- */

struct bny_boot_settings {
  int32_t rank;
  int32_t nranks;
  const char *rank_from, *size_from, *local_from; /* the variables of rank, size and ranks of this node; NULL: none */
  bool has_nodes;                                 /* the number of ranks of this node shows that there are several
                                                   * nodes */
  bool is_one_node;             /* by local_from: rank 0 listens at a loopback address, for any MASTER_ADDR */
  char host[256];               /* MASTER_ADDR */
  char interface[64];           /* BANYAN_INTERFACE; "": none */
  char job[BNY_BOOT_JOB_BYTES]; /* sent in the hello */
  uint32_t attempt;             /* TORCHELASTIC_RESTART_COUNT */
  int port;
  int listen_fd; /* BANYAN_LISTEN_FD, rank 0 only; -1: none */
  bool has_secret;
  uint8_t key[BNY_BOOT_KEY_BYTES]; /* derived from the secret, or from an empty one */
};

banyan_status bny_boot_settings_read(struct bny_boot_settings *settings);

/* Appends the variables that set this process's rank, because the ranks that it waits for may not exist. */
void bny_boot_append_origin(char *text, size_t bytes, size_t *length, const struct bny_boot_settings *settings);

/* Appends a job, its number of ranks and the time when this rank of it began. */
void bny_boot_append_job(char *text, size_t bytes, size_t *length, const char *job, uint32_t nranks, uint64_t began_s);

/* ---- the bootstrap: tcp.c ---------------------------------------------------------------------------------------- */

struct banyan_env {
  uint64_t process; /* its maker */
  struct bny_boot_settings settings;
  uint64_t began_s;                     /* sent in the hello */
  char address[BNY_BOOT_ADDRESS_BYTES]; /* rank 0's */
  banyan_status failure;                /* not BANYAN_OK: final; while joining: to be reported to the others */
  char failure_text[BNY_ERROR_TEXT_BYTES];
  int listen_fd;               /* rank 0, while ranks join; -1: none */
  struct bny_boot_link *links; /* rank 0: [nranks], to each rank but itself; other ranks: one, to rank 0 */
  int32_t nlinks;
  uint64_t files; /* rank 0: the limit of descriptors, if it was raised; 0: it was not */
};

/* Makes the bootstrap of these settings: banyan_env_create() without the environment. */
banyan_status bny_boot_env_make(const struct bny_boot_settings *settings, int64_t timeout_ns, banyan_env **env,
                                banyan_bootstrap *bootstrap);

/* Keeps the thread's last error as the failure of this bootstrap. */
void bny_boot_failure_set(struct banyan_env *env, banyan_status status);

/* For this time a rank that has failed looks for the others, and rank 0 waits for them, to report the reason. */
#define BNY_BOOT_REPORT_NS ((int64_t)3 * 1000 * 1000 * 1000)

bool bny_boot_is_at_loopback(const struct banyan_env *env);

/* If rank 0 is at a loopback address and there may be several nodes, appends `before` and the variable to set. */
void bny_boot_append_loopback(char *text, size_t bytes, size_t *length, const char *before,
                              const struct banyan_env *env);

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* tcp_connect.c, all ranks except rank 0: joins rank 0. Returns when all ranks have joined. */
banyan_status bny_boot_connect(struct banyan_env *env, int64_t deadline_ns);

/* tcp_listen.c, rank 0: makes env->listen_fd: the inherited socket, or a new one at the chosen interface, or at the
 * first address of the host that can be bound. A name without such an address is looked up again until the deadline,
 * and a port that rank 0 of another job holds is awaited. env->address becomes its text. */
banyan_status bny_boot_listen(struct banyan_env *env, int64_t deadline_ns);

/* tcp_connect.c, rank 0: asks who listens at its own address. ANOTHER_JOB, THIS_JOB: rank 0 of another job, or of this
 * job, listens there. The thread's last error names both jobs. */
enum bny_boot_holder { BNY_BOOT_UNKNOWN, BNY_BOOT_ANOTHER_JOB, BNY_BOOT_THIS_JOB };
struct addrinfo;
enum bny_boot_holder bny_boot_find_holder(struct banyan_env *env, const struct addrinfo *list, int64_t deadline_ns);

/* tcp_accept.c, rank 0: accepts other ranks. Returns when all ranks have joined. */
banyan_status bny_boot_accept_all(struct banyan_env *env, int64_t deadline_ns);

/* ---- all-gathers and failures: tcp_gather.c ---------------------------------------------------------------------- */

banyan_status bny_boot_gather(struct banyan_env *env, const void *mine, void *all, size_t bytes, int64_t timeout_ns);

/* Sends the thread's last error to all peers and hangs up. Returns `status`. */
banyan_status bny_boot_fail_all(struct banyan_env *env, banyan_status status);

/* Sets the error of a peer that has ended, was silent or forged. `doing` names the operation. */
banyan_status bny_boot_fail_peer(const struct banyan_env *env, const struct bny_boot_link *link,
                                 enum bny_boot_progress progress, const char *doing);

/* Makes a received FAILURE frame this thread's error. */
banyan_status bny_boot_fail_received(const struct bny_boot_link *link);

/* Sends all queued data on all links. Links that are lost or late are closed; *lost is the first of them, or NULL. */
void bny_boot_flush(struct banyan_env *env, int64_t deadline_ns, struct bny_boot_link **lost);

/* Returns rank 0's deadline for a rank with left_ms left, which is earlier so that rank 0's reason arrives in time. */
int64_t bny_boot_deadline_of_peer(uint32_t left_ms);

/* ---- processes of this node: tcp_process.c ----------------------------------------------------------------------- */

/* Writes "process 12 of node-a" for the calling process. */
void bny_boot_process_text(char text[BNY_BOOT_PROCESS_BYTES]);

/* Rejects a rank without a secret that runs as the overflow user of a user namespace, which other users share. */
banyan_status bny_boot_user_check(const struct bny_boot_settings *settings);

/* Returns the process that has started this one: the nearest ancestor that is not a wrapper of one rank, such as a
 * shell or timeout. 0: /proc does not show it. */
int64_t bny_boot_launcher_of(int64_t process);

/* Returns whether that process, of this node, and the calling one are known to have different launchers. */
bool bny_boot_launcher_differs(int64_t process);
#define BNY_BOOT_LAUNCHER_HINT "if they are of one job, set BANYAN_JOB to the same text on all its ranks"

/* Rank 0 of a job without id: finds a process of its launcher, on this node, that has the port and a rank of this job,
 * but is none of the processes that have joined. Returns 0 if there is none. */
int64_t bny_boot_find_twin(const struct banyan_env *env, int32_t *rank);
