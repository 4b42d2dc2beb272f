/* SPDX-License-Identifier: Apache-2.0
 * Pending connections: from the accept to the welcome. */
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
#include "base/clock.h"
#include "base/log.h"

enum { FORGED_LOGGED_AT_MOST = 3 };

/* The least time of a pending connection, however many come after it. */
static const int64_t least_patience_ns = 500000000;

/* ---- accepting --------------------------------------------------------------------------------------------------- */

bool bny_boot_lobby_has_room(const struct bny_boot_lobby *lobby, int64_t *when_ns) {
  *when_ns = INT64_MAX;
  if (lobby->nstrangers < BNY_BOOT_STRANGERS) return true;
  for (int i = 0; i < lobby->nstrangers; i++) {
    if (lobby->strangers[i].state != BNY_BOOT_GREETED) continue;
    *when_ns = lobby->strangers[i].greeted_ns + least_patience_ns;
    return *when_ns <= bny_clock_ns();
  }
  return false;
}

void bny_boot_lobby_drop_finished(struct bny_boot_lobby *lobby) {
  int kept = 0;
  for (int i = 0; i < lobby->nstrangers; i++) {
    struct bny_boot_stranger *stranger = &lobby->strangers[i];
    if (stranger->state == BNY_BOOT_FINISHED) {
      if (stranger->fd >= 0) bny_boot_socket_close(stranger->fd);
    } else {
      if (kept != i) lobby->strangers[kept] = *stranger;
      kept++;
    }
  }
  lobby->nstrangers = kept;
}

/* Returns whether there was one to drop. */
static bool drop_oldest(struct bny_boot_lobby *lobby) {
  for (int i = 0; i < lobby->nstrangers; i++) {
    if (lobby->strangers[i].state != BNY_BOOT_GREETED) continue;
    lobby->strangers[i].state = BNY_BOOT_FINISHED;
    bny_boot_lobby_drop_finished(lobby);
    return true;
  }
  return false;
}

static bool greet(struct bny_boot_lobby *lobby, int fd, const struct sockaddr_storage *address,
                  socklen_t address_bytes) {
  struct bny_boot_stranger *stranger = &lobby->strangers[lobby->nstrangers];
  struct bny_boot_user user = {.process = 0};
  memset(stranger, 0, sizeof *stranger);
  stranger->fd = fd;
  stranger->local = address->ss_family == AF_UNIX;
  stranger->greeted_ns = bny_clock_ns();
  if (stranger->local && !bny_boot_socket_is_own(fd, &user)) return false;
  if (stranger->local)
    snprintf(stranger->address, sizeof stranger->address, "process %" PRId64 " of this host", user.process);
  else
    bny_boot_address_text((const struct sockaddr *)address, address_bytes, stranger->address);
  bny_boot_challenge_make(&stranger->challenge);
  if (bny_boot_socket_configure(fd) != 0) return false;
  if (send(fd, &stranger->challenge, sizeof stranger->challenge, MSG_DONTWAIT | MSG_NOSIGNAL) !=
      (ssize_t)sizeof stranger->challenge)
    return false;
  lobby->nstrangers++;
  return true;
}

/* Answers a request for rank 0's key. */
static void issue(struct bny_boot_lobby *lobby, int fd) {
  struct bny_boot_user user = {.uid = geteuid()};
  const struct banyan_env *env = lobby->env;
  if (!bny_boot_issue(env, fd, &user) && user.uid != geteuid()) {
    snprintf(lobby->refusal, sizeof lobby->refusal,
             "process %" PRId64 " is of user %ld, and rank 0 of user %ld: without a secret all ranks must be of one user",
             user.process, (long)user.uid, (long)geteuid());
    if (lobby->nforeign++ < FORGED_LOGGED_AT_MOST)
      bny_log(BNY_LOG_WARN, "rank 0 at %s refused: %s", env->address, lobby->refusal);
  }
  close(fd);
}

/* An error of the connection itself is ignored. Without free descriptors the oldest pending connection is dropped; it
 * is an error if there is none. */
banyan_status bny_boot_lobby_accept(struct bny_boot_lobby *lobby, int listener) {
  struct sockaddr_storage address;
  socklen_t bytes = sizeof address;
  const struct banyan_env *env = lobby->env;
  memset(&address, 0, sizeof address);
  int fd = accept4(env->listen_fds[listener], (struct sockaddr *)&address, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
    int error = errno;
    if (drop_oldest(lobby)) return BANYAN_OK;
    return bny_fail_errno(BANYAN_ERR_SYSTEM, error,
                          "banyan_env_create: rank %d of %d cannot accept another rank on %s "
                          "(raise ulimit -n)",
                          env->settings.rank, env->settings.nranks, env->address);
  }
  if (fd < 0) return BANYAN_OK;
  if (listener == BNY_BOOT_ISSUES_KEYS) {
    issue(lobby, fd);
    return BANYAN_OK;
  }
  if (lobby->nstrangers == BNY_BOOT_STRANGERS && !drop_oldest(lobby)) {
    close(fd);
    return BANYAN_OK;
  }
  if (!greet(lobby, fd, &address, bytes)) close(fd);
  return BANYAN_OK;
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

static bool send_welcome(const struct bny_boot_lobby *lobby, const struct bny_boot_stranger *stranger,
                         enum bny_boot_verdict verdict, const char *reason) {
  struct bny_boot_welcome welcome;
  const struct bny_boot_settings *settings = &lobby->env->settings;
  memset(&welcome, 0, sizeof welcome);
  welcome.verdict = htole32(verdict);
  welcome.version = htole32(BNY_BOOT_VERSION);
  welcome.rank = htole32((uint32_t)settings->rank);
  snprintf(welcome.reason, sizeof welcome.reason, "%s", reason);
  bny_boot_welcome_sign(bny_boot_key_of(lobby->env, stranger->local), &stranger->challenge, &stranger->hello, &welcome);
  return send(stranger->fd, &welcome, sizeof welcome, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof welcome;
}

static void refuse(struct bny_boot_lobby *lobby, struct bny_boot_stranger *stranger, const char *reason) {
  const struct banyan_env *env = lobby->env;
  send_welcome(lobby, stranger, BNY_BOOT_REFUSED, reason);
  snprintf(lobby->refusal, sizeof lobby->refusal, "%s (%s)", reason, stranger->address);
  bny_log(BNY_LOG_WARN, "rank %d at %s refused: %s", env->settings.rank, env->address, lobby->refusal);
  stranger->state = BNY_BOOT_FINISHED;
}

static banyan_status adopt(struct bny_boot_lobby *lobby, struct bny_boot_stranger *stranger) {
  struct banyan_env *env = lobby->env;
  if (env->nchildren == env->capacity) {
    int32_t capacity = env->capacity ? env->capacity * 2 : 8;
    struct bny_boot_link *more = realloc(env->children, (size_t)capacity * sizeof *more);
    if (!more) return bny_fail(BANYAN_ERR_MEMORY, "banyan_env_create: rank %d has no memory for %d connections",
                               env->settings.rank, capacity);
    env->children = more;
    env->capacity = capacity;
  }
  struct bny_boot_link *child = &env->children[env->nchildren++];
  memset(child, 0, sizeof *child);
  child->fd = stranger->fd;
  child->rank = (int32_t)le32toh(stranger->hello.rank);
  child->nbelow = 1;
  child->at_server = true;
  child->local = stranger->local;
  memcpy(child->address, stranger->hello.address, sizeof child->address - 1);
  bny_boot_session_derive(bny_boot_key_of(env, child->local), &stranger->challenge, &stranger->hello, child->session);
  stranger->fd = -1;
  stranger->state = BNY_BOOT_FINISHED;
  return BANYAN_OK;
}

banyan_status bny_boot_lobby_settle(struct bny_boot_lobby *lobby, struct bny_boot_stranger *stranger,
                                    const char *reason) {
  if (*reason) {
    refuse(lobby, stranger, reason);
    return BANYAN_OK;
  }
  if (send_welcome(lobby, stranger, BNY_BOOT_ACCEPTED, "")) return adopt(lobby, stranger);
  return bny_fail(BANYAN_ERR_PEER,
                  "banyan_env_create: rank %u of %d left while the others were still connecting to "
                  "%s",
                  le32toh(stranger->hello.rank), lobby->env->settings.nranks, lobby->env->address);
}

/* ---- the request ------------------------------------------------------------------------------------------------- */

/* Writes the reason why an authenticated peer may not join, as far as this rank can tell; "" if it may. */
static void judge(const struct bny_boot_lobby *lobby, const struct bny_boot_hello *hello,
                  char reason[BNY_BOOT_REASON_BYTES]) {
  uint32_t version = le32toh(hello->version), rank = le32toh(hello->rank), nranks = le32toh(hello->nranks);
  int32_t own = lobby->env->settings.rank;
  uint32_t expected = (uint32_t)lobby->env->settings.nranks;
  reason[0] = '\0';
  if (version != BNY_BOOT_VERSION)
    snprintf(reason, BNY_BOOT_REASON_BYTES,
             "rank %u speaks version %u of the bootstrap protocol where rank %d speaks %d: "
             "use the same banyan on all ranks",
             rank, version, own, BNY_BOOT_VERSION);
  else if (nranks != expected)
    snprintf(reason, BNY_BOOT_REASON_BYTES, "rank %u has WORLD_SIZE %u where rank %d has %u", rank, nranks, own,
             expected);
  else if (rank == 0 || rank >= expected)
    snprintf(reason, BNY_BOOT_REASON_BYTES, "rank %u cannot join: must be 1..%u", rank, expected - 1);
}

/* Returns whether there is room for a child, on this node or on others. `applying` counts those that may soon be
 * one. */
static bool has_place(const struct bny_boot_lobby *lobby, bool local, int *applying) {
  const struct banyan_env *env = lobby->env;
  int taken = 0;
  *applying = 0;
  for (int32_t i = 0; i < env->nchildren; i++) taken += env->children[i].local == local;
  for (int i = 0; i < lobby->nstrangers; i++)
    *applying += lobby->strangers[i].state == BNY_BOOT_APPLYING && lobby->strangers[i].local == local;
  return taken + *applying < env->settings.fanout;
}

/* Returns the address of the next child in turn; NULL: none listens. */
static const char *whom_to_ask(struct bny_boot_lobby *lobby, bool local) {
  const struct banyan_env *env = lobby->env;
  for (int32_t i = 0; i < env->nchildren; i++) {
    const struct bny_boot_link *child = &env->children[lobby->next_child[local]++ % (uint32_t)env->nchildren];
    if (child->local == local && child->address[0]) return child->address;
  }
  return NULL;
}

/* Handles an authenticated peer that fits: asks rank 0, redirects the peer, or lets it wait. */
static banyan_status consider(struct bny_boot_lobby *lobby, struct bny_boot_stranger *stranger) {
  int applying;
  bool place = has_place(lobby, stranger->local, &applying);
  const char *other = place ? NULL : whom_to_ask(lobby, stranger->local);
  if (other) {
    send_welcome(lobby, stranger, BNY_BOOT_REDIRECTED, other);
    stranger->state = BNY_BOOT_FINISHED;
    return BANYAN_OK;
  }
  if (!place && applying > 0) {
    stranger->state = BNY_BOOT_WAITING;
    return BANYAN_OK;
  }
  randombytes_buf(&stranger->ticket, sizeof stranger->ticket);
  stranger->state = BNY_BOOT_APPLYING;
  const struct bny_boot_join join = {.ticket = stranger->ticket,
                                     .rank = le32toh(stranger->hello.rank),
                                     .parent = (uint32_t)lobby->env->settings.rank,
                                     .left_ms = le32toh(stranger->hello.left_ms)};
  return bny_boot_lobby_apply(lobby, &join, -1);
}

banyan_status bny_boot_lobby_reconsider(struct bny_boot_lobby *lobby) {
  banyan_status status = BANYAN_OK;
  for (int i = 0; i < lobby->nstrangers && !status; i++)
    if (lobby->strangers[i].state == BNY_BOOT_WAITING) status = consider(lobby, &lobby->strangers[i]);
  return status;
}

/* Handles a complete hello. */
static banyan_status decide(struct bny_boot_lobby *lobby, struct bny_boot_stranger *stranger) {
  const struct banyan_env *env = lobby->env;
  char reason[BNY_BOOT_REASON_BYTES];
  if (!bny_boot_hello_check(bny_boot_key_of(env, stranger->local), &stranger->challenge, &stranger->hello)) {
    lobby->nforged++;
    memcpy(lobby->forged_address, stranger->address, sizeof stranger->address);
    /* Unauthenticated peers must not fill a disk: the rest is only counted for the error text. */
    if (lobby->nforged <= FORGED_LOGGED_AT_MOST)
      bny_log(BNY_LOG_WARN, "rank %d at %s: %s failed to authenticate: another secret?", env->settings.rank,
              env->address, stranger->address);
    stranger->state = BNY_BOOT_FINISHED;
    return BANYAN_OK;
  }
  judge(lobby, &stranger->hello, reason);
  if (!reason[0]) return consider(lobby, stranger);
  refuse(lobby, stranger, reason);
  return BANYAN_OK;
}

banyan_status bny_boot_lobby_hear(struct bny_boot_lobby *lobby, struct bny_boot_stranger *stranger) {
  struct bny_boot_hello *hello = &stranger->hello;
  size_t wanted = sizeof *hello - stranger->got;
  /* A peer that waits for its answer sends nothing: any event is its end. */
  ssize_t got = wanted ? recv(stranger->fd, (char *)hello + stranger->got, wanted, MSG_DONTWAIT) : 0;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return BANYAN_OK;
  if (got <= 0 && stranger->state == BNY_BOOT_APPLYING) { /* the answer will find that it has left, if that matters */
    close(stranger->fd);
    stranger->fd = -1;
    return BANYAN_OK;
  }
  if (got <= 0) {
    stranger->state = BNY_BOOT_FINISHED;
    return BANYAN_OK;
  }
  stranger->got += (size_t)got;
  return stranger->got < sizeof *hello ? BANYAN_OK : decide(lobby, stranger);
}
#endif
