/* SPDX-License-Identifier: Apache-2.0
 * Tells ranks that a shrink has left out what became of the others. Such a rank may come at any time, when the others
 * have another communicator and make no progress on this transport, so a thread waits for it. */
#include "base/log.h"
#include "base/thread.h"
#include "transport/ucx/ucx.h"

/* How long the thread sleeps: while an answer waits for its connection, and else. Data ends both. */
enum { CONNECTING_NS = 20000000, IDLE_NS = 1000000000 };

static void *run_teller(void *argument) {
  bny_net *net = argument;
  while (!atomic_load_explicit(&net->tells_no_more, memory_order_acquire)) {
    bny_net_take(net);
    net->ucx.ucp_worker_progress(net->worker);
    if (net->nwaiting) bny_net_answer(net);
    int64_t sleep_ns = net->nwaiting ? CONNECTING_NS : IDLE_NS;
    bool armed = bny_net_arm(net);
    bny_net_give(net);
    if (armed) bny_net_doze(net, sleep_ns);
  }
  return NULL;
}

/* The answer comes after the hello, which waits for the connection; see bny_net_send_hello(). */
void bny_net_tell(bny_transport *transport, int32_t rank, int half) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return; /* the rank reads it in place */
  bny_net_take(net);
  bny_net_peer *peer = bny_net_meet(net, rank);
  const bny_rendezvous *theirs = &net->rendezvous[2 * (size_t)rank];
  if (peer) peer->told = 1 + half;
  bool has_come = atomic_load_explicit(&theirs[0].round, memory_order_relaxed) ||
                  atomic_load_explicit(&theirs[1].round, memory_order_relaxed);
  if (peer && has_come) bny_net_want_answer(peer);
  bny_net_give(net);
  if (net->tells) return;
  int error = bny_thread_start(&net->teller, run_teller, net);
  net->tells = error == 0;
  if (error)
    bny_log(BNY_LOG_WARN, "rank %d: no thread can be started (error %d), so ranks that come late are not answered",
            transport->rank, error);
}

void bny_net_tell_no_more(bny_net *net) {
  if (!net->tells) return;
  atomic_store_explicit(&net->tells_no_more, true, memory_order_release);
  net->ucx.ucp_worker_signal(net->worker);
  pthread_join(net->teller, NULL);
  net->tells = false;
}
