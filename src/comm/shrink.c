/* SPDX-License-Identifier: Apache-2.0
 * Makes a communicator of the survivors of one that has failed. They have no bootstrap any more, and no rank knows
 * which others survive. Rendezvous messages (transport.h) still work, and are exchanged in rounds. What a rank decides
 * after each round is in membership.h. This file exchanges the messages, and notices who is silent or gone.
 *
 * A communicator is made as usual, by a bootstrap whose allgather is rounds of messages. If a rank dies or stops
 * meanwhile, its post is missing, and the others return to views. A rank that reads a view instead of data does the
 * same. Views and the last message also go to ranks that were left out, so that these learn it.
 *
 * Heartbeats. A waiting rank increments its pulse, so a rank that waits for a long time does not count as silent. Only
 * silence for the deadline of a call excludes a rank. A rank that makes its communicator may be silent for that long
 * while it waits there, so it gets half as much again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/float_control.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/comm.h"
#include "comm/membership.h"
#include "exec/wait.h"

enum { LOOK_NS = 20000, CHECK_NS = 1000000, CHECK_ALL_NS = 100000000, SETTLE_NS = 100000000, DEADLINES = 3 };
enum { PAUSE_RANK_NS = 8000 }; /* the longest pause between looks grows by this with each rank */

/* When the pulse of a rank last changed. */
typedef struct heartbeat {
  uint64_t pulse;
  int64_t seen_ns;
} heartbeat;

/* Begins every message. A view follows with two bits for each rank, and the reason if the rank has failed. */
typedef struct message_head {
  uint64_t attempt;
  int32_t status; /* why this rank could not make its communicator */
  int32_t reserved;
} message_head;

_Static_assert(sizeof(message_head) + (BNY_RANKS_MAX + 3) / 4 <= BNY_RENDEZVOUS_BYTES, "a view fits a message");

/* Precedes the data of a round: which part of which allgather it is. */
typedef struct data_head {
  message_head head;
  uint64_t bytes, first;
} data_head;

typedef struct rendezvous {
  banyan_comm *comm;
  bny_transport *transport;
  int64_t timeout_ns, deadline_ns;
  int64_t wait_until_ns; /* for a majority; 0: not yet */
  uint32_t aborts;       /* count of the communicator's aborts before this call */
  bny_membership view;
  uint8_t *read;         /* [nranks]: the standings of a message */
  unsigned char *packed; /* a view to post */
  bool ever_voted;
  banyan_comm *made;     /* the communicator of the current attempt */
  heartbeat *heartbeats; /* by rank */
  int64_t checked_ns, all_checked_ns;
  int64_t aside_ns; /* when the old transport last moved on in another wait */
} rendezvous;

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static bny_rendezvous *message_in(const rendezvous *self, int32_t rank, uint64_t round) {
  return self->transport->ops->rendezvous(self->transport, rank, (int)(round & 1));
}

static uint64_t round_in(const rendezvous *self, int32_t rank, uint64_t round) {
  return atomic_load_explicit(&message_in(self, rank, round)->round, memory_order_acquire);
}

/* The round of a rank's last post; 0: none has arrived. */
static uint64_t last_round(const rendezvous *self, int32_t rank) {
  uint64_t even = round_in(self, rank, 0), odd = round_in(self, rank, 1);
  return even > odd ? even : odd;
}

static bool has_come(const rendezvous *self, int32_t rank) {
  return round_in(self, rank, self->view.round) >= self->view.round;
}

/* The rank has no communicator: it has died, or has destroyed the one that it would shrink. */
static bool is_gone(const rendezvous *self, int32_t rank) {
  bny_transport *transport = self->transport;
  return transport->ops->has_ended(transport, rank) ||
         atomic_load_explicit(&transport->ops->line(transport, rank)->left, memory_order_acquire);
}

/* Data goes to members alone. Views and the end also go to all others that may be alive, so that they learn that they
 * are left out. UCX before 1.14 may end a process that connects to one that has died, so these must be connected. */
static bool is_addressed(const rendezvous *self, bny_post_kind kind, int32_t rank) {
  if (rank == self->transport->rank) return false;
  if (bny_is_member(&self->view, rank)) return true;
  return kind != BNY_POST_DATA && (last_round(self, rank) || self->transport->ops->is_connected(self->transport, rank));
}

/* Posts a message in two pieces. */
static void post(const rendezvous *self, bny_post_kind kind, const void *head, size_t head_bytes, const void *text,
                 size_t bytes) {
  bny_transport *transport = self->transport;
  if (bny_comm_is_inherited(self->comm)) return; /* the child of a fork in the caller's check */
  bny_rendezvous *own = message_in(self, transport->rank, self->view.round);
  atomic_store_explicit(&own->round, 0, memory_order_relaxed); /* a rank that was left out may read at any time */
  atomic_thread_fence(memory_order_release);
  atomic_store_explicit(&own->kind, (uint32_t)kind, memory_order_relaxed);
  own->bytes = (uint32_t)(head_bytes + bytes);
  memcpy(own->text, head, head_bytes);
  if (bytes) memcpy(own->text + head_bytes, text, bytes);
  atomic_store_explicit(&own->round, self->view.round, memory_order_release);
  for (int32_t r = 0; transport->ops->post && r < transport->nranks; r++)
    if (is_addressed(self, kind, r)) transport->ops->post(transport, r, (int)(self->view.round & 1));
}

static size_t packed_bytes(int32_t nranks) { return ((size_t)nranks + 3) / 4; }

/* `status` and `why`: the failure of this rank, or BANYAN_OK. */
static void post_view(const rendezvous *self, const bny_post *what, banyan_status status, const char *why) {
  message_head head = {.attempt = what->attempt, .status = (int32_t)status};
  size_t bytes = packed_bytes(self->view.nranks), room = BNY_RENDEZVOUS_BYTES - sizeof head - bytes;
  memset(self->packed, 0, bytes);
  for (int32_t r = 0; r < self->view.nranks; r++)
    self->packed[r / 4] |= (unsigned char)(what->standings[r] << (r % 4 * 2));
  if (status != BANYAN_OK && room > BNY_ERROR_TEXT_BYTES) {
    snprintf((char *)self->packed + bytes, BNY_ERROR_TEXT_BYTES, "%s", why);
    bytes += BNY_ERROR_TEXT_BYTES;
  }
  post(self, BNY_POST_VIEW, &head, sizeof head, self->packed, bytes);
}

/* Returns false if the message is none of a shrink. */
static bool decode(const rendezvous *self, const bny_rendezvous *message, bny_post *what) {
  message_head head;
  size_t bytes = packed_bytes(self->view.nranks);
  if (message->bytes < sizeof head) return false;
  memcpy(&head, message->text, sizeof head);
  *what = (bny_post){.round = atomic_load_explicit(&message->round, memory_order_acquire),
                     .kind = (bny_post_kind)message->kind,
                     .attempt = head.attempt};
  if (what->kind != BNY_POST_VIEW) return what->kind == BNY_POST_DATA || what->kind == BNY_POST_DONE;
  if (message->bytes < sizeof head + bytes) return false;
  what->failed = head.status != BANYAN_OK;
  what->standings = self->read;
  for (int32_t r = 0; r < self->view.nranks; r++)
    self->read[r] = (unsigned char)message->text[sizeof head + (size_t)r / 4] >> (r % 4 * 2) & 3;
  return true;
}

/* ---- who is there ------------------------------------------------------------------------------------------------ */

/* Takes news from the last message of a rank, and learns whether it is gone. Returns true if there is any. */
static bool learn(rendezvous *self, int32_t rank) {
  if (rank == self->view.rank || self->view.standings[rank] == BNY_ABSENT) return false;
  bool gone = is_gone(self, rank); /* read first, because its last message came before */
  uint64_t last = last_round(self, rank);
  bny_post what;
  bool knows = last && decode(self, message_in(self, rank, last), &what);
  atomic_thread_fence(memory_order_acquire);
  if (knows && round_in(self, rank, last) == last && bny_membership_hear(&self->view, rank, &what)) return true;
  if (!gone) return false;
  bool never_called = bny_transport_is_same_node(self->transport, rank) && !last;
  return bny_membership_raise(&self->view, rank, never_called ? BNY_ABSENT : BNY_GONE);
}

static bool learn_of_all(rendezvous *self) {
  bool news = false;
  for (int32_t r = 0; r < self->view.nranks; r++) news |= learn(self, r);
  return news;
}

static void look_at(rendezvous *self, int32_t rank, int64_t now_ns) {
  uint64_t pulse = self->transport->ops->heartbeat(self->transport, rank);
  if (pulse != self->heartbeats[rank].pulse) self->heartbeats[rank] = (heartbeat){pulse, now_ns};
}

/* Increments this rank's pulse from time to time, and looks at that of the awaited rank. It looks at all pulses less
 * often, because many ranks that look at all pulses take the cores from the awaited ranks. Time in which this rank did
 * not run itself does not count. */
static void check_heartbeats(rendezvous *self, int32_t awaited, int64_t now_ns) {
  bny_transport *transport = self->transport;
  if (now_ns - self->checked_ns < CHECK_NS) return;
  int64_t gap_ns = self->checked_ns ? bny_wait_gap(self->checked_ns, now_ns, self->timeout_ns) : 0;
  self->deadline_ns += gap_ns;
  for (int32_t r = 0; gap_ns && r < transport->nranks; r++) self->heartbeats[r].seen_ns += gap_ns;
  self->checked_ns = now_ns;
  atomic_fetch_add_explicit(&transport->ops->line(transport, transport->rank)->looks, 1, memory_order_relaxed);
  look_at(self, awaited, now_ns);
  int64_t period_ns = self->timeout_ns / 16 < CHECK_ALL_NS ? self->timeout_ns / 16 : CHECK_ALL_NS;
  if (now_ns - self->all_checked_ns < period_ns) return;
  self->all_checked_ns = now_ns;
  for (int32_t r = 0; r < transport->nranks; r++)
    if (bny_is_member(&self->view, r) && r != transport->rank) look_at(self, r, now_ns);
}

/* banyan_comm_abort() was called since this shrink began. */
static bool is_aborted(const rendezvous *self) {
  return atomic_load_explicit(&self->comm->aborts, memory_order_acquire) != self->aborts;
}

/* A signal handler may fork in any wait, and the child leaves the connections to its parent. */
static void move_on(const rendezvous *self) {
  bny_transport *transport = self->transport;
  if (transport->ops->progress && !bny_comm_is_inherited(self->comm)) transport->ops->progress(transport);
}

/* Called in all waits of this call, also in those of the new communicator. An abort ends them, like an interruption.
 * The old transport moves on, because a message that a socket did not take at once may be what the others wait for. */
static bool look_aside(void *context) {
  rendezvous *self = context;
  int64_t now_ns = bny_clock_ns();
  if (now_ns - self->aside_ns >= CHECK_NS) {
    self->aside_ns = now_ns;
    move_on(self);
  }
  return is_aborted(self) || bny_comm_is_inherited(self->comm);
}

static void nap(const rendezvous *self, int64_t *pause_ns) {
  int64_t longest_ns = CHECK_NS / 2 + (int64_t)self->transport->nranks * PAUSE_RANK_NS;
  if (longest_ns > self->timeout_ns / 32) longest_ns = self->timeout_ns / 32; /* a pause may be twice as long */
  nanosleep(&(struct timespec){0, *pause_ns}, NULL);
  if (*pause_ns < longest_ns) *pause_ns *= 2; /* wake-ups of many ranks must not take the awaited one's core */
}

/* Returns whether the message of this round ends a shrink; its rank then posts no other. If the kind is already that of
 * a later round, the round has changed as well. */
static bool is_done(const bny_rendezvous *message, uint64_t round) {
  uint32_t kind = atomic_load_explicit(&message->kind, memory_order_relaxed);
  atomic_thread_fence(memory_order_acquire);
  return kind == BNY_POST_DONE && atomic_load_explicit(&message->round, memory_order_relaxed) == round;
}

/* Returns true if some rank has a communicator: this one joins it, or is evicted. */
static bool is_over(rendezvous *self) {
  for (int32_t r = 0; r < self->view.nranks; r++) {
    uint64_t last = r == self->view.rank ? 0 : last_round(self, r);
    const bny_rendezvous *message = message_in(self, r, last);
    bny_post what;
    if (last && is_done(message, last) && decode(self, message, &what)) bny_membership_hear(&self->view, r, &what);
  }
  return self->view.taken || self->view.evicted;
}

/* Waits for the post of one rank. Returns false if none will come, or none is needed. A rank that died may have posted
 * before. */
static bool await(rendezvous *self, int32_t rank) {
  bool makes = self->view.kind == BNY_POST_DATA || self->view.voted;
  int64_t patience_ns = makes ? self->timeout_ns / 2 * 3 : self->timeout_ns, pause_ns = LOOK_NS;
  while (!has_come(self, rank)) {
    move_on(self);
    int64_t now_ns = bny_clock_ns();
    if (bny_interrupted()) return has_come(self, rank);
    check_heartbeats(self, rank, now_ns);
    bool is_silent = now_ns > self->deadline_ns || now_ns - self->heartbeats[rank].seen_ns > patience_ns;
    if (is_silent || is_gone(self, rank) || self->transport->ops->is_dead(self->transport, rank) || is_over(self))
      return has_come(self, rank);
    nap(self, &pause_ns);
  }
  return true;
}

/* Each rank that stops may use up the deadline of a call. */
static void exclude_missing(rendezvous *self, int32_t rank) {
  learn(self, rank);
  bool gone = self->view.standings[rank] > BNY_SILENT;
  bny_log(BNY_LOG_INFO, "rank %d is left out: it %s", rank, gone ? "has died or left" : "does not answer");
  bny_membership_miss(&self->view, rank, BNY_SILENT);
  if (!gone) self->deadline_ns += self->timeout_ns / 2 * 3;
}

/* Reads the posts of all members. Returns early if the caller has ended the call, or once this is over. */
static void collect(rendezvous *self) {
  int64_t begun_ns = bny_clock_ns();
  self->checked_ns = self->all_checked_ns = begun_ns;
  for (int32_t r = 0; r < self->view.nranks; r++) self->heartbeats[r].seen_ns = begun_ns;
  for (int32_t r = 0; r < self->view.nranks; r++) {
    bny_post what;
    if (self->view.posted[r] != BNY_MEMBER || r == self->view.rank) continue;
    bool came = await(self, r);
    if (self->view.taken || self->view.evicted) return;
    if (!came && bny_interrupted()) return;
    if (came && decode(self, message_in(self, r, self->view.round), &what))
      bny_membership_read(&self->view, r, &what);
    else
      exclude_missing(self, r);
  }
}

/* ---- a bootstrap of messages ------------------------------------------------------------------------------------- */

static banyan_status fail_lost(rendezvous *self, int32_t rank) {
  self->view.lost = true;
  return bny_fail(BANYAN_ERR_PEER, "rank %d was lost while the remaining ranks connected anew", rank);
}

static banyan_status gather_part(rendezvous *self, data_head *head, const char *mine, char *all, size_t part_bytes) {
  head->head.attempt = bny_membership_post(&self->view, BNY_POST_DATA).attempt;
  post(self, BNY_POST_DATA, head, sizeof *head, mine + head->first, part_bytes);
  collect(self);
  if (self->view.lost || self->view.evicted || bny_interrupted()) return fail_lost(self, self->view.rank);
  int32_t place = 0;
  for (int32_t r = 0; r < self->view.nranks; r++) {
    if (!self->view.members[r]) continue;
    const bny_rendezvous *message = message_in(self, r, self->view.round);
    data_head theirs = {0};
    if (message->bytes == sizeof theirs + part_bytes) memcpy(&theirs, message->text, sizeof theirs);
    if (theirs.bytes != head->bytes || theirs.first != head->first) return fail_lost(self, r);
    memcpy(all + (size_t)place++ * head->bytes + head->first, message->text + sizeof theirs, part_bytes);
  }
  return BANYAN_OK;
}

static int allgather_messages(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  rendezvous *self = context;
  (void)timeout_ns; /* each round has the deadline of a call */
  data_head head = {.bytes = bytes};
  if (self->view.lost || self->view.evicted || bny_interrupted()) return (int)fail_lost(self, self->view.rank);
  banyan_status status;
  do {
    size_t part_bytes = bytes - head.first;
    if (part_bytes > BNY_RENDEZVOUS_BYTES - sizeof head) part_bytes = BNY_RENDEZVOUS_BYTES - sizeof head;
    status = gather_part(self, &head, mine, all, part_bytes);
    head.first += part_bytes;
  } while (status == BANYAN_OK && head.first < bytes);
  return (int)status;
}

/* ---- shrinking --------------------------------------------------------------------------------------------------- */

static void drop_made(rendezvous *self) {
  if (!self->made) return;
  banyan_comm_abort(self->made, "a rank was lost while the remaining ranks connected anew");
  bny_comm_free(self->made);
  self->made = NULL;
}

/* Reports to the others that this rank joins none of them, so that none waits for it. */
static banyan_status withdraw(rendezvous *self, banyan_status status, const char *why) {
  char text[BNY_ERROR_TEXT_BYTES];
  snprintf(text, sizeof text, "%s", why);
  bny_post what = bny_membership_withdraw(&self->view, self->ever_voted);
  bool is_own = status != BANYAN_ERR_PEER && status != BANYAN_ERR_TIMEOUT && status != BANYAN_ERR_ABORTED;
  post_view(self, &what, is_own ? status : BANYAN_OK, text);
  return bny_fail(status, "%s", text);
}

static banyan_status withdraw_stopped(rendezvous *self) {
  if (bny_comm_is_inherited(self->comm)) return bny_comm_reject_child(self->comm);
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "rank %d was %s while it shrank its communicator", self->view.rank,
           is_aborted(self) ? "aborted" : "interrupted");
  return withdraw(self, BANYAN_ERR_ABORTED, why);
}

static banyan_status withdraw_evicted(rendezvous *self) {
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "rank %d was excluded by the others, which continue without it", self->view.rank);
  return withdraw(self, BANYAN_ERR_PEER, why);
}

static banyan_status withdraw_late(rendezvous *self) {
  return withdraw(self, BANYAN_ERR_TIMEOUT, "the remaining ranks did not agree in time which ranks remain");
}

/* Names the silent ranks. */
static banyan_status withdraw_minority(rendezvous *self) {
  char why[BNY_ERROR_TEXT_BYTES];
  size_t length = 0;
  int32_t members = 0, silent = 0;
  for (int32_t r = 0; r < self->view.nranks; r++) {
    members += bny_is_member(&self->view, r);
    if (self->view.standings[r] != BNY_SILENT) continue;
    if (silent++ < 4)
      bny_append(why, sizeof why, &length, "%s%d", silent > 1 ? ", " : "of ranks that may be alive, ", r);
  }
  bny_append(
      why, sizeof why, &length,
      "%s did not answer and may have continued on their own: no communicator for %d rank%s, which %s no majority",
      silent > 4 ? " and others" : "", members, members == 1 ? "" : "s", members == 1 ? "is" : "are");
  return withdraw(self, BANYAN_ERR_TIMEOUT, why);
}

/* A member could not make its communicator. */
static banyan_status withdraw_failed(rendezvous *self) {
  const bny_rendezvous *message = message_in(self, self->view.failed_rank, self->view.round);
  message_head head;
  memcpy(&head, message->text, sizeof head);
  size_t bytes = sizeof head + packed_bytes(self->view.nranks);
  int length = (int)(message->bytes - bytes);
  return withdraw(self, (banyan_status)head.status,
                  length > 0 && !message->text[message->bytes - 1] ? message->text + bytes : "a rank has failed");
}

/* The statuses that a dying or stopping rank causes on others. */
static bool is_loss(banyan_status status) {
  return status == BANYAN_ERR_PEER || status == BANYAN_ERR_TIMEOUT || status == BANYAN_ERR_BOOTSTRAP ||
         status == BANYAN_ERR_ABORTED;
}

/* Makes a communicator of the members, and votes for it. Returns a failure of this rank's own. */
static banyan_status make_anew(rendezvous *self) {
  const banyan_comm *comm = self->comm;
  banyan_bootstrap bootstrap = {.size = sizeof bootstrap, .context = self, .allgather = allgather_messages};
  drop_made(self);
  for (int32_t r = 0; r < comm->nranks; r++) {
    if (!self->view.members[r]) continue;
    if (r == comm->rank) bootstrap.rank = bootstrap.nranks;
    bootstrap.nranks++;
  }
  self->view.lost = false;
  banyan_status status = bny_comm_make_part(comm, &bootstrap, BANYAN_COLOR_NONE, &self->made);
  if (status != BANYAN_OK) self->made = NULL;
  if (status == BANYAN_OK && !self->view.lost && !self->view.evicted) {
    bny_membership_vote(&self->view);
    self->ever_voted = true;
  }
  return self->view.lost || self->view.evicted || is_loss(status) ? BANYAN_OK : status;
}

static bny_decision compare_views(rendezvous *self) {
  learn_of_all(self);
  if (self->view.taken || self->view.evicted) return bny_membership_decide(&self->view);
  bny_post what = bny_membership_post(&self->view, BNY_POST_VIEW);
  post_view(self, &what, BANYAN_OK, "");
  collect(self);
  return bny_membership_decide(&self->view);
}

/* Returns true once something has changed: a silent rank is gone, or a member goes on. */
static bool await_majority(rendezvous *self) {
  int64_t pause_ns = LOOK_NS, now_ns = bny_clock_ns();
  if (!self->wait_until_ns) self->wait_until_ns = now_ns + self->timeout_ns;
  for (; now_ns < self->wait_until_ns && now_ns < self->deadline_ns; now_ns = bny_clock_ns()) {
    move_on(self);
    if (bny_interrupted()) return true;
    check_heartbeats(self, self->view.rank, now_ns);
    if (learn_of_all(self)) return true;
    for (int32_t r = 0; r < self->view.nranks; r++)
      if (r != self->view.rank && bny_is_member(&self->view, r) && last_round(self, r) > self->view.round) return true;
    nap(self, &pause_ns);
  }
  return false;
}

/* Excludes the rank that caused the failure of the communicator, even if it is alive. A wrong or rejected call is no
 * reason to exclude it. */
static void exclude_culprit(rendezvous *self) {
  const bny_failure *failure = &self->comm->exec->failure;
  if (bny_fault_is_of_rejection(atomic_load_explicit(self->comm->exec->fault, memory_order_acquire))) return;
  bool is_out = failure->status == BANYAN_ERR_PEER || failure->status == BANYAN_ERR_TIMEOUT;
  if (is_out && failure->culprit >= 0) bny_membership_raise(&self->view, failure->culprit, BNY_SILENT);
}

/* The last post may still be on its way. */
static void settle(const rendezvous *self) {
  const bny_transport_ops *ops = self->transport->ops;
  int64_t patience_ns = self->timeout_ns / 8 > SETTLE_NS ? self->timeout_ns / 8 : SETTLE_NS;
  if (patience_ns > 10 * (int64_t)SETTLE_NS) patience_ns = 10 * (int64_t)SETTLE_NS;
  int64_t until_ns = bny_clock_ns() + patience_ns;
  int32_t peer;
  while (!bny_comm_is_inherited(self->comm) && ops->flushed && !ops->flushed(self->transport, &peer) &&
         bny_clock_ns() < until_ns)
    move_on(self);
}

static bool has_silent(const bny_membership *view) {
  return !view->one_node && memchr(view->standings, BNY_SILENT, (size_t)view->nranks);
}

/* A rank that is left out and alive learns that whenever it comes. */
static void tell_silent(const rendezvous *self) {
  bny_transport *transport = self->transport;
  for (int32_t r = 0; transport->ops->tell && r < transport->nranks; r++)
    if (self->view.standings[r] == BNY_SILENT) transport->ops->tell(transport, r, (int)(self->view.round & 1));
}

static void take(rendezvous *self, banyan_comm **shrunk) {
  message_head head = {.attempt = bny_membership_post(&self->view, BNY_POST_DONE).attempt};
  post(self, BNY_POST_DONE, &head, sizeof head, NULL, 0);
  *shrunk = self->made;
  self->made = NULL;
}

static banyan_status shrink(rendezvous *self, banyan_comm **shrunk) {
  exclude_culprit(self);
  if (!bny_is_member(&self->view, self->view.rank)) return withdraw_evicted(self);
  for (;;) {
    bny_decision decision = compare_views(self);
    banyan_status status = BANYAN_OK;
    if (decision == BNY_DECIDE_TAKE) {
      take(self, shrunk);
      return BANYAN_OK;
    }
    if (decision == BNY_DECIDE_EVICTED) return withdraw_evicted(self);
    if (decision == BNY_DECIDE_FAIL) return withdraw_failed(self);
    if (decision == BNY_DECIDE_MAKE) status = make_anew(self);
    if (bny_interrupted()) return withdraw_stopped(self);
    if (status != BANYAN_OK) return withdraw(self, status, banyan_last_error());
    if (decision == BNY_DECIDE_WAIT && !await_majority(self)) return withdraw_minority(self);
    if (bny_clock_ns() > self->deadline_ns && !self->view.voted) return withdraw_late(self);
  }
}

banyan_status banyan_comm_shrink(banyan_comm *comm, int32_t *members, banyan_comm **shrunk) {
  BNY_FLOAT_MODE;
  if (!comm || !shrunk) return bny_fail(BANYAN_ERR_ARGUMENT, "comm and shrunk must not be NULL");
  if (bny_comm_is_inherited(comm)) return bny_comm_reject_child(comm);
  uint32_t aborts = atomic_load_explicit(&comm->aborts, memory_order_acquire);
  if (banyan_comm_status(comm) == BANYAN_OK)
    return bny_fail(BANYAN_ERR_STATE, "the communicator has not failed: banyan_comm_abort() ends it on all ranks");
  if (comm->has_shrunk)
    return bny_fail(BANYAN_ERR_STATE, "this communicator was shrunk already; shrink the one that it became");
  size_t n = (size_t)comm->nranks;
  uint8_t *standings = malloc(bny_membership_bytes(comm->nranks) + n);
  unsigned char *packed = malloc(packed_bytes(comm->nranks) + BNY_ERROR_TEXT_BYTES);
  heartbeat *heartbeats = calloc(n, sizeof *heartbeats);
  banyan_status status = BANYAN_OK;
  if (!standings || !packed || !heartbeats) {
    status = bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to shrink %d ranks", comm->rank, comm->nranks);
    goto free_memory;
  }
  int64_t timeout_ns = comm->exec->timeout_ns;
  rendezvous self = {.comm = comm,
                     .transport = comm->transport,
                     .timeout_ns = timeout_ns,
                     .deadline_ns = bny_clock_ns() + DEADLINES * timeout_ns,
                     .aborts = aborts,
                     .read = standings + bny_membership_bytes(comm->nranks),
                     .packed = packed,
                     .heartbeats = heartbeats};
  bny_membership_init(&self.view, comm->rank, comm->nranks, !comm->transport->place, standings);
  comm->has_shrunk = true;
  bny_interrupt_by(look_aside, &self);
  status = shrink(&self, shrunk);
  bny_interrupt_by(NULL, NULL);
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", status == BANYAN_OK ? "" : banyan_last_error());
  settle(&self);
  drop_made(&self);
  if (status != BANYAN_OK) bny_fail(status, "%s", why);
  if (status == BANYAN_OK && (comm->ancestor || comm->kept || has_silent(&self.view))) bny_comm_keep(comm, *shrunk);
  if (status == BANYAN_OK) tell_silent(&self);
  for (int32_t r = 0; status == BANYAN_OK && members && r < comm->nranks; r++)
    if (self.view.members[r]) *members++ = r;

free_memory:
  free(standings), free(packed), free(heartbeats);
  return status;
}
