/* SPDX-License-Identifier: Apache-2.0
 * Connects a rank to rank 0, and authenticates the two to each other. Rank 0 may start later, so a failed attempt is
 * repeated until the deadline. */
#include "boot/tcp_socket.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "boot/exchange.h"
#include "base/deadline.h"
#include "base/interface.h"

static const char doing[] = "banyan_env_create";

/* A server that hangs up on a hello most likely has another secret; it may also have dropped this rank for lack of
 * room. */
enum { REJECTIONS_AT_MOST = 5, PAUSE_FIRST_MS = 10, PAUSE_LAST_MS = 500 };

/* The least time between look-ups of a name that has addresses, to spare the DNS. */
static const int64_t look_up_interval_ns = 1000000000;

struct seeker {
  struct banyan_env *env;
  int64_t deadline_ns;
  int nrejections;       /* number of rejections by rank 0 */
  char reason[256];      /* why the last attempt failed */
  struct addrinfo *list; /* rank 0's addresses; NULL: none yet */
  int64_t looked_up_ns;
  bool met_other_job;   /* the last welcome came from another job */
  bool knows_other_job; /* any welcome did */
  bool is_unreached;    /* the last address could not be connected to */
  bool is_rejected;     /* nobody listened there */
  banyan_status final;
};

/* How long a peer may be silent. */
static int64_t attempt_limit(const struct seeker *seeker) {
  int64_t limit_ns = bny_deadline_now() + BNY_BOOT_UNAUTHENTICATED_NS;
  return limit_ns < seeker->deadline_ns ? limit_ns : seeker->deadline_ns;
}

/* Keeps the reason for the error text. An attempt that the deadline cut short says less than the one before it. */
static void note(struct seeker *seeker, const char *what, int error) {
  char text[128];
  if (error == ETIMEDOUT && seeker->reason[0] && bny_deadline_is_late(seeker->deadline_ns)) return;
  if (seeker->knows_other_job && !seeker->met_other_job) return; /* keeps the reason of the other job's rank 0 */
  snprintf(seeker->reason, sizeof seeker->reason, "%s%s%s", what, error ? ": " : "",
           error ? strerror_r(error, text, sizeof text) : "");
}

/* Handles the welcome. Returns whether this rank has joined; a rejection sets final. */
static bool read_welcome(struct seeker *seeker, const struct bny_boot_challenge *challenge,
                         const struct bny_boot_hello *hello, struct bny_boot_welcome *welcome) {
  const struct banyan_env *env = seeker->env;
  const struct bny_boot_settings *settings = &env->settings;
  if (!bny_boot_welcome_check(settings->key, challenge, hello, welcome)) {
    seeker->nrejections++;
    note(seeker, "it does not know the secret of this rank, or another job has this port (see BANYAN_PORT)", 0);
    return false;
  }
  uint32_t verdict = le32toh(welcome->verdict);
  welcome->reason[sizeof welcome->reason - 1] = '\0';
  if (verdict == BNY_BOOT_ACCEPTED) return true;
  if (verdict == BNY_BOOT_OTHER_JOB) {
    seeker->met_other_job = seeker->knows_other_job = true;
    note(seeker, welcome->reason, 0);
    return false;
  }
  seeker->final = bny_fail(BANYAN_ERR_BOOTSTRAP, "banyan_env_create: rank 0 at %s rejected rank %d of %d: %s",
                           env->address, settings->rank, settings->nranks, welcome->reason);
  return false;
}

/* Without a secret: returns whether rank 0 is a process of this user. */
static bool trusts(struct seeker *seeker, int fd) {
  const struct bny_boot_settings *settings = &seeker->env->settings;
  struct bny_boot_user user = {.process = 0};
  char reason[sizeof seeker->reason];
  if (settings->has_secret || bny_boot_socket_is_own(fd, &user)) return true;
  snprintf(reason, sizeof reason,
           "it is a process of user %ld, and this rank of user %ld: without a secret all ranks must be of one user "
           "(set BANYAN_SECRET or BANYAN_SECRET_FILE to the same secret on all ranks)",
           (long)user.uid, (long)geteuid());
  seeker->nrejections++;
  note(seeker, reason, 0);
  return false;
}

/* Authenticates both sides of this connection to each other. Returns whether this rank has joined. */
static bool authenticate(struct seeker *seeker, int fd) {
  struct banyan_env *env = seeker->env;
  const struct bny_boot_settings *settings = &env->settings;
  struct bny_boot_challenge challenge;
  struct bny_boot_welcome welcome;
  int error = bny_boot_socket_receive(fd, challenge.magic, sizeof challenge.magic, attempt_limit(seeker));
  bool is_banyan = !error && bny_boot_challenge_check(&challenge);
  if (is_banyan) error = bny_boot_socket_receive(fd, challenge.nonce, sizeof challenge.nonce, attempt_limit(seeker));
  if (error || !is_banyan) {
    note(seeker,
         error ? "connected, but no greeting came (has rank 0 come to banyan_env_create?)"
               : "the program that listens there is not banyan's rank 0",
         error);
    return false;
  }
  struct bny_boot_hello hello = {.version = htole32(BNY_BOOT_VERSION),
                                 .rank = htole32((uint32_t)settings->rank),
                                 .nranks = htole32((uint32_t)settings->nranks),
                                 .left_ms = htole32((uint32_t)bny_deadline_left_ms(seeker->deadline_ns)),
                                 .attempt = htole32(settings->attempt),
                                 .began_s = htole64(env->began_s)};
  memcpy(hello.job, settings->job, sizeof hello.job);
  bny_boot_process_text(hello.process);
  bny_boot_hello_sign(settings->key, &challenge, &hello);
  if (bny_boot_check_process(env->process)) return false;
  if (send(fd, &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof hello) {
    note(seeker, "connection lost", errno);
    return false;
  }
  /* This waits until the deadline: this rank may have been accepted, and others then rely on this connection. */
  error = bny_boot_socket_receive(fd, &welcome, sizeof welcome, seeker->deadline_ns);
  if (error) {
    seeker->nrejections += error != ETIMEDOUT;
    if (error == ETIMEDOUT && seeker->reason[0]) return false; /* as in note(): the earlier reason is more useful */
    note(seeker,
         error == ETIMEDOUT ? "no answer to the authentication of this rank"
                            : "it hung up when this rank authenticated itself: is the secret (BANYAN_SECRET) the same "
                              "on all ranks, and may rank 0 open enough descriptors (ulimit -n)?",
         0);
    return false;
  }
  if (!read_welcome(seeker, &challenge, &hello, &welcome)) return false;
  *env->links = (struct bny_boot_link){.fd = fd, .maker = env->process};
  bny_boot_session_derive(settings->key, &challenge, &hello, env->links->session);
  return true;
}

/* Returns whether this rank has joined. */
static bool try_address(struct seeker *seeker, const struct sockaddr *address, socklen_t bytes) {
  struct banyan_env *env = seeker->env;
  seeker->met_other_job = false;
  seeker->final = bny_boot_check_process(env->process); /* the check or a signal handler may have forked */
  if (seeker->final) return false;
  bny_boot_address_text(address, bytes, env->address);
  int fd = bny_boot_socket_connect(&env->settings, address, bytes, attempt_limit(seeker));
  seeker->is_unreached = fd < 0;
  seeker->is_rejected = fd < 0 && errno == ECONNREFUSED;
  if (fd < 0) note(seeker, "cannot connect", errno);
  if (fd < 0 || (trusts(seeker, fd) && authenticate(seeker, fd))) return fd >= 0;
  bny_boot_socket_close(fd, env->process);
  return false;
}

/* Looks up rank 0's addresses. Its name may be unknown until it runs, and may change to another node later. */
static void look_up(struct seeker *seeker) {
  struct addrinfo *list;
  if (seeker->list && bny_deadline_now() < seeker->looked_up_ns + look_up_interval_ns) return;
  banyan_status status = bny_boot_address_resolve(&seeker->env->settings, seeker->deadline_ns, &list);
  seeker->looked_up_ns = bny_deadline_now();
  if (!status) {
    if (seeker->list) freeaddrinfo(seeker->list);
    seeker->list = list;
  } else if (status != BANYAN_ERR_BOOTSTRAP) {
    seeker->final = status;
  }
}

/* Tries every address of rank 0 once. On its own node its name may resolve to a loopback address, such as 127.0.1.1,
 * while it listens at the chosen interface, which is then tried too. */
static bool try_rank_0(struct seeker *seeker) {
  const struct bny_boot_settings *settings = &seeker->env->settings;
  struct sockaddr_storage own;
  look_up(seeker);
  for (const struct addrinfo *each = seeker->list; each && !seeker->final; each = each->ai_next) {
    if (try_address(seeker, each->ai_addr, each->ai_addrlen)) return true;
    if (seeker->final || settings->is_one_node || !settings->interface[0] ||
        !bny_boot_address_is_loopback(each->ai_addr))
      continue;
    if (bny_boot_interface_find(settings, each->ai_family, NULL, &own) != BANYAN_OK) continue;
    bny_boot_address_set_port(&own, settings->port);
    if (try_address(seeker, (struct sockaddr *)&own, bny_boot_address_bytes(&own))) return true;
  }
  return false;
}

/* Pauses twice as long each time, with a random part, so that many ranks do not retry at once. */
static void pause_before_retry(const struct seeker *seeker, int *pause_ms) {
  int wait_ms = *pause_ms / 2 + (int)randombytes_uniform((uint32_t)(*pause_ms / 2 + 1));
  int left_ms = bny_deadline_poll_ms(seeker->deadline_ns);
  poll(NULL, 0, wait_ms < left_ms ? wait_ms : left_ms);
  *pause_ms = *pause_ms * 2 < PAUSE_LAST_MS ? *pause_ms * 2 : PAUSE_LAST_MS;
}

static banyan_status fail_late(const struct seeker *seeker, int64_t begun_ns) {
  const struct bny_boot_settings *settings = &seeker->env->settings;
  double waited_s = (double)(bny_deadline_now() - begun_ns) * 1e-9;
  char origin[512] = "", own[160];
  size_t length = 0;
  if (!seeker->list)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "%s (for %.3g s on rank %d of %d)", banyan_last_error(), waited_s,
                    settings->rank, settings->nranks);
  if (seeker->is_rejected && !seeker->knows_other_job)
    bny_append(origin, sizeof origin, &length, "; if rank 0 has ended with an error, its output says why, and %s",
               settings->has_secret ? "it needs the secret of this rank (BANYAN_SECRET)"
                                    : "if it has a secret (BANYAN_SECRET), this rank needs the same");
  if (!seeker->knows_other_job) bny_boot_append_loopback(origin, sizeof origin, &length, "; that is ", seeker->env);
  if (seeker->is_rejected && !bny_boot_is_at_loopback(seeker->env) && !settings->interface[0])
    bny_append(origin, sizeof origin, &length,
               " (if that node calls itself by a loopback address, set BANYAN_INTERFACE to a network of all nodes on "
               "all ranks)");
  if (seeker->is_unreached && !bny_interface_has_network_of(seeker->list->ai_addr, own, sizeof own))
    bny_append(origin, sizeof origin, &length, "; this node has no network in common with it, but %s", own);
  bny_boot_append_origin(origin, sizeof origin, &length, settings);
  return bny_fail(BANYAN_ERR_TIMEOUT,
                  "banyan_env_create: rank %d of %d could not join rank 0 at %s within %.3g s: %s%s", settings->rank,
                  settings->nranks, seeker->env->address, waited_s, seeker->reason, origin);
}

static banyan_status seek(struct seeker *seeker) {
  const struct bny_boot_settings *settings = &seeker->env->settings;
  int64_t begun_ns = bny_deadline_now();
  int pause_ms = PAUSE_FIRST_MS;
  while (!try_rank_0(seeker)) {
    if (seeker->final) return seeker->final;
    if (seeker->nrejections >= REJECTIONS_AT_MOST)
      return bny_fail(BANYAN_ERR_BOOTSTRAP,
                      "banyan_env_create: rank %d of %d could not authenticate itself to rank 0 at %s: %s",
                      settings->rank, settings->nranks, seeker->env->address, seeker->reason);
    if (bny_deadline_is_late(seeker->deadline_ns)) return fail_late(seeker, begun_ns);
    pause_before_retry(seeker, &pause_ms);
  }
  return seeker->final;
}

/* Waits until all ranks have joined. *again: rank 0 has made way for another one. */
static banyan_status wait_for_all(struct banyan_env *env, int64_t deadline_ns, bool *again) {
  struct bny_boot_link *link = env->links;
  for (;;) {
    enum bny_boot_progress progress = bny_boot_link_receive_note(link);
    uint32_t kind = progress == BNY_BOOT_DONE ? link->in.kind : 0;
    *again = kind == BNY_BOOT_AGAIN;
    if (*again) bny_boot_link_close(link);
    if (*again || kind == BNY_BOOT_READY) return BANYAN_OK;
    if (kind == BNY_BOOT_FAILURE) return bny_boot_fail_received(link);
    if (progress != BNY_BOOT_MORE || bny_deadline_is_late(deadline_ns))
      return bny_boot_fail_peer(env, link, progress, doing);
    struct pollfd event = {.fd = link->fd, .events = POLLIN};
    poll(&event, 1, bny_deadline_poll_ms(deadline_ns));
  }
}

banyan_status bny_boot_connect(struct banyan_env *env, int64_t deadline_ns) {
  struct seeker seeker = {.env = env, .deadline_ns = deadline_ns};
  banyan_status status = BANYAN_OK;
  for (bool again = true; again && !status;) {
    status = seek(&seeker);
    if (!status && env->failure) status = bny_fail(env->failure, "%s", env->failure_text); /* joined to report it */
    if (!status) status = wait_for_all(env, deadline_ns, &again);
  }
  if (seeker.list) freeaddrinfo(seeker.list);
  return status ? bny_boot_fail_all(env, status) : BANYAN_OK;
}

enum bny_boot_holder bny_boot_find_holder(struct banyan_env *env, const struct addrinfo *list, int64_t deadline_ns) {
  static const int64_t patience_ns = 1000000000;
  struct seeker seeker = {.env = env, .deadline_ns = bny_deadline_now() + patience_ns};
  enum bny_boot_holder holder = BNY_BOOT_UNKNOWN;
  if (seeker.deadline_ns > deadline_ns) seeker.deadline_ns = deadline_ns;
  for (const struct addrinfo *each = list; each && holder == BNY_BOOT_UNKNOWN; each = each->ai_next) {
    try_address(&seeker, each->ai_addr, each->ai_addrlen);
    if (seeker.final) holder = BNY_BOOT_THIS_JOB;
    if (seeker.met_other_job) holder = BNY_BOOT_ANOTHER_JOB;
  }
  bny_boot_link_close(env->links); /* rank 0 joins nobody, for any answer of the peer */
  if (holder == BNY_BOOT_UNKNOWN) return holder;
  bny_fail(BANYAN_ERR_BOOTSTRAP, "%s%s (%s)",
           holder == BNY_BOOT_THIS_JOB ? "" : "banyan_env_create: rank 0 cannot listen on its port: ",
           holder == BNY_BOOT_THIS_JOB ? banyan_last_error() : seeker.reason,
           "give each job a port of its own by MASTER_PORT or BANYAN_PORT, or another BANYAN_JOB");
  return holder;
}
