/* SPDX-License-Identifier: Apache-2.0
 * Runs the all-gather of the TCP bootstrap. Blocks go up the tree one by one through a bounded queue, and the whole
 * result comes down. Rank 0 sees every block arrive, so it knows which ranks are missing. It gives up a little before
 * any other rank would, so that all ranks get its reason and not just silence. */
#include "boot/tcp.h"

#ifdef HAVE_SODIUM
#include <stdlib.h>
#include <string.h>

#include "boot/exchange.h"
#include "base/deadline.h"
#include "base/log.h"

static const char doing[] = "bootstrap";

/* At this number of bytes queued upwards, children are no longer read. */
static const size_t queue_most = 256 << 10;

struct gathering {
  struct banyan_env *env;
  char *all;
  size_t bytes;
  int64_t begun_ns;
  int64_t deadline_ns;
  int32_t *missing;     /* by child: blocks still to come from its subtree */
  int32_t nmissing;     /* sum over all children */
  char *blocks;         /* [nchildren] blocks being received; not on rank 0, which receives each in its place */
  bool *arrived;        /* rank 0: [nranks] */
  struct pollfd *polls; /* the parent, then the children */
};

static bool is_root(const struct gathering *gathering) { return gathering->env->settings.rank == 0; }

/* ---- up ---------------------------------------------------------------------------------------------------------- */

/* Names the missing ranks. Ranks below other missing ranks are only counted. */
static banyan_status fail_missing(const struct gathering *gathering) {
  const struct banyan_env *env = gathering->env;
  int32_t nranks = env->settings.nranks, nbehind = 0;
  char text[BNY_ERROR_TEXT_BYTES];
  size_t length = 0;
  if (!is_root(gathering)) return bny_boot_fail_peer(env, &env->parent, BNY_BOOT_MORE, doing);
  bool *shown = calloc((size_t)nranks, sizeof *shown); /* ranks that are not to be named */
  for (int32_t rank = 0; rank < nranks && shown; rank++) {
    bool behind = !gathering->arrived[rank] && !gathering->arrived[env->parents[rank]];
    shown[rank] = gathering->arrived[rank] || behind;
    nbehind += behind;
  }
  bny_boot_append_ranks(text, sizeof text, &length, shown ? shown : gathering->arrived, nranks, false);
  bny_append(text, sizeof text, &length, " of %d did not take part in an allgather within %.3g s", nranks,
             (double)(bny_deadline_now() - gathering->begun_ns) * 1e-9);
  if (nbehind > 0) bny_append(text, sizeof text, &length, "; %d more can be heard only through them", nbehind);
  free(shown);
  return bny_fail(BANYAN_ERR_TIMEOUT, "bootstrap: %s", text);
}

static banyan_status check_header(struct gathering *gathering, int32_t child) {
  const struct banyan_env *env = gathering->env;
  const struct bny_boot_link *link = &env->children[child];
  const struct bny_boot_frame *frame = &link->in;
  if (frame->kind != BNY_BOOT_DATA || frame->rank >= (uint32_t)env->settings.nranks || gathering->missing[child] == 0 ||
      (is_root(gathering) && gathering->arrived[frame->rank]))
    return bny_boot_fail_peer(env, link, BNY_BOOT_DONE, doing);
  if (frame->bytes != gathering->bytes)
    return bny_fail(BANYAN_ERR_BOOTSTRAP,
                    "bootstrap: rank %u gathers %llu bytes where rank %d gathers %zu: the ranks are out of step",
                    frame->rank, (unsigned long long)frame->bytes, env->settings.rank, gathering->bytes);
  int64_t patience_ns = bny_boot_deadline_of_peer(frame->left_ms);
  if (is_root(gathering) && patience_ns < gathering->deadline_ns) gathering->deadline_ns = patience_ns;
  return BANYAN_OK;
}

static banyan_status post_block(struct gathering *gathering, const struct bny_boot_frame *frame, const void *block) {
  const struct bny_boot_says says = {.kind = BNY_BOOT_DATA, .left_ms = frame->left_ms, .rank = (int32_t)frame->rank};
  if (bny_boot_link_post(&gathering->env->parent, &says, block, gathering->bytes)) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_MEMORY, "bootstrap: rank %d of %d has no memory for %zu bytes",
                  gathering->env->settings.rank, gathering->env->settings.nranks, gathering->bytes);
}

static banyan_status take_block(struct gathering *gathering, int32_t child, const char *block) {
  const struct bny_boot_frame *frame = &gathering->env->children[child].in;
  gathering->missing[child]--;
  gathering->nmissing--;
  if (!is_root(gathering)) return post_block(gathering, frame, block);
  gathering->arrived[frame->rank] = true;
  return BANYAN_OK;
}

/* Receives from a child: a part of a block, its end, or an error. */
static banyan_status hear_child(struct gathering *gathering, int32_t child) {
  struct banyan_env *env = gathering->env;
  struct bny_boot_link *link = &env->children[child];
  bool fresh = link->in_done < sizeof link->in;
  enum bny_boot_progress progress = bny_boot_link_receive_header(link);
  if (progress == BNY_BOOT_DONE && link->in.kind == BNY_BOOT_FAILURE) {
    progress = bny_boot_link_receive_note(link);
    if (progress == BNY_BOOT_DONE) return bny_boot_fail_received(link);
  } else if (progress == BNY_BOOT_DONE && link->in.kind == BNY_BOOT_JOIN) {
    progress = bny_boot_link_receive_note(link); /* from a surplus rank, sent before all were known to have joined */
  } else if (progress == BNY_BOOT_DONE) {
    banyan_status status = fresh ? check_header(gathering, child) : BANYAN_OK;
    if (status) return status;
    char *place = is_root(gathering) ? gathering->all + (size_t)link->in.rank * gathering->bytes
                                     : gathering->blocks + (size_t)child * gathering->bytes;
    progress = bny_boot_link_receive_payload(link, place);
    if (progress == BNY_BOOT_DONE) return take_block(gathering, child, place);
  }
  return progress == BNY_BOOT_MORE || (progress == BNY_BOOT_DONE && link->in.kind == BNY_BOOT_JOIN)
             ? BANYAN_OK
             : bny_boot_fail_peer(env, link, progress, doing);
}

/* ---- down -------------------------------------------------------------------------------------------------------- */

/* Receives from the parent: a part of the result, or an error. */
static banyan_status hear_parent(struct gathering *gathering, bool *complete) {
  struct banyan_env *env = gathering->env;
  struct bny_boot_link *parent = &env->parent;
  enum bny_boot_progress progress = bny_boot_link_receive_header(parent);
  if (progress == BNY_BOOT_DONE && parent->in.kind == BNY_BOOT_FAILURE) {
    progress = bny_boot_link_receive_note(parent);
    if (progress == BNY_BOOT_DONE) return bny_boot_fail_received(parent);
  } else if (progress == BNY_BOOT_DONE) {
    if (parent->in.kind != BNY_BOOT_DATA) return bny_boot_fail_peer(env, parent, BNY_BOOT_DONE, doing);
    if (parent->in.bytes != (uint64_t)gathering->bytes * (uint64_t)env->settings.nranks)
      return bny_fail(BANYAN_ERR_BOOTSTRAP,
                      "bootstrap: rank %d at %s sent %llu bytes where rank %d of %d gathers %zu each", parent->rank,
                      env->address, (unsigned long long)parent->in.bytes, env->settings.rank, env->settings.nranks,
                      gathering->bytes);
    progress = bny_boot_link_receive_payload(parent, gathering->all);
    *complete = progress == BNY_BOOT_DONE;
  }
  return progress == BNY_BOOT_DONE || progress == BNY_BOOT_MORE ? BANYAN_OK
                                                                : bny_boot_fail_peer(env, parent, progress, doing);
}

/* Sends the result to the children. A rank that is lost now has sent all its data, and all others have the result. Only
 * the next all-gather fails, on all ranks. */
static void hand_out(struct gathering *gathering) {
  struct banyan_env *env = gathering->env;
  const struct bny_boot_says says = {.kind = BNY_BOOT_DATA};
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  struct bny_boot_link *lost;
  size_t total = gathering->bytes * (size_t)env->settings.nranks;
  if (env->nchildren == 0) return;
  bny_boot_payload_hash(gathering->all, total, hash);
  for (int32_t i = 0; i < env->nchildren; i++)
    bny_boot_link_prepare(&env->children[i], &says, gathering->all, total, hash);
  bny_boot_flush_children(env, gathering->deadline_ns, &lost);
  if (lost)
    bny_log(BNY_LOG_WARN, "bootstrap: rank %d of %d has not taken the result of an allgather", lost->rank,
            env->settings.nranks);
}

static banyan_status check_children(const struct banyan_env *env) {
  for (int32_t i = 0; i < env->nchildren; i++)
    if (env->children[i].fd < 0)
      return bny_fail(
          BANYAN_ERR_PEER,
          "bootstrap: rank %d of %d left, or stopped, before it took the result of the allgather before this one",
          env->children[i].rank, env->settings.nranks);
  return BANYAN_OK;
}

static nfds_t fill_polls(struct gathering *gathering) {
  const struct banyan_env *env = gathering->env;
  size_t waiting = bny_boot_link_waiting(&env->parent);
  gathering->polls[0] = (struct pollfd){.fd = env->parent.fd, .events = (short)(POLLIN | (waiting > 0 ? POLLOUT : 0))};
  for (int32_t i = 0; i < env->nchildren; i++) {
    /* A child that has sent all its blocks sends nothing before it has the result, except an error. */
    short events = gathering->missing[i] > 0 && waiting > queue_most ? 0 : POLLIN;
    gathering->polls[1 + i] = (struct pollfd){.fd = env->children[i].fd, .events = events};
  }
  return (nfds_t)env->nchildren + 1;
}

static banyan_status round_of_news(struct gathering *gathering, bool *complete) {
  struct banyan_env *env = gathering->env;
  struct bny_boot_link *parent = &env->parent;
  if (bny_deadline_is_late(gathering->deadline_ns)) return fail_missing(gathering);
  if (parent->fd >= 0) bny_boot_link_send(parent); /* a lost link is noticed below */
  if (poll(gathering->polls, fill_polls(gathering), bny_deadline_poll_ms(gathering->deadline_ns)) <= 0)
    return BANYAN_OK;
  if (gathering->polls[0].revents & ~POLLOUT) {
    banyan_status status = hear_parent(gathering, complete);
    if (status || *complete) return status;
  }
  for (int32_t i = 0; i < env->nchildren; i++) {
    if (!gathering->polls[1 + i].revents) continue;
    banyan_status status = hear_child(gathering, i);
    if (status) return status;
  }
  return BANYAN_OK;
}

static banyan_status run(struct gathering *gathering, const void *mine) {
  struct banyan_env *env = gathering->env;
  banyan_status status = check_children(env);
  bool complete = false;
  if (status) return status;
  if (is_root(gathering)) {
    gathering->arrived[0] = true;
    if (gathering->bytes > 0) memmove(gathering->all, mine, gathering->bytes);
  } else {
    const struct bny_boot_frame own = {.left_ms = (uint32_t)bny_deadline_left_ms(gathering->deadline_ns),
                                       .rank = (uint32_t)env->settings.rank};
    status = post_block(gathering, &own, mine);
  }
  while (!status && !(is_root(gathering) ? gathering->nmissing == 0 : complete))
    status = round_of_news(gathering, &complete);
  if (!status) hand_out(gathering);
  return status;
}

static bool make(struct gathering *gathering) {
  const struct banyan_env *env = gathering->env;
  size_t nchildren = (size_t)env->nchildren, nblocks = is_root(gathering) ? 0 : nchildren;
  gathering->missing = calloc(nchildren + 1, sizeof *gathering->missing);
  gathering->blocks = calloc(nblocks + 1, gathering->bytes + 1);
  gathering->arrived = calloc(is_root(gathering) ? (size_t)env->settings.nranks : 1, sizeof *gathering->arrived);
  gathering->polls = calloc(nchildren + 1, sizeof *gathering->polls);
  if (!gathering->missing || !gathering->blocks || !gathering->arrived || !gathering->polls) return false;
  for (int32_t i = 0; i < env->nchildren; i++) {
    gathering->missing[i] = env->children[i].nbelow;
    gathering->nmissing += env->children[i].nbelow;
  }
  return true;
}

banyan_status bny_boot_gather(struct banyan_env *env, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  struct gathering gathering = {.env = env,
                                .all = all,
                                .bytes = bytes,
                                .begun_ns = bny_deadline_now(),
                                .deadline_ns = bny_boot_deadline_ns(timeout_ns)};
  banyan_status status = make(&gathering)
                             ? run(&gathering, mine)
                             : bny_fail(BANYAN_ERR_MEMORY, "bootstrap: rank %d of %d has no memory for an allgather",
                                        env->settings.rank, env->settings.nranks);
  if (status) bny_boot_fail_all(env, status);
  free(gathering.polls);
  free(gathering.arrived);
  free(gathering.blocks);
  free(gathering.missing);
  return status;
}
#endif
