/* SPDX-License-Identifier: Apache-2.0
 * Waits until all ranks have joined. Each rank accepts others below it, and forwards requests to rank 0 and its answers
 * back. Rank 0 gives up a little before any other rank would, so that all ranks get its reason and not just silence. */
#include "boot/tcp_pending.h"

#ifdef HAVE_SODIUM
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot/exchange.h"
#include "base/deadline.h"

static const char doing[] = "banyan_env_create";

/* ---- frames of peers --------------------------------------------------------------------------------------------- */

/* Handles a note of the parent. */
static banyan_status obey(struct bny_boot_pending *pending) {
  const struct bny_boot_link *parent = &pending->env->parent;
  if (parent->in.kind == BNY_BOOT_READY) {
    pending->ready = true;
    return BANYAN_OK;
  }
  if (parent->in.kind == BNY_BOOT_FAILURE) return bny_boot_fail_received(parent);
  if (parent->in.kind != BNY_BOOT_VERDICT || parent->in.bytes != sizeof(struct bny_boot_answer))
    return bny_boot_fail_peer(pending->env, parent, BNY_BOOT_DONE, doing);
  struct bny_boot_answer received;
  memcpy(&received, parent->note, sizeof received);
  received.reason[BNY_BOOT_REASON_BYTES - 1] = '\0';
  uint64_t ticket = le64toh(received.ticket);
  return bny_boot_pending_answer(pending, bny_boot_pending_recall(pending, ticket), ticket, received.reason);
}

/* Rank 0 keeps the failure of a rank for a while, so that ranks that join later get it, too. */
static banyan_status keep_failure(struct bny_boot_pending *pending, struct bny_boot_link *link) {
  struct banyan_env *env = pending->env;
  int64_t limit_ns = bny_deadline_now() + BNY_BOOT_REPORT_NS;
  banyan_status status = bny_boot_fail_received(link);
  if (env->settings.rank > 0) return status;
  if (!env->failure) bny_boot_failure_set(env, status);
  if (limit_ns < pending->deadline_ns) pending->deadline_ns = limit_ns;
  bny_boot_link_close(link);
  return BANYAN_OK;
}

static banyan_status serve(struct bny_boot_pending *pending, int32_t child) {
  struct bny_boot_link *link = &pending->env->children[child];
  if (link->in.kind == BNY_BOOT_FAILURE) return keep_failure(pending, link);
  if (link->in.kind != BNY_BOOT_JOIN || link->in.bytes != sizeof(struct bny_boot_join))
    return bny_boot_fail_peer(pending->env, link, BNY_BOOT_DONE, doing);
  struct bny_boot_join join;
  memcpy(&join, link->note, sizeof join);
  join = (struct bny_boot_join){.ticket = le64toh(join.ticket),
                                .rank = le32toh(join.rank),
                                .parent = le32toh(join.parent),
                                .left_ms = le32toh(join.left_ms)};
  return bny_boot_pending_apply(pending, &join, child);
}

/* Receives all available notes of a link. `child` is -1 for the parent. */
static banyan_status hear_link(struct bny_boot_pending *pending, int32_t child) {
  struct banyan_env *env = pending->env;
  for (;;) {
    struct bny_boot_link *link = child < 0 ? &env->parent : &env->children[child]; /* children may move */
    enum bny_boot_progress progress = bny_boot_link_receive_note(link);
    if (progress == BNY_BOOT_MORE) return BANYAN_OK;
    if (progress == BNY_BOOT_LOST && child >= 0 && !link->error) return bny_boot_pending_fail_left(pending, link->rank);
    if (progress != BNY_BOOT_DONE) return bny_boot_fail_peer(env, link, progress, doing);
    banyan_status status = child < 0 ? obey(pending) : serve(pending, child);
    bool is_closed = child >= 0 && env->children[child].fd < 0;
    if (status || pending->ready || is_closed) return status;
  }
}

static banyan_status fail_missing(const struct bny_boot_pending *pending) {
  char text[BNY_ERROR_TEXT_BYTES];
  size_t length = 0;
  const struct banyan_env *env = pending->env;
  if (env->settings.rank != 0) return bny_boot_fail_peer(env, &env->parent, BNY_BOOT_MORE, doing);
  bny_boot_append_ranks(text, sizeof text, &length, pending->joined, env->settings.nranks, false);
  bny_append(text, sizeof text, &length, " of %d did not connect within %.3g s to %s", env->settings.nranks,
             (double)(bny_deadline_now() - pending->begun_ns) * 1e-9, env->address);
  if (!pending->rejection[0]) bny_boot_append_loopback(text, sizeof text, &length, ", ", env);
  bny_boot_append_origin(text, sizeof text, &length, &env->settings);
  if (pending->rejection[0]) bny_append(text, sizeof text, &length, "; rejected: %s", pending->rejection);
  if (pending->nforged > 0)
    bny_append(text, sizeof text, &length,
               "; %d connection%s failed to authenticate, the last from %s: is the secret the same on all ranks?",
               pending->nforged, pending->nforged == 1 ? "" : "s", pending->forged_address);
  return bny_fail(BANYAN_ERR_TIMEOUT, "banyan_env_create: %s", text);
}

static short events_of(const struct bny_boot_link *link) {
  return (short)(POLLIN | (bny_boot_link_waiting(link) > 0 ? POLLOUT : 0));
}

/* Fills pending->polls (the listeners, the parent, children, pending connections) and waits until an event occurs or a
 * limit passes. */
static banyan_status wait_for_news(struct bny_boot_pending *pending) {
  struct banyan_env *env = pending->env;
  size_t needed = (size_t)BNY_BOOT_LISTENERS + 1 + (size_t)env->nchildren + (size_t)pending->ncandidates, n = 0;
  if (needed > pending->polls_capacity) {
    struct pollfd *more = realloc(pending->polls, needed * 2 * sizeof *more);
    if (!more) return bny_boot_pending_fail_memory(pending);
    pending->polls = more;
    pending->polls_capacity = needed * 2;
  }
  int64_t limit_ns = pending->deadline_ns, when_ns;
  bool room = bny_boot_pending_has_room(pending, &when_ns);
  if (!room && when_ns < limit_ns) limit_ns = when_ns;
  if (pending->settled_ns && pending->settled_ns < limit_ns) limit_ns = pending->settled_ns;
  for (int i = 0; i < BNY_BOOT_LISTENERS; i++)
    pending->polls[n++] =
        (struct pollfd){.fd = room || i == BNY_BOOT_ISSUES_KEYS ? env->listen_fds[i] : -1, .events = POLLIN};
  pending->polls[n++] = (struct pollfd){.fd = env->parent.fd, .events = events_of(&env->parent)};
  for (int32_t i = 0; i < env->nchildren; i++)
    pending->polls[n++] = (struct pollfd){.fd = env->children[i].fd, .events = events_of(&env->children[i])};
  for (int i = 0; i < pending->ncandidates; i++) {
    const struct bny_boot_candidate *candidate = &pending->candidates[i];
    pending->polls[n++] = (struct pollfd){.fd = candidate->fd, .events = POLLIN};
    int64_t drop_ns = candidate->greeted_ns + BNY_BOOT_UNAUTHENTICATED_NS;
    if (candidate->state == BNY_BOOT_GREETED && drop_ns < limit_ns) limit_ns = drop_ns;
  }
  /* poll() writes nothing when it fails (EINTR); a timeout leaves all revents 0. */
  if (poll(pending->polls, (nfds_t)n, bny_deadline_poll_ms(limit_ns)) < 0)
    for (size_t i = 0; i < n; i++) pending->polls[i].revents = 0;
  return BANYAN_OK;
}

static banyan_status read_candidates(struct bny_boot_pending *pending, const struct pollfd *polls) {
  banyan_status status = BANYAN_OK;
  int64_t now_ns = bny_deadline_now();
  for (int i = 0; i < pending->ncandidates && !status; i++) {
    struct bny_boot_candidate *candidate = &pending->candidates[i];
    if (polls[i].revents) status = bny_boot_pending_read(pending, candidate);
    if (candidate->state == BNY_BOOT_GREETED && now_ns >= candidate->greeted_ns + BNY_BOOT_UNAUTHENTICATED_NS)
      candidate->state = BNY_BOOT_FINISHED;
  }
  if (!status) status = bny_boot_pending_reconsider(pending);
  bny_boot_pending_drop_finished(pending);
  return status;
}

/* Receives from every link and socket with an event. */
static banyan_status round_of_news(struct bny_boot_pending *pending) {
  struct banyan_env *env = pending->env;
  int32_t nchildren = env->nchildren;
  banyan_status status = wait_for_news(pending);
  const struct pollfd *polls = pending->polls + BNY_BOOT_LISTENERS;
  for (int32_t i = -1; i < nchildren && !status && !pending->ready; i++)
    if (polls[1 + i].revents & ~POLLOUT) status = hear_link(pending, i);
  if (status || pending->ready) return status;
  status = read_candidates(pending, polls + 1 + nchildren);
  for (int i = 0; i < BNY_BOOT_LISTENERS && !status; i++)
    if (pending->polls[i].revents) status = bny_boot_pending_accept(pending, i);
  /* A lost link is noticed when it is read. */
  if (env->parent.fd >= 0) bny_boot_link_send(&env->parent);
  for (int32_t i = 0; i < env->nchildren; i++) bny_boot_link_send(&env->children[i]);
  return status;
}

static banyan_status announce(struct bny_boot_pending *pending) {
  const struct bny_boot_says says = {.kind = BNY_BOOT_READY};
  struct banyan_env *env = pending->env;
  struct bny_boot_link *lost;
  for (int32_t i = 0; i < env->nchildren; i++)
    if (!bny_boot_link_post(&env->children[i], &says, "", 0)) return bny_boot_pending_fail_memory(pending);
  bny_boot_flush_children(env, pending->deadline_ns, &lost);
  if (!lost) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_PEER, "banyan_env_create: rank %d of %d left when all had connected to %s", lost->rank,
                  env->settings.nranks, env->address);
}

static bool has_met(const struct bny_boot_pending *pending) {
  int64_t now_ns = bny_deadline_now();
  if (pending->env->settings.rank > 0) return pending->ready;
  return pending->settled_ns && (now_ns >= pending->settled_ns || now_ns >= pending->deadline_ns);
}

static banyan_status let_all_in(struct bny_boot_pending *pending) {
  struct banyan_env *env = pending->env;
  banyan_status status = BANYAN_OK;
  bool reports = env->failure && env->settings.rank > 0; /* this rank joined to report its failure */
  while (!status && !reports && !has_met(pending))
    status = bny_deadline_is_late(pending->deadline_ns) ? fail_missing(pending) : round_of_news(pending);
  /* The listeners close before any rank learns that all have joined. Otherwise it could take them for those of its next
   * bootstrap. */
  for (int i = 0; i < BNY_BOOT_LISTENERS; i++) {
    if (env->listen_fds[i] >= 0) close(env->listen_fds[i]);
    env->listen_fds[i] = -1;
  }
  if (env->failure) status = bny_fail(env->failure, "%s", env->failure_text);
  if (!status) status = announce(pending);
  return status ? bny_boot_fail_all(env, status) : BANYAN_OK;
}

banyan_status bny_boot_join_all(struct banyan_env *env, int64_t deadline_ns) {
  struct bny_boot_pending pending = {.env = env, .begun_ns = bny_deadline_now(), .deadline_ns = deadline_ns};
  banyan_status status = BANYAN_OK;
  pending.candidates = calloc(BNY_BOOT_CANDIDATES, sizeof *pending.candidates);
  pending.joined = calloc((size_t)env->settings.nranks, sizeof *pending.joined);
  if (!pending.candidates || !pending.joined) {
    status = bny_boot_fail_all(env, bny_boot_pending_fail_memory(&pending));
  } else {
    pending.joined[0] = true;
    pending.njoined = 1;
    status = let_all_in(&pending);
  }
  for (int i = 0; i < pending.ncandidates; i++) pending.candidates[i].state = BNY_BOOT_FINISHED;
  bny_boot_pending_drop_finished(&pending);
  free(pending.polls);
  free(pending.tickets);
  free(pending.joined);
  free(pending.candidates);
  return status;
}

#endif
