/* SPDX-License-Identifier: Apache-2.0
 * The ranks other than 0 of the TCP bootstrap: connect, authenticate, wait until all have joined. Rank 0 may start
 * later than they do, so an attempt that fails is repeated until the deadline. */
#include "boot_tcp.h"

#ifdef HAVE_SODIUM
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "boot_common.h"
#include "clock.h"

/* A server that hangs up on our answer most likely has another secret; it may also have dropped us for want of room. */
enum { REJECTIONS_AT_MOST = 5, PAUSE_FIRST_MS = 10, PAUSE_LAST_MS = 500 };

struct seeker {
  struct banyan_env *env;
  int64_t deadline_ns;
  int nrejections;
  char reason[256]; /* why the last attempt failed */
};

/* Receives exactly `bytes`; returns 0, or errno: ETIMEDOUT, ECONNRESET when the peer has closed. */
static int receive_all(int fd, void *place, size_t bytes, int64_t limit_ns) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t got = recv(fd, (char *)place + done, bytes - done, MSG_DONTWAIT);
    if (got > 0)
      done += (size_t)got;
    else if (got == 0)
      return ECONNRESET;
    else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      return errno;
    else if (!bny_boot_socket_wait(fd, POLLIN, limit_ns))
      return ETIMEDOUT;
  }
  return 0;
}

static int64_t attempt_limit(const struct seeker *seeker) {
  int64_t limit_ns = bny_clock_ns() + BNY_BOOT_STRANGER_NS;
  return limit_ns < seeker->deadline_ns ? limit_ns : seeker->deadline_ns;
}

/* Keeps the reason for the error text. An attempt that the deadline cut short tells less than the one before it. */
static void note(struct seeker *seeker, const char *what, int error) {
  char text[128];
  if (error == ETIMEDOUT && seeker->reason[0] && bny_clock_ns() >= seeker->deadline_ns) return;
  snprintf(seeker->reason, sizeof seeker->reason, "%s%s%s", what, error ? ": " : "",
           error ? strerror_r(error, text, sizeof text) : "");
}

/* The welcome has arrived. Returns whether this rank has joined; a refusal sets *final. */
static bool read_welcome(struct seeker *seeker, const struct bny_boot_challenge *challenge,
                         const struct bny_boot_hello *hello, struct bny_boot_welcome *welcome, banyan_status *final) {
  const struct bny_boot_settings *settings = &seeker->env->settings;
  if (!bny_boot_welcome_check(settings->key, challenge, hello, welcome)) {
    seeker->nrejections++;
    note(seeker, "it does not know the secret of this rank", 0);
    return false;
  }
  welcome->reason[sizeof welcome->reason - 1] = '\0';
  if (le32toh(welcome->verdict) == BNY_BOOT_ACCEPTED) return true;
  *final = bny_fail(BANYAN_ERR_BOOTSTRAP, "banyan_env_create: rank 0 at %s refused rank %d of %d: %s",
                    seeker->env->address, settings->rank, settings->nranks, welcome->reason);
  return false;
}

/* Both sides prove on this connection that they know the secret. Returns whether this rank has joined. */
static bool authenticate(struct seeker *seeker, int fd, struct bny_boot_link *link, banyan_status *final) {
  const struct bny_boot_settings *settings = &seeker->env->settings;
  struct bny_boot_challenge challenge;
  struct bny_boot_welcome welcome;
  int error = receive_all(fd, &challenge, sizeof challenge, attempt_limit(seeker));
  if (error || !bny_boot_challenge_check(&challenge)) {
    note(seeker,
         error ? "connected, but no greeting came (has rank 0 come to banyan_env_create?)"
               : "whoever listens there is not banyan's rank 0",
         error);
    return false;
  }
  struct bny_boot_hello hello = {.version = htole32(BNY_BOOT_VERSION),
                                 .rank = htole32((uint32_t)settings->rank),
                                 .nranks = htole32((uint32_t)settings->nranks),
                                 .left_ms = htole32((uint32_t)bny_boot_poll_ms(seeker->deadline_ns))};
  bny_boot_hello_sign(settings->key, &challenge, &hello);
  if (send(fd, &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof hello) {
    note(seeker, "connection lost", errno);
    return false;
  }
  /* Until the deadline: rank 0 may have let this rank in, and then counts on this connection. */
  error = receive_all(fd, &welcome, sizeof welcome, seeker->deadline_ns);
  if (error) {
    seeker->nrejections += error != ETIMEDOUT;
    note(seeker,
         error == ETIMEDOUT ? "no answer to the authentication of this rank"
                            : "it hung up when this rank authenticated itself: is the secret (BANYAN_SECRET) the "
                              "same on all ranks?",
         0);
    return false;
  }
  if (!read_welcome(seeker, &challenge, &hello, &welcome, final)) return false;
  bny_boot_session_derive(settings->key, &challenge, &hello, link->session);
  return true;
}

/* Tries every address of the list once. */
static bool try_addresses(struct seeker *seeker, const struct addrinfo *list, banyan_status *final) {
  struct banyan_env *env = seeker->env;
  for (const struct addrinfo *each = list; each && !*final; each = each->ai_next) {
    bny_boot_address_text(each->ai_addr, each->ai_addrlen, env->address);
    int fd = bny_boot_address_connect(each, attempt_limit(seeker));
    if (fd < 0) {
      note(seeker, "cannot connect", errno);
      continue;
    }
    if (authenticate(seeker, fd, &env->links[0], final)) {
      env->links[0].fd = fd;
      return true;
    }
    bny_boot_socket_close(fd);
  }
  return false;
}

/* A pause that doubles, with a random part so that many ranks do not come all at once. */
static void pause_before_retry(const struct seeker *seeker, int *pause_ms) {
  int wait_ms = *pause_ms / 2 + (int)randombytes_uniform((uint32_t)(*pause_ms / 2 + 1));
  int left_ms = bny_boot_poll_ms(seeker->deadline_ns);
  poll(NULL, 0, wait_ms < left_ms ? wait_ms : left_ms);
  *pause_ms = *pause_ms * 2 < PAUSE_LAST_MS ? *pause_ms * 2 : PAUSE_LAST_MS;
}

static banyan_status seek(struct seeker *seeker, const struct addrinfo *list) {
  const struct bny_boot_settings *settings = &seeker->env->settings;
  int64_t begun_ns = bny_clock_ns();
  int pause_ms = PAUSE_FIRST_MS;
  banyan_status final = BANYAN_OK;
  while (!try_addresses(seeker, list, &final)) {
    if (final) return final;
    if (seeker->nrejections >= REJECTIONS_AT_MOST)
      return bny_fail(BANYAN_ERR_BOOTSTRAP,
                      "banyan_env_create: rank %d of %d could not authenticate itself to rank 0 at "
                      "%s: %s",
                      settings->rank, settings->nranks, seeker->env->address, seeker->reason);
    if (bny_clock_ns() >= seeker->deadline_ns)
      return bny_fail(BANYAN_ERR_TIMEOUT,
                      "banyan_env_create: rank %d of %d could not join rank 0 at %s within %.3g s: %s", settings->rank,
                      settings->nranks, seeker->env->address, (double)(bny_clock_ns() - begun_ns) * 1e-9,
                      seeker->reason);
    pause_before_retry(seeker, &pause_ms);
  }
  return BANYAN_OK;
}

banyan_status bny_boot_client_join(struct banyan_env *env, int64_t timeout_ns) {
  struct seeker seeker = {.env = env, .deadline_ns = bny_boot_deadline_ns(timeout_ns)};
  struct addrinfo *list;
  banyan_status status = bny_boot_address_resolve(&env->settings, &list);
  if (status) return status;
  status = seek(&seeker, list);
  freeaddrinfo(list);
  if (status) return status;
  const char *doing = "banyan_env_create";
  status = bny_boot_client_receive(env, BNY_BOOT_READY, seeker.deadline_ns, doing);
  if (status) return status;
  char nothing;
  if (env->links[0].in.bytes == 0 && bny_boot_link_receive_payload(&env->links[0], &nothing) == BNY_BOOT_DONE)
    return BANYAN_OK;
  return bny_fail(BANYAN_ERR_BOOTSTRAP, "%s: rank 0 at %s sent what is not of this protocol", doing, env->address);
}
#endif
