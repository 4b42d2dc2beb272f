/* SPDX-License-Identifier: Apache-2.0
 * The allgather of the TCP bootstrap: every rank sends to rank 0, which sends the whole to every rank. Rank 0 gives up
 * a little before the first rank would, so that everybody hears the reason from it instead of finding a silence. */
#include "boot_tcp.h"

#ifdef HAVE_SODIUM
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "boot_common.h"
#include "clock.h"

/* How long rank 0 tries to hand out the reason of a failure. */
static const int64_t farewell_ns = 1000000000;

int64_t bny_boot_deadline_of_peer(uint32_t left_ms) {
  uint32_t margin_ms = left_ms / 10 < 500 ? left_ms / 10 : 500;
  return bny_clock_ns() + (int64_t)(left_ms - margin_ms) * 1000000;
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

/* Gives up a connection whose frame could not be sent whole. */
static void lose(struct banyan_env *env, int32_t rank, int32_t *lost) {
  if (*lost < 0) *lost = rank;
  bny_boot_link_close(&env->links[rank]);
}

void bny_boot_server_flush(struct banyan_env *env, int64_t deadline_ns, int32_t *lost) {
  bool waiting = true;
  *lost = -1;
  while (waiting) {
    bool late = bny_clock_ns() >= deadline_ns;
    waiting = false;
    env->polls[0] = (struct pollfd){.fd = -1};
    for (int32_t rank = 1; rank < env->nlinks; rank++) {
      struct bny_boot_link *link = &env->links[rank];
      env->polls[rank] = (struct pollfd){.fd = -1};
      if (link->fd < 0) continue;
      enum bny_boot_progress progress = bny_boot_link_send(link); /* at once for one that is done */
      if (progress == BNY_BOOT_LOST || (progress == BNY_BOOT_MORE && late)) lose(env, rank, lost);
      if (progress != BNY_BOOT_MORE || late) continue;
      env->polls[rank] = (struct pollfd){.fd = link->fd, .events = POLLOUT};
      waiting = true;
    }
    if (waiting) poll(env->polls, (nfds_t)env->nlinks, bny_boot_poll_ms(deadline_ns));
  }
}

banyan_status bny_boot_server_fail(struct banyan_env *env, banyan_status status) {
  const char *text = banyan_last_error();
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  int32_t lost;
  bny_boot_payload_hash(text, strlen(text), hash);
  for (int32_t rank = 1; rank < env->nlinks; rank++) {
    struct bny_boot_link *link = &env->links[rank];
    if (link->fd >= 0) bny_boot_link_prepare(link, BNY_BOOT_FAILURE, status, 0, text, strlen(text), hash);
  }
  bny_boot_server_flush(env, bny_clock_ns() + farewell_ns, &lost);
  for (int32_t rank = 1; rank < env->nlinks; rank++) bny_boot_link_close(&env->links[rank]);
  return status;
}

struct gathering {
  struct banyan_env *env;
  char *all;
  size_t bytes;
  int64_t begun_ns;
  int64_t deadline_ns;
  bool *arrived; /* [nranks] */
  int32_t narrived;
};

static banyan_status fail_lost(const struct gathering *gathering, int32_t rank) {
  const struct bny_boot_link *link = &gathering->env->links[rank];
  if (link->error)
    return bny_fail_errno(BANYAN_ERR_PEER, link->error, "bootstrap: the connection of rank %d of %d was lost", rank,
                          gathering->env->nlinks);
  return bny_fail(BANYAN_ERR_PEER, "bootstrap: rank %d of %d left (it ended, or its communicator could not be made)",
                  rank, gathering->env->nlinks);
}

static banyan_status fail_missing(const struct gathering *gathering) {
  char names[256];
  size_t length = 0;
  int32_t nranks = gathering->env->nlinks;
  bny_boot_append_ranks(names, sizeof names, &length, gathering->arrived, nranks, false);
  return bny_fail(BANYAN_ERR_TIMEOUT, "bootstrap: %s of %d did not take part in an allgather within %.3g s", names,
                  nranks, (double)(bny_clock_ns() - gathering->begun_ns) * 1e-9);
}

static banyan_status check_header(struct gathering *gathering, int32_t rank) {
  const struct bny_boot_frame *frame = &gathering->env->links[rank].in;
  if (frame->kind != BNY_BOOT_DATA)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "bootstrap: rank %d sent what is not of this protocol", rank);
  if (frame->bytes != gathering->bytes)
    return bny_fail(BANYAN_ERR_BOOTSTRAP,
                    "bootstrap: rank %d gathers %llu bytes where rank 0 gathers %zu: the ranks are "
                    "out of step",
                    rank, (unsigned long long)frame->bytes, gathering->bytes);
  int64_t patience_ns = bny_boot_deadline_of_peer(frame->left_ms);
  if (patience_ns < gathering->deadline_ns) gathering->deadline_ns = patience_ns;
  return BANYAN_OK;
}

/* Takes what has come from a rank that has not yet arrived. */
static banyan_status hear(struct gathering *gathering, int32_t rank) {
  struct bny_boot_link *link = &gathering->env->links[rank];
  bool fresh = link->in_done < sizeof link->in;
  enum bny_boot_progress progress = bny_boot_link_receive_header(link);
  if (progress == BNY_BOOT_DONE && fresh) {
    banyan_status status = check_header(gathering, rank);
    if (status) return status;
  }
  if (progress == BNY_BOOT_DONE)
    progress = bny_boot_link_receive_payload(link, gathering->all + (size_t)rank * gathering->bytes);
  if (progress == BNY_BOOT_MORE) return BANYAN_OK;
  if (progress == BNY_BOOT_LOST) return fail_lost(gathering, rank);
  if (progress == BNY_BOOT_FORGED)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "bootstrap: what came from rank %d was altered on its way", rank);
  gathering->arrived[rank] = true;
  gathering->narrived++;
  return BANYAN_OK;
}

static banyan_status collect(struct gathering *gathering) {
  struct banyan_env *env = gathering->env;
  while (gathering->narrived < env->nlinks) {
    if (bny_clock_ns() >= gathering->deadline_ns) return fail_missing(gathering);
    env->polls[0] = (struct pollfd){.fd = -1};
    for (int32_t rank = 1; rank < env->nlinks; rank++) /* who has arrived must not leave before the others have */
      env->polls[rank] =
          (struct pollfd){.fd = env->links[rank].fd, .events = gathering->arrived[rank] ? POLLRDHUP : POLLIN};
    if (poll(env->polls, (nfds_t)env->nlinks, bny_boot_poll_ms(gathering->deadline_ns)) <= 0) continue;
    for (int32_t rank = 1; rank < env->nlinks; rank++) {
      if (!env->polls[rank].revents) continue;
      banyan_status status = gathering->arrived[rank] ? fail_lost(gathering, rank) : hear(gathering, rank);
      if (status) return status;
    }
  }
  return BANYAN_OK;
}

static banyan_status hand_out(struct gathering *gathering) {
  struct banyan_env *env = gathering->env;
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  int32_t lost;
  size_t total = gathering->bytes * (size_t)env->nlinks;
  bny_boot_payload_hash(gathering->all, total, hash);
  for (int32_t rank = 1; rank < env->nlinks; rank++)
    bny_boot_link_prepare(&env->links[rank], BNY_BOOT_DATA, BANYAN_OK, 0, gathering->all, total, hash);
  bny_boot_server_flush(env, gathering->deadline_ns, &lost);
  if (lost < 0) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_PEER, "bootstrap: rank %d of %d left while the result of an allgather was sent to it",
                  lost, env->nlinks);
}

banyan_status bny_boot_server_gather(struct banyan_env *env, const void *mine, void *all, size_t bytes,
                                     int64_t timeout_ns) {
  struct gathering gathering = {.env = env,
                                .all = all,
                                .bytes = bytes,
                                .begun_ns = bny_clock_ns(),
                                .deadline_ns = bny_boot_deadline_ns(timeout_ns),
                                .narrived = 1};
  banyan_status status = BANYAN_OK;
  gathering.arrived = calloc((size_t)env->nlinks, sizeof *gathering.arrived);
  if (!gathering.arrived) {
    status = bny_fail(BANYAN_ERR_MEMORY, "bootstrap: no memory for %d ranks", env->nlinks);
  } else {
    gathering.arrived[0] = true;
    if (bytes > 0) memmove(all, mine, bytes);
    status = collect(&gathering);
    if (!status) status = hand_out(&gathering);
  }
  free(gathering.arrived);
  return status ? bny_boot_server_fail(env, status) : BANYAN_OK;
}

/* ---- the others -------------------------------------------------------------------------------------------------- */

static banyan_status fail_client(const struct banyan_env *env, enum bny_boot_progress progress, const char *doing) {
  const struct bny_boot_link *link = &env->links[0];
  const struct bny_boot_settings *settings = &env->settings;
  if (progress == BNY_BOOT_MORE)
    return bny_fail(BANYAN_ERR_TIMEOUT, "%s: rank 0 at %s did not answer rank %d of %d before the deadline", doing,
                    env->address, settings->rank, settings->nranks);
  if (progress == BNY_BOOT_FORGED)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "%s: what came from rank 0 at %s was altered on its way", doing,
                    env->address);
  if (link->error)
    return bny_fail_errno(BANYAN_ERR_PEER, link->error, "%s: the connection to rank 0 of %d at %s was lost", doing,
                          settings->nranks, env->address);
  return bny_fail(BANYAN_ERR_PEER, "%s: rank 0 of %d at %s left (it ended, or its communicator could not be made)",
                  doing, settings->nranks, env->address);
}

/* Receives the payload of a frame whose header has come. */
static banyan_status receive_payload(struct banyan_env *env, void *payload, int64_t deadline_ns, const char *doing) {
  enum bny_boot_progress progress;
  while ((progress = bny_boot_link_receive_payload(&env->links[0], payload)) == BNY_BOOT_MORE)
    if (!bny_boot_socket_wait(env->links[0].fd, POLLIN, deadline_ns)) break;
  return progress == BNY_BOOT_DONE ? BANYAN_OK : fail_client(env, progress, doing);
}

/* Rank 0 says what went wrong; it becomes the error here. */
static banyan_status receive_failure(struct banyan_env *env, int64_t deadline_ns, const char *doing) {
  char text[BNY_ERROR_TEXT_BYTES] = "";
  const struct bny_boot_frame *frame = &env->links[0].in;
  uint32_t reported = frame->status;
  if (frame->bytes >= sizeof text) return fail_client(env, BNY_BOOT_FORGED, doing);
  banyan_status status = receive_payload(env, text, deadline_ns, doing);
  if (status) return status;
  bool known = reported == BANYAN_ERR_TIMEOUT || reported == BANYAN_ERR_PEER || reported == BANYAN_ERR_SYSTEM;
  return bny_fail(known ? (banyan_status)reported : BANYAN_ERR_BOOTSTRAP, "%s", text);
}

banyan_status bny_boot_client_receive(struct banyan_env *env, enum bny_boot_kind kind, int64_t deadline_ns,
                                      const char *doing) {
  struct bny_boot_link *link = &env->links[0];
  enum bny_boot_progress progress;
  while ((progress = bny_boot_link_receive_header(link)) == BNY_BOOT_MORE)
    if (!bny_boot_socket_wait(link->fd, POLLIN, deadline_ns)) break;
  if (progress != BNY_BOOT_DONE) return fail_client(env, progress, doing);
  if (link->in.kind == BNY_BOOT_FAILURE) return receive_failure(env, deadline_ns, doing);
  if (link->in.kind == (uint32_t)kind) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_BOOTSTRAP, "%s: rank 0 at %s sent what is not of this protocol", doing, env->address);
}

banyan_status bny_boot_client_gather(struct banyan_env *env, const void *mine, void *all, size_t bytes,
                                     int64_t timeout_ns) {
  static const char doing[] = "bootstrap";
  struct bny_boot_link *link = &env->links[0];
  int64_t deadline_ns = bny_boot_deadline_ns(timeout_ns);
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  bny_boot_payload_hash(mine, bytes, hash);
  bny_boot_link_prepare(link, BNY_BOOT_DATA, BANYAN_OK, (uint32_t)bny_boot_poll_ms(deadline_ns), mine, bytes, hash);
  /* Rank 0 answers when it has everything. If it speaks before, or hangs up, it is to say what went wrong: listen. */
  enum bny_boot_progress progress;
  while ((progress = bny_boot_link_send(link)) == BNY_BOOT_MORE) {
    struct pollfd wait = {.fd = link->fd, .events = POLLIN | POLLOUT};
    if (bny_clock_ns() >= deadline_ns) return fail_client(env, progress, doing);
    if (poll(&wait, 1, bny_boot_poll_ms(deadline_ns)) > 0 && (wait.revents & ~POLLOUT)) break;
  }
  banyan_status status = bny_boot_client_receive(env, BNY_BOOT_DATA, deadline_ns, doing);
  if (status) return status;
  if (link->in.bytes != (uint64_t)bytes * (uint64_t)env->settings.nranks)
    return bny_fail(BANYAN_ERR_BOOTSTRAP,
                    "bootstrap: rank 0 at %s sent %llu bytes where rank %d of %d gathers %zu each", env->address,
                    (unsigned long long)link->in.bytes, env->settings.rank, env->settings.nranks, bytes);
  return receive_payload(env, all, deadline_ns, doing);
}
#endif
