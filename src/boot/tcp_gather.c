/* SPDX-License-Identifier: Apache-2.0
 * Runs the all-gather of the TCP bootstrap, and reports failures. Every rank sends its block to rank 0, which sends the
 * result to all. Rank 0 thus knows which ranks are missing. It gives up a little before any other rank would, so that
 * all ranks get its reason and not just silence. */
#include "boot/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/exchange.h"
#include "base/deadline.h"
#include "base/log.h"

static const char doing[] = "bootstrap";

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* The time limit for sending the reason of a failure. */
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
  for (int32_t i = 0; i < env->nlinks; i++) {
    struct bny_boot_link *link = &env->links[i];
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

void bny_boot_flush(struct banyan_env *env, int64_t deadline_ns, struct bny_boot_link **lost) {
  struct pollfd few[64], *polls = few;
  if (env->nlinks > 64) polls = calloc((size_t)env->nlinks, sizeof *polls);
  *lost = NULL;
  nfds_t nwaiting = 1;
  while (nwaiting > 0) {
    bool late = !polls || bny_deadline_is_late(deadline_ns); /* without memory there is only one round */
    nwaiting = send_round(env, late, polls, lost);
    if (nwaiting > 0) poll(polls, nwaiting, bny_deadline_poll_ms(deadline_ns));
  }
  if (polls != few) free(polls);
}

/* Replaces the unsent data of a link by the failure, unless part of a frame has been sent, which no other frame can
 * follow. */
static bool post_failure(struct bny_boot_link *link, banyan_status status, const char *text) {
  const struct bny_boot_says says = {.kind = BNY_BOOT_FAILURE, .status = status};
  if (link->out_done > 0) return false;
  if (link->out_bytes > 0) link->nsent--; /* prepared but not begun */
  link->out_bytes = 0;
  return bny_boot_link_post(link, &says, text);
}

banyan_status bny_boot_fail_all(struct banyan_env *env, banyan_status status) {
  struct bny_boot_link *lost;
  for (int32_t i = 0; i < env->nlinks; i++)
    if (env->links[i].fd >= 0 && !post_failure(&env->links[i], status, banyan_last_error()))
      bny_boot_link_close(&env->links[i]);
  bny_boot_flush(env, bny_deadline_now() + farewell_ns, &lost);
  for (int32_t i = 0; i < env->nlinks; i++) bny_boot_link_close(&env->links[i]);
  return status;
}

banyan_status bny_boot_fail_peer(const struct banyan_env *env, const struct bny_boot_link *link,
                                 enum bny_boot_progress progress, const char *operation) {
  const struct bny_boot_settings *settings = &env->settings;
  char at[BNY_BOOT_ADDRESS_BYTES + 8] = "";
  if (link->rank == 0) {
    strcpy(at, " at ");
    strcat(at, env->address);
  }
  if (progress == BNY_BOOT_MORE)
    return bny_fail(BANYAN_ERR_TIMEOUT, "%s: rank %d%s did not answer rank %d of %d before the deadline", operation,
                    link->rank, at, settings->rank, settings->nranks);
  if (progress == BNY_BOOT_FORGED)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "%s: data from rank %d%s was altered in transit", operation, link->rank, at);
  if (progress == BNY_BOOT_DONE)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "%s: rank %d%s sent data that is not of this protocol", operation, link->rank,
                    at);
  if (link->error)
    return bny_fail_errno(BANYAN_ERR_PEER, link->error, "%s: the connection of rank %d of %d%s was lost", operation,
                          link->rank, settings->nranks, at);
  return bny_fail(BANYAN_ERR_PEER, "%s: rank %d of %d%s left (it ended, or its communicator could not be made)",
                  operation, link->rank, settings->nranks, at);
}

banyan_status bny_boot_fail_received(const struct bny_boot_link *link) {
  uint32_t reported = link->in.status;
  bool known = reported == BANYAN_ERR_TIMEOUT || reported == BANYAN_ERR_PEER || reported == BANYAN_ERR_SYSTEM ||
               reported == BANYAN_ERR_MEMORY;
  return bny_fail(known ? (banyan_status)reported : BANYAN_ERR_BOOTSTRAP, "%s", link->note);
}

/* ---- the all-gather ---------------------------------------------------------------------------------------------- */

struct gathering {
  struct banyan_env *env;
  char *all;
  size_t bytes;
  int64_t begun_ns;
  int64_t deadline_ns;
  bool *arrived; /* rank 0: [nranks], whose blocks are there; other ranks: one, of the result */
  int32_t nmissing;
  struct pollfd *polls; /* [nlinks] */
};

static bool is_rank_0(const struct gathering *gathering) { return gathering->env->settings.rank == 0; }

static banyan_status fail_missing(const struct gathering *gathering) {
  const struct banyan_env *env = gathering->env;
  char text[BNY_ERROR_TEXT_BYTES];
  size_t length = 0;
  if (!is_rank_0(gathering)) return bny_boot_fail_peer(env, env->links, BNY_BOOT_MORE, doing);
  bny_boot_append_ranks(text, sizeof text, &length, gathering->arrived, env->settings.nranks, false);
  return bny_fail(BANYAN_ERR_TIMEOUT, "bootstrap: %s of %d did not take part in an allgather within %.3g s", text,
                  env->settings.nranks, (double)(bny_deadline_now() - gathering->begun_ns) * 1e-9);
}

static banyan_status check_header(struct gathering *gathering, int32_t from) {
  const struct banyan_env *env = gathering->env;
  const struct bny_boot_link *link = &env->links[from];
  const struct bny_boot_frame *frame = &link->in;
  uint64_t nblocks = is_rank_0(gathering) ? 1 : (uint64_t)env->settings.nranks;
  if (frame->kind != BNY_BOOT_DATA || gathering->arrived[from])
    return bny_boot_fail_peer(env, link, BNY_BOOT_DONE, doing);
  if (frame->bytes != gathering->bytes * nblocks && is_rank_0(gathering))
    return bny_fail(BANYAN_ERR_BOOTSTRAP,
                    "bootstrap: rank %d gathers %llu bytes where rank 0 gathers %zu: the ranks are out of step",
                    link->rank, (unsigned long long)frame->bytes, gathering->bytes);
  if (frame->bytes != gathering->bytes * nblocks)
    return bny_fail(BANYAN_ERR_BOOTSTRAP,
                    "bootstrap: rank 0 at %s sent %llu bytes where rank %d of %d gathers %zu each", env->address,
                    (unsigned long long)frame->bytes, env->settings.rank, env->settings.nranks, gathering->bytes);
  int64_t patience_ns = bny_boot_deadline_of_peer(frame->left_ms);
  if (is_rank_0(gathering) && patience_ns < gathering->deadline_ns) gathering->deadline_ns = patience_ns;
  return BANYAN_OK;
}

/* Receives from a rank a part of its block, or of the result, or an error. */
static banyan_status receive_from(struct gathering *gathering, int32_t from) {
  struct bny_boot_link *link = &gathering->env->links[from];
  bool fresh = link->in_done < sizeof link->in;
  enum bny_boot_progress progress = bny_boot_link_receive_header(link);
  if (progress == BNY_BOOT_DONE && link->in.kind == BNY_BOOT_FAILURE) {
    progress = bny_boot_link_receive_note(link);
    if (progress == BNY_BOOT_DONE) return bny_boot_fail_received(link);
  } else if (progress == BNY_BOOT_DONE) {
    banyan_status status = fresh ? check_header(gathering, from) : BANYAN_OK;
    if (status) return status;
    progress = bny_boot_link_receive_payload(link, gathering->all + (size_t)from * gathering->bytes);
    if (progress == BNY_BOOT_DONE) {
      gathering->arrived[from] = true;
      gathering->nmissing--;
      return BANYAN_OK;
    }
  }
  return progress == BNY_BOOT_MORE ? BANYAN_OK : bny_boot_fail_peer(gathering->env, link, progress, doing);
}

/* Waits for data of any rank and receives it. Rank 0 reads ranks that have sent their blocks too, because they may
 * report an error. */
static banyan_status exchange_round(struct gathering *gathering) {
  struct banyan_env *env = gathering->env;
  if (bny_deadline_is_late(gathering->deadline_ns)) return fail_missing(gathering);
  for (int32_t i = 0; i < env->nlinks; i++) {
    struct bny_boot_link *link = &env->links[i];
    if (link->fd >= 0) bny_boot_link_send(link); /* a lost link is noticed below */
    gathering->polls[i] =
        (struct pollfd){.fd = link->fd, .events = (short)(POLLIN | (bny_boot_link_is_sending(link) ? POLLOUT : 0))};
  }
  int ready = poll(gathering->polls, (nfds_t)env->nlinks, bny_deadline_poll_ms(gathering->deadline_ns));
  banyan_status status = bny_boot_check_process(env->process);
  if (ready <= 0 || status) return status;
  for (int32_t i = 0; i < env->nlinks && !status; i++)
    if (gathering->polls[i].revents & ~POLLOUT) status = receive_from(gathering, i);
  return status;
}

/* Sends the result to all ranks. A rank that is lost now has sent its block, and all others have the result. Only the
 * next all-gather fails, on all ranks. */
static void send_result(struct gathering *gathering) {
  struct banyan_env *env = gathering->env;
  const struct bny_boot_says says = {.kind = BNY_BOOT_DATA};
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  struct bny_boot_link *lost;
  size_t total = gathering->bytes * (size_t)env->settings.nranks;
  bny_boot_payload_hash(gathering->all, total, hash);
  for (int32_t i = 1; i < env->nlinks; i++) bny_boot_link_prepare(&env->links[i], &says, gathering->all, total, hash);
  bny_boot_flush(env, gathering->deadline_ns, &lost);
  if (lost)
    bny_log(BNY_LOG_WARN, "bootstrap: rank %d of %d has not taken the result of an allgather", lost->rank,
            env->settings.nranks);
}

static banyan_status check_links(const struct banyan_env *env) {
  for (int32_t i = env->settings.rank == 0; i < env->nlinks; i++)
    if (env->links[i].fd < 0)
      return bny_fail(
          BANYAN_ERR_PEER,
          "bootstrap: rank %d of %d left, or stopped, before it took the result of the allgather before this one",
          env->links[i].rank, env->settings.nranks);
  return BANYAN_OK;
}

static banyan_status exchange(struct gathering *gathering, const void *mine) {
  struct banyan_env *env = gathering->env;
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  banyan_status status = check_links(env);
  if (status) return status;
  if (is_rank_0(gathering)) {
    gathering->arrived[0] = true;
    if (gathering->bytes > 0) memmove(gathering->all, mine, gathering->bytes);
  } else {
    const struct bny_boot_says says = {.kind = BNY_BOOT_DATA,
                                       .left_ms = (uint32_t)bny_deadline_left_ms(gathering->deadline_ns)};
    bny_boot_payload_hash(mine, gathering->bytes, hash);
    bny_boot_link_prepare(env->links, &says, mine, gathering->bytes, hash);
  }
  while (!status && gathering->nmissing > 0) status = exchange_round(gathering);
  if (!status && is_rank_0(gathering)) send_result(gathering);
  return status;
}

banyan_status bny_boot_gather(struct banyan_env *env, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  struct gathering gathering = {.env = env,
                                .all = all,
                                .bytes = bytes,
                                .begun_ns = bny_deadline_now(),
                                .deadline_ns = bny_boot_deadline_ns(timeout_ns),
                                .arrived = calloc((size_t)env->nlinks, sizeof *gathering.arrived),
                                .nmissing = env->settings.rank == 0 ? env->nlinks - 1 : 1,
                                .polls = calloc((size_t)env->nlinks, sizeof *gathering.polls)};
  banyan_status status = gathering.arrived && gathering.polls
                             ? exchange(&gathering, mine)
                             : bny_fail(BANYAN_ERR_MEMORY, "bootstrap: rank %d of %d has no memory for an allgather",
                                        env->settings.rank, env->settings.nranks);
  if (status) bny_boot_fail_all(env, status);
  free(gathering.polls);
  free(gathering.arrived);
  return status;
}
