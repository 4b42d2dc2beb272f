/* SPDX-License-Identifier: Apache-2.0
 * Sends and receives reports between ranks: a long wait, a failure, or a rank that leaves. */

#include "base/deadline.h"
#include "base/clock.h"
#include "base/process.h"
#include "transport/ucx/ucx.h"

/* Three times: the least time for which a rank's report counts; when an open question is asked again; and the limit for
 * the last reports to go out. */
enum { RECENT_NS = 100000000, ASK_AGAIN_NS = 1000000000, FLUSH_NS = 5000000 };
/* The time that a leaving rank waits for peers to get its data, the shorter time after a fault, and its polling
 * interval. */
enum { PARTING_NS = 500000000, PARTING_AT_FAULT_NS = 50000000, PARTING_LOOK_NS = 1000000 };

static uint64_t load(const bny_signal *signal) { return atomic_load_explicit(signal, memory_order_acquire); }

/* Returns the known state of any rank. For a rank of another node, it is known only if the rank has reported its
 * current call. */
static bny_net_snapshot snapshot_of(bny_net *net, int32_t rank) {
  bny_transport *transport = &net->transport;
  bny_net_snapshot made = {.rank = -1};
  if (rank < 0 || rank >= transport->nranks) return made;
  const bny_net_peer *peer = net->peers[rank];
  bny_rank_line *line = transport->ops->line(transport, rank);
  if (net->transport.place[rank] < 0 && (!peer || !peer->reported_ns || peer->reported_started != load(&line->started)))
    return made;
  made = (bny_net_snapshot){.rank = rank,
                            .started = load(&line->started),
                            .done = load(&line->done),
                            .suspect = load(&line->suspect),
                            .left = load(&line->left)};
  bny_signal *call = transport->ops->call(transport, rank);
  for (int i = 0; i < BNY_CALL_WORDS; i++) made.call[i] = load(&call[i]);
  return made;
}

/* The peer is alive, although this rank had no memory for its messages; there may be memory for a report. */
static bool is_there(const bny_net_peer *peer) {
  return peer->endpoint && (!peer->dead || peer->lacks_memory) && peer->net->process == bny_process();
}

static bny_net_packet *prepare(bny_net_peer *peer, bny_net_occasion occasion) {
  bny_net *net = peer->net;
  bny_net_packet *packet = is_there(peer) ? bny_net_packet_take(peer) : NULL;
  if (!packet) return NULL;
  packet->of.report = (bny_net_report){
      .head = bny_net_head_of(net), .occasion = (int32_t)occasion, .fault = load(net->transport.fault)};
  packet->of.report.of[0] = snapshot_of(net, net->transport.rank);
  packet->of.report.of[1].rank = packet->of.report.of[2].rank = -1;
  return packet;
}

static void report_self(bny_net_peer *peer, bny_net_occasion occasion) {
  bny_net_packet *packet = prepare(peer, occasion);
  if (packet) bny_net_send(packet, BNY_NET_REPORT, NULL, 0);
}

/* UCX before 1.14 ends the process if a peer dies while the answer to UCX's own handshake waits for the connection. A
 * short message over TCP needs no handshake, so the hello is sent when this rank is connected, and everything else
 * after it. */
void bny_net_send_hello(bny_net_peer *peer) {
  if (!bny_net_can_send(peer) || peer->flushing) return;
  bool waits = peer->net->transport.network == BNY_NETWORK_TCP;
  if (waits && !peer->flushed) bny_net_flush(peer);
  if (waits && !peer->flushed) return;
  peer->flushed = false;
  peer->hello_sent = true;
  report_self(peer, BNY_NET_HELLO);
  if (peer->net->puts) bny_net_put_offer(peer);
  bny_net_flush(peer);
}

/* Sends the rejection over all endpoints. A rank that did not know it forwards it. The caller holds the worker. */
static void forward_rejection(bny_net *net, const bny_rejection *rejection) {
  for (int32_t i = 0; i < net->nknown; i++) {
    bny_net_packet *packet = bny_net_message_to(net->known[i]);
    if (!packet) continue;
    packet->of.rejection.rejection = *rejection;
    bny_net_send(packet, BNY_NET_REJECTION, NULL, 0);
  }
  net->unflushed = true;
}

void bny_net_forward_rejection(bny_transport *transport, const bny_rejection *rejection) {
  bny_net *net = bny_net_of(transport);
  bny_net_take(net);
  forward_rejection(net, rejection);
  bny_net_give(net);
}

/* Consecutive calls of a rank, which several ranks report, use one entry. */
static bool extend_rejection(bny_net *net, const bny_rejection *rejection) {
  for (int32_t i = 0; i < net->nrejections; i++) {
    bny_rejection *known = &net->rejections[i];
    if (known->rank != rejection->rank || rejection->first < known->first || rejection->first > known->last + 1)
      continue;
    if (rejection->last > known->last) known->last = rejection->last;
    return true;
  }
  return false;
}

void bny_net_receive_rejection(bny_net *net, const bny_rejection *rejection) {
  if (extend_rejection(net, rejection)) return;
  if (net->nrejections == BNY_REJECTIONS) return; /* a rank that is this far behind runs into its deadline */
  net->rejections[net->nrejections++] = *rejection;
  net->nwaiting++;
}

/* This must not run inside a callback of UCX, because it sends. */
static void take_rejections(bny_net *net) {
  int32_t count = net->nrejections;
  net->nrejections = 0;
  net->nwaiting -= count;
  for (int32_t i = 0; i < count; i++) {
    bny_net_give(net); /* bny_rejection_add() takes the worker */
    bny_rejection_add(&net->transport, &net->rejections[i]);
    bny_net_take(net);
  }
}

void bny_net_answer(bny_net *net) {
  if (net->nrejections) take_rejections(net);
  for (int32_t i = 0; i < net->nknown && net->nwaiting > 0; i++) {
    bny_net_peer *peer = net->known[i];
    if (!peer->wants_answer) continue;
    bny_net_connect_peer(net, peer->rank);
    bool greets = !bny_net_has_left(peer) && !peer->hello_sent;
    if (greets) bny_net_send_hello(peer);
    if (greets && !peer->hello_sent && bny_net_can_send(peer)) continue; /* it is not connected yet */
    peer->wants_answer = false;
    net->nwaiting--;
    if (!greets) report_self(peer, bny_net_has_left(peer) ? BNY_NET_ANSWER : BNY_NET_NEWS);
    if (peer->told) bny_net_send_rendezvous(peer, peer->told - 1);
  }
}

/* ---- received reports -------------------------------------------------------------------------------------------- */

static void believe(bny_net *net, const bny_net_snapshot *of, bool itself) {
  if (of->rank < 0 || of->rank >= net->transport.nranks || net->transport.place[of->rank] >= 0) return;
  bny_net_peer *peer = bny_net_meet(net, of->rank);
  bny_rank_line *line = &net->lines[of->rank];
  uint32_t theirs = (uint32_t)(of->started >> 32), known = (uint32_t)(load(&line->started) >> 32);
  if (!peer || (int32_t)(theirs - known) < 0) return;
  bny_signal *call = net->calls + (size_t)of->rank * BNY_CALL_WORDS;
  for (int i = 0; i < BNY_CALL_WORDS; i++) atomic_store_explicit(&call[i], of->call[i], memory_order_relaxed);
  if (of->done > load(&line->done)) atomic_store_explicit(&line->done, of->done, memory_order_release);
  atomic_store_explicit(&line->started, of->started, memory_order_release);
  peer->reported_started = of->started;
  if (!peer->reported_ns) peer->reported_ns = 1; /* a time long ago, because the rank itself did not report */
  if (!itself) return;
  peer->reported_ns = bny_clock_ns();
  peer->asked_ns = 0;
  atomic_store_explicit(&line->suspect, of->suspect, memory_order_release);
  if (of->left) atomic_store_explicit(&line->left, 1, memory_order_release);
}

void bny_net_receive_report(bny_net *net, const bny_net_report *report) {
  for (int i = 0; i < BNY_NET_SNAPSHOTS; i++) believe(net, &report->of[i], i == 0);
  bny_net_peer *peer = net->peers[report->head.rank];
  if (report->occasion == BNY_NET_HELLO) peer->hello_received = true;
  if (report->occasion == BNY_NET_ANSWER) peer->parted = true;
  if (report->occasion == BNY_NET_GOODBYE || (peer->hello_received && !peer->hello_sent)) bny_net_want_answer(peer);
  bny_signal *fault = net->transport.fault;
  uint64_t known = load(fault);
  if (report->fault && (!known || bny_fault_is_earlier(report->fault, known)))
    atomic_compare_exchange_strong(fault, &known, report->fault);
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

static bool is_recent_by(const bny_net *net, int64_t age_ns) {
  return age_ns < RECENT_NS || age_ns < net->transport.recent_ns;
}

/* A rank of this node need not be asked, because its polls are visible while it waits. */
static bool is_polling(bny_net *net, int32_t rank, int64_t now_ns) {
  bny_net_watch *watch = &net->watches[net->transport.place[rank]];
  uint64_t looks = load(&net->transport.ops->line(&net->transport, rank)->looks);
  if (looks != watch->looks || !watch->seen_ns) *watch = (bny_net_watch){looks, now_ns};
  return is_recent_by(net, now_ns - watch->seen_ns);
}

/* The last report counts for some time. No question is sent before a quarter of that has passed, or while one is open.
 * Over RDMA a dead peer may have accepted the question; only a message that it does not accept reveals its death. */
static bool is_known_alive(bny_net *net, bny_net_peer *peer) {
  int64_t now_ns = bny_clock_ns(), age_ns = peer->reported_ns ? now_ns - peer->reported_ns : INT64_MAX;
  bool is_recent = is_recent_by(net, age_ns) && peer->reported_started == load(&net->lines[peer->rank].started);
  bool is_open = peer->asked_ns && now_ns - peer->asked_ns < ASK_AGAIN_NS;
  bool connects = peer->flushing && !peer->hello_sent;
  if (!is_open && (!is_recent || age_ns > RECENT_NS / 4) && !connects && bny_net_can_send(peer)) {
    peer->asked_ns = now_ns;
    bny_net_send_note(peer, BNY_NET_ASK);
  }
  return is_recent;
}

bool bny_net_probe(bny_transport *transport, int32_t rank) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return is_polling(net, rank, bny_clock_ns());
  bny_net_take(net);
  bny_net_peer *peer = net->peers[rank];
  bool knows = peer && is_known_alive(net, peer);
  /* State from before a fault is still useful after it. */
  if (!knows && peer && peer->reported_ns && load(transport->fault))
    knows = peer->reported_started == load(&net->lines[rank].started);
  bny_net_give(net);
  return knows;
}

/* For a rank of another node, the time of its last report; the rank is also asked. */
uint64_t bny_net_heartbeat(bny_transport *transport, int32_t rank) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return net->local->ops->heartbeat(net->local, transport->place[rank]);
  bny_net_take(net);
  bny_net_peer *peer = net->peers[rank];
  if (peer) is_known_alive(net, peer);
  uint64_t reported_ns = peer ? (uint64_t)peer->reported_ns : 0;
  bny_net_give(net);
  return reported_ns;
}

int32_t bny_net_most_silent(bny_net *net) {
  bny_net_peer *found = NULL;
  for (int32_t i = 0; i < net->nknown; i++) {
    bny_net_peer *peer = net->known[i];
    if (!bny_net_can_send(peer)) continue;
    is_known_alive(net, peer);
    if (!found || peer->reported_ns < found->reported_ns) found = peer;
  }
  return found ? found->rank : net->nknown ? net->known[0]->rank : net->transport.rank;
}

/* ---- faults and the end ------------------------------------------------------------------------------------------ */

/* Reports the fault over all endpoints, and every receiver forwards it. It includes the states of culprit and reporter,
 * so that a rank in another call can see what differs. */
static void spread(bny_net *net, int64_t patience_ns) {
  uint64_t fault = load(net->transport.fault);
  if (!fault) return;
  for (int32_t i = 0; i < net->nknown && net->spread != fault; i++) {
    bny_net_peer *peer = net->known[i];
    bny_net_packet *packet = is_there(peer) && !bny_net_has_left(peer) ? prepare(peer, BNY_NET_NEWS) : NULL;
    if (!packet) continue;
    packet->of.report.of[1] = snapshot_of(net, bny_fault_culprit(fault));
    packet->of.report.of[2] = snapshot_of(net, bny_fault_reporter(fault));
    bny_net_send(packet, BNY_NET_REPORT, NULL, 0);
  }
  net->spread = fault;
  if (patience_ns > 0) bny_net_drain(net, bny_clock_ns() + patience_ns);
}

void bny_net_broadcast_fault(bny_transport *transport, int64_t patience_ns) {
  bny_net *net = bny_net_of(transport);
  bny_net_take(net);
  spread(net, patience_ns);
  bny_net_give(net);
}

/* Ranks that have left or died need no answer. */
static bool have_parted(const bny_net *net) {
  for (int32_t i = 0; i < net->nknown; i++)
    if (bny_net_can_send(net->known[i]) && !net->known[i]->parted) return false;
  return true;
}

/* Sends goodbyes. Closing a socket while its peer sends loses data in flight, so each rank waits for the others'
 * answers before it closes. */
void bny_net_send_goodbye(bny_net *net) {
  spread(net, FLUSH_NS);
  for (int32_t i = 0; i < net->nknown; i++)
    if (bny_net_can_send(net->known[i])) report_self(net->known[i], BNY_NET_GOODBYE);
  int64_t begun_ns = bny_clock_ns();
  while (!have_parted(net)) {
    bool hurries = bny_interrupted() || load(net->transport.fault) != 0;
    if (net->process != bny_process()) return;
    if (bny_clock_ns() - begun_ns > (hurries ? PARTING_AT_FAULT_NS : PARTING_NS)) break;
    if (net->ucx.ucp_worker_progress(net->worker)) continue;
    bny_net_answer(net);
    if (bny_net_arm(net)) bny_net_doze(net, PARTING_LOOK_NS);
  }
  bny_net_answer(net);
  bny_net_drain(net, bny_clock_ns() + FLUSH_NS);
}
