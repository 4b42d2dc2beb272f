/* SPDX-License-Identifier: Apache-2.0
 * Makes a communicator of the survivors of one that has failed. They have no bootstrap any more, and no rank knows
 * which others survive. Rendezvous messages (transport.h) still work, and are exchanged in rounds.
 *
 * Agreement. In each round a rank posts its view, the set of ranks that it considers alive, and waits for the posts of
 * those ranks. If all of them have posted the same view, it is agreed. Otherwise the next view is the intersection of
 * all views of this round, without the ranks whose post is missing: they are dead, or out of time. A message is visible
 * to every rank or to none, so views only shrink, and this ends. All ranks agree in the same round, except those that
 * ran out of time.
 *
 * Then a communicator is made as usual, by a bootstrap whose allgather is rounds of these messages. If a rank dies or
 * stops meanwhile, its post is missing on all ranks, which return to views in the same next round. Between nodes some
 * ranks may have its last post and others may not. The others then post a view where these post data. A rank that sees
 * both returns to views, too.
 *
 * Liveness. A waiting rank increments its pulse, so a rank that waits for a long time does not count as silent. Only
 * silence for the deadline of a call excludes a rank. A rank that makes its communicator may be silent for that long
 * while it waits there, so it gets half as much again.
 *
 * Last round. All ranks post their result. A rank that has read success from all of them has a communicator, and
 * reports that in one more message. For ranks that a stopped rank has not reached, that message replaces its last post.
 * So all healthy ranks have the communicator, or none has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/float_control.h"
#include "comm/comm.h"
#include "exec/wait.h"
#include "base/log.h"
#include "base/status.h"

enum { LOOK_NS = 20000, WATCH_NS = 1000000, WATCH_ALL_NS = 100000000, SETTLE_NS = 100000000, DEADLINES = 3 };
enum { PAUSE_RANK_NS = 8000 }; /* the longest pause between looks grows by this with each rank */

typedef enum kind { KIND_VIEW = 1, KIND_DATA, KIND_VERDICT, KIND_DONE } kind;

/* The result of one rank, for all others. */
typedef struct verdict {
  int32_t status;
  char why[BNY_REPORT_BYTES - sizeof(int32_t)];
} verdict;

/* When the pulse of a rank last changed. */
typedef struct sign {
  uint64_t pulse;
  int64_t seen_ns;
} sign;

/* Precedes the data of a round: which part of which allgather it is. */
typedef struct data_head {
  uint64_t bytes, first;
} data_head;

typedef struct rendezvous {
  banyan_comm *comm;
  bny_transport *transport;
  int64_t timeout_ns, deadline_ns;
  uint64_t round;
  kind kind;           /* kind of this round's post */
  unsigned char *view; /* a bit for each rank */
  unsigned char *next; /* scratch: the view to come */
  size_t view_bytes;
  bool struck;   /* a rank was excluded since the view was agreed, or is in another round */
  bool given_up; /* the others go on without this rank */
  sign *signs;   /* by rank */
  int64_t watched_ns, all_watched_ns;
} rendezvous;

static bool has(const unsigned char *view, int32_t rank) { return view[rank / 8] >> (rank % 8) & 1; }
static void strike(unsigned char *view, int32_t rank) { view[rank / 8] &= (unsigned char)~(1 << (rank % 8)); }

/* ---- a round ----------------------------------------------------------------------------------------------------- */

static bny_rendezvous *message_of(const rendezvous *self, int32_t rank) {
  return self->transport->ops->rendezvous(self->transport, rank, (int)(self->round & 1));
}

static bool is_gone(const rendezvous *self, int32_t rank) {
  bny_transport *transport = self->transport;
  return transport->ops->is_dead(transport, rank) ||
         atomic_load_explicit(&transport->ops->line(transport, rank)->left, memory_order_acquire);
}

static uint64_t round_in(const rendezvous *self, int32_t rank, int half) {
  return atomic_load_explicit(&self->transport->ops->rendezvous(self->transport, rank, half)->round,
                              memory_order_acquire);
}

/* A view also goes to ranks that were in an earlier view, so that they learn that they are excluded. */
static bool is_addressed(const rendezvous *self, kind kind, int32_t rank) {
  if (rank == self->transport->rank) return false;
  if (has(self->view, rank)) return true;
  return kind == KIND_VIEW && (round_in(self, rank, 0) || round_in(self, rank, 1)) && !is_gone(self, rank);
}

/* Posts a message in two pieces. */
static void post(rendezvous *self, kind kind, const void *head, size_t head_bytes, const void *text, size_t bytes) {
  bny_transport *transport = self->transport;
  if (bny_comm_is_inherited(self->comm)) return;
  self->round++;
  self->kind = kind;
  bny_rendezvous *own = message_of(self, transport->rank);
  own->kind = (uint32_t)kind;
  own->bytes = (uint32_t)(head_bytes + bytes);
  if (head_bytes) memcpy(own->text, head, head_bytes);
  if (bytes) memcpy(own->text + head_bytes, text, bytes);
  atomic_store_explicit(&own->round, self->round, memory_order_release);
  for (int32_t r = 0; transport->ops->post && r < transport->nranks; r++)
    if (is_addressed(self, kind, r)) transport->ops->post(transport, r, (int)(self->round & 1));
}

static uint64_t round_of(const rendezvous *self, int32_t rank) { return round_in(self, rank, (int)(self->round & 1)); }

static void look_at(rendezvous *self, int32_t rank, int64_t now_ns) {
  uint64_t pulse = self->transport->ops->pulse(self->transport, rank);
  if (pulse != self->signs[rank].pulse) self->signs[rank] = (sign){pulse, now_ns};
}

/* Increments this rank's pulse from time to time, and looks at that of the awaited rank. It looks at all pulses less
 * often, because many ranks that look at all pulses take the cores from the awaited ranks. Time in which this rank did
 * not run itself does not count. */
static void watch(rendezvous *self, int32_t awaited, int64_t now_ns) {
  bny_transport *transport = self->transport;
  if (now_ns - self->watched_ns < WATCH_NS) return;
  int64_t gap_ns = self->watched_ns ? bny_wait_gap(self->watched_ns, now_ns, self->timeout_ns) : 0;
  self->deadline_ns += gap_ns;
  for (int32_t r = 0; gap_ns && r < transport->nranks; r++) self->signs[r].seen_ns += gap_ns;
  self->watched_ns = now_ns;
  atomic_fetch_add_explicit(&transport->ops->line(transport, transport->rank)->looks, 1, memory_order_relaxed);
  look_at(self, awaited, now_ns);
  int64_t period_ns = self->timeout_ns / 16 < WATCH_ALL_NS ? self->timeout_ns / 16 : WATCH_ALL_NS;
  if (now_ns - self->all_watched_ns < period_ns) return;
  self->all_watched_ns = now_ns;
  for (int32_t r = 0; r < transport->nranks; r++)
    if (has(self->view, r) && r != transport->rank) look_at(self, r, now_ns);
}

/* Returns whether, in the last round, some rank has a communicator already. */
static bool is_done(const rendezvous *self) {
  int half = (int)((self->round + 1) & 1);
  for (int32_t r = 0; self->kind == KIND_VERDICT && r < self->transport->nranks; r++)
    if (has(self->view, r) && round_in(self, r, half) == self->round + 1 &&
        self->transport->ops->rendezvous(self->transport, r, half)->kind == KIND_DONE)
      return true;
  return false;
}

/* Waits for the post of one rank. Returns false if none will come, or none is needed. A rank that died may have posted
 * before. */
static bool await(rendezvous *self, int32_t rank) {
  int64_t patience_ns = self->kind == KIND_VIEW ? self->timeout_ns : self->timeout_ns / 2 * 3, pause_ns = LOOK_NS;
  int64_t longest_ns = WATCH_NS / 2 + (int64_t)self->transport->nranks * PAUSE_RANK_NS;
  if (longest_ns > self->timeout_ns / 32) longest_ns = self->timeout_ns / 32; /* a pause may be twice as long */
  while (round_of(self, rank) < self->round) {
    if (self->transport->ops->progress) self->transport->ops->progress(self->transport);
    int64_t now_ns = bny_clock_ns();
    watch(self, rank, now_ns);
    bool is_silent =
        bny_interrupted() || now_ns > self->deadline_ns || now_ns - self->signs[rank].seen_ns > patience_ns;
    if (is_silent || is_gone(self, rank) || is_done(self)) return round_of(self, rank) >= self->round;
    nanosleep(&(struct timespec){0, pause_ns}, NULL);
    if (pause_ns < longest_ns) pause_ns *= 2; /* wake-ups of many ranks must not take the awaited one's core */
  }
  return true;
}

static banyan_status fail_given_up(rendezvous *self) {
  self->given_up = true;
  return bny_fail(BANYAN_ERR_PEER, "rank %d was excluded by the others, which continue without it",
                  self->transport->rank);
}

/* Each rank that stops may use up the deadline of a call. */
static void strike_missing(rendezvous *self, unsigned char *present, int32_t rank) {
  bool gone = is_gone(self, rank);
  bny_log(BNY_LOG_INFO, "rank %d is left out: it %s", rank, gone ? "has died or left" : "does not answer");
  strike(present, rank);
  self->struck = true;
  if (!gone) self->deadline_ns += self->timeout_ns / 2 * 3;
}

/* Reports to the others that this rank joins none of them, so that none waits for it. */
static void withdraw(rendezvous *self) {
  strike(self->view, self->transport->rank);
  post(self, KIND_VIEW, NULL, 0, self->view, self->view_bytes);
}

/* Waits for all ranks of the view. *present: the ranks whose post has arrived. If a peer is two rounds ahead, or in a
 * view without this rank, the others have excluded this rank. Returns early if is_done(). */
static banyan_status collect(rendezvous *self, unsigned char *present) {
  int64_t begun_ns = bny_clock_ns();
  self->watched_ns = self->all_watched_ns = begun_ns;
  memcpy(present, self->view, self->view_bytes);
  for (int32_t r = 0; r < self->transport->nranks; r++) self->signs[r].seen_ns = begun_ns;
  for (int32_t r = 0; r < self->transport->nranks; r++) {
    if (!has(self->view, r) || r == self->transport->rank) continue;
    if (!await(self, r)) {
      if (bny_interrupted()) {
        if (bny_comm_is_inherited(self->comm)) return bny_comm_reject_child(self->comm);
        withdraw(self);
        return bny_fail(BANYAN_ERR_ABORTED, "rank %d was interrupted while it shrank its communicator",
                        self->transport->rank);
      }
      if (is_done(self)) return BANYAN_OK;
      strike_missing(self, present, r);
      continue;
    }
    if (round_of(self, r) > self->round) return fail_given_up(self);
    const bny_rendezvous *message = message_of(self, r);
    if (message->kind == KIND_DONE) return fail_given_up(self);
    bool is_view = message->kind == KIND_VIEW && message->bytes == self->view_bytes;
    if (is_view && !has((const unsigned char *)message->text, self->transport->rank)) return fail_given_up(self);
  }
  return BANYAN_OK;
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* Runs one round. *agreed: all posted this rank's view. */
static banyan_status compare_views(rendezvous *self, bool *agreed) {
  post(self, KIND_VIEW, NULL, 0, self->view, self->view_bytes);
  banyan_status status = collect(self, self->next);
  if (status != BANYAN_OK) return status;
  *agreed = memcmp(self->next, self->view, self->view_bytes) == 0;
  for (int32_t r = 0; r < self->transport->nranks; r++) {
    if (!has(self->view, r) || !has(self->next, r)) continue;
    const bny_rendezvous *message = message_of(self, r);
    if (message->kind != KIND_VIEW ||
        message->bytes != self->view_bytes) { /* the peer still makes the communicator, and will see this view */
      *agreed = false;
      continue;
    }
    if (memcmp(message->text, self->view, self->view_bytes) == 0) continue;
    *agreed = false;
    for (size_t i = 0; i < self->view_bytes; i++) self->next[i] &= (unsigned char)message->text[i];
  }
  memcpy(self->view, self->next, self->view_bytes);
  return has(self->view, self->transport->rank) ? BANYAN_OK : fail_given_up(self);
}

static banyan_status agree_on_view(rendezvous *self) {
  bool agreed = false;
  banyan_status status = BANYAN_OK;
  while (status == BANYAN_OK && !agreed) {
    if (bny_clock_ns() > self->deadline_ns)
      return bny_fail(BANYAN_ERR_TIMEOUT, "the remaining ranks did not agree in time which ranks remain");
    status = compare_views(self, &agreed);
  }
  self->struck = false;
  return status;
}

/* ---- a bootstrap of message -------------------------------------------------------------------------------------- */

static banyan_status gather_part(rendezvous *self, const data_head *head, const char *mine, char *all,
                                 size_t part_bytes) {
  post(self, KIND_DATA, head, sizeof *head, mine + head->first, part_bytes);
  banyan_status status = collect(self, self->next);
  if (status != BANYAN_OK) return status;
  int32_t place = 0;
  for (int32_t r = 0; r < self->transport->nranks; r++) {
    if (!has(self->view, r)) continue;
    const bny_rendezvous *message = message_of(self, r);
    data_head theirs = {0};
    if (has(self->next, r) && message->kind == KIND_DATA && message->bytes == sizeof theirs + part_bytes)
      memcpy(&theirs, message->text, sizeof theirs);
    if (theirs.bytes != head->bytes || theirs.first != head->first) {
      self->struck = true;
      memcpy(self->view, self->next, self->view_bytes);
      return bny_fail(BANYAN_ERR_PEER, "rank %d was lost while the remaining ranks connected anew", r);
    }
    memcpy(all + (size_t)place++ * head->bytes + head->first, message->text + sizeof theirs, part_bytes);
  }
  return BANYAN_OK;
}

static int allgather_messages(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  rendezvous *self = context;
  (void)timeout_ns; /* each round has the deadline of a call */
  data_head head = {.bytes = bytes};
  banyan_status status = self->struck ? BANYAN_ERR_PEER : BANYAN_OK;
  if (status != BANYAN_OK) return (int)bny_fail(status, "a rank was lost while the remaining ranks connected anew");
  do {
    size_t part_bytes = bytes - head.first;
    if (part_bytes > BNY_RENDEZVOUS_BYTES - sizeof head) part_bytes = BNY_RENDEZVOUS_BYTES - sizeof head;
    status = gather_part(self, &head, mine, all, part_bytes);
    head.first += part_bytes;
  } while (status == BANYAN_OK && head.first < bytes);
  return (int)status;
}

/* ---- shrinking --------------------------------------------------------------------------------------------------- */

static banyan_status make_anew(rendezvous *self, banyan_comm **shrunk) {
  const banyan_comm *comm = self->comm;
  banyan_bootstrap bootstrap = {.size = sizeof bootstrap, .context = self, .allgather = allgather_messages};
  for (int32_t r = 0; r < comm->nranks; r++) {
    if (!has(self->view, r)) continue;
    if (r == comm->rank) bootstrap.rank = bootstrap.nranks;
    bootstrap.nranks++;
  }
  return bny_comm_make_part(comm, &bootstrap, BANYAN_COLOR_NONE, shrunk);
}

/* Excludes the rank that caused the failure of the communicator, even if it is alive. A wrong or rejected call is no
 * reason to exclude it. */
static void strike_culprit(rendezvous *self) {
  const bny_failure *failure = &self->comm->exec->failure;
  if (bny_fault_is_of_rejection(atomic_load_explicit(self->comm->exec->fault, memory_order_acquire))) return;
  bool is_out = failure->status == BANYAN_ERR_PEER || failure->status == BANYAN_ERR_TIMEOUT;
  if (is_out && failure->culprit >= 0) strike(self->view, failure->culprit);
}

/* The last post may still be on its way. */
static void settle(const rendezvous *self) {
  const bny_transport_ops *ops = self->transport->ops;
  int64_t until_ns = bny_clock_ns() + SETTLE_NS;
  int32_t peer;
  while (ops->settled && !ops->settled(self->transport, &peer) && bny_clock_ns() < until_ns)
    ops->progress(self->transport);
}

/* ---- the last round ---------------------------------------------------------------------------------------------- */

/* The statuses that a dying or stopping rank causes on others. */
static bool is_loss(banyan_status status) {
  return status == BANYAN_ERR_PEER || status == BANYAN_ERR_TIMEOUT || status == BANYAN_ERR_BOOTSTRAP;
}

/* All verdicts have arrived. */
static banyan_status compare_verdicts(rendezvous *self, const verdict *own, bool *again) {
  banyan_status status = BANYAN_OK;
  for (int32_t r = 0; r < self->transport->nranks && !*again; r++) {
    const bny_rendezvous *message = message_of(self, r);
    verdict theirs = *own;
    if (!has(self->view, r)) continue;
    *again = message->kind != KIND_VERDICT || message->bytes != sizeof theirs;
    if (*again) break;
    memcpy(&theirs, message->text, sizeof theirs);
    *again = is_loss((banyan_status)theirs.status);
    if (theirs.status != BANYAN_OK && status == BANYAN_OK)
      status = bny_fail((banyan_status)theirs.status, "%.*s", (int)sizeof theirs.why - 1, theirs.why);
  }
  return status;
}

/* All ranks post their result. OK: this rank and all others have a communicator. *again: a rank was lost. */
static banyan_status conclude(rendezvous *self, banyan_status own, bool *again) {
  verdict mine = {.status = (int32_t)own};
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", own == BANYAN_OK ? "" : banyan_last_error());
  memcpy(mine.why, why, sizeof mine.why);
  mine.why[sizeof mine.why - 1] = 0;
  post(self, KIND_VERDICT, NULL, 0, &mine, sizeof mine);
  banyan_status status = collect(self, self->next);
  bool done = is_done(self);
  if (status == BANYAN_OK && !done) {
    *again = memcmp(self->next, self->view, self->view_bytes) != 0;
    memcpy(self->view, self->next, self->view_bytes);
    status = compare_verdicts(self, &mine, again);
    if (*again && own != BANYAN_OK && !is_loss(own)) {
      *again = false;
      withdraw(self);
      return bny_fail(own, "%s", why);
    }
    if (*again) return BANYAN_OK;
  }
  if (status == BANYAN_OK)
    post(self, KIND_DONE, NULL, 0, NULL, 0);
  else if (own != BANYAN_OK && !self->given_up)
    status = bny_fail(own, "%s", why);
  return status;
}

static banyan_status shrink(rendezvous *self, banyan_comm **shrunk) {
  banyan_status status = has(self->view, self->comm->rank) ? BANYAN_OK : fail_given_up(self);
  bool again = true;
  while (status == BANYAN_OK && again) {
    banyan_comm *made = NULL;
    status = agree_on_view(self);
    if (status != BANYAN_OK) break;
    status = make_anew(self, &made);
    again = self->struck && !self->given_up;
    if (again)
      status = BANYAN_OK;
    else if (!self->given_up)
      status = conclude(self, status, &again);
    if (status == BANYAN_OK && !again) {
      *shrunk = made;
    } else if (made) {
      banyan_comm_abort(made, "a rank was lost while the remaining ranks connected anew");
      bny_comm_free(made);
    }
  }
  settle(self);
  return self->given_up ? fail_given_up(self) : status;
}

banyan_status banyan_comm_shrink(banyan_comm *comm, int32_t *members, banyan_comm **shrunk) {
  BNY_FLOAT_MODE;
  if (!comm || !shrunk) return bny_fail(BANYAN_ERR_ARGUMENT, "comm and shrunk must not be NULL");
  if (bny_comm_is_inherited(comm)) return bny_comm_reject_child(comm);
  if (banyan_comm_status(comm) == BANYAN_OK)
    return bny_fail(BANYAN_ERR_STATE, "the communicator has not failed: banyan_comm_abort() ends it on all ranks");
  size_t view_bytes = ((size_t)comm->nranks + 7) / 8;
  if (comm->has_shrunk)
    return bny_fail(BANYAN_ERR_STATE, "this communicator was shrunk already; shrink the one that it became");
  unsigned char *views = malloc(2 * view_bytes);
  sign *signs = calloc((size_t)comm->nranks, sizeof *signs);
  if (!views || !signs) {
    free(views), free(signs);
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to shrink %d ranks", comm->rank, comm->nranks);
  }
  memset(views, 0xff, view_bytes);
  int64_t timeout_ns = comm->exec->timeout_ns;
  rendezvous self = {.comm = comm,
                     .transport = comm->transport,
                     .timeout_ns = timeout_ns,
                     .deadline_ns = bny_clock_ns() + DEADLINES * timeout_ns,
                     .view = views,
                     .next = views + view_bytes,
                     .view_bytes = view_bytes,
                     .signs = signs};
  strike_culprit(&self);
  comm->has_shrunk = true;
  banyan_status status = shrink(&self, shrunk);
  for (int32_t r = 0; status == BANYAN_OK && members && r < comm->nranks; r++)
    if (has(self.view, r)) *members++ = r;
  free(views);
  free(signs);
  return status;
}
