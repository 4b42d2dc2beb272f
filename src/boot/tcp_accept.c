/* SPDX-License-Identifier: Apache-2.0
 * Accepts the other ranks on rank 0, from the connection to the welcome, until all have joined. Rank 0 gives up a
 * little before any other rank would, so that all ranks get its reason and not just silence.
 *
 * A connection is pending until its peer authenticates itself. Pending connections are served side by side, and each
 * has BNY_BOOT_UNAUTHENTICATED_NS. Their number is limited, in all and by address, and at the limit the oldest makes
 * room. A port scan, garbage or silent peers therefore delay no rank, which answers its challenge at once. */
#include "boot/tcp_socket.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "boot/exchange.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/interface.h"
#include "base/log.h"

static const char doing[] = "banyan_env_create";

enum {
  PENDING_BESIDE_RANKS = 512, /* pending connections, besides two of each rank; half of all from one address */
  SPARE_FILES = 64,
  ACCEPTED_AT_ONCE = 256, /* before those that have sent something are read */
  LOGGED_AT_MOST = 3,     /* unauthenticated peers must not fill a disk with lines */
  REJECTION_BYTES = BNY_BOOT_REASON_BYTES + BNY_BOOT_ADDRESS_BYTES + 4
};

/* Ranks of two jobs without an id can meet at one port. When all ranks have joined, rank 0 of such a job waits once
 * more for the time that they took, within these limits. By then the ranks of a second job that starts at the same time
 * have arrived, and a duplicate rank reveals it. Ranks that the launcher has restarted more often than others may be of
 * a later attempt, whose rank 0 is still to come. */
static const int64_t settle_least_ns = 100000000, settle_most_ns = 1000000000, settle_attempts_ns = 3000000000;

/* The interval at which rank 0 looks for processes of a second job. */
static const int64_t twin_interval_ns = 250000000;

struct pending {
  int fd; /* -1: this place is free */
  int64_t greeted_ns;
  uint64_t from;                        /* hash of the peer's host */
  struct bny_boot_user user;            /* if the socket is local */
  char address[BNY_BOOT_ADDRESS_BYTES]; /* the peer's address, for texts */
  struct bny_boot_challenge challenge;
  struct bny_boot_hello hello;
  size_t got; /* bytes of hello */
};

struct joining {
  struct banyan_env *env;
  int64_t begun_ns;
  int64_t deadline_ns;
  int64_t settled_ns;      /* all have joined, and a duplicate rank would have arrived by this time; 0: not all have */
  struct pending *pending; /* [most] */
  int most;
  struct pollfd *polls; /* the listener, the links, pending connections */
  bool *joined;         /* [nranks] */
  uint32_t *attempts;   /* [nranks] */
  int32_t njoined;
  int64_t twin; /* a process that has rank twin_rank too; 0: none */
  int32_t twin_rank;
  int nforged;     /* connections that answered the challenge wrongly */
  int nsilent;     /* connections that did not answer it */
  int nother_jobs; /* rejections of ranks of other jobs */
  int nforeign;    /* processes of other users */
  char forged_address[BNY_BOOT_ADDRESS_BYTES], silent_address[BNY_BOOT_ADDRESS_BYTES];
  char rejection[REJECTION_BYTES]; /* the last one, for the error text */
};

/* ---- pending connections ----------------------------------------------------------------------------------------- */

static void drop(const struct joining *joining, struct pending *pending) {
  bny_boot_socket_close(pending->fd, joining->env->process);
  pending->fd = -1;
}

static void drop_silent(struct joining *joining, struct pending *pending) {
  joining->nsilent++;
  memcpy(joining->silent_address, pending->address, sizeof pending->address);
  drop(joining, pending);
}

/* Returns a free place for a connection from this host, for which the oldest one may be dropped, or the oldest one from
 * this host. */
static struct pending *find_place(struct joining *joining, uint64_t from) {
  struct pending *free_place = NULL, *oldest = NULL, *oldest_from = NULL;
  int nfrom = 0;
  for (struct pending *each = joining->pending; each < joining->pending + joining->most; each++) {
    if (each->fd < 0) {
      free_place = each;
      continue;
    }
    if (!oldest || each->greeted_ns < oldest->greeted_ns) oldest = each;
    if (each->from != from) continue;
    nfrom++;
    if (!oldest_from || each->greeted_ns < oldest_from->greeted_ns) oldest_from = each;
  }
  struct pending *leaves = nfrom >= joining->most / 2 ? oldest_from : free_place ? NULL : oldest;
  if (leaves) drop_silent(joining, leaves);
  return leaves ? leaves : free_place;
}

static bool drop_oldest(struct joining *joining) {
  struct pending *oldest = NULL;
  for (struct pending *each = joining->pending; each < joining->pending + joining->most; each++)
    if (each->fd >= 0 && (!oldest || each->greeted_ns < oldest->greeted_ns)) oldest = each;
  if (oldest) drop_silent(joining, oldest);
  return oldest != NULL;
}

/* Without a secret only processes of this user may join. */
static bool is_of_this_user(struct joining *joining, int fd, struct bny_boot_user *user) {
  if (bny_boot_socket_is_own(fd, user)) return true;
  snprintf(joining->rejection, sizeof joining->rejection,
           "process %" PRId64 " is of user %ld, and rank 0 of user %ld: without a secret all ranks must be of one user",
           user->process, (long)user->uid, (long)geteuid());
  if (joining->nforeign++ < LOGGED_AT_MOST)
    bny_log(BNY_LOG_WARN, "rank 0 at %s rejected: %s", joining->env->address, joining->rejection);
  return false;
}

static bool greet(struct joining *joining, int fd, const struct sockaddr *address, socklen_t bytes) {
  struct pending greeted = {.fd = fd, .greeted_ns = bny_deadline_now()};
  if (address->sa_family == AF_UNIX) {
    if (!is_of_this_user(joining, fd, &greeted.user)) return false;
    snprintf(greeted.address, sizeof greeted.address, "process %" PRId64 " of this node", greeted.user.process);
  } else {
    bny_boot_address_text(address, bytes, greeted.address);
    greeted.from =
        bny_hash_add_bytes(0, greeted.address, strlen(greeted.address) - strlen(strrchr(greeted.address, ':')));
  }
  bny_boot_challenge_make(&greeted.challenge);
  if (bny_boot_socket_configure(fd) != 0 || send(fd, &greeted.challenge, sizeof greeted.challenge,
                                                 MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof greeted.challenge)
    return false;
  *find_place(joining, greeted.from) = greeted;
  return true;
}

/* Ignores an error of a connection itself. If no descriptor is free, drops the oldest pending connection; if there is
 * none, that is an error. */
static banyan_status accept_connections(struct joining *joining) {
  const struct banyan_env *env = joining->env;
  for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    memset(&address, 0, sizeof address);
    int fd = bny_file_above_stderr(
        accept4(env->listen_fd, (struct sockaddr *)&address, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd >= 0) {
      if (!greet(joining, fd, (struct sockaddr *)&address, bytes)) close(fd);
      continue;
    }
    /* accept() says so even if no connection waits, but the first one did. */
    if (i > 0 || (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)) return BANYAN_OK;
    int error = errno;
    if (!drop_oldest(joining))
      return bny_fail_errno(
          BANYAN_ERR_SYSTEM, error,
          "banyan_env_create: rank 0 of %d, which needs a file descriptor for each other rank, cannot "
          "accept another rank on %s (raise ulimit -n)",
          env->settings.nranks, env->address);
    snprintf(joining->rejection, sizeof joining->rejection, "a connection, to accept another one (raise ulimit -n): %s",
             strerror(error));
  }
  return BANYAN_OK;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static bool send_welcome(const struct joining *joining, const struct pending *pending, enum bny_boot_verdict verdict,
                         const char *reason) {
  const struct bny_boot_settings *settings = &joining->env->settings;
  struct bny_boot_welcome welcome = {.verdict = htole32(verdict), .version = htole32(BNY_BOOT_VERSION)};
  snprintf(welcome.reason, sizeof welcome.reason, "%s", reason);
  bny_boot_welcome_sign(settings->key, &pending->challenge, &pending->hello, &welcome);
  return send(pending->fd, &welcome, sizeof welcome, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof welcome;
}

static void reject(struct joining *joining, struct pending *pending, enum bny_boot_verdict verdict,
                   const char *reason) {
  const struct banyan_env *env = joining->env;
  send_welcome(joining, pending, verdict, reason);
  snprintf(joining->rejection, sizeof joining->rejection, "%s (%s)", reason, pending->address);
  drop(joining, pending);
  if (verdict == BNY_BOOT_OTHER_JOB && joining->nother_jobs++ >= LOGGED_AT_MOST) return; /* they try again */
  bny_log(BNY_LOG_WARN, "rank 0 at %s rejected: %s", env->address, joining->rejection);
}

static int64_t settle_time(const struct joining *joining) {
  const struct bny_boot_settings *settings = &joining->env->settings;
  int64_t took_ns = bny_deadline_now() - joining->begun_ns;
  if (!settings->job[0])
    return took_ns < settle_least_ns ? settle_least_ns : took_ns > settle_most_ns ? settle_most_ns : took_ns;
  for (int32_t rank = 1; rank < settings->nranks; rank++)
    if (joining->attempts[rank] > settings->attempt) return settle_attempts_ns;
  return 0;
}

static void admit(struct joining *joining, struct pending *pending) {
  struct banyan_env *env = joining->env;
  uint32_t rank = le32toh(pending->hello.rank);
  struct bny_boot_link *link = &env->links[rank];
  if (!send_welcome(joining, pending, BNY_BOOT_ACCEPTED, "")) {
    drop(joining, pending);
    return;
  }
  int64_t patience_ns = bny_boot_deadline_of_peer(le32toh(pending->hello.left_ms));
  if (patience_ns < joining->deadline_ns) joining->deadline_ns = patience_ns;
  *link = (struct bny_boot_link){.fd = pending->fd, .maker = env->process, .rank = (int32_t)rank, .at_rank_0 = true};
  memcpy(link->process, pending->hello.process, sizeof link->process - 1);
  bny_boot_session_derive(env->settings.key, &pending->challenge, &pending->hello, link->session);
  pending->fd = -1;
  joining->attempts[rank] = le32toh(pending->hello.attempt);
  joining->njoined += !joining->joined[rank];
  joining->joined[rank] = true;
  if (joining->njoined == env->settings.nranks) joining->settled_ns = bny_deadline_now() + settle_time(joining);
}

/* Sets the error of a duplicate rank if no job id shows which one is right. All ranks get this error. */
static banyan_status fail_twice(const struct joining *joining, const char *reason) {
  return bny_fail(BANYAN_ERR_BOOTSTRAP,
                  "banyan_env_create: at %s %s: if these are two jobs, give each its own port or BANYAN_JOB",
                  joining->env->address, reason);
}

/* The rank has joined before. Of two that the launcher has restarted differently often, the later one stays. */
static banyan_status decide_twice(struct joining *joining, struct pending *pending, uint32_t rank) {
  struct bny_boot_link *link = &joining->env->links[rank];
  const struct bny_boot_hello *hello = &pending->hello;
  char reason[BNY_BOOT_REASON_BYTES];
  bool has_job = joining->env->settings.job[0];
  snprintf(reason, sizeof reason, "rank %u has already joined: %s and %.*s have RANK %u", rank, link->process,
           BNY_BOOT_PROCESS_BYTES - 1, hello->process, rank);
  if (has_job && le32toh(hello->attempt) > joining->attempts[rank]) {
    const struct bny_boot_says says = {.kind = BNY_BOOT_FAILURE, .status = BANYAN_ERR_BOOTSTRAP};
    if (bny_boot_link_post(link, &says, reason)) bny_boot_link_send(link);
    bny_boot_link_close(link);
    admit(joining, pending);
    return BANYAN_OK;
  }
  reject(joining, pending, BNY_BOOT_REJECTED, reason);
  return has_job ? BANYAN_OK : fail_twice(joining, reason);
}

/* Another rank 0 asks. The one that the launcher has restarted more often stays, and ranks that have joined the other
 * one join it. */
static banyan_status decide_rank_0(struct joining *joining, struct pending *pending) {
  struct banyan_env *env = joining->env;
  const struct bny_boot_settings *settings = &env->settings;
  const struct bny_boot_hello *hello = &pending->hello;
  const struct bny_boot_says again = {.kind = BNY_BOOT_AGAIN};
  struct bny_boot_link *lost;
  uint32_t attempt = le32toh(hello->attempt);
  char reason[BNY_BOOT_REASON_BYTES];
  size_t length = 0;
  bny_append(reason, sizeof reason, &length, "rank 0 joined twice: from ");
  bny_boot_append_job(reason, sizeof reason, &length, hello->job, le32toh(hello->nranks), le64toh(hello->began_s));
  bny_append(reason, sizeof reason, &length, " and from ");
  bny_boot_append_job(reason, sizeof reason, &length, settings->job, (uint32_t)settings->nranks, env->began_s);
  if (!settings->job[0] || attempt == settings->attempt) {
    reject(joining, pending, BNY_BOOT_REJECTED, reason);
    return fail_twice(joining, reason);
  }
  reject(joining, pending, attempt > settings->attempt ? BNY_BOOT_OTHER_JOB : BNY_BOOT_REJECTED, reason);
  if (attempt < settings->attempt) return BANYAN_OK;
  for (int32_t rank = 1; rank < env->nlinks; rank++) bny_boot_link_post(&env->links[rank], &again, "");
  bny_boot_flush(env, joining->deadline_ns, &lost);
  for (int32_t rank = 1; rank < env->nlinks; rank++) bny_boot_link_close(&env->links[rank]);
  return bny_fail(BANYAN_ERR_BOOTSTRAP,
                  "banyan_env_create: this rank 0 is of attempt %u of %s, and rank 0 of attempt "
                  "%u has come (%.*s)",
                  settings->attempt, settings->job, attempt, BNY_BOOT_PROCESS_BYTES - 1, hello->process);
}

/* Writes the reason why an authenticated rank other than 0 may not join; "" if it may. */
static enum bny_boot_verdict judge(const struct joining *joining, const struct pending *pending,
                                   char reason[BNY_BOOT_REASON_BYTES]) {
  const struct banyan_env *env = joining->env;
  const struct bny_boot_hello *hello = &pending->hello;
  uint32_t version = le32toh(hello->version), rank = le32toh(hello->rank), nranks = le32toh(hello->nranks);
  uint32_t expected = (uint32_t)env->settings.nranks;
  size_t length = 0;
  reason[0] = '\0';
  if (version != BNY_BOOT_VERSION) {
    bny_append(
        reason, BNY_BOOT_REASON_BYTES, &length,
        "rank %u speaks version %u of the bootstrap protocol where rank 0 speaks %d: use the same banyan on all ranks",
        rank, version, BNY_BOOT_VERSION);
  } else if (strncmp(hello->job, env->settings.job, sizeof hello->job) != 0) {
    bny_append(reason, BNY_BOOT_REASON_BYTES, &length, "rank %u is of ", rank);
    bny_boot_append_job(reason, BNY_BOOT_REASON_BYTES, &length, hello->job, nranks, le64toh(hello->began_s));
    bny_append(reason, BNY_BOOT_REASON_BYTES, &length, ", rank 0 here of ");
    bny_boot_append_job(reason, BNY_BOOT_REASON_BYTES, &length, env->settings.job, expected, env->began_s);
    return BNY_BOOT_OTHER_JOB;
  } else if (pending->user.process && !env->settings.job[0] && bny_boot_launcher_differs(pending->user.process)) {
    bny_append(reason, BNY_BOOT_REASON_BYTES, &length,
               "rank %u was started by another process than rank 0; " BNY_BOOT_LAUNCHER_HINT, rank);
    return BNY_BOOT_OTHER_JOB;
  } else if (rank > 0 && nranks != expected) {
    bny_append(reason, BNY_BOOT_REASON_BYTES, &length, "rank %u has WORLD_SIZE %u where rank 0 has %u", rank, nranks,
               expected);
  } else if (rank >= expected) {
    bny_append(reason, BNY_BOOT_REASON_BYTES, &length, "rank %u cannot join: must be 1..%u", rank, expected - 1);
  }
  return BNY_BOOT_REJECTED;
}

/* Handles a complete hello. */
static banyan_status decide(struct joining *joining, struct pending *pending) {
  const struct banyan_env *env = joining->env;
  char reason[BNY_BOOT_REASON_BYTES];
  uint32_t rank = le32toh(pending->hello.rank);
  if (!bny_boot_hello_check(env->settings.key, &pending->challenge, &pending->hello)) {
    memcpy(joining->forged_address, pending->address, sizeof pending->address);
    if (joining->nforged++ < LOGGED_AT_MOST)
      bny_log(BNY_LOG_WARN, "rank 0 at %s: %s failed to authenticate: another secret?", env->address, pending->address);
    drop(joining, pending);
    return BANYAN_OK;
  }
  enum bny_boot_verdict verdict = judge(joining, pending, reason);
  if (*reason)
    reject(joining, pending, verdict, reason);
  else if (rank == 0)
    return decide_rank_0(joining, pending);
  else if (joining->joined[rank])
    return decide_twice(joining, pending, rank);
  else
    admit(joining, pending);
  return BANYAN_OK;
}

static banyan_status read_pending(struct joining *joining, struct pending *pending) {
  struct bny_boot_hello *hello = &pending->hello;
  ssize_t got = recv(pending->fd, (char *)hello + pending->got, sizeof *hello - pending->got, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return BANYAN_OK;
  if (got > 0) {
    pending->got += (size_t)got;
    return pending->got < sizeof *hello ? BANYAN_OK : decide(joining, pending);
  }
  drop_silent(joining, pending);
  return BANYAN_OK;
}

/* ---- ranks that have joined -------------------------------------------------------------------------------------- */

/* Rank 0 keeps the failure of a rank for a while, so that ranks that join later get it, too. */
static void keep_failure(struct joining *joining, struct bny_boot_link *link) {
  int64_t limit_ns = bny_deadline_now() + BNY_BOOT_REPORT_NS;
  banyan_status status = bny_boot_fail_received(link);
  if (!joining->env->failure) bny_boot_failure_set(joining->env, status);
  if (limit_ns < joining->deadline_ns) joining->deadline_ns = limit_ns;
  bny_boot_link_close(link);
}

static banyan_status receive_from(struct joining *joining, struct bny_boot_link *link) {
  const struct banyan_env *env = joining->env;
  enum bny_boot_progress progress = bny_boot_link_receive_note(link);
  if (progress == BNY_BOOT_MORE) return BANYAN_OK;
  if (progress == BNY_BOOT_LOST && !link->error)
    return bny_fail(BANYAN_ERR_PEER,
                    "banyan_env_create: rank %d of %d left while the others were still connecting to %s", link->rank,
                    env->settings.nranks, env->address);
  if (progress != BNY_BOOT_DONE || link->in.kind != BNY_BOOT_FAILURE)
    return bny_boot_fail_peer(env, link, progress, doing);
  keep_failure(joining, link);
  return BANYAN_OK;
}

/* Ranks of other nodes may have no network in common with this one. */
static void append_networks(char *text, size_t bytes, size_t *length, const struct banyan_env *env) {
  struct sockaddr_storage own;
  socklen_t own_bytes = sizeof own;
  char names[160];
  if (bny_boot_is_at_loopback(env) || env->settings.is_one_node ||
      getsockname(env->listen_fd, (struct sockaddr *)&own, &own_bytes) != 0)
    return;
  bny_interface_has_network_of((struct sockaddr *)&own, names, sizeof names);
  bny_append(text, bytes, length, ", which only nodes with a network in common reach: rank 0's node has %s", names);
}

static banyan_status fail_missing(const struct joining *joining) {
  char text[BNY_ERROR_TEXT_BYTES];
  size_t length = 0;
  const struct banyan_env *env = joining->env;
  if (joining->twin)
    return bny_fail(BANYAN_ERR_BOOTSTRAP,
                    "banyan_env_create: all %d ranks have joined at %s, but process %" PRId64
                    " of this node, which has not, has RANK %d and the same port: if these are two jobs, give each its "
                    "own port or BANYAN_JOB",
                    env->settings.nranks, env->address, joining->twin, joining->twin_rank);
  bny_boot_append_ranks(text, sizeof text, &length, joining->joined, env->settings.nranks, false);
  bny_append(text, sizeof text, &length, " of %d did not connect within %.3g s to %s", env->settings.nranks,
             (double)(bny_deadline_now() - joining->begun_ns) * 1e-9, env->address);
  if (!joining->rejection[0] && joining->nforged + joining->nsilent == 0) {
    bny_boot_append_loopback(text, sizeof text, &length, ", ", env);
    append_networks(text, sizeof text, &length, env);
  }
  bny_boot_append_origin(text, sizeof text, &length, &env->settings);
  if (joining->rejection[0]) bny_append(text, sizeof text, &length, "; rejected: %s", joining->rejection);
  if (joining->nforged > 0)
    bny_append(text, sizeof text, &length,
               "; %d connection%s failed to authenticate, the last from %s: is the secret the same on all ranks?",
               joining->nforged, joining->nforged == 1 ? "" : "s", joining->forged_address);
  if (joining->nsilent > 0)
    bny_append(text, sizeof text, &length, "; %d connection%s did not authenticate, the last from %s", joining->nsilent,
               joining->nsilent == 1 ? "" : "s", joining->silent_address);
  return bny_fail(BANYAN_ERR_TIMEOUT, "banyan_env_create: %s", text);
}

/* Fills polls, without gaps: poll() takes no more of them than this process may open files. Returns how many, and
 * lowers *limit_ns to the moment when a pending connection must be dropped. */
static nfds_t fill_polls(const struct joining *joining, int64_t *limit_ns) {
  const struct banyan_env *env = joining->env;
  struct pollfd *next = joining->polls;
  *next++ = (struct pollfd){.fd = env->listen_fd, .events = POLLIN};
  for (int32_t rank = 1; rank < env->nlinks; rank++)
    if (env->links[rank].fd >= 0) *next++ = (struct pollfd){.fd = env->links[rank].fd, .events = POLLIN};
  for (int i = 0; i < joining->most; i++) {
    const struct pending *pending = &joining->pending[i];
    if (pending->fd < 0) continue;
    *next++ = (struct pollfd){.fd = pending->fd, .events = POLLIN};
    int64_t drop_ns = pending->greeted_ns + BNY_BOOT_UNAUTHENTICATED_NS;
    if (drop_ns < *limit_ns) *limit_ns = drop_ns;
  }
  return (nfds_t)(next - joining->polls);
}

/* Waits until an event occurs or a limit passes, and handles all events. */
static banyan_status join_round(struct joining *joining) {
  struct banyan_env *env = joining->env;
  const struct pollfd *next = joining->polls;
  int64_t limit_ns = joining->deadline_ns;
  if (joining->settled_ns && joining->settled_ns < limit_ns) limit_ns = joining->settled_ns;
  nfds_t npolls = fill_polls(joining, &limit_ns);
  int ready = poll(joining->polls, npolls, bny_deadline_poll_ms(limit_ns));
  banyan_status status = bny_boot_check_process(env->process); /* the check or a signal handler may have forked */
  if (ready < 0 || status) return status;
  int64_t now_ns = bny_deadline_now();
  bool is_asked = next++->revents != 0;
  for (int32_t rank = 1; rank < env->nlinks && !status; rank++)
    if (env->links[rank].fd >= 0 && next++->revents) status = receive_from(joining, &env->links[rank]);
  for (int i = 0; i < joining->most && !status; i++) {
    struct pending *pending = &joining->pending[i];
    if (pending->fd < 0) continue;
    if (next++->revents) status = read_pending(joining, pending);
    if (pending->fd >= 0 && now_ns >= pending->greeted_ns + BNY_BOOT_UNAUTHENTICATED_NS) drop_silent(joining, pending);
  }
  return !status && is_asked ? accept_connections(joining) : status;
}

/* Without an id, processes that look like ranks of a second job are awaited, as they may show a duplicate rank. */
static bool have_met(struct joining *joining) {
  int64_t now_ns = bny_deadline_now();
  if (!joining->settled_ns || (now_ns < joining->settled_ns && now_ns < joining->deadline_ns)) return false;
  joining->settled_ns = now_ns + twin_interval_ns;
  joining->twin = joining->env->settings.job[0] ? 0 : bny_boot_find_twin(joining->env, &joining->twin_rank);
  return joining->twin == 0;
}

static banyan_status announce(const struct joining *joining) {
  const struct bny_boot_says says = {.kind = BNY_BOOT_READY};
  struct banyan_env *env = joining->env;
  struct bny_boot_link *lost;
  for (int32_t rank = 1; rank < env->nlinks; rank++) bny_boot_link_post(&env->links[rank], &says, "");
  bny_boot_flush(env, joining->deadline_ns, &lost);
  if (!lost) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_PEER, "banyan_env_create: rank %d of %d left when all had connected to %s", lost->rank,
                  env->settings.nranks, env->address);
}

static banyan_status join_all(struct joining *joining) {
  struct banyan_env *env = joining->env;
  banyan_status status = BANYAN_OK;
  joining->joined[0] = true;
  joining->njoined = 1;
  while (!status && !have_met(joining))
    status = bny_deadline_is_late(joining->deadline_ns) ? fail_missing(joining) : join_round(joining);
  /* The listener closes before any rank learns that all have joined. Otherwise it could take it for that of its next
   * bootstrap. */
  close(env->listen_fd);
  env->listen_fd = -1;
  if (env->failure) status = bny_fail(env->failure, "%s", env->failure_text);
  return status ? status : announce(joining);
}

/* Raises the limit of this process until banyan_env_destroy(), if it is too low. */
static void raise_files(struct banyan_env *env, size_t needed) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return;
  env->files = files.rlim_cur;
  files.rlim_cur = needed < files.rlim_max ? needed : files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

banyan_status bny_boot_accept_all(struct banyan_env *env, int64_t deadline_ns) {
  size_t nranks = (size_t)env->settings.nranks, most = PENDING_BESIDE_RANKS + 2 * nranks;
  struct joining joining = {.env = env,
                            .begun_ns = bny_deadline_now(),
                            .deadline_ns = deadline_ns,
                            .pending = calloc(most, sizeof *joining.pending),
                            .most = (int)most,
                            .polls = calloc(nranks + most, sizeof *joining.polls),
                            .joined = calloc(nranks, sizeof *joining.joined),
                            .attempts = calloc(nranks, sizeof *joining.attempts)};
  bool has_memory = joining.pending && joining.polls && joining.joined && joining.attempts;
  for (size_t i = 0; i < most && joining.pending; i++) joining.pending[i].fd = -1;
  raise_files(env, nranks + SPARE_FILES);
  banyan_status status = has_memory ? join_all(&joining)
                                    : bny_fail(BANYAN_ERR_MEMORY, "banyan_env_create: no memory for %zu ranks", nranks);
  if (status) bny_boot_fail_all(env, status);
  for (size_t i = 0; i < most && joining.pending; i++)
    if (joining.pending[i].fd >= 0) drop(&joining, &joining.pending[i]);
  free(joining.attempts);
  free(joining.joined);
  free(joining.polls);
  free(joining.pending);
  return status;
}
