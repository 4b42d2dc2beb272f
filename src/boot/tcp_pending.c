/* SPDX-License-Identifier: Apache-2.0
 * Handles pending connections, from the accept to the welcome. */
#include "boot/tcp_pending.h"

#ifdef HAVE_SODIUM
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot/tcp_address.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/log.h"

enum { FORGED_LOGGED_AT_MOST = 3 };

/* The least time that a pending connection has, for any number of later ones. */
static const int64_t least_patience_ns = 500000000;

/* ---- accepting --------------------------------------------------------------------------------------------------- */

bool bny_boot_pending_has_room(const struct bny_boot_pending *pending, int64_t *when_ns) {
  *when_ns = INT64_MAX;
  if (pending->ncandidates < BNY_BOOT_CANDIDATES) return true;
  for (int i = 0; i < pending->ncandidates; i++) {
    if (pending->candidates[i].state != BNY_BOOT_GREETED) continue;
    *when_ns = pending->candidates[i].greeted_ns + least_patience_ns;
    return *when_ns <= bny_deadline_now();
  }
  return false;
}

void bny_boot_pending_drop_finished(struct bny_boot_pending *pending) {
  int kept = 0;
  for (int i = 0; i < pending->ncandidates; i++) {
    struct bny_boot_candidate *candidate = &pending->candidates[i];
    if (candidate->state != BNY_BOOT_FINISHED)
      pending->candidates[kept++] = *candidate;
    else if (candidate->fd >= 0)
      bny_boot_socket_close(candidate->fd);
  }
  pending->ncandidates = kept;
}

/* Drops the oldest pending connection. Returns false if there is none. */
static bool drop_oldest(struct bny_boot_pending *pending) {
  for (int i = 0; i < pending->ncandidates; i++) {
    if (pending->candidates[i].state != BNY_BOOT_GREETED) continue;
    pending->candidates[i].state = BNY_BOOT_FINISHED;
    bny_boot_pending_drop_finished(pending);
    return true;
  }
  return false;
}

static bool greet(struct bny_boot_pending *pending, int fd, const struct sockaddr_storage *address,
                  socklen_t address_bytes) {
  struct bny_boot_candidate *candidate = &pending->candidates[pending->ncandidates];
  struct bny_boot_user user = {.process = 0};
  memset(candidate, 0, sizeof *candidate);
  candidate->fd = fd;
  candidate->local = address->ss_family == AF_UNIX;
  candidate->greeted_ns = bny_deadline_now();
  if (candidate->local && !bny_boot_socket_is_own(fd, &user)) return false;
  if (candidate->local)
    snprintf(candidate->address, sizeof candidate->address, "process %" PRId64 " of this node", user.process);
  else
    bny_boot_address_text((const struct sockaddr *)address, address_bytes, candidate->address);
  bny_boot_challenge_make(&candidate->challenge);
  if (bny_boot_socket_configure(fd) != 0) return false;
  if (send(fd, &candidate->challenge, sizeof candidate->challenge, MSG_DONTWAIT | MSG_NOSIGNAL) !=
      (ssize_t)sizeof candidate->challenge)
    return false;
  pending->ncandidates++;
  return true;
}

/* Answers a request for rank 0's key. */
static void issue(struct bny_boot_pending *pending, int fd) {
  struct bny_boot_user user = {.uid = geteuid()};
  const struct banyan_env *env = pending->env;
  bool issued = bny_boot_issue(env, fd, &user);
  if (issued && !env->settings.job[0] && bny_boot_launcher_differs(user.process))
    snprintf(pending->rejection, sizeof pending->rejection,
             "process %" PRId64 " was started by another process than rank 0; " BNY_BOOT_LAUNCHER_HINT, user.process);
  if (!issued && user.uid != geteuid()) {
    snprintf(pending->rejection, sizeof pending->rejection,
             "process %" PRId64
             " is of user %ld, and rank 0 of user %ld: without a secret all ranks must be of one user",
             user.process, (long)user.uid, (long)geteuid());
    if (pending->nforeign++ < FORGED_LOGGED_AT_MOST)
      bny_log(BNY_LOG_WARN, "rank 0 at %s rejected: %s", env->address, pending->rejection);
  }
  close(fd);
}

/* Ignores an error of the connection itself. If no descriptor is free, drops the oldest pending connection; if there is
 * none, that is an error. */
banyan_status bny_boot_pending_accept(struct bny_boot_pending *pending, int listener) {
  struct sockaddr_storage address;
  socklen_t bytes = sizeof address;
  const struct banyan_env *env = pending->env;
  memset(&address, 0, sizeof address);
  int fd = bny_file_above_stderr(
      accept4(env->listen_fds[listener], (struct sockaddr *)&address, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
    int error = errno;
    if (drop_oldest(pending)) {
      snprintf(pending->rejection, sizeof pending->rejection,
               "a connection, to accept another one (raise ulimit -n): %s", strerror(error));
      return BANYAN_OK;
    }
    return bny_fail_errno(BANYAN_ERR_SYSTEM, error,
                          "banyan_env_create: rank %d of %d cannot accept another rank on %s (raise ulimit -n)",
                          env->settings.rank, env->settings.nranks, env->address);
  }
  if (fd < 0) return BANYAN_OK;
  if (listener == BNY_BOOT_ISSUES_KEYS) {
    issue(pending, fd);
    return BANYAN_OK;
  }
  if (pending->ncandidates == BNY_BOOT_CANDIDATES && !drop_oldest(pending)) {
    close(fd);
    return BANYAN_OK;
  }
  if (!greet(pending, fd, &address, bytes)) close(fd);
  return BANYAN_OK;
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

static bool send_welcome(const struct bny_boot_pending *pending, const struct bny_boot_candidate *candidate,
                         enum bny_boot_verdict verdict, const char *reason) {
  struct bny_boot_welcome welcome;
  const struct bny_boot_settings *settings = &pending->env->settings;
  memset(&welcome, 0, sizeof welcome);
  welcome.verdict = htole32(verdict);
  welcome.version = htole32(BNY_BOOT_VERSION);
  welcome.rank = htole32((uint32_t)settings->rank);
  snprintf(welcome.reason, sizeof welcome.reason, "%s", reason);
  bny_boot_welcome_sign(bny_boot_key_of(pending->env, candidate->local), &candidate->challenge, &candidate->hello,
                        &welcome);
  return send(candidate->fd, &welcome, sizeof welcome, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof welcome;
}

static void reject(struct bny_boot_pending *pending, struct bny_boot_candidate *candidate,
                   enum bny_boot_verdict verdict, const char *reason) {
  const struct banyan_env *env = pending->env;
  send_welcome(pending, candidate, verdict, reason);
  snprintf(pending->rejection, sizeof pending->rejection, "%s (%s)", reason, candidate->address);
  candidate->state = BNY_BOOT_FINISHED;
  if (verdict == BNY_BOOT_OTHER_JOB && pending->nother_jobs++ >= FORGED_LOGGED_AT_MOST) return; /* they try again */
  bny_log(BNY_LOG_WARN, "rank %d at %s rejected: %s", env->settings.rank, env->address, pending->rejection);
}

static banyan_status adopt(struct bny_boot_pending *pending, struct bny_boot_candidate *candidate) {
  struct banyan_env *env = pending->env;
  if (env->nchildren == env->capacity) {
    int32_t capacity = env->capacity ? env->capacity * 2 : 8;
    struct bny_boot_link *more = realloc(env->children, (size_t)capacity * sizeof *more);
    if (!more)
      return bny_fail(BANYAN_ERR_MEMORY, "banyan_env_create: rank %d has no memory for %d connections",
                      env->settings.rank, capacity);
    env->children = more;
    env->capacity = capacity;
  }
  struct bny_boot_link *child = &env->children[env->nchildren++];
  memset(child, 0, sizeof *child);
  child->fd = candidate->fd;
  child->rank = (int32_t)le32toh(candidate->hello.rank);
  child->nbelow = 1;
  child->at_server = true;
  child->local = candidate->local;
  memcpy(child->address, candidate->hello.address, sizeof child->address - 1);
  bny_boot_session_derive(bny_boot_key_of(env, child->local), &candidate->challenge, &candidate->hello, child->session);
  candidate->fd = -1;
  candidate->state = BNY_BOOT_FINISHED;
  return BANYAN_OK;
}

/* Applies rank 0's answer to a pending connection. "": it becomes a child. */
static banyan_status settle(struct bny_boot_pending *pending, struct bny_boot_candidate *candidate,
                            const char *reason) {
  if (*reason) {
    reject(pending, candidate, BNY_BOOT_REJECTED, reason);
    return BANYAN_OK;
  }
  if (send_welcome(pending, candidate, BNY_BOOT_ACCEPTED, "")) return adopt(pending, candidate);
  return bny_boot_pending_fail_left(pending, (int32_t)le32toh(candidate->hello.rank));
}

/* Sets the error of a duplicate rank if no job id shows which one is right. All ranks get this error. */
static banyan_status fail_twice(const struct bny_boot_pending *pending, const char *reason) {
  return bny_fail(BANYAN_ERR_BOOTSTRAP,
                  "banyan_env_create: at %s %s: if these are two jobs, give each its own port or BANYAN_JOB",
                  pending->env->address, reason);
}

/* ---- the request ------------------------------------------------------------------------------------------------- */

/* Writes the reason why an authenticated peer may not join, as far as this rank knows; "" if it may. */
static enum bny_boot_verdict judge(const struct bny_boot_pending *pending, const struct bny_boot_hello *hello,
                                   char reason[BNY_BOOT_REASON_BYTES]) {
  const struct banyan_env *env = pending->env;
  uint32_t version = le32toh(hello->version), rank = le32toh(hello->rank), nranks = le32toh(hello->nranks);
  int32_t own = env->settings.rank;
  uint32_t expected = (uint32_t)env->settings.nranks;
  size_t length = 0;
  reason[0] = '\0';
  if (version != BNY_BOOT_VERSION) {
    snprintf(
        reason, BNY_BOOT_REASON_BYTES,
        "rank %u speaks version %u of the bootstrap protocol where rank %d speaks %d: use the same banyan on all ranks",
        rank, version, own, BNY_BOOT_VERSION);
  } else if (strncmp(hello->job, env->settings.job, sizeof hello->job) != 0) {
    bny_append(reason, BNY_BOOT_REASON_BYTES, &length, "rank %u is of ", rank);
    bny_boot_append_job(reason, BNY_BOOT_REASON_BYTES, &length, hello->job, nranks, le64toh(hello->began_s));
    bny_append(reason, BNY_BOOT_REASON_BYTES, &length, ", rank %d here of ", own);
    bny_boot_append_job(reason, BNY_BOOT_REASON_BYTES, &length, env->settings.job, expected, env->began_s);
    return BNY_BOOT_OTHER_JOB;
  } else if (rank == 0 && own == 0) {
    bny_append(reason, BNY_BOOT_REASON_BYTES, &length, "rank 0 joined twice: from ");
    bny_boot_append_job(reason, BNY_BOOT_REASON_BYTES, &length, hello->job, nranks, le64toh(hello->began_s));
    bny_append(reason, BNY_BOOT_REASON_BYTES, &length, " and from ");
    bny_boot_append_job(reason, BNY_BOOT_REASON_BYTES, &length, env->settings.job, expected, env->began_s);
  } else if (nranks != expected) {
    snprintf(reason, BNY_BOOT_REASON_BYTES, "rank %u has WORLD_SIZE %u where rank %d has %u", rank, nranks, own,
             expected);
  } else if (rank == 0 || rank >= expected) {
    snprintf(reason, BNY_BOOT_REASON_BYTES, "rank %u cannot join: must be 1..%u", rank, expected - 1);
  }
  return BNY_BOOT_REJECTED;
}

/* Returns whether there is room for a child, on this node or on others. `applying` counts those that may soon be
 * one. */
static bool has_place(const struct bny_boot_pending *pending, bool local, int *applying) {
  const struct banyan_env *env = pending->env;
  int taken = 0;
  *applying = 0;
  for (int32_t i = 0; i < env->nchildren; i++) taken += env->children[i].local == local;
  for (int i = 0; i < pending->ncandidates; i++)
    *applying += pending->candidates[i].state == BNY_BOOT_APPLYING && pending->candidates[i].local == local;
  return taken + *applying < env->settings.fanout;
}

/* Returns the address of the next child in turn; NULL if none listens. */
static const char *whom_to_ask(struct bny_boot_pending *pending, bool local) {
  const struct banyan_env *env = pending->env;
  for (int32_t i = 0; i < env->nchildren; i++) {
    const struct bny_boot_link *child = &env->children[pending->next_child[local]++ % (uint32_t)env->nchildren];
    if (child->local == local && child->address[0]) return child->address;
  }
  return NULL;
}

/* Handles an authenticated peer that fits: asks rank 0, redirects the peer, or lets it wait. */
static banyan_status consider(struct bny_boot_pending *pending, struct bny_boot_candidate *candidate) {
  int applying;
  bool place = has_place(pending, candidate->local, &applying);
  const char *other = place ? NULL : whom_to_ask(pending, candidate->local);
  if (other) {
    send_welcome(pending, candidate, BNY_BOOT_REDIRECTED, other);
    candidate->state = BNY_BOOT_FINISHED;
    return BANYAN_OK;
  }
  if (!place && applying > 0) {
    candidate->state = BNY_BOOT_WAITING;
    return BANYAN_OK;
  }
  randombytes_buf(&candidate->ticket, sizeof candidate->ticket);
  candidate->state = BNY_BOOT_APPLYING;
  const struct bny_boot_join join = {.ticket = candidate->ticket,
                                     .rank = le32toh(candidate->hello.rank),
                                     .parent = (uint32_t)pending->env->settings.rank,
                                     .left_ms = le32toh(candidate->hello.left_ms)};
  return bny_boot_pending_apply(pending, &join, -1);
}

/* ---- requests and answers ---------------------------------------------------------------------------------------- */

banyan_status bny_boot_pending_fail_memory(const struct bny_boot_pending *pending) {
  return bny_fail(BANYAN_ERR_MEMORY, "banyan_env_create: rank %d has no memory to connect %d ranks",
                  pending->env->settings.rank, pending->env->settings.nranks);
}

banyan_status bny_boot_pending_fail_left(const struct bny_boot_pending *pending, int32_t rank) {
  return bny_fail(BANYAN_ERR_PEER, "banyan_env_create: rank %d of %d left while the others were still connecting to %s",
                  rank, pending->env->settings.nranks, pending->env->address);
}

static banyan_status answer_child(struct bny_boot_pending *pending, int32_t child, uint64_t ticket,
                                  const char *reason) {
  const struct bny_boot_says says = {.kind = BNY_BOOT_VERDICT};
  struct bny_boot_answer answer = {.ticket = htole64(ticket)};
  struct bny_boot_link *link = &pending->env->children[child];
  snprintf(answer.reason, sizeof answer.reason, "%s", reason);
  link->nbelow += !*reason;
  return bny_boot_link_post(link, &says, &answer, sizeof answer) ? BANYAN_OK : bny_boot_pending_fail_memory(pending);
}

banyan_status bny_boot_pending_answer(struct bny_boot_pending *pending, int32_t child, uint64_t ticket,
                                      const char *reason) {
  if (child >= 0) return answer_child(pending, child, ticket, reason);
  for (int i = 0; i < pending->ncandidates; i++) {
    struct bny_boot_candidate *candidate = &pending->candidates[i];
    if (candidate->state == BNY_BOOT_APPLYING && candidate->ticket == ticket) return settle(pending, candidate, reason);
  }
  return BANYAN_OK;
}

/* Ranks of two jobs without an id can meet at one port. When all ranks have joined, rank 0 of such a job waits once
 * more for the time that they took, within these limits. By then the ranks of a second job that starts at the same time
 * have arrived, and a duplicate rank reveals it. */
static const int64_t settle_least_ns = 100000000, settle_most_ns = 1000000000;

static int64_t settle_time(const struct bny_boot_pending *pending) {
  int64_t took_ns = bny_deadline_now() - pending->begun_ns;
  if (pending->env->settings.job[0]) return 0;
  return took_ns < settle_least_ns ? settle_least_ns : took_ns > settle_most_ns ? settle_most_ns : took_ns;
}

static banyan_status admit(struct bny_boot_pending *pending, const struct bny_boot_join *join, int32_t child) {
  char reason[BNY_BOOT_REASON_BYTES] = "";
  struct banyan_env *env = pending->env;
  bool twice = join->rank < (uint32_t)env->settings.nranks && pending->joined[join->rank] && join->rank > 0;
  if (join->rank == 0 || join->rank >= (uint32_t)env->settings.nranks) {
    snprintf(reason, sizeof reason, "rank %u cannot join: must be 1..%d", join->rank, env->settings.nranks - 1);
  } else if (join->parent >= (uint32_t)env->settings.nranks) {
    snprintf(reason, sizeof reason, "rank %u cannot join below rank %u: there is none", join->rank, join->parent);
  } else if (twice) {
    snprintf(reason, sizeof reason, "rank %u has already joined from elsewhere: two processes have RANK %u", join->rank,
             join->rank);
  } else {
    int64_t patience_ns = bny_boot_deadline_of_peer(join->left_ms);
    if (patience_ns < pending->deadline_ns) pending->deadline_ns = patience_ns;
    pending->joined[join->rank] = true;
    pending->njoined++;
    env->parents[join->rank] = (int32_t)join->parent;
    if (pending->njoined == env->settings.nranks) pending->settled_ns = bny_deadline_now() + settle_time(pending);
  }
  banyan_status status = bny_boot_pending_answer(pending, child, join->ticket, reason);
  return !status && twice && !env->settings.job[0] ? fail_twice(pending, reason) : status;
}

static bool remember(struct bny_boot_pending *pending, uint64_t ticket, int32_t child) {
  if (pending->ntickets == pending->tickets_capacity) {
    size_t capacity = pending->tickets_capacity ? pending->tickets_capacity * 2 : 16;
    struct bny_boot_ticket *more = realloc(pending->tickets, capacity * sizeof *more);
    if (!more) return false;
    pending->tickets = more;
    pending->tickets_capacity = capacity;
  }
  pending->tickets[pending->ntickets++] = (struct bny_boot_ticket){.ticket = ticket, .child = child};
  return true;
}

int32_t bny_boot_pending_recall(struct bny_boot_pending *pending, uint64_t ticket) {
  for (size_t i = 0; i < pending->ntickets; i++) {
    if (pending->tickets[i].ticket != ticket) continue;
    int32_t child = pending->tickets[i].child;
    pending->tickets[i] = pending->tickets[--pending->ntickets];
    return child;
  }
  return -1;
}

banyan_status bny_boot_pending_apply(struct bny_boot_pending *pending, const struct bny_boot_join *join,
                                     int32_t child) {
  const struct bny_boot_says says = {.kind = BNY_BOOT_JOIN};
  if (pending->env->settings.rank == 0) return admit(pending, join, child);
  const struct bny_boot_join wire = {.ticket = htole64(join->ticket),
                                     .rank = htole32(join->rank),
                                     .parent = htole32(join->parent),
                                     .left_ms = htole32(join->left_ms)};
  if (child >= 0 && !remember(pending, join->ticket, child)) return bny_boot_pending_fail_memory(pending);
  return bny_boot_link_post(&pending->env->parent, &says, &wire, sizeof wire) ? BANYAN_OK
                                                                              : bny_boot_pending_fail_memory(pending);
}

banyan_status bny_boot_pending_reconsider(struct bny_boot_pending *pending) {
  banyan_status status = BANYAN_OK;
  for (int i = 0; i < pending->ncandidates && !status; i++)
    if (pending->candidates[i].state == BNY_BOOT_WAITING) status = consider(pending, &pending->candidates[i]);
  return status;
}

/* Handles a complete hello. */
static banyan_status decide(struct bny_boot_pending *pending, struct bny_boot_candidate *candidate) {
  const struct banyan_env *env = pending->env;
  char reason[BNY_BOOT_REASON_BYTES];
  if (!bny_boot_hello_check(bny_boot_key_of(env, candidate->local), &candidate->challenge, &candidate->hello)) {
    pending->nforged++;
    memcpy(pending->forged_address, candidate->address, sizeof candidate->address);
    /* Unauthenticated peers must not fill a disk: the rest is only counted for the error text. */
    if (pending->nforged <= FORGED_LOGGED_AT_MOST)
      bny_log(BNY_LOG_WARN, "rank %d at %s: %s failed to authenticate: another secret?", env->settings.rank,
              env->address, candidate->address);
    candidate->state = BNY_BOOT_FINISHED;
    return BANYAN_OK;
  }
  enum bny_boot_verdict verdict = judge(pending, &candidate->hello, reason);
  if (!reason[0]) return consider(pending, candidate);
  reject(pending, candidate, verdict, reason);
  bool is_second = verdict == BNY_BOOT_REJECTED && env->settings.rank == 0 && le32toh(candidate->hello.rank) == 0 &&
                   le32toh(candidate->hello.version) == BNY_BOOT_VERSION;
  return is_second ? fail_twice(pending, reason) : BANYAN_OK;
}

banyan_status bny_boot_pending_read(struct bny_boot_pending *pending, struct bny_boot_candidate *candidate) {
  struct bny_boot_hello *hello = &candidate->hello;
  size_t wanted = sizeof *hello - candidate->got;
  /* A peer that waits for its answer sends nothing, so any event means that it has closed. */
  ssize_t got = wanted ? recv(candidate->fd, (char *)hello + candidate->got, wanted, MSG_DONTWAIT) : 0;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return BANYAN_OK;
  if (got > 0) {
    candidate->got += (size_t)got;
    return candidate->got < sizeof *hello ? BANYAN_OK : decide(pending, candidate);
  }
  if (candidate->state == BNY_BOOT_APPLYING) { /* the answer will find that it has left, if that matters */
    close(candidate->fd);
    candidate->fd = -1;
  } else {
    candidate->state = BNY_BOOT_FINISHED;
  }
  return BANYAN_OK;
}

#endif
