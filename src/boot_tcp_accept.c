/* SPDX-License-Identifier: Apache-2.0
 * Rank 0 of the TCP bootstrap: lets the other ranks in. Connections are strangers until they have authenticated
 * themselves. Strangers are served side by side, each has BNY_BOOT_STRANGER_NS, and there is a limit to their number
 * beyond which the oldest are dropped: so a port scan, garbage or a silent peer holds up nobody. */
#include "boot_tcp.h"

#ifdef HAVE_SODIUM
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "boot_common.h"
#include "clock.h"
#include "log.h"

enum { STRANGERS_BEYOND_RANKS = 64, FORGED_LOGGED_AT_MOST = 3 };

struct stranger {
  int fd;
  int64_t limit_ns;
  char address[BNY_BOOT_ADDRESS_BYTES];
  struct bny_boot_challenge challenge;
  struct bny_boot_hello hello;
  size_t got; /* bytes of hello */
};

struct lobby {
  struct banyan_env *env;
  int listen_fd;
  int64_t begun_ns;
  int64_t deadline_ns;
  bool *joined; /* [nranks] */
  int32_t njoined;
  struct stranger *strangers; /* the oldest first */
  int nstrangers, capacity;
  struct pollfd *polls; /* listening socket, links of ranks 1.., strangers */
  int nforged;          /* connections that answered the challenge wrongly */
  char forged_address[BNY_BOOT_ADDRESS_BYTES];
  char refusal[BNY_BOOT_REASON_BYTES + BNY_BOOT_ADDRESS_BYTES + 4]; /* the last, for the error text */
};

static void drop_stranger(struct lobby *lobby, int index) {
  struct stranger *gone = &lobby->strangers[index];
  if (gone->fd >= 0) bny_boot_socket_close(gone->fd);
  lobby->nstrangers--;
  memmove(gone, gone + 1, (size_t)(lobby->nstrangers - index) * sizeof *gone);
}

/* Words why a peer that knows the secret may not join; "" if it may. */
static void judge(const struct lobby *lobby, const struct bny_boot_hello *hello, char reason[BNY_BOOT_REASON_BYTES]) {
  uint32_t version = le32toh(hello->version), rank = le32toh(hello->rank), nranks = le32toh(hello->nranks);
  uint32_t expected = (uint32_t)lobby->env->settings.nranks;
  reason[0] = '\0';
  if (version != BNY_BOOT_VERSION)
    snprintf(reason, BNY_BOOT_REASON_BYTES,
             "rank %u speaks version %u of the bootstrap protocol where rank 0 speaks %d: "
             "use the same banyan on all ranks",
             rank, version, BNY_BOOT_VERSION);
  else if (nranks != expected)
    snprintf(reason, BNY_BOOT_REASON_BYTES, "rank %u has WORLD_SIZE %u where rank 0 has %u", rank, nranks, expected);
  else if (rank == 0 || rank >= expected)
    snprintf(reason, BNY_BOOT_REASON_BYTES, "rank %u cannot join: must be 1..%u", rank, expected - 1);
  else if (lobby->joined[rank])
    snprintf(reason, BNY_BOOT_REASON_BYTES, "rank %u has already joined from elsewhere: two processes have RANK %u",
             rank, rank);
}

static bool send_welcome(const struct lobby *lobby, const struct stranger *stranger,
                         const char reason[BNY_BOOT_REASON_BYTES]) {
  struct bny_boot_welcome welcome;
  memset(&welcome, 0, sizeof welcome);
  welcome.verdict = htole32(reason[0] ? BNY_BOOT_REFUSED : BNY_BOOT_ACCEPTED);
  welcome.version = htole32(BNY_BOOT_VERSION);
  snprintf(welcome.reason, sizeof welcome.reason, "%s", reason);
  bny_boot_welcome_sign(lobby->env->settings.key, &stranger->challenge, &stranger->hello, &welcome);
  return send(stranger->fd, &welcome, sizeof welcome, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof welcome;
}

/* The hello is complete: lets the stranger in, or not. It is to be dropped afterwards in any case. */
static void decide(struct lobby *lobby, struct stranger *stranger) {
  struct banyan_env *env = lobby->env;
  char reason[BNY_BOOT_REASON_BYTES];
  if (!bny_boot_hello_check(env->settings.key, &stranger->challenge, &stranger->hello)) {
    lobby->nforged++;
    memcpy(lobby->forged_address, stranger->address, sizeof stranger->address);
    /* Strangers must not be able to fill a disk: the rest is counted for the error text. */
    if (lobby->nforged <= FORGED_LOGGED_AT_MOST)
      bny_log(BNY_LOG_WARN, "rank 0 at %s: %s failed to authenticate: another secret?", env->address,
              stranger->address);
    return;
  }
  judge(lobby, &stranger->hello, reason);
  bool sent = send_welcome(lobby, stranger, reason);
  if (reason[0]) {
    snprintf(lobby->refusal, sizeof lobby->refusal, "%s (%s)", reason, stranger->address);
    bny_log(BNY_LOG_WARN, "rank 0 at %s refused: %s", env->address, lobby->refusal);
  }
  if (reason[0] || !sent) return;
  int32_t rank = (int32_t)le32toh(stranger->hello.rank);
  struct bny_boot_link *link = &env->links[rank];
  link->fd = stranger->fd;
  link->at_server = true;
  bny_boot_session_derive(env->settings.key, &stranger->challenge, &stranger->hello, link->session);
  stranger->fd = -1;
  lobby->joined[rank] = true;
  lobby->njoined++;
  int64_t patience_ns = bny_boot_deadline_of_peer(le32toh(stranger->hello.left_ms));
  if (patience_ns < lobby->deadline_ns) lobby->deadline_ns = patience_ns;
}

/* Returns whether the stranger is finished with, one way or the other. */
static bool listen_to(struct lobby *lobby, struct stranger *stranger) {
  struct bny_boot_hello *hello = &stranger->hello;
  ssize_t got = recv(stranger->fd, (char *)hello + stranger->got, sizeof *hello - stranger->got, MSG_DONTWAIT);
  if (got < 0) return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
  if (got == 0) return true;
  stranger->got += (size_t)got;
  if (stranger->got < sizeof *hello) return false;
  decide(lobby, stranger);
  return true;
}

static bool greet(struct lobby *lobby, int fd, const struct sockaddr_storage *address, socklen_t address_bytes) {
  struct stranger *stranger = &lobby->strangers[lobby->nstrangers];
  memset(stranger, 0, sizeof *stranger);
  stranger->fd = fd;
  stranger->limit_ns = bny_clock_ns() + BNY_BOOT_STRANGER_NS;
  bny_boot_address_text((const struct sockaddr *)address, address_bytes, stranger->address);
  bny_boot_challenge_make(&stranger->challenge);
  if (bny_boot_socket_configure(fd) != 0) return false;
  if (send(fd, &stranger->challenge, sizeof stranger->challenge, MSG_DONTWAIT | MSG_NOSIGNAL) !=
      (ssize_t)sizeof stranger->challenge)
    return false;
  lobby->nstrangers++;
  return true;
}

/* Accepts one connection. An error of the connection itself is nobody's; running out of descriptors costs the oldest
 * stranger its place, and is an error when there is none. */
static banyan_status accept_one(struct lobby *lobby) {
  struct sockaddr_storage address;
  socklen_t bytes = sizeof address;
  int fd = accept4(lobby->listen_fd, (struct sockaddr *)&address, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
    if (lobby->nstrangers == 0)
      return bny_fail_errno(BANYAN_ERR_SYSTEM, errno,
                            "banyan_env_create: rank 0 of %d cannot accept another rank on %s "
                            "(raise ulimit -n)",
                            lobby->env->settings.nranks, lobby->env->address);
    drop_stranger(lobby, 0);
    return BANYAN_OK;
  }
  if (fd < 0) return BANYAN_OK;
  if (lobby->nstrangers == lobby->capacity) drop_stranger(lobby, 0);
  if (!greet(lobby, fd, &address, bytes)) close(fd);
  return BANYAN_OK;
}

static banyan_status fail_missing(const struct lobby *lobby) {
  char text[BNY_ERROR_TEXT_BYTES];
  size_t length = 0;
  const struct banyan_env *env = lobby->env;
  bny_boot_append_ranks(text, sizeof text, &length, lobby->joined, env->settings.nranks, false);
  bny_append(text, sizeof text, &length, " of %d did not connect within %.3g s to %s", env->settings.nranks,
             (double)(bny_clock_ns() - lobby->begun_ns) * 1e-9, env->address);
  if (lobby->refusal[0]) bny_append(text, sizeof text, &length, "; refused: %s", lobby->refusal);
  if (lobby->nforged > 0)
    bny_append(text, sizeof text, &length,
               "; %d connection%s failed to authenticate, the last from %s: is the secret "
               "the same on all ranks?",
               lobby->nforged, lobby->nforged == 1 ? "" : "s", lobby->forged_address);
  return bny_fail(BANYAN_ERR_TIMEOUT, "banyan_env_create: %s", text);
}

/* Fills lobby->polls and waits until something happens or a limit passes. */
static void wait_for_news(struct lobby *lobby) {
  int32_t nranks = lobby->env->settings.nranks;
  lobby->polls[0] = (struct pollfd){.fd = lobby->listen_fd, .events = POLLIN};
  for (int32_t rank = 1; rank < nranks; rank++)
    lobby->polls[rank] = (struct pollfd){.fd = lobby->env->links[rank].fd, .events = POLLIN};
  for (int i = 0; i < lobby->nstrangers; i++)
    lobby->polls[nranks + i] = (struct pollfd){.fd = lobby->strangers[i].fd, .events = POLLIN};
  int64_t limit_ns = lobby->deadline_ns;
  if (lobby->nstrangers > 0 && lobby->strangers[0].limit_ns < limit_ns) limit_ns = lobby->strangers[0].limit_ns;
  /* poll() writes nothing when it fails (EINTR); a timeout leaves all revents 0. */
  if (poll(lobby->polls, (nfds_t)(nranks + lobby->nstrangers), bny_boot_poll_ms(limit_ns)) < 0)
    for (int32_t i = 0; i < nranks + lobby->nstrangers; i++) lobby->polls[i].revents = 0;
}

/* One round: whoever has something to say is heard. */
static banyan_status serve(struct lobby *lobby) {
  int32_t nranks = lobby->env->settings.nranks;
  wait_for_news(lobby);
  /* A rank that has joined says nothing until it hears that all have: what comes is its end. */
  for (int32_t rank = 1; rank < nranks; rank++)
    if (lobby->polls[rank].revents)
      return bny_fail(BANYAN_ERR_PEER,
                      "banyan_env_create: rank %d of %d left while the others were still connecting to "
                      "%s",
                      rank, nranks, lobby->env->address);
  int64_t now_ns = bny_clock_ns();
  for (int i = lobby->nstrangers - 1; i >= 0; i--) {
    bool finished = lobby->polls[nranks + i].revents && listen_to(lobby, &lobby->strangers[i]);
    if (finished || now_ns >= lobby->strangers[i].limit_ns) drop_stranger(lobby, i);
  }
  if (lobby->polls[0].revents) return accept_one(lobby);
  return BANYAN_OK;
}

static banyan_status let_all_in(struct lobby *lobby) {
  struct banyan_env *env = lobby->env;
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  banyan_status status = BANYAN_OK;
  while (!status && lobby->njoined < env->settings.nranks - 1)
    status = bny_clock_ns() >= lobby->deadline_ns ? fail_missing(lobby) : serve(lobby);
  if (status) return bny_boot_server_fail(env, status);
  int32_t lost;
  bny_boot_payload_hash("", 0, hash);
  for (int32_t rank = 1; rank < env->settings.nranks; rank++)
    bny_boot_link_prepare(&env->links[rank], BNY_BOOT_READY, BANYAN_OK, 0, "", 0, hash);
  bny_boot_server_flush(env, lobby->deadline_ns, &lost);
  if (lost < 0) return BANYAN_OK;
  return bny_boot_server_fail(env, bny_fail(BANYAN_ERR_PEER,
                                            "banyan_env_create: rank %d of %d left when all had "
                                            "connected to %s",
                                            lost, env->settings.nranks, env->address));
}

banyan_status bny_boot_server_join(struct banyan_env *env, int64_t timeout_ns) {
  int32_t nranks = env->settings.nranks;
  struct lobby lobby = {.env = env, .begun_ns = bny_clock_ns(), .deadline_ns = bny_boot_deadline_ns(timeout_ns)};
  bool owned = false;
  lobby.capacity = nranks + STRANGERS_BEYOND_RANKS;
  lobby.joined = calloc((size_t)nranks, sizeof *lobby.joined);
  lobby.strangers = calloc((size_t)lobby.capacity, sizeof *lobby.strangers);
  lobby.polls = calloc((size_t)(nranks + lobby.capacity), sizeof *lobby.polls);
  banyan_status status = BANYAN_OK;
  if (!lobby.joined || !lobby.strangers || !lobby.polls)
    status = bny_fail(BANYAN_ERR_MEMORY, "banyan_env_create: no memory for %d ranks", nranks);
  if (!status)
    status = bny_boot_address_listen(&env->settings, lobby.deadline_ns, &lobby.listen_fd, &owned, env->address);
  if (!status) {
    lobby.joined[0] = true;
    status = let_all_in(&lobby);
  }
  if (owned) close(lobby.listen_fd);
  while (lobby.nstrangers > 0) drop_stranger(&lobby, lobby.nstrangers - 1);
  free(lobby.polls);
  free(lobby.strangers);
  free(lobby.joined);
  return status;
}
#endif
