/* SPDX-License-Identifier: Apache-2.0
 * Rendezvous messages between nodes: each node that a rank posts to keeps a copy. */
#ifdef HAVE_UCX
#include <string.h>

#include "transport/ucx/ucx.h"

bny_rendezvous *bny_net_rendezvous_of(bny_transport *transport, int32_t rank, int half) {
  bny_net *net = bny_net_of(transport);
  if (net->place[rank] >= 0) return net->local->ops->rendezvous(net->local, net->place[rank], half);
  return &net->rendezvous[2 * (size_t)rank + (size_t)half];
}

void bny_net_post(bny_transport *transport, int32_t rank, int half) {
  bny_net *net = bny_net_of(transport);
  if (net->place[rank] >= 0) return; /* the rank reads it in place */
  bny_net_take(net);
  bny_net_peer *peer = bny_net_connect_peer(net, rank);
  bny_net_packet *packet = peer && bny_net_can_send(peer) ? bny_net_packet_take(peer) : NULL;
  if (packet) {
    const bny_rendezvous *own = bny_net_rendezvous_of(transport, transport->rank, half);
    packet->of.rendezvous = (bny_net_rendezvous){.cookie = net->cookie,
                                                 .rank = transport->rank,
                                                 .kind = own->kind,
                                                 .round = atomic_load_explicit(&own->round, memory_order_relaxed)};
    bny_net_send_rendezvous(packet, own);
  }
  bny_net_give(net);
}

void bny_net_take_rendezvous(bny_net *net, const bny_net_rendezvous *head, const void *text, size_t bytes) {
  bny_rendezvous *rendezvous = &net->rendezvous[2 * (size_t)head->rank + (size_t)(head->round & 1)];
  if (head->round <= atomic_load_explicit(&rendezvous->round, memory_order_relaxed)) return;
  rendezvous->kind = head->kind;
  rendezvous->bytes = (uint32_t)bytes;
  if (bytes) memcpy(rendezvous->text, text, bytes);
  atomic_store_explicit(&rendezvous->round, head->round, memory_order_release);
}
#else
typedef int bny_net_rendezvous_is_absent; /* a file must not be empty */
#endif
