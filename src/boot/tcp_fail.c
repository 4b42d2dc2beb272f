/* SPDX-License-Identifier: Apache-2.0
 * Reports failures among the ranks of a TCP bootstrap. */
#include "boot/tcp.h"

#ifdef HAVE_SODIUM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/exchange.h"
#include "base/deadline.h"

/* The time limit for sending the reason of a failure, to the children and then to the parent. */
static const int64_t farewell_ns = 1000000000;

void bny_boot_failure_set(struct banyan_env *env, banyan_status status) {
  env->failure = status;
  snprintf(env->failure_text, sizeof env->failure_text, "%s", banyan_last_error());
}

int64_t bny_boot_deadline_of_peer(uint32_t left_ms) {
  uint32_t margin_ms = left_ms / 10 < 500 ? left_ms / 10 : 500;
  return bny_deadline_now() + (int64_t)(left_ms - margin_ms) * 1000000;
}

/* Sends as much as possible over the links. Returns how many still wait, with their polls filled in. */
static nfds_t send_round(struct banyan_env *env, bool late, struct pollfd *polls, struct bny_boot_link **lost) {
  nfds_t nwaiting = 0;
  for (int32_t i = 0; i < env->nchildren; i++) {
    struct bny_boot_link *link = &env->children[i];
    if (link->fd < 0) continue;
    enum bny_boot_progress progress = bny_boot_link_send(link); /* returns at once if nothing is left */
    if (progress == BNY_BOOT_MORE && !late) {
      polls[nwaiting++] = (struct pollfd){.fd = link->fd, .events = POLLOUT};
    } else if (progress != BNY_BOOT_DONE) {
      if (!*lost) *lost = link;
      bny_boot_link_close(link);
    }
  }
  return nwaiting;
}

void bny_boot_flush_children(struct banyan_env *env, int64_t deadline_ns, struct bny_boot_link **lost) {
  struct pollfd few[64], *polls = few;
  if (env->nchildren > 64) polls = calloc((size_t)env->nchildren, sizeof *polls);
  *lost = NULL;
  nfds_t nwaiting = 1;
  while (nwaiting > 0) {
    bool late = !polls || bny_deadline_is_late(deadline_ns); /* without memory there is only one round */
    nwaiting = send_round(env, late, polls, lost);
    if (nwaiting > 0) poll(polls, nwaiting, bny_deadline_poll_ms(deadline_ns));
  }
  if (polls != few) free(polls);
}

static void flush_parent(struct bny_boot_link *parent, int64_t deadline_ns) {
  while (parent->fd >= 0 && bny_boot_link_send(parent) == BNY_BOOT_MORE && !bny_deadline_is_late(deadline_ns)) {
    struct pollfd event = {.fd = parent->fd, .events = POLLOUT};
    poll(&event, 1, bny_deadline_poll_ms(deadline_ns));
  }
}

/* Replaces the unsent data of a link by the failure, unless part of a frame has been sent, which no other frame can
 * follow. */
static bool post_failure(struct bny_boot_link *link, banyan_status status, const char *text) {
  const struct bny_boot_says says = {.kind = BNY_BOOT_FAILURE, .status = status};
  if (link->out_done > 0) return false;
  if (link->out_bytes > 0) link->nsent--; /* prepared but not begun */
  link->out_bytes = 0;
  return bny_boot_link_post(link, &says, text, strlen(text));
}

banyan_status bny_boot_fail_all(struct banyan_env *env, banyan_status status) {
  const char *text = banyan_last_error();
  struct bny_boot_link *parent = &env->parent, *lost;
  for (int32_t i = 0; i < env->nchildren; i++) {
    struct bny_boot_link *child = &env->children[i];
    if (child->fd >= 0 && !post_failure(child, status, text)) bny_boot_link_close(child);
  }
  /* one call usually sends all of it */
  if (parent->fd >= 0 && post_failure(parent, status, text)) bny_boot_link_send(parent);
  bny_boot_flush_children(env, bny_deadline_now() + farewell_ns, &lost);
  flush_parent(parent, bny_deadline_now() + farewell_ns);
  for (int32_t i = 0; i < env->nchildren; i++) bny_boot_link_close(&env->children[i]);
  bny_boot_link_close(parent);
  return status;
}

banyan_status bny_boot_fail_peer(const struct banyan_env *env, const struct bny_boot_link *link,
                                 enum bny_boot_progress progress, const char *doing) {
  const struct bny_boot_settings *settings = &env->settings;
  char at[BNY_BOOT_ADDRESS_BYTES + 8] = "";
  if (link == &env->parent) {
    strcpy(at, " at ");
    strcat(at, env->address);
  }
  if (progress == BNY_BOOT_MORE)
    return bny_fail(BANYAN_ERR_TIMEOUT, "%s: rank %d%s did not answer rank %d of %d before the deadline", doing,
                    link->rank, at, settings->rank, settings->nranks);
  if (progress == BNY_BOOT_FORGED)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "%s: data from rank %d%s was altered in transit", doing, link->rank, at);
  if (progress == BNY_BOOT_DONE)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "%s: rank %d%s sent data that is not of this protocol", doing, link->rank,
                    at);
  if (link->error)
    return bny_fail_errno(BANYAN_ERR_PEER, link->error, "%s: the connection of rank %d of %d%s was lost", doing,
                          link->rank, settings->nranks, at);
  return bny_fail(BANYAN_ERR_PEER, "%s: rank %d of %d%s left (it ended, or its communicator could not be made)", doing,
                  link->rank, settings->nranks, at);
}

banyan_status bny_boot_fail_received(const struct bny_boot_link *link) {
  uint32_t reported = link->in.status;
  bool known = reported == BANYAN_ERR_TIMEOUT || reported == BANYAN_ERR_PEER || reported == BANYAN_ERR_SYSTEM ||
               reported == BANYAN_ERR_MEMORY;
  return bny_fail(known ? (banyan_status)reported : BANYAN_ERR_BOOTSTRAP, "%s", link->note);
}
#endif
